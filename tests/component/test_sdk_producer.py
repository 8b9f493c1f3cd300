"""Producers of the SDK: order, tickets, room, repetitions, and what their end says. Both faces.

Faults come from `sdk_world` as scripted, one for each batch that arrives. What must hold in every
one of them: each record is in the log once and in order, and a ticket says what became of its
record, never that it failed when it may be there.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from duramen.client import Receipt, Repeat, RetryPolicy, Uncertain, rest_client
from duramen.client.sdk.log import RESULTS_KEPT_DEFAULT
from duramen.client.sdk.producer import PIPELINE_COUNT
from duramen.config import parse_log_config
from duramen.errors import DuramenError
from tests.component.sdk_scenarios import bodies, face, play
from tests.component.sdk_world import (
    RESULTS_KEPT,
    Arrival,
    FakeCluster,
    hold,
    lose,
    refuse,
    serve,
    store_and_lose,
)
from tests.waiting import wait_for


def one_each(client: Any, **options: Any) -> Any:
    """A producer that makes a batch of every record."""
    return client["ns"]["log"].producer(linger=0, batch_records=1, **options)


def sequences(cluster: FakeCluster) -> list[int]:
    return [producer.sequence for producer in cluster.arrivals if producer]


async def wait_arrivals(cluster: FakeCluster, count: int) -> None:
    await wait_for(lambda: len(cluster.arrivals) == count)


@face
def test_every_record_has_its_place(face: str) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        async with client["ns"]["log"].producer(linger=60, batch_records=3) as producer:
            assert producer.id.startswith("py-")
            tickets = [await producer.send(b"%d" % number) for number in range(7)]
            await producer.flush()
            assert all(ticket.is_done() for ticket in tickets)
            receipts = [await ticket for ticket in tickets]
        assert [receipt.seq_num for receipt in receipts] == list(range(7))
        assert receipts[4] == Receipt(4, "e1n1s1")
        assert bodies(cluster) == [b"%d" % number for number in range(7)]
        assert [batch.record_count for batch in cluster.log().batches] == [3, 3, 1]

    play(scenario, face)


@face
def test_a_record_lingers_no_longer_than_it_may(face: str) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        async with client["ns"]["log"].producer(linger=0.02) as producer:
            first, second = await producer.send(b"a"), await producer.send(b"b")
            assert (await first).seq_num == 0
            assert (await second).seq_num == 1
        assert sequences(cluster) == sorted(set(sequences(cluster)))

    play(scenario, face)


@face
def test_what_belongs_to_a_record_goes_with_it(face: str) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        async with client["ns"]["log"].producer(linger=60) as producer:
            await producer.send(b"plain")
            await producer.send(b"headed", headers={"a": b"b"}, timestamp=5)
            await producer.append_many([b"many", b"more"])
            await producer.send(b"txid", txid=7)
            await producer.send(b"txid", txid=8)
            await producer.append_many([b"last"])
        first, second, third = (batch.decode() for batch in cluster.log().batches)
        assert first.bodies == [b"plain", b"headed", b"many", b"more"]
        assert first.headers == [(), ((b"a", b"b"),), (), ()]
        assert first.timestamps_ms[1] == 5
        assert first.txids is None
        assert list(second.txids or ()) == [7, 8]
        assert third.bodies == [b"last"]

    play(scenario, face)


@face
def test_many_bodies_are_cut_into_batches(face: str) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        many = [b"%06d" % number for number in range(25_000)]
        options = {"max_in_flight_bytes": 600_000, "batch_bytes": 50_000}
        async with client["ns"]["log"].producer(**options) as producer:
            ticket = await producer.append_many(many)
            first, last = await ticket
            assert ticket.is_done()
        assert (first.seq_num, last.seq_num) == (0, 24_999)
        assert bodies(cluster) == many
        assert max(len(batch.batch) for batch in cluster.log().batches) < 110_000

    play(scenario, face)


@face
@pytest.mark.parametrize("seed", range(4))
def test_whatever_fails_each_record_is_there_once_and_in_order(face: str, seed: int) -> None:
    rng = random.Random(seed)

    async def scenario(cluster: FakeCluster, client: Any) -> None:
        kinds = [serve, store_and_lose, lose, refuse("log_unavailable", retry_after_ms=1)]
        kinds += [refuse("window_full", retry_after_ms=1)]
        cluster.faults += rng.choices(kinds, [4, 1, 1, 1, 1], k=60)
        expected = [b"%d" % number for number in range(80)]
        async with one_each(client) as producer:
            tickets = [await producer.send(body) for body in expected]
            await producer.flush()
            assert producer.statistics()["held_bytes"] == 0
            assert producer.statistics()["sent_again"] > 0
        assert [(await ticket).seq_num for ticket in tickets] == list(range(80))
        assert bodies(cluster) == expected

    play(scenario, face)


def test_a_batch_that_overtakes_is_sent_again_without_a_pause() -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        release = asyncio.Event()
        cluster.faults.append(hold(release))
        async with one_each(client) as producer:
            tickets = [producer.append(b"%d" % number) for number in range(8)]
            await wait_arrivals(cluster, PIPELINE_COUNT)
            release.set()
            assert [(await ticket).seq_num for ticket in tickets] == list(range(8))
            # Fewer at once from now on, and none before those that were refused are there.
            assert producer.statistics()["sent_again"] == PIPELINE_COUNT - 1
            assert producer.statistics()["on_their_way_max"] < PIPELINE_COUNT
            assert sequences(cluster) == [0, 1, 2, 3, 1, 2, 3, 4, 5, 6, 7]
        assert client.statistics()["retries"]["taken"] == 0

    play(scenario, "async")


def test_nothing_is_sent_past_a_batch_that_is_sent_again() -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        cluster.faults.append(refuse("log_unavailable", retry_after_ms=300))
        async with one_each(client) as producer:
            await producer.send(b"0")
            await wait_for(lambda: client.statistics()["retries"]["taken"] == 1)
            for number in range(1, 4):
                await producer.send(b"%d" % number)
        assert sequences(cluster) == [0, 0, 1, 2, 3]

    play(scenario, "async")


@face
def test_a_batch_that_was_lost_behind_another_stays_open_when_it_is_refused(face: str) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        release = asyncio.Event()
        cluster.faults += [hold(release), lose, refuse("log_ended")]
        async with one_each(client) as producer:
            first, second = await producer.send(b"0"), await producer.send(b"1")
            await wait_arrivals(cluster, 2)
            release.set()
            assert (await first).seq_num == 0
            with pytest.raises(Uncertain, match="log_ended"):
                await second

    with pytest.raises(Uncertain):
        play(scenario, face)


def test_the_default_of_what_a_log_remembers_is_the_configurations() -> None:
    assert parse_log_config({}).producers.results_kept == RESULTS_KEPT_DEFAULT


def test_no_more_batches_are_on_their_way_than_the_log_remembers() -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        for kept in (2, 64):
            most = min(kept, PIPELINE_COUNT)
            cluster.add_log(f"ns/kept-{kept}", producers={"results_kept": kept})
            release = asyncio.Event()
            cluster.arrivals.clear()
            cluster.faults += [hold(release)] * 40
            log = client["ns"][f"kept-{kept}"]
            async with log.producer(linger=0, batch_records=1) as producer:
                for number in range(40):
                    producer.append(b"%d" % number)
                await wait_arrivals(cluster, most)
                assert producer.statistics()["on_their_way"] == most
                release.set()
            cluster.faults.clear()
            assert bodies(cluster, f"ns/kept-{kept}") == [b"%d" % number for number in range(40)]

    play(scenario, "async")


@face
def test_without_room_append_waits_or_says_so(face: str) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        release = asyncio.Event()
        cluster.faults += [hold(release)] * RESULTS_KEPT
        async with one_each(client, max_in_flight_bytes=1_000) as producer:
            for _ in range(2):
                await producer.send(b"x" * 500)
            waiting = asyncio.create_task(producer.send(b"late"))
            if face == "async":
                with pytest.raises(DuramenError, match="overloaded"):
                    producer.append(b"x")
            await wait_arrivals(cluster, 2)
            assert not waiting.done()
            release.set()
            assert (await (await waiting)).seq_num == 2
        assert bodies(cluster)[2:] == [b"late"]

    play(scenario, face)


@face
def test_a_refusal_ends_the_producer_and_nothing_behind_it_is_stored(face: str) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        sent = asyncio.Event()
        cluster.faults += [hold(sent), refuse("log_ended")]
        producer = one_each(client)
        await producer.__aenter__()
        tickets = [await producer.send(b"%d" % number) for number in range(6)]
        sent.set()
        with pytest.raises(DuramenError, match="log_ended"):
            await producer.close()
        assert (await tickets[0]).seq_num == 0
        for ticket in tickets[1:]:
            with pytest.raises(DuramenError, match="log_ended") as failed:
                await ticket
            assert not failed.value.uncertain
        with pytest.raises(DuramenError, match="log_ended") as refused:
            await producer.send(b"more")
        assert not refused.value.uncertain
        assert bodies(cluster) == [b"0"]

    play(scenario, face)


@face
@pytest.mark.parametrize("code", ["producer_unknown", "producer_fenced"])
def test_what_the_log_says_of_the_producer_is_told(face: str, code: str) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        async with one_each(client, id="me", epoch=3) as producer:
            await (await producer.send(b"0"))
            if code == "producer_unknown":
                cluster.log().producers.clear()
            else:
                cluster.log().producers["me"] = (4, [])
            ticket = await producer.send(b"1")
            with pytest.raises(DuramenError, match=code):
                await ticket
            with pytest.raises(DuramenError, match=code):
                await producer.flush()
            await producer.abort()
        assert bodies(cluster) == [b"0"]

    with pytest.raises(DuramenError, match=code):
        play(scenario, face)


@face
def test_when_the_time_is_up_the_fate_stays_open(face: str) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        cluster.faults += [lose] * 1_000
        async with one_each(client) as producer:
            sent = await producer.send(b"0")
            with pytest.raises(Uncertain):
                await sent
            with pytest.raises(DuramenError) as refused:
                await producer.send(b"1")
            assert not refused.value.uncertain

    with pytest.raises(Uncertain):  # of the producer's end
        play(scenario, face, retry=RetryPolicy(within_s=0.2, first_pause_s=0.01))


@face
def test_an_unknown_fate_is_not_repeated_where_the_policy_is_safe(face: str) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        cluster.faults += [refuse("overloaded", retry_after_ms=1), store_and_lose]
        with pytest.raises(Uncertain):
            async with one_each(client) as producer:
                await producer.send(b"0")
        assert sequences(cluster) == [0, 0]

    play(scenario, face, retry=RetryPolicy(repeat=Repeat.SAFE, within_s=5))


@face
def test_without_idempotence_one_batch_is_on_its_way(face: str) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        cluster.faults += [serve, refuse("overloaded", retry_after_ms=1), serve, serve]
        async with one_each(client, idempotent=False) as producer:
            assert producer.id is None
            for number in range(3):
                await producer.send(b"%d" % number)
            await producer.flush()
            assert bodies(cluster) == [b"0", b"1", b"2"]
            cluster.faults.clear()
            cluster.faults.append(store_and_lose)
            with pytest.raises(Uncertain):
                await (await producer.send(b"3"))
            await producer.abort()
        assert cluster.arrivals == [None] * 5

    with pytest.raises(Uncertain):
        play(scenario, face)


@face
def test_an_exception_inside_gives_up_what_is_not_acknowledged(face: str) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        never = asyncio.Event()
        cluster.faults += [serve, hold(never)]
        tickets = []

        async def produce() -> None:
            async with one_each(client) as producer:
                await (await producer.send(b"0"))
                tickets.append(await producer.send(b"1"))
                await wait_arrivals(cluster, 2)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await produce()
        with pytest.raises(Uncertain):
            await tickets[0]
        never.set()

    play(scenario, face)


@face
def test_records_that_were_not_sent_are_certainly_not_there(face: str) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        producer = client["ns"]["log"].producer(linger=60)
        await producer.__aenter__()
        ticket = await producer.send(b"0")
        await producer.abort()
        for call in (ticket, producer.send(b"1")):
            with pytest.raises(DuramenError, match="not sent") as failed:
                await call
            assert not failed.value.uncertain
        assert not cluster.arrivals

    play(scenario, face)


@face
def test_a_record_that_is_too_large_leaves_the_producer_as_it_was(face: str) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        async with client["ns"]["log"].producer() as producer:
            for call in (producer.send, lambda body: producer.append_many([body])):
                with pytest.raises(DuramenError, match="record_too_large"):
                    await call(b"x" * (1 << 20 | 1))
            with pytest.raises(DuramenError, match="invalid_argument"):
                await producer.append_many([])
            with pytest.raises(DuramenError, match="bytes"):
                await producer.append_many([b"bytes", "text"])
            for wrong in ({"body": "text"}, {"txid": 1 << 63}, {"headers": {"": ""}}):
                with pytest.raises(DuramenError, match="invalid_argument"):
                    await producer.send(**{"body": b"x", **wrong})
            await producer.send(b"fine")
        assert bodies(cluster) == [b"fine"]

    play(scenario, face)


@face
@pytest.mark.parametrize(
    "wrong",
    [{"id": "ü"}, {"id": "x" * 65}, {"batch_bytes": 5 << 20}, {"batch_records": 0}],
)
def test_a_producer_that_no_log_would_take_is_not_made(face: str, wrong: dict[str, Any]) -> None:
    async def scenario(_cluster: FakeCluster, client: Any) -> None:
        with pytest.raises(DuramenError, match="invalid_argument") as refused:
            client["ns"]["log"].producer(**wrong)
        assert refused.value.field in wrong

    play(scenario, face)


@face
def test_a_mistake_of_ours_leaves_nobody_waiting(
    face: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(_cluster: FakeCluster, client: Any) -> None:
        monkeypatch.setattr(rest_client, "parse_appended", lambda _: 1 / 0)
        async with one_each(client) as producer:
            ticket = await producer.send(b"0")
            with pytest.raises(Uncertain, match="ZeroDivisionError"):
                await ticket

    with pytest.raises(Uncertain):
        play(scenario, face)


@face
def test_a_token_goes_with_every_batch(face: str) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        cluster.log().token = "mine"
        async with one_each(client, fencing_token="mine") as producer:
            await (await producer.send(b"0"))
            cluster.log().token = "yours"
            with pytest.raises(DuramenError, match="fencing_token_mismatch"):
                await (await producer.send(b"1"))
            await producer.abort()

    with pytest.raises(DuramenError, match="fencing_token_mismatch"):
        play(scenario, face)


def test_a_ticket_that_is_no_longer_awaited_disturbs_nobody() -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        release = asyncio.Event()
        cluster.faults.append(hold(release))
        async with one_each(client) as producer:
            ticket = producer.append(b"0")
            waiting = asyncio.create_task(ticket.receipt())
            await wait_arrivals(cluster, 1)
            waiting.cancel()
            release.set()
            assert (await ticket).seq_num == 0

    play(scenario, "async")


@face
def test_a_refusal_that_is_overtaken_by_the_acknowledgement_before_it_ends_nobody(
    face: str,
) -> None:
    """A batch was judged before the one in front of it was there, and the answers change places."""

    async def scenario(cluster: FakeCluster, client: Any) -> None:
        has_come, is_acknowledged = asyncio.Event(), asyncio.Event()

        async def refuse_as_early(_arrival: Arrival) -> None:
            has_come.set()
            await is_acknowledged.wait()
            raise DuramenError("producer_gap", "0 is next, not 1")

        cluster.faults += [hold(has_come), refuse_as_early]
        async with one_each(client) as producer:
            tickets = [await producer.send(body) for body in (b"a", b"b", b"c")]
            await tickets[0]
            is_acknowledged.set()
            assert [(await ticket).seq_num for ticket in tickets] == [0, 1, 2]
        assert bodies(cluster) == [b"a", b"b", b"c"]

    play(scenario, face)


@face
def test_a_gap_that_stays_ends_the_producer(face: str) -> None:
    """The batch before it is there, and the log misses it nevertheless: something is very wrong."""

    async def scenario(cluster: FakeCluster, client: Any) -> None:
        has_come = asyncio.Event()

        async def refuse_as_early(_arrival: Arrival) -> None:
            has_come.set()
            raise DuramenError("producer_gap", "as scripted")

        cluster.faults += [hold(has_come), refuse_as_early, refuse("producer_gap")]
        producer = await one_each(client).__aenter__()
        tickets = [await producer.send(body) for body in (b"a", b"b")]
        with pytest.raises(DuramenError, match="producer_gap"):
            await producer.flush()
        assert (await tickets[0]).seq_num == 0
        assert bodies(cluster) == [b"a"]
        assert len(cluster.arrivals) == 3
        await producer.abort()

    play(scenario, face)


def test_a_loop_that_ends_leaves_no_ticket_without_an_answer() -> None:
    """Regression: `asyncio.run` cancels every task in no order, which tripped an assertion."""

    async def scenario(cluster: FakeCluster, client: Any) -> None:
        release = asyncio.Event()
        cluster.faults += [hold(release)] * 2
        async with one_each(client) as producer:
            tickets = [await producer.send(b"%d" % number) for number in range(2)]
            await wait_arrivals(cluster, 2)
            carrying = [task for task in asyncio.all_tasks() if "._carry()" in repr(task)]
            assert [task.cancel() for task in carrying] == [True, True]
            await asyncio.wait(carrying)
            assert all(task.cancelled() for task in carrying)
            release.set()
            for ticket in tickets:
                with pytest.raises(Uncertain, match="cancelled"):
                    await ticket
            with pytest.raises(DuramenError, match="not sent"):
                await producer.send(b"2")

    with pytest.raises(Uncertain, match="cancelled"):
        play(scenario, "async")
