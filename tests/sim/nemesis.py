"""Nemesis: what goes wrong when, within the fault budget of the seed.

Faults come at random intervals from those that the seed has drawn. The budget is what replication
promises to survive: disks lost or damaged, counted over incarnations and for the whole run, are at
most Qa − 1 of the log with the smallest Qa. Everything that loses nothing (kills, power cuts,
pauses, cuts, silence) has no budget. A seed beyond the budget loses more: then the system may
refuse for ever, but it may not lie.

Called by `run`. Source: docs/testing.md "A run". Documented in docs/testing.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from duramen.core.flexible.segment import AnySegment
from duramen.ids import LedgerId, LogId, Member, is_metadata_log
from duramen.units import MS, SECOND
from tests.sim.asked_zombie import AskedZombie
from tests.sim.exact_clients import ExactClient
from tests.sim.log_kinds import copies_of
from tests.sim.long_sleeps import LongSleeps
from tests.sim.members.faults import GossipFaults
from tests.sim.metadata import Store
from tests.sim.network import STORE, Network
from tests.sim.options import (
    ASKED_ZOMBIE,
    ASLEEP,
    BODY_ROTS,
    FULL_DISK,
    GOSSIP_FAULTS,
    STAGED_FAULTS,
    Options,
)
from tests.sim.processes import BookieNode
from tests.sim.repair.copies import CopyJudge
from tests.sim.repair.faults import RepairFaults
from tests.sim.sequencers import SequencerNode
from tests.sim.staged_faults import StagedFaults, ack_quorum_of
from tests.sim.world import Node, World

FAULT_US_MAX: Final = 12 * SECOND
_FREE_RATIOS: Final = (0.04, 0.01, 0.0)
_NOTICED_US: Final = 1_500 * MS
"""A bookie looks at its disks once a second."""

_PARTED_US_MAX: Final = 3 * SECOND
"""A server that has lost the others closes its connections within a session's time."""

LOST_AFTER_US: Final = 30 * SECOND
"""When a disk counts as lost: no answer that it gave is still on its way by then, so that what is
acknowledged on the strength of such an answer is not held against the writer."""

TRANSITIONS: Final = ("opened", "ensemble changed", "ensemble changed", "marked", "closed")
"""Commits that a sequencer may die of, right after they took effect and before it learns so."""

RECORDED: Final = "recorded"
"""Another one, where there are metadata logs: a keeper has closed an epoch of one, and what it
recorded there is to leave next. Among the closes of all logs a trap would rarely meet it."""


class SealCut(NamedTuple):
    """Where the seals of a taker will not arrive, and how long the owner sleeps meanwhile."""

    log_id: LogId
    owner: str
    bookies: tuple[str, ...]
    asleep_us: int


