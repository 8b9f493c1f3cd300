"""Holes of closed segments in every form of reading: told where they are, once, and passed.

`holed_log` has the log. Each form reads it striped and flexible, from bookies and from the archive.
Those of Spark are in `tests/spark/test_source_holes.py`. Source: R25, docs/protocol/reading.md
"Holes", docs/protocol/read-answers.md "Gaps".
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from duramen.client import Client, ReadBatch, SyncClient
from duramen.client.bulk_read import BulkReader
from duramen.client.records import Records
from duramen.client.rest_client import RestClient
from duramen.texts import parse_position
from duramen.wire.read_answers import parse_batches
from tests.component.core_reading import open_log
from tests.component.event_stream import Event, bodies_of, listen
from tests.component.holed_log import (
    GAPS,
    HOLES,
    KINDS,
    NUMBERS,
    fill,
    miss,
    open_out_of_order,
    recover,
)
from tests.component.losses import lose
from tests.component.readproxy_world import BATCH, NDJSON, RECORDS, World, run, seq_nums
from tests.waiting import wait_for

Reading = Callable[[World], Awaitable[None]]

BODIES = [f"r{number}" for number in NUMBERS]


def play(kind: str, scenario: Reading, *, is_cold: bool = False) -> None:
    """In a world with the log; cold: segment 1 has left the bookies."""

    async def in_log(world: World) -> None:
        await fill(world, kind)
        if is_cold:
            await world.archive(1)
            await world.release(2)
        await scenario(world)

    run(in_log)


every_place = pytest.mark.parametrize("is_cold", [False, True], ids=["hot", "cold"])
every_kind = pytest.mark.parametrize("kind", KINDS)


async def collect(world: World, query: str, last_id: str | None = None) -> list[Event]:
    async with listen(world.http, f"{RECORDS}{query}", last_id) as events:
        return [event async for event in events]


@every_place
@every_kind
def test_json_has_the_holes_beside_the_records(kind: str, is_cold: bool) -> None:
    async def scenario(world: World) -> None:
        answer = await world.read()
        assert [record["body"] for record in answer["records"]] == BODIES
        assert answer["gaps"] == GAPS
        assert (answer["next"], answer["tail"]["seq_num"]) == ("seq:17", 17)

        told, found, text = [], [], "seq:0"
        for _ in range(20):
            answer = await world.read(f"?from={text}&count=1")
            told += answer.get("gaps", [])
            found += seq_nums(answer)
            if (text := answer["next"]) == "seq:17":
                break
        assert (tuple(found), told) == (NUMBERS, GAPS), "each once, however answers are cut"
        assert "gaps" not in await world.read("?from=seq:0&count=3")

    play(kind, scenario, is_cold=is_cold)


@every_kind
def test_who_begins_or_ends_in_a_hole_is_told_of_what_is_left_of_it(kind: str) -> None:
    async def scenario(world: World) -> None:
        answer = await world.read("?from=seq:5&count=1")
        assert answer["gaps"] == [GAPS[0] | {"from": "seq:5"}]
        assert seq_nums(answer) == [7]
        answer = await world.read("?from=seq:1&until=seq:5")
        assert (seq_nums(answer), answer["gaps"], answer["next"]) == ([1, 2], GAPS[:1], "seq:7")
        # Behind the last hole of the segment lies no record of it.
        answer = await world.read("?from=seq:12&until=seq:14")
        assert (seq_nums(answer), answer["gaps"], answer["next"]) == ([12], GAPS[2:], "seq:15")
        for position in ("dlsn:e1n1s0", "lsn:e1n2", "dlsn:e1n2s4"):
            answer = await world.read(f"?from={position}&count=1")
            assert (seq_nums(answer), "gaps" in answer) == ([7], False), "it is that behind it"

    play(kind, scenario)


@every_place
@every_kind
def test_events_and_lines_have_the_holes_between_the_records(kind: str, is_cold: bool) -> None:
    async def scenario(world: World) -> None:
        events = await collect(world, "?wait=0s")
        kinds = [event.kind for event in events]
        rec, gap = "records", "gap"
        assert kinds == [rec, gap, rec, gap, rec, gap, rec, "end"]
        assert [event.data for event in events if event.kind == gap] == GAPS
        assert bodies_of(events) == BODIES
        for index, event in enumerate(events[:-1]):
            rest = await collect(world, "?wait=0s", event.id)
            assert [e.data for e in rest] == [e.data for e in events[index + 1 :]], event

        lines = (await world.get("?notes=true", accept=NDJSON)).text.splitlines()
        noted = [json.loads(line) for line in lines]
        assert [line["gap"] for line in noted if "gap" in line] == GAPS
        assert [line["body"] for line in noted if "body" in line] == BODIES
        assert [next(iter(line)) for line in noted[2:6]] == ["seq_num", "gap", "seq_num", "seq_num"]
        plain = (await world.get(accept=NDJSON)).text.splitlines()
        assert [json.loads(line)["seq_num"] for line in plain] == [*NUMBERS], "records alone"
        bounded = await collect(world, "?wait=0s&from=seq:12&until=seq:14")
        assert [e.kind for e in bounded] == [rec, gap, "end"]
        assert bounded[-1].data == {"reason": "limit", "next": "seq:15"}

    play(kind, scenario, is_cold=is_cold)


@every_place
@every_kind
def test_numbers_tell_holes_of_binary_answers(kind: str, is_cold: bool) -> None:
    async def scenario(world: World) -> None:
        response = await world.get(accept=BATCH)
        batches = parse_batches(response.content)
        spans = [(batch.seq_num, batch.end_seq_num) for batch in batches]
        assert spans == [(0, 2), (2, 3), (7, 10), (12, 13), (15, 17)]
        response = await world.get("?from=seq:13&until=seq:15", accept=BATCH)
        assert parse_batches(response.content) == []
        ends = [response.headers[f"duramen-{name}"] for name in ("start", "next")]
        assert ends == ["seq:13", "seq:15"], "from the hole to behind it"
        response = await world.get("?from=tail-5", accept=BATCH)
        assert response.headers["duramen-start"] == "seq:12"
        response = await world.get("?from=tail-6", accept=BATCH)
        assert response.headers["duramen-start"] == "seq:11", "which lies in a hole"
        assert parse_batches(response.content)[0].seq_num == 12

    play(kind, scenario, is_cold=is_cold)


def tell(batches: list[ReadBatch]) -> list[tuple[int, int]]:
    """The holes that batches tell: from where to before where."""
    assert all(batch.lost is None for batch in batches)
    return [(b.first - b.missing_count, b.first) for b in batches if b.missing_count]


SPANS = [(first, end) for first, end, _, _ in HOLES]


@every_place
@every_kind
def test_the_sdk_counts_what_is_missing(kind: str, is_cold: bool) -> None:
    def read_sync(url: str) -> list[ReadBatch]:
        with SyncClient(url) as client:
            return [*client["ns"]["log"].read("seq:0")]

    async def scenario(world: World) -> None:
        url = str(world.http.base_url)
        found = {"sync": await asyncio.to_thread(read_sync, url)}
        async with Client(url) as client:
            log = client["ns"]["log"]
            found["async"] = [batch async for batch in log.read("seq:0")]
            # Whoever stops in a hole, and goes on there, is told of each number once.
            cut = [batch async for batch in log.read("seq:1", until=14)]
            cut += [batch async for batch in log.read(cut[-1].end)]
            tails = [batch async for batch in log.read("tail-6")]
        found["core"] = [batch async for batch in open_log(world).read("seq:0")]
        for face, batches in found.items():
            assert tell(batches) == SPANS, face
            assert [body.decode() for b in batches for body in b.bodies] == BODIES, face
            assert [n for b in batches for n in b.to_arrow()["seq_num"].to_pylist()] == [*NUMBERS]
        for (first, end), batch in zip(
            SPANS, [b for b in found["async"] if b.missing_count], strict=True
        ):
            metadata = batch.to_arrow().schema.metadata
            told = {"kind": "hole", "from": f"seq:{first}", "next": f"seq:{end}"}
            assert json.loads(metadata[b"duramen.gap"]) == told
        assert found["async"][0].to_arrow().schema.metadata is None
        assert tell(tails) == [(11, 12), (13, 15)]
        assert tell(cut) == [(3, 7), (10, 12), (13, 14), (14, 15)]
        assert [body.decode() for b in cut for body in b.bodies] == BODIES[1:]

    play(kind, scenario, is_cold=is_cold)


@every_kind
def test_bulk_reads_tell_holes_where_they_are_met(kind: str) -> None:
    async def scenario(world: World) -> None:
        told: list[Any] = []

        def note(found: list[Records]) -> None:
            told.extend(number for r in found for number in range(r.first, r.end))

        client = RestClient(str(world.http.base_url))
        reader = BulkReader(client, "ns", "log", timeout_s=5)
        await reader.run(
            parse_position("head"), "head", count=None, is_following=False, sink=note,
            on_hole=lambda first, end: told.append((first, end)),
        )  # fmt: skip
        await client.close()
        assert told == [0, 1, 2, (3, 7), 7, 8, 9, (10, 12), 12, (13, 15), 15, 16]
        assert (reader.figures.record_count, reader.figures.missing_count) == (9, 8)

    play(kind, scenario)


@every_kind
def test_who_waits_at_the_tail_is_told_when_recovery_closes_the_segment(kind: str) -> None:
    async def scenario(world: World) -> None:
        await open_out_of_order(world, kind)
        await world.append(2)
        url = str(world.http.base_url)
        told: dict[str, list[ReadBatch]] = {"sdk": [], "core": []}

        async def follow(face: str, log: Any, from_: str | int) -> None:
            async for batch in log.read(from_, follow=True):
                told[face].append(batch)
                if batch.end == 9:
                    return

        async with (
            Client(url) as client,
            listen(world.http, f"{RECORDS}?from=tail") as events,
            asyncio.TaskGroup() as group,
        ):
            assert (await anext(events)).kind == "tail"
            group.create_task(follow("sdk", client["ns"]["log"], "tail"))
            group.create_task(follow("core", open_log(world), 2))
            polling = asyncio.create_task(world.read("?from=tail&wait=20s"))
            await wait_for(lambda: world.proxy.feeds.statistics()["readers"] == 3)
            await miss(world, 3)
            await world.append(1, is_confirmed=False)
            await miss(world, 1)
            await world.append_control(is_confirmed=False)
            answer = await world.read()
            assert (seq_nums(answer), "gaps" in answer) == ([0, 1], False), "nothing is sure yet"
            await recover(world, (1, 1), (3, 3), missing_count=4)
            news = [await anext(events) for _ in range(3)]
            assert [event.kind for event in news] == ["gap", "records", "gap"]
            assert [event.data for event in news[::2]] == [
                {
                    "kind": "hole", "from": f"seq:{first}", "next": f"seq:{end}",
                    "first_lsn": f"e1n{entry}", "last_lsn": f"e1n{entry}",
                }
                for first, end, entry in ((2, 5, 1), (6, 7, 3))
            ]  # fmt: skip
            # Nothing comes behind the last hole yet.
            async with asyncio.timeout(20):
                bounded = await collect(world, "?from=seq:5&until=seq:7")
            assert [event.kind for event in bounded] == ["records", "gap", "end"]
            found = [batch async for batch in client["ns"]["log"].read("seq:6")]
            core = [batch async for batch in open_log(world).read("seq:6")]
            assert tell(found) == tell(core) == [(6, 7)]
            await world.open_segment()
            await world.append(2)
            last = await anext(events)
            assert last.data["records"][0]["seq_num"] == 7
            polled = await polling
            assert (polled["gaps"][0]["next"], polled["next"] > "seq:5") == ("seq:5", True)
        for face, batches in told.items():
            assert tell(batches) == [(2, 5), (6, 7)], face
            assert [body for b in batches for body in b.bodies] == [b"r5", b"r7", b"r8"], face

    run(scenario)


@every_kind
def test_a_loss_and_a_hole_are_told_as_what_they_are(kind: str) -> None:
    """Entry 3 touches the holes 1, 2 and 4: nobody knows whose the numbers were, so one gap tells
    all of them as lost."""

    async def scenario(world: World) -> None:
        await fill(world, kind)
        await lose(world, 3, 3)
        events = await collect(world, "?wait=0s")
        gaps = [event.data for event in events if event.kind == "gap"]
        lost = {
            "kind": "lost", "from": "seq:3", "next": "dlsn:e1n4s0",
            "first_lsn": "e1n3", "last_lsn": "e1n3",
        }  # fmt: skip
        assert gaps == [lost, GAPS[2]]
        assert bodies_of(events) == ["r0", "r1", "r2", "r12", "r15", "r16"]
        answer = await world.read()
        assert (seq_nums(answer), "gaps" in answer, answer["next"]) == ([0, 1, 2], False, "seq:3")
        problem = await world.problem(410, "data_lost", "from", "?from=seq:7")
        assert problem["next"] == "dlsn:e1n4s0"

    run(scenario)


@every_kind
def test_searches_step_forward_to_a_record_and_listings_say_what_is_missing(kind: str) -> None:
    async def scenario(world: World) -> None:
        await open_out_of_order(world, kind)
        await world.append(2, txids=[1, 2])
        await miss(world, 1, txids=[50])
        await world.append(2, txids=[3, 4], is_confirmed=False)
        await world.append(1, txids=[60], is_confirmed=False)
        await recover(world, (1, 1), missing_count=1)
        assert seq_nums(await world.read("?from=txid:40&count=1")) == [5]
        assert seq_nums(await world.read("?from=txid:3&count=1")) == [3]
        assert seq_nums(await world.read("?from=tail-4&count=1")) == [3]
        listing = await world.http.get("/v1/namespaces/ns/logs/log/segments")
        (segment,) = listing.json()["segments"]
        assert (segment["holes"], segment["records"]) == ([[1, 1]], 6)
        assert segment.get("missing_records") == (1 if kind == "flexible" else None)

    run(scenario)
