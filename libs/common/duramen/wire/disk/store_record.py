"""What of a record can be believed: of a STORE its entry and its envelope, each by its own CRC.

An envelope is a hint, and costs no entry: while the entry verifies it is here, whatever became of
the envelope or of the record's own checksum. What is left of a STORE without its envelope is an
ADD. An intact envelope of another version is no damage: somebody newer wrote it, and who meets it
has to stop. Whoever takes a record from a disk takes it here: replay, settling, compaction, scrub,
inventory and the offline tools.

Source: docs/protocol/envelopes.md "On disk", V7, V11.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from duramen.wire.disk.entry_log_format import identify_entry
from duramen.wire.disk.journal_format import (
    JournalFormatError,
    JournalRecord,
    RecordHeader,
    RecordKind,
)
from duramen.wire.flexible.envelope import EnvelopeError, NewerEnvelope, content_of, parse_envelope

_IDENTITY: Final = slice(4, 8)
"""Where an entry has its identity checksum (`wire.entry`)."""


class TakenRecord(NamedTuple):
    """A record as far as it is sound; an ADD, if it is a STORE that has lost its envelope.

    `is_whole`: the record's own checksum verifies, so that it is as it was written.
    """

    record: JournalRecord
    is_whole: bool

    @property
    def content(self) -> bytes:
        """Of its envelope; empty: it has none."""
        return content_of(self.record.envelope)


def take_record(header: RecordHeader, body: bytes) -> TakenRecord | None:
    """The record of a header that verified, None if it is damaged.

    Args:
        body: all of it, as far as it could be read.

    Raises:
        JournalFormatError: its envelope is intact, and of a version that is not known here.
    """
    is_whole = header.is_body_intact(body)
    if header.kind is not RecordKind.STORE:
        return TakenRecord(header.record(body), True) if is_whole else None
    record = header.record(body)
    ledger_id, entry_id = header.ledger_id, header.entry_id
    if not is_whole and identify_entry(record.body, ledger_id, entry_id) is None:
        return None
    try:
        parse_envelope(record.envelope, ledger_id, entry_id, identity_in(record.body))
    except NewerEnvelope as error:
        raise JournalFormatError(f"file {header.file_id} at {header.offset}: {error}") from error
    except EnvelopeError:
        record = record._replace(kind=RecordKind.ADD, envelope=b"")
    return TakenRecord(record, is_whole)


def identity_in(entry: bytes) -> int:
    """The identity checksum that an entry names; not compared with its bytes."""
    return int.from_bytes(entry[_IDENTITY], "little")
