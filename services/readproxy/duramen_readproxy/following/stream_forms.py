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
from collections.abc import Iterable, Iterator
from typing import Any, Final

import orjson

from duramen.core.reading.effects import Deliver
from duramen.ids import LogId, ledger_of
from duramen.runtime.reading.log_reader import DataLost
from duramen.runtime.reading.positioning.positions import Start
from duramen.runtime.reading.tail import Tail
from duramen.wire.entry import read_entry_info
from duramen.wire.read_answers import place_batches
from duramen.wire.record_json import encode_record, iterate_records
from duramen_readproxy.answers import Bounds, RecordPick, translated
from duramen_readproxy.following.encodings import (
    PIECE_BYTES,
    EncodingKey,
    Pieces,
    SharedEncodings,
    cut_pieces,
)
from duramen_readproxy.following.resume import ResumeId
from duramen_readproxy.gaps import HoleFinder, describe_gap, describe_hole
from duramen_readproxy.parameters import Form, ReadRequest

RETRY_LINE: Final = b"retry: 1000\n\n"
"""How long a browser waits before it comes back, in ms: another proxy takes over at once."""

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

    def add(self, delivered: Deliver, *, is_shared: bool) -> Iterator[bytes]:
        """The pieces of delivered entries, small ones joined.

        Args:
            is_shared: others are about to want the same.

        Raises:
            DuramenError: `invalid_argument` (a record that is no text), `internal`.
        """
        yield from _join(self._encode_entries(delivered, is_shared=is_shared))

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
    def _encode(self, documents: list[Document], resume: ResumeId) -> bytes:
        """Records of one entry; `resume` is where the next one begins."""

    def _resume(self, *, is_final: bool = False) -> ResumeId:
        count, size_bytes = self._pick.rest()
        return ResumeId(self.next_position, count, size_bytes, is_final)

    def _encode_entries(self, delivered: Deliver, *, is_shared: bool) -> Iterator[bytes]:
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
                yield from cut_pieces(self._cut(delivered, body))
                if self.is_full:
                    return
            elif info.record_count:
                self._pick.next_seq_num = first + info.record_count
                ledger_id = ledger_of(self._log_id, delivered.epoch)
                form = self._wanted.form.value
                key = EncodingKey(ledger_id, entry_id, form, self._wanted.is_base64)
                yield from self._encode_whole(key, delivered, body, is_shared=is_shared)

    def _encode_whole(
        self, key: EncodingKey, delivered: Deliver, body: bytes, *, is_shared: bool
    ) -> Pieces:
        pieces = self._shared.get(key) if is_shared else None
        if pieces is None:
            documents: list[Document] = []
            with translated():
                for placed in place_batches(body, delivered.epoch, delivered.start_seq_num):
                    documents += [
                        encode_record(record, is_base64=key.is_base64)
                        for record in iterate_records(placed)
                    ]
            pieces = cut_pieces(self._encode(documents, ResumeId(self.next_position, None, None)))
            if is_shared:
                self._shared.put(key, pieces)
        return pieces

    def _cut(self, delivered: Deliver, body: bytes) -> bytes:
        """What the bounds and the start leave of an entry."""
        with translated():
            for placed in place_batches(body, delivered.epoch, delivered.start_seq_num):
                if not self._pick.offer(placed):
                    break
        documents = self._pick.drain()
        return self._encode(documents, self._resume()) if documents else b""


class LineForm(StreamForm):
    """NDJSON: a record a line; notes only where they were asked for, since every line of a stream
    that has none is a record."""

    def encode_note(self, kind: str, note: Document, *, is_final: bool = False) -> bytes:
        """A line with one field, the kind."""
        if not self._wanted.has_notes:
            return b""
        return orjson.dumps({kind: note}, option=orjson.OPT_APPEND_NEWLINE)

    def _encode(self, documents: list[Document], resume: ResumeId) -> bytes:
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

    def _encode(self, documents: list[Document], resume: ResumeId) -> bytes:
        return encode_event("records", {"records": documents, "next": resume.position}, resume)


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


def _join(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Small pieces together; a large one as it is, so that it can be shared."""
    held: list[bytes] = []
    held_bytes = 0
    for piece in pieces:
        if held and held_bytes + len(piece) > PIECE_BYTES:
            yield held[0] if len(held) == 1 else b"".join(held)
            held, held_bytes = [], 0
        if piece:
            held.append(piece)
            held_bytes += len(piece)
    if held:
        yield held[0] if len(held) == 1 else b"".join(held)
