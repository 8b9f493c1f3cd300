"""Answers of bookies to reads of flexible segments: version 2 of `POST /b/read`.

A row says up to where the bookie looked (`next`), what it sends of that, and what it cannot vouch
for (R15). All else below `next` is absent by this incarnation's word, if the read had no filter;
with one it is absent or another's to send, which proves nothing. Envelopes come as runs of entries
with one content, so that a sticky block costs one.

The tables are under a CRC in the row, as all that is decided on; bodies have their own checksums.
Called by readers and recoverers of flexible segments, and by bookies. Source:
docs/protocol/envelopes.md "Read: `POST /b/read`, version 2", R15, R25, V9, V10.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import google_crc32c

from duramen.core.status import BookieStatus
from duramen.ids import EntryId
from duramen.limits import FILTERED_ENTRY_COUNT_MAX, FILTERED_RANGE_COUNT_MAX
from duramen.wire.bookie_calls import encode_entry_id, is_body_of, read_entry_id, read_status
from duramen.wire.flexible.envelope import Envelope, EnvelopeError, encode_content, parse_content
from duramen.wire.flexible.filtered_reads import READ_VERSION_FILTERED, FilteredRange
from duramen.wire.frame import FrameError, pack_frame, parse_frame, split_payload

# row  status u8, flags u8 (1: sealed, 8: digests), 0 u16, LAC u32, highest entry u32,
#      filter number u32, next u32, entries k u32, runs e u32, unvouched ranges u u32,
#      bytes of the payload u32, CRC32C of the three tables u32
#      payload: k × (entry u32, bytes u32; of digests entry u32, identity u32),
#      u × (first u32, last u32), e × (first u32, last u32, bytes u16, 0 u16, content), bodies

_ROW: Final = struct.Struct("<BBHIIIIIIIII")
_PAIR: Final = struct.Struct("<II")
_RUN: Final = struct.Struct("<IIHH")
_SEALED, _DIGESTS = 1, 8

_STATUSES: Final = frozenset({
    BookieStatus.OK, BookieStatus.WRONG_INCARNATION, BookieStatus.INVALID, BookieStatus.GONE,
    BookieStatus.OVERLOADED, BookieStatus.NOT_RELEASED,
})  # fmt: skip
"""What is absent or in doubt is in the tables, and no status of a range."""

Ranges = Sequence[tuple[EntryId, EntryId]]


class EnvelopeRun(NamedTuple):
    """Each entry of the answer from `first` to `last` has this envelope."""

    first: EntryId
    last: EntryId
    envelope: Envelope


class FilteredAnswer(NamedTuple):
    """What a bookie says of a range."""

    status: BookieStatus
    """OK, or why nothing was looked at."""
    lac: EntryId
    highest: EntryId
    is_sealed: bool
    filter_number: int
    next: EntryId
    """The first entry that was not looked at; 0xFFFF_FFFF is behind the last one that can be."""
    entries: Sequence[tuple[EntryId, bytes | memoryview]] = ()
    digests: Sequence[tuple[EntryId, int]] | None = None
    """Entries and their identities, where these were asked for in place of bodies."""
    unvouched: Ranges = ()
    """Closed ranges below `next` that it cannot vouch for, to be sent by it or not."""
    runs: Sequence[EnvelopeRun] = ()

    @property
    def envelopes(self) -> Mapping[EntryId, Envelope]:
        """Envelopes of the entries that came; those without one are not in it."""
        starts = [run.first for run in self.runs]
        told = [entry for entry, _ in (self.entries if self.digests is None else self.digests)]
        found = {entry: self.runs[at - 1] for entry in told if (at := bisect_right(starts, entry))}
        return {entry: run.envelope for entry, run in found.items() if entry <= run.last}


def group_runs(copies: Iterable[tuple[EntryId, Envelope | None]]) -> list[EnvelopeRun]:
    """Runs of entries that follow each other in an answer and have one envelope."""
    runs: list[EnvelopeRun] = []
    before: Envelope | None = None
    for entry, envelope in copies:
        if envelope is not None and envelope == before:
            runs[-1] = runs[-1]._replace(last=entry)
        elif envelope is not None:
            runs.append(EnvelopeRun(entry, entry, envelope))
        before = envelope
    return runs


def pack_filtered_answers(answers: Sequence[FilteredAnswer]) -> bytes:
    """Encode an answer of version 2."""
    rows = []
    payload: list[bytes | memoryview] = []
    for answer in answers:
        tables, bodies = _encode_tables(answer), [body for _, body in answer.entries]
        is_digest = answer.digests is not None
        told_count = len(answer.entries if answer.digests is None else answer.digests)
        rows.append(
            (
                answer.status, answer.is_sealed * _SEALED | is_digest * _DIGESTS, 0,
                encode_entry_id(answer.lac), encode_entry_id(answer.highest),
                answer.filter_number, answer.next, told_count, len(answer.runs),
                len(answer.unvouched), len(tables) + sum(map(len, bodies)),
                google_crc32c.value(tables),
            )
        )  # fmt: skip
        payload += [tables, *bodies]
    return pack_frame(b"DRDR", _ROW, rows, payload, version=READ_VERSION_FILTERED)


def parse_filtered_answers(data: bytes) -> list[FilteredAnswer]:
    """Read an answer of version 2; bodies are views of `data`, their checksums not yet verified.

    Raises:
        FrameError: no such frame, damaged tables, or tables that contradict each other.
    """
    frame = parse_frame(data, b"DRDR", _ROW, version=READ_VERSION_FILTERED)
    parts = split_payload(frame.payload, [row[10] for row in frame.rows])
    return [_read_answer(row, part) for row, part in zip(frame.rows, parts, strict=True)]


def verify_filtered(answer: FilteredAnswer, asked: FilteredRange) -> FilteredAnswer:
    """The answer to this request, with what is broken in it among what nobody vouches for.

    So a body that came damaged neither stops a reader nor looks like an absence.

    Raises:
        FrameError: it answers something else, or tells of what may not be shown.
    """
    _check_fit(answer, asked)
    entries: list[tuple[EntryId, bytes]] = []
    broken: list[tuple[EntryId, EntryId]] = []
    for entry, view in answer.entries:
        body = bytes(view)
        if is_body_of(body, asked.wanted, entry):
            entries.append((entry, body))
        else:
            broken.append((entry, entry))
    return answer._replace(
        entries=tuple(entries), unvouched=tuple(sorted([*answer.unvouched, *broken]))
    )


def _encode_tables(answer: FilteredAnswer) -> bytes:
    assert answer.digests is None or not answer.entries, "digests stand in place of bodies"
    sizes = [(entry, len(body)) for entry, body in answer.entries]
    pairs = (*(sizes if answer.digests is None else answer.digests), *answer.unvouched)
    spelt = [_PAIR.pack(*pair) for pair in pairs]
    for run in answer.runs:
        content = encode_content(run.envelope)
        spelt += [_RUN.pack(run.first, run.last, len(content), 0), content]
    return b"".join(spelt)


def _read_answer(row: tuple[Any, ...], part: memoryview) -> FilteredAnswer:
    number, flags, _, lac, highest, filter_number, following = row[:7]
    told_count, run_count, range_count, _, crc = row[7:]
    status = read_status(number)
    if status not in _STATUSES:
        raise FrameError(f"status {status.name} answers no filtered read")
    if flags & ~(_SEALED | _DIGESTS):
        raise FrameError(f"flags {flags:#x} of a filtered answer are not known")
    _check_counts(told_count, run_count, range_count)
    if status is not BookieStatus.OK and len(part):
        raise FrameError(f"an answer {status.name} has no tables")
    runs, tables_bytes = _read_runs(part, _PAIR.size * (told_count + range_count), run_count)
    if google_crc32c.value(bytes(part[:tables_bytes])) != crc:
        raise FrameError("the CRC of the answer's tables does not match")
    pairs_end = _PAIR.size * (told_count + range_count)
    pairs = list(_PAIR.iter_unpack(part[:pairs_end]))
    told, unvouched = pairs[:told_count], pairs[told_count:]
    is_digest = bool(flags & _DIGESTS)
    sizes = [] if is_digest else [size for _, size in told]
    bodies = split_payload(part[tables_bytes:], sizes)
    answer = FilteredAnswer(
        status, read_entry_id(lac), read_entry_id(highest), bool(flags & _SEALED), filter_number,
        following,
        entries=() if is_digest else tuple(
            (EntryId(item[0]), body) for item, body in zip(told, bodies, strict=True)
        ),
        digests=tuple(told) if is_digest else None,
        unvouched=tuple(unvouched), runs=_parse_runs(runs),
    )  # fmt: skip
    _check_tables(answer, [entry for entry, _ in told])
    return answer


def _check_counts(told_count: int, run_count: int, range_count: int) -> None:
    if told_count > FILTERED_ENTRY_COUNT_MAX:
        raise FrameError(f"a filtered answer has {FILTERED_ENTRY_COUNT_MAX} entries at most")
    if max(run_count, range_count) > FILTERED_RANGE_COUNT_MAX:
        raise FrameError(
            f"a filtered answer has {FILTERED_RANGE_COUNT_MAX} runs and unvouched ranges at most"
        )


def _read_runs(part: memoryview, at: int, count: int) -> tuple[list[tuple[int, int, bytes]], int]:
    """The runs from an offset on, not yet verified, and the offset behind them."""
    runs = []
    for _ in range(count):
        if at + _RUN.size > len(part):
            break
        first, last, size, _ = _RUN.unpack_from(part, at)
        at += _RUN.size + size
        runs.append((first, last, bytes(part[at - size : at])))
    if at > len(part) or len(runs) < count:
        raise FrameError("the frame's lengths do not add up")
    return runs, at


def _parse_runs(runs: Iterable[tuple[int, int, bytes]]) -> tuple[EnvelopeRun, ...]:
    try:
        return tuple(
            EnvelopeRun(EntryId(a), EntryId(b), parse_content(data)) for a, b, data in runs
        )
    except EnvelopeError as error:
        raise FrameError(f"a run: {error}") from error


def _check_tables(answer: FilteredAnswer, told: Sequence[int]) -> None:
    if any(one >= two for one, two in pairwise(told)):
        raise FrameError("an answer's entries rise")
    _check_ranges(answer.unvouched, "unvouched ranges")
    runs = [(run.first, run.last) for run in answer.runs]
    _check_ranges(runs, "runs")
    ends = [last for _, last in (*answer.unvouched[-1:], *runs[-1:])]
    if any(last >= answer.next for last in (*told[-1:], *ends)):
        raise FrameError(f"an answer tells of nothing from its next, {answer.next}, on")
    if answer.unvouched:
        starts = [first for first, _ in answer.unvouched]
        for entry in told:
            at = bisect_right(starts, entry)
            if at and entry <= answer.unvouched[at - 1][1]:
                raise FrameError(f"entry {entry} is told and unvouched")


def _check_ranges(ranges: Ranges, what: str) -> None:
    if any(first > last for first, last in ranges):
        raise FrameError(f"{what} go from their first entry to their last one")
    if any(one[1] >= two[0] for one, two in pairwise(ranges)):
        raise FrameError(f"{what} rise and do not overlap")


def _check_fit(answer: FilteredAnswer, asked: FilteredRange) -> None:
    if answer.status is not BookieStatus.OK:
        return
    first, last = asked.wanted.first, asked.wanted.last
    if answer.filter_number != asked.filter_number:
        raise FrameError(f"filter number {answer.filter_number} was not asked with")
    if (answer.digests is not None) != asked.is_digest:
        raise FrameError("digests come where they were asked for, and only there")
    if answer.runs and not asked.with_envelopes:
        raise FrameError("envelopes come where they were asked for, and only there")
    told = answer.entries if answer.digests is None else answer.digests
    starts = [at for at, *_ in (*told[:1], *answer.unvouched[:1], *answer.runs[:1])]
    if not first <= answer.next <= last + 1 or any(at < first for at in starts):
        raise FrameError(f"an answer to {first} to {last} tells of nothing else")
    if asked.is_cut and answer.next > max(answer.lac, asked.bound) + 1:
        raise FrameError(f"next {answer.next} is above what may be shown")
