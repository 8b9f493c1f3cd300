"""Readers of the SDK: every record once and in order, whatever breaks; what is not there is said.

Both faces against `sdk_world`. Positions that need a search (time, txid) are the read proxy's
matter; here they only have to be passed on.
"""

from __future__ import annotations

import asyncio
import builtins
import datetime
from typing import Any

import pytest

from duramen.client import Lost, Moved, Record, RetryPolicy
from duramen.errors import DuramenError
from tests.component.sdk_faces import open_client
from tests.component.sdk_scenarios import SOON, face, play
from tests.component.sdk_world import FakeCluster, Relay, running_cluster
from tests.waiting import wait_for


async def read(log: Any, *args: Any, **options: Any) -> list[bytes]:
    return [body async for batch in log.read(*args, **options) for body in batch.bodies]


def numbers(*ends: int) -> list[bytes]:
    return [b"%d" % number for number in range(*ends)]


async def fill(log: Any, count: int = 100, *, a_batch: int = 7) -> None:
    for first in range(0, count, a_batch):
        await log.append(numbers(first, min(first + a_batch, count)))


@face
def test_a_part_is_cut_out_exactly(face: str) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        log = client["ns"]["log"]
        await fill(log)
        for answer_bytes in (1, 1 << 20):
            cluster.answer_bytes = answer_bytes
            assert await read(log) == numbers(100)
            assert await read(log, 11) == numbers(11, 100)
            assert await read(log, "seq:11", count=5) == numbers(11, 16)
            assert await read(log, "tail-3") == numbers(97, 100)
            assert await read(log, 11, until=40) == numbers(11, 40)
            assert await read(log, 11, count=50, until=20) == numbers(11, 20)
            assert await read(log, count=0) == []
            assert await read(log, "tail") == []

    play(scenario, face)


@face
def test_records_come_with_their_places(face: str) -> None:
    async def scenario(_cluster: FakeCluster, client: Any) -> None:
        log = client["ns"]["log"]
        await log.append(b"plain")
        await log.append([Record(b"a", {"k": "v"}, txid=7, timestamp=5), Record(b"b", txid=8)])
        (batch,) = [batch async for batch in log.read(1)]
        assert (batch.first, batch.end, len(batch), batch.is_at_tail) == (1, 3, 2, True)
        first, second = batch
        assert first.seq_num == 1
        assert str(second.dlsn) == "e1n1s1"
        assert (first.headers, first.txid, first.timestamp_ms) == (((b"k", b"v"),), 7, 5)
        assert (second.body, second.headers, second.txid) == (b"b", (), 8)
        assert repr(batch) == "<ReadBatch seq:1 to seq:3>"

    play(scenario, face)


