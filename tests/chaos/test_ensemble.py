"""Three ZooKeeper servers: what is written survives the loss of any one, and it comes back.

Called a region's ZooKeeper member by the runs. The servers are real, from the product's own
embedded configuration of an ensemble. Source: docs/protocol/placement.md "When a region is lost".
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from duramen.runtime.stores.metadata_store import OutcomeUnknown, SessionState, Unavailable
from duramen.runtime.stores.zookeeper_store import ZooKeeperStore
from tests.chaos.ensemble import Ensemble
from tests.chaos.waiting import wait_at_most
from tests.waiting import comes_true

IDS = ["zookeeper-0", "zookeeper-1", "zookeeper-2"]
START_S = 120.0
SESSION_S = 20.0

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]


class Town:
    """An ensemble whose members stay down while they are held."""

    def __init__(self, folder: Path) -> None:
        self.held: set[str] = set()
        self.events: list[tuple[str, str]] = []
        self.ensemble = Ensemble(
            folder, IDS, may_start=self._wait,
            on_started=lambda node_id: self.events.append(("started", node_id)),
            on_exited=lambda node_id: self.events.append(("exited", node_id)),
        )  # fmt: skip

    def kill(self, node_id: str) -> None:
        self.held.add(node_id)
        (pid,) = (pid for pid, name in self.ensemble.pids().items() if name == node_id)
        os.kill(pid, signal.SIGKILL)

    async def wait_late(self, ids: list[str]) -> bool:
        return await comes_true(lambda: self.ensemble.late() == ids, START_S)

    async def _wait(self, node_id: str) -> None:
        while node_id in self.held:
            await wait_at_most(0.05)


async def lose_each_in_turn(folder: Path) -> None:
    town = Town(folder)
    store = ZooKeeperStore(town.ensemble.address, session_timeout_s=SESSION_S)
    try:
        await town.ensemble.start(START_S)
        await store.start()
        await store.create("/kept", b"0")
        session = store.session_id
        for version, node_id in enumerate(IDS):
            town.kill(node_id)
            assert await town.wait_late([node_id]), node_id
            await write(store, version)
            town.held.discard(node_id)
            assert await town.wait_late([]), node_id
        found = await store.get("/kept")
        assert found is not None and found.data == b"3"
        assert store.session_id == session and store.session is SessionState.CONNECTED
        assert town.events.count(("exited", IDS[0])) == 1
    finally:
        await store.close()
        await town.ensemble.stop()
    assert not town.ensemble.pids()


async def write(store: ZooKeeperStore, version: int) -> None:
    """As soon as there is a leader again and the session has found it."""
    data = str(version + 1).encode()
    async with asyncio.timeout(START_S):
        while True:
            try:
                await store.sync("/kept")
                found = await store.get("/kept")
                assert found is not None
                if found.data == data:
                    return  # by a try whose answer was lost
                await store.set("/kept", data, version=version)
            except (Unavailable, OutcomeUnknown):
                await wait_at_most(0.1)
            else:
                return


@pytest.mark.timeout(400)
def test_an_ensemble_survives_the_loss_of_any_one_member(tmp_path: Path) -> None:
    asyncio.run(lose_each_in_turn(tmp_path))
