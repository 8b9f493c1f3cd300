"""Streams of the read proxy: server-sent events, NDJSON with notes, and the feed behind them.

The world of `readproxy_world`, over real HTTP. Source: docs/protocol/reading.md,
docs/protocol/rest.md, docs/protocol/read-answers.md.
"""

import asyncio
import json

import pytest

from duramen.core.hashing import rank_nodes
from duramen.core.reading.read_ahead import ReaderLimits
from duramen.core.reading.speculation import Speculation
from duramen.core.segment import Totals
from duramen.ids import EntryId, Epoch
from duramen.units import SECOND
from duramen.wire.metadata_json import encode_node
from duramen_readproxy.following.record_reader import RecordReader
from tests.component.event_stream import EVENTS, Event, bodies_of, listen
from tests.component.losses import lose
from tests.component.readproxy_world import NDJSON, PATHS, RECORDS, World, run
from tests.waiting import wait_for


async def collect(world: World, query: str, last_id: str | None = None) -> list[Event]:
    async with listen(world.http, f"{RECORDS}{query}", last_id) as events:
        return [event async for event in events]


def test_events_carry_the_log_and_where_to_go_on() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        events = await collect(world, "?wait=0s")
        assert bodies_of(events) == world.bodies
        assert {e.kind for e in events[:-1]} == {"records"}
        assert events[-1] == Event("end", "seq:31;end", {"reason": "tail", "next": "seq:31"})
        for event in events[:-1]:
            assert (
                event.id == event.data["next"] == f"seq:{event.data['records'][-1]['seq_num'] + 1}"
            )
            rest = await collect(world, "?wait=0s", event.id)
            assert bodies_of(rest) == world.bodies[int(event.id[4:]) :]

    run(scenario)


def test_a_stream_waits_at_the_tail_and_its_id_is_good_from_the_first_event_on() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        async with listen(world.http, f"{RECORDS}?from=tail") as events:
            first = await anext(events)
            assert (first.kind, first.id) == ("tail", "seq:31")
            assert first.data["tail"]["seq_num"] == 31
            await world.append(2)
            event = await anext(events)
            assert bodies_of([event]) == world.bodies[31:] and event.id == "seq:33"
            await world.close_segment()
            await world.open_segment()
            await world.append(1)
            assert bodies_of([await anext(events)]) == world.bodies[33:]
        async with listen(world.http, f"{RECORDS}?from=tail", first.id) as events:
            missed = [await anext(events), await anext(events)]
            assert bodies_of(missed) == world.bodies[31:]

    run(scenario)


def test_limits_are_carried_in_the_ids() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        whole = await collect(world, "?count=7")
        assert bodies_of(whole) == world.bodies[:7]
        assert [e.id for e in whole if e.kind == "records"] == [
            "seq:3;count=4", "seq:6;count=1", "seq:7;count=0",
        ]  # fmt: skip
        assert whole[-1].data == {"reason": "limit", "next": "seq:7"}
        rest = await collect(world, "?count=7", whole[0].id)
        assert bodies_of(rest) == world.bodies[3:7]
        sized = await collect(world, "?bytes=9")
        assert bodies_of(sized) == world.bodies[:4] and sized[0].id == "seq:3;bytes=3"
        for last_id in (whole[-1].id, sized[-1].id, "seq:7;count=0"):
            response = await world.get("?count=7", accept=EVENTS, last_event_id=last_id)
            assert response.status_code == 204, "a browser must stop coming back"
        for bad in ("seq", "tail", "seq:1;count=x", "seq:1;count=1;count=2", "seq:1;end;count=1"):
            problem = await world.problem(
                400, "invalid_argument", "Last-Event-ID", "", accept=EVENTS, last_event_id=bad
            )
            assert bad in problem["detail"]

    run(scenario)


def test_a_silent_stream_has_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duramen_readproxy.following.streams.HEARTBEAT_US", 30_000)

    async def scenario(world: World) -> None:
        await world.fill()
        async with listen(world.http, f"{RECORDS}?from=seq:30") as events:
            kinds = [(await anext(events)).kind for _ in range(5)]
            assert kinds == ["records", "tail", "heartbeat", "heartbeat", "heartbeat"]
        url = f"{RECORDS}?from=seq:30&wait=30s&notes=true"
        async with world.http.stream("GET", url, headers={"accept": NDJSON}) as response:
            noted = response.aiter_lines()
            kinds = [next(iter(json.loads(await anext(noted)))) for _ in range(3)]
            assert kinds == ["seq_num", "tail", "heartbeat"]
        query = "?from=seq:30&wait=100ms"
        lines = (await world.get(f"{query}&notes=true", accept=NDJSON)).text.splitlines()
        assert next(iter(json.loads(lines[-1]))) == "end"
        plain = (await world.get(query, accept=NDJSON)).text.splitlines()
        assert [json.loads(line)["seq_num"] for line in plain] == [30], "nobody is surprised"
        await world.problem(400, "invalid_argument", "notes", "?notes=true")

    run(scenario)