class Nemesis:
    """Breaks things until it is told to stop.

    Args:
        askers: two clients of a fault that needs them; empty: it never happens.
        on_gone, on_lost: told of incarnations whose disk is gone: at once, and when it counts.
        on_pulled: told when, and of which ledger copies are asked for.
        judge: where there is repair: when everything is whole again the budget begins anew.
    """

    def __init__(
        self,
        world: World,
        *,
        options: Options,
        network: Network,
        store: Store,
        bookies: dict[str, BookieNode],
        sequencers: dict[str, SequencerNode],
        segments: Mapping[LedgerId, AnySegment],
        on_gone: Callable[[Member], None],
        on_lost: Callable[[Member], None],
        on_pulled: Callable[[int, LedgerId], None],
        judge: CopyJudge,
        sleeps: LongSleeps,
        askers: Sequence[ExactClient],
    ) -> None:
        self.world = world
        self.budget = min(map(copies_of, options.logs)) - 1
        if options.is_beyond_budget:
            self.budget += 2
        self.hurt: list[Member] = []
        self._options = options
        self._network = network
        self._store = store
        self._bookies = bookies
        self._sequencers = sequencers
        self._on_gone, self._on_lost = on_gone, on_lost
        self._judge = judge
        self.repair = RepairFaults(
            world, network=network, store=store, bookies=bookies, sequencers=sequencers,
            segments=segments, replace=self._replace, on_lost=self._lose, trap=self._set_trap,
            on_pulled=on_pulled,
        )  # fmt: skip
        self.staged = StagedFaults(
            world, network=network, bookies=bookies, sequencers=sequencers,
            find_owner=self._find_owner, pause=self._pause, may_hurt=self._may_hurt,
        )  # fmt: skip
        self.asked = AskedZombie(
            world, network=network, bookies=list(bookies), sequencers=sequencers, askers=askers,
            clients=[f"c{number}" for number in range(options.client_count + 1)],
            find_owner=self._find_owner,
        )  # fmt: skip
        self.gossip = GossipFaults(
            world, network=network, bookies=bookies, sequencers=sequencers,
            find_owner=self._find_owner, pause=self._pause,
        )  # fmt: skip
        self._sleeps = sleeps
        self._is_over = False
        self._traps: dict[str, tuple[str, bool, int]] = {}
        self._seal_cuts: dict[str, SealCut] = {}
        if options.faults:
            world.at(world.between(500 * MS, 2 * options.calm_us), self._strike)

    def stop(self) -> None:
        """The faults are over."""
        self._is_over = True
        self.staged.stop()
        self.asked.stop()
        self.gossip.stop()
        self._sleeps.stop()
        self._traps.clear()
        self._seal_cuts.clear()
        self._store.slow_us = 0

    def on_transition(self, author: str, transition: str, log_id: LogId) -> None:
        """A commit of this sequencer took effect: perhaps it is the one that it dies of."""
        if transition == "marked":
            self._cut_seals(author, log_id)
        if transition == "closed" and is_metadata_log(log_id):
            transition = RECORDED
        wanted, is_fatal, span_us = self._traps.get(author, ("", False, 0))
        if wanted != transition:
            return
        del self._traps[author]
        self.world.counts[f"trap: {transition}"] += 1
        sequencer = self._sequencers[author]
        if is_fatal:
            sequencer.crash()
            self.world.at(span_us, sequencer.start)
        else:
            self._pause(sequencer, span_us)

    def on_cover(self, author: str, log_id: LogId) -> None:
        """The seals of this sequencer cover: now it reads, and it reaches everybody again."""
        self.staged.on_cover(author, log_id)
        seal_cut = self._seal_cuts.get(author)
        if seal_cut is not None and seal_cut.log_id == log_id:
            del self._seal_cuts[author]
            for bookie in seal_cut.bookies:
                self.world.counts["cut from a seal"] += self._network.mend(author, bookie)

    # --- Choice ----------------------------------------------------------------------------------

    def _strike(self) -> None:
        if self._is_over:
            return
        world = self.world
        fault = world.rng.choice(self._options.faults)
        span_us = min(world.between(50 * MS, 2 * self._options.fault_us), FAULT_US_MAX)
        bookie = world.rng.choice(list(self._bookies.values()))
        sequencer = world.rng.choice(list(self._sequencers.values()))
        if self._carry_out(fault, span_us, bookie, sequencer):
            world.counts[f"fault: {fault}"] += 1
        world.at(world.between(20 * MS, 2 * self._options.calm_us), self._strike)

    def _carry_out(
        self, fault: str, span_us: int, bookie: BookieNode, sequencer: SequencerNode
    ) -> bool:
        world = self.world
        log_id = LogId(1 + world.rng.randrange(len(self._options.logs)))
        world.note("nemesis", fault, bookie.name, sequencer.name, log_id, span_us)
        match fault:
            case "bookie killed" | "bookie power cut":
                self._crash(bookie, span_us, is_power_cut=fault == "bookie power cut")
            case "all bookies power cut":
                for each in self._bookies.values():
                    self._crash(each, world.between(50 * MS, 3 * SECOND), is_power_cut=True)
            case "bookie stopped":
                bookie.stop()
                world.at(span_us, bookie.start)
            case "sync fails":
                bookie.disk.fails_next_sync = True
            case "disk slow":
                bookie.disk.slow_us = world.rng.choice((30 * MS, 400 * MS, 3 * SECOND))
                world.at(span_us, setattr, bookie.disk, "slow_us", 0)
            case "bits flip":
                if bookie.is_removed or not self._may_hurt(bookie.member):
                    return False
                return bookie.disk.rot() is not None
            case "disk replaced":
                return self._replace(bookie, span_us)
            case "late adds":
                return self._race_late_adds(log_id)
            case "bookie paused":
                self._pause(bookie, span_us)
            case "sequencer killed":
                sequencer.crash()
                world.at(span_us, sequencer.start)
            case "sequencer paused":
                self._pause(sequencer, span_us + 3 * SECOND)
            case "sequencer stopped":
                sequencer.stop()
                world.at(span_us + 10 * SECOND, sequencer.start)
            case "rolling suspended":
                for other in self._sequencers.values():
                    other.run(other.life, other.suspend, span_us)
            case "reconfigured":
                sequencer.run(sequencer.life, sequencer.reconfigure, log_id)
            case _:
                return self._carry_out_more(fault, span_us, bookie, sequencer, log_id)
        return True

    def _carry_out_more(
        self,
        fault: str,
        span_us: int,
        bookie: BookieNode,
        sequencer: SequencerNode,
        log_id: LogId,
    ) -> bool:
        world, network = self.world, self._network
        until_us = world.now_us + span_us
        match fault:
            case "partition":
                self._cut_both(sequencer.name, bookie.name, until_us)
            case "one-way cut":
                pair = [sequencer.name, bookie.name]
                world.rng.shuffle(pair)
                network.cut(pair[0], pair[1], until_us)
            case "node cut off":
                name = world.rng.choice((sequencer.name, bookie.name))
                for other in (*self._bookies, *self._sequencers, STORE):
                    self._cut_both(name, other, until_us)
            case "regions cut":
                self._cut_regions(until_us)
            case "store cut off":
                name = world.rng.choice((sequencer.name, sequencer.name, bookie.name))
                self._cut_both(name, STORE, until_us)
            case "link clogged":
                network.clog(sequencer.name, bookie.name, until_us)
                network.clog(bookie.name, sequencer.name, until_us)
            case "killed at a commit" | "paused at a commit":
                recorded = [RECORDED] * self._options.has_metadata_logs
                transition = world.rng.choice((*TRANSITIONS, *recorded))
                is_fatal = fault == "killed at a commit"
                self._traps[sequencer.name] = (transition, is_fatal, span_us)
            case "store slow":
                self._store.slow_us = world.rng.choice((20 * MS, 200 * MS, 700 * MS))
                world.at(span_us, setattr, self._store, "slow_us", 0)
            case "members parted":
                names = [n for n in (*self._sequencers, *self._bookies) if world.chance(0.5)]
                self._store.part(names, world.now_us + min(span_us, _PARTED_US_MAX))
            case "store down":
                self._store.down_until_us = until_us
            case "session expires":
                world.rng.choice((sequencer, sequencer, bookie)).session.force_expiry()
            case "early takeover":
                what = world.rng.choice(("take over", "take over", "close orphan"))
                sequencer.run(sequencer.life, sequencer.disturb, log_id, what)
            case "takeover race":
                self._race(log_id, span_us, sequencer)
            case "roll asked":
                for each in self._sequencers.values():
                    if log_id in each.drivers:
                        each.run(each.life, each.disturb, log_id, "roll")
            case "log closed":
                sequencer.run(sequencer.life, sequencer.disturb, log_id, "close")
            case "handed over":
                owner = self._find_owner(log_id) or sequencer
                owner.run(owner.life, owner.hand_over, log_id)
            case _:
                return self._hand_on(fault, span_us, bookie, log_id)
        return True

    def _hand_on(self, fault: str, span_us: int, bookie: BookieNode, log_id: LogId) -> bool:
        """Faults that have a module of their own."""
        if fault in (*STAGED_FAULTS, BODY_ROTS):
            return self.staged.carry_out(fault, log_id)
        if fault == ASKED_ZOMBIE:
            return self.asked.begin(log_id)
        if fault in GOSSIP_FAULTS:
            return self.gossip.carry_out(fault, span_us, log_id)
        if fault == FULL_DISK:
            self._fill(bookie, span_us)
            return True
        if fault == ASLEEP:
            return self._sleeps.begin()
        return self.repair.carry_out(fault, span_us, bookie)

    # --- How -------------------------------------------------------------------------------------

    def _crash(self, bookie: BookieNode, span_us: int, *, is_power_cut: bool) -> None:
        draw = self.world.rng.random()
        if draw < 0.4:
            bookie.crash_in_commit(is_power_cut=is_power_cut)
            return
        if draw < 0.6:
            bookie.crash_in_upkeep(is_power_cut=is_power_cut)
            return
        bookie.crash(is_power_cut=is_power_cut)
        self.world.at(span_us, bookie.start)

    def _pause(self, node: Node, span_us: int) -> None:
        node.pause()
        self.world.at(min(span_us, FAULT_US_MAX), self._resume, node, node.life)

    @staticmethod
    def _resume(node: Node, life: int) -> None:
        if node.life == life:
            node.resume()

    def _race(self, log_id: LogId, span_us: int, taker: SequencerNode) -> None:
        """Another takes over while the owner is slow or asleep. Each of the two reaches a part of
        the bookies only, and some lose power while a seal is on its way to their disk."""
        world, network = self.world, self._network
        owners = [other for other in self._sequencers.values() if other is not taker]
        asleep_us = world.between(50 * MS, 900 * MS) if world.chance(0.5) else 0
        until_us = world.now_us + asleep_us + min(span_us, 1200 * MS)
        for name, bookie in self._bookies.items():
            soon_us = world.now_us + world.between(5 * MS, 400 * MS)
            if world.chance(0.35):
                network.cut(taker.name, name, world.rng.choice((soon_us, until_us)))
            elif world.chance(0.4):
                bookie.lose_power_at(world.rng.choice(("seal", "write back")))
            if world.chance(0.4):
                for owner in owners:
                    network.clog(owner.name, name, world.rng.choice((soon_us, until_us)))
        for owner in owners:
            if asleep_us and not owner.is_paused:
                self._pause(owner, asleep_us)
        rotten = world.rng.choice(list(self._bookies.values()))
        is_rotting = world.chance(0.3) and not rotten.is_removed
        if is_rotting and self._may_hurt(rotten.member):
            rotten.disk.rot(is_recent=True)
        delay_us = world.between(0, 100 * MS)
        world.at(delay_us, taker.run, taker.life, taker.disturb, log_id, "take over")
        if world.chance(0.4):
            self._end_early(taker, delay_us, log_id, world.rng.choice(owners))

    def _end_early(
        self, taker: SequencerNode, delay_us: int, log_id: LogId, pending_owner: SequencerNode
    ) -> None:
        """The one who takes over dies in the middle of it, and another goes on."""
        world = self.world
        self._traps[taker.name] = ("ensemble changed", True, world.between(100 * MS, 2 * SECOND))
        death_us = delay_us + world.between(5 * MS, 600 * MS)
        world.at(death_us, taker.run, taker.life, taker.crash)
        world.at(death_us + world.between(100 * MS, 2 * SECOND), taker.start)
        pending_owner_us = death_us + world.between(0, 300 * MS)
        world.at(
            pending_owner_us,
            pending_owner.run,
            pending_owner.life,
            pending_owner.disturb,
            log_id,
            "take over",
        )

    def _race_late_adds(self, log_id: LogId) -> bool:
        """Another takes over while adds of the owner are late and some of the seals do not arrive.

        The owner reaches fewer members than an acknowledgement needs; what it sends to the others
        arrives about as much later as a takeover takes. The taker is cut off from as many of these
        as a cover may lack, and only while it seals: then its reads must do what no seal did (R14).
        """
        world = self.world
        owner = self._find_owner(log_id)
        if owner is None:
            return False
        writer = owner.drivers[log_id].core.writer
        assert writer is not None
        taker = world.rng.choice([each for each in self._sequencers.values() if each is not owner])
        names = [member.bookie for member in writer.segment.members]
        world.rng.shuffle(names)
        spare = ack_quorum_of(writer.segment) - 1
        late = names[1 + world.rng.randrange(spare) :]
        delay_us = world.between(20 * MS, 300 * MS)
        for name in late:
            late_us = delay_us + world.between(30 * MS, 500 * MS)
            self._network.clog(owner.name, name, world.now_us + late_us)
        unsealed = tuple(late[: 1 + world.rng.randrange(spare)])
        # Awake, it would send more to the members that are sealed and learn of its end from them.
        asleep_us = world.between(100 * MS, 900 * MS) if world.chance(0.8) else 0
        self._seal_cuts[taker.name] = SealCut(log_id, owner.name, unsealed, asleep_us)
        world.at(delay_us, taker.run, taker.life, taker.disturb, log_id, "take over")
        return True

    def _find_owner(self, log_id: LogId) -> SequencerNode | None:
        """The one that appends to the newest epoch."""
        owners = []
        for sequencer in self._sequencers.values():
            driver = sequencer.drivers.get(log_id)
            if sequencer.is_up and driver is not None and driver.core.writer is not None:
                owners.append((driver.core.writer.segment.epoch, sequencer))
        return max(owners, key=itemgetter(0))[1] if owners else None

    def _cut_seals(self, author: str, log_id: LogId) -> None:
        """A taker's MARK took effect: next it seals."""
        seal_cut = self._seal_cuts.get(author)
        if seal_cut is None or seal_cut.log_id != log_id:
            return
        for bookie in seal_cut.bookies:
            self._network.cut(author, bookie, self.world.now_us + SECOND)
        owner = self._sequencers[seal_cut.owner]
        if seal_cut.asleep_us and owner.is_up and not owner.is_paused:
            self._pause(owner, seal_cut.asleep_us)

    def _set_trap(self, name: str, transition: str, span_us: int) -> None:
        self._traps[name] = (transition, True, span_us)

    def _may_hurt(self, member: Member) -> bool:
        """Whether the budget allows to damage this incarnation; it is charged if so."""
        if member not in self.hurt:
            if len(self.hurt) >= self.budget:
                if not self._options.has_repair or not self._judge.is_restored(self.hurt):
                    return False
                self.world.counts["restored in the middle"] += 1
                self.hurt.clear()
            self.hurt.append(member)
        return True

    def _replace(self, bookie: BookieNode, span_us: int) -> bool:
        if bookie.is_removed or not self._may_hurt(bookie.member):
            return False
        member = bookie.member
        bookie.crash(is_power_cut=True)
        bookie.session.force_expiry()
        bookie.format()
        self._lose(member)
        self.world.at(span_us, bookie.start)
        return True

    def _fill(self, bookie: BookieNode, span_us: int) -> None:
        """Nearly full, full, or without a byte for another file; others may follow."""
        disk = bookie.disk
        disk.fill(self.world.rng.choice(_FREE_RATIOS))
        self.world.at(span_us + _NOTICED_US, disk.empty)
        if self.world.chance(0.3):
            other = self.world.rng.choice(list(self._bookies.values()))
            self.world.at(0, self._fill, other, span_us)

    def _lose(self, member: Member) -> None:
        self._on_gone(member)
        self.world.at(LOST_AFTER_US, self._on_lost, member)

    def _cut_both(self, one: str, other: str, until_us: int) -> None:
        self._network.cut(one, other, until_us)
        self._network.cut(other, one, until_us)

    def _cut_regions(self, until_us: int) -> None:
        """Between the regions nothing goes; the store is in the first one."""
        nodes = [*self._bookies.values(), *self._sequencers.values()]
        for one in nodes:
            for other in nodes:
                if one.region != other.region:
                    self._network.cut(one.name, other.name, until_us)
            if one.region != "r0":
                self._cut_both(one.name, STORE, until_us)
