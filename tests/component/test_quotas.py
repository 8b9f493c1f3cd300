"""Limits at the doors of a proxy: who is counted for what, and what is refused before it is read.

The counting itself is in tests/unit/test_quotas.py. Source: docs/protocol/limits.md.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from duramen.client.retry import Pauses, RetryPolicy, repeat
from duramen.config import ClientLimits
from duramen.errors import read_problem
from duramen.runtime.admission import namespace_limits
from duramen.runtime.identity.header import NamedClient
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.runtime.stores.metadata_store import Stored, Unavailable, Watch
from duramen.units import KIB, MIB
from tests.component import admission_world, door_world
from tests.component.admission_world import READ, AdmissionWorld, as_user
from tests.component.door_world import FAR_S, GRANTS, list_known
from tests.component.quota_world import (
    APPEND,
    FREE,
    SESSION,
    Limited,
    Told,
    play,
    set_limits,
)
from tests.pauses import let_pass
from tests.waiting import wait_for


def check_refusal(told: Told, field: str) -> None:
    assert (told.status, told.problem["code"], told.problem["field"]) == (
        429,
        "rate_limited",
        field,
    )
    assert told.problem["retryable"] is True and told.problem["uncertain"] is False
    assert 1 <= told.problem["retry_after_ms"] <= 60_000
    assert told.headers["retry-after"] == str(-(-told.problem["retry_after_ms"] // 1_000))
    assert told.headers["content-type"] == "application/problem+json"


# --- Namespaces, where nobody is asked who calls -------------------------------------------------


def test_calls_of_a_namespace_are_refused_before_their_bodies_are_read() -> None:
    async def scenario(store: MemoryStore) -> None:
        await set_limits(store, "shop", calls_per_s=3)
        port = Limited(store)
        told = await port.call_until_refused(9, length=0)
        assert len(told) == 4
        check_refusal(told[-1], "limits.calls_per_s")
        assert "shop" in told[-1].problem["detail"] and "3" in told[-1].problem["detail"]
        assert port.served_count == 3
        # Another namespace has its own.
        other = await port.call(path="/v1/namespaces/stock/logs/a/records")
        assert other.status == 200
        assert port.quotas.statistics()["refused"] == {"limits.calls_per_s": 1}

    play(scenario)


@pytest.mark.parametrize("is_announced", [True, False])
def test_bodies_are_counted_announced_or_not(is_announced: bool) -> None:
    async def scenario(store: MemoryStore) -> None:
        await set_limits(store, "shop", bytes_per_s="64KiB")
        port = Limited(store)
        port.pieces = [bytes(40 * KIB)] * 2
        length = 80 * KIB if is_announced else None
        told = await port.call_until_refused(9, length=length)
        assert len(told) == 2, "a body beyond the limit passes, and what comes next waits for it"
        check_refusal(told[-1], "limits.bytes_per_s")
        assert port.read_bytes == 80 * KIB, "the refused body was dropped"

    play(scenario)


def test_answers_are_counted_too() -> None:
    async def scenario(store: MemoryStore) -> None:
        await set_limits(store, "shop", bytes_per_s="64KiB")
        port = Limited(store)
        port.answers = [bytes(100 * KIB)]
        told = await port.call_until_refused(9, "GET", length=None)
        assert len(told) == 2
        check_refusal(told[-1], "limits.bytes_per_s")

    play(scenario)


@pytest.mark.parametrize("is_upward", [True, False])
def test_what_lasts_waits_instead_of_being_refused(is_upward: bool) -> None:
    async def scenario(store: MemoryStore) -> None:
        await set_limits(store, "shop", bytes_per_s="64KiB")
        port = Limited(store)
        pieces = [bytes(64 * KIB)] * 3
        port.pieces, port.answers = (pieces, [b""]) if is_upward else ([b""], [*pieces, b""])
        method, path = ("POST", SESSION) if is_upward else ("GET", APPEND)
        began_s = time.monotonic()
        assert (await port.call(method, path, length=None)).status == 200
        # The bucket has one piece at first; the last piece is sent once it is out of debt.
        assert 0.9 <= time.monotonic() - began_s < 10
        assert sum(port.quotas.statistics()["refused"].values()) == 0

    play(scenario)


@pytest.mark.parametrize(
    ("limits", "call", "field"),
    [
        ({"open_calls": 2}, ("POST", APPEND, 10), "limits.open_calls"),
        ({"open_streams": 2}, ("GET", APPEND, None), "limits.open_streams"),
        ({"open_streams": 2}, ("POST", SESSION, None), "limits.open_streams"),
        ({"in_flight_bytes": "64KiB"}, ("POST", APPEND, 32 * KIB), "limits.in_flight_bytes"),
        ({"in_flight_bytes": "2MiB"}, ("POST", APPEND, None), "limits.in_flight_bytes"),
    ],
)
def test_what_is_under_way_is_bounded_and_given_back(
    limits: dict[str, Any], call: tuple[str, str, int | None], field: str
) -> None:
    async def scenario(store: MemoryStore) -> None:
        await set_limits(store, "shop", **limits)
        port = Limited(store)
        port.waiting = asyncio.Event()
        method, path, length = call
        if method == "POST" and path == APPEND:
            port.pieces = [bytes(32 * KIB)] if length else [bytes(MIB), b""]
        open_ = [asyncio.create_task(port.call(method, path, length=length)) for _ in range(2)]
        await wait_for(lambda: port.served_count == 2)
        check_refusal(await port.call(method, path, length=length), field)
        port.waiting.set()
        assert [told.status for told in await asyncio.gather(*open_)] == [200, 200]
        assert (await port.call(method, path, length=length)).status == 200
        # A call that fails gives back what it had, too.
        port.pieces = []
        for _ in range(3):
            with pytest.raises(IndexError):
                await port.call(method, path, length=length)
        counts = port.quotas.statistics()["namespaces"]
        assert [counts[name] for name in ("open_calls", "open_streams", "in_flight_bytes")] == [
            0
        ] * 3

    play(scenario)


def test_who_announces_much_and_sends_nothing_keeps_nobody_out_of_its_namespace() -> None:
    async def scenario(store: MemoryStore) -> None:
        await set_limits(store, "shop", in_flight_bytes="64KiB", bytes_per_s="64KiB")
        port = Limited(store)
        port.waiting = asyncio.Event()
        liars = [asyncio.create_task(port.call(length=10**11)) for _ in range(9)]
        await wait_for(lambda: port.served_count == 9)
        port.waiting.set()
        assert {told.status for told in await asyncio.gather(*liars)} == {200}
        assert (await port.call(length=9)).status == 200

    play(scenario)


def test_what_is_no_call_of_a_namespace_counts_for_none() -> None:
    async def scenario(store: MemoryStore) -> None:
        await set_limits(store, "shop", calls_per_s=1)
        port = Limited(store)
        for path in ("/v1/namespaces", "/docs", "/v1/namespaces/shop/other", "/v1/namespaces/--"):
            for _ in range(3):
                assert (await port.call("GET", path)).status == 200
        assert port.quotas.statistics()["namespaces"]["parties"] == 0

    play(scenario)


def test_a_header_that_says_forwarded_frees_nobody() -> None:
    async def scenario(store: MemoryStore) -> None:
        await set_limits(store, "shop", calls_per_s=2)
        port = Limited(store)
        assert len(await port.call_until_refused(9, shown={"duramen-forwarded": "rp-0"})) == 3

    play(scenario)


# --- What is known of namespaces -----------------------------------------------------------------


def test_a_change_of_limits_counts_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespace_limits, "FRESH_S", 0.0)

    async def scenario(store: MemoryStore) -> None:
        await set_limits(store, "shop", calls_per_s=1)
        port = Limited(store)
        assert len(await port.call_until_refused(9)) == 2
        await set_limits(store, "shop", calls_per_s=None)

        async def is_free() -> bool:
            return all([(await port.call()).status == 200 for _ in range(5)])

        await wait_for(is_free)
        await set_limits(store, "shop", calls_per_s=2)

        async def is_limited() -> bool:
            return len(await port.call_until_refused(9)) < 9

        await wait_for(is_limited)

    play(scenario)


class Away(MemoryStore):
    """A store that answers nothing, while it is away."""

    is_away = False
    waits: asyncio.Event | None = None

    async def get(self, path: str, watch: Watch | None = None) -> Stored | None:
        if self.waits is not None:
            await self.waits.wait()
        if self.is_away:
            raise Unavailable("away")
        return await super().get(path, watch)


def test_without_the_store_what_was_known_counts_else_the_defaults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(namespace_limits, "FRESH_S", 0.0)

    async def scenario(_: MemoryStore) -> None:
        store = Away(MemoryTree())
        await store.start()
        await set_limits(store, "shop", calls_per_s=2)
        await set_limits(store, "late", calls_per_s=2)
        port = Limited(store)
        assert (await port.call()).status == 200
        store.is_away = True
        await port.call()
        await wait_for(lambda: port.quotas.statistics()["limits"]["failed"] == 1)
        told = await port.call_until_refused(9)
        assert "calls_per_s, 2 at each proxy" in told[-1].problem["detail"]
        late = "/v1/namespaces/late/logs/a/records"
        assert {(await port.call(path=late)).status for _ in range(9)} == {200}, "the defaults"
        assert port.quotas.statistics()["limits"]["failed"] >= 1
        # A store that says nothing holds the first call for a moment, and no other.
        store.waits = asyncio.Event()
        began_s = time.monotonic()
        slow = "/v1/namespaces/slow/logs/a/records"
        assert (await port.call(path=slow)).status == 200
        assert 0.4 <= time.monotonic() - began_s < 5
        began_s = time.monotonic()
        assert (await port.call(path=slow)).status == 200
        assert time.monotonic() - began_s < 0.4
        await port.quotas.stop()

    play(scenario)


def test_a_store_that_says_nothing_is_asked_for_a_bounded_number_of_namespaces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(namespace_limits, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(namespace_limits, "_RETRY_S", 0.0)

    async def scenario(_: MemoryStore) -> None:
        store = Away(MemoryTree())
        await store.start()
        store.waits = asyncio.Event()
        port = Limited(store)
        most = namespace_limits.READING_COUNT_MAX
        paths = [f"/v1/namespaces/n{number}/logs/a/records" for number in range(most + 9)]
        for path in [*paths, *paths]:
            assert (await port.call(path=path)).status == 200
        assert port.quotas.statistics()["limits"]["reading"] == most
        store.waits.set()
        await wait_for(lambda: port.quotas.statistics()["limits"]["reading"] == 0)
        # Who was not read for want of room is read later.
        await set_limits(store, f"n{most}", calls_per_s=1)
        await port.call(path=paths[-9])
        await wait_for(lambda: port.quotas.statistics()["limits"]["reading"] == 0)
        assert (await port.call_until_refused(9, path=paths[-9]))[-1].status == 429
        await port.quotas.stop()

    play(scenario)


def test_what_is_not_understood_has_the_defaults() -> None:
    async def scenario(store: MemoryStore) -> None:
        await set_limits(store, "shop", calls_per_s=1, of_a_newer_version=3)
        port = Limited(store)
        assert {(await port.call()).status for _ in range(5)} == {200}

    play(scenario)


# --- Clients -------------------------------------------------------------------------------------


def test_clients_are_counted_apart_behind_401_and_403_and_processes_not_at_all(
    tmp_path: Path,
) -> None:
    async def scenario(world: door_world.World) -> None:
        await world.callers.give(*GRANTS)
        await set_limits(world.store, "shop", calls_per_s=6)
        known = await list_known(world, world.ports[0])
        limits = ClientLimits.model_validate(FREE.model_dump() | {"calls_per_s": 2})
        port = Limited(world.store, limits, world.admissions[0])

        async def call(shown: dict[str, str]) -> Told:
            return await port.call(shown=shown, length=0)

        for stranger, status in (({}, 401), (as_user("nobody"), 403)):
            told = [await call(stranger) for _ in range(9)]
            assert {one.status for one in told} == {status}, "it takes nothing from anybody"
        for name in ("own", "service:client/till"):
            told = [await call(known[name][0]) for _ in range(3)]
            assert [one.status for one in told] == [200, 200, 429], name
            check_refusal(told[-1], "client_limit.calls_per_s")
        # What a proxy has counted, and what a process of the cluster does, counts for nobody.
        client = NamedClient("user:corp/own", (), FAR_S)
        receiver = world.ports[0].receiver
        by_proxy = world.callers.identify(READ.role.value, READ.name, receiver, client)
        for free in (by_proxy, known["operator"][0]):
            assert {(await call(free)).status for _ in range(9)} == {200}
        # Of six calls of the namespace two are left, whoever makes them.
        told = [await call(known["token"][0]) for _ in range(2)]
        told += [await call(known["group:corp/team"][0])]
        assert [one.status for one in told] == [200, 200, 429]
        check_refusal(told[-1], "limits.calls_per_s")

    door_world.play(tmp_path, scenario)


def test_clients_have_no_limits_while_security_turns(tmp_path: Path) -> None:
    async def scenario(world: door_world.World) -> None:
        await world.callers.give("own writer shop")
        await set_limits(world.store, "shop", calls_per_s=6)
        limits = ClientLimits.model_validate(FREE.model_dump() | {"calls_per_s": 1})
        port = Limited(world.store, limits, world.admissions[0], security="migrate")

        async def is_known() -> bool:
            return (await port.call("GET", "/v1/namespaces", as_user("own"))).status == 200

        await wait_for(is_known)
        told = await port.call_until_refused(9, shown=as_user("own"))
        assert len(told) == 7, "nobody had any with none, to which those of namespaces are known"
        check_refusal(told[-1], "limits.calls_per_s")
        assert port.quotas.statistics()["clients"]["parties"] == 0

    door_world.play(tmp_path, scenario)


def test_a_client_is_held_to_what_it_announces(tmp_path: Path) -> None:
    async def scenario(world: door_world.World) -> None:
        await world.callers.give("own writer shop")
        limits = ClientLimits.model_validate(FREE.model_dump() | {"in_flight_bytes": "1MiB"})
        port = Limited(world.store, limits, world.admissions[0])

        async def is_in() -> bool:
            return (await port.call("GET", "/v1/namespaces/shop", as_user("own"))).status == 200

        await wait_for(is_in)
        port.waiting, before = asyncio.Event(), port.served_count
        open_ = asyncio.create_task(port.call(shown=as_user("own"), length=800 * KIB))
        await wait_for(lambda: port.served_count > before)
        for length in (300 * KIB, None):
            told = await port.call(shown=as_user("own"), length=length)
            check_refusal(told, "client_limit.in_flight_bytes")
        port.waiting.set()
        assert (await open_).status == 200
        assert (await port.call(shown=as_user("own"), length=2 * MIB)).status == 200
        assert port.quotas.statistics()["clients"]["in_flight_bytes"] == 0

    door_world.play(tmp_path, scenario)


def test_a_stream_in_debt_ends_when_it_may_not_go_on(tmp_path: Path) -> None:
    async def scenario(world: door_world.World) -> None:
        await world.callers.give("own writer shop")
        await set_limits(world.store, "shop", bytes_per_s="64KiB")
        port = Limited(world.store, FREE, world.admissions[0])
        port.answers = [bytes(64 * KIB * 60), b"more", b""]
        admission = world.admissions[0]

        async def is_in() -> bool:
            return (await port.call("GET", "/v1/namespaces/shop", as_user("own"))).status == 200

        port.answers, answers = [b""], port.answers
        await wait_for(is_in)
        port.answers = answers
        stream = asyncio.create_task(port.call("GET", APPEND, as_user("own"), length=None))
        await wait_for(lambda: admission.lasting.statistics()["open"] == 1)
        await world.callers.give()
        began_s = time.monotonic()
        await stream
        assert time.monotonic() - began_s < 10, "a minute of debt was not waited for"

    door_world.play(tmp_path, scenario)


# --- Real proxies --------------------------------------------------------------------------------


def test_limits_are_set_by_whoever_operates_and_count_at_the_first_proxy_alone(
    tmp_path: Path,
) -> None:
    async def scenario(world: AdmissionWorld) -> None:
        await world.callers.give("ann owner ns", "op owner *", "op operator *")
        path, limits = "/v1/namespaces/ns", {"limits": {"calls_per_s": 2}}

        async def change(client: httpx.AsyncClient, who: str, body: Any) -> int:
            world.sequencer.control_answers = [(200, {"config": {}, "changed": True})]
            answer = await client.patch(path, json=body, headers=as_user(who))
            return answer.status_code

        async def is_known() -> bool:
            return await change(world.write, "ann", {"auto_create": True}) == 200

        await wait_for(is_known)
        for client in (world.write, world.http):
            assert await change(client, "ann", limits) == 403
            assert await change(client, "op", limits) == 200
            assert (await client.put(path, json=limits, headers=as_user("ann"))).status_code == 403
        assert world.sequencer.controls[-1]["config"] == limits

    admission_world.play(tmp_path, scenario)


def test_a_client_waits_as_it_is_told_and_comes_again() -> None:
    """The retry of the SDK and of the command line, with the pauses that a refusal advises."""

    async def scenario(store: MemoryStore) -> None:
        await set_limits(store, "shop", calls_per_s=2)
        port = Limited(store)
        pauses: list[float] = []

        async def call() -> int:
            told = await port.call()
            error = read_problem(told.problem)
            if error is not None:
                raise error
            return told.status

        async def sleep(pause_s: float) -> None:
            pauses.append(pause_s)
            await let_pass(pause_s, what="the pause that the refusal advises")

        for _ in range(4):
            policy = Pauses(RetryPolicy(within_s=10))
            assert await repeat(call, policy, is_read=False, sleep=sleep) == 200
        assert 1 <= len(pauses) <= 4 and all(0 < pause_s < 2 for pause_s in pauses)

    play(scenario)
