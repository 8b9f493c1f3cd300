"""Entries with envelopes for tests: rows of adds, and the records that they become.

Called by the tests of the bookie's disk and of its core. Source: docs/protocol/envelopes.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import google_crc32c

from duramen.core.segment import Totals
from duramen.ids import EntryId, Epoch, Incarnation, LedgerId, LogId, NodeNumber, ledger_of
from duramen.wire.disk.journal_format import JournalRecord, RecordKind, encode_commit, seed_of
from duramen.wire.entry import check_entry, encode_entry
from duramen.wire.flexible.envelope import Envelope, content_of, encode_content, encode_envelope

INCARNATION = Incarnation("0123456789abcdef0123456789abcdef")
SEED = seed_of(INCARNATION)
LEDGER = ledger_of(LogId(7), Epoch(3))
FILE_ID, OFFSET = 9, 64


def envelope_of(*members: int, block: int | None = None) -> Envelope:
    """An envelope that names these nodes."""
    named = tuple(NodeNumber(number) for number in members)
    return Envelope(named, None if block is None else EntryId(block))


PLAIN, STICKY = envelope_of(4, 0, 300), envelope_of(4, 0, 300, block=2)
OTHER = envelope_of(8, 1, 2)


def content(envelope: Envelope) -> bytes:
    """What a bookie tells of an envelope."""
    return encode_content(envelope)


def entry_bytes(entry_id: int, body: bytes = b"a batch", ledger_id: LedgerId = LEDGER) -> bytes:
    """A whole entry."""
    return encode_entry(
        ledger_id=ledger_id, entry_id=EntryId(entry_id), before=Totals(0, 0), batches=[body],
        record_count=1, after=Totals(1, len(body)),
    )  # fmt: skip


def spell(envelope: Envelope, entry: bytes) -> bytes:
    """The envelope of an entry."""
    info = check_entry(entry)
    return encode_envelope(envelope, info.ledger_id, info.entry_id, info.crc)


def store(
    entry_id: int, envelope: Envelope | None = STICKY, *, lac: int = -1, is_recovery: bool = False
) -> JournalRecord:
    """The record of an entry with an envelope; None: of one without."""
    entry = entry_bytes(entry_id)
    spelt = b"" if envelope is None else spell(envelope, entry)
    kind = RecordKind.STORE if spelt else RecordKind.ADD
    return JournalRecord(
        kind, LEDGER, EntryId(entry_id), EntryId(lac), entry,
        is_recovery=is_recovery, envelope=spelt,
    )  # fmt: skip


def encode(records: Sequence[JournalRecord], *, seed: int = SEED) -> bytes:
    """Records as one commit of file 9, which begins at offset 64."""
    encoded = encode_commit(
        records, file_id=FILE_ID, offset=OFFSET, commit=7, previous_crc=5, seed=seed
    )
    return b"".join(encoded.buffers)


def with_version(record: JournalRecord, version: int) -> JournalRecord:
    """The record with an intact envelope of another version."""
    identity = record.body[4:8]
    bound = LEDGER.to_bytes(8, "little") + record.entry_id.to_bytes(4, "little") + identity
    changed = bytes([version]) + content_of(record.envelope)[1:] + b"more"
    crc: int = google_crc32c.value(bound + changed)
    return record._replace(envelope=changed + crc.to_bytes(4, "little"))
