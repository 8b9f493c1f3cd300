"""A core client that is closed with anything under way leaves nothing behind, and tells everybody.

In a loop over closings in every state, on real bookies and ZooKeeper: no task outlives the client,
the event loop has nothing to complain of, and whoever waits for an append is told. What the client
does while it is open: `test_core_client`. Source: docs/sdk.md, ADR 0013.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from duramen.client import DuramenError, Uncertain
from duramen.client.core import CoreClient
from tests.complaints import hear_complaints
from tests.pauses import let_pass
from tests.process.cluster import LocalCluster, create_log, run, running_plain_cluster
from tests.process.core_clients import connect, paused, read_by_rest
from tests.process.times import HANG_S

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]

Leaving = Callable[[CoreClient, str], Awaitable[None]]

LEAVES = 3
"""What is seen at most closings is seen in three of each kind."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    flags = ("--bookies", "4", "--no-restart")
    with running_plain_cluster(tmp_path_factory.mktemp("leaving") / "c", *flags) as started:
        yield started


async def leave_at_once(_core: CoreClient, _log: str) -> None:
    """Nothing was begun."""


async def leave_a_log_that_was_closed(core: CoreClient, log: str) -> None:
    async with core.open_log("default", log) as owned:
        for _ in range(50):
            _ = await owned.send(b"x" * 1_000)


async def leave_with_appends_under_way(core: CoreClient, log: str) -> None:
    owned = await core.open_log("default", log).__aenter__()
    for _ in range(200):
        _ = await owned.send(b"x" * 1_000)


async def leave_a_quiet_log_open(core: CoreClient, log: str) -> None:
    owned = await core.open_log("default", log).__aenter__()
    await owned.append(b"x")


async def leave_while_it_is_opened(core: CoreClient, log: str) -> None:
    core_log = core.open_log("default", log)
    opening = asyncio.create_task(core_log.__aenter__())
    for _ in range(5):
        await asyncio.sleep(0)
    opening.add_done_callback(lambda ended: ended.cancelled() or ended.exception())


async def leave_a_reader_that_was_closed(core: CoreClient, log: str) -> None:
    async for _ in core.log("default", log).read("head"):
        break


async def leave_a_reader_that_follows(core: CoreClient, log: str) -> None:
    async def follow() -> None:
        async for _ in core.log("default", log).read("tail", follow=True):
            pass

    following = asyncio.create_task(follow())
    await core.log("default", log).tail()
    following.cancel()


async def leave_readers_that_go_as_they_come(core: CoreClient, log: str) -> None:
    """Each asks, and has gone before it is answered; what they share goes on."""
    asking = [
        asyncio.create_task(ask)
        for _ in range(5)
        for ask in (core.log("default", log).tail(), anext(core.log("default", log).read("head")))
    ]
    for _ in range(3):
        await asyncio.sleep(0)
    for task in asking:
        task.cancel()


LEAVINGS = (
    leave_at_once, leave_a_log_that_was_closed, leave_with_appends_under_way,
    leave_a_quiet_log_open, leave_while_it_is_opened, leave_a_reader_that_was_closed,
    leave_a_reader_that_follows, leave_readers_that_go_as_they_come,
)  # fmt: skip


@pytest.mark.parametrize("is_bookie_gone", [False, True])
def test_a_client_leaves_nothing_behind(cluster: LocalCluster, *, is_bookie_gone: bool) -> None:
    """No task of it outlives it, and the loop complains of nothing, whatever was under way."""

    async def leave(kind: Leaving, log: str) -> list[str]:
        others = asyncio.all_tasks()
        async with hear_complaints() as heard:
            async with connect(cluster) as core:
                await kind(core, log)
            if left := asyncio.all_tasks() - others:
                _, late = await asyncio.wait(left, timeout=HANG_S)
                assert not late, late
        return heard

    async def scenario() -> None:
        for kind in LEAVINGS:
            log = f"{kind.__name__}-{is_bookie_gone}"
            await create_log(cluster, log, {})
            async with connect(cluster) as core, core.open_log("default", log) as owned:
                await owned.append([b"x"] * 50)
            for _ in range(LEAVES):
                assert await leave(kind, log) == [], kind.__name__

    name = cluster.ids("bookie")[-1]
    if is_bookie_gone:
        cluster.kill(name)
    try:
        run(scenario())
    finally:
        if is_bookie_gone:
            cluster.revive(name)
            cluster.wait_ready(name)


def test_what_was_unsettled_when_the_client_left_is_told(cluster: LocalCluster) -> None:
    async def scenario() -> None:
        await create_log(cluster, "unsettled", {})
        async with connect(cluster) as core:
            owned = await core.open_log("default", "unsettled").__aenter__()
            await owned.append(b"0")
            with paused(cluster, "bookie"):
                ticket = owned.append(b"1")
                await let_pass(0.1, what="it is on its way")
                await core.__aexit__(None, None, None)
                with pytest.raises(Uncertain):
                    await ticket
            with pytest.raises(DuramenError, match="its client was closed"):
                _ = owned.append(b"2")
            with pytest.raises(DuramenError, match="its client was closed"):
                await owned.__aexit__(None, None, None)
        bodies = [record.body for record in await read_by_rest(cluster, "unsettled")]
        assert bodies in ([b"0"], [b"0", b"1"])

    run(scenario())
