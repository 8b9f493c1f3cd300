"""What a bookie knows of logs and ledgers, and the values that its core takes and gives.

There is one state object per log (R11): checking the seal and accepting an add are one step on it.
An entry is *hot* while the journal holds it (8 bytes here, in an `EntryTable`), *settled* when the
entry log does (a range), *unknown* when it was here and cannot be read. Adds, seals, LACs and drops
are *pending* from the moment the core accepts them until their journal record is persisted.
Answers, LACs and reads rest on what is persisted; refusals rest on pending seals and drops too.

Not here: entries themselves. The core knows identity checksums, the driver knows bytes and places.
Called by `core.bookie`; rows, effects and snapshots by its drivers (handlers, storage, simulator).
Source: R4, R10, R11, R13, docs/protocol/wire.md "what an answer's status allows one to conclude".
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple, NewType, Protocol

from duramen.core.entry_ranges import EntryRanges, group_ranges
from duramen.core.entry_table import EntryTable
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, EntryId, Epoch, LedgerId, LogId
from duramen.limits import SEAL_LEAD_EPOCH_COUNT_MAX

RequestId = NewType("RequestId", int)
"""The driver's number of one request; the core only hands it back."""

NO_REQUEST: Final = RequestId(-1)
"""Stands in `Persist` for records that no request asked for."""


class SpaceLevel(enum.Enum):
    """What the disks have room for. Reads, seals and repeated adds are served at every level."""

    WRITABLE = "writable"
    READ_ONLY = "read_only"
    """New entries are refused, but for those of recovery and repair."""
    FULL = "full"
    """Those too, and LACs that would have to be written."""


RUN_PIECE_COUNT_MAX: Final = 64
"""Changes between hot and settled that one read follows: one is the rule, re-adds make more."""

# --- Rows of requests ----------------------------------------------------------------------------


class AddRow(NamedTuple):
    """One entry to be stored, without its bytes.

    `is_valid`: the driver has read the entry, its checksum matches, and its header names the same
    ledger and entry as the row (BK#1046). `crc` is the entry's identity checksum. `has_envelope`:
    OK says that its LAC is durable too, also where the entry is here already.
    """

    ledger_id: LedgerId
    entry_id: EntryId
    lac: EntryId
    crc: int
    is_recovery: bool
    is_valid: bool
    has_envelope: bool = False


class SealRow(Protocol):
    """Refuse adds of epochs ≤ `epoch` of a log; tell about `ledger_id` (`bookie_calls.Seal`)."""

    @property
    def log_id(self) -> LogId: ...
    @property
    def epoch(self) -> Epoch: ...
    @property
    def ledger_id(self) -> LedgerId: ...


class LacRow(Protocol):
    """Write (or only read) a ledger's LAC (`bookie_calls.LacUpdate`)."""

    @property
    def ledger_id(self) -> LedgerId: ...
    @property
    def lac(self) -> EntryId: ...
    @property
    def is_write(self) -> bool: ...


class ReadRow(Protocol):
    """Entries `first` … `last` of a ledger, perhaps under a seal (`bookie_calls.ReadRange`)."""

    @property
    def ledger_id(self) -> LedgerId: ...
    @property
    def first(self) -> EntryId: ...
    @property
    def last(self) -> EntryId: ...
    @property
    def bytes_max(self) -> int: ...
    @property
    def seal_epoch(self) -> int: ...
    @property
    def wait_ms(self) -> int: ...
    @property
    def wait_for(self) -> EntryId: ...
    @property
    def headers_only(self) -> bool: ...


class FilteredRow(Protocol):
    """A range of a flexible segment (`wire.flexible.filtered_reads.FilteredRange`)."""

    @property
    def wanted(self) -> ReadRow: ...
    @property
    def bound(self) -> EntryId:
        """Up to here entries may be shown, whatever the bookie was told (R30)."""

    @property
    def is_cut(self) -> bool:
        """Whether nothing may be said of what is above that and the LAC."""


# --- Effects -------------------------------------------------------------------------------------


class AddRecord(NamedTuple):
    """Journal the entry of row `row` of the request, with what travelled beside it."""

    row: int
    ledger_id: LedgerId
    entry_id: EntryId
    lac: EntryId
    crc: int
    is_recovery: bool


