"""A closed flexible segment, its bookies, and repairers that are interrupted anywhere.

Each repairer is a generator that stops wherever others may come between: before each call, and
before each compare-and-set. Faults come at these points too: damage that is noticed, replaced
disks, restarts that lose what was torn, bookies that leave, move, are full or come back, and trims.
After every change of the map the world looks at what really lies on the disks. Source: R26,
docs/protocol/repair.md "Repair of a flexible segment".
"""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from duramen.core.duty import Duty
from duramen.core.flexible.nodeset import NodesetRow, ServingBookie
from duramen.core.flexible.property import ReplicationProperty
from duramen.core.flexible.repair.attempt import (
    AttemptEnd,
    CopyOrders,
    HoldingsQuestion,
    MarkQuestion,
    RepairAttempt,
    RowAddition,
)
from duramen.core.flexible.repair.evidence import DamageMark, EntryRange, Evidence
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.flexible.segment_changes import find_frozen_faults, find_map_faults
from duramen.core.repair.cluster_view import BookieState, ClusterView, CopyFate
from duramen.core.repair.copies import Holdings, Piece
from duramen.core.segment_base import Totals
from duramen.ids import BookieId, EntryId, Epoch, Incarnation, LogId, Member
from duramen.units import SECOND

FAULT_US: Final = 10 * SECOND
"""What a fault takes: whoever sleeps over one has lost its session."""
SESSION_US: Final = 4 * SECOND

Steps = Generator[None]


class WorldFault(AssertionError):
    """Something is on the disks, or in the node, that must not be."""


class UndoneError(AssertionError):
    """Nothing fails any more, and repair has come to no end."""


@dataclass(slots=True)
class Disk:
    """One bookie, and what it has of the ledger."""

    name: str
    rack: str
    life: int = 1
    copies: dict[int, int] = field(default_factory=dict)
    """Identity of each entry that can be read."""
    unknown: set[int] = field(default_factory=set)
    start: int = 0
    damage_count: int = 0
    duty: Duty = Duty.SERVING
    is_up: bool = True
    is_full: bool = False
    absent_since_us: int | None = None

    @property
    def member(self) -> Member:
        return Member(BookieId(self.name), Incarnation(f"{self.life:04x}{self.name:0>28}"))

    @property
    def node(self) -> ServingBookie:
        return ServingBookie(BookieId(self.name), "eu", self.rack, self.member.incarnation)

    @property
    def mark(self) -> DamageMark:
        return DamageMark(self.start << 32 | self.damage_count)

    @property
    def state(self) -> BookieState:
        return BookieState(
            self.member, "eu", self.rack, 1.0, self.duty,
            self.duty if self.is_up else None, is_writable=self.is_up,
            absent_since_us=self.absent_since_us, data_url="up" if self.is_up else "",
        )  # fmt: skip

    def lose(self, entry: int) -> None:
        """It cannot be read any more, and the bookie knows."""
        if self.copies.pop(entry, None) is not None:
            self.unknown.add(entry)
            self.damage_count += 1


