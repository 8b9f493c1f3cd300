"""Bookies and the metadata store of a small world, and the values that messages carry.

`BookieMachine` runs the production `BookieCore` on a journal with a durable and a volatile part:
records become durable in order, in a step of their own, and a crash loses what is not durable.
`StoreMachine` is the store of the unit tests' worlds, which asserts on every illegal transition.
`Shape` says how many bookies and quorums there are. Bytes are stand-ins: an entry's checksum is its
number in `PAYLOADS`.

Called by `machines.py` and `model.py`. Source: docs/explorer.md, services/bookie (driver's order).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from duramen.config import LogConfig, parse_log_config
from duramen.core.bookie import BookieCore
from duramen.core.bookie.bookie_state import (
    AddRecord,
    AddRow,
    LacRecord,
    Persist,
    RangePlan,
    ReadEntries,
    ReadRanges,
    Record,
    ReplyMarks,
    ReplyStatuses,
    RequestId,
    SealRecord,
)
from duramen.core.flexible.segment import AnySegment
from duramen.core.log_node import LogNode
from duramen.core.placement import Candidate
from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment, Totals
from duramen.core.sequencer import effects as fx
from duramen.core.sequencer.effects import LogView, StoredEntry
from duramen.core.status import BookieStatus
from duramen.ids import (
    BookieId,
    EntryId,
    Epoch,
    Incarnation,
    Member,
    SequencerId,
    epoch_of,
    ledger_of,
)
from duramen.wire.bookie_calls import LacUpdate, ReadRange, Seal, ServiceClass
from duramen.wire.flexible.filtered_reads import FilteredRange
from tests.explore.state import Event, Out, ScriptedRandom, freeze
from tests.unit.core_fakes import LOG_ID, FakeStore

LIFE: Final = Incarnation("1" * 32)
"""Disks are never replaced here."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Bookies, quorums and how many entries the first writer has to append."""

    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    bookie_count: int
    entry_count: int = 1
    ack_mode: str = "ordered"
    early_append: bool = False

    @property
    def quorum(self) -> Quorum:
        """E, Qw, Qa."""
        return Quorum(self.ensemble_size, self.write_quorum, self.ack_quorum)

    @property
    def members(self) -> tuple[Member, ...]:
        """Every bookie; the first E are the first ensemble."""
        return tuple(Member(BookieId(f"b{i}"), LIFE) for i in range(self.bookie_count))

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """Every bookie in its own rack."""
        return tuple(Candidate(m, "r", f"rack-{m.bookie}") for m in self.members)

    def config(self) -> LogConfig:
        """A log of this shape that never rolls by itself."""
        return parse_log_config({
            "replication": {"ensemble_size": self.ensemble_size, "min_racks": 1,
                            "write_quorum": self.write_quorum, "ack_quorum": self.ack_quorum},
            "early_append": self.early_append,
            "roll": {"interval": "1000h", "idle_close": "1000h", "size": "1GiB"},
        })  # fmt: skip

    def first_segment(self) -> Segment:
        """Epoch 1, open and empty."""
        ensemble = self.members[: self.ensemble_size]
        return Segment(
            LOG_ID,
            Epoch(1),
            self.quorum,
            (Fragment(EntryId(0), ensemble),),
            ack_mode=self.ack_mode,
            nonce="first",
        )


class AnyShape(Protocol):
    """What every world has, however its logs place entries."""

    @property
    def entry_count(self) -> int: ...
    @property
    def early_append(self) -> bool: ...
    @property
    def bookie_count(self) -> int: ...
    @property
    def members(self) -> tuple[Member, ...]: ...
    @property
    def candidates(self) -> tuple[Candidate, ...]: ...
    def config(self) -> LogConfig: ...
    def first_segment(self) -> AnySegment: ...


class Payloads:
    """Entries by their bytes: a number that stands for the checksum, and their totals."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._entries: list[StoredEntry] = []

    def encode(self, text: str, totals: Totals) -> bytes:
        """An entry's bytes."""
        payload = text.encode()
        if payload not in self._numbers:
            self._numbers[payload] = len(self._entries)
            identity = len(self._entries)
            entry = StoredEntry(payload, totals, has_state=False, record_count=1, identity=identity)
            self._entries.append(entry)
        return payload

    def crc_of(self, payload: bytes) -> int:
        """The number of an entry."""
        return self._numbers[payload]

    def entry_of(self, crc: int) -> StoredEntry:
        """The entry of a number."""
        return self._entries[crc]


PAYLOADS: Final = Payloads()
"""Shared by all worlds of this process: equal bytes have equal numbers, nothing else is kept."""