class SealRecord(NamedTuple):
    """Journal a seal."""

    log_id: LogId
    epoch: Epoch


class LacRecord(NamedTuple):
    """Journal an explicit LAC."""

    ledger_id: LedgerId
    lac: EntryId


class DropRecord(NamedTuple):
    """Journal that ledgers of a log were dropped: of epoch `epoch`, or of every one below it."""

    log_id: LogId
    epoch: Epoch
    is_all_below: bool


Record = AddRecord | SealRecord | LacRecord | DropRecord


class MarksAnswer(NamedTuple):
    """Where this bookie sees a ledger's LAC and highest entry."""

    status: BookieStatus
    lac: EntryId
    highest: EntryId


class ReadPlan(NamedTuple):
    """The answer to one range but for the bytes: `entry_count` stored ones from `first` on."""

    status: BookieStatus
    lac: EntryId
    highest: EntryId
    is_sealed: bool
    ledger_id: LedgerId
    first: EntryId
    entry_count: int
    bytes_max: int
    headers_only: bool


Ranges = tuple[tuple[EntryId, EntryId], ...]
"""Closed ranges of entries, ascending."""


class RangePlan(NamedTuple):
    """The answer to a range of a flexible segment but for envelopes and bytes.

    It has hot or settled entries, not both. With another status than OK nothing is looked at.
    """

    status: BookieStatus
    lac: EntryId
    highest: EntryId
    is_sealed: bool
    ledger_id: LedgerId
    first: EntryId
    end: int
    """The first entry that is not looked at; 0xFFFF_FFFF is behind the last that can be."""
    hot: EntryTable
    """Entries that the journal has, with their identities."""
    settled: Ranges
    """Entries that the entry log has."""
    unvouched: Ranges
    """Entries that were here and cannot be read."""
    is_doubtful: bool
    """No absence is vouched for: whatever is not here stands for what may have been."""

    @property
    def met_count(self) -> int:
        """Entries or ranges of them that it holds: what it costs to carry it."""
        return len(self.hot) + len(self.settled)


class Persist(NamedTuple):
    """Append these records to the journal as one unit, in the order of tokens; then `on_persisted`.

    The records of `request` are durable when its `on_persisted(token)` is called, and so are those
    of every lower token.
    """

    token: int
    request: RequestId
    records: tuple[Record, ...]


class ReplyStatuses(NamedTuple):
    """Answer an add request: one status per row."""

    request: RequestId
    statuses: Sequence[BookieStatus]


class ReplyMarks(NamedTuple):
    """Answer a seal or LAC request: one answer per row."""

    request: RequestId
    marks: Sequence[MarksAnswer]


class ReadEntries(NamedTuple):
    """Fetch the planned entries and answer a read request: one answer per plan."""

    request: RequestId
    plans: Sequence[ReadPlan]


class ReadRanges(NamedTuple):
    """As `ReadEntries`, of ranges of flexible segments."""

    request: RequestId
    plans: Sequence[RangePlan]


class StartTimer(NamedTuple):
    """A long poll waits: call `on_wait_over(request)` after `wait_ms`, unless answered before."""

    request: RequestId
    wait_ms: int


class CheckSegment(NamedTuple):
    """Damage may have held anything of this ledger: sync, read its segment node, and report what
    it says to `on_segment_checked`."""

    ledger_id: LedgerId


Effect = Persist | ReplyStatuses | ReplyMarks | ReadEntries | ReadRanges | StartTimer | CheckSegment

# --- Snapshots -----------------------------------------------------------------------------------


class LogSnapshot(NamedTuple):
    """What is durable of a log, its ledgers apart."""

    log_id: LogId
    sealed: int
    """Epochs up to this one are sealed; 0: none."""
    gone_below: Epoch
    """Every epoch below this one was dropped."""
    gone: EntryRanges
    """Further epochs that were dropped, as ranges; all at or above `gone_below`."""
    newer_from: int = 0
    """Epochs from this one on began after the damage that leaves all in doubt; 0: none known."""


class LedgerSnapshot(NamedTuple):
    """What is durable of a ledger, its hot entries apart: the journal holds those."""

    ledger_id: LedgerId
    lac: EntryId
    highest: EntryId
    settled: EntryRanges
    unknown: EntryRanges
    is_doubtful: bool


