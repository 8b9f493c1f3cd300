"""What a checkpoint keeps of a bookie's core, and that it is enough.

The last part plays whole lives, drawn by a seed: a journal, an entry log, checkpoints, rot,
crashes. A core that is restored from the checkpoint and the journal behind it must answer every
request as the one that went on; `NOTICED` proves that no kind of state could be left out unseen.

Source: R4, R10, R11, R15, docs/protocol/entry-log.md "Checkpoint".
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from duramen.core.bookie import BookieCore
from duramen.core.bookie.bookie_state import (
    NO_ADDS,
    NO_ENTRIES,
    NO_RANGES,
    AddRecord,
    AddRow,
    BookieLogState,
    CoreSnapshot,
    DropRecord,
    LacRecord,
    LedgerSnapshot,
    LedgerState,
    LogSnapshot,
    Persist,
    Record,
    RequestId,
    SealRecord,
)
from duramen.core.entry_ranges import EntryRanges
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, EntryId, Epoch, LedgerId, LogId, epoch_of, ledger_of, log_of
from duramen.wire.bookie_calls import LacUpdate, ReadRange, Seal
from tests.unit.bookie_driver import (
    LEDGER,
    LIFE,
    LOG,
    Driver,
    add_again,
    holding,
    read,
    row,
    seal,
)

OK = BookieStatus.OK
SEALED = BookieStatus.SEALED

# --- Checkpoints ---------------------------------------------------------------------------------


def test_a_checkpoint_counts_what_it_settles_as_settled_before_the_core_does() -> None:
    driver = holding(0, 1, 2)
    driver.lose(1)
    snapshot = driver.core.snapshot({LEDGER: [EntryId(0), EntryId(1)]})
    assert driver.core.hot_entries(LEDGER) == [0, 2], "nothing is changed by looking"
    (ledger,) = snapshot.ledgers
    assert ledger == LedgerSnapshot(
        LEDGER, NOTHING, EntryId(2), EntryRanges([(0, 1)]), EntryRanges(), False
    )


def test_a_checkpoint_says_nothing_of_what_is_not_durable() -> None:
    driver = Driver()
    driver.add(row(0))
    driver.seal(seal(2))
    driver.drop(1)
    assert driver.core.snapshot() == CoreSnapshot((), (), False)


def test_a_seal_alone_survives_by_its_checkpoint() -> None:
    driver = Driver()
    driver.seal(seal(3))
    driver.persist()
    core = BookieCore(LIFE)
    core.restore(driver.core.snapshot())
    core.validate()
    assert core.sealed_epoch(LOG) == 3
    driver.core = core
    assert add_again(driver, 0) is SEALED


def test_a_checkpoint_lives_apart_from_both_cores() -> None:
    driver = holding(0, 1, 3)
    driver.settle(0, 1)
    driver.lose(1)
    driver.drop(5)
    driver.persist()
    snapshot = driver.core.snapshot()
    kept = copy.deepcopy(snapshot)
    restored = Driver()
    restored.core.restore(snapshot)
    for one in (driver, restored):
        one.lose(0)
        one.stored(row(7), row(1))
        one.settle(7)
        one.drop(6)
        one.persist()
    assert snapshot == kept


def test_the_journal_wins_over_the_checkpoint_when_both_hold_an_entry() -> None:
    driver = holding(0)
    driver.settle(0)
    core = BookieCore(LIFE)
    core.restore(driver.core.snapshot())
    core.on_recovered_add(LEDGER, EntryId(0), NOTHING, 1000, is_recovery=False)
    core.validate()
    assert core.hot_entries(LEDGER) == [0] and core.statistics()["entries"] == 1
    core.on_recovered_damage(LEDGER, EntryId(0))
    core.validate()
    assert core.hot_entries(LEDGER) == [0]


def test_damage_in_the_journal_does_not_harm_what_is_settled() -> None:
    driver = holding(0)
    driver.settle(0)
    driver.core.on_recovered_damage(LEDGER, EntryId(0))
    assert read(driver, 0) == (OK, 1)


def test_a_checkpoint_is_restored_into_an_empty_core_only() -> None:
    driver = holding(0)
    with pytest.raises(AssertionError):
        driver.core.restore(driver.core.snapshot())


# --- Whole lives ---------------------------------------------------------------------------------

LOGS = [LogId(7), LogId(8)]
LEDGERS = [
    *[ledger_of(LOGS[0], Epoch(epoch)) for epoch in (1, 2, 3)],
    ledger_of(LOGS[1], Epoch(2)),
]
ENTRIES = [EntryId(entry) for entry in range(4)]

Answers = list[tuple[Any, ...]]


class Disk:
    """What a bookie has on its disks: a journal, an entry log, a checkpoint; and what rotted."""

    def __init__(self) -> None:
        self.journal: list[Record] = []
        self.rotten_records: set[int] = set()
        self.entry_log: dict[tuple[LedgerId, EntryId], int] = {}
        self.rotten_entry_log: set[tuple[LedgerId, EntryId]] = set()
        self.checkpoint = CoreSnapshot((), (), False)
        self.covered_count = 0
        self.closed: dict[LedgerId, EntryId] = {}
        """Last entries that the metadata tell; a bookie asks for them again after each start."""

    def identity_of(self, ledger_id: LedgerId, entry_id: EntryId) -> int | None:
        place = (ledger_id, entry_id)
        return None if place in self.rotten_entry_log else self.entry_log[place]

    def open_core(self) -> BookieCore:
        return BookieCore(LIFE, identity_of=self.identity_of)

    def last_record_of(self, ledger_id: LedgerId, entry_id: EntryId) -> int:
        return max(
            index
            for index, record in enumerate(self.journal)
            if isinstance(record, AddRecord) and record[1:3] == (ledger_id, entry_id)
        )

    def start(self, checkpoint: CoreSnapshot | None = None) -> BookieCore:
        """A core after a restart: checkpoint, then the journal behind it, then the damage."""
        core = self.open_core()
        core.restore(self.checkpoint if checkpoint is None else checkpoint)
        damaged = []
        for index in range(self.covered_count, len(self.journal)):
            record = self.journal[index]
            if isinstance(record, AddRecord) and index in self.rotten_records:
                damaged.append(record)
            else:
                replay(core, record)
        for add in damaged:  # their headers are intact
            core.on_recovered_damage(add.ledger_id, add.entry_id)
            if not add.is_recovery:
                core.on_recovered_lac(add.ledger_id, add.lac)
        for ledger_id, entry_id in sorted(self.rotten_entry_log):  # a scrub
            if entry_id not in core.hot_entries(ledger_id):
                core.on_unreadable(ledger_id, entry_id)
        self.purge(core)
        core.validate()
        return core

    def purge(self, core: BookieCore) -> None:
        for ledger_id, last_entry in self.closed.items():
            core.purge_beyond(ledger_id, last_entry)


def replay(core: BookieCore, record: Record) -> None:
    match record:
        case AddRecord(_, ledger_id, entry_id, lac, crc, is_recovery):
            core.on_recovered_add(ledger_id, entry_id, lac, crc, is_recovery=is_recovery)
        case SealRecord(log_id, epoch):
            core.on_recovered_seal(log_id, epoch)
        case LacRecord(ledger_id, lac):
            core.on_recovered_lac(ledger_id, lac)
        case DropRecord(log_id, epoch, is_all_below):
            core.on_recovered_drop(log_id, epoch, is_all_below)


def ask_everything(core: BookieCore) -> Answers:
    """What a bookie answers to every request there is, asked of a copy of it."""
    apart = [NO_ADDS, NO_ENTRIES, NO_RANGES, core._identity_of]
    core = copy.deepcopy(core, {id(one): one for one in apart})
    answers: Answers = []
    for log_id in LOGS:
        answers.append((log_id, core.sealed_epoch(log_id), core.list_ledgers_of(log_id)))
    for ledger_id in LEDGERS:
        answers.append((ledger_id, core.list_ranges(ledger_id), core.is_alive(ledger_id)))
        answers += ask_reads(core, ledger_id)
    # R10: a proof that a segment is open is never kept over a restart. Here all of them are.
    for ledger_id in LEDGERS:
        core.on_segment_checked(ledger_id, is_open=True)
    for ledger_id in LEDGERS:
        answers += ask_writes(core, ledger_id)
    return answers


def ask_reads(core: BookieCore, ledger_id: LedgerId) -> Iterator[tuple[Any, ...]]:
    reads = [ReadRange(ledger_id, first, ENTRIES[-1], 1 << 20) for first in ENTRIES]
    core.on_reads(RequestId(1), LIFE, reads)
    yield ("read", ledger_id, *play(core))
    core.on_lacs(RequestId(1), LIFE, [LacUpdate(ledger_id, NOTHING, False)])
    yield ("lac", ledger_id, *play(core))


def ask_writes(core: BookieCore, ledger_id: LedgerId) -> Iterator[tuple[Any, ...]]:
    for is_recovery in (False, True):
        adds = [
            AddRow(ledger_id, entry_id, NOTHING, crc, is_recovery, True)
            for entry_id in ENTRIES
            for crc in (1, 2)
        ]
        core.on_adds(RequestId(1), LIFE, adds)
        yield ("add", ledger_id, is_recovery, *play(core))
    core.on_lacs(RequestId(1), LIFE, [LacUpdate(ledger_id, EntryId(99), True)])
    yield ("write lac", ledger_id, *play(core))
    core.drop(log_of(ledger_id), epoch_of(ledger_id), is_all_below=False)
    yield ("drop", ledger_id, *play(core))
    core.on_seals(RequestId(1), LIFE, [Seal(log_of(ledger_id), epoch_of(ledger_id), ledger_id)])
    yield ("seal", ledger_id, *play(core))


def play(core: BookieCore) -> list[Any]:
    """Effects, with every record persisted at once and tokens left out."""
    told: list[Any] = []
    while core.outbox:
        effect = core.outbox.pop(0)
        if isinstance(effect, Persist):
            told.append(effect.records)
            core.on_persisted(effect.token)
        else:
            told.append(effect)
    return told


class Life:
    """A bookie with its disk: requests, upkeep, rot and crashes as a seed draws them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.disk = Disk()
        self.core = self.disk.open_core()
        self.units: list[Persist] = []
        self.settling: dict[LedgerId, list[EntryId]] = {}
        self.story: list[str] = []
        self.steps = {
            self.add: 8, self.repair: 3, self.write_lac: 2, self.seal: 1, self.drop: 1,
            self.persist: 10, self.write_checkpoint: 4, self.finish_checkpoint: 6, self.rot: 4,
            self.purge: 1, self.restart_with_damage: 1, self.crash: 1,
        }  # fmt: skip

    def live(self, step_count: int) -> None:
        for _ in range(step_count):
            (step,) = self.rng.choices(list(self.steps), list(self.steps.values()))
            step()
            self.check()
        while self.units:
            self.persist()
            self.check()

    def check(self) -> None:
        """A core that were restarted now would answer as this one, if nothing is in flight."""
        for effect in self.core.outbox:
            if isinstance(effect, Persist):
                self.units.append(effect)
        self.core.outbox = []
        self.core.validate()
        if not self.units:
            self.disk.purge(self.core)
            restarted, still = ask_everything(self.disk.start()), ask_everything(self.core)
            assert restarted == still, "\n".join(["after", *self.story, "another answer"])

    def report(self, *words: object) -> None:
        self.story.append(" ".join(map(str, words)))

    # --- requests ---

    def add(self) -> None:
        ledger, is_recovery = self.choose_ledger(), self.rng.random() < 0.3
        first = self.rng.randrange(len(ENTRIES))
        entries = ENTRIES[first : first + self.rng.randint(1, 3)]
        crc = self.rng.choice([1, 1, 1, 2])
        self.report("add", ledger, entries, crc, is_recovery)
        lac = EntryId(first - 1)
        adds = [AddRow(ledger, entry, lac, crc, is_recovery, True) for entry in entries]
        self.core.on_adds(RequestId(1), LIFE, adds)

    def repair(self) -> None:
        """An entry that cannot be read is written again."""
        lost = [
            (ledger_id, EntryId(entry))
            for ledger_id, ledger in self.core.list_ledgers()
            for first, last in ledger.unknown
            for entry in range(first, last + 1)
        ]
        if lost:
            place = self.rng.choice(lost)
            self.report("repair", *place)
            add = AddRow(*place, NOTHING, 1, True, True)
            self.core.on_adds(RequestId(1), LIFE, [add])

    def write_lac(self) -> None:
        update = LacUpdate(self.choose_ledger(), self.rng.choice(ENTRIES), True)
        self.report("write lac", *update)
        self.core.on_lacs(RequestId(1), LIFE, [update])

    def seal(self) -> None:
        ledger = self.choose_ledger()
        self.report("seal", ledger)
        self.core.on_seals(RequestId(1), LIFE, [Seal(log_of(ledger), epoch_of(ledger), ledger)])

    def drop(self) -> None:
        ledger, is_all_below = self.choose_ledger(), self.rng.random() < 0.5
        self.report("drop", ledger, is_all_below)
        self.core.drop(log_of(ledger), epoch_of(ledger), is_all_below=is_all_below)

    # --- the journal ---

    def persist(self) -> None:
        count = self.rng.randint(1, 4)
        for unit in self.units[:count]:
            self.report("persist", unit.records)
            self.disk.journal += unit.records
            self.core.on_persisted(unit.token)
        del self.units[:count]

    # --- upkeep ---

    def write_checkpoint(self) -> None:
        """Cover some of what is not covered; the core is told later."""
        if self.settling:
            return
        disk = self.disk
        disk.covered_count = self.rng.randint(disk.covered_count, len(disk.journal))
        for ledger_id in LEDGERS:
            last = {e: disk.last_record_of(ledger_id, e) for e in self.core.hot_entries(ledger_id)}
            entries = [entry for entry, index in last.items() if index < disk.covered_count]
            for entry in entries:
                record = disk.journal[last[entry]]
                assert isinstance(record, AddRecord)
                disk.entry_log[ledger_id, entry] = record.crc
                disk.rotten_entry_log.discard((ledger_id, entry))
            if entries:
                self.settling[ledger_id] = entries
        self.report("checkpoint", disk.covered_count, self.settling)
        disk.checkpoint = self.core.snapshot(self.settling)

    def finish_checkpoint(self) -> None:
        self.report("settled")
        for ledger_id, entries in self.settling.items():
            self.core.on_settled(ledger_id, entries)
        self.settling = {}

    def rot(self) -> None:
        """The only copy of an entry rots, and is found out."""
        readable = [
            (ledger_id, EntryId(entry))
            for ledger_id in LEDGERS
            for first, last in self.core.list_ranges(ledger_id) or []
            for entry in range(first, last + 1)
            if entry not in self.settling.get(ledger_id, ())
        ]
        if not readable:
            return
        ledger, entry = self.rng.choice(readable)
        self.report("rot", ledger, entry)
        if entry in self.core.hot_entries(ledger):
            self.disk.rotten_records.add(self.disk.last_record_of(ledger, entry))
        else:
            self.disk.rotten_entry_log.add((ledger, entry))
        self.core.on_unreadable(ledger, entry)

    def purge(self) -> None:
        """The metadata show a ledger closed."""
        ledger, last = self.choose_ledger(), self.rng.choice([NOTHING, *ENTRIES])
        self.report("close", ledger, last)
        self.disk.closed.setdefault(ledger, last)
        self.disk.purge(self.core)

    def restart_with_damage(self) -> None:
        """Damage that the journal cannot tell any more: only the next checkpoint keeps it."""
        if self.settling or self.units:
            return
        ledger = self.rng.choice([self.choose_ledger(), self.choose_ledger(), None])
        entry = self.rng.choice([*ENTRIES, None]) if ledger else None
        self.report("damage", ledger, entry)
        self.core.on_recovered_damage(ledger, entry)
        self.disk.covered_count = len(self.disk.journal)
        self.write_checkpoint()
        self.finish_checkpoint()

    def crash(self) -> None:
        """What is not persisted is gone."""
        self.report("crash")
        self.units = []
        self.settling = {}
        self.core = self.disk.start()

    def choose_ledger(self) -> LedgerId:
        """One of them has the most stories."""
        return self.rng.choice([*LEDGERS, LEDGERS[1], LEDGERS[1], LEDGERS[1]])


