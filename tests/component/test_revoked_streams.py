"""Whoever is revoked loses within 5 s what is open, too: every lasting call, whatever is revoked.

Streams of both forms, long polls of both forms and append sessions, each asked of the proxy that
does the work and of the other one. Source: docs/protocol/rights.md "How a call is judged".
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import httpx
import pytest

from duramen.wire.read_answers import MEDIA_TYPE
from tests.component.admission_world import RECORDS, AdmissionWorld, Headers, as_user, bear, play
from tests.component.admission_world import until as ask_until
from tests.unit.web_token_forge import STRANGER, to_jwk, to_set
from tests.waiting import wait_for

WITHIN_S: Final = 5.0
BROKEN: Final = "broken off"
POLL: Final = f"{RECORDS}?from=tail&wait=60s"

Revoke = Callable[[], Awaitable[None]]
Opened = asyncio.Task[str]
"""An open call; its result is the code with which it ended."""


async def by_token(world: AdmissionWorld) -> tuple[Headers, Revoke]:
    text, token_id = await world.callers.make_token("read,append ns")

    async def revoke() -> None:
        await world.callers.revoke(token_id)

    return bear(text), revoke


async def by_grant(world: AdmissionWorld) -> tuple[Headers, Revoke]:
    await world.callers.give("ann writer ns")
    return as_user("ann"), world.callers.give


async def by_key(world: AdmissionWorld) -> tuple[Headers, Revoke]:
    await world.callers.give("ann writer ns")

    async def revoke() -> None:
        world.key_file.write_bytes(to_set(to_jwk(STRANGER, "ec-2")))

    return as_user("ann"), revoke


WAYS: Final = {
    "token": (by_token, "unauthenticated"),
    "grant": (by_grant, "forbidden"),
    "key": (by_key, "unauthenticated"),
}


async def open_stream(client: httpx.AsyncClient, accept: str, query: str, shown: Headers) -> Opened:
    """A stream that has given the records which are there."""
    begun = asyncio.Event()

    async def read() -> str:
        last = ""
        url = f"{RECORDS}?from=head{query}"
        async with client.stream("GET", url, headers={**shown, "accept": accept}) as answer:
            assert answer.status_code == 200
            try:
                async for line in answer.aiter_lines():
                    begun.set()
                    last = line or last
            except httpx.RemoteProtocolError:
                return BROKEN
        problem = json.loads(last.removeprefix("data: "))
        return str(problem.get("error", problem)["code"])

    task = asyncio.create_task(read())
    await asyncio.wait_for(begun.wait(), WITHIN_S)
    return task


async def open_poll(client: httpx.AsyncClient, accept: str, shown: Headers) -> Opened:
    async def read() -> str:
        answer = await client.get(POLL, headers={**shown, "accept": accept})
        return str(answer.json()["code"])

    return asyncio.create_task(read())


async def open_session(port: int, shown: Headers) -> Opened:
    """A session whose first batch is acknowledged."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    line = json.dumps({"records": [{"body": "x"}]}).encode() + b"\n"
    writer.write(
        f"POST {RECORDS}:stream HTTP/1.1\r\nhost: localhost\r\n"
        f"authorization: {shown['authorization']}\r\ncontent-type: application/x-ndjson\r\n"
        f"transfer-encoding: chunked\r\n\r\n{len(line):x}\r\n".encode()
        + line
        + b"\r\n"
    )
    await reader.readuntil(b'"start"')

    async def read() -> str:
        try:
            rest = await reader.readuntil(b"session_ended")
            return next((c for c in ("unauthenticated", "forbidden") if c in rest.decode()), "none")
        except asyncio.IncompleteReadError:
            return BROKEN
        finally:
            writer.close()

    return asyncio.create_task(read())


async def open_all(world: AdmissionWorld, shown: Headers, *, forwarded: bool) -> dict[str, Opened]:
    reads, appends = (world.write, world.http) if forwarded else (world.http, world.write)
    await ask_until(lambda: reads.get(RECORDS, headers=shown), 200)
    record = {"records": [{"body": "x"}]}
    await ask_until(lambda: appends.post(RECORDS, json=record, headers=shown), 200)
    port = world.proxy.port if forwarded else world.write_proxy.port
    opened = {
        "events": await open_stream(reads, "text/event-stream", "", shown),
        "lines": await open_stream(
            reads, "application/x-ndjson", "&wait=60s&notes=true", shown
        ),
        "poll": await open_poll(reads, "application/json", shown),
        "frames": await open_poll(reads, MEDIA_TYPE, shown),
        "session": await open_session(port, shown),
    }  # fmt: skip

    def are_open() -> bool:
        return int(world.proxy.statistics()["admission"]["lasting"]["open"]) >= 4

    await wait_for(are_open)
    return opened


@pytest.mark.parametrize("forwarded", [False, True], ids=["own", "forwarded"])
@pytest.mark.parametrize("way", WAYS)
def test_whatever_is_open_ends_soon_after_its_caller_was_revoked(
    tmp_path: Path, way: str, forwarded: bool
) -> None:
    async def scenario(world: AdmissionWorld) -> None:
        await world.open_segment()
        await world.append(2)
        begin, code = WAYS[way]
        shown, revoke = await begin(world)
        opened = await open_all(world, shown, forwarded=forwarded)
        assert not [name for name, task in opened.items() if task.done()]
        began_s = time.monotonic()
        await revoke()
        _, late = await asyncio.wait(opened.values(), timeout=2 * WITHIN_S)
        took_s = time.monotonic() - began_s
        assert not late, [name for name, task in opened.items() if task in late]
        assert took_s < WITHIN_S
        told = {name: task.result() for name, task in opened.items()}
        # A peer's refusal is no word about the client; it is asked again where it called.
        polls = {code, "overloaded"} if forwarded else {code}
        assert told["poll"] in polls and told["frames"] in polls
        # It believes the first proxy about web tokens, so that one breaks off what it passes on.
        is_broken = forwarded and way == "key"
        for name in ("events", "lines", "session"):
            assert told[name] == (BROKEN if is_broken else code), told

    play(tmp_path, scenario)
