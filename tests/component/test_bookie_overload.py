"""A bookie that is offered more than it can take: real HTTP/2, a real journal, a disk that stalls.

What a client sees of `admission`: refusals with advice, nobody held up by another class, memory
that does not grow with what is offered. Every bound and decision by itself: `test_admission`.
"""

from __future__ import annotations

import asyncio
import os
import threading
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
from httpx import AsyncClient

from duramen.core.status import BookieStatus
from duramen.ids import EntryId
from duramen.runtime.edge.embedded_server import ServerLimits
from duramen.runtime.http_client import NoAnswerError, OverloadedError, PeerClient
from duramen.units import KIB, MIB, MS, SECOND
from duramen.wire.bookie_calls import (
    Add,
    ReadRange,
    Seal,
    ServiceClass,
    pack_adds,
    pack_reads,
    parse_read_answers,
    parse_statuses,
)
from duramen.wire.frame import FRAME_BYTES_HARD_MAX, RETRY_AFTER_HEADER
from duramen_bookie.admission import ClassLimits
from duramen_bookie.file_system import DiskFile, PosixFile, PosixFileSystem
from duramen_bookie.handlers import DataPlane
from duramen_bookie.storage import Storage
from tests.component.bookie_world import LEDGER, LOG, SEAL, Bookie, add, run, running, span
from tests.waiting import wait_for

OK = BookieStatus.OK
OVERLOADED = BookieStatus.OVERLOADED
SIZE = 256 * KIB
LIMITS = {
    ServiceClass.APPEND: ClassLimits(4_096, 4 * MIB, 0, 0, 100),
    ServiceClass.TAIL_READ: ClassLimits(64, 0, MIB, 1, 50),
    ServiceClass.CATCH_UP_READ: ClassLimits(8, 0, MIB, 2, 250),
    ServiceClass.RECOVERY: ClassLimits(64, MIB, MIB, 1, 100),
    ServiceClass.REPAIR: ClassLimits(8, MIB, MIB, 1, 1_000),
}


class StallingFile(PosixFile):
    """A disk that syncs nothing while a test says so."""

    gate = threading.Event()

    def fdatasync(self) -> None:
        assert self.gate.wait(30), "the test lets the disk go on"
        super().fdatasync()


