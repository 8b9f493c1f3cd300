"""Inventories and pulls between bookies: real HTTP/2, real files, metadata in memory.

Several bookies run in the test's event loop, each in a directory of its own; damage is a byte that
changes in a file. Not here: bookies that are killed (process tests), what the auditor makes of the
answers. Source: docs/protocol/repair.md, R13, R15.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from duramen.client.bookie_client import BookieClient
from duramen.core.bookie.bookie_state import SpaceLevel
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, BookieId, EntryId, Incarnation, Member, NodeNumber, epoch_of
from duramen.runtime.http_client import NoAnswerError
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.units import MIB, MS, SECOND
from duramen.wire.bookie_calls import Marks, ReadAnswer, ServiceClass
from duramen.wire.entry import read_entry_info
from duramen.wire.flexible.filtered_reads import FilteredRange
from duramen.wire.frame import pack_frame
from duramen.wire.metadata_json import encode_node, read_node
from duramen.wire.repair_calls import (
    Inventory,
    InventoryAnswer,
    Pull,
    PullAnswer,
    PulledRange,
    PullMap,
    Source,
    parse_pull_answer,
)
from duramen_bookie.repair import calls
from duramen_bookie.repair.yielding import Yielding, YieldingPace
from duramen_bookie.upkeep.pacing import monotonic_us
from tests.component.bookie_world import (
    LEDGER,
    LOG,
    PATHS,
    READ_LAC,
    SEAL,
    Bookie,
    add,
    bodies,
    damage,
    entry,
    expected,
    keep,
    run,
    running,
    span,
    store,
)
from tests.waiting import wait_for

OK, NO_ENTRY, UNKNOWN = BookieStatus.OK, BookieStatus.NO_ENTRY, BookieStatus.UNKNOWN
UNREACHABLE = BookieStatus.UNREACHABLE
NOWHERE = Source(Member(BookieId("gone"), Incarnation("e" * 32)), "http://127.0.0.1:9")


class Cluster:
    """Bookies b0, b1, … and a client of their repair calls."""

    def __init__(self, bookies: Sequence[Bookie], client: BookieClient) -> None:
        self.bookies = bookies
        self.client = client

    def source(self, index: int) -> Source:
        bookie = self.bookies[index]
        member = Member(BookieId(f"b{index}"), bookie.incarnation)
        return Source(member, bookie.service.data_url)

    async def inventory(self, index: int, first: int, last: int) -> InventoryAnswer:
        wanted = Inventory(LEDGER, EntryId(first), EntryId(last))
        return await self.client.take_inventory(self.source(index), wanted)

    async def pull(
        self, into: int, ranges: Sequence[tuple[int, int]], sources: Sequence[Source], **more: Any
    ) -> PullAnswer:
        wanted = Pull(
            LEDGER,
            [(EntryId(first), EntryId(last)) for first, last in ranges],
            sources,
            lac=more.pop("lac", EntryId(90)),
            budget_bytes=more.pop("budget_bytes", MIB),
            node_map=more.pop("node_map", None),
        )
        return await self.client.pull(more.pop("target", self.source(into)), wanted)


@asynccontextmanager
async def cluster(folder: Path, count: int) -> AsyncIterator[Cluster]:
    tree = MemoryTree()
    async with AsyncExitStack() as stack:
        bookies = [
            await stack.enter_async_context(running(folder / f"b{n}", tree, f"b{n}"))
            for n in range(count)
        ]
        client = BookieClient()
        stack.push_async_callback(client.close)
        yield Cluster(bookies, client)


def identities(numbers: Iterable[int]) -> tuple[tuple[EntryId, int], ...]:
    return tuple((EntryId(number), read_entry_info(entry(number)).crc) for number in numbers)


def parts(answer: PullAnswer) -> list[tuple[int, int, BookieStatus]]:
    return [(part.first, part.last, part.status) for part in answer.ranges]


async def settle(bookie: Bookie) -> None:
    upkeep = bookie.service.running_upkeep()
    upkeep.hurry("settling")
    core = bookie.service.running_core()
    await wait_for(lambda: not core.hot_entries(LEDGER))


async def scrub(bookie: Bookie) -> None:
    """Until a pass that begins now is over."""
    scrubbing = bookie.service.running_upkeep().scrub
    await wait_for(lambda: scrubbing.describe()["state"] == "resting")
    count = scrubbing.statistics()["passes"]["round_count"]
    scrubbing.begin_soon()
    await wait_for(lambda: scrubbing.statistics()["passes"]["round_count"] > count)


async def read_all(bookie: Bookie, numbers: Iterable[int]) -> list[tuple[int, bytes]]:
    """One by one: a run ends where entries go from the entry log to the journal."""
    return [one for n in numbers for one in bodies((await bookie.read(span(n)))[0])]


# --- Inventory -----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_settled", [False, True])
def test_an_inventory_tells_identities_of_what_is_there_and_nothing_of_what_is_not(
    tmp_path: Path, is_settled: bool
) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 1) as world:
            (bookie,) = world.bookies
            await bookie.add(*[add(n, lac=n - 1) for n in (0, 1, 2, 5, 6)])
            if is_settled:
                await settle(bookie)
                await bookie.add(add(7, lac=6))
            answer = await world.inventory(0, 1, 90)
            held = [1, 2, 5, 6, *[7] * is_settled]
            assert answer == InventoryAnswer(
                OK, EntryId(held[-1] - 1), EntryId(held[-1]), None, identities(held)
            )
            assert (await world.inventory(0, 3, 4)).entries == ()

    run(scenario)


@pytest.mark.parametrize(("is_settled", "pattern"), [(False, "*.dj"), (True, "*.de")])
def test_an_inventory_reads_anew_and_reports_the_damage_that_it_meets(
    tmp_path: Path, is_settled: bool, pattern: str
) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 1) as world:
            (bookie,) = world.bookies
            await bookie.add(*[add(n) for n in range(5)])
            if is_settled:
                await settle(bookie)
            assert (await bookie.read(span(0, 4)))[0].status is OK, "the page cache has it all"
            damage(tmp_path, 2, pattern=pattern)
            answer = await world.inventory(0, 0, 90)
            assert answer.entries == identities([0, 1, 3, 4])
            assert (answer.unknown, answer.next) == (((2, 2),), None)
            assert (await bookie.read(span(2)))[0].status is UNKNOWN
            queue = bookie.service.running_upkeep().queue
            await wait_for(lambda: queue.statistics()["reported"] == 1)
            found = bookie.tree.get(PATHS.queued(LEDGER))
            assert found is not None
            assert read_node(found.data)["reports"] == {f"b0.{bookie.incarnation}": "read"}

    run(scenario)


def test_an_inventory_is_bounded_and_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duramen_bookie.repair.inventory.INVENTORY_ROW_COUNT_MAX", 3)

    async def scenario() -> None:
        async with cluster(tmp_path, 1) as world:
            (bookie,) = world.bookies
            await bookie.add(*[add(n) for n in (0, 1, 4, 5, 6, 9)])
            seen: list[tuple[int, int]] = []
            first: EntryId | None = EntryId(0)
            calls_count = 0
            while first is not None:
                answer = await world.inventory(0, first, 90)
                assert len(answer.entries) <= 3
                seen += answer.entries
                first, calls_count = answer.next, calls_count + 1
            assert tuple(seen) == identities([0, 1, 4, 5, 6, 9]) and calls_count == 2

    run(scenario)


def test_an_inventory_that_has_to_yield_tells_how_far_it_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duramen_bookie.repair.inventory.INVENTORY_TIME_US", 0)
    monkeypatch.setattr("duramen_bookie.repair.inventory.REPAIR_PIECE_BYTES", 1)

    async def scenario() -> None:
        async with cluster(tmp_path, 1) as world:
            await world.bookies[0].add(*[add(n) for n in (0, 1, 4)])
            seen: list[int] = []
            first: EntryId | None = EntryId(0)
            while first is not None:
                answer = await world.inventory(0, first, 90)
                seen.append(len(answer.entries))
                first = answer.next
            assert seen == [1, 1, 1], "a piece a call, however late it is"

    run(scenario)


def test_what_a_bookie_cannot_vouch_for_is_unknown_and_not_absent(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 1) as world:
            (bookie,) = world.bookies
            await bookie.add(add(1), add(2))
            bookie.service.running_core().on_recovered_damage()
            answer = await world.inventory(0, 0, 5)
            assert answer.entries == identities([1, 2])
            assert answer.unknown == ((0, 0), (3, 5))

    run(scenario)


# --- Pull ----------------------------------------------------------------------------------------


def test_a_pull_fetches_what_is_missing_and_it_lasts(tmp_path: Path) -> None:
    async def scenario() -> None:
        tree = MemoryTree()
        async with running(tmp_path / "b0", tree, "b0") as source:
            async with running(tmp_path / "b1", tree, "b1") as target:
                client = BookieClient()
                world = Cluster([source, target], client)
                await source.add(*[add(n, lac=n - 1) for n in range(10)])
                await target.add(add(3))
                await target.seal(SEAL)
                answer = await world.pull(1, [(0, 4), (6, 9)], [world.source(0)])
                assert parts(answer) == [(0, 4, OK), (6, 9, OK)] and answer.next is None
                assert answer.copied_count == 8 and answer.missing == []
                assert answer.copied_bytes == 8 * len(entry(0))
                assert await target.lac(READ_LAC) == [Marks(OK, NOTHING, EntryId(9))], "R13"
                again = await world.pull(1, [(0, 4), (6, 9)], [NOWHERE])
                assert parts(again) == parts(answer) and again.copied_count == 0
                await client.close()
            async with running(tmp_path / "b1", tree, "b1") as target:
                (run_one, run_two) = await target.read(span(0, 4), span(6, 9))
                assert bodies(run_one) == expected(range(5)) and len(run_two.entries) == 4

    run(scenario)


def test_sources_complete_one_another_and_the_first_is_asked_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 3) as world:
            one, two, _ = world.bookies
            await one.add(*[add(n) for n in range(40) if n % 3])
            await two.add(*[add(n) for n in range(40) if n % 3 != 1])
            answer = await world.pull(2, [(0, 39)], [world.source(0), world.source(1)])
            assert parts(answer) == [(0, 39, OK)] and answer.copied_count == 40

    run(scenario)


def test_a_pull_tells_why_an_entry_is_missing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 3) as world:
            one, two, _ = world.bookies
            await one.add(add(0), add(2), add(3), add(8))
            await two.add(add(2), add(8))
            one.service.running_core().on_unreadable(LEDGER, EntryId(3))
            both = [world.source(0), world.source(1)]
            answer = await world.pull(2, [(0, 90)], both)
            assert parts(answer) == [
                (0, 0, OK), (1, 1, NO_ENTRY), (2, 2, OK), (3, 3, UNKNOWN), (4, 7, NO_ENTRY),
                (8, 8, OK), (9, 90, NO_ENTRY),
            ]  # fmt: skip
            assert [part[:2] for part in answer.missing] == [(1, 1), (3, 3), (4, 7), (9, 90)]
            half = await world.pull(2, [(0, 4)], [NOWHERE, world.source(1)])
            assert parts(half)[1] == (1, 1, UNREACHABLE), "who is silent might have it"
            other_life = world.source(0)._replace(
                member=Member(BookieId("b0"), Incarnation("f" * 32))
            )
            lost = await world.pull(2, [(1, 1)], [other_life])
            assert parts(lost) == [(1, 1, BookieStatus.WRONG_INCARNATION)], "R1: no absence"

    run(scenario)


def test_a_pull_with_a_map_gives_copies_envelopes_and_one_without_gives_none(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 3) as world:
            source, _, _ = world.bookies
            rows = [store(0, 1, 3, block=0), store(1, 1, 3, block=0), store(2, 9, 4, 0), add(3)]
            await keep(source, *rows)
            map_of_four = PullMap(NodeNumber(4), (NodeNumber(0), NodeNumber(1), NodeNumber(4)))
            for into, node_map, named in (
                (1, map_of_four, {0: ((1, 4), 0), 1: ((1, 4), 0), 2: ((4, 0), None)}),
                (2, None, {}),
            ):
                answer = await world.pull(into, [(0, 3)], [world.source(0)], node_map=node_map)
                assert parts(answer) == [(0, 3, OK)] and answer.copied_count == 4
                assert await read_all(world.bookies[into], range(4)) == expected(range(4))
                asked = FilteredRange(
                    span(0, 9)._replace(service=ServiceClass.REPAIR), with_envelopes=True
                )
                (held,) = await world.client.read_filtered(world.source(into), [asked])
                assert {number: tuple(e) for number, e in held.envelopes.items()} == named

    run(scenario)


def test_with_nobody_to_ask_a_long_range_is_answered_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 1) as world:
            answer = await world.pull(0, [(0, 1_000_000_000)], [NOWHERE])
            assert answer.ranges == (PulledRange(EntryId(0), EntryId(10**9), UNREACHABLE),)

    run(scenario)


@pytest.mark.parametrize(("is_settled", "pattern"), [(False, "*.dj"), (True, "*.de")])
def test_a_damaged_entry_is_mended_by_a_pull_for_good(
    tmp_path: Path, is_settled: bool, pattern: str
) -> None:
    async def scenario() -> None:
        tree = MemoryTree()
        async with running(tmp_path / "b0", tree, "b0") as source:
            await source.add(*[add(n) for n in range(5)])
            async with running(tmp_path / "b1", tree, "b1") as target:
                client = BookieClient()
                world = Cluster([source, target], client)
                await target.add(*[add(n) for n in range(5)])
                if is_settled:
                    await settle(target)
                damage(tmp_path / "b1", 2, pattern=pattern)
                assert (await world.inventory(1, 0, 4)).unknown == ((2, 2),)
                answer = await world.pull(1, [(0, 4)], [world.source(0)])
                assert (parts(answer), answer.copied_count) == ([(0, 4, OK)], 1)
                mended = await world.inventory(1, 0, 4)
                assert mended.entries == identities(range(5)) and not mended.unknown
                await client.close()
            async with running(tmp_path / "b1", tree, "b1") as target:
                await scrub(target)
                assert await read_all(target, range(5)) == expected(range(5))
                await settle(target)
                await scrub(target)
                assert await read_all(target, range(5)) == expected(range(5))
                core = target.service.running_core()
                assert core.list_unknown(LEDGER, EntryId(0), EntryId(9)) == []

    run(scenario)


def test_a_damaged_entry_of_a_source_is_fetched_elsewhere(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 3) as world:
            one, two, _ = world.bookies
            for bookie in (one, two):
                await bookie.add(*[add(n) for n in range(5)])
            damage(tmp_path / "b0", 2, pattern="*.dj")
            answer = await world.pull(2, [(0, 4)], [world.source(0), world.source(1)])
            assert parts(answer) == [(0, 4, OK)]
            assert (await one.read(span(2)))[0].status is UNKNOWN, "and the source knows it now"

    run(scenario)


def test_a_pull_ends_with_its_budget_and_the_next_one_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 2) as world:
            source, target = world.bookies
            size = 600_000
            for number in range(20):
                await source.add(add(number, size=size))
            first: EntryId | None = EntryId(0)
            count = copied = 0
            while first is not None:
                answer = await world.pull(1, [(first, 19)], [world.source(0)], budget_bytes=1)
                end = 19 if answer.next is None else answer.next - 1
                assert parts(answer) == [(first, end, OK)], "up to before `next`, and no further"
                first, count, copied = answer.next, count + 1, copied + answer.copied_count
            assert copied == 20 and count > 1
            assert len((await target.read(span(0, 19, 1 << 30)))[0].entries) == 20

    run(scenario)


def test_the_last_read_of_a_pull_has_time_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source that yields to its clients is no silent one: what it has would count as missing."""
    monkeypatch.setattr("duramen_bookie.repair.pulling.PULL_TIME_US", 100 * MS)
    timeouts_us: list[int] = []
    read = BookieClient.read

    async def watched(client: BookieClient, *arguments: Any) -> list[ReadAnswer]:
        timeouts_us.append(arguments[2])
        return await read(client, *arguments)

    monkeypatch.setattr(BookieClient, "read", watched)

    async def scenario() -> None:
        async with cluster(tmp_path, 2) as world:
            await world.bookies[0].add(add(0))
            while (await world.pull(1, [(0, 0)], [world.source(0)])).next is not None:
                pass
            assert min(timeouts_us) >= SECOND

    run(scenario)


