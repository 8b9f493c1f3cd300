"""The simulated metadata store keeps the port's promise of order, however late its answers are.

Not here: what it does to nodes, sessions and watches, which production code meets in every run.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest

from duramen.runtime.stores.metadata_store import Conflict, ConflictKind, Stored
from duramen.units import MS, SECOND
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
    answers: list[tuple[int, object]] = []

    async def note(number: int, request: Coroutine[Any, Any, object]) -> None:
        try:
            answers.append((number, await request))
        except Conflict as conflict:
            answers.append((number, conflict.kind))

    requests: list[tuple[Coroutine[Any, Any, object], object]] = []
    for version in range(12):
        requests += [
            (session.get(_PATH), Stored(b"", version, 0, 0)),
            (session.set(_PATH, b"", version=version), version + 1),
            (session.children(_PATH), ()),
            (session.get(_PATH), Stored(b"", version + 1, 0, 0)),
            (session.set(_PATH, b"", version=version), ConflictKind.BAD_VERSION),
            (session.sync(_PATH), None),
        ]

    def ask() -> None:
        for number, (request, _) in enumerate(requests):
            node.loop.run_task(note(number, request))

    node.run(node.life, ask)
    world.advance(10 * SECOND)
    assert answers == [(n, expected) for n, (_, expected) in enumerate(requests)]
