"""Encoded entries that the readers at a tail share: readers that want one form share it.

An entry is encoded once for NDJSON and once for events, with or without base64, and kept for the
moment in which the others come for it: bounded in bytes, the one that was used longest ago goes
first. Entries never change, so there is nothing to invalidate. An encoding lies here in pieces
that are sent as they are.

Not here: answers that are cut inside an entry, and readers that catch up (`streams` encodes those
anew). Source: docs/protocol/read-answers.md "Who shares what".
"""

from __future__ import annotations

from collections import OrderedDict
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


def cut_pieces(encoded: bytes) -> Pieces:
    """The encoding in pieces of `PIECE_BYTES` at most; none of nothing."""
    if 0 < len(encoded) <= PIECE_BYTES:
        return (encoded,)
    return tuple(encoded[at : at + PIECE_BYTES] for at in range(0, len(encoded), PIECE_BYTES))


class SharedEncodings:
    """Encodings by entry and form; one instance per process."""

    def __init__(self, bytes_max: int = ENCODINGS_BYTES_DEFAULT) -> None:
        self._bytes_max = bytes_max
        self._pieces: OrderedDict[EncodingKey, Pieces] = OrderedDict()
        self._bytes = 0
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

    def statistics(self) -> dict[str, int]:
        """Size and bound; encodings made for the tail, and how often one was used again."""
        return {
            "entries": len(self._pieces),
            "bytes": self._bytes,
            "bytes_max": self._bytes_max,
            "made": self._made_count,
            "shared": self._shared_count,
        }


def _size_of(pieces: Pieces) -> int:
    return _OVERHEAD_BYTES + sum(map(len, pieces))