def test_a_pull_into_a_ledger_that_was_dropped_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 2) as world:
            source, target = world.bookies
            await source.add(add(0))
            await target.add(add(0))
            core = target.service.running_core()
            core.drop(LOG, epoch_of(LEDGER), is_all_below=False)
            await target.add(add(1))  # drains the core's outbox, and is durable after the drop
            await wait_for(lambda: not core.is_alive(LEDGER))
            assert await world.pull(1, [(0, 4)], [world.source(0)]) == PullAnswer(BookieStatus.GONE)
            assert (await world.inventory(1, 0, 4)).status is BookieStatus.GONE

    run(scenario)


@pytest.mark.parametrize(
    ("level", "status"),
    [(SpaceLevel.READ_ONLY, OK), (SpaceLevel.FULL, BookieStatus.READ_ONLY)],
)
def test_repair_is_taken_as_long_as_recovery_is(
    tmp_path: Path, level: SpaceLevel, status: BookieStatus
) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 2) as world:
            source, target = world.bookies
            await source.add(*[add(n) for n in range(5)])
            core = target.service.running_core()
            core.set_read_only(level)
            answer = await world.pull(1, [(0, 4)], [world.source(0)])
            assert answer.status is status
            assert parts(answer) == [(0, 4, status)]

    run(scenario)