class RepairWorld:
    """One segment of entries 0 … `last_entry`, in a cluster of bookies over three racks.

    Args:
        is_bound_to_session: the metadata store refuses changes of a session that is over.
        has_only_drains: bookies are drained and put back, and nothing else happens.
    """

    def __init__(
        self,
        rng: random.Random,
        *,
        bookie_count: int = 7,
        last_entry: int = 5,
        wanted: ReplicationProperty | None = None,
        holes: tuple[tuple[int, int], ...] = (),
        is_bound_to_session: bool = True,
        has_only_drains: bool = False,
    ) -> None:
        self.rng = rng
        self.now_us = 1_000 * SECOND
        self.is_bound_to_session = is_bound_to_session
        self._has_only_drains = has_only_drains
        self.disks = {f"b{n}": Disk(f"b{n}", f"k{n % 3}") for n in range(bookie_count)}
        self.retired: dict[Member, Disk] = {}
        self.first_needed = 0
        self.change_count = 0
        self.moved_us = 0
        """When a bookie was moved last."""
        wanted = wanted or ReplicationProperty(2, 2)
        spelt = tuple((EntryId(first), EntryId(last)) for first, last in holes)
        self.segment = self._make(wanted, last_entry, spelt)
        self._store_waves(wanted)

    def _make(
        self,
        wanted: ReplicationProperty,
        last_entry: int,
        holes: tuple[tuple[EntryId, EntryId], ...],
    ) -> FlexibleSegment:
        nodes = [self.disks[f"b{n}"].node for n in range(min(4, len(self.disks)))]
        opened = FlexibleSegment.opened(
            LogId(7), Epoch(1), wanted, nodes,
            ack_mode="out_of_order", placement="strict", created_unix_ms=1, nonce="o",
        )  # fmt: skip
        return opened.marked("m").closed_by_recovery(
            last_entry=EntryId(last_entry), totals=Totals(100, 10_000), start_seq_num=0,
            completed_unix_ms=2, nonce="c", holes=holes,
        )  # fmt: skip

    def _store_waves(self, wanted: ReplicationProperty) -> None:
        rows = list(self.segment.nodes)
        for entry in self.needed_entries():
            chosen: list[NodesetRow] = []
            while not wanted.is_satisfied_by(row.node for row in chosen):
                chosen = self.rng.sample(rows, wanted.node)
            for row in chosen:
                self.disks[row.node.bookie].copies[entry] = 1_000 + entry
        # What a writer that was fenced left behind, in holes and behind the end.
        end = (self.segment.last_entry or 0) + 1
        for first, last in (*self.segment.holes, (end, end)):
            for entry in range(first, last + 1):
                self.disks[self.rng.choice(rows).node.bookie].copies[entry] = 9_000 + entry

    # --- What is true ----------------------------------------------------------------------------

    def list_needed(self) -> list[EntryRange]:
        assert self.segment.last_entry is not None
        return self.segment.list_present(EntryId(self.first_needed), self.segment.last_entry)

    def needed_entries(self) -> list[int]:
        return [e for first, last in self.list_needed() for e in range(first, last + 1)]

    def disk_of(self, row: NodesetRow) -> Disk | None:
        """The disks that a row names, if they are there still."""
        disk = self.disks.get(row.node.bookie)
        return disk if disk is not None and disk.member == row.member else None

    def holders(self, entry: int) -> list[tuple[NodesetRow, Disk]]:
        pairs = [(row, self.disk_of(row)) for row in self.segment.nodes]
        return [(row, disk) for row, disk in pairs if disk is not None and entry in disk.copies]

    def is_held(self, entry: int, *, is_place_known: bool = True) -> bool:
        """Whether RP holds, by the map's places and by the true ones."""
        held = self.holders(entry)
        wanted = self.segment.replication
        is_held = wanted.is_satisfied_by(row.node for row, _ in held)
        return is_held and (
            not is_place_known
            or wanted.is_satisfied_by(replace(row.node, rack=disk.rack) for row, disk in held)
        )

    def view(self) -> ClusterView:
        lost = [member.incarnation for member in self.retired]
        return ClusterView(
            {disk.member.bookie: disk.state for disk in self.disks.values()},
            lost=frozenset(lost), accepted=frozenset(lost), watched_since_us=0,
            now_us=self.now_us, grace_us=3 * FAULT_US,
        )  # fmt: skip

    # --- What bookies answer ---------------------------------------------------------------------

    def find_mark(self, member: Member) -> DamageMark | None:
        disk = self.disks.get(member.bookie)
        return disk.mark if disk is not None and disk.is_up and disk.member == member else None

    def take_holdings(self, member: Member, piece: Piece) -> Holdings | None:
        disk = self.disks.get(member.bookie)
        if disk is None or not disk.is_up or disk.member != member:
            return None
        inside = range(piece.first, piece.last + 1)
        return Holdings(
            {EntryId(e): disk.copies[e] for e in inside if e in disk.copies},
            [(EntryId(e), EntryId(e)) for e in inside if e in disk.unknown],
        )

    def pull(self, target: Member, source: Member, entry: int) -> None:
        at, from_ = self.disks.get(target.bookie), self.disks.get(source.bookie)
        if at is None or from_ is None or not (at.is_up and from_.is_up) or at.is_full:
            return
        if at.member != target or from_.member != source or at.duty is not Duty.SERVING:
            return
        if entry not in self.needed_entries() and entry >= self.first_needed:
            raise WorldFault(f"entry {entry} was pulled, and nobody needs it")
        if entry in from_.copies and entry not in at.copies:
            at.copies[entry] = from_.copies[entry]
            at.unknown.discard(entry)

    # --- Metadata --------------------------------------------------------------------------------

    def change(self, after: FlexibleSegment, viewed_us: int | None = None) -> None:
        """A compare-and-set that succeeds.

        Args:
            viewed_us: when its author saw the bookies; None: it needs no evidence. Who moved since
                is the next audit's.
        """
        before, self.segment = self.segment, after
        faults = find_frozen_faults(before, after) + find_map_faults(before, after)
        if faults:
            raise WorldFault(str(faults))
        if viewed_us is None:
            return
        self.change_count += 1
        is_place_known = self.moved_us < viewed_us
        short = [
            entry
            for entry in self.needed_entries()
            if not self.is_held(entry, is_place_known=is_place_known)
        ]
        if short:
            raise WorldFault(f"entries {short} have too few copies left: {before} became {after}")

    # --- Faults ----------------------------------------------------------------------------------

    def break_something(self) -> None:
        """One fault, of those after which every needed entry can still be read at a row."""
        self.now_us += FAULT_US
        disk = self.rng.choice(list(self.disks.values()))
        match 4 if self._has_only_drains else self.rng.randrange(9):
            case 0 | 1 if disk.copies:
                entry = self.rng.choice(list(disk.copies))
                if self._is_spare(entry, disk):
                    disk.lose(entry)
            case 2 if all(self._is_spare(entry, disk) for entry in disk.copies):
                self.retired[disk.member] = disk
                self.disks[disk.name] = Disk(disk.name, disk.rack, disk.life + 1)
            case 3:
                disk.start += 1
                torn = self.rng.choice([*disk.copies, None]) if disk.copies else None
                if torn is not None and self._is_spare(torn, disk):
                    del disk.copies[torn]
                disk.damage_count = 0
            case 4:
                serving = [d for d in self.disks.values() if d.is_up and d.duty is Duty.SERVING]
                if len(serving) > 4 or disk.duty is not Duty.SERVING:
                    disk.duty = Duty.LEAVING if disk.duty is Duty.SERVING else Duty.SERVING
            case 5:
                disk.is_up = not disk.is_up
                disk.absent_since_us = None if disk.is_up else self.now_us
            case 6:
                disk.rack, self.moved_us = f"k{self.rng.randrange(3)}", self.now_us
            case 7:
                disk.is_full = not disk.is_full
            case _:
                last = self.segment.last_entry or 0
                if self.first_needed < last and self.rng.random() < 0.2:
                    self.first_needed += 1

    def _is_spare(self, entry: int, disk: Disk) -> bool:
        others = [one for _, one in self.holders(entry) if one is not disk]
        return bool(others) or entry not in self.needed_entries()

    def heal(self) -> None:
        """Everybody who is not lost comes back; racks are as many as RP asks for."""
        for at, disk in enumerate(self.disks.values()):
            disk.is_up, disk.is_full, disk.absent_since_us = True, False, None
            disk.rack = f"k{at % 3}"
        serving = [d for d in self.disks.values() if d.duty is Duty.SERVING]
        for disk in list(self.disks.values())[: max(0, 5 - len(serving))]:
            disk.duty = Duty.SERVING

    def find_undone(self) -> list[str]:
        """What a repairer should have done once nothing fails any more."""
        view = self.view()
        undone = [
            f"{row.member} is still named"
            for row in self.segment.nodes
            if view.fate(row.member) in {CopyFate.LOST, CopyFate.LEAVING}
        ]
        undone += [f"entry {e} is short" for e in self.needed_entries() if not self.is_held(e)]
        if not self.segment.is_proved:
            undone.append("the segment is not proved")
        undone += [
            f"{row.member} is thought to be elsewhere"
            for row in self.segment.nodes
            if (disk := self.disk_of(row)) is not None and disk.rack != row.node.rack
        ]
        return undone


