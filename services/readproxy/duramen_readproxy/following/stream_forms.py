"""The bytes of a stream: records and notes, as NDJSON lines or as server-sent events.

A form takes delivered entries and gives pieces to send. Whole entries of a stream without bounds
are encoded in bulk, and once for all who follow (`encodings`); an entry that is cut, because the
stream begins or may end inside it, goes through `RecordPick`. What is no record is a note: the tail
was reached, nothing came for a while (heartbeat), something is missing (gap), the stream ends.

An event's id says where the next event begins and what is left of the bounds: `ResumeId`.
Driven by `streams`. Source: docs/protocol/read-answers.md.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import orjson

from duramen.core.reading.effects import Deliver
from duramen.ids import LogId, ledger_of
from duramen.runtime.reading.log_reader import DataLost
from duramen.runtime.reading.positioning.positions import Start
from duramen.runtime.reading.tail import Tail
from duramen.units import KIB
from duramen.wire.entry import read_entry_info
from duramen.wire.read_answers import place_batches
from duramen.wire.record_json import encode_record, iterate_records
from duramen_readproxy.answers import Bounds, RecordPick, size_of, translated
from duramen_readproxy.following.encodings import (
    PIECE_BYTES,
    EncodingKey,
    PieceCutter,
    SharedEncodings,
)
from duramen_readproxy.following.resume import ResumeId
from duramen_readproxy.gaps import HoleFinder, describe_gap, describe_hole
from duramen_readproxy.parameters import Form, ReadRequest

RETRY_LINE: Final = b"retry: 1000\n\n"
"""How long a browser waits before it comes back, in ms: another proxy takes over at once."""


class Step(NamedTuple):
    """What is encoded in one go at most, but for one record: an entry may have ten thousand."""

    record_count: int
    size_bytes: int


CATCH_UP_STEP: Final = Step(50, 32 * KIB)
"""Well below a millisecond."""

TAIL_STEP: Final = Step(500, 320 * KIB)
"""Some milliseconds, once for all who follow: usual entries are there at once."""

_UNBOUNDED: Final = Bounds(None, None, None)

Document = dict[str, Any]


class StreamForm(abc.ABC):
    """Bytes of one stream; see the module.

    Args:
        start: records before it are not shown.
        shared: encodings of the process.
        find: of the holes that the stream passes.
    """

    opening: bytes = b""
    """Sent once, before everything else."""

    def __init__(
        self,
        log_id: LogId,
        start: Start,
        wanted: ReadRequest,
        shared: SharedEncodings,
        find: HoleFinder,
    ) -> None:
        self._log_id = log_id
        self._find_hole = find
        self._shared = shared
        self._start = start
        self._wanted = wanted
        self._pick = RecordPick(start, wanted.bounds, is_base64=wanted.is_base64)
        self._step = CATCH_UP_STEP
        self._done_count = self._done_bytes = 0
        """Records that were encoded since others could go on, and their bytes."""
        self._is_bounded = wanted.bounds != _UNBOUNDED
        self._position: str | None = None
        """Where to go on when the number of the next record is not known."""

    @property
    def is_full(self) -> bool:
        """Whether a bound is reached."""
        return self._pick.is_full

    @property
    def wanted_seq_num(self) -> int:
        """The record that is wanted next."""
        return self._pick.wanted_seq_num

    def add(self, delivered: Deliver, step: Step) -> Iterator[bytes | asyncio.Event]:
        """The pieces of delivered entries, small ones joined; empty ones where others may go on.

        An event stands where somebody else makes what comes next: it is to be waited for.

        Args:
            step: what may be done between two of them.

        Raises:
            DuramenError: `invalid_argument` (a record that is no text), `internal`.
        """
        self._step = step
        self._done_count = self._done_bytes = 0
        yield from _join(self._encode_entries(delivered))

    def note_moved(self) -> bytes:
        """The stream begins later than was asked for; empty where it does not."""
        if not self._start.is_moved:
            return b""
        note = {"kind": "truncated", "next": f"seq:{self._start.seq_num}"}
        return self.encode_note("gap", note)

    def pass_truncated(self, left_seq_num: int) -> bytes:
        """What came before this record was truncated."""
        begin, end = f"seq:{self.wanted_seq_num}", f"seq:{left_seq_num}"
        note = {"kind": "truncated", "from": begin, "next": end}
        self._pick.next_seq_num = left_seq_num
        return self.encode_note("gap", note)

    def pass_lost(self, lost: DataLost) -> bytes:
        """What was to come next is lost."""
        gap, position = lost.gap, f"dlsn:{lost.next_dlsn}"
        entries = gap.first, gap.last
        note = describe_gap("lost", self.next_position, position, gap.epoch, entries)
        self._position = position
        return self.encode_note("gap", note)

    def note_tail(self, tail: Tail) -> bytes:
        """The end was reached; the stream waits there."""
        return self.encode_note("tail", {"tail": tail.encode(), "next": self.next_position})

    def note_nothing(self) -> bytes:
        """Nothing came for a while."""
        return self.encode_note("heartbeat", {"next": self.next_position})

    def note_end(self, reason: str, *, is_final: bool) -> bytes:
        """The stream ends; `is_final`: it is not worth coming back."""
        note = {"reason": reason, "next": self.next_position}
        return self.encode_note("end", note, is_final=is_final)

    @property
    def next_position(self) -> str:
        """The `from` of who goes on."""
        return self._position or f"seq:{self.wanted_seq_num}"

    @abc.abstractmethod
    def encode_note(self, kind: str, note: Document, *, is_final: bool = False) -> bytes:
        """A note; empty where this stream has none."""

    @abc.abstractmethod
    def _begin_records(self, resume: ResumeId) -> bytes:
        """Before the records of one entry; `resume` is where the next one begins."""

    @abc.abstractmethod
    def _encode_records(self, documents: list[Document], *, is_first: bool) -> bytes:
        """Some of the records of an entry; `is_first`: none of them came before."""

    @abc.abstractmethod
    def _end_records(self, resume: ResumeId) -> bytes:
        """Behind them."""

    def _resume(self, *, is_final: bool = False) -> ResumeId:
        count, size_bytes = self._pick.rest()
        return ResumeId(self.next_position, count, size_bytes, is_final)

    def _encode_entries(self, delivered: Deliver) -> Iterator[bytes | asyncio.Event]:
        is_at_tail = self._step is TAIL_STEP
        for entry_id, body in delivered.entries:
            info = read_entry_info(body)
            first = delivered.start_seq_num + info.first_position
            wanted = self.wanted_seq_num
            if self._position is not None:  # what is lost, with a hole behind it, was told
                self._pick.next_seq_num, self._position = max(first, wanted), None
            elif first > wanted:
                gap = describe_hole(self._find_hole, delivered.epoch, entry_id, wanted, first)
                self._pick.go_behind(first)
                yield self.encode_note("gap", gap)
                if self.is_full:
                    return
            if self._is_bounded or first < self._start.seq_num:
                yield from self._encode_part(delivered, body)
                if self.is_full:
                    return
            elif info.record_count:
                self._pick.next_seq_num = first + info.record_count
                ledger_id = ledger_of(self._log_id, delivered.epoch)
                form = self._wanted.form.value
                key = EncodingKey(ledger_id, entry_id, form, self._wanted.is_base64)
                if is_at_tail and info.record_count <= TAIL_STEP.record_count:
                    yield from self._encode_at_once(key, delivered, body)
                else:
                    yield from self._encode_whole(key, delivered, body, is_at_tail=is_at_tail)

    def _encode_at_once(self, key: EncodingKey, delivered: Deliver, body: bytes) -> Sequence[bytes]:
        pieces = self._shared.get(key)
        if pieces is None:
            pieces = tuple(piece for piece in self._make(key, delivered, body) if piece)
            self._shared.put(key, pieces)
        return pieces

    def _encode_whole(
        self, key: EncodingKey, delivered: Deliver, body: bytes, *, is_at_tail: bool
    ) -> Iterator[bytes | asyncio.Event]:
        while (pieces := self._shared.get(key)) is None:
            making = self._shared.find_making(key, is_at_tail=is_at_tail)
            if making is None:
                break
            yield making
        if pieces is None:
            with self._shared.making(key, is_at_tail=is_at_tail):
                made: list[bytes] = []
                for piece in self._make(key, delivered, body):
                    if piece:
                        made.append(piece)
                    else:
                        yield b""
                pieces = tuple(made)
                self._shared.put(key, pieces)
        yield from pieces

    def _make(self, key: EncodingKey, delivered: Deliver, body: bytes) -> Iterator[bytes]:
        """The pieces of an entry; empty ones where others may go on."""
        resume, cutter = ResumeId(self.next_position, None, None), PieceCutter()
        yield from cutter.add(self._begin_records(resume))
        for part in self._encode_each(self._decode(key, delivered, body)):
            if part:
                yield from cutter.add(part)
            else:
                yield b""
        yield from cutter.add(self._end_records(resume))
        yield from cutter.end()

    def _encode_part(self, delivered: Deliver, body: bytes) -> Iterator[bytes]:
        """What the bounds and the start leave of an entry."""
        parts: list[bytes] = []
        for part in self._encode_each(self._pick_each(delivered, body)):
            if part:
                parts.append(part)
            else:
                yield b""
        if not parts:
            return
        resume, cutter = self._resume(), PieceCutter()
        for part in (self._begin_records(resume), *parts, self._end_records(resume)):
            yield from cutter.add(part)
        yield from cutter.end()

    def _encode_each(self, taken: Iterator[tuple[Document, int]]) -> Iterator[bytes]:
        """The records of an entry in parts; an empty one where others may go on."""
        documents: list[Document] = []
        is_first = True
        for document, size_bytes in taken:
            documents.append(document)
            self._done_count += 1
            self._done_bytes += size_bytes
            step = self._step
            if self._done_count >= step.record_count or self._done_bytes >= step.size_bytes:
                self._done_count = self._done_bytes = 0
                yield self._encode_records(documents, is_first=is_first)
                yield b""
                documents, is_first = [], False
        if documents:
            yield self._encode_records(documents, is_first=is_first)

    def _decode(
        self, key: EncodingKey, delivered: Deliver, body: bytes
    ) -> Iterator[tuple[Document, int]]:
        with translated():
            for placed in place_batches(body, delivered.epoch, delivered.start_seq_num):
                for record in iterate_records(placed):
                    yield encode_record(record, is_base64=key.is_base64), size_of(record)

    def _pick_each(self, delivered: Deliver, body: bytes) -> Iterator[tuple[Document, int]]:
        with translated():
            for placed in place_batches(body, delivered.epoch, delivered.start_seq_num):
                for size_bytes in self._pick.take_each(placed):
                    [document] = self._pick.drain()
                    yield document, size_bytes
                if self._pick.next_seq_num != placed.end_seq_num:
                    return


class LineForm(StreamForm):
    """NDJSON: a record a line; notes only where they were asked for, since every line of a stream
    that has none is a record."""

    def encode_note(self, kind: str, note: Document, *, is_final: bool = False) -> bytes:
        """A line with one field, the kind."""
        if not self._wanted.has_notes:
            return b""
        return orjson.dumps({kind: note}, option=orjson.OPT_APPEND_NEWLINE)

    def _begin_records(self, resume: ResumeId) -> bytes:
        return b""

    def _end_records(self, resume: ResumeId) -> bytes:
        return b""

    def _encode_records(self, documents: list[Document], *, is_first: bool) -> bytes:
        return b"".join(orjson.dumps(d, option=orjson.OPT_APPEND_NEWLINE) for d in documents)


class EventForm(StreamForm):
    """Server-sent events."""

    opening = RETRY_LINE

    def encode_note(self, kind: str, note: Document, *, is_final: bool = False) -> bytes:
        """An event of the kind."""
        if kind == "gap":
            position = ResumeId(note["next"], *self._pick.rest())
            return encode_event(kind, note, position)
        return encode_event(kind, note, self._resume(is_final=is_final))

    def _begin_records(self, resume: ResumeId) -> bytes:
        return b'event: records\nid: %s\ndata: {"records":[' % str(resume).encode()

    def _end_records(self, resume: ResumeId) -> bytes:
        return b'],"next":%s}\n\n' % orjson.dumps(resume.position)

    def _encode_records(self, documents: list[Document], *, is_first: bool) -> bytes:
        listed = orjson.dumps(documents)[1:-1]
        return listed if is_first else b"," + listed


def make_form(
    log_id: LogId, start: Start, wanted: ReadRequest, shared: SharedEncodings, find: HoleFinder
) -> StreamForm:
    """The form that was asked for: NDJSON or events."""
    kind = EventForm if wanted.form is Form.EVENTS else LineForm
    return kind(log_id, start, wanted, shared, find)


def encode_event(kind: str, document: Document, resume: ResumeId | None) -> bytes:
    """One event; its data are JSON, which has no line breaks."""
    id_line = b"" if resume is None else b"id: %s\n" % str(resume).encode()
    return b"event: %s\n%sdata: %s\n\n" % (kind.encode(), id_line, orjson.dumps(document))


def _join(pieces: Iterable[bytes | asyncio.Event]) -> Iterator[bytes | asyncio.Event]:
    """Small pieces together; a large one as it is, for it is shared; what is no piece as well."""
    held: list[bytes] = []
    held_bytes = 0
    for piece in pieces:
        if isinstance(piece, asyncio.Event):
            yield piece
            continue
        if held and held_bytes + len(piece) > PIECE_BYTES:
            yield held[0] if len(held) == 1 else b"".join(held)
            held, held_bytes = [], 0
        if piece:
            held.append(piece)
            held_bytes += len(piece)
        else:
            yield piece
    if held:
        yield held[0] if len(held) == 1 else b"".join(held)
