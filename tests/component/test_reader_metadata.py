"""What a reader believes of a log's metadata: while it changes, is deleted, or cannot be read.

`LogFollower`, `Catalog` and the synced look of `TailFinder` on a store in memory that can be cut
off and that can lag; the clock stands still. Source: duramen.runtime.reading.metadata, R4,
docs/protocol/metadata.md "Reading", docs/protocol/reading.md "From segment to segment".
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final, cast

import pytest

from duramen.config import parse_log_config
from duramen.core.log_node import Ending, LogNode
from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment, Totals
from duramen.errors import DuramenError
from duramen.ids import BookieId, EntryId, Epoch, Incarnation, LogId, Member
from duramen.runtime.reading import metadata
from duramen.runtime.reading.bookies import Bookies, RangeFetcher
from duramen.runtime.reading.metadata import Catalog, LogFollower
from duramen.runtime.reading.tail import TailFinder
from duramen.runtime.stores.memory_store import MemoryTree
from duramen.runtime.stores.metadata_store import Stored, Watch
from duramen.units import SECOND
from duramen.wire.metadata_json import Paths, encode_log, encode_node, encode_segment
from tests.component.lagging_store import LaggingStore
from tests.component.still_clock import run_still, wait_clock, wait_quiet
from tests.moved_log import make_segment_nodes

PATHS: Final = Paths("c")
LOG: Final = LogId(9)
MEMBERS: Final = tuple(Member(BookieId(n), Incarnation(n.encode().hex() * 16)) for n in "abc")
LOG_NODE: Final = LogNode(LOG, "ns", "log", parse_log_config({}))
RECORD_COUNT: Final = 5
OUTAGE_S: Final = 2.0
AGE_MAX_S: Final = 60


class World:
    """A store with one namespace, and the store of whoever changes its logs."""

    def __init__(self) -> None:
        self.tree = MemoryTree()
        self.store = LaggingStore(self.tree)
        self.others = LaggingStore(self.tree)
        self.catalog = Catalog(self.store, PATHS, make_segment_nodes(self.store, PATHS))

    async def put(self, path: str, data: bytes) -> None:
        found = await self.others.get(path)
        if found is None:
            await self.others.create(path, data, make_parents=True)
        else:
            await self.others.set(path, data, version=found.version)

    async def put_log(self, name: str, log_id: int) -> None:
        await self.put(PATHS.name("ns", name), encode_node({"log_id": str(log_id)}))
        await self.put(PATHS.log(LogId(log_id)), encode_log(LOG_NODE))

    async def remove_name(self, name: str) -> None:
        await self.others.delete(PATHS.name("ns", name), version=0)
        await wait_quiet()

    async def follow(self) -> LogFollower:
        await self.put(PATHS.log(LOG), encode_log(LOG_NODE))
        return self.make_follower()

    def make_follower(self) -> LogFollower:
        return LogFollower(self.store, PATHS, LOG, make_segment_nodes(self.store, PATHS))


def play(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def work() -> None:
        world = World()
        await world.store.start()
        await world.others.start()
        await world.put(PATHS.namespace("ns"), encode_node({"config": {}}))
        await scenario(world)
        await world.store.close()
        await world.others.close()

    run_still(work())


def open_segment(log: LogNode) -> tuple[LogNode, Segment]:
    segment = Segment(LOG, log.next_epoch, Quorum(3, 3, 2), (Fragment(EntryId(0), MEMBERS),))
    return log.with_new_epoch("n"), segment


def close_segment(log: LogNode, segment: Segment) -> tuple[LogNode, Segment]:
    closed = segment.closed(
        last_entry=EntryId(0), totals=Totals(RECORD_COUNT, 50, None, 7),
        start_seq_num=log.totals.record_count, completed_unix_ms=1, nonce="n",
    )  # fmt: skip
    return log.with_clean(closed, "n"), closed


# --- A log's nodes ---


@pytest.mark.parametrize("is_watching", [True, False])
def test_a_deleted_log_is_refused_every_time(is_watching: bool) -> None:
    async def scenario(world: World) -> None:
        follower = await world.follow()
        with follower.subscribe(lambda: None):
            assert await follower.current_log() == LOG_NODE
            if not is_watching:
                follower = world.make_follower()
                assert await follower.current_log() == LOG_NODE
            deleted = LOG_NODE.with_ending(Ending.DELETE, unix_ms=1, nonce="n")
            await world.put(PATHS.log(LOG), encode_log(deleted))
            await wait_quiet()
            for _ in range(2):
                for look in (follower.current_log(), follower.current(Epoch(1))):
                    with pytest.raises(DuramenError) as caught:
                        await look
                    assert caught.value.code == "log_deleted"

    play(scenario)


def spoil(data: bytes) -> bytes:
    """The node as a newer version would write it, whose schema nobody here knows."""
    return data.replace(b'"v":1', b'"v":99')


@pytest.mark.parametrize("is_watching", [True, False])
def test_a_log_node_that_is_not_understood_is_refused_every_time(is_watching: bool) -> None:
    """It says something new, so what is cached is old: it may be truncated or deleted since."""

    async def scenario(world: World) -> None:
        follower = await world.follow()
        watching = follower.subscribe(lambda: None) if is_watching else contextlib.nullcontext()
        with watching:
            assert await follower.current_log() == LOG_NODE
            await world.put(PATHS.log(LOG), spoil(encode_log(LOG_NODE)))
            await wait_quiet()
            for _ in range(2):
                for look in (follower.current_log(), follower.current(Epoch(1))):
                    with pytest.raises(DuramenError, match="not understood"):
                        await look
            await world.put(PATHS.log(LOG), encode_log(LOG_NODE))
            await wait_quiet()
            assert await follower.current_log() == LOG_NODE

    play(scenario)


def test_a_segment_node_that_is_not_understood_is_refused_every_time() -> None:
    async def scenario(world: World) -> None:
        follower = await world.follow()
        log, segment = open_segment(LOG_NODE)
        path = PATHS.segment(LOG, Epoch(1))
        await world.put(PATHS.log(LOG), encode_log(log))
        await world.put(path, encode_segment(segment))
        assert await follower.current(Epoch(1)) == (log, segment)
        await world.put(path, spoil(encode_segment(segment)))
        await wait_quiet()
        for _ in range(2):
            with pytest.raises(DuramenError, match="not understood"):
                await follower.current(Epoch(1))
        await world.put(path, encode_segment(segment))
        await wait_quiet()
        assert await follower.current(Epoch(1)) == (log, segment)

    play(scenario)


@pytest.mark.parametrize("log_id", ["none", None])
def test_a_name_that_leads_nowhere_is_told_so(log_id: str | None) -> None:
    async def scenario(world: World) -> None:
        await world.put(PATHS.name("ns", "spoilt"), encode_node({"log_id": log_id}))
        for _ in range(2):
            with pytest.raises(DuramenError, match="not understood"):
                await world.catalog.find("ns", "spoilt")

    play(scenario)


def test_a_segment_that_was_opened_in_an_outage_is_told_when_it_is_over() -> None:
    async def scenario(world: World) -> None:
        follower = await world.follow()
        told: list[int] = []
        with follower.subscribe(lambda: told.append(1)):
            assert await follower.current(Epoch(1)) == (LOG_NODE, None)
            told.clear()
            world.store.disconnect()
            log, segment = open_segment(LOG_NODE)
            await world.put(PATHS.log(LOG), encode_log(log))
            await world.put(PATHS.segment(LOG, Epoch(1)), encode_segment(segment))
            await wait_clock(asyncio.get_running_loop().time() + OUTAGE_S)
            assert not told, "nobody knows of anything new yet"
            world.store.reconnect()
            await wait_clock(asyncio.get_running_loop().time() + OUTAGE_S)
            assert told
            assert await follower.current(Epoch(1)) == (log, segment)

    play(scenario)


class SilentStore(LaggingStore):
    """Takes reads and answers none, while the session seems to live: ZooKeeper is frozen."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(tree)
        self.thawed = asyncio.Event()
        self.thawed.set()

    async def get(self, path: str, watch: Watch | None = None) -> Stored | None:
        await self.thawed.wait()
        return await super().get(path, watch)