@face
def test_a_batch_is_a_table_on_request(face: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(_cluster: FakeCluster, client: Any) -> None:
        log = client["ns"]["log"]
        await log.append(b"plain")
        await log.append([Record(b"a", {"k": "v"}, txid=7, timestamp=5)])
        (batch,) = [batch async for batch in log.read()]
        rows = batch.to_arrow().drop_columns(["timestamp_ms"]).to_pylist()
        place = {"epoch": 1, "slot": 0}
        pair = {"name": b"k", "value": b"v"}
        assert rows == [
            place | {"seq_num": 0, "entry": 0, "txid": None, "headers": [], "body": b"plain"},
            place | {"seq_num": 1, "entry": 1, "txid": 7, "headers": [pair], "body": b"a"},
        ]
        load = builtins.__import__

        def without_pyarrow(name: str, *args: Any, **options: Any) -> Any:
            if name == "pyarrow":
                raise ImportError(name)
            return load(name, *args, **options)

        monkeypatch.setattr(builtins, "__import__", without_pyarrow)
        with pytest.raises(ImportError, match="duramen\\[arrow\\]"):
            batch.to_arrow()

    play(scenario, face)


@face
def test_a_follower_gets_what_comes_and_ends_with_the_log(face: str) -> None:
    async def scenario(_cluster: FakeCluster, client: Any) -> None:
        log = client["ns"]["log"]
        await fill(log, 10)

        async def append() -> None:
            await fill(client["ns"]["log"], 10)
            await client["ns"]["log"].end()

        appending = asyncio.create_task(append())
        assert await read(log, follow=True) == numbers(10) * 2
        await appending

    play(scenario, face)


@face
def test_a_follower_survives_broken_connections(face: str) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        cluster.answer_bytes = 1
        await fill(client["ns"]["log"], 20)
        relay = Relay(cluster)
        await relay.mend()
        found: list[bytes] = []
        async with open_client(face, relay.url, retry=SOON) as reading:
            async for batch in reading["ns"]["log"].read(follow=True):
                found += batch.bodies
                if len(found) == 21:
                    break
                relay.cut()
                if len(found) == 20:
                    await client["ns"]["log"].append(b"20")
                await relay.mend()
        relay.cut()
        assert found == numbers(21)

    play(scenario, face)


@face
def test_refusals_that_pass_are_waited_for(face: str) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        log = client["ns"]["log"]
        await fill(log, 10)
        code = "data_unavailable"
        cluster.read_faults += [DuramenError(code, "no copy", retry_after_ms=1)] * 3
        assert await read(log) == numbers(10)
        assert cluster.reads == ["head"] * 4

    play(scenario, face)


@face
@pytest.mark.parametrize(
    ("position", "code"), [("seq:99", "beyond_tail"), ("nowhere", "invalid_position")]
)
def test_a_position_that_is_none_is_refused(face: str, position: str, code: str) -> None:
    async def scenario(_cluster: FakeCluster, client: Any) -> None:
        with pytest.raises(DuramenError, match=code):
            await read(client["ns"]["log"], position)

    play(scenario, face)


Gap = tuple[int, int, Lost | None, int]


async def read_gaps(log: Any, *args: Any, **options: Any) -> list[Gap]:
    """Where batches begin and end, and what they say is missing."""
    return [(b.first, b.end, b.lost, b.missing_count) async for b in log.read(*args, **options)]


@face
@pytest.mark.parametrize("answer_bytes", [1, 1 << 20])
def test_accepted_losses_are_passed_and_told(face: str, answer_bytes: int) -> None:
    """Ten entries of two records; 2, 3 and 6 are lost, and in the end the last one, too."""

    async def scenario(cluster: FakeCluster, client: Any) -> None:
        log = client["ns"]["log"]
        cluster.answer_bytes = answer_bytes
        await fill(log, 20, a_batch=2)
        cluster.log().lost = {2, 3, 6}
        assert await read(log) == [*numbers(4), *numbers(8, 12), *numbers(14, 20)]
        found = await read_gaps(log)
        assert [gap for gap in found if gap[2] is not None] == [
            (8, 10 if answer_bytes == 1 else 12, Lost("seq:4", "dlsn:e1n4s0"), 4),
            (14, 16 if answer_bytes == 1 else 20, Lost("seq:12", "dlsn:e1n7s0"), 2),
        ]
        assert {gap[3] for gap in found if gap[2] is None} == {0}
        # Whoever begins in a loss is given as many as from where the log goes on.
        (batch,) = [b async for b in log.read("seq:5", count=2)]
        assert (batch.lost, batch.missing_count) == (Lost("seq:5", "dlsn:e1n4s0"), 3)
        assert batch.bodies == numbers(8, 10)
        # Nothing of what was asked for is left: that is told, too.
        until = Lost("seq:5", "dlsn:e1n4s0")
        assert await read_gaps(log, 5, until=7) == [(8, 8, until, 3)]
        cluster.log().lost.add(9)
        *_, last = await read_gaps(log, "seq:16")
        assert last == (20, 20, Lost("seq:18", "dlsn:e1n10s0"), 2)

    play(scenario, face)


@face
def test_a_follower_is_told_of_a_loss_before_anything_comes_behind_it(face: str) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        log = client["ns"]["log"]
        await fill(log, 4, a_batch=2)
        cluster.log().lost = {1}
        bodies = []
        async for batch in log.read(follow=True, count=4):
            if batch.lost is not None:
                assert (len(batch), batch.first, batch.missing_count) == (0, 4, 2)
                await client["ns"]["log"].append([b"4", b"5"])
                await client["ns"]["log"].end()
            bodies += batch.bodies
        assert bodies == [b"0", b"1"], "numbers that are lost count, as those of holes do"
        assert await read(log, follow=True) == [b"0", b"1", b"4", b"5"]

    play(scenario, face)


@face
def test_a_loss_without_a_place_to_go_on_is_raised(face: str) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        log = client["ns"]["log"]
        await fill(log, 10)
        for place in (None, "head"):
            facts = {"next": place}
            cluster.read_faults.append(DuramenError("data_lost", "gone", facts=facts))
            with pytest.raises(DuramenError, match="data_lost: gone"):
                await read(log)
        assert await read(log, 5) == numbers(5, 10)

    play(scenario, face)


@face
def test_a_truncated_position_moves_and_says_so(face: str) -> None:
    async def scenario(_cluster: FakeCluster, client: Any) -> None:
        log = client["ns"]["log"]
        await fill(log, 20)
        await log.truncate(10)
        (batch,) = [batch async for batch in log.read(3, count=4)]
        assert batch.moved_to == Moved("seq:3", 10)
        assert batch.bodies == numbers(10, 14)
        await log.truncate(20)
        (batch,) = [batch async for batch in log.read(3)]
        assert (batch.moved_to, len(batch), batch.first) == (Moved("seq:3", 20), 0, 20)
        (batch,) = [batch async for batch in log.read(3, count=4, until=12)]
        assert batch.bodies == []

    play(scenario, face)


@face
@pytest.mark.parametrize("answer_bytes", [1, 1 << 20])
def test_missing_sequence_numbers_are_counted(face: str, answer_bytes: int) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        log = client["ns"]["log"]
        cluster.answer_bytes = answer_bytes
        cluster.log().holes[7] = 3
        await fill(log, 14)
        found = [(b.first, b.end, b.missing_count) async for b in log.read("seq:0")]
        assert found == [(0, 7, 0), (10, 17, 3)]

    play(scenario, face)


@face
def test_times_are_positions(face: str) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        moment = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
        with pytest.raises(DuramenError):  # the faked cluster searches nothing
            await read(client["ns"]["log"], moment)
        assert cluster.reads == ["time:1767312000000"]

    play(scenario, face, retry=RetryPolicy(within_s=0))


@face
def test_who_stops_reading_leaves_nothing_behind(face: str) -> None:
    async def scenario(_cluster: FakeCluster, client: Any) -> None:
        log = client["ns"]["log"]
        await fill(log, 10)
        before = len(asyncio.all_tasks())
        batches = log.read(follow=True)
        async for batch in batches:
            assert batch.bodies == numbers(10)
            break
        await batches.aclose()
        if face == "async":
            await wait_for(lambda: len(asyncio.all_tasks()) <= before + 1)
        await log.append(b"for the server, which may still wait")

    play(scenario, face)


@face
def test_a_home_is_followed_until_it_goes_away(face: str) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        log = client["ns"]["log"]
        await fill(log, 10)
        async with running_cluster() as home:
            home.logs = cluster.logs
            cluster.home = home.home = home.url
            for _ in range(3):
                assert await read(log) == numbers(10)
            assert (len(cluster.reads), len(home.reads)) == (1, 2)
            assert client.statistics()["homes"] == {"logs": 1, "proxies": 1}
        cluster.home = None
        assert await read(log) == numbers(10)
        assert len(cluster.reads) == 2
        assert client.statistics()["homes"]["logs"] == 0

    play(scenario, face)


@face
def test_a_damaged_batch_is_no_record(face: str) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        log = client["ns"]["log"]
        await log.append(b"whole")
        (batch,) = cluster.log().batches
        torn = bytes(batch.batch)[:-1] + b"X"
        cluster.log().batches[0] = batch._replace(batch=torn)
        with pytest.raises(DuramenError, match="damaged"):
            await read(log)

    play(scenario, face)