def test_another_incarnation_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 1) as world:
            wrong = world.source(0)._replace(member=Member(BookieId("b0"), Incarnation("f" * 32)))
            answer = await world.pull(0, [(0, 4)], [NOWHERE], target=wrong)
            assert answer == PullAnswer(BookieStatus.WRONG_INCARNATION)
            wanted = Inventory(LEDGER, EntryId(0), EntryId(4))
            told = await world.client.take_inventory(wrong, wanted)
            assert told == InventoryAnswer(BookieStatus.WRONG_INCARNATION)

    run(scenario)


# --- Yielding ------------------------------------------------------------------------------------


def test_repair_is_charged_where_it_reads_and_where_it_writes_and_clients_are_heard(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 2) as world:
            source, target = world.bookies

            def pace(bookie: Bookie) -> dict[str, Any]:
                found: dict[str, Any] = bookie.service.statistics()["repair"]["pace"]
                return found

            await source.add(*[add(n) for n in range(10)])
            await source.read(span(0, 9))
            assert pace(source)["late_beyond_us"] > 0, "a client added here"
            assert pace(source)["admitted_bytes"] == 0
            await world.pull(1, [(0, 9)], [world.source(0)])
            size = 10 * len(entry(0))
            assert pace(source)["admitted_bytes"] >= size
            assert pace(target)["admitted_bytes"] == size
            assert pace(target)["late_beyond_us"] == 0, "what repair adds is no client's"
            await world.inventory(0, 0, 9)
            assert pace(source)["admitted_bytes"] >= 2 * size

    run(scenario)


