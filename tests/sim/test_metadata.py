"""The simulated metadata store keeps the port's promise of order, however late its answers are.

Not here: what it does to nodes, sessions and watches, which production code meets in every run.
"""

from __future__ import annotations

from typing import cast

import pytest

from duramen.runtime.stores.metadata_store import MetadataStore
from duramen.units import MS, SECOND
from tests.request_order import RequestOrder
from tests.sim.metadata import Store, StoreSession
from tests.sim.network import Network
from tests.sim.options import draw_options
from tests.sim.world import Node, World

_PATH = "/queue"


@pytest.mark.parametrize("seed", range(1, 4))
def test_requests_are_carried_out_and_answered_in_their_order(seed: int) -> None:
    world, options = World(seed), draw_options(seed)
    store = Store(world, Network(world, options), options, lambda *_: None)
    store.put(_PATH)
    store.unknown_ratio, store.stale_us, store.slow_us = 0.0, 1 * SECOND, 20 * MS
    node = Node(world, "s1", "r1")
    node.begin_life()
    session = StoreSession(store, node, lambda _: None, lambda: None)
    session.open()
    order = RequestOrder(cast(MetadataStore, session), _PATH)

    def ask() -> None:
        for request in order.requests:
            node.loop.run_task(request)

    node.run(node.life, ask)
    world.advance(10 * SECOND)
    order.check()
