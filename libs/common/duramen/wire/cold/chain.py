"""Checksums over entries that can be taken in pieces: the identity chain, the records' digest.

Parts of a segment are read and written by tasks that know nothing of one another, and compaction
cuts them anew; so both are sums modulo 2^256 of one SHA-256 an entry, over a text that begins with
its ledger and id. A sum says which entries are there, and with which content, whatever the order
and the cuts: sums of parts are added up instead of reading anything again.

- *chain*: over (ledger id, entry id, identity CRC32C). Bookies say the same of their copies
  without sending them, so cold and hot copies are compared by it.
- *records*: over (ledger id, entry id, flags, CRC32C of the payload with every batch
  decompressed). What is rebuilt from rows has the same, whatever codec the batches had.

Against accidents, as the CRCs below it are; against forgery there is the files' SHA-256. Pure.
Called by the archive job, verify and compaction. Source: docs/protocol/archive.md "From hot to
cold: five steps".
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from duramen.ids import EntryId, LedgerId

_IDENTITY: Final = struct.Struct("<8sQII")
_RECORDS: Final = struct.Struct("<8sQIII")
_MODULUS: Final = 1 << 256


@dataclass(frozen=True, slots=True)
class Chain:
    """A sum over entries; `count` of them. The sum of nothing is `Chain()`."""

    count: int = 0
    value: int = 0

    def plus(self, other: Chain) -> Chain:
        """The sum over the entries of both, which have none in common."""
        return Chain(self.count + other.count, (self.value + other.value) % _MODULUS)

    def format(self) -> str:
        """64 hex digits."""
        return f"{self.value:064x}"


def chain_identities(ledger_id: LedgerId, entries: Iterable[tuple[EntryId, int]]) -> Chain:
    """The identity chain of entries.

    Args:
        entries: (entry id, identity CRC32C) of each, in any order, none twice.
    """
    sha256, pack = hashlib.sha256, _IDENTITY.pack
    value = count = 0
    for entry_id, crc in entries:
        spelt = pack(b"identity", ledger_id, entry_id, crc)
        value += int.from_bytes(sha256(spelt).digest(), "big")
        count += 1
    return Chain(count, value % _MODULUS)


def chain_records(ledger_id: LedgerId, entries: Iterable[tuple[EntryId, int, int]]) -> Chain:
    """The records' digest of entries.

    Args:
        entries: (entry id, flags of `wire.entry`, CRC32C of the plain payload) of each.
    """
    sha256, pack = hashlib.sha256, _RECORDS.pack
    value = count = 0
    for entry_id, flags, crc in entries:
        spelt = pack(b"records\0", ledger_id, entry_id, flags, crc)
        value += int.from_bytes(sha256(spelt).digest(), "big")
        count += 1
    return Chain(count, value % _MODULUS)