class CoreSnapshot(NamedTuple):
    """Everything that a bookie knows durably and the journal may have let go of.

    Logs and ledgers ascend by id. The ranges are shared, and not to be changed.
    """

    logs: tuple[LogSnapshot, ...]
    ledgers: tuple[LedgerSnapshot, ...]
    is_everything_doubtful: bool
    doubt_until: int = 0
    """What the metadata store made in a later transaction began after the damage; 0: not known."""


# --- State ---------------------------------------------------------------------------------------


class PendingAdd(NamedTuple):
    """An accepted entry whose record is not persisted yet."""

    crc: int
    token: int
    is_recovery: bool


NO_ENTRIES: Final = EntryTable("I")
NO_RANGES: Final = EntryRanges()
NO_ADDS: Final[dict[EntryId, PendingAdd]] = {}
"""An idle ledger owns no empty containers: these stand for them all, and are never changed."""


class LedgerState:
    """What this bookie knows of one ledger; only its own methods change its containers.

    Ranges are never changed but replaced, so that snapshots may share them.

    Invariants:
     3 the highest entry is at or above everything hot, settled or unknown.
     4 no entry is two of hot, settled and unknown, and none is pending that is hot or settled.
    """

    __slots__ = (
        "highest", "is_doubtful", "lac", "loss_count", "pending", "settled", "stored", "unknown",
    )  # fmt: skip

    def __init__(self) -> None:
        self.lac: EntryId = NOTHING
        self.highest: EntryId = NOTHING
        """Highest entry that is or was durable here, damaged ones included."""
        self.stored = NO_ENTRIES
        """Hot entries, durable in the journal, and their identity checksums."""
        self.settled = NO_RANGES
        """Entries that are durable in the entry log."""
        self.pending = NO_ADDS
        self.unknown = NO_RANGES
        """Entries that were durable here and cannot be read: UNKNOWN until they are added again."""
        self.is_doubtful = False
        """Damage may have held any entry or LAC of this ledger: no absence is vouched for."""
        self.loss_count = 0
        """How often an entry that could be read was lost since the start; told, not kept (R26)."""

    @property
    def entry_count(self) -> int:
        """Entries that can be read."""
        return len(self.stored) + len(self.settled)

    def can_vouch(self, entry_id: EntryId) -> bool:
        """Whether the absence of an entry is proved (R15)."""
        return not self.is_doubtful and entry_id not in self.unknown

    def count_run(self, first: EntryId, last: EntryId) -> int:
        """How many entries from `first` up to `last` can be read, hot or settled, without a gap.

        At most `RUN_PIECE_COUNT_MAX` changes between the two are followed, so it may be less.
        """
        count = 0
        for _ in range(RUN_PIECE_COUNT_MAX):
            start = first + count
            piece = self.stored.count_run(start, last) or self.settled.count_run(start, last)
            count += piece
            if not piece or start + piece > last:
                break
        return count

    def list_ranges(self) -> list[tuple[EntryId, EntryId]]:
        """Every (first, last) of entries that can be read, ascending."""
        if not self.settled:
            return self.stored.list_ranges()
        ranges = self.settled.copy()
        for first, last in self.stored.list_ranges():
            ranges.add(first, last)
        return ranges.list_ranges()

    def accept(self, entry_id: EntryId, add: PendingAdd) -> bool:
        """Make an add pending; False if one of the same entry is already."""
        if entry_id in self.pending:
            return False
        if self.pending is NO_ADDS:
            self.pending = {}
        self.pending[entry_id] = add
        return True

    def store(self, entry_id: EntryId, crc: int) -> int:
        """An entry is durable in the journal; what was known of an older copy is void.

        Returns:
            How many more entries can be read: 1, or 0 if this one was here.
        """
        if self.pending:
            self.pending.pop(entry_id, None)
            self.pending = self.pending or NO_ADDS
        if self.stored is NO_ENTRIES:
            self.stored = EntryTable("I")
        if entry_id > self.highest:  # nothing is known of it
            self.highest = entry_id
            self.stored.put(entry_id, crc)
            return 1
        before = self.entry_count
        self.settled = _without(self.settled, entry_id)
        self.unknown = _without(self.unknown, entry_id)
        self.stored.put(entry_id, crc)
        return self.entry_count - before

    def settle(self, entry_ids: Sequence[int]) -> None:
        """Verified copies of these entries are durable in the entry log, and in force."""
        ranges = self._known(entry_ids)
        if not ranges:
            return
        if self.stored:
            self.stored.remove_ranges(ranges)
            self.stored = self.stored or NO_ENTRIES
        settled, unknown = self._with_settled(ranges)
        for entry_id in self.pending:  # it was unknown, and comes again: the newer copy counts
            if entry_id in settled:
                settled = _without(settled, entry_id)
                unknown = _with(unknown, entry_id)
        self.settled, self.unknown = settled, unknown

    def lose(self, entry_id: EntryId) -> int:
        """A hot or settled entry cannot be read any more; returns 1, or 0 if it was neither."""
        if entry_id in self.stored:
            self.stored.remove(entry_id)
            self.stored = self.stored or NO_ENTRIES
        elif entry_id in self.settled:
            self.settled = _without(self.settled, entry_id)
        else:
            return 0
        self.unknown = _with(self.unknown, entry_id)
        self.loss_count += 1
        return 1

    def purge_beyond(self, last_entry: EntryId) -> list[EntryId]:
        """Forget everything beyond an entry that is the last by proof; gives the hot ones."""
        if self.highest <= last_entry:
            return []
        first, last = last_entry + 1, self.highest
        hot = [entry_id for entry_id in self.stored.list_ids() if entry_id > last_entry]
        if hot:
            self.stored.remove_ranges([(first, last)])
            self.stored = self.stored or NO_ENTRIES
        self.settled = _without(self.settled, first, last)
        self.unknown = _without(self.unknown, first, last)
        self.highest = last_entry
        return hot

    def miss(self, entry_id: EntryId) -> None:
        """A record of this entry is damaged; another copy of it may be intact."""
        if entry_id not in self.stored and entry_id not in self.settled:
            self.unknown = _with(self.unknown, entry_id)
            self.highest = max(self.highest, entry_id)

    def snapshot(self, ledger_id: LedgerId, settling: Sequence[int]) -> LedgerSnapshot:
        """What is durable, as it will be when `settling` are settled."""
        settled, unknown = self.settled, self.unknown
        if settling:
            settled, unknown = self._with_settled(self._known(settling))
        return LedgerSnapshot(ledger_id, self.lac, self.highest, settled, unknown, self.is_doubtful)

    @property
    def is_blank(self) -> bool:
        """Whether nothing durable is known: at most adds are pending."""
        return self.highest == self.lac == NOTHING and not self.is_doubtful

    def validate(self) -> None:
        """Assert the invariants."""
        self.stored.validate()
        self.settled.validate()
        self.unknown.validate()
        last = max(self.stored.last(), self.settled.last(), self.unknown.last())
        assert self.highest >= last, "3: highest"
        if self.settled or self.unknown:  # else there is one set
            ranges = sorted([*self.stored.list_ranges(), *self.settled, *self.unknown])
            is_disjoint = all(one[1] < other[0] for one, other in pairwise(ranges))
            assert is_disjoint, "4: hot, settled and unknown"
        for entry_id in self.pending:
            assert entry_id not in self.stored and entry_id not in self.settled, "4: pending"

    def _known(self, entry_ids: Sequence[int]) -> list[tuple[int, int]]:
        """Entries as ranges, without what was purged since they were copied."""
        ranges = group_ranges(entry_ids)
        while ranges and ranges[-1][0] > self.highest:
            ranges.pop()
        if ranges and ranges[-1][1] > self.highest:
            ranges[-1] = (ranges[-1][0], self.highest)
        return ranges

    def _with_settled(self, ranges: Sequence[tuple[int, int]]) -> tuple[EntryRanges, EntryRanges]:
        """What is settled and what is unknown when these are settled too."""
        settled, unknown = self.settled.copy(), self.unknown.copy()
        for first, last in ranges:
            settled.add(first, last)
            unknown.remove(first, last)
        return settled or NO_RANGES, unknown or NO_RANGES


