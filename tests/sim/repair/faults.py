"""What goes wrong, and what people ask for, where there is repair: part of `nemesis`.

Bookies are drained, called back, and taken away for good once they are drained (their disks are
gone at that moment: nothing may depend on them), and others join. Bookies stay away for longer than
the grace, disks are lost while copies of others are being made, a whole region is down or cut off,
listings come back empty, and the auditor dies: anywhere, right after a swap took effect, or while
a copy is stored. Where an owner's segment is being repaired, a member of its last fragment dies, so
that the owner changes its ensemble at the same time.

Called by `nemesis`. Documented in docs/testing.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from duramen.core.duty import Duty
from duramen.core.flexible.segment import AnySegment
from duramen.core.segment import Segment, SegmentState
from duramen.ids import LedgerId, Member
from duramen.units import MS, SECOND
from duramen.wire.metadata_json import read_bookie
from duramen.wire.repair_calls import Pull
from tests.sim.metadata import PATHS, Store
from tests.sim.network import STORE, Network
from tests.sim.processes import BookieNode
from tests.sim.repair.seat import PACE
from tests.sim.sequencers import SequencerNode
from tests.sim.world import Node, World

_AWAY_US: Final = (PACE.grace_us, 4 * PACE.grace_us)
_SOON_US: Final = (100 * MS, 3 * SECOND)
_LISTED: Final = ("", "/bookies", "/segments", "/segments", "/repair")
"""What is listed in vain: everything, or what has this in its path."""

_FORGET_AGAIN_US: Final = 2 * SECOND


class RepairFaults:
    """Carries out the faults of `options.REPAIR_FAULTS`.

    Args:
        segments: every segment node, as it is.
        replace: loses a bookie's disk, if the budget allows.
        on_lost: told of incarnations whose disk is gone.
        on_pulled: told when, and of which ledger copies are asked for.
        trap: a sequencer dies of a commit of this kind, and comes back after a while.
    """

    def __init__(
        self,
        world: World,
        *,
        network: Network,
        store: Store,
        bookies: Mapping[str, BookieNode],
        sequencers: Mapping[str, SequencerNode],
        segments: Mapping[LedgerId, AnySegment],
        replace: Callable[[BookieNode, int], bool],
        on_lost: Callable[[Member], None],
        on_pulled: Callable[[int, LedgerId], None],
        trap: Callable[[str, str, int], None],
    ) -> None:
        self._world = world
        self._network = network
        self._store = store
        self._bookies = bookies
        self._sequencers = sequencers
        self._segments = segments
        self._replace = replace
        self._on_lost = on_lost
        self._on_pulled = on_pulled
        self._trap = trap
        self._racing_us = 0
        network.on_pull = self._on_pull

    def carry_out(self, fault: str, span_us: int, bookie: BookieNode) -> bool:
        """Carry out one fault; False: there was nothing to do."""
        auditor = self._find_auditor()
        match fault:
            case "bookie drained" if auditor is not None and not bookie.is_removed:
                self._ask(auditor, "drain", bookie=bookie.name)
            case "drain cancelled" if auditor is not None:
                leaving = self._list_with(Duty.DRAINING, Duty.LEAVING)
                if not leaving:
                    return False
                name = self._world.rng.choice(leaving).name
                self._ask(auditor, "cancel_drain", bookie=name)
            case "bookie removed":
                return self._remove()
            case "bookie long away" if not bookie.is_removed:
                bookie.crash(is_power_cut=self._world.chance(0.5))
                self._world.at(self._world.between(*_AWAY_US), bookie.start)
            case "lost again":
                return self._lose_again(bookie, span_us)
            case "rebalance asked" if auditor is not None:
                request = {"tolerance": 0.05}
                auditor.run(auditor.life, self._ask_seat, auditor, "start_rebalance", request)
            case "region lost":
                self._lose_region(bookie.region, span_us)
            case "listings empty" if auditor is not None and self._world.chance(0.5):
                # Whoever believed it would see nothing on a bookie that is to go.
                self._empty_listings("/segments", 1.0, 4 * PACE.interval_us + span_us)
                self._ask(auditor, "drain", bookie=bookie.name)
            case "listings empty":
                part, ratio = self._world.rng.choice(_LISTED), self._world.rng.choice((0.3, 1.0))
                lasts_us = span_us + self._world.between(0, 4 * PACE.interval_us)
                self._empty_listings(part, ratio, lasts_us)
            case "auditor killed" if auditor is not None:
                self._end_auditor(auditor, span_us)
            case "killed at a swap" if auditor is not None:
                self._trap(auditor.name, "copies swapped", span_us)
            case "killed at a copy":
                for each in self._bookies.values():
                    if self._world.chance(0.5):
                        each.lose_power_at("copy")
            case "change races a swap":
                self._racing_us = self._world.now_us + 20 * SECOND
            case _:
                return False
        return True

    # --- Whom ------------------------------------------------------------------------------------

    def _find_auditor(self) -> SequencerNode | None:
        for sequencer in self._sequencers.values():
            if sequencer.is_up and sequencer.seat is not None and sequencer.seat.is_leader:
                return sequencer
        return None

    def _list_with(self, *duties: Duty) -> list[BookieNode]:
        found = []
        for bookie in self._bookies.values():
            stored = self._store.find(PATHS.bookie(bookie.member.bookie))
            if stored is not None and not bookie.is_removed:
                node = read_bookie(stored.data)
                if node.incarnation == bookie.member.incarnation and node.duty in duties:
                    found.append(bookie)
        return found

    def _ask(self, auditor: SequencerNode, operation: str, **request: str) -> None:
        auditor.run(auditor.life, self._ask_seat, auditor, operation, request)

    @staticmethod
    def _ask_seat(auditor: SequencerNode, operation: str, request: dict[str, object]) -> None:
        if auditor.seat is not None:
            auditor.seat.ask(operation, request)

    # --- What people ask for ---------------------------------------------------------------------

    def cancel_drains(self) -> bool:
        """Call every bookie back that is being drained; False: none is."""
        leaving = self._list_with(Duty.DRAINING, Duty.LEAVING, Duty.DRAINED)
        auditor = self._find_auditor()
        for bookie in leaving if auditor is not None else ():
            assert auditor is not None
            self._ask(auditor, "cancel_drain", bookie=bookie.name)
        return bool(leaving)

    def _remove(self) -> bool:
        """Take a drained bookie away for good, with its disks; another one joins."""
        drained = self._list_with(Duty.DRAINED)
        if not drained:
            return False
        bookie = self._world.rng.choice(drained)
        self._world.note("nemesis", "removes", bookie.name)
        bookie.crash(is_power_cut=True)
        bookie.is_removed = True
        bookie.session.force_expiry()
        self._on_lost(bookie.member)
        self._world.at(PACE.grace_us, self._forget, bookie.member)
        spares = [other for other in self._bookies.values() if other.is_spare]
        for spare in spares[:1]:
            self._world.counts["bookie joined"] += 1
            spare.is_spare = spare.is_removed = False
            self._world.at(self._world.between(*_SOON_US), spare.start)
        return True

    def _forget(self, member: Member) -> None:
        """An operator has the cluster forget a bookie, until it has: its node goes."""
        stored = self._store.find(PATHS.bookie(member.bookie))
        if stored is None:
            return
        auditor = self._find_auditor()
        if auditor is not None:
            incarnation = member.incarnation
            self._ask(auditor, "accept_loss", bookie=member.bookie, incarnation=incarnation)
        self._world.at(_FORGET_AGAIN_US, self._forget, member)

    # --- What goes wrong -------------------------------------------------------------------------

    def _empty_listings(self, part: str, ratio: float, lasts_us: int) -> None:
        """So many listings of paths with this in them come back empty, for a while."""
        self._store.empty_listings = part, ratio
        self._world.at(lasts_us, setattr, self._store, "empty_listings", ("", 0.0))

    def _lose_again(self, bookie: BookieNode, span_us: int) -> bool:
        """A disk is lost, and soon another, or another bookie is away for long."""
        if bookie.is_removed or not self._replace(bookie, span_us):
            return False
        others = [each for each in self._bookies.values() if each is not bookie]
        other = self._world.rng.choice(others)
        self._world.at(self._world.between(*_SOON_US), self._lose_second, other, span_us)
        return True

    def _lose_second(self, bookie: BookieNode, span_us: int) -> None:
        if bookie.is_removed:
            return
        if self._replace(bookie, span_us):
            self._world.counts["disk lost during repair"] += 1
        else:
            bookie.crash(is_power_cut=True)
            self._world.at(self._world.between(*_AWAY_US), bookie.start)

    def _lose_region(self, region: str, span_us: int) -> None:
        """All that is in a region is down, or cut off from everything else."""
        everybody: Sequence[Node] = [*self._bookies.values(), *self._sequencers.values()]
        inside = [node for node in everybody if node.region == region]
        span_us += self._world.between(0, 2 * PACE.grace_us)
        if self._world.chance(0.5):
            for node in inside:
                if isinstance(node, BookieNode):
                    node.crash(is_power_cut=True)
                elif isinstance(node, SequencerNode):
                    node.crash()
                self._world.at(span_us + self._world.between(0, SECOND), node.start)
            return
        until_us = self._world.now_us + span_us
        for node in inside:
            outside = [other.name for other in everybody if other.region != region]
            for name in (*outside, STORE):
                self._network.cut(node.name, name, until_us)
                self._network.cut(name, node.name, until_us)

    def _end_auditor(self, auditor: SequencerNode, span_us: int) -> None:
        match self._world.rng.choice(("killed", "killed", "asleep", "session")):
            case "killed":
                auditor.crash()
                self._world.at(span_us, auditor.start)
            case "asleep" if not auditor.is_paused:
                auditor.pause()
                self._world.at(span_us + 3 * SECOND, _wake, auditor, auditor.life)
            case _:
                auditor.session.force_expiry()

    def _on_pull(self, pull: Pull) -> None:
        """A copy begins to be made: of an open segment, perhaps its owner has to change too."""
        self._on_pulled(self._world.now_us, pull.ledger_id)
        segment = self._segments.get(pull.ledger_id)
        if self._world.now_us >= self._racing_us or not isinstance(segment, Segment):
            return
        if segment.state is not SegmentState.OPEN:
            return
        self._racing_us = 0
        name = self._world.rng.choice(segment.last_fragment.ensemble).bookie
        self._world.counts["change raced a swap"] += 1
        bookie = self._bookies[name]
        bookie.crash(is_power_cut=False)
        self._world.at(self._world.between(*_SOON_US), bookie.start)


def _wake(node: Node, life: int) -> None:
    if node.life == life:
        node.resume()
