"""Control calls for a log whose owner has died, with its session or some seconds before it ends.

Hosts on one store in memory before a bookie that does everything at once (`host_world`); on the
dead one's port nothing listens. Whom a proxy asks, and what it tells them: `test_control_routing`.
Source: docs/protocol/ownership.md "Failure detection".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from duramen.core.hashing import rank_nodes
from duramen.core.log_node import LogNode
from duramen.core.sequencer.log_state import LogState
from duramen.errors import DuramenError
from duramen.ids import Epoch, LogId
from duramen.runtime.http_client import PeerClient
from duramen.runtime.metadata_log.entry_reads import open_segment_nodes
from duramen.runtime.sequencer.metadata_link import MetadataLink
from duramen.wire.metadata_json import read_log
from duramen.wire.sequencer_calls import AppendedBatch
from duramen_sequencer.fencing import set_token
from duramen_sequencer.life.boundaries import Boundaries
from duramen_sequencer.life.operations import LifeOperations
from duramen_sequencer.log_changes import LogChanges
from tests.component.host_world import PATHS, HostWorld, host_world
from tests.waiting import wait_for

LOG = LogId(9)
PENDING_OWNER, DEAD = rank_nodes("ns/log", {"s0": 1.0, "s1": 1.0})

Operation = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


class Survivor:
    """The control operations of the sequencer that is left."""

    def __init__(self, world: HostWorld, client: PeerClient) -> None:
        host, store = world.hosts[PENDING_OWNER], world.stores[PENDING_OWNER]
        self._world = world
        self.host = host
        link = MetadataLink(store, PATHS, host.sequencer_id, "http://next")
        lanes = cast(Any, world.lanes[PENDING_OWNER])
        boundaries = Boundaries(open_segment_nodes(store, PATHS, lanes), lanes)
        life = LifeOperations(host, link, boundaries)
        changes = LogChanges(store, PATHS, host, client)

        async def fence(request: dict[str, Any]) -> dict[str, Any]:
            return await set_token(host, {**request, "token": "t"})

        self.by_name: dict[str, Operation] = {**life.by_name, "roll": changes.roll, "fence": fence}

    async def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """The answer, asked again while it is `log_unavailable` because the log is being closed."""
        while True:
            try:
                return await self.by_name[op]({"log_id": str(LOG), **fields})
            except DuramenError as error:
                if error.code != "log_unavailable" or "taken over" not in error.detail:
                    raise
            await wait_for(lambda: LOG not in self.host.drivers)

    async def log(self) -> LogNode:
        stored = await self._world.setup.get(PATHS.log(LOG))
        assert stored is not None
        return read_log(stored.data)


@asynccontextmanager
async def survived(*, is_session_over: bool) -> AsyncIterator[Survivor]:
    """A log with one open epoch, whose owner is gone."""
    client = PeerClient()
    async with host_world() as world:
        await world.add_log(LOG)
        # Its port is one on which nothing listens.
        dead = await world.add_host(DEAD)
        assert isinstance(await world.append(dead, LOG), AppendedBatch)
        await world.add_host(PENDING_OWNER)
        if is_session_over:
            await world.stores[DEAD].close()
            sequencers = world.hosts[PENDING_OWNER].claims
            await wait_for(lambda: sequencers.url_of(DEAD) is None)
        try:
            yield Survivor(world, client)
        finally:
            await client.close()


def play(scenario: Callable[[Survivor], Awaitable[None]], *, is_session_over: bool) -> None:
    async def run() -> None:
        async with survived(is_session_over=is_session_over) as survivor:
            await scenario(survivor)

    asyncio.run(run())


@pytest.mark.parametrize("is_session_over", [False, True])
@pytest.mark.parametrize("is_forwarded", [False, True])
def test_a_roll_closes_what_a_dead_owner_left(is_session_over: bool, is_forwarded: bool) -> None:
    async def scenario(survivor: Survivor) -> None:
        tried = [DEAD] if is_forwarded and not is_session_over else []
        answer = await survivor.ask("roll", forwarded=is_forwarded, tried=tried)
        assert answer == {"epoch": 1}, "it is open, whoever opened it"
        await wait_for(lambda: survivor.host.drivers[LOG].core.state is LogState.ACTIVE)
        assert (await survivor.log()).unclosed_epochs == (Epoch(2),), "and the next one is open"

    play(scenario, is_session_over=is_session_over)


@pytest.mark.parametrize("is_session_over", [False, True])
@pytest.mark.parametrize(
    ("op", "fields", "result"),
    [
        ("end", {}, "ended"),
        ("delete", {}, "undelete_until"),
        ("truncate", {"to": "head"}, "head"),
        ("fence", {}, "tail"),
    ],
)
def test_what_only_an_owner_does_does_not_wait_for_a_dead_ones_session(
    op: str, fields: dict[str, Any], result: str, is_session_over: bool
) -> None:
    async def scenario(survivor: Survivor) -> None:
        assert result in await survivor.ask(op, tried=[DEAD], **fields)

    play(scenario, is_session_over=is_session_over)


def test_an_owner_that_nobody_found_dead_is_believed() -> None:
    async def scenario(survivor: Survivor) -> None:
        for op in ("end", "delete", "fence"):
            answer = await survivor.ask(op)
            assert answer["redirect"]["sequencer_id"] == DEAD
        assert (await survivor.log()).unclosed_epochs == (Epoch(1),)

    play(scenario, is_session_over=False)


@pytest.mark.parametrize("tried", ["s1", [1], {"s1": 1}, None])
@pytest.mark.parametrize("op", ["end", "truncate", "fence", "roll"])
def test_nonsense_in_the_place_of_who_was_tried_is_refused(op: str, tried: object) -> None:
    async def scenario(survivor: Survivor) -> None:
        with pytest.raises(DuramenError) as caught:
            await survivor.ask(op, tried=tried, to="head")
        assert (caught.value.code, caught.value.field) == ("invalid_argument", "tried")

    play(scenario, is_session_over=False)
