"""What gossip is for, and what misleads it: part of `nemesis`.

An owner dozes for less than its session lives, so that it is back while another has its log; one
owner dozes after the other, so that a second hint comes soon. A sequencer is not heard, or hears
nobody, while the metadata store and the clients reach it. The clock that gossip looks at stands
still in one process, and then jumps or lags.

Called by `nemesis`. Source: docs/protocol/members.md "When it is wrong". Documented in
docs/testing.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from duramen.ids import LogId
from duramen.units import MS, SECOND
from tests.sim.members.seats import SimGossiping, SimWitnessing
from tests.sim.network import Network
from tests.sim.processes import BookieNode
from tests.sim.sequencers import SequencerNode
from tests.sim.world import Node, World

_DOZE_US: Final = (SECOND, 3_500 * MS)
"""Long enough to be found away; no session ends of it."""

_TURN_US: Final = (3 * SECOND, 4_500 * MS)
"""From one that falls asleep to the next, which has the log by then if it was awake."""

_DOZER_COUNT: Final = 4


class GossipFaults:
    """What goes wrong where sequencers gossip.

    Args:
        pause: as the nemesis pauses.
    """

    def __init__(
        self,
        world: World,
        *,
        network: Network,
        bookies: Mapping[str, BookieNode],
        sequencers: Mapping[str, SequencerNode],
        find_owner: Callable[[LogId], SequencerNode | None],
        pause: Callable[[Node, int], None],
    ) -> None:
        self._world = world
        self._network = network
        self._bookies = bookies
        self._sequencers = sequencers
        self._find_owner = find_owner
        self._pause = pause
        self._free_us = 0
        self._is_over = False

    def stop(self) -> None:
        """The faults are over."""
        self._is_over = True
        for node in self._list_servers():
            _start_clock(node, node.life, does_jump=True)

    def carry_out(self, fault: str, span_us: int, log_id: LogId) -> bool:
        """Begin one of `GOSSIP_FAULTS`; False: there was nothing to do."""
        match fault:
            case "owner dozes":
                return self._doze(log_id)
            case "owners doze in turn":
                return self._begin_turns(log_id)
            case "sequencer unheard":
                self._silence(span_us)
            case _:
                assert fault == "members' clock stops", fault
                self._stop_clock(span_us)
        return True

    def _doze(self, log_id: LogId) -> bool:
        owner = self._find_owner(log_id)
        if self._is_over or owner is None or owner.is_paused:
            return False
        span_us = self._world.between(*_DOZE_US)
        self._world.note("nemesis", "dozes", owner.name, log_id, span_us)
        self._pause(owner, span_us)
        return True

    def _begin_turns(self, log_id: LogId) -> bool:
        """One after the other, of one log at a time: who never wakes is known to no relay."""
        if self._world.now_us < self._free_us or not self._doze(log_id):
            return False
        self._free_us = self._world.now_us + _DOZER_COUNT * _TURN_US[1]
        self._world.at(self._world.between(*_TURN_US), self._doze_next, log_id, 1)
        return True

    def _doze_next(self, log_id: LogId, dozed_count: int) -> None:
        """Whoever has the log by now, while the one before may be asleep still or awake again."""
        self._doze(log_id)
        if dozed_count + 1 < _DOZER_COUNT:
            turn_us = self._world.between(*_TURN_US)
            self._world.at(turn_us, self._doze_next, log_id, dozed_count + 1)

    def _silence(self, span_us: int) -> None:
        """One direction between a sequencer and all that could speak for it."""
        world = self._world
        sequencer = world.rng.choice(list(self._sequencers.values()))
        is_mute = world.chance(0.5)
        until_us = world.now_us + span_us + SECOND
        for name in (*self._sequencers, *self._bookies):
            if name != sequencer.name:
                link = (sequencer.name, name) if is_mute else (name, sequencer.name)
                self._network.cut(*link, until_us)

    def _list_servers(self) -> list[SequencerNode | BookieNode]:
        return [*self._sequencers.values(), *self._bookies.values()]

    def _stop_clock(self, span_us: int) -> None:
        world = self._world
        node = world.rng.choice(self._list_servers())
        seat = _seat_of(node)
        if seat is not None:
            seat.clock.stop()
            does_jump = world.chance(0.5)
            world.at(span_us, partial(_start_clock, node, node.life, does_jump=does_jump))


def _start_clock(node: SequencerNode | BookieNode, life: int, *, does_jump: bool) -> None:
    seat = _seat_of(node)
    if seat is not None and node.life == life:
        seat.clock.go_on(does_jump=does_jump)


def _seat_of(node: SequencerNode | BookieNode) -> SimGossiping | SimWitnessing | None:
    return node.gossiping if isinstance(node, SequencerNode) else node.witness
