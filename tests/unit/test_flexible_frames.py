"""Frames that carry envelopes and filters: round trips, and refusals that say what is wrong.

Their golden files, and what is tested of every frame, stand in `test_frames`.
Source: docs/protocol/envelopes.md.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.core.flexible.sending import ReadFilter
from duramen.core.segment import Totals
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, EntryId, LedgerId, NodeNumber
from duramen.limits import FILTER_BLOCK_COUNT_MAX, MAP_NODE_COUNT_MAX
from duramen.wire import bookie_calls as calls
from duramen.wire.bookie_calls import Add, ReadRange, ServiceClass
from duramen.wire.entry import encode_entry
from duramen.wire.flexible.envelope import ENVELOPE_BYTES_MAX, Envelope
from duramen.wire.flexible.filtered_answers import (
    EnvelopeRun,
    FilteredAnswer,
    group_runs,
    pack_filtered_answers,
    parse_filtered_answers,
    verify_filtered,
)
from duramen.wire.flexible.filtered_reads import (
    FilteredRange,
    pack_filtered_reads,
    parse_filtered_reads,
)
from duramen.wire.flexible.read_filter import encode_filter, parse_filter
from duramen.wire.frame import HEADER_BYTES, FrameError, frame_version
from duramen.wire.repair_calls import PullMap, pack_pull, parse_any_pull, parse_pull
from tests.golden import read_golden
from tests.unit.flexible_frames import ADDS, FILTER, LEDGER, LIFE, PULL, READ_ANSWERS, STICKY

entry_ids = st.integers(0, 0xFFFF_FFFE).map(EntryId)


# --- Adds ----------------------------------------------------------------------------------------


@st.composite
def adds(draw: st.DrawFn) -> Add:
    """A row of either version."""
    entry = draw(entry_ids)
    lac = EntryId(draw(st.integers(-1, entry - 1)))
    return Add(
        LedgerId(draw(st.integers(0, (1 << 64) - 1))), entry, lac, draw(st.binary(max_size=9)),
        draw(st.booleans()), draw(st.sampled_from(ServiceClass)),
        envelope=draw(st.binary(max_size=16)),
    )  # fmt: skip


@given(st.lists(adds(), max_size=4))
def test_adds_come_out_as_they_went_in(rows: list[Add]) -> None:
    frame = calls.pack_adds(LIFE, rows)
    assert frame_version(frame) == (2 if any(row.envelope for row in rows) else 1)
    assert calls.parse_any_adds(frame) == (LIFE, rows)


def test_v4_who_keeps_no_envelopes_refuses_the_frame_whole() -> None:
    """Rows of both versions are as long, so that the version alone tells them apart."""
    with pytest.raises(FrameError, match="frame version 2 with rows of 28 bytes is not spoken"):
        calls.parse_adds(calls.pack_adds(LIFE, ADDS))


def test_a_frame_without_envelopes_is_that_of_version_1() -> None:
    plain = [row._replace(envelope=b"") for row in ADDS]
    frame = calls.pack_adds(LIFE, plain)
    assert calls.parse_adds(frame) == calls.parse_any_adds(frame) == (LIFE, plain)
    assert calls.parse_any_adds(calls.pack_adds(LIFE, []))[1] == []


def test_an_envelope_may_be_as_long_as_any_is_and_no_longer() -> None:
    longest = Add(LEDGER, EntryId(3), NOTHING, b"", envelope=b"e" * ENVELOPE_BYTES_MAX)
    assert calls.parse_any_adds(calls.pack_adds(LIFE, [longest]))[1] == [longest]
    longer = longest._replace(envelope=b"e" * (ENVELOPE_BYTES_MAX + 1))
    with pytest.raises(FrameError, match="entry 3: an envelope of 521 bytes"):
        calls.parse_any_adds(calls.pack_adds(LIFE, [longer]))


@pytest.mark.parametrize("entry", [3, 0xFFFF_FFFF])
def test_an_add_with_an_envelope_keeps_its_lac_below_its_entry(entry: int) -> None:
    lac = EntryId(3) if entry == 3 else NOTHING
    row = ADDS[1]._replace(entry_id=EntryId(entry), lac=lac)
    with pytest.raises(FrameError, match=f"add of entry {entry}"):
        calls.parse_any_adds(calls.pack_adds(LIFE, [row]))


def test_a_wave_has_no_place_beside_an_envelope() -> None:
    with pytest.raises(AssertionError, match="one place"):
        calls.pack_adds(LIFE, [ADDS[0]._replace(wave=3), ADDS[1]])
    assert struct.unpack_from("<H", calls.pack_adds(LIFE, [ADDS[1]]), 36 + 18)[0] == 16


# --- Read requests -------------------------------------------------------------------------------

numbers = st.integers(0, 0xFFFE).map(NodeNumber)
words = st.integers(0, 0xFFFF_FFFF)
filters = st.builds(
    ReadFilter,
    st.frozensets(numbers, max_size=9),
    st.dictionaries(entry_ids, numbers, max_size=5),
)


@st.composite
def filtered_ranges(draw: st.DrawFn) -> FilteredRange:
    """Any row that a reader or a recoverer may send, without a wait."""
    is_digest = draw(st.booleans())
    wanted = ReadRange(
        LEDGER, draw(entry_ids), draw(entry_ids), draw(words), draw(words),
        service=draw(st.sampled_from([s for s in ServiceClass if s != ServiceClass.APPEND])),
        headers_only=not is_digest and draw(st.booleans()),
    )  # fmt: skip
    return FilteredRange(
        wanted, draw(words), EntryId(draw(st.integers(-1, 0xFFFF_FFFE))),
        draw(st.none() | filters), draw(st.none() | numbers), draw(st.booleans()), is_digest,
    )  # fmt: skip


def change_row(frame: bytes, at: int, change: bytes, row: int = 0) -> bytes:
    """A frame with other bytes in a row, and a CRC that is right."""
    size, count = struct.unpack_from("<HI", frame, 6)
    at += HEADER_BYTES + row * size
    changed = frame[:at] + change + frame[at + len(change) :]
    crc: int = google_crc32c.value(
        changed[:32] + changed[HEADER_BYTES : HEADER_BYTES + size * count]
    )
    return changed[:32] + crc.to_bytes(4, "little") + changed[HEADER_BYTES:]


@given(st.lists(filtered_ranges(), max_size=4))
def test_filtered_reads_come_out_as_they_went_in(ranges: list[FilteredRange]) -> None:
    assert parse_filtered_reads(pack_filtered_reads(LIFE, ranges)) == (LIFE, ranges)


def test_a_filtered_read_waits_as_any_other() -> None:
    waiting = PLAIN._replace(wanted=PLAIN.wanted._replace(wait_ms=60_000, wait_for=EntryId(7)))
    assert parse_filtered_reads(pack_filtered_reads(LIFE, [waiting]))[1] == [waiting]
    with pytest.raises(FrameError, match="single range"):
        parse_filtered_reads(pack_filtered_reads(LIFE, [waiting, PLAIN]))


PLAIN = FilteredRange(ReadRange(LEDGER, EntryId(4), EntryId(9), 100))
WIDEST = ReadFilter(
    frozenset(NodeNumber(number) for number in range(MAP_NODE_COUNT_MAX)),
    {EntryId(block): NodeNumber(0) for block in range(FILTER_BLOCK_COUNT_MAX)},
)


def test_who_reads_version_1_alone_refuses_a_filtered_read_whole() -> None:
    with pytest.raises(FrameError, match="frame version 2 with rows of 48 bytes is not spoken"):
        calls.parse_reads(pack_filtered_reads(LIFE, [PLAIN]))
    with pytest.raises(FrameError, match="frame version 1 with rows of 36 bytes is not spoken"):
        parse_filtered_reads(calls.pack_reads(LIFE, [PLAIN.wanted]))


def test_the_widest_filter_fits() -> None:
    spelt = encode_filter(WIDEST)
    assert len(spelt) == 904, "of 1,024 that a row may announce"
    assert parse_filter(spelt) == WIDEST


@pytest.mark.parametrize(
    ("at", "change", "why"),
    [
        (33, b"\x10", "flags 0x10"),
        (33, b"\x09", "headers or of digests"),
        (33, b"\x02", "a filter comes with the flag"),
        (32, b"\x00", "class of appends"),
        (32, b"\x05", "class of service 5"),
        (44, b"\x01\x04", "lengths do not add up"),
    ],
)
def test_a_filtered_read_that_makes_no_sense_is_refused(at: int, change: bytes, why: str) -> None:
    with pytest.raises(FrameError, match=why):
        parse_filtered_reads(change_row(pack_filtered_reads(LIFE, [PLAIN]), at, change))


def test_a_filter_needs_its_flag_and_is_bounded() -> None:
    filtered = PLAIN._replace(read_filter=WIDEST)
    frame = pack_filtered_reads(LIFE, [filtered])
    with pytest.raises(FrameError, match="a filter comes with the flag"):
        parse_filtered_reads(change_row(frame, 33, b"\x00"))
    longer = frame[:28] + (1_025).to_bytes(4, "little") + frame[32:] + bytes(1_025 - 904)
    with pytest.raises(FrameError, match="a filter has 1024 bytes at most"):
        parse_filtered_reads(change_row(longer, 44, (1_025).to_bytes(2, "little")))


def encode_any_filter(up: Sequence[int], blocks: Sequence[tuple[int, int]]) -> bytes:
    """The bytes of a filter that may make no sense, with a CRC that is right."""
    data = struct.pack(f"<HH{len(up)}H", len(up), len(blocks), *up)
    data += b"".join(struct.pack("<IH", *block) for block in blocks)
    return data + struct.pack("<I", google_crc32c.value(data))


@pytest.mark.parametrize(
    ("up", "blocks", "why"),
    [
        ([3, 3], [], "nodes rise"),
        ([3, 2], [], "nodes rise"),
        ([3, 0xFFFF], [], "65535 is no number"),
        (range(257), [], "256 nodes"),
        ([], [(block, 0) for block in range(65)], "64 blocks"),
        ([], [(7, 0), (7, 1)], "blocks rise"),
        ([], [(0xFFFF_FFFF, 0)], "first entry and a sender"),
        ([], [(7, 0xFFFF)], "first entry and a sender"),
    ],
)
def test_a_filter_that_no_reader_makes_is_refused(
    up: Sequence[int], blocks: Sequence[tuple[int, int]], why: str
) -> None:
    with pytest.raises(FrameError, match=why):
        parse_filter(encode_any_filter(up, blocks))


def test_each_flipped_bit_and_each_cut_of_a_filter_is_found() -> None:
    spelt = encode_filter(FILTER)
    for bit in range(8 * len(spelt)):
        flipped = bytearray(spelt)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FrameError):
            parse_filter(bytes(flipped))
    for size in range(len(spelt)):
        with pytest.raises(FrameError):
            parse_filter(spelt[:size])


# --- Read answers --------------------------------------------------------------------------------

envelopes = st.builds(
    Envelope,
    st.lists(numbers, min_size=1, max_size=4, unique=True).map(tuple),
    st.none() | entry_ids,
)
few_envelopes = st.sampled_from([None, STICKY, STICKY._replace(block=None)])


@st.composite
def filtered_answers(draw: st.DrawFn) -> FilteredAnswer:
    """An answer of entries, or of digests, between ranges that nobody vouches for."""
    kinds = draw(st.lists(st.sampled_from("eu."), max_size=12))
    first = draw(st.integers(0, 0xFFFF_FFFE - len(kinds)))
    told = [EntryId(first + at) for at, kind in enumerate(kinds) if kind == "e"]
    lost = [EntryId(first + at) for at, kind in enumerate(kinds) if kind == "u"]
    is_digest = draw(st.booleans())
    return FilteredAnswer(
        BookieStatus.OK, EntryId(draw(st.integers(-1, 9))), EntryId(draw(st.integers(-1, 9))),
        draw(st.booleans()), draw(words), EntryId(first + len(kinds)),
        () if is_digest else tuple((entry, draw(st.binary(max_size=5))) for entry in told),
        tuple((entry, draw(words)) for entry in told) if is_digest else None,
        tuple((entry, entry) for entry in lost),
        tuple(group_runs((entry, draw(st.none() | envelopes)) for entry in told)),
    )  # fmt: skip


@given(st.lists(filtered_answers(), max_size=3))
def test_filtered_answers_come_out_as_they_went_in(answers: list[FilteredAnswer]) -> None:
    assert parse_filtered_answers(pack_filtered_answers(answers)) == answers


@given(st.lists(few_envelopes, max_size=9), st.booleans())
def test_runs_say_of_each_entry_what_its_envelope_is(
    found: list[Envelope | None], is_digest: bool
) -> None:
    copies = [(EntryId(3 * at), envelope) for at, envelope in enumerate(found)]
    runs = group_runs(copies)
    told = tuple((entry, b"") for entry, _ in copies)
    digests = tuple((entry, 0) for entry, _ in copies)
    answer = READ_ANSWERS[0]._replace(
        entries=() if is_digest else told, digests=digests if is_digest else None, runs=runs
    )
    assert answer.envelopes == {entry: one for entry, one in copies if one is not None}
    changes = sum(one != two for one, two in pairwise([None, *found]))
    assert len(runs) <= changes


def test_a_block_costs_one_run() -> None:
    copies = [(EntryId(entry), STICKY) for entry in range(0, 900, 3)]
    assert group_runs(copies) == [EnvelopeRun(EntryId(0), EntryId(897), STICKY)]


ANSWER, DIGESTS, LATER = READ_ANSWERS
FOUR, FIVE, SIX, EIGHT = (EntryId(entry) for entry in (4, 5, 6, 8))


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (ANSWER._replace(status=BookieStatus.NO_ENTRY), "NO_ENTRY answers no filtered read"),
        (ANSWER._replace(status=BookieStatus.UNKNOWN), "UNKNOWN answers no filtered read"),
        (ANSWER._replace(status=BookieStatus.GONE), "GONE has no tables"),
        (ANSWER._replace(entries=ANSWER.entries[::-1]), "entries rise"),
        (ANSWER._replace(entries=(ANSWER.entries[0], ANSWER.entries[0])), "entries rise"),
        (ANSWER._replace(unvouched=((SIX, FIVE),)), "unvouched ranges go from"),
        (ANSWER._replace(unvouched=((FIVE, FIVE), (FIVE, FIVE))), "unvouched ranges rise"),
        (ANSWER._replace(unvouched=((FIVE, SIX),)), "entry 6 is told and unvouched"),
        (ANSWER._replace(runs=(*ANSWER.runs, ANSWER.runs[0])), "runs rise"),
        (ANSWER._replace(next=EIGHT), "from its next, 8, on"),
        (LATER._replace(status=BookieStatus.OK, unvouched=((FOUR, FIVE),)), "its next, 4, on"),
        (DIGESTS._replace(next=EntryId(7)), "from its next, 7, on"),
        (DIGESTS._replace(digests=tuple((EntryId(e), 0) for e in range(65_537))), "65536 entries"),
        (DIGESTS._replace(unvouched=tuple((EntryId(e), EntryId(e)) for e in range(4_097))), "4096"),
        (DIGESTS._replace(runs=(ANSWER.runs[0],) * 4_097), "4096 runs"),
    ],
)
def test_an_answer_that_contradicts_itself_is_refused(answer: FilteredAnswer, why: str) -> None:
    with pytest.raises(FrameError, match=why):
        parse_filtered_answers(pack_filtered_answers([answer]))


@pytest.mark.parametrize(
    ("at", "change", "why"),
    [
        (1, b"\x02", "flags 0x2"),
        (0, b"\x0b", "status 11"),
        (20, b"\xff\xff\x00\x00", "do not add up"),
        (24, b"\xff\x0f\x00\x00", "do not add up"),
        (24, b"\x01\x00\x00\x00", "tables does not match"),
        (28, b"\x00\x00\x00\x00", "do not add up|does not match"),
        (36, b"\x00\x00\x00\x00", "tables does not match"),
    ],
)
def test_a_row_that_lies_of_its_tables_is_refused(at: int, change: bytes, why: str) -> None:
    with pytest.raises(FrameError, match=why):
        parse_filtered_answers(change_row(pack_filtered_answers([ANSWER]), at, change))


def test_each_flipped_bit_of_the_tables_is_found() -> None:
    frame = pack_filtered_answers([ANSWER])
    bodies_bytes = sum(len(body) for _, body in ANSWER.entries)
    for at in range(HEADER_BYTES + 40, len(frame) - bodies_bytes):
        flipped = bytearray(frame)
        flipped[at] ^= 1
        with pytest.raises(FrameError):
            parse_filtered_answers(bytes(flipped))


def test_a_run_with_no_content_is_refused() -> None:
    run = struct.pack("<IIHH", 4, 4, 3, 0) + b"\1\1\0"
    frame = pack_filtered_answers([LATER._replace(status=BookieStatus.OK)]) + run
    frame = frame[:28] + len(run).to_bytes(4, "little") + frame[32:]
    row = struct.pack("<III", 0, 1, 0)
    row += struct.pack("<II", len(run), google_crc32c.value(run))
    with pytest.raises(FrameError, match="a run: an envelope's content of 3 bytes"):
        parse_filtered_answers(change_row(frame, 20, row))


# --- An answer beside its request ----------------------------------------------------------------


def make_entry(entry: int) -> bytes:
    """A whole entry without batches."""
    return encode_entry(
        ledger_id=LEDGER, entry_id=EntryId(entry), before=Totals(), batches=[], record_count=0,
        after=Totals(),
    )  # fmt: skip


ASKED = FilteredRange(ReadRange(LEDGER, FOUR, EIGHT, 100), 17, with_envelopes=True)
SENT = ANSWER._replace(
    entries=tuple((entry, make_entry(entry)) for entry in (FOUR, SIX, EIGHT)),
    unvouched=((EntryId(7), EntryId(7)),),
)


def test_an_answer_that_fits_stays_what_it_is() -> None:
    assert verify_filtered(SENT, ASKED) == SENT
    late = LATER._replace(filter_number=0)
    assert verify_filtered(late, ASKED) == late, "a refusal tells of nothing"


@pytest.mark.parametrize(
    "body", [b"", make_entry(6)[:-1], make_entry(6)[:-1] + b"?", make_entry(7), b"x" * 64]
)
def test_v10_a_body_that_came_broken_is_vouched_for_by_nobody(body: bytes) -> None:
    broken = SENT._replace(entries=(SENT.entries[0], (SIX, body), SENT.entries[2]))
    verified = verify_filtered(broken, ASKED)
    assert verified.entries == (SENT.entries[0], SENT.entries[2])
    assert verified.unvouched == ((SIX, SIX), (EntryId(7), EntryId(7)))
    assert verified.next == SENT.next, "it was looked at"
    assert SIX not in verified.envelopes


@pytest.mark.parametrize(
    ("answer", "asked", "why"),
    [
        (SENT, ASKED._replace(filter_number=16), "filter number 17"),
        (SENT, ASKED._replace(filter_number=18), "filter number 17"),
        (SENT, ASKED._replace(is_digest=True), "digests come where"),
        (DIGESTS._replace(filter_number=17), ASKED, "digests come where"),
        (SENT, ASKED._replace(with_envelopes=False), "envelopes come where"),
        (SENT, ASKED._replace(wanted=ASKED.wanted._replace(first=FIVE)), "nothing else"),
        (SENT, ASKED._replace(wanted=ASKED.wanted._replace(last=EntryId(7))), "nothing else"),
        (SENT._replace(next=EntryId(3), entries=(), runs=(), unvouched=()), ASKED, "nothing else"),
        (SENT._replace(unvouched=((EntryId(3), EntryId(3)),)), ASKED, "nothing else"),
        (SENT._replace(lac=EntryId(7)), ASKED, "next 9 is above what may be shown"),
        (SENT._replace(lac=NOTHING), ASKED._replace(bound=EntryId(7)), "next 9 is above"),
    ],
)
def test_an_answer_that_does_not_fit_its_request_is_refused(
    answer: FilteredAnswer, asked: FilteredRange, why: str
) -> None:
    with pytest.raises(FrameError, match=why):
        verify_filtered(answer, asked)


def test_v9_the_bound_shows_what_the_bookie_was_not_told_and_recovery_sees_all() -> None:
    untold = SENT._replace(lac=NOTHING)
    bounded = ASKED._replace(bound=EIGHT)
    assert verify_filtered(untold, bounded) == untold
    for service in (ServiceClass.RECOVERY, ServiceClass.REPAIR):
        whole = ASKED._replace(wanted=ASKED.wanted._replace(service=service))
        assert verify_filtered(untold, whole) == untold


def test_headers_alone_are_verified_by_what_they_name() -> None:
    asked = ASKED._replace(wanted=ASKED.wanted._replace(headers_only=True))
    heads = tuple((entry, bytes(body[:64])) for entry, body in SENT.entries)
    assert verify_filtered(SENT._replace(entries=heads), asked).entries == heads


# --- Pulls ---------------------------------------------------------------------------------------


@given(st.sets(numbers, min_size=1, max_size=9).flatmap(
    lambda found: st.tuples(st.sampled_from(sorted(found)), st.just(tuple(sorted(found))))
))  # fmt: skip
def test_the_map_of_a_pull_comes_out_as_it_went_in(
    node_map: tuple[NodeNumber, tuple[NodeNumber, ...]],
) -> None:
    pull = PULL._replace(node_map=PullMap(*node_map))
    assert parse_any_pull(pack_pull(LIFE, pull)) == (LIFE, pull)


def test_a_pull_without_a_map_is_that_of_version_2_and_one_with_it_is_refused_whole() -> None:
    plain = pack_pull(LIFE, PULL._replace(node_map=None))
    assert plain == read_golden("frame-bookie-pull-v2.bin", None)
    assert parse_any_pull(plain) == parse_pull(plain) == (LIFE, PULL._replace(node_map=None))
    with pytest.raises(FrameError, match="frame version 3 with rows of 28 bytes is not spoken"):
        parse_pull(pack_pull(LIFE, PULL))


@pytest.mark.parametrize(
    ("own", "found", "why"),
    [
        (4, (), "1 to 256 numbers"),
        (4, range(257), "1 to 256 numbers"),
        (4, (4, 0), "the numbers of a pull's map rise"),
        (4, (4, 4), "the numbers of a pull's map rise"),
        (4, (4, 0xFFFF), "65535 is no number"),
        (5, (0, 4), "who pulls, 5, is not in the pull's map"),
    ],
)
def test_the_map_of_a_pull_that_makes_no_sense_is_refused(
    own: int, found: Sequence[int], why: str
) -> None:
    node_map = PullMap(NodeNumber(own), tuple(map(NodeNumber, found)))
    with pytest.raises(FrameError, match=why):
        parse_any_pull(pack_pull(LIFE, PULL._replace(node_map=node_map)))


def test_a_pull_that_counts_more_numbers_than_came_is_refused() -> None:
    frame = change_row(pack_pull(LIFE, PULL), 26, b"\xff\x00")
    with pytest.raises(FrameError, match="lengths do not add up"):
        parse_any_pull(frame)
