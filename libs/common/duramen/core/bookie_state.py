"""What a bookie knows of logs and ledgers, and the values that its core takes and gives.

One state object per log (R11): checking the seal and accepting an add are one step on it. Entries
themselves are not here: the core knows identity checksums, the driver knows bytes and places.
`EntryTable` is the compact, sorted table that both use: in the core 8 bytes an entry.

Everything is *pending* from the moment the core accepts it until its journal record is persisted;
answers, LACs and reads speak of what is persisted only, refusals also of pending seals.

Called by `core.bookie`; rows and effects by its drivers (the bookie's handlers, the simulator).
Source: R10, R11, R13, 02-storage "Adds and reads".
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, NewType, Protocol

from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, EntryId, Epoch, LedgerId, LogId

RequestId = NewType("RequestId", int)
"""The driver's number of one request; the core only hands it back."""

# --- Rows of requests ----------------------------------------------------------------------------


class AddRow(NamedTuple):
    """One entry to be stored, without its bytes.

    `is_valid`: the driver has read the entry, its checksum matches, and its header names the same
    ledger and entry as the row (BK#1046). `crc` is the entry's identity checksum.
    """

    ledger_id: LedgerId
    entry_id: EntryId
    lac: EntryId
    crc: int
    is_recovery: bool
    is_valid: bool


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


Record = AddRecord | SealRecord | LacRecord


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


@dataclass(frozen=True, slots=True)
class Persist:
    """Append these records to the journal as one unit, in the order of tokens; then `on_persisted`.

    The records of `request` are durable when its `on_persisted(token)` is called, and so are those
    of every lower token.
    """

    token: int
    request: RequestId
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class ReplyStatuses:
    """Answer an add request: one status per row."""

    request: RequestId
    statuses: Sequence[BookieStatus]


@dataclass(frozen=True, slots=True)
class ReplyMarks:
    """Answer a seal or LAC request: one answer per row."""

    request: RequestId
    marks: Sequence[MarksAnswer]


@dataclass(frozen=True, slots=True)
class ReadEntries:
    """Fetch the planned entries and answer a read request: one answer per plan."""

    request: RequestId
    plans: Sequence[ReadPlan]


@dataclass(frozen=True, slots=True)
class StartTimer:
    """A long poll waits: call `on_wait_over(request)` after `wait_ms`, unless answered before."""

    request: RequestId
    wait_ms: int


@dataclass(frozen=True, slots=True)
class CheckSegment:
    """Damage may have held a seal: sync, read the ledger's segment node, `on_segment_checked`."""

    ledger_id: LedgerId


Effect = Persist | ReplyStatuses | ReplyMarks | ReadEntries | StartTimer | CheckSegment

# --- State ---------------------------------------------------------------------------------------


class EntryTable:
    """Entry ids in ascending order, with columns of numbers, in compact arrays.

    Entries arrive mostly in order, so adding is appending and finding is a subtraction; recovery
    and resends may fill gaps, which costs a move of what follows.

    Invariants:
     1 ids rise strictly, and every column is as long as they are.
    """

    __slots__ = ("_columns", "_ids")

    def __init__(self, typecodes: str) -> None:
        self._ids = array("I")
        self._columns = tuple(array(typecode) for typecode in typecodes)

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, entry_id: int) -> bool:
        return self._find(entry_id) >= 0

    def put(self, entry_id: int, *values: int) -> None:
        """Add an entry, or replace its values."""
        assert len(values) == len(self._columns), (entry_id, values)
        ids = self._ids
        if not ids or entry_id > ids[-1]:
            ids.append(entry_id)
            for column, value in zip(self._columns, values, strict=True):
                column.append(value)
            return
        index = bisect_left(ids, entry_id)
        if ids[index] == entry_id:
            for column, value in zip(self._columns, values, strict=True):
                column[index] = value
            return
        ids.insert(index, entry_id)
        for column, value in zip(self._columns, values, strict=True):
            column.insert(index, value)

    def get(self, entry_id: int) -> tuple[int, ...] | None:
        """The values of an entry, or None if it is not here."""
        index = self._find(entry_id)
        return None if index < 0 else tuple([column[index] for column in self._columns])

    def remove(self, entry_id: int) -> None:
        """Forget an entry, if it is here."""
        index = self._find(entry_id)
        if index >= 0:
            del self._ids[index]
            for column in self._columns:
                del column[index]

    def count_run(self, first: int, last: int) -> int:
        """How many entries first, first + 1, … up to `last` are here without a gap."""
        start = self._find(first)
        if start < 0:
            return 0
        return min(last - first + 1, self._run_end(start) - start)

    def list_ranges(self) -> list[tuple[EntryId, EntryId]]:
        """Every (first, last) without a gap between them, ascending."""
        ranges = []
        start = 0
        while start < len(self._ids):
            end = self._run_end(start)
            ranges.append((EntryId(self._ids[start]), EntryId(self._ids[end - 1])))
            start = end
        return ranges

    def last(self) -> EntryId:
        """The highest entry, or NOTHING."""
        return EntryId(self._ids[-1]) if self._ids else NOTHING

    def validate(self) -> None:
        """Assert the invariants."""
        ids = self._ids
        assert all(ids[i] < ids[i + 1] for i in range(len(ids) - 1)), "1: ids rise"
        assert all(len(column) == len(ids) for column in self._columns), "1: columns"

    def _find(self, entry_id: int) -> int:
        ids = self._ids
        if not ids:
            return -1
        index = entry_id - ids[0]
        if index < 0:
            return -1
        if index < len(ids) and ids[index] == entry_id:
            return index
        index = bisect_left(ids, entry_id)
        return index if index < len(ids) and ids[index] == entry_id else -1

    def _run_end(self, start: int) -> int:
        """Index after the run that begins at `start`: id − index never falls, so it is bisected."""
        ids = self._ids
        if ids[-1] - ids[start] == len(ids) - 1 - start:
            return len(ids)
        offset = ids[start] - start
        return bisect_right(range(len(ids)), offset, lo=start, key=lambda i: ids[i] - i)


class PendingAdd(NamedTuple):
    """An accepted entry whose record is not persisted yet."""

    crc: int
    token: int
    is_recovery: bool


class LedgerState:
    """What this bookie knows of one ledger."""

    __slots__ = ("highest", "is_doubtful", "lac", "pending", "stored", "unknown")

    def __init__(self) -> None:
        self.lac: EntryId = NOTHING
        self.highest: EntryId = NOTHING
        """Highest entry that is or was durable here, damaged ones included."""
        self.stored = EntryTable("I")
        """Durable entries and their identity checksums."""
        self.pending: dict[EntryId, PendingAdd] = {}
        self.unknown: set[EntryId] = set()
        """Entries that were durable here and cannot be read: UNKNOWN until they are added again."""
        self.is_doubtful = False
        """Damage may have held any entry or LAC of this ledger: no absence is vouched for."""

    def can_vouch(self, entry_id: EntryId) -> bool:
        """Whether the absence of an entry is proved (R15)."""
        return not self.is_doubtful and entry_id not in self.unknown


class LogState:
    """What this bookie knows of one log: its seal, and its ledgers by epoch."""

    __slots__ = ("ledgers", "pending_seal", "pending_token", "sealed")

    def __init__(self) -> None:
        self.sealed = 0
        """Epochs up to this one are sealed, durably; 0: none."""
        self.pending_seal = 0
        """As `sealed`, with seals whose record is not persisted yet; never below `sealed`."""
        self.pending_token = 0
        """Token of the record that makes `pending_seal` durable."""
        self.ledgers: dict[Epoch, LedgerState] = {}