def test_what_is_lost_is_a_gap_and_the_stream_goes_on() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        await lose(world, 1, 2)
        events = await collect(world, "?wait=0s")
        gap = next(e for e in events if e.kind == "gap")
        assert gap.data == {
            "kind": "lost", "from": "seq:3", "next": "dlsn:e1n3s0",
            "first_lsn": "e1n1", "last_lsn": "e1n2",
        }  # fmt: skip
        assert bodies_of(events) == world.bodies[:3] + world.bodies[9:]
        after = await collect(world, "?wait=0s", gap.id)
        assert bodies_of(after) == world.bodies[9:] and after[0].kind == "records"
        lines = (await world.get("?notes=true", accept=NDJSON)).text.splitlines()
        assert json.loads(lines[3]) == {"gap": gap.data}
        assert len(lines) == 3 + 1 + 22 + 1

    run(scenario)


@pytest.mark.parametrize("count", [1, 3])
def test_numbers_that_no_record_got_are_a_gap(count: int) -> None:
    async def scenario(world: World) -> None:
        await world.open_segment()
        await world.append(2)
        world.totals = world.totals.plus(Totals(count, 0, None, 1_002))
        await world.append(1)
        events = await collect(world, "?wait=0s&format=base64")
        assert [e.kind for e in events] == ["records", "gap", "records", "end"]
        assert events[1].data == {"kind": "hole", "from": "seq:2", "next": f"seq:{2 + count}"}
        assert [e.id for e in events[:3]] == ["seq:2", f"seq:{2 + count}", f"seq:{3 + count}"]
        assert bodies_of(events) == ["cjA=", "cjE=", "cjI="]

    run(scenario)


def test_what_was_truncated_is_a_gap() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        await world.truncate(17, "e2n2", first_live=2)
        events = await collect(world, "?from=seq:2&wait=0s")
        assert events[0].data == {"kind": "truncated", "next": "seq:17"}
        assert events[0].id == "seq:17" and bodies_of(events) == world.bodies[17:]
        assert (await collect(world, "?from=head&wait=0s"))[0].kind == "records"

    run(scenario)


def test_a_stop_ends_streams_and_answers_where_they_are() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        waiting = asyncio.create_task(world.read("?from=tail&wait=60s"))
        async with listen(world.http, f"{RECORDS}?from=tail") as events:
            assert (await anext(events)).kind == "tail"
            await wait_for(lambda: world.proxy.feeds.statistics()["readers"] == 2)
            stopping = asyncio.create_task(world.proxy.stop())
            end = await anext(events)
            assert (end.kind, end.id, end.data["reason"]) == ("end", "seq:31", "stopping")
            assert [event async for event in events] == []
        assert (await waiting)["next"] == "seq:31"
        await stopping

    run(scenario)


def test_readers_at_the_tail_share_one_poll_and_one_encoding() -> None:
    """Calls to bookies and encodings are counted: neither grows with the readers."""

    async def scenario(world: World) -> None:
        await world.fill()
        statistics = world.proxy.statistics
        counts = []
        for reader_count in (1, 12):
            begun = asyncio.Event()
            readers = [asyncio.create_task(read_some(world, 5, begun)) for _ in range(reader_count)]
            await wait_for(lambda: statistics()["feeds"]["readers"] == reader_count)  # noqa: B023
            before = count_calls(world), statistics()["encodings"]["made"]
            for _ in range(5):
                fed_count = statistics()["feeds"]["entries"]
                await world.append(1)
                await wait_for(lambda: statistics()["feeds"]["entries"] > fed_count)  # noqa: B023
            given = [await reader for reader in readers]
            assert given == [world.bodies[-5:]] * reader_count
            made = statistics()["encodings"]["made"] - before[1]
            counts.append((count_calls(world) - before[0], made))
        assert counts[0][1] == counts[1][1] == 5
        assert counts[1][0] <= counts[0][0] + 5, counts
        assert statistics()["encodings"]["shared"] >= 5 * 11

    run(scenario)