@dataclass(slots=True)
class Repairer:
    """One who repairs, as drivers are to."""

    world: RepairWorld
    nonce_count: int = 0
    viewed_us: int = 0
    end: AttemptEnd | None = None

    def repair(self) -> Steps:
        """One attempt, and the changes that its evidence allows."""
        world = self.world
        if not world.list_needed():
            return
        view, self.viewed_us = world.view(), world.now_us
        attempt = RepairAttempt(
            world.segment, world.list_needed(), view, view.candidates(), piece_entry_count=3
        )
        yield from self.attempt(attempt)

    def attempt(self, attempt: RepairAttempt) -> Steps:
        """Until evidence is used up, or there is none."""
        yield from self._compare(attempt)
        evidence = self._evidence()
        changes: list[tuple[str, NodesetRow | None]] = [("relocate", None), ("prove", None)]
        changes += [("take_out", row) for row in attempt.going]
        while changes and evidence is not None:
            yield
            if not evidence.is_fresh(self.world.now_us):
                attempt.ask_again()
                yield from self._compare(attempt)
                again = self._evidence()
                evidence = None if again is None else evidence.refreshed(again.asked_us)
                continue
            evidence, is_done = yield from self._change(evidence, *changes[0])
            if is_done:
                changes.pop(0)

    def _evidence(self) -> Evidence | None:
        assert self.end is not None
        return self.end.evidence

    def _compare(self, attempt: RepairAttempt) -> Steps:
        while True:
            attempt.validate()
            step = attempt.next_step()
            match step:
                case MarkQuestion():
                    yield from self._ask_marks(attempt, step)
                case HoldingsQuestion():
                    found = {}
                    for row in step.rows:
                        yield
                        found[row.member] = self.world.take_holdings(row.member, step.piece)
                    attempt.on_holdings({m: held for m, held in found.items() if held is not None})
                case CopyOrders():
                    yield from self._copy(step)
                    attempt.on_copied()
                case RowAddition():
                    yield
                    self._add(step.node)
                    attempt.on_added(self.world.segment)
                case AttemptEnd():
                    self.end = step
                    return

    def _ask_marks(self, attempt: RepairAttempt, step: MarkQuestion) -> Steps:
        yield
        asked_us = self.world.now_us
        marks: dict[Member, DamageMark] = {}
        for row in step.rows:
            mark = self.world.find_mark(row.member)
            if mark is not None:
                marks[row.member] = mark
            yield
        attempt.on_marks(marks, asked_us)

    def _copy(self, step: CopyOrders) -> Steps:
        for order in step.orders:
            assert order.target.number in step.map_numbers
            for first, last in order.ranges:
                for entry in range(first, last + 1):
                    for source in order.sources:
                        yield
                        self.world.pull(order.target.member, source.member, entry)

    def _add(self, node: ServingBookie) -> None:
        segment = self.world.segment
        member = Member(node.bookie, node.incarnation)
        if segment.find_member(member) is None and segment.has_room:
            self.world.change(segment.with_added(node, self._nonce()))

    def _change(
        self, evidence: Evidence, kind: str, row: NodesetRow | None
    ) -> Generator[None, None, tuple[Evidence | None, bool]]:
        """One compare-and-set; what the evidence is worth afterwards, and whether it is done."""
        world = self.world
        sent_us = world.now_us
        yield
        if world.is_bound_to_session and world.now_us - sent_us > SESSION_US:
            return None, False
        segment, needed, nonce = world.segment, world.list_needed(), self._nonce()
        if row is None:
            change = evidence.prove if kind == "prove" else evidence.relocate
            after = change(segment, needed, nonce)
        else:
            after = evidence.take_out(segment, needed, row.number, nonce)
        if after is None:
            if not evidence.holds(segment, needed):
                return evidence.adopt(segment), True
            return evidence, True
        if world.rng.random() < 0.2:
            return evidence, False  # its outcome is unknown, and it was not applied
        world.change(after, self.viewed_us)
        if world.rng.random() < 0.2:
            return evidence, False  # its outcome is unknown, and it was applied
        return evidence.after(after), True

    def _nonce(self) -> str:
        self.nonce_count += 1
        return f"r.{self.nonce_count}"


