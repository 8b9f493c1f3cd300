"""Every code of the closed list is provoked by a test: here those that need a fault.

One proxy with faked neighbours for each case. tests/process/test_error_codes.py has the codes that
a healthy cluster gives; the last test here sees that each code is in one of the two tables, or
among those that no public port can answer yet, with the reason.

Source: docs/protocol/errors.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import httpx
import pytest

from duramen.core.status import BookieStatus
from duramen.errors import ERRORS, DuramenError
from duramen.ids import Epoch
from duramen.wire.metadata_json import encode_node
from duramen.wire.sequencer_calls import Append, AppendResult
from tests.component import losses
from tests.component import readproxy_world as read
from tests.component import writeproxy_world as write
from tests.component.error_answers import check_answer
from tests.process.error_cases import CASES

RAW: Final = {"content-type": "application/octet-stream"}
NEVER: Final = {
    "unauthenticated": "there is no authentication yet",
    "segment_not_found": "no public call names a segment",
    "audit_unavailable": "needs identities: tests/component/test_audit_trail.py provokes it",
}
"""Codes that no public port gives in this version, and why."""


async def append_to(world: write.World, **headers: str) -> httpx.Response:
    """One raw append over HTTP."""
    named = {**RAW, **{name.replace("_", "-"): text for name, text in headers.items()}}
    url = f"http://127.0.0.1:{world.proxy.port}{write.RECORDS}"
    async with httpx.AsyncClient(timeout=20, trust_env=False) as client:
        return await client.post(url, content=b"x", headers=named)


async def provoke_uncertain(world: write.World) -> httpx.Response:
    world.first.decide = write.always(None)
    return await append_to(world)


async def provoke_rate_limited(world: write.World) -> httpx.Response:
    config = encode_node({"config": {"limits": {"calls_per_s": 1}}})
    await world.setup.set(write.PATHS.namespace("a"), config, version=0)
    await append_to(world)
    return await append_to(world)


async def provoke_window_full(world: write.World) -> httpx.Response:
    world.first.decide = write.always(DuramenError("window_full", "the window is full"))
    return await append_to(world)


async def provoke_held(world: write.World) -> httpx.Response:
    world.first.decide = write.always(DuramenError("log_held", "core-app writes it"))
    return await append_to(world)


async def provoke_needs_ordered(world: write.World) -> httpx.Response:
    world.first.decide = write.always(DuramenError("needs_ordered", "producers need it"))
    return await append_to(world)


async def provoke_mode_changing(world: write.World) -> httpx.Response:
    world.first.decide = write.always(DuramenError("mode_changing", "it is to be out_of_order"))
    return await append_to(world)


async def provoke_not_appended(world: write.World) -> httpx.Response:
    """The proxy does not append it again by itself: the client says whether it is wanted yet."""
    world.first.decide = write.always(DuramenError("not_appended", "too few bookies took it"))
    answer = await append_to(world)
    assert len(world.first.frames) == 1, world.first.frames
    return answer


async def provoke_too_few_bookies(world: write.World) -> httpx.Response:
    world.first.decide = write.always(DuramenError("not_enough_bookies", "2 of 3"))
    return await append_to(world)


async def provoke_unavailable(world: write.World) -> httpx.Response:
    await world.first.stop()
    return await append_to(world, duramen_timeout="100ms")


async def provoke_metadata_unavailable(world: write.World) -> httpx.Response:
    world.store.disconnect()
    return await append_to(world)


async def provoke_draining(world: write.World) -> httpx.Response:
    held = asyncio.Event()

    async def hold(append: Append) -> AppendResult | None:
        await held.wait()
        return await world.first.accept(append)

    world.first.decide = hold
    first = asyncio.create_task(append_to(world))
    await write.wait_requests(world, 1)
    stop = asyncio.create_task(world.proxy.stop())
    await asyncio.sleep(0)
    answer = await append_to(world)
    held.set()
    assert (await first).status_code == 200
    await stop
    return answer


async def provoke_overloaded(world: write.World) -> httpx.Response:
    """No read proxy is registered: there is nobody to forward a read to."""
    url = f"http://127.0.0.1:{world.proxy.port}{write.RECORDS}"
    async with httpx.AsyncClient(timeout=20, trust_env=False) as client:
        return await client.get(url)


async def provoke_data_unavailable(world: read.World) -> httpx.Response:
    await world.fill()
    for bookie in world.bookies.values():
        bookie.status = BookieStatus.UNKNOWN
    return await world.get("?from=head")


async def provoke_data_lost(world: read.World) -> httpx.Response:
    await world.fill()
    await losses.lose(world, 1, 2)
    return await world.get("?from=seq:3")


async def provoke_internal(world: read.World) -> httpx.Response:
    """The node of the open segment is no segment."""
    await world.fill()
    await world.put(read.PATHS.segment(read.LOG, Epoch(2)), b'{"v": 99}')
    return await world.get("?from=head")


async def provoke_cold_store_unavailable(world: read.World) -> httpx.Response:
    """What is read has left the bookies, and the cold store cannot be reached."""
    await world.fill()
    await world.archive(1)
    await world.release(2)
    world.cold_store.is_down = True
    return await world.get("?from=head")


WRITES: Final[dict[str, Callable[[write.World], Awaitable[httpx.Response]]]] = {
    "append_uncertain": provoke_uncertain,
    "window_full": provoke_window_full,
    "rate_limited": provoke_rate_limited,
    "log_held": provoke_held,
    "needs_ordered": provoke_needs_ordered,
    "mode_changing": provoke_mode_changing,
    "not_appended": provoke_not_appended,
    "not_enough_bookies": provoke_too_few_bookies,
    "log_unavailable": provoke_unavailable,
    "metadata_unavailable": provoke_metadata_unavailable,
    "server_draining": provoke_draining,
    "overloaded": provoke_overloaded,
}
READS: Final[dict[str, Callable[[read.World], Awaitable[httpx.Response]]]] = {
    "data_unavailable": provoke_data_unavailable,
    "data_lost": provoke_data_lost,
    "cold_store_unavailable": provoke_cold_store_unavailable,
    "internal": provoke_internal,
}


@pytest.mark.parametrize("code", WRITES)
def test_a_code_of_the_write_proxy_is_provoked(code: str) -> None:
    async def scenario(world: write.World) -> None:
        answer = await WRITES[code](world)
        check_answer(answer, answer.request.method, write.RECORDS, ERRORS[code])

    write.run(scenario)


@pytest.mark.parametrize("code", READS)
def test_a_code_of_the_read_proxy_is_provoked(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duramen.runtime.reading.log_reader.UNAVAILABLE_US", 200_000)

    async def scenario(world: read.World) -> None:
        answer = await READS[code](world)
        check_answer(answer, "GET", read.RECORDS, ERRORS[code])

    read.run(scenario)


def test_no_code_is_left_out() -> None:
    tables = [set(CASES), set(WRITES), set(READS), set(NEVER)]
    assert set().union(*tables) == set(ERRORS)
    assert sum(map(len, tables)) == len(ERRORS), "a code is in two tables"
