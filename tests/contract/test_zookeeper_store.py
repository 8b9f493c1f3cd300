"""ZooKeeper behind the metadata store's port: servers that are frozen, killed or behind.

What every store promises: `test_metadata_store`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from duramen.cluster.layout import pick_free_port
from duramen.runtime.embedded_zookeeper import (
    EmbeddedServerError,
    EmbeddedZooKeeper,
    find_jars,
    server_command,
)
from duramen.runtime.stores.metadata_store import (
    MetadataStore,
    OutcomeUnknown,
    SessionState,
    Stored,
    Unavailable,
)
from duramen.runtime.stores.zookeeper_store import ZooKeeperStore
from tests.contract.conftest import CALL_TIMEOUT_S, Story, ZooKeeperBench, wait_reads
from tests.ticker import Ticker, running_ticker
from tests.zookeeper_fixture import run

CUT_CALL_TIMEOUT_S = 5.0
"""Of a store whose server is paused: an fsync on a busy machine takes less."""

NOTICED_S = 1.0
"""What a call may take beyond its time-out."""


async def _fails_in_time(store: MetadataStore, path: str, ticker: Ticker) -> None:
    started_s = time.monotonic()
    with pytest.raises(OutcomeUnknown):
        await store.set(path, b"x", version=0)
    with pytest.raises(Unavailable):
        await store.get(path)
    bound_s = 2 * (CUT_CALL_TIMEOUT_S + NOTICED_S)
    ticker.require_within(started_s, bound_s, "two calls of a paused server")


@pytest.mark.zookeeper
def test_a_paused_server_costs_a_time_out_and_no_more(
    own_zookeeper: EmbeddedZooKeeper, tmp_path: Path
) -> None:
    async def scenario() -> None:
        store = ZooKeeperStore(
            own_zookeeper.address, call_timeout_s=CUT_CALL_TIMEOUT_S, session_timeout_s=40.0
        )
        await store.start()
        await store.create("/n", b"")
        assert own_zookeeper.pid is not None
        os.kill(own_zookeeper.pid, signal.SIGSTOP)
        with running_ticker(tmp_path) as ticker:
            await _fails_in_time(store, "/n", ticker)
        os.kill(own_zookeeper.pid, signal.SIGCONT)
        await wait_reads(store)
        found = await store.get("/n")  # the request that timed out was sent, and is applied late
        assert found == Stored(b"x", 1, 0, 0)
        await store.close()

    run(scenario())


@pytest.mark.zookeeper
def test_a_killed_server_is_found_again_with_its_data(own_zookeeper: EmbeddedZooKeeper) -> None:
    async def scenario() -> None:
        store = ZooKeeperStore(own_zookeeper.address, session_timeout_s=20.0)
        await store.start()
        await store.create("/n", b"durable")
        await store.create("/mine", b"", ephemeral=True)
        story, session_id = Story(store), store.session_id
        await own_zookeeper.kill()
        assert own_zookeeper.pid is None
        await story.wait_states(SessionState.SUSPENDED)
        with pytest.raises(Unavailable):
            await store.set("/n", b"x", version=0)
        await own_zookeeper.start()
        await story.wait_states(SessionState.SUSPENDED, SessionState.CONNECTED)
        assert store.session_id == session_id
        assert await store.get("/n") == Stored(b"durable", 0, 0, 0)
        assert await store.children("/") == ("mine", "n", "zookeeper")
        await own_zookeeper.stop()
        await story.wait_states(SessionState.CONNECTED, SessionState.SUSPENDED)
        await store.close()  # bounded although nobody answers
        assert own_zookeeper.pid is None

    run(scenario())


@pytest.mark.zookeeper
def test_a_dead_connection_thread_is_replaced(zookeeper: EmbeddedZooKeeper) -> None:
    async def scenario() -> None:
        store = ZooKeeperStore(zookeeper.address, call_timeout_s=CALL_TIMEOUT_S)
        await store.start()
        story, session_id = Story(store), store.session_id
        assert await store.get("/") is not None
        seen_zxid = store._client.last_zxid
        # No request has this shape, so kazoo's loop raises what it does not catch.
        store._client._queue.append((object(), None))
        store._client._connection._write_sock.send(b"\0")
        await story.wait_states(SessionState.LOST, SessionState.CONNECTED)
        assert store.session_id not in {0, session_id}
        assert store._client.last_zxid >= seen_zxid > 0, "reads could step back"
        assert await store.get("/") is not None
        await store.close()

    run(scenario())


@pytest.mark.zookeeper
def test_reads_do_not_step_back_when_a_session_has_expired(zookeeper: EmbeddedZooKeeper) -> None:
    async def scenario() -> None:
        bench = ZooKeeperBench(zookeeper.address)
        store = await bench.open_store()
        assert isinstance(store, ZooKeeperStore)
        assert await store.get("/") is not None
        story, seen_zxid = Story(store), store._client.last_zxid
        await bench.expire(store)
        await story.wait_states(SessionState.LOST, SessionState.CONNECTED)
        assert store._client.last_zxid >= seen_zxid > 0, "a server that is behind took us"
        await bench.close()

    run(scenario())


@pytest.mark.zookeeper
def test_many_calls_wait_their_turn(zookeeper: EmbeddedZooKeeper) -> None:
    async def scenario() -> None:
        store = ZooKeeperStore(zookeeper.address, in_flight_max_count=4, call_timeout_s=60.0)
        await store.start()
        answers = asyncio.gather(*(store.get("/") for _ in range(100)))
        peak = 0
        while not answers.done():
            await asyncio.sleep(0)  # each turn of the loop: an answer cannot come and go unseen
            peak = max(peak, store.statistics()["in_flight"])
        assert len(await answers) == 100
        assert peak == 4
        await store.close()

    run(scenario())


@pytest.mark.zookeeper
def test_start_without_a_server_is_bounded_and_may_be_repeated(tmp_path: Path) -> None:
    async def scenario() -> None:
        port = pick_free_port()
        server = EmbeddedZooKeeper(tmp_path / "zk", port, log_file=tmp_path / "log")
        store = ZooKeeperStore(server.address, call_timeout_s=0.2)
        with pytest.raises(Unavailable):
            await store.start()
        with pytest.raises(Unavailable):
            await store.get("/")
        await server.start()
        try:
            with pytest.raises(EmbeddedServerError, match="taken"):
                await EmbeddedZooKeeper(tmp_path, port, log_file=tmp_path / "log").start()
            await wait_reads(store)
            await store.start()
        finally:
            await store.close()
            await server.stop()
        log = (tmp_path / "log").read_text()
        assert "ClassNotFound" not in log
        assert "NoClassDef" not in log

    run(scenario())


def test_the_command_is_pure(tmp_path: Path) -> None:
    command = server_command(tmp_path / "java", [tmp_path / "a.jar", tmp_path / "b.jar"])
    assert command[0] == str(tmp_path / "java")
    assert f"{tmp_path}/a.jar:{tmp_path}/b.jar:./tls/duramen-access.jar" in command
    assert command[-1] == "./zoo.cfg"
    assert len(find_jars()) == 15