@pytest.mark.parametrize("seed", range(60))
def test_a_restart_changes_no_answer_whatever_happened_before(seed: int) -> None:
    Life(seed).live(60)


# --- Nothing is left out -------------------------------------------------------------------------


def full_disk() -> Disk:
    """A disk whose checkpoint holds every kind of state and whose journal is covered to the end."""
    disk = Disk()
    core = disk.open_core()
    first, second, third, other = LEDGERS
    core.on_recovered_damage(third)
    core.on_recovered_damage(second, EntryId(3))
    adds = [AddRow(second, EntryId(entry), EntryId(-1), 1, False, True) for entry in (0, 1, 2)]
    core.on_adds(RequestId(1), LIFE, adds)
    core.on_lacs(RequestId(1), LIFE, [LacUpdate(second, EntryId(1), True)])
    core.drop(log_of(other), epoch_of(other), is_all_below=False)
    core.drop(log_of(second), epoch_of(second), is_all_below=True)
    core.on_seals(RequestId(1), LIFE, [Seal(log_of(second), epoch_of(second), second)])
    for effect in core.outbox:
        if isinstance(effect, Persist):
            core.on_persisted(effect.token)
    disk.entry_log = {(second, EntryId(entry)): 1 for entry in (0, 1, 2)}
    disk.checkpoint = core.snapshot({second: [EntryId(0), EntryId(1), EntryId(2)]})
    assert not core.is_alive(first)
    return disk