def test_a_look_at_a_frozen_zookeeper_shows_what_is_known() -> None:
    async def scenario(world: World) -> None:
        store = SilentStore(world.tree)
        await store.start()
        log, segment = open_segment(LOG_NODE)
        await world.put(PATHS.log(LOG), encode_log(log))
        await world.put(PATHS.segment(LOG, Epoch(1)), encode_segment(segment))
        follower = LogFollower(store, PATHS, LOG, make_segment_nodes(store, PATHS), age_max_us=0)
        assert await follower.look(Epoch(1)) == (log, segment)
        store.thawed.clear()
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        assert await follower.look(Epoch(1)) == (log, segment), "a watch vouches for it"
        assert loop.time() - begun_s <= 2 * metadata.LOOK_S
        with pytest.raises(DuramenError, match="e2 is needed") as caught:
            await follower.look(Epoch(2))
        assert caught.value.code == "metadata_unavailable"
        store.thawed.set()
        await store.close()

    play(scenario)


def test_a_segment_that_was_closed_since_it_was_read_is_not_believed() -> None:
    """Its end is not known: who reads there would take what it has for all."""

    async def scenario(world: World) -> None:
        log, segment = open_segment(LOG_NODE)
        await world.put(PATHS.log(LOG), encode_log(log))
        await world.put(PATHS.segment(LOG, Epoch(1)), encode_segment(segment))
        follower = world.make_follower()
        await follower.current(Epoch(1))
        log, segment = close_segment(log, segment)
        await world.put(PATHS.segment(LOG, Epoch(1)), encode_segment(segment))
        await world.put(PATHS.log(LOG), encode_log(log))
        await wait_quiet()
        assert await follower.current_log() == log
        world.store.disconnect()
        await wait_quiet()
        with pytest.raises(DuramenError, match="e1 is needed"):
            await follower.current(Epoch(1))
        assert await follower.current_log() == log

    play(scenario)


