"""What Prometheus learns of the requests of a read proxy: outcomes, times, and bytes.

Over real HTTP, with fake bookies (`readproxy_world`). What a stream's end is called is in
`test_streams`. Source: duramen_readproxy.requests.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.component.readproxy_world import BATCH, NDJSON, World, run
from tests.waiting import wait_for

WAIT_S = 2


def count(world: World, call: str, outcome: str) -> float:
    labels = {"call": call, "outcome": outcome}
    return world.registry.get_sample_value("duramen_readproxy_requests_total", labels) or 0.0


def spent_s(world: World, call: str) -> float:
    labels = {"call": call}
    return world.registry.get_sample_value("duramen_readproxy_request_seconds_sum", labels) or 0.0


def sent_bytes(world: World, form: str) -> float:
    labels = {"form": form}
    return world.registry.get_sample_value("duramen_readproxy_sent_bytes_total", labels) or 0.0


def test_answers_are_counted_with_their_bytes() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        for form, accept in (("json", "application/json"), ("batch", BATCH), ("ndjson", NDJSON)):
            before = sent_bytes(world, form)
            answer = await world.get("?from=head", accept=accept)
            assert answer.status_code == 200
            assert sent_bytes(world, form) - before == len(answer.content) > 0
        for path in ("", "/segments", "/records/tail"):
            assert (await world.http.get(f"/v1/namespaces/ns/logs/log{path}")).status_code == 200
        assert [count(world, call, "ok") for call in ("records", "log", "segments", "tail")] == [
            3, 1, 1, 1,
        ]  # fmt: skip
        assert world.proxy.statistics()["requests"] == {"open": 0, "begun": 6}

    run(scenario)


@pytest.mark.parametrize(
    ("query", "code"),
    [("?from=seq:999", "beyond_tail"), ("?from=elsewhere", "invalid_position")],
)
def test_refusals_are_counted_by_code_and_have_no_time(query: str, code: str) -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        assert (await world.get(query)).json()["code"] == code
        assert count(world, "records", code) == 1 and count(world, "records", "ok") == 0
        assert spent_s(world, "records") == 0.0

    run(scenario)


def test_what_no_replica_gives_is_counted_as_such() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        for bookie in world.bookies.values():
            bookie.is_broken = True
        assert (await world.get("?from=seq:2")).json()["code"] == "data_unavailable"
        assert count(world, "records", "data_unavailable") == 1

    run(scenario)


def test_a_wait_at_the_tail_is_no_time_of_the_proxy() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        answer = await world.read(f"?from=tail&wait={WAIT_S}s")
        assert answer["records"] == []
        took_s = loop.time() - begun_s
        assert took_s >= WAIT_S
        # What came before the wait counts: half of it is left for that.
        assert spent_s(world, "records") <= took_s - WAIT_S / 2

    run(scenario)


def test_a_client_that_goes_while_it_waits_is_counted_so() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        polling = asyncio.create_task(world.get("?from=tail&wait=60s"))
        await wait_for(lambda: world.proxy.feeds.statistics()["readers"] == 1)
        polling.cancel()
        await wait_for(lambda: world.proxy.statistics()["requests"]["open"] == 0)
        assert count(world, "records", "client_gone") == 1

    run(scenario)