def test_a_source_that_yields_answers_before_it_counts_as_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Yielding(1, bytes_per_s_min=1, bytes_per_s_first=1, now_us=monotonic_us)
    paces = iter([YieldingPace(slow), YieldingPace()])
    monkeypatch.setattr(calls, "YieldingPace", lambda: next(paces))
    monkeypatch.setattr(calls, "_READ_PATIENCE_US", 50 * MS)

    async def scenario() -> None:
        async with cluster(tmp_path, 2) as world:
            await world.bookies[0].add(*[add(n) for n in range(10)])
            answer = await world.pull(1, [(0, 9)], [world.source(0)])
            assert parts(answer) == [(0, 9, OK)]

    run(scenario)


# --- Where sources are ---------------------------------------------------------------------------


def pack_pull_v1(world: Cluster, source: Source) -> bytes:
    """As clients of version 1 spell it: with an address beside the name."""
    sources = json.dumps([[*source.member, source.data_url]])
    payload = struct.pack("<II", 0, 90) + sources.encode()
    row = (LEDGER, 90, MIB, 1, google_crc32c.value(payload))
    incarnation = world.bookies[1].incarnation
    return pack_frame(b"DPLQ", struct.Struct("<QIIII"), [row], [payload], incarnation=incarnation)


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[str, list[object]]]:
    """Somebody's address, and who came."""
    came: list[object] = []
    server = await asyncio.start_server(lambda *who: came.append(who), "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", came
    finally:
        server.close()


def test_a_pull_calls_nobody_but_registered_bookies(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 2) as world, listening() as (elsewhere, came):
            await world.bookies[0].add(add(0), add(1))
            right = world.source(0)
            for wrong in (
                right._replace(data_url=elsewhere),
                right._replace(data_url=right.data_url + "/"),
                NOWHERE._replace(data_url=elsewhere),
                NOWHERE._replace(data_url=right.data_url),
            ):
                body = pack_pull_v1(world, wrong)
                answer = parse_pull_answer(await world.bookies[1].post("/b/pull", body))
                assert parts(answer) == [(0, 90, UNREACHABLE)], wrong
                assert not came
            answer = await world.pull(1, [(0, 90)], [NOWHERE])
            assert parts(answer) == [(0, 90, UNREACHABLE)]
            body = pack_pull_v1(world, right)
            answer = parse_pull_answer(await world.bookies[1].post("/b/pull", body))
            assert parts(answer)[0] == (0, 1, OK)

    run(scenario)


def test_a_pull_finds_no_source_while_the_metadata_store_is_away(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 2) as world:
            await world.bookies[0].add(add(0))
            store = world.bookies[1].service._store
            assert isinstance(store, MemoryStore)
            store.disconnect()
            answer = await world.pull(1, [(0, 0)], [world.source(0)])
            assert parts(answer) == [(0, 0, UNREACHABLE)], "it might have it"

    run(scenario)


# --- At once, and at the end ---------------------------------------------------------------------


@asynccontextmanager
async def frozen_source() -> AsyncIterator[Source]:
    """Somebody who takes connections and never says anything."""
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield Source(Member(BookieId("b9"), Incarnation("9" * 32)), f"http://127.0.0.1:{port}")
    finally:
        server.close()


def test_so_many_pulls_at_once_and_a_stop_ends_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "PULL_COUNT_MAX", 2)

    async def scenario() -> None:
        async with frozen_source() as frozen, cluster(tmp_path, 1) as world:
            (bookie,) = world.bookies
            target = world.source(0)
            store = MemoryStore(bookie.tree)
            await store.start()
            await store.create(f"{PATHS.available}/b9", encode_node({"data_url": frozen.data_url}))
            wanted = Pull(LEDGER, [(EntryId(0), EntryId(9))], [frozen], EntryId(9), MIB)
            pulling = [
                asyncio.create_task(world.client.pull(target, wanted, 20 * SECOND))
                for _ in range(2)
            ]
            await wait_for(lambda: bookie.service.statistics()["repair"]["pulls"] == 2)
            refused = await world.client.pull(target, wanted, SECOND // 2)
            assert refused == PullAnswer(BookieStatus.OVERLOADED)
            assert bookie.service.statistics()["repair"]["refused"] == 1
            await bookie.service.stop()
            answers = await asyncio.gather(*pulling)
            assert {answer.status for answer in answers} <= {BookieStatus.TIMEOUT, UNREACHABLE}
            assert bookie.service.statistics()["repair"]["pulls"] == 0

    run(scenario)


def test_bytes_that_are_no_call_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 1) as world:
            for path in ("/b/pull", "/b/inventory"):
                with pytest.raises(NoAnswerError, match="400"):
                    await world.bookies[0].post(path, b"nonsense" * 9)

    run(scenario)