class StallingFileSystem(PosixFileSystem):
    def open(self, path: str, *, is_new: bool = False) -> DiskFile:
        flags = os.O_RDWR | (os.O_CREAT | os.O_EXCL if is_new else 0)
        return StallingFile(os.open(path, flags, 0o600))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Small bounds, and a disk that syncs while the event is set."""
    monkeypatch.setattr("duramen_bookie.service.DataPlane", partial(DataPlane, limits=LIMITS))
    limits = partial(ServerLimits, bodies_bytes=2 * MIB)
    monkeypatch.setattr("duramen_bookie.service.ServerLimits", limits)
    monkeypatch.setattr("duramen_bookie.service.PosixFileSystem", StallingFileSystem)
    monkeypatch.setattr(StallingFile, "gate", threading.Event())
    StallingFile.gate.set()
    return StallingFile.gate


@asynccontextmanager
async def clients(count: int) -> AsyncIterator[list[PeerClient]]:
    """Each with a connection of its own."""
    found = [PeerClient() for _ in range(count)]
    try:
        yield found
    finally:
        for client in found:
            await client.close()


def held(bookie: Bookie, service: ServiceClass) -> dict[str, Any]:
    classes = bookie.service.statistics()["data_plane"]["classes"]
    return dict(classes[service.name.lower()])


def count_settled(bookie: Bookie, adding: Sequence[asyncio.Task[Any]]) -> int:
    """Adds that were answered or are held by the bookie."""
    done = sum([task.done() for task in adding])
    return done + int(held(bookie, ServiceClass.APPEND)["requests"])


async def post_adds(bookie: Bookie, client: PeerClient, body: bytes) -> list[BookieStatus]:
    url = f"{bookie.service.data_url}/b/add"
    return parse_statuses(await client.call(url, body, 20 * SECOND))


async def read(bookie: Bookie, client: PeerClient, *ranges: ReadRange) -> Sequence[BookieStatus]:
    body = pack_reads(bookie.incarnation, ranges)
    answer = await client.call(f"{bookie.service.data_url}/b/read", body, 20 * SECOND)
    return [row.status for row in parse_read_answers(answer)]


def test_memory_does_not_grow_with_what_is_offered_to_a_stalled_disk(
    tmp_path: Path, disk: threading.Event
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie, clients(3) as writers:
            bodies = [pack_adds(bookie.incarnation, [add(n, size=SIZE)]) for n in range(120)]
            disk.clear()
            tracemalloc.start()
            try:
                adding = [
                    asyncio.create_task(post_adds(bookie, writers[n % 3], body))
                    for n, body in enumerate(bodies)
                ]
                await wait_for(lambda: count_settled(bookie, adding) == len(bodies))
                _, peak_bytes = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert {task.result()[0] for task in adding if task.done()} == {OVERLOADED}
            append = held(bookie, ServiceClass.APPEND)
            assert 3 * MIB < append["add_bytes"] <= 4 * MIB
            assert bookie.service.statistics()["storage"]["queued_bytes"] <= 4 * MIB
            assert peak_bytes < 12 * MIB < sum(map(len, bodies)) / 2, peak_bytes
            write_back = asyncio.create_task(bookie.add(add(500, size=SIZE, recovery=True)))
            sealing = asyncio.create_task(bookie.seal(Seal(LOG, SEAL.epoch, LEDGER)))
            await wait_for(lambda: held(bookie, ServiceClass.RECOVERY)["requests"] == 2)
            disk.set()
            assert await write_back == [OK]
            assert (await sealing)[0].status is OK
            statuses = [(await task)[0] for task in adding]
            assert statuses.count(OK) == append["requests"]
            assert held(bookie, ServiceClass.APPEND)["add_bytes"] == 0

    run(scenario)


def test_one_client_cannot_take_all_the_room_for_appends(
    tmp_path: Path, disk: threading.Event
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie, clients(2) as (greedy, modest):
            disk.clear()
            offered: list[Add] = [add(n, size=SIZE) for n in range(20)]
            adding = [
                asyncio.create_task(post_adds(bookie, greedy, pack_adds(bookie.incarnation, [row])))
                for row in offered
            ]
            await wait_for(lambda: count_settled(bookie, adding) == len(adding))
            assert held(bookie, ServiceClass.APPEND)["add_bytes"] <= 2 * MIB
            body = pack_adds(bookie.incarnation, [add(100, size=SIZE)])
            other = asyncio.create_task(post_adds(bookie, modest, body))
            await wait_for(lambda: held(bookie, ServiceClass.APPEND)["clients"] == 2)
            disk.set()
            assert await other == [OK]
            await asyncio.gather(*adding)

    run(scenario)


def test_a_flood_of_catch_up_reads_is_refused_with_advice_and_delays_nobody(
    tmp_path: Path, disk: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    served = Storage.read

    def read_when_let(storage: Storage, readings: Any) -> Any:
        is_flood = any(reading.plan.first < 10 for reading in readings)
        if is_flood and threading.current_thread() is not threading.main_thread():
            assert gate.wait(30), "the test lets reads go on"
        return served(storage, readings)

    monkeypatch.setattr(Storage, "read", read_when_let)
    # What waits for the gate is not refused for that.
    monkeypatch.setattr("duramen_bookie.handlers._read_clock_us", lambda: 0)

    async def scenario() -> None:
        async with running(tmp_path) as bookie, clients(3) as (first, second, third):
            assert disk.is_set()
            assert await bookie.add(*[add(n) for n in range(20)]) == [OK] * 20
            catch_up = span(0, 9)._replace(service=ServiceClass.CATCH_UP_READ)
            flood = [
                asyncio.create_task(read(bookie, client, catch_up))
                for client in [first, second] * 4
            ]
            await wait_for(
                lambda: held(bookie, ServiceClass.CATCH_UP_READ)["requests"] == len(flood)
            )
            with pytest.raises(OverloadedError, match="HTTP 503") as caught:
                await read(bookie, third, catch_up)
            assert caught.value.retry_after_us == 250 * MS
            async with AsyncClient(trust_env=False) as plain:
                response = await plain.post(
                    f"{bookie.service.data_url}/b/read",
                    content=pack_reads(bookie.incarnation, [catch_up]),
                )
            assert (response.status_code, response.headers["retry-after"]) == (503, "1")
            assert response.headers[RETRY_AFTER_HEADER] == "250"
            assert response.text.startswith("catch up read: 8 requests")
            tail, recovery = (
                span(15)._replace(service=s)
                for s in (ServiceClass.TAIL_READ, ServiceClass.RECOVERY)
            )
            assert await read(bookie, third, tail) == await read(bookie, first, recovery) == [OK]
            assert await bookie.add(add(30)) == [OK]
            gate.set()
            assert await asyncio.gather(*flood) == [[OK]] * 8
            assert await read(bookie, third, catch_up) == [OK]

    run(scenario)


def test_limits_hold_before_anything_is_done(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            too_large = bytes(FRAME_BYTES_HARD_MAX + 1)
            with pytest.raises(NoAnswerError, match="HTTP 413"):
                await bookie.post("/b/add", too_large)
            with pytest.raises(NoAnswerError, match="HTTP 400"):
                await bookie.read(*[span(0)] * 4_097)
            large = add(0)._replace(entry=bytes(5 * MIB))
            with pytest.raises(NoAnswerError, match="HTTP 400"):
                await bookie.add(add(1), large)
            assert (await bookie.read(*[span(1)] * 4_096))[0].status is BookieStatus.NO_ENTRY
            assert await bookie.add(add(1)) == [OK]

    run(scenario)


def test_every_queue_is_shown(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            poll = span(0)._replace(wait_ms=50_000, wait_for=EntryId(2))
            waiting = asyncio.create_task(bookie.read(poll))
            await bookie.wait_waiters(1)
            text = prometheus_client.generate_latest().decode()
            assert 'duramen_bookie_class_requests{class="append"} 0.0' in text
            assert "duramen_bookie_waiting_polls 1.0" in text
            server = bookie.service.statistics()["server"]
            if server["connections"] is not None:
                assert server["connections"] >= 1
                assert f"duramen_bookie_open_connections {server['connections']}.0" in text
            assert server["bodies_bytes"] == 0
            await bookie.add(add(0))
            await waiting

    run(scenario)
