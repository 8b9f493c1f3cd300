"""What a typed call becomes when the API server is slow, silent, broken or another one.

It is one of two errors in each case, and never hangs. The server is the fake one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from kubernetes.aio.client import ApiClient

from duramen_operator.kube import ApiUnreachable, Kube, Login, Refused
from duramen_operator.plan.observed import Ref
from duramen_operator.plan.steps import Event
from duramen_operator.typed import client as client_module
from duramen_operator.typed.client import TypedClient, make_client
from duramen_operator.typed.events import report_event
from tests.kubernetes.typed.fake_api import Fault
from tests.kubernetes.typed.worlds import EVENTS, FakeWorld, connected, fake_world
from tests.process.times import HANG_S

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ABOUT = Ref("duramen.io/v1alpha1", "LogCluster", "main")
EVENT = Event(ABOUT, "uid-1", "Serving", "it serves", NOW, NOW)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[FakeWorld]:
    with fake_world(EVENTS, tmp_path) as found:
        yield found


async def report(client: TypedClient) -> None:
    await report_event(client, EVENT, "here")


async def fail(reporting: Awaitable[None]) -> str:
    with pytest.raises(ApiUnreachable) as caught:
        await reporting
    return str(caught.value)


def test_a_silent_server_is_unreachable_in_time(world: FakeWorld) -> None:
    async def run() -> None:
        async with connected(world, timeout_s=0.1) as (client, _):
            world.api.silence.clear()
            assert "Timeout" in await fail(report(client))
            assert client.statistics()["in_flight"] == 0

    asyncio.run(asyncio.wait_for(run(), HANG_S))


def test_no_server_at_all_is_unreachable(tmp_path: Path) -> None:
    async def run() -> None:
        with fake_world(EVENTS, tmp_path) as world:
            kube = await Kube.connect(world.namespace, str(world.kubeconfig))
        client = TypedClient(kube)
        assert "Cannot connect" in await fail(report(client))
        assert client.statistics()["unreachable"] == 1
        await client.close()

    asyncio.run(run())


PAGE = b"<html>a proxy says hello</html>"


@pytest.mark.parametrize(
    "fault",
    [
        Fault(200, "text/html", PAGE),
        Fault(200, "application/octet-stream", PAGE),
        Fault(200, "application/json", b"{"),
        Fault(201, "application/json", b"[1]"),
        Fault(201, "application/json", b"3"),
        Fault(201, "application/json", b'{"metadata": 7}'),
    ],
    ids=["page", "bytes", "cut off", "list", "number", "other model"],
)
def test_an_answer_that_is_none_leaves_open_what_happened(world: FakeWorld, fault: Fault) -> None:
    async def run() -> None:
        async with connected(world) as (client, _):
            world.api.fault = fault
            await fail(report(client))

    asyncio.run(run())


def test_a_refusal_that_is_no_status_says_its_text(world: FakeWorld) -> None:
    async def run() -> None:
        async with connected(world) as (client, _):
            world.api.fault = Fault(502, "text/html", PAGE)
            with pytest.raises(Refused) as caught:
                await report(client)
            assert caught.value.status == 502
            assert (caught.value.problem.code, caught.value.problem.message) == (
                "Http502",
                PAGE.decode(),
            )
            assert caught.value.problem.is_retryable

    asyncio.run(run())


def test_calls_follow_a_login_to_another_server(world: FakeWorld, tmp_path: Path) -> None:
    async def run() -> None:
        kube = await Kube.connect(world.namespace, str(world.kubeconfig))
        client = TypedClient(kube)
        await report(client)
        folder = tmp_path / "other"
        folder.mkdir()
        with fake_world(EVENTS, folder) as other:
            world.kubeconfig.write_text(other.kubeconfig.read_text())
            await kube.renew_login()
            await report(client)
            assert len(other.api.events) == len(world.api.events) == 1
            await client.close()

    asyncio.run(run())


def test_calls_that_meet_another_login_at_once_make_one_client(
    world: FakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[ApiClient] = []
    closed: list[ApiClient] = []

    def make(login: Login) -> ApiClient:
        one = make_client(login)
        close: Callable[[], Awaitable[None]] = one.close

        async def note() -> None:
            closed.append(one)
            await asyncio.sleep(0)  # others have their turn
            await close()

        monkeypatch.setattr(one, "close", note)
        made.append(one)
        return one

    monkeypatch.setattr(client_module, "make_client", make)

    async def run() -> None:
        async with connected(world) as (client, kube):
            await report(client)
            folder = tmp_path / "other"
            folder.mkdir()
            with fake_world(EVENTS, folder) as other:
                world.kubeconfig.write_text(other.kubeconfig.read_text())
                await kube.renew_login()
                told = [report(client) for _ in range(3)]
                found = await asyncio.gather(*told, return_exceptions=True)
                # Of three that tell one event, two are told that it is there.
                assert sum(isinstance(one, Refused) for one in found) == 2

    asyncio.run(run())
    assert made == closed and len(made) == 2
