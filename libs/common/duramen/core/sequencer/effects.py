"""Effects: what a core asks its driver to do, and the values that come back as events.

A core never acts: it leaves effects in its outbox. The driver (the sequencer's runtime, or the
simulator) drains it once per batch of events, acts, and reports each result by a method named
below. Results may be late, doubled, or missing: after a time-out the driver makes a status instead.
    SendAdd, SendWave → on_add(member, epoch, entry, status)
    SendSeal      → on_seal(member, epoch, status, lac, highest)
    SendRead, SendDigest → on_read, on_digest
    SendLac       → on_lac(member, epoch, status, round_id)
    ReadMetadata  → on_metadata(token, view or None)
    Commit        → on_commit(token, outcome)
    PersistOwed   → on_owed_persisted(owed)
    ReadSegment, ReadHistory → on_segment, on_history (token, what was read or None)
    Complete, CompleteEarly, AlreadyStored, Fail, Yield: the fate of one append.
Made by `log_sequencer` and its parts. Source: ARCHITECTURE.md "Three layers".
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import NamedTuple

from duramen.config import LogConfig
from duramen.core.flexible.segment import AnySegment
from duramen.core.log_node import LogNode
from duramen.core.segment import Totals
from duramen.ids import Dlsn, EntryId, Epoch, LedgerId, LogId, Member, NodeNumber, SequencerId


class CommitOutcome(enum.Enum):
    """What became of a metadata change (R3)."""

    APPLIED = "applied"
    CONFLICT = "conflict"
    """Definite: nothing applied, a predicate did not hold."""
    UNKNOWN = "unknown"
    """It may be applied now, later, or never: read back and look for one's nonce."""
    UNAVAILABLE = "unavailable"
    """Definite: never sent."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner node of a log: advisory, ephemeral (docs/protocol/ownership.md)."""

    sequencer_id: SequencerId
    epoch: Epoch
    data_url: str
    version: int
    by_hint: bool = False
    """It took the log because another was said to be away (docs/protocol/members.md)."""

    @property
    def is_embedded(self) -> bool:
        """It serves nobody: a process that writes by itself (`duramen.client.core`)."""
        return not self.data_url


@dataclass(frozen=True, slots=True)
class LogView:
    """A log's metadata, read after a sync: the log node first, then what it names.

    `segments` holds epochs LCE + 1 … next epoch − 1 with their versions, oldest first.
    """

    log: LogNode
    log_version: int
    segments: tuple[tuple[AnySegment, int], ...]
    owner: Owner | None

    def with_config(self, version: int, config: LogConfig) -> LogView:
        """The view with a configuration that somebody told us of, if it is newer."""
        if version <= self.log.config_version:
            return self
        return replace(self, log=replace(self.log, config=config, config_version=version))


@dataclass(frozen=True, slots=True)
class SetSegment:
    """Replace a segment node of `version`; it then has version + 1."""

    segment: AnySegment
    version: int


@dataclass(frozen=True, slots=True)
class CreateSegment:
    """Create a segment node; it then has version 0."""

    segment: AnySegment


@dataclass(frozen=True, slots=True)
class SetLog:
    """Replace the log node of `version`; it then has version + 1."""

    log: LogNode
    version: int


@dataclass(frozen=True, slots=True)
class ReplaceOwner:
    """Put one's own ephemeral owner node in the place of what `replaces` describes.

    `epoch` None: only remove it (the log is closed and nobody's).
    """

    epoch: Epoch | None
    replaces: Owner | None
    by_hint: bool = False


Write = SetSegment | CreateSegment | SetLog | ReplaceOwner


class SendAdd(NamedTuple):
    """Store an entry at a member. `payload` is the encoded entry, the same bytes at every send."""

    member: Member
    ledger_id: LedgerId
    entry: EntryId
    lac: EntryId
    payload: bytes
    is_recovery: bool = False


class SendWave(NamedTuple):
    """Store an entry at a node of a flexible segment, with the envelope that says who has it."""

    member: Member
    ledger_id: LedgerId
    entry: EntryId
    lac: EntryId
    payload: bytes
    copyset: tuple[NodeNumber, ...]
    """Who has it or is asked to, in the order in which they send it to readers."""
    block: EntryId | None
    """The first entry of its sticky block."""
    is_recovery: bool = False