def test_what_is_known_is_believed_for_so_long_after_it_was_sure() -> None:
    async def scenario(world: World) -> None:
        await world.put_log("log", 1)
        catalog = Catalog(
            world.store,
            PATHS,
            make_segment_nodes(world.store, PATHS),
            age_max_us=AGE_MAX_S * SECOND,
        )
        follower = await catalog.find("ns", "log")
        await follower.current_log()
        loop = asyncio.get_running_loop()
        await wait_clock(loop.time() + 10 * AGE_MAX_S)
        world.store.disconnect()
        await wait_quiet()
        cut_s = loop.time()
        await wait_clock(cut_s + AGE_MAX_S - 1)
        assert await catalog.find("ns", "log") is follower
        assert await follower.current_log() == LOG_NODE
        await wait_clock(cut_s + AGE_MAX_S + 1)
        for look in (catalog.find("ns", "log"), follower.current_log()):
            with pytest.raises(DuramenError, match="at most 60 s are allowed") as caught:
                await look
            assert caught.value.code == "metadata_unavailable"

    play(scenario)


# --- Names ---


def test_a_name_that_was_given_to_another_log_leads_there() -> None:
    async def scenario(world: World) -> None:
        await world.put_log("log", 1)
        assert (await world.catalog.find("ns", "log")).log_id == 1
        await world.remove_name("log")
        with pytest.raises(DuramenError, match="no log ns/log"):
            await world.catalog.find("ns", "log")
        await world.put_log("log", 2)
        assert (await world.catalog.find("ns", "log")).log_id == 2

    play(scenario)


def test_names_and_logs_that_nobody_follows_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many short-lived logs the last ones are kept."""
    monkeypatch.setattr(metadata, "LOGS_MAX", 3)

    async def scenario(world: World) -> None:
        for number in range(1, 10):
            await world.put_log(f"log{number}", number)
            assert (await world.catalog.find("ns", f"log{number}")).log_id == number
            numbers = world.catalog.statistics()
            assert max(numbers.values()) <= 3, numbers

    play(scenario)


def test_a_log_that_is_followed_is_kept_whoever_else_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "LOGS_MAX", 3)

    async def scenario(world: World) -> None:
        await world.put_log("first", 1)
        followed = await world.catalog.find("ns", "first")
        with followed.subscribe(lambda: None):
            for number in range(2, 10):
                await world.put_log(f"log{number}", number)
                await world.catalog.find("ns", f"log{number}")
            assert await world.catalog.find("ns", "first") is followed
        for number in range(2, 10):
            await world.catalog.find("ns", f"log{number}")
        assert await world.catalog.find("ns", "first") is not followed, "nobody follows it any more"

    play(scenario)


# --- A server that lags ---


def test_a_tail_is_that_of_the_newest_epoch_however_old_ones_server_is() -> None:
    """What was acknowledged before the question lies below it."""

    async def scenario(world: World) -> None:
        follower = await world.follow()
        await world.store.fall_behind(PATHS.log(LOG), PATHS.segment(LOG, Epoch(1)))
        log, segment = close_segment(*open_segment(LOG_NODE))
        await world.put(PATHS.segment(LOG, Epoch(1)), encode_segment(segment))
        await world.put(PATHS.log(LOG), encode_log(log))
        assert await follower.current_log() == LOG_NODE, "as its server knows it"
        nobody = cast("Bookies", None), cast("RangeFetcher", None)
        tail = await TailFinder(*nobody).find(follower)
        assert (tail.epoch, tail.entry, tail.seq_num) == (2, 0, RECORD_COUNT)

    play(scenario)


def test_a_name_that_ones_server_does_not_know_yet_is_found() -> None:
    async def scenario(world: World) -> None:
        await world.store.fall_behind(PATHS.name("ns", "log"))
        await world.put_log("log", 1)
        assert (await world.catalog.find("ns", "log")).log_id == 1

    play(scenario)
