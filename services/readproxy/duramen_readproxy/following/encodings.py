"""Encoded entries that streams share: readers that want one form share it.

An entry is encoded once for NDJSON and once for events, with or without base64, and kept for the
moment in which the others come for it: bounded in bytes, the one that was used longest ago goes
first. Entries never change, so there is nothing to invalidate. An encoding lies here in pieces
that are sent as they are. One is made in steps, with others between: who wants what is being made
waits for its maker.

Not here: answers that are cut inside an entry. Called by `stream_forms`.
Source: docs/protocol/read-answers.md "Who shares what".
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, NamedTuple

from duramen.ids import EntryId, LedgerId
from duramen.units import KIB, MIB

ENCODINGS_BYTES_DEFAULT: Final = 32 * MIB
"""Some hundred milliseconds of a node's traffic: readers at a tail come for an entry together."""

PIECE_BYTES: Final = 32 * KIB
"""What is sent at once: the HTTP library keeps some twenty of them for who does not read."""

_OVERHEAD_BYTES: Final = 300

Pieces = tuple[bytes, ...]


class EncodingKey(NamedTuple):
    """An entry in one form."""

    ledger_id: LedgerId
    entry_id: EntryId
    form: str
    is_base64: bool


class PieceCutter:
    """Cuts what comes in parts into pieces of `PIECE_BYTES`; the last one may be shorter."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._bytes = 0

    def add(self, part: bytes) -> Iterator[bytes]:
        """The pieces that are whole with it."""
        self._parts.append(part)
        self._bytes += len(part)
        if self._bytes < PIECE_BYTES:
            return
        joined = b"".join(self._parts)
        at = 0
        while len(joined) - at >= PIECE_BYTES:
            yield joined[at : at + PIECE_BYTES]
            at += PIECE_BYTES
        self._parts, self._bytes = [joined[at:]], len(joined) - at

    def end(self) -> Iterator[bytes]:
        """What is left, if anything is."""
        if self._bytes:
            yield b"".join(self._parts)


class SharedEncodings:
    """Encodings by entry and form; one instance per process."""

    def __init__(self, bytes_max: int = ENCODINGS_BYTES_DEFAULT) -> None:
        self._bytes_max = bytes_max
        self._pieces: OrderedDict[EncodingKey, Pieces] = OrderedDict()
        self._bytes = 0
        self._being_made: dict[tuple[EncodingKey, bool], asyncio.Event] = {}
        self._made_count = 0
        self._shared_count = 0

    def get(self, key: EncodingKey) -> Pieces | None:
        """The encoding, if somebody made it a moment ago."""
        pieces = self._pieces.get(key)
        if pieces is not None:
            self._pieces.move_to_end(key)
            self._shared_count += 1
        return pieces

    def put(self, key: EncodingKey, pieces: Pieces) -> None:
        """Keep what was made for one reader for the others; one alone may pass the bound."""
        if key in self._pieces:
            return
        self._made_count += 1
        self._pieces[key] = pieces
        self._bytes += _size_of(pieces)
        while self._bytes > self._bytes_max and len(self._pieces) > 1:
            _, oldest = self._pieces.popitem(last=False)
            self._bytes -= _size_of(oldest)

    def find_making(self, key: EncodingKey, *, is_at_tail: bool) -> asyncio.Event | None:
        """What is set once its maker has `put` it or gone; None: nobody is about to.

        Args:
            is_at_tail: who wants it does not wait for a maker that catches up, and takes turns.
        """
        making = self._being_made.get((key, True))
        return making if making or is_at_tail else self._being_made.get((key, False))

    @contextlib.contextmanager
    def making(self, key: EncodingKey, *, is_at_tail: bool) -> Iterator[None]:
        """While this lasts its caller makes it; who fails leaves it to the next."""
        row = key, is_at_tail
        assert row not in self._being_made, row
        self._being_made[row] = asyncio.Event()
        try:
            yield
        finally:
            self._being_made.pop(row).set()

    def statistics(self) -> dict[str, int]:
        """Size and bound; encodings made, and how often one was used again."""
        return {
            "entries": len(self._pieces),
            "bytes": self._bytes,
            "bytes_max": self._bytes_max,
            "made": self._made_count,
            "shared": self._shared_count,
        }


def _size_of(pieces: Pieces) -> int:
    return _OVERHEAD_BYTES + sum(map(len, pieces))