def _with(ranges: EntryRanges, number: int) -> EntryRanges:
    more = ranges.copy()
    more.add(number)
    return more


def _without(ranges: EntryRanges, first: int, last: int | None = None) -> EntryRanges:
    """The ranges without first … last, or without `first` alone."""
    if not ranges or (last is None and first not in ranges):
        return ranges
    rest = ranges.copy()
    rest.remove(first, last)
    return rest or NO_RANGES


class PendingDrop(NamedTuple):
    """Ledgers that are to be dropped when the record of `token` is persisted."""

    token: int
    epoch: Epoch
    is_all_below: bool

    def covers(self, epoch: Epoch) -> bool:
        """Whether a ledger of this epoch will be dropped."""
        return epoch < self.epoch if self.is_all_below else epoch == self.epoch


class BookieLogState:
    """What this bookie knows of one log: its seal, what was dropped, and its ledgers by epoch.

    Invariants:
     8 no dropped ledger has a state, and `gone` holds nothing below `gone_below`.
    12 no seal is further above the epochs that metadata has shown than it may be without.
    """

    __slots__ = (
        "gone", "gone_below", "ledgers", "newer_from", "pending_drops", "pending_seal",
        "pending_token", "sealed", "shown",
    )  # fmt: skip

    def __init__(self) -> None:
        self.sealed = 0
        """Epochs up to this one are sealed, durably; 0: none."""
        self.pending_seal = 0
        """As `sealed`, with seals whose record is not persisted yet; never below `sealed`."""
        self.pending_token = 0
        """Token of the record that makes `pending_seal` durable."""
        self.shown = 0
        """The highest epoch that metadata has shown to exist: by the log's node, by a drop, by a
        seal of a former run of this process. Adds and the seals of this run show nothing: whoever
        sends one could send another, higher one."""
        self.gone_below = Epoch(0)
        """Every epoch below this one was dropped, durably."""
        self.gone = NO_RANGES
        """Further epochs that were dropped, durably."""
        self.newer_from = 0
        """Epochs from this one on began after the damage, if there was any; 0: none known."""
        self.pending_drops: tuple[PendingDrop, ...] = ()
        self.ledgers: dict[Epoch, LedgerState] = {}

    def needs_proof(self, epoch: int) -> bool:
        """Whether an epoch is too far above those that are known for a seal to be believed."""
        return epoch > max(self.shown + SEAL_LEAD_EPOCH_COUNT_MAX, self.pending_seal)

    def is_gone(self, epoch: Epoch) -> bool:
        """Whether the ledger of an epoch was dropped, durably (R4)."""
        return epoch < self.gone_below or epoch in self.gone

    def is_newer(self, epoch: Epoch) -> bool:
        """Whether the ledger of an epoch is known to have begun after the damage."""
        return 0 < self.newer_from <= epoch

    def token_of_drop(self, epoch: Epoch) -> int | None:
        """The token whose record drops a ledger; 0: it is dropped durably; None: it lives."""
        if self.is_gone(epoch):
            return 0
        for drop in self.pending_drops:
            if drop.covers(epoch):
                return drop.token
        return None

    def is_drop_needed(self, epoch: Epoch, *, is_all_below: bool) -> bool:
        """Whether a drop would drop more than what was dropped or is being dropped."""
        if not is_all_below:
            return self.token_of_drop(epoch) is None
        coming = [drop.epoch for drop in self.pending_drops if drop.is_all_below]
        return epoch > max([self.gone_below, *coming])

    def drop(self, epoch: Epoch, *, is_all_below: bool) -> list[LedgerState]:
        """Forget one ledger, or all of lower epochs, for ever; returns what was known of them."""
        self.shown = max(self.shown, epoch - is_all_below)
        if is_all_below:
            self.gone_below = max(self.gone_below, epoch)
            self.gone = _without(self.gone, 0, max(0, self.gone_below - 1))
        elif epoch >= self.gone_below:
            self.gone = _with(self.gone, epoch)
        return [self.ledgers.pop(known) for known in sorted(self.ledgers) if self.is_gone(known)]

    def validate(self) -> None:
        """Assert the invariants."""
        self.gone.validate()
        assert self.pending_seal <= self.shown + SEAL_LEAD_EPOCH_COUNT_MAX, "12: seal"
        assert not self.gone or self.gone.list_ranges()[0][0] >= self.gone_below, "8: gone"
        assert not any(map(self.is_gone, self.ledgers)), "8: a dropped ledger is known"
