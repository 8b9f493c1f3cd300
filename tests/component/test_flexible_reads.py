"""Flexible segments as readers in a process meet them: frames of version 2, passes, polls, tails.

`LogCursor`, `RangeFetcher`, `Bookies` and `TailFinder` as they are, before nodes that read request
frames and answer with answer frames, entry by entry as the page says. Source:
docs/protocol/envelopes.md "Read: `POST /b/read`, version 2", docs/protocol/reading.md, R25, R30.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final, cast

import pytest

from duramen.config import parse_log_config
from duramen.core.flexible.property import ReplicationProperty
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.flexible.sending import has_to_send
from duramen.core.log_node import LogNode
from duramen.core.reading.read_ahead import ReaderLimits
from duramen.core.reading.replica_order import Place
from duramen.core.status import BookieStatus
from duramen.errors import DuramenError
from duramen.ids import NOTHING, EntryId, Epoch, LogId, NodeNumber, ledger_of
from duramen.runtime.http_client import NoAnswerError, PeerClient, UnreachableError
from duramen.runtime.reading import bookies, log_reader, tail
from duramen.runtime.reading.bookies import Bookies, RangeFetcher
from duramen.runtime.reading.cache import EntryCache
from duramen.runtime.reading.log_reader import DataLost, LogCursor
from duramen.runtime.reading.metadata import LogFollower
from duramen.runtime.reading.positioning.log_view import LiveLog
from duramen.runtime.reading.positioning.positions import Positions
from duramen.runtime.reading.tail import TailFinder
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.texts import parse_position
from duramen.units import SECOND
from duramen.wire.bookie_calls import Marks, pack_marks, parse_lacs
from duramen.wire.entry import HEADER_BYTES, read_entry_info
from duramen.wire.flexible.envelope import Envelope
from duramen.wire.flexible.filtered_answers import (
    FilteredAnswer,
    group_runs,
    pack_filtered_answers,
)
from duramen.wire.flexible.filtered_reads import FilteredRange, parse_filtered_reads
from duramen.wire.metadata_json import Paths, encode_log, encode_segment
from duramen.wire.record_batch import encode_batch
from tests.component.still_clock import read_clock_us, run_still
from tests.moved_log import make_segment_nodes
from tests.pauses import let_pass
from tests.unit.cold_entries import SegmentBytes
from tests.unit.flexible_segments import node

LOG: Final = LogId(9)
PATHS: Final = Paths("c")
LEDGER: Final = ledger_of(LOG, Epoch(1))
NODE_COUNT: Final = 5
ENTRY_COUNT: Final = 120


@dataclass(slots=True)
class WireNode:
    """One bookie, behind frames."""

    copies: dict[int, tuple[bytes, Envelope | None]] = field(default_factory=dict)
    lac: EntryId = NOTHING
    is_down: bool = False
    is_silent: bool = False
    spoils: Callable[[FilteredAnswer], FilteredAnswer] = lambda answer: answer
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self, asked: FilteredRange) -> FilteredAnswer:
        """What the page says."""
        wanted = asked.wanted
        if wanted.wait_ms and max(self.lac, asked.bound) < wanted.first:
            self.news.clear()
            try:
                async with asyncio.timeout(wanted.wait_ms / 1_000):
                    await self.news.wait()
            except TimeoutError:
                pass
        highest = EntryId(max(self.copies, default=NOTHING))
        shown = max(self.lac, asked.bound)
        if asked.is_cut and wanted.first > shown:
            return FilteredAnswer(
                BookieStatus.NOT_RELEASED, self.lac, highest, False, asked.filter_number,
                wanted.first,
            )  # fmt: skip
        told: list[EntryId] = []
        following = EntryId(min(wanted.last, shown) + 1)
        left_bytes = wanted.bytes_max
        for entry in map(EntryId, sorted(self.copies)):
            if not wanted.first <= entry < following:
                continue
            body, envelope = self.copies[entry]
            if not has_to_send(asked.read_filter, envelope, asked.own):
                continue
            if left_bytes <= 0:
                following = entry
                break
            told.append(entry)
            left_bytes -= 8 if asked.is_digest else len(body)
        size = HEADER_BYTES if wanted.headers_only else None
        return FilteredAnswer(
            BookieStatus.OK, self.lac, highest, False, asked.filter_number, following,
            entries=() if asked.is_digest else [(e, self.copies[e][0][:size]) for e in told],
            digests=[
                (e, read_entry_info(self.copies[e][0]).crc) for e in told
            ] if asked.is_digest else None,
            runs=group_runs((e, self.copies[e][1]) for e in told) if asked.with_envelopes else (),
        )  # fmt: skip


class World:
    """A log of one flexible segment."""

    def __init__(self) -> None:
        self.nodes = [WireNode() for _ in range(NODE_COUNT)]
        self.made = SegmentBytes(LEDGER, 0)
        self.call_count = 0
        self.segment = FlexibleSegment.opened(
            LOG, Epoch(1), ReplicationProperty(3), [node(f"b{n}") for n in range(NODE_COUNT)],
            ack_mode="ordered", placement="strict", created_unix_ms=0, nonce="s",
        )  # fmt: skip
        self.log = LogNode(LOG, "ns", "log", parse_log_config({})).with_new_epoch("n")
        self.store = MemoryStore(MemoryTree())
        client = cast("PeerClient", self)
        self.bookies = Bookies(
            self.store, "/available", Place("eu", "k0"), Random(1), client=client
        )
        for row in self.segment.nodes:
            self.bookies._urls[row.node.bookie] = f"http://{row.number}"
        self.fetcher = RangeFetcher(self.bookies, EntryCache())
        self.follower = LogFollower(self.store, PATHS, LOG, make_segment_nodes(self.store, PATHS))
        self.tails = TailFinder(self.bookies, self.fetcher)

    async def call(self, url: str, body: bytes, timeout_us: int) -> bytes:
        """As the client of the bookies."""
        self.call_count += 1
        number, verb = url.removeprefix("http://").split("/b/")
        here = self.nodes[int(number)]
        await let_pass(0.001, what="a call")
        if here.is_down:
            raise UnreachableError("down")
        if here.is_silent:
            await let_pass(timeout_us / SECOND, what="a call that nobody answers")
            raise NoAnswerError("silent")
        if verb == "lac":
            parse_lacs(body)
            highest = EntryId(max(here.copies, default=NOTHING))
            return pack_marks(b"DLCR", [Marks(BookieStatus.OK, here.lac, highest)])
        _, (asked,) = parse_filtered_reads(body)
        assert asked.wanted.ledger_id == LEDGER
        return pack_filtered_answers([here.spoils(await here.read(asked))])

    def append(self, copyset: Sequence[int], block: int | None = 0) -> int:
        """The next entry, stored by a first wave; its number."""
        entry = self.made.next_entry
        self.made.add(encode_batch([b"r%d" % entry], entry))
        numbers = tuple(NodeNumber(n) for n in copyset)
        envelope = Envelope(numbers, None if block is None else EntryId(block))
        for number in copyset:
            self.nodes[number].copies[entry] = self.made.entries[entry], envelope
        return entry

    def tell(self, lac: int, *numbers: int) -> None:
        """Nodes hear a LAC."""
        for number in numbers:
            self.nodes[number].lac = EntryId(lac)
            self.nodes[number].news.set()

    async def start(self, *, is_closed: bool) -> None:
        await self.store.start()
        if is_closed:
            self.segment = self.segment.closed_by_owner(
                last_entry=EntryId(self.made.next_entry - 1), totals=self.made.totals,
                start_seq_num=0, completed_unix_ms=1, nonce="c",
            )  # fmt: skip
            self.log = self.log.with_clean(self.segment, "n")
        await self.store.create(PATHS.log(LOG), encode_log(self.log), make_parents=True)
        path = PATHS.segment(LOG, Epoch(1))
        await self.store.create(path, encode_segment(self.segment), make_parents=True)

    def open_cursor(self, first: int = 0) -> LogCursor:
        return LogCursor(self.follower, self.fetcher, (Epoch(1), EntryId(first)), ReaderLimits())


def play(monkeypatch: pytest.MonkeyPatch, scenario: Callable[[World], Awaitable[None]]) -> None:
    for module in (bookies, log_reader, tail):
        monkeypatch.setattr(module, "read_clock_us", read_clock_us)

    async def work() -> None:
        world = World()
        await scenario(world)
        await world.fetcher.stop()
        await world.store.close()

    run_still(work())


def fill(world: World) -> None:
    """Blocks of 30 entries, and what goes wrong with some."""
    for entry in range(ENTRY_COUNT):
        first = entry // 30
        copyset = [(first + n) % NODE_COUNT for n in range(3)]
        world.append(copyset, 30 * first)
        if entry % 30 == 29:  # it failed, and a later wave went to somebody else
            del world.nodes[copyset[0]].copies[entry]
            other = (first + 3) % NODE_COUNT
            late = Envelope((*map(NodeNumber, copyset[1:]), NodeNumber(other)))
            world.nodes[other].copies[entry] = world.made.entries[EntryId(entry)], late


async def take_all(cursor: LogCursor) -> list[int]:
    """The entries up to the end."""
    numbers: list[int] = []
    while (delivered := await cursor.take(0)) is not None:
        numbers += [entry_id for entry_id, _ in delivered.entries]
    return numbers


@pytest.mark.parametrize("trouble", ["none", "down", "silent", "broken bodies", "lies"])
def test_a_closed_segment_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch, trouble: str) -> None:
    def flip(answer: FilteredAnswer) -> FilteredAnswer:
        bodies = [(e, bytes(b)[:-1] + bytes([bytes(b)[-1] ^ 1])) for e, b in answer.entries]
        return answer._replace(entries=bodies)

    def lie(answer: FilteredAnswer) -> FilteredAnswer:
        return answer._replace(filter_number=answer.filter_number + 1)

    async def scenario(world: World) -> None:
        fill(world)
        here = world.nodes[2]
        here.is_down, here.is_silent = trouble == "down", trouble == "silent"
        if trouble in {"broken bodies", "lies"}:
            here.spoils = flip if trouble == "broken bodies" else lie
        await world.start(is_closed=True)
        async with world.open_cursor() as cursor:
            assert await take_all(cursor) == list(range(ENTRY_COUNT))

    play(monkeypatch, scenario)


def test_r25_what_no_node_has_is_told_as_lost_and_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        fill(world)
        for here in world.nodes:
            for entry in (50, 51):
                here.copies.pop(entry, None)
        await world.start(is_closed=True)
        async with world.open_cursor() as cursor:
            with pytest.raises(DataLost) as lost:
                await take_all(cursor)
            assert lost.value.next_dlsn[:2] == (1, 52)
            cursor.pass_loss()
            assert await take_all(cursor) == list(range(52, ENTRY_COUNT))

    play(monkeypatch, scenario)


def test_r25_nothing_is_lost_while_a_node_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        fill(world)
        for here in world.nodes:
            here.copies.pop(50, None)
        world.nodes[4].is_down = True
        await world.start(is_closed=True)
        async with world.open_cursor() as cursor:
            with pytest.raises(DuramenError) as refused:
                await take_all(cursor)
            assert refused.value.code == "data_unavailable"

    play(monkeypatch, scenario)


def test_r30_the_tail_is_followed_though_one_node_alone_hears_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        await world.start(is_closed=False)
        seen: list[int] = []

        async def follow() -> None:
            async with world.open_cursor() as cursor:
                cursor.follow()
                while len(seen) < 40:
                    delivered = await cursor.take(0)
                    assert delivered is not None
                    seen.extend(entry for entry, _ in delivered.entries)

        following = asyncio.create_task(follow())
        for entry in range(40):
            await let_pass(0.05, what="a pause between appends")
            block = entry - entry % 15
            copyset = [(block // 15 + n) % NODE_COUNT for n in range(3)]
            world.append(copyset, block)
            assert max(seen, default=-1) < entry, "it is not released"
            world.tell(entry, copyset[0])
        await following
        assert seen == list(range(40))

    play(monkeypatch, scenario)


def test_the_tail_is_what_a_cover_tells_and_positions_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        for _ in range(40):
            world.append([0, 1, 2])
        world.tell(39, 1, 2)
        world.nodes[3].is_down = True
        await world.start(is_closed=False)
        found = await world.tails.find(world.follower)
        assert (found.epoch, found.entry, found.seq_num, found.is_sure) == (1, 40, 40, True)
        view = LiveLog(world.follower, world.fetcher, world.tails)
        start = await Positions().find(view, parse_position("seq:17"), clamp=False)
        assert (start.epoch, start.entry) == (1, 17)

    play(monkeypatch, scenario)


def test_a_tail_is_not_sure_while_more_is_stored_than_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        for _ in range(10):
            world.append([0, 1, 2])
        world.tell(7, 0, 1, 2)
        await world.start(is_closed=False)
        found = await world.tails.find(world.follower)
        assert (found.entry, found.is_sure) == (8, False)

    play(monkeypatch, scenario)


def test_readers_of_one_place_share_what_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        fill(world)
        await world.start(is_closed=True)
        cursors = [world.open_cursor() for _ in range(8)]

        async def read(cursor: LogCursor) -> list[int]:
            async with cursor:
                return await take_all(cursor)

        found = await asyncio.gather(*[read(cursor) for cursor in cursors])
        assert found == [list(range(ENTRY_COUNT))] * 8
        before = world.call_count
        assert before < 60
        assert await read(world.open_cursor()) == list(range(ENTRY_COUNT))
        assert world.call_count == before, "the cache has it"

    play(monkeypatch, scenario)
