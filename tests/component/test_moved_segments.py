"""Readers of a log of which segment nodes have left ZooKeeper: the same records, positions, rows.

Followers on a store in memory, and a whole read proxy with a metadata log on its bookies.
Source: docs/protocol/metadata-logs.md "Reading", R4.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from duramen.core.log_node import Ending
from duramen.core.reading.replica_order import Place
from duramen.errors import DuramenError
from duramen.ids import EntryId, Epoch, LedgerId, ledger_of, lsn_of
from duramen.runtime.metadata_log.kept_records import KeptRecords
from duramen.runtime.public.answers import respond
from duramen.runtime.reading.bookies import Bookies, RangeFetcher
from duramen.runtime.reading.cache import EntryCache
from duramen.runtime.reading.metadata import LogFollower
from duramen.runtime.reading.positioning.log_view import LiveLog
from duramen.runtime.reading.positioning.record_search import Key, SearchTarget
from duramen.runtime.reading.positioning.segment_edges import SegmentEdges
from duramen.runtime.reading.positioning.segment_maxima import SegmentMaxima
from duramen.runtime.reading.tail import TailFinder
from duramen.runtime.stores.memory_store import MemoryTree
from duramen.wire.metadata_json import Paths, encode_node, encode_segment
from duramen_readproxy import rest
from duramen_writeproxy.logs.catalog import CatalogQueries
from duramen_writeproxy.logs.names import NameCache
from tests.component import readproxy_world
from tests.component.core_reading import open_log, read
from tests.component.readproxy_world import LOG, World, run
from tests.moved_log import HookedStore, MetadataLogTwin, make_cold_segment, put_cold_log
from tests.tiers import sized
from tests.unit.nodes import make_log

PATHS: Final = Paths("c")
EPOCH_COUNT: Final = 6
MANY: Final = sized(fast=1_000, gate=2_000, night=10_000)


class Followed:
    """A log, its metadata log, and a follower that knows nothing yet."""

    def __init__(self, epoch_count: int) -> None:
        self.epoch_count = epoch_count
        self.log = make_log()
        self.store = HookedStore(MemoryTree())
        self.twin = MetadataLogTwin(self.store, PATHS, self.log.log_id)
        self.segments = [
            make_cold_segment(self.log.log_id, Epoch(e)) for e in range(1, epoch_count + 1)
        ]
        self.follower = self.make_follower()

    def make_follower(self) -> LogFollower:
        nodes = self.twin.make_segment_nodes()
        return LogFollower(self.store, PATHS, self.log.log_id, nodes)

    def path(self, epoch: int) -> str:
        return PATHS.segment(self.log.log_id, Epoch(epoch))

    async def lose_node(self, epoch: int) -> None:
        found = await self.store.get(self.path(epoch))
        assert found is not None
        await self.store.delete(self.path(epoch), version=found.version)

    async def lose_records(self, through: int) -> None:
        """Nodes are gone as if they had moved, and no record says what they were."""
        first = (await self.twin.read_log()).metadata.through + 1
        await self.twin.change_log(lambda log: replace(log, first_hot_epoch=Epoch(through + 1)))
        for epoch in range(first, through + 1):
            await self.lose_node(epoch)
        await self.twin.change_log(
            lambda log: replace(log, metadata=log.metadata._replace(through=through))
        )

    async def give_up(self, below: int) -> None:
        """Retention gives epochs up: the log node says so, and then their nodes go."""
        await self.twin.change_log(
            lambda log: replace(
                log,
                trim_lsn=lsn_of(Epoch(below), EntryId(0)),
                trim_seq_num=below - 1,
                first_live_epoch=Epoch(below),
            )
        )
        for epoch in range(1, below):
            await self.lose_node(epoch)


def play(
    scenario: Callable[[Followed], Awaitable[None]],
    *,
    epoch_count: int = EPOCH_COUNT,
    first_hot: int | None = None,
) -> None:
    async def work() -> None:
        followed = Followed(epoch_count)
        await followed.store.start()
        await put_cold_log(
            followed.store, PATHS, followed.log, epoch_count, first_hot=first_hot or epoch_count
        )
        await scenario(followed)
        await followed.store.close()

    asyncio.run(work())


async def refuse(looking: Awaitable[object], text: str) -> None:
    """Nothing is known, which is said and can be tried again."""
    with pytest.raises(DuramenError, match=text) as caught:
        await looking
    assert caught.value.code == "metadata_unavailable"


# --- A follower ----------------------------------------------------------------------------------


def test_a_moved_segment_is_followed_as_any_closed_one() -> None:
    async def scenario(followed: Followed) -> None:
        await followed.twin.move()
        follower = followed.follower
        for segment in followed.segments:
            log, found = await follower.current(segment.epoch)
            assert found == segment and log.metadata.through == EPOCH_COUNT - 1
        read_count = followed.store.statistics()["reads"]
        for segment in followed.segments[:-1]:
            assert (await follower.current(segment.epoch))[1] == segment
            assert follower.peek(segment.epoch) is not None
        assert followed.store.statistics()["reads"] == read_count, "it never changes any more"
        # Of the log node and of the newest segment: what has moved leaves none behind.
        assert followed.store.statistics()["watches"] == 2
        assert (await follower.current(Epoch(EPOCH_COUNT + 1)))[1] is None

    play(scenario)


def test_what_was_cached_before_its_archiving_is_read_again_where_it_is_now() -> None:
    async def scenario(followed: Followed) -> None:
        hot = replace(followed.segments[1], cold_copy=None)
        path = followed.path(2)
        await followed.store.set(path, encode_segment(hot), version=0)
        assert (await followed.follower.current(Epoch(2)))[1] == hot
        await followed.store.set(path, encode_segment(followed.segments[1]), version=1)
        await followed.twin.change_log(lambda log: replace(log, first_hot_epoch=Epoch(3)))
        await followed.twin.move()
        await followed.follower.refresh(Epoch(EPOCH_COUNT))
        assert (await followed.follower.current(Epoch(2)))[1] == followed.segments[1]

    play(scenario, first_hot=1)


def test_a_node_that_moves_between_the_two_reads_is_found() -> None:
    async def scenario(followed: Followed) -> None:
        followed.store.before[followed.path(2)] = followed.twin.move
        log, segment = await followed.follower.current(Epoch(2))
        assert segment == followed.segments[1]
        assert log.metadata.through == EPOCH_COUNT - 1, "it is as new as the segment's place"

    play(scenario)


def test_a_node_that_is_given_up_between_the_two_reads_is_none_and_the_log_says_why() -> None:
    async def scenario(followed: Followed) -> None:
        followed.store.before[followed.path(2)] = lambda: followed.give_up(3)
        log, segment = await followed.follower.current(Epoch(2))
        assert segment is None and log.first_live_epoch == 3

    play(scenario)


def test_a_node_that_nothing_accounts_for_is_never_none() -> None:
    async def scenario(followed: Followed) -> None:
        await followed.lose_node(EPOCH_COUNT)
        for look in (followed.follower.current, followed.follower.refresh, followed.follower.look):
            await refuse(look(Epoch(EPOCH_COUNT)), "nothing says why")

    play(scenario)


def test_a_tail_is_not_looked_for_in_a_segment_that_is_not_known() -> None:
    async def scenario(followed: Followed) -> None:
        await followed.twin.change_log(lambda log: log.with_new_epoch("n"))
        finder = TailFinder(cast("Bookies", None), cast("RangeFetcher", None))
        await refuse(finder.find(followed.follower), "nothing says why")

    play(scenario)


def test_what_was_read_stays_true_while_the_metadata_log_is_away() -> None:
    async def scenario(followed: Followed) -> None:
        await followed.twin.move()
        follower = followed.follower
        assert (await follower.current(Epoch(1)))[1] == followed.segments[0]
        other = followed.make_follower()
        followed.twin.is_away = True
        assert (await follower.current(Epoch(1)))[1] == followed.segments[0]
        for _ in range(2):
            await refuse(other.current(Epoch(1)), "nobody gives e1n0")
        assert (await other.current(Epoch(EPOCH_COUNT)))[1] == followed.segments[-1], "it is hot"
        followed.twin.is_away = False
        assert (await other.current(Epoch(1)))[1] == followed.segments[0]

    play(scenario)


def test_epochs_without_records_are_named_and_not_left_out() -> None:
    async def scenario(followed: Followed) -> None:
        await followed.twin.move()
        await followed.lose_records(5)
        await refuse(followed.follower.current(Epoch(4)), "no record of them can be found")
        await refuse(followed.follower.list_all(), "of e3, e4, e5 of log")
        await refuse(rest.list_segments(followed.follower), "of e3, e4, e5 of log")
        assert (await followed.follower.current(Epoch(2)))[1] == followed.segments[1]

    play(scenario, first_hot=3)


def test_a_listing_tells_all_of_one_moment_though_they_move_meanwhile() -> None:
    async def scenario(followed: Followed) -> None:
        await followed.follower.current_log()
        followed.store.before[followed.path(3)] = followed.twin.move
        for _ in range(2):
            log, segments = await rest.list_segments(followed.follower)
            assert list(segments) == followed.segments and log.next_epoch == EPOCH_COUNT + 1

    play(scenario)


def test_a_listing_of_a_log_that_was_deleted_is_refused() -> None:
    async def scenario(followed: Followed) -> None:
        await followed.twin.move()
        await followed.twin.change_log(
            lambda log: log.with_ending(Ending.DELETE, unix_ms=1, nonce="n")
        )
        with pytest.raises(DuramenError) as caught:
            await followed.follower.list_all()
        assert caught.value.code == "log_deleted"

    play(scenario)


def test_a_store_that_does_not_answer_is_said_by_whoever_looks_for_what_has_moved() -> None:
    async def scenario(followed: Followed) -> None:
        await followed.twin.move()
        follower = followed.follower

        async def cut() -> None:
            followed.store.disconnect()

        metadata_log = PATHS.log(followed.twin.metadata_log_id)
        for look in (lambda: follower.refresh(Epoch(2)), follower.list_all):
            followed.store.before[metadata_log] = cut
            await refuse(look(), "metadata cannot be read")
            followed.store.reconnect()
        assert (await follower.current(Epoch(2)))[1] == followed.segments[1]

    play(scenario)


# --- Many ----------------------------------------------------------------------------------------


def test_maxima_of_many_moved_segments_are_learnt_by_one_listing() -> None:
    """A search by time over them: a handful of reads, and not five for each."""

    async def scenario(followed: Followed) -> None:
        await followed.twin.move()
        view = LiveLog(followed.follower, cast("RangeFetcher", None), cast("TailFinder", None))
        maxima = SegmentMaxima()
        read_count = followed.store.statistics()["reads"]
        await maxima.learn(view, Epoch(1), 300)
        assert maxima.count == 300
        assert followed.store.statistics()["reads"] - read_count < 20
        for epoch in (1, 2, 150, 299, 300):
            wanted = SearchTarget(Key.TIME, 1_000 * epoch)
            assert maxima.find_next(Epoch(1), wanted, 300) == epoch

    play(scenario, epoch_count=300)


def test_nobody_searches_by_time_past_a_segment_that_is_not_known() -> None:
    async def scenario(followed: Followed) -> None:
        await followed.twin.move()
        await followed.lose_records(60)
        view = LiveLog(followed.follower, cast("RangeFetcher", None), cast("TailFinder", None))
        await refuse(
            SegmentMaxima().learn(view, Epoch(1), 100), "of e50, e51, e52, e53, e54 and 11"
        )
        await refuse(SegmentMaxima().learn(view, Epoch(45), 55), "no record of them")

    play(scenario, epoch_count=100, first_hot=50)


def test_many_moved_segments_are_listed_cold() -> None:
    """What it costs is asserted; the time, 2 s at most on a machine that is not busy, is shown."""

    async def scenario(followed: Followed) -> None:
        await followed.twin.move()
        assert len(await followed.store.children(PATHS.segments(followed.log.log_id)) or ()) == 1
        bookies = Bookies(followed.store, PATHS.available, Place("", ""), Random(1))
        fetcher = RangeFetcher(bookies, EntryCache(1 << 20))
        backend = SimpleNamespace(
            fetcher=fetcher, tails=TailFinder(bookies, fetcher), edges=SegmentEdges()
        )
        read_count = followed.store.statistics()["reads"]
        begun_s, used_s = time.monotonic(), time.process_time()
        answer = await rest._show_segments(cast("rest.Backend", backend), followed.follower)
        listed_s = time.monotonic() - begun_s
        body = respond(answer).body
        whole_s, used_s = time.monotonic() - begun_s, time.process_time() - used_s
        read_count = followed.store.statistics()["reads"] - read_count
        print(
            f"\n{MANY} moved segments, cold: listed in {listed_s:.2f} s, in {whole_s:.2f} s with "
            f"the {len(body)} bytes of the answer ({used_s:.2f} s of a processor); {read_count} "
            f"reads of the store, {followed.twin.fetched_entry_count} entries"
        )
        assert [row.epoch for row in answer.segments] == list(range(1, MANY + 1))
        assert read_count < 20
        # What rewrites have left behind is not read.
        assert 0 < followed.twin.fetched_entry_count <= MANY // 100
        assert followed.twin.fetched_entry_count < len(followed.twin.entries)

    play(scenario, epoch_count=MANY)


# --- A read proxy, the core library, a write proxy -----------------------------------------------

QUERIES = [
    "from=head", "from=seq:0", "from=seq:4&count=3", "from=seq:12", "from=seq:13", "from=seq:21",
    "from=dlsn:e1n1s2", "from=lsn:e2n3", "from=dlsn:e1n9s0", "from=tail-25", "from=tail-31",
    "from=seq:2&until=seq:23", "from=time:1009", "from=time:1001", "from=head&bytes=1",
]  # fmt: skip


async def fill(world: World) -> None:
    """The log of most tests, whose closed segments are archived and released."""
    await world.fill()
    for epoch in (1, 2):
        await world.archive(epoch)
    await world.release(3)


async def move(world: World) -> MetadataLogTwin:
    """What was released leaves the store, and nobody knows it."""

    async def store_entry(ledger: LedgerId, entry: EntryId, body: bytes) -> None:
        for member in members:
            await world.bookies[member.bookie].change(ledger, entry, (entry, body))

    members = (readproxy_world.A, readproxy_world.B, readproxy_world.C)
    twin = MetadataLogTwin(
        world.store, readproxy_world.PATHS, LOG, members=members, store_entry=store_entry
    )
    await twin.move()
    world.log = await twin.read_log()
    assert world.log.metadata.through == 2
    forget(world)
    return twin


def forget(world: World) -> None:
    """As another proxy, which has read nothing yet."""
    world.forget()
    world.proxy.catalog._followers.clear()
    world.proxy.edges = SegmentEdges()
    world.proxy._metadata_records._kept = KeptRecords(1 << 20)


async def list_rows(world: World) -> list[dict[str, Any]]:
    answer = await world.http.get("/v1/namespaces/ns/logs/log/segments")
    assert answer.status_code == 200, answer.text
    rows: list[dict[str, Any]] = answer.json()["segments"]
    return rows


def test_every_position_gives_the_same_once_segments_have_moved() -> None:
    async def scenario(world: World) -> None:
        await fill(world)
        told = {query: (await world.get(f"?{query}")).content for query in QUERIES}
        await move(world)
        for query, content in told.items():
            forget(world)
            assert (await world.get(f"?{query}")).content == content, query
        assert world.proxy.statistics()["metadata_records"]["entries_read"] > 0
        forget(world)
        assert await read(open_log(world)) == list(range(31)), "the core library as well"

    run(scenario)


def test_moved_segments_are_listed_as_they_were() -> None:
    async def scenario(world: World) -> None:
        await fill(world)
        before = await list_rows(world)
        await move(world)
        after = await list_rows(world)
        assert after == before and [row["epoch"] for row in after] == [1, 2, 3]
        assert all(row["first_timestamp"] for row in after[:2]), "read from their cold copies"

    run(scenario)


def test_without_the_metadata_log_what_is_hot_is_served_and_nothing_is_left_out() -> None:
    async def scenario(world: World) -> None:
        await fill(world)
        twin = await move(world)
        ledger = ledger_of(twin.metadata_log_id, Epoch(1))
        for bookie in world.bookies.values():
            bookie.dropped.add(ledger)
        for query in ("?from=seq:4", "?from=time:1001", "?from=lsn:e2n3"):
            await world.problem(503, "metadata_unavailable", None, query)
        answer = await world.http.get("/v1/namespaces/ns/logs/log/segments")
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (503, "metadata_unavailable"), problem
        readproxy_world.check(world, await world.read("?from=seq:22"), 22, 31)
        await world.append(2)
        readproxy_world.check(world, await world.read("?from=tail-3"), 30, 33)
        for bookie in world.bookies.values():
            bookie.dropped.discard(ledger)
        readproxy_world.check(world, await world.read("?from=seq:4"), 4, 33)

    run(scenario)


def test_a_write_proxy_says_of_a_log_with_a_metadata_log_what_it_said() -> None:
    async def scenario(followed: Followed) -> None:
        store, name = followed.store, PATHS.name("ns", "log")
        fields = encode_node({"log_id": str(followed.log.log_id)})
        await store.create(name, fields, make_parents=True)
        catalog = CatalogQueries(store, PATHS, NameCache(store, PATHS))
        before = await catalog.get_log("ns", "log")
        await followed.twin.move()
        assert await catalog.get_log("ns", "log") == before

    play(scenario)