def play(
    seed: int, *, repairer_count: int = 2, fault_count: int = 8, **options: Any
) -> RepairWorld:
    """A history: repairers and faults in any order, then quiet, until all is done.

    Raises:
        WorldFault: a change left an entry with too few copies, or what nobody needs was copied.
        UndoneError: at the end there is work left.
    """
    rng = random.Random(seed)
    world = RepairWorld(rng, **options)
    running: list[Steps | None] = [None] * repairer_count
    while fault_count or any(running):
        at = rng.randrange(repairer_count)
        if rng.random() < 0.06 and fault_count:
            fault_count -= 1
            world.break_something()
        elif running[at] is None and not fault_count:
            continue  # who is idle begins nothing more, the others come to their end
        else:
            steps = running[at] or Repairer(world).repair()
            running[at] = _go_on(steps, rng.randrange(1, 12))
        if rng.random() < 0.01:
            running[at] = None  # cut off in the middle, and forgotten
    world.heal()
    for _ in range(8):
        for _ in Repairer(world).repair():
            world.now_us += 1
    undone = world.find_undone()
    if undone:
        raise UndoneError(f"{undone} in {world.segment}")
    return world


def _go_on(steps: Steps, step_count: int) -> Steps | None:
    """Some steps of a repairer; None: it has come to its end."""
    for _ in range(step_count):
        if next(steps, steps) is steps:
            return None
    return steps