class SendDigest(NamedTuple):
    """Ask a sealed node which entries of a range it has; the read carries the seal too (R14)."""

    member: Member
    ledger_id: LedgerId
    first: EntryId
    last: EntryId


@dataclass(frozen=True, slots=True)
class SendSeal:
    """Seal a log up to `epoch` at a member and learn what it holds of that epoch."""

    member: Member
    log_id: LogId
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class SendRecoveryRead:
    """Read one entry for recovery; the read carries the seal too (R14)."""

    member: Member
    ledger_id: LedgerId
    entry: EntryId
    is_flexible: bool = False
    """It has an envelope."""


@dataclass(frozen=True, slots=True)
class SendLac:
    """Write the LAC at a member: nothing follows that would carry it, or an ack round asks.

    A member that is sealed refuses, also a LAC that raises nothing. `round_id` comes back with the
    answer, which must be known from an older one's; 0 outside of ack rounds.
    """

    member: Member
    ledger_id: LedgerId
    lac: EntryId
    round_id: int = 0


@dataclass(frozen=True, slots=True)
class ReadMetadata:
    """Sync, then read the log node, the segments after its LCE and the owner node.

    is_look: nothing waits for it but what may have changed; it may come late, behind others'.
    """

    token: int
    is_look: bool = False


@dataclass(frozen=True, slots=True)
class Commit:
    """Apply all writes at once or none."""

    token: int
    writes: tuple[Write, ...]


@dataclass(frozen=True, slots=True)
class PersistOwed:
    """Record for repair that `member` misses entries first … last of a ledger (R9)."""

    ledger_id: LedgerId
    member: Member
    first: EntryId
    last: EntryId


@dataclass(frozen=True, slots=True)
class ReadSegment:
    """Read the node of a closed segment."""

    token: int
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class ReadHistory:
    """Read entries of a closed segment, for the state that they carry.

    Answered with at least one and as many as come together, from `first` on.
    """

    token: int
    segment: AnySegment
    first: EntryId
    last: EntryId
    is_headers_only: bool


class TailMark(NamedTuple):
    """The position after a record: where the next one will be or follow."""

    dlsn: Dlsn
    seq_num: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Complete:
    """The append is in the log: first record's position and number, and the log's tail then."""

    append_id: int
    start: Dlsn
    seq_num: int
    record_count: int
    timestamp_ms: int
    tail: TailMark
    is_duplicate: bool = False


@dataclass(frozen=True, slots=True)
class CompleteEarly:
    """The append is in the log, before the older epochs are closed: its number is not known yet."""

    append_id: int
    start: Dlsn
    record_count: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class OldDuplicate:
    """A duplicate of a batch that is in the log, older than the results that are kept."""

    append_id: int


class Expected(NamedTuple):
    """What a condition that failed was compared with."""

    tail: TailMark
    seq_num: int | None = None
    producer_seq: int | None = None


@dataclass(frozen=True, slots=True)
class Fail:
    """The append is answered with an error of `duramen.errors`."""

    append_id: int
    code: str
    detail: str
    field: str | None = None
    expected: Expected | None = None


@dataclass(frozen=True, slots=True)
class Yield:
    """The append was never sent, and this sequencer does not own the log: route it anew."""

    append_id: int


Effect = (
    SendAdd | SendWave | SendDigest | SendSeal | SendRecoveryRead | SendLac | ReadMetadata
    | Commit | PersistOwed | ReadSegment | ReadHistory | Complete | CompleteEarly | OldDuplicate
    | Fail | Yield
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry that a bookie returned and whose identity checksum the driver verified."""

    payload: bytes
    totals: Totals
    """Of the segment up to and with this entry."""

    has_state: bool = True
    """The segment carries producers or control records up to and with this entry, or may do so."""

    record_count: int = 0
    """Its own."""

    identity: int = 0
    """Its checksum, by which copies are known to be of one entry."""

    copyset: tuple[NodeNumber, ...] = ()
    """Who is named by the envelope of this copy; nobody: it has none."""
