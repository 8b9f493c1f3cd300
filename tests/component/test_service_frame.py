"""The end of a service process: its status and its one sentence, whatever ends it.

The frame runs in this process around a service that does nothing. What signals do to real services
is in `tests/process`. Source: duramen.runtime.service, docs/protocol/admin.md "Every service".
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from duramen.runtime import service as frame
from duramen.runtime.role import ServiceOptions, StartRefusedError
from duramen.runtime.service import run_service

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
