"""The end of a service process: its status and its one sentence, whatever ends it.

The frame runs in this process around a service that does nothing. What signals do to real services
is in `tests/process`. Source: duramen.runtime.service, docs/protocol/admin.md "Every service".
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from fastapi import FastAPI

from duramen.cluster.layout import pick_free_port
from duramen.runtime import service as frame
from duramen.runtime.role import ServiceOptions, StartRefusedError
from duramen.runtime.security.process_security import ProcessSecurity
from duramen.runtime.service import run_service
from tests.component.admin_world import make_context, read_held
from tests.component.issuing_world import IssuingWorld
from tests.pauses import stay
from tests.waiting import wait_for

REVOKED_WITHIN_S: Final = 5.0

OPTIONS = ServiceOptions(
    "bookie", "c", "bookie-0", "127.0.0.1", 7101, 0, "zk:2181", "eu", "ra", "none", 4.0, None
)


class IdleService:
    """A service that calls `on_ready` when it has started."""

    def __init__(self, on_ready: Callable[[FastAPI], Any] = lambda _: None) -> None:
        self._on_ready = on_ready
        self._app = FastAPI()
        self.is_stopped = False

    def add_admin_routes(self, app: FastAPI) -> None:
        self._app = app

    async def start(self) -> None:
        self._on_ready(self._app)

    async def stop(self) -> None:
        self.is_stopped = True

    def is_ready(self) -> bool:
        return True

    def statistics(self) -> dict[str, Any]:
        return {}


@pytest.fixture(autouse=True)
def _leave_this_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "_keep_freed_memory", lambda: None)
    monkeypatch.setattr(frame, "_spare_collector", lambda: None)


def test_a_service_that_failed_ends_with_status_1_and_says_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Else whoever supervises it takes the end for one that was wanted."""
    made: list[IdleService] = []

    def make(_: ServiceOptions, fail: Callable[[str], None], _security: object) -> IdleService:
        def fail_twice(_: FastAPI) -> None:
            fail("the journal cannot be written")
            fail("and so nothing else can")

        made.append(IdleService(fail_twice))
        return made[0]

    assert run_service(OPTIONS, make) == 1
    assert capsys.readouterr().err == "bookie-0 stops: the journal cannot be written\n"
    assert made[0].is_stopped


def test_one_that_was_told_to_stop_ends_well(capsys: pytest.CaptureFixture[str]) -> None:
    async def ask(app: FastAPI) -> None:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://admin") as http:
            assert (await http.post("/v1/drain-and-stop")).status_code == 202

    tasks: list[asyncio.Task[None]] = []
    service = IdleService(lambda app: tasks.append(asyncio.create_task(ask(app))))
    assert run_service(OPTIONS, lambda *_: service) == 0
    assert capsys.readouterr().err == "" and service.is_stopped


@pytest.mark.parametrize("number", [errno.EADDRINUSE, errno.EADDRNOTAVAIL])
def test_a_port_that_is_taken_is_told_in_a_sentence(
    number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def make(*_: object) -> IdleService:
        raise OSError(number, "bind")

    assert run_service(OPTIONS, make) == 1
    told = capsys.readouterr().err
    assert told.startswith("bookie-0 cannot start: ") and told.count("\n") == 1
    assert "127.0.0.1, port 7101 or 0" in told and "--data-port" in told


def test_another_error_of_the_system_is_not_taken_for_one() -> None:
    def make(*_: object) -> IdleService:
        raise OSError(errno.EIO, "the disk is broken")

    with pytest.raises(OSError, match="the disk is broken"):
        run_service(OPTIONS, make)


def test_a_start_that_is_refused_is_a_sentence_too(capsys: pytest.CaptureFixture[str]) -> None:
    def make(*_: object) -> IdleService:
        raise StartRefusedError("its disks are another's")

    assert run_service(OPTIONS, make) == 1
    assert capsys.readouterr().err == "bookie-0 cannot start: its disks are another's\n"


class WaitingService(IdleService):
    """One that waits for ZooKeeper for ever."""

    async def start(self) -> None:
        await stay()

    def is_ready(self) -> bool:
        return False


def test_an_identity_is_followed_and_administers_before_zookeeper_was_reached(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = IssuingWorld(tmp_path)
    operators = [read_held(world.issue("operator", f"op-{number}")) for number in range(2)]
    options = dataclasses.replace(
        OPTIONS, admin_port=pick_free_port(), security="on", tls_dir=world.server
    )
    assert options.admin_url() == f"https://127.0.0.1:{options.admin_port}"

    async def use() -> None:
        contexts = [make_context(world, held) for held in operators]
        clients = [
            httpx.AsyncClient(base_url=options.admin_url(), verify=one, trust_env=False)
            for one in contexts
        ]
        kept, stolen = clients
        await wait_for(
            lambda: answers(kept, 503), 10, "the port to speak TLS", passing=(httpx.ConnectError,)
        )
        assert (await stolen.get("/v1/statistics")).status_code == 200
        world.revoke("op-1", world.server)

        async def is_refused() -> bool:
            return (await stolen.get("/v1/statistics")).status_code == 401

        await wait_for(is_refused, REVOKED_WITHIN_S, "what was revoked to count", rest_s=0.1)
        assert (await stolen.post("/v1/drain-and-stop")).status_code == 401
        assert (await kept.post("/v1/drain-and-stop")).status_code == 202
        for client in clients:
            await client.aclose()

    async def answers(client: httpx.AsyncClient, status: int) -> bool:
        return (await client.get("/readyz")).status_code == status

    async def use_or_stop() -> None:
        try:
            await use()
        except BaseException:
            os.kill(os.getpid(), signal.SIGTERM)
            raise

    made: list[asyncio.Task[None]] = []

    def make(_: ServiceOptions, _fail: object, security: ProcessSecurity | None) -> WaitingService:
        assert security is not None and security.identity.name == "bookie-0"
        made.append(asyncio.create_task(use_or_stop()))
        return WaitingService()

    assert run_service(options, make) == 0
    made[0].result()
    assert capsys.readouterr().err == ""


def test_a_folder_of_another_node_is_no_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = IssuingWorld(tmp_path)
    options = dataclasses.replace(OPTIONS, node_id="bookie-1", tls_dir=world.server)
    assert run_service(options, lambda *_: IdleService()) == 1
    assert "give the folder of that one" in capsys.readouterr().err
