"""Work that fails when nobody waits for it any more: told to nobody, and the loop says nothing.

Each place where one task serves several, or is given up by the one that it served, is played with
its failure after the last one has gone; `hear_complaints` hears what the loop would print. Source:
docs of `duramen.runtime.shared_tasks`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from duramen.client.bulk_append import BatchSource, BulkAppender
from duramen.core.placement.node_states import NodeStates
from duramen.core.reading.effects import SendRead
from duramen.errors import DuramenError
from duramen.ids import BookieId, EntryId, Epoch, Incarnation, LedgerId, LogId, Member
from duramen.runtime.reading.bookies import Bookies, RangeFetcher
from duramen.runtime.reading.cache import EntryCache
from duramen.runtime.reading.metadata import LogFollower
from duramen.runtime.sequencer.bookie_lanes import BookieLanes
from duramen.runtime.sequencer.node_watch import NodeWatch
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.wire.metadata_json import Paths
from duramen_bookie.upkeep.pacing import run_in_thread
from duramen_sequencer.ownership.probes import Probes
from tests.complaints import hear_complaints
from tests.moved_log import make_segment_nodes

MEMBER = Member(BookieId("a"), Incarnation("aa" * 16))


class Gate:
    """Work that begins, and fails when it is told to."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.begun = asyncio.Event()
        self.opened = asyncio.Event()

    async def fail(self, *_: Any, **__: Any) -> Any:
        self.begun.set()
        await self.opened.wait()
        raise self.error

    async def give_up(self, asking: asyncio.Task[Any]) -> None:
        """Whoever asked goes while it is under way; then it fails."""
        await self.begun.wait()
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
        self.opened.set()


def play(scenario: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        async with hear_complaints() as heard:
            await asyncio.wait_for(scenario(), 30)
        assert heard == []

    asyncio.run(run())


def test_the_loop_is_heard() -> None:
    """What the other tests would see without the mending."""

    async def run() -> None:
        async with hear_complaints() as heard:
            gate = Gate(KeyError("nobody"))
            task = asyncio.create_task(gate.fail())
            asking = asyncio.create_task(cast("Any", asyncio.wait([task])))
            await gate.give_up(asking)
            del task, asking
        assert len(heard) == 1 and "never retrieved" in heard[0], heard

    asyncio.run(run())


def test_a_read_of_metadata() -> None:
    async def scenario() -> None:
        gate = Gate(DuramenError("metadata_unavailable", "the store is closed"))
        store, paths = MemoryStore(MemoryTree()), Paths("c")
        follower = LogFollower(store, paths, LogId(1), make_segment_nodes(store, paths))
        follower._read = gate.fail  # type: ignore[method-assign]
        await gate.give_up(asyncio.create_task(follower.refresh(Epoch(1))))

    play(scenario)


def test_a_request_to_a_bookie() -> None:
    class Replicas:
        order: Any = None

        def __init__(self, gate: Gate) -> None:
            self.read_ranges = gate.fail

    async def scenario() -> None:
        gate = Gate(RuntimeError("the connection pool is gone"))
        fetcher = RangeFetcher(cast("Bookies", Replicas(gate)), EntryCache())
        first = EntryId(0)
        read = SendRead(0, MEMBER, LedgerId(1 << 32 | 1), first, first, 1, 1_000_000)
        await gate.give_up(asyncio.create_task(fetcher.fetch(read)))

    play(scenario)


def test_a_look_at_a_process() -> None:
    async def scenario() -> None:
        gate = Gate(RuntimeError("no such address family"))
        probes = Probes()
        probes._look = gate.fail  # type: ignore[method-assign]
        await gate.give_up(asyncio.create_task(probes.is_refused("http://127.0.0.1:1")))

    play(scenario)


def test_work_in_a_thread_that_was_cancelled() -> None:
    async def scenario() -> None:
        begun, opened = threading.Event(), threading.Event()

        def work() -> None:
            begun.set()
            opened.wait()
            raise OSError("the disk failed")

        working = asyncio.create_task(run_in_thread(work))
        await asyncio.to_thread(begun.wait)
        working.cancel()
        asyncio.get_running_loop().call_soon(opened.set)
        with pytest.raises(asyncio.CancelledError):
            await working

    play(scenario)


def test_the_batch_behind_one_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Source:
        def __init__(self) -> None:
            self.count = 0

        def next_batch(self) -> Any:
            self.count += 1
            if self.count > 1:
                raise OSError("the input cannot be read")
            return object()

        def close(self) -> None:
            pass

    async def refuse(*_: Any, **__: Any) -> None:
        raise DuramenError("log_not_found", "it is gone")

    async def scenario() -> None:
        appender = BulkAppender(cast("Any", None), "ns", "log", timeout_s=1)
        monkeypatch.setattr(appender, "_append", refuse)
        with pytest.raises(DuramenError, match="log_not_found"):
            await appender.run(cast("BatchSource", Source()))

    play(scenario)


def test_lanes_that_stop_end_what_is_under_way_and_begin_nothing() -> None:
    async def scenario() -> None:
        lanes = BookieLanes(cast("Any", None), lambda _: None, NodeWatch(NodeStates()))
        gate = Gate(RuntimeError("never"))
        lanes.spawn(gate.fail())
        await gate.begun.wait()
        await lanes.stop()
        assert not lanes._tasks
        gate.begun.clear()
        lanes.spawn(gate.fail())
        await asyncio.sleep(0)
        assert not gate.begun.is_set() and not lanes._tasks

    play(scenario)