class WriteTable:
    """The writes of commits, numbered by what they say, so that messages are plain tuples."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._writes: list[tuple[fx.Write, ...]] = []

    def number(self, writes: tuple[fx.Write, ...]) -> int:
        """The number of these writes."""
        picture = freeze(writes)
        if picture not in self._numbers:
            self._numbers[picture] = len(self._writes)
            self._writes.append(writes)
        return self._numbers[picture]

    def __getitem__(self, number: int) -> tuple[fx.Write, ...]:
        return self._writes[number]


@dataclass(frozen=True, slots=True)
class View:
    """A view in a message: compared by the numbers of the store's states that it was read from."""

    log_state: int
    node_state: int
    value: LogView = field(compare=False, repr=False)


# --- Bookie --------------------------------------------------------------------------------------


class BookieFacts(NamedTuple):
    """What is durable at a bookie, and what a reader can learn from it."""

    entries: dict[tuple[int, int], int]
    """(epoch, entry) → checksum."""
    lacs: dict[int, int]
    """Epoch → what a reader is told."""
    can_persist: bool
    sealed: int
    """Epochs up to this one, durably."""


@dataclass
class BookieMachine:
    """A bookie: `persist` is a step of its own, and a crash loses what came before it."""

    kind: type[BookieCore] = BookieCore
    rng: ScriptedRandom = field(default_factory=ScriptedRandom)
    is_synced: bool = False
    """Every record is durable at once, where a world has no crash that could tell."""

    def __post_init__(self) -> None:
        self.journal: list[Record] = []
        self._start()

    def _start(self) -> None:
        self.core = self.kind(LIFE)
        self.unsynced: deque[Persist] = deque()
        self.requests: list[Event] = []
        for record in self.journal:
            match record:
                case AddRecord(_, ledger_id, entry_id, lac, crc, is_recovery):
                    self.core.on_recovered_add(
                        ledger_id, entry_id, lac, crc, is_recovery=is_recovery
                    )
                case SealRecord(log_id, epoch):
                    self.core.on_recovered_seal(log_id, epoch)
                case LacRecord(ledger_id, lac):
                    self.core.on_recovered_lac(ledger_id, lac)

    def handle(self, event: Event) -> list[Out]:
        """("persist",), ("crash",) or (source, kind, …)."""
        match event:
            case ("persist",):
                persist = self.unsynced.popleft()
                self.journal += persist.records
                self.core.on_persisted(persist.token)
            case ("crash",):
                self._start()
            case _:
                self._request(event)
        self.core.validate()
        outs = self._drain()
        if self.is_synced and self.unsynced:
            return [*outs, *self.handle(("persist",))]
        return outs

    def _request(self, event: Event) -> None:
        request = RequestId(len(self.requests))
        self.requests.append(event)
        match event:
            case (_, "add", epoch, entry, lac, crc, is_recovery):
                row = AddRow(ledger_of(LOG_ID, epoch), entry, lac, crc, is_recovery, True)
                self.core.on_adds(request, LIFE, [row])
            case (_, "wave", epoch, entry, lac, crc, is_recovery):
                row = AddRow(ledger_of(LOG_ID, epoch), entry, lac, crc, is_recovery, True, True)
                self.core.on_adds(request, LIFE, [row])
            case (_, "digest", epoch, first, last):
                self.core.on_filtered_reads(request, LIFE, [_find_range(epoch, first, last, epoch)])
            case (_, "fetch", epoch, entry, seal_epoch):
                found = _find_range(epoch, entry, entry, seal_epoch)
                self.core.on_filtered_reads(request, LIFE, [found])
            case (_, "seal", epoch):
                self.core.on_seals(request, LIFE, [Seal(LOG_ID, epoch, ledger_of(LOG_ID, epoch))])
            case (_, "lac", epoch, lac):
                update = LacUpdate(ledger_of(LOG_ID, epoch), lac, True)
                self.core.on_lacs(request, LIFE, [update])
            case (_, "read", epoch, entry, seal_epoch):
                row_read = ReadRange(ledger_of(LOG_ID, epoch), entry, entry, 1, seal_epoch)
                self.core.on_reads(request, LIFE, [row_read])

    def _drain(self) -> list[Out]:
        outs: list[Out] = []
        effects, self.core.outbox = self.core.outbox, []
        for effect in effects:
            match effect:
                case Persist():
                    self.unsynced.append(effect)
                case ReplyStatuses(request, statuses):
                    source, kind, epoch, entry, *_ = self.requests[request]
                    outs.append(("send", source, f"{kind}!", epoch, entry, int(statuses[0])))
                case ReplyMarks(request, marks):
                    source, kind, epoch, *_ = self.requests[request]
                    told = (int(marks[0].status), marks[0].lac, marks[0].highest)
                    outs.append(("send", source, f"{kind}!", epoch, *told))
                case ReadEntries(request, plans):
                    source, _, epoch, entry, _ = self.requests[request]
                    crc = self._durable_entries().get((epoch, entry), -1)
                    outs.append(("send", source, "read!", epoch, entry, int(plans[0].status), crc))
                case ReadRanges(request, ranges):
                    outs.append(self._answer_range(self.requests[request], ranges[0]))
                case _:
                    raise AssertionError(effect)
        return outs

    def _answer_range(self, asked: Event, plan: RangePlan) -> Out:
        """A digest by the book; a body from the disk."""
        source, kind, epoch, first, *_ = asked
        assert plan.status is BookieStatus.OK and not plan.unvouched, plan
        if kind == "digest":
            told = tuple([(int(entry), crc) for entry, crc in plan.hot.rows()])
            return "send", source, "digest!", epoch, int(plan.status), told
        crc = self._durable_entries().get((epoch, first), -1)
        status = BookieStatus.OK if first in plan.hot else BookieStatus.NO_ENTRY
        return "send", source, "fetch!", epoch, first, int(status), crc

    def _durable_entries(self) -> dict[tuple[int, int], int]:
        return {
            (epoch_of(record.ledger_id), record.entry_id): record.crc
            for record in self.journal
            if isinstance(record, AddRecord)
        }

    def key(self) -> Hashable:
        """By hand, because tokens and request numbers only count: what waits for which record."""
        core = self.core
        base = core._in_flight[0][0] if core._in_flight else core._last_token + 1
        logs = tuple(
            (log.sealed, log.pending_seal, max(log.pending_token - base, -1), tuple([
                (epoch, state.lac, state.highest, tuple(state.stored._ids),
                 tuple(state.stored._columns[0]),
                 tuple(sorted((entry, add.crc, add.token - base, add.is_recovery)
                              for entry, add in state.pending.items())))
                for epoch, state in sorted(log.ledgers.items())
            ]))
            for _, log in sorted(core._logs.items())
        )  # fmt: skip
        in_flight = tuple(tuple(map(_without_row, records)) for _, records in core._in_flight)
        parked = tuple(sorted(
            (token - base, tuple(sorted(repr(self._encode_parked(one)) for one in waiting)))
            for token, waiting in core._parked.items()
        ))  # fmt: skip
        # Of the journal counts what a replay makes of it.
        journal = frozenset(map(_without_row, self.journal))
        return logs, in_flight, parked, journal

    def _encode_parked(self, release: Any) -> Hashable:
        assert isinstance(release, partial), release
        name = release.func.__name__
        request, *rest = release.args
        is_read = name in {"_answer_reads", "_answer_ranges"}
        statuses = [] if is_read else [freeze(row) for rows in rest for row in rows]
        return name, self.requests[request], statuses

    def facts(self) -> BookieFacts:
        """Entries from the journal, not from what the core believes; LACs as it tells them."""
        sealed = self.core.sealed_epoch(LOG_ID)
        lacs = {int(epoch_of(known)): int(state.lac) for known, state in self.core.list_ledgers()}
        return BookieFacts(self._durable_entries(), lacs, bool(self.unsynced), sealed)


