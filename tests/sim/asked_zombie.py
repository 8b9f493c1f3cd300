"""A zombie that is asked: nobody told it of its successor, and a client knows nobody else.

    1  the owner gets no appends any more, so that all that it has sent is acknowledged
    2  it is cut off from bookies, metadata store and sequencers; another one takes the log over
    3  the new owner acknowledges appends
    4  a client whose proxy has an old roster asks the old owner under a condition that fails

The old owner's view of the log is old, and it misses no bookie yet. Without an ack round it would
refuse, and say where the log ended once. In ordinary runs nobody turns to it: proxies that reach it
keep it busy, so that it soon misses its bookies and judges nothing.

Called by `nemesis`; the clients are made by `run`. Documented in docs/testing.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from duramen.ids import LogId
from duramen.units import MS
from tests.sim.exact_clients import ExactClient
from tests.sim.network import STORE, Network
from tests.sim.sequencers import SequencerNode
from tests.sim.world import World

_REST_US: Final = 150 * MS
"""What the owner has sent is acknowledged."""

_APPENDS_US: Final = (300 * MS, 600 * MS, 900 * MS, 1_100 * MS)
_ASKED_US: Final = 1_200 * MS
_CUT_US: Final = 3_000 * MS
"""No session ends meanwhile."""


class AskedZombie:
    """Carries out the fault of the module's head.

    Args:
        askers: asks the new owner, asks the old one; empty where this never happens.
        clients: names of all others.
    """

    def __init__(
        self,
        world: World,
        *,
        network: Network,
        bookies: Sequence[str],
        clients: Sequence[str],
        sequencers: Mapping[str, SequencerNode],
        askers: Sequence[ExactClient],
        find_owner: Callable[[LogId], SequencerNode | None],
    ) -> None:
        self._world = world
        self._network = network
        self._bookies = bookies
        self._clients = clients
        self._sequencers = sequencers
        self._askers = askers
        self._find_owner = find_owner
        self._free_us = 0
        self._is_over = False

    def stop(self) -> None:
        """The faults are over."""
        self._is_over = True

    def begin(self, log_id: LogId) -> bool:
        """Begin with one log; False: there was nothing to do."""
        world, owner = self._world, self._find_owner(log_id)
        others = [each for each in self._sequencers.values() if each is not owner and each.is_up]
        if owner is None or owner.is_paused or not others or world.now_us < self._free_us:
            return False
        self._free_us = world.now_us + _CUT_US
        for client in self._clients:
            self._network.cut(client, owner.name, self._free_us)
        world.at(_REST_US, self._take_over, log_id, owner, world.rng.choice(others))
        return True

    def _take_over(self, log_id: LogId, owner: SequencerNode, taker: SequencerNode) -> None:
        if self._is_over or taker.is_paused or not taker.is_up:
            return
        for name in (*self._bookies, *self._sequencers, STORE):
            self._network.cut(owner.name, name, self._free_us)
            self._network.cut(name, owner.name, self._free_us)
        taker.run(taker.life, taker.disturb, log_id, "take over")
        at_taker, at_owner = self._askers
        at_taker.proxy.know_only(taker.name)
        at_owner.proxy.know_only(owner.name)
        for delay_us in _APPENDS_US:
            self._world.at(delay_us, self._ask, at_taker.append_plain, log_id)
        self._world.at(_ASKED_US, self._ask, at_owner.append_at_end, log_id)

    def _ask(self, append: Callable[[LogId], None], log_id: LogId) -> None:
        if not self._is_over:
            self._world.counts[f"asked zombie: {append.__name__}"] += 1
            append(log_id)
