"""Identities of the protocol and their arithmetic and text forms.

Epoch, segment and ledger are one thing, so a ledger id is the log id and the epoch side by side.
Positions are plain integers inside the code (cheap, ordered) and texts in JSON (they pass 2^53).
`NOTHING` (-1) as an entry id means "no entry of this epoch yet"; on the wire it is 0xFFFF_FFFF.

Not here: names and position grammar (`texts`), quorum arithmetic (`core.quorum`).
Called by everybody. Source: docs/protocol/wire.md "Identities", docs/protocol/rest.md "Texts",
docs/protocol/metadata-logs.md "Words".
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, NewType

LogId = NewType("LogId", int)
Epoch = NewType("Epoch", int)
LedgerId = NewType("LedgerId", int)
EntryId = NewType("EntryId", int)
Lsn = NewType("Lsn", int)
SeqNum = NewType("SeqNum", int)
BookieId = NewType("BookieId", str)
Incarnation = NewType("Incarnation", str)
SequencerId = NewType("SequencerId", str)
NodeNumber = NewType("NodeNumber", int)
"""A node of a flexible segment (R22): never used twice in one segment."""

NOTHING: Final = EntryId(-1)
"""Entry id that stands for "nothing yet": a LAC before the first acknowledgement."""

WIRE_NOTHING: Final = 0xFFFF_FFFF
LAST_ENTRY_ID: Final = EntryId(0xFFFF_FFFE)
LAST_SLOT: Final = 0xFFFF_FFFF
LAST_LOG_ID: Final = LogId(0x7FFF_FFFF)
"""Of the logs that are made by name: those that every listing, limit and call of clients knows."""

_METADATA_LOG: Final = 0x8000_0000
"""The top bit of a log id, which only metadata logs have."""

LAST_EPOCH: Final = Epoch(0xFFFF_FFFF)

_LSN_TEXT = re.compile(r"e([0-9]{1,10})n([0-9]{1,10})")
_DLSN_TEXT = re.compile(r"e([0-9]{1,10})n([0-9]{1,10})s([0-9]{1,10})")


class Member(NamedTuple):
    """One bookie in one life of its disks: what an ensemble is made of (R1)."""

    bookie: BookieId
    incarnation: Incarnation

    def __repr__(self) -> str:
        return f"{self.bookie}/{self.incarnation[:4]}"


class Dlsn(NamedTuple):
    """Position of one record: segment, entry in it, record in the entry."""

    epoch: Epoch
    entry: EntryId
    slot: int

    def __str__(self) -> str:
        return f"e{self.epoch}n{self.entry}s{self.slot}"


def metadata_log_of(log_id: LogId) -> LogId:
    """The log that holds the metadata of a log; a metadata log has none."""
    assert 0 < log_id <= LAST_LOG_ID, log_id
    return LogId(log_id | _METADATA_LOG)


def is_metadata_log(log_id: LogId) -> bool:
    """Whether it holds another log's metadata."""
    return log_id > LAST_LOG_ID


def described_by(log_id: LogId) -> LogId:
    """The log whose metadata a metadata log holds: the inverse of `metadata_log_of`."""
    assert is_metadata_log(log_id) and is_log_id(log_id), log_id
    return LogId(log_id ^ _METADATA_LOG)


def is_log_id(number: int) -> bool:
    """Whether a number can be the id of a log, of a metadata log as well."""
    return 0 < number & ~_METADATA_LOG <= LAST_LOG_ID


def ledger_of(log_id: LogId, epoch: Epoch) -> LedgerId:
    """The ledger of one epoch of a log: `log_id << 32 | epoch`."""
    assert is_log_id(log_id) and 0 < epoch <= LAST_EPOCH, (log_id, epoch)
    return LedgerId(log_id << 32 | epoch)


def log_of(ledger_id: LedgerId) -> LogId:
    """The log that a ledger belongs to."""
    return LogId(ledger_id >> 32)


def epoch_of(ledger_id: LedgerId) -> Epoch:
    """The epoch that a ledger is."""
    return Epoch(ledger_id & 0xFFFF_FFFF)


def lsn_of(epoch: Epoch, entry: EntryId) -> Lsn:
    """`epoch << 32 | entry`; `NOTHING` gives (epoch << 32) - 1, below every entry of the epoch."""
    return Lsn((epoch << 32) + entry)


def format_lsn(lsn: Lsn) -> str:
    """The text form `e<epoch>n<entry>` of an LSN."""
    return f"e{lsn >> 32}n{lsn & 0xFFFF_FFFF}"


def format_lsn_hex(lsn: Lsn) -> str:
    """Sixteen sortable hex digits, for file names and tokens."""
    return f"{lsn:016x}"


def format_dlsn_hex(dlsn: Dlsn) -> str:
    """Twenty-four sortable hex digits, for file names and tokens."""
    return f"{lsn_of(dlsn.epoch, dlsn.entry):016x}{dlsn.slot:08x}"


def parse_lsn(text: str) -> Lsn:
    """Read `e<epoch>n<entry>`.

    Raises:
        ValueError: the text is no LSN or a part is out of range.
    """
    match = _LSN_TEXT.fullmatch(text)
    if match is None or int(match[1]) > LAST_EPOCH or int(match[2]) > LAST_ENTRY_ID:
        raise ValueError(f"{text!r} is no LSN: expected e<epoch>n<entry>, such as e3n17")
    return lsn_of(Epoch(int(match[1])), EntryId(int(match[2])))


def parse_dlsn(text: str) -> Dlsn:
    """Read `e<epoch>n<entry>s<slot>`.

    Raises:
        ValueError: the text is no DLSN or a part is out of range.
    """
    match = _DLSN_TEXT.fullmatch(text)
    if match is None or any(
        int(part) > most
        for part, most in zip(match.groups(), (LAST_EPOCH, LAST_ENTRY_ID, LAST_SLOT), strict=True)
    ):
        raise ValueError(f"{text!r} is no DLSN: expected e<epoch>n<entry>s<slot>, such as e3n17s0")
    return Dlsn(Epoch(int(match[1])), EntryId(int(match[2])), int(match[3]))