def _find_range(epoch: Epoch, first: EntryId, last: EntryId, seal_epoch: int) -> FilteredRange:
    service = ServiceClass.RECOVERY
    ledger_id = ledger_of(LOG_ID, epoch)
    return FilteredRange(ReadRange(ledger_id, first, last, 1, seal_epoch, service=service))


def _without_row(record: Record) -> tuple[Any, ...]:
    return ("add", *record[1:]) if isinstance(record, AddRecord) else tuple(record)


# --- Metadata store ------------------------------------------------------------------------------


class StoreFacts(NamedTuple):
    """The nodes."""

    log: LogNode
    log_version: int
    segments: dict[Epoch, tuple[AnySegment, int]]
    owner: fx.Owner | None


class StoreMachine:
    """The metadata store: compare-and-set, and an assert on every illegal transition."""

    def __init__(self, shape: AnyShape, writes: WriteTable, *, is_fresh: bool) -> None:
        self.rng = ScriptedRandom()
        self._writes = writes
        log = LogNode(LOG_ID, "ns", "log", shape.config())
        self._store = FakeStore(log if is_fresh else log.with_new_epoch("first"))
        if not is_fresh:
            self._store.segments[Epoch(1)] = (shape.first_segment(), 0)

    def handle(self, event: Event) -> list[Out]:
        """(author, "commit", token, number of the writes)."""
        author, _, token, number = event
        done = self._store.commit(self._writes[number], SequencerId(author))
        return [("send", author, "commit!", token, "applied" if done else "conflict")]

    def key(self) -> Hashable:
        """All nodes and versions."""
        store = self._store
        return freeze((store.log, store.log_version, store.segments, store.owner))

    def facts(self) -> StoreFacts:
        """All nodes and versions."""
        store = self._store
        return StoreFacts(store.log, store.log_version, dict(store.segments), store.owner)