def with_logs(change: Callable[[LogSnapshot], LogSnapshot]) -> Callable[[CoreSnapshot], Any]:
    return lambda kept: kept._replace(logs=tuple(map(change, kept.logs)))


def with_ledgers(change: Callable[[LedgerSnapshot], Any]) -> Callable[[CoreSnapshot], Any]:
    return lambda kept: kept._replace(ledgers=tuple(map(change, kept.ledgers)))


NOTICED: dict[str, Callable[[CoreSnapshot], CoreSnapshot]] = {
    "logs": lambda kept: kept._replace(logs=()),
    "log_id": with_logs(lambda log: log._replace(log_id=LogId(99))),
    "sealed": with_logs(lambda log: log._replace(sealed=0)),
    "gone_below": with_logs(lambda log: log._replace(gone_below=Epoch(0))),
    "gone": with_logs(lambda log: log._replace(gone=EntryRanges())),
    "ledgers": lambda kept: kept._replace(ledgers=()),
    "ledger_id": with_ledgers(lambda one: one._replace(ledger_id=LedgerId(one.ledger_id + 7))),
    "lac": with_ledgers(lambda one: one._replace(lac=NOTHING)),
    "highest": with_ledgers(lambda one: one._replace(highest=max(NOTHING, one.settled.last()))),
    "settled": with_ledgers(lambda one: one._replace(settled=EntryRanges())),
    "unknown": with_ledgers(lambda one: one._replace(unknown=EntryRanges())),
    "is_doubtful": with_ledgers(lambda one: one._replace(is_doubtful=False)),
}