async def read_some(world: World, count: int, begun: asyncio.Event) -> list[str]:
    async with listen(world.http, f"{RECORDS}?from=tail") as events:
        begun.set()
        bodies: list[str] = []
        while len(bodies) < count:
            bodies += bodies_of([await anext(events)])
        return bodies


def count_calls(world: World) -> int:
    return sum(bookie.read_count for bookie in world.bookies.values())


def test_a_reader_that_lags_reads_by_itself_until_it_has_caught_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("duramen_readproxy.following.feed.WINDOW_COUNT_MAX", 3)

    async def scenario(world: World) -> None:
        await world.fill()
        follower = await world.proxy.catalog.find("ns", "log")
        async with (
            listen(world.http, f"{RECORDS}?from=tail") as events,
            RecordReader(
                world.proxy.feeds,
                world.proxy.fetcher,
                follower,
                (Epoch(3), EntryId(2)),
                ReaderLimits(),
            ) as slow,
        ):
            await anext(events)
            while await slow.take(31, 0) is not None:
                pass
            found = await world.proxy.tails.find(follower)
            while await slow.on_tail(found):
                while await slow.take(31, 0) is not None:
                    pass
            await slow.follow(found)
            assert await slow.take(31, 0) is None
            for _ in range(9):
                await world.append(1)
                await anext(events)
            taken = []
            while (delivered := await slow.take(31, 0)) is not None:
                taken += [entry_id for entry_id, _ in delivered.entries]
            assert taken == list(range(3, 12))
            assert world.proxy.statistics()["feeds"]["lagged"] == 1
            await world.append(1)
            await anext(events)
            fed = await slow.take(40, 0)
            assert fed is not None and fed.entries[0][0] == 12

    run(scenario)


def test_the_next_segment_is_opened_before_its_turn_and_read_no_more_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # However slow the machine, nobody is late: a second read beside the first is another matter.
    monkeypatch.setattr(Speculation, "delay_us", lambda *_: 60 * SECOND)

    async def scenario(world: World) -> None:
        await world.fill()
        assert bodies_of(await collect(world, "?wait=0s")) == world.bodies
        assert world.proxy.statistics()["upstream"]["segments_early"] >= 1
        # A few for what is opened early. Read twice, it would be 24.
        assert sum(bookie.given_count for bookie in world.bookies.values()) <= 12 + 6

    run(scenario)


def test_answers_name_the_home_of_the_log_in_this_region() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        for accept in ("application/json", NDJSON):
            home = (await world.get(accept=accept)).headers["duramen-home"]
            assert home == f"http://127.0.0.1:{world.proxy.port}"
        nodes = {f"rp-{n}": ("eu" if n < 9 else "us") for n in range(1, 12)}
        for name, region in nodes.items():
            fields = {"data_url": f"http://{name}", "region": region, "rack": "r"}
            await world.store.create(
                f"{PATHS.read_proxies}/{name}", encode_node(fields), ephemeral=True
            )
        await wait_for(lambda: world.proxy.homes.statistics()["proxies"] == 9)
        homes = {f"log-{n}": world.proxy.homes.find("ns", f"log-{n}", "http") for n in range(200)}
        assert len(set(homes.values())) == 9, "spread over the region, and over nothing else"
        expected = rank_nodes("ns/log", {f"rp-{n}": 1.0 for n in range(9)})[0]
        urls = {"rp-0": f"http://127.0.0.1:{world.proxy.port}"}
        found = (await world.get()).headers["duramen-home"]
        assert found == urls.get(expected, f"http://{expected}")

    run(scenario)


def test_a_listener_that_goes_away_frees_what_it_held() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        statistics = world.proxy.statistics
        for query in ("?from=tail", "?from=head"):
            async with listen(world.http, f"{RECORDS}{query}") as events:
                await anext(events)
                assert statistics()["streams"]["open"] == 1
            await wait_for(lambda: statistics()["streams"]["open"] == 0)
            assert statistics()["feeds"]["readers"] == 0
        await wait_for(lambda: statistics()["feeds"]["feeds"] == 0)
        follower = await world.proxy.catalog.find("ns", "log")
        await wait_for(lambda: follower.is_idle)

    run(scenario)