@pytest.mark.parametrize("kind", NOTICED)
def test_a_checkpoint_that_leaves_out_one_kind_of_state_is_noticed(kind: str) -> None:
    disk = full_disk()
    whole = ask_everything(disk.start())
    torso = disk.open_core()
    torso.restore(NOTICED[kind](disk.checkpoint))
    assert ask_everything(torso) != whole


def test_a_checkpoint_that_forgets_that_everything_is_in_doubt_is_noticed() -> None:
    disk = full_disk()
    assert not disk.checkpoint.is_everything_doubtful
    doubtful = disk.checkpoint._replace(is_everything_doubtful=True)
    assert ask_everything(disk.start(doubtful)) != ask_everything(disk.start())
    assert disk.start(doubtful).snapshot() == doubtful


def test_a_checkpoint_that_forgets_what_is_newer_than_the_damage_is_noticed() -> None:
    core = Disk().open_core()
    core.on_recovered_damage()
    core.on_doubt_bounded(20)
    core.on_segment_checked(LEDGERS[0], is_open=False, made=21)
    kept = core.snapshot()
    again = Disk().start(kept)
    assert again.snapshot() == kept and not again.is_in_doubt(LEDGERS[0])
    logs = tuple(log._replace(newer_from=0) for log in kept.logs)
    assert Disk().start(kept._replace(logs=logs)).is_in_doubt(LEDGERS[0])
    assert not Disk().start(kept._replace(logs=(), doubt_until=0)).is_doubt_bounded


def test_every_kind_of_state_is_in_the_checkpoint_or_known_to_end_with_the_process() -> None:
    kept = {*LogSnapshot._fields, *LedgerSnapshot._fields, *CoreSnapshot._fields}
    assert kept == {*NOTICED, "is_everything_doubtful", "doubt_until", "newer_from"}
    volatile = {"ledgers", "pending_drops", "pending_seal", "pending_token", "shown"}
    assert {*BookieLogState.__slots__} - volatile == {*LogSnapshot._fields} - {"log_id"}
    held_by_the_journal = {"pending", "stored"}
    of_this_start = {"loss_count"}  # a damage mark has the number of the start, too
    kept_of_ledgers = {*LedgerState.__slots__} - held_by_the_journal - of_this_start
    assert kept_of_ledgers == {*LedgerSnapshot._fields} - {"ledger_id"}
