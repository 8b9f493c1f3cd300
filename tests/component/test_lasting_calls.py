"""What lasts ends when it is no longer allowed: streams, long polls, sessions, forwarded or not.

Source: docs/protocol/rights.md "How a call is judged".
"""

from __future__ import annotations

import asyncio
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from duramen.core.rights.grants import parse_principal
from duramen.errors import DuramenError
from duramen.runtime.admission import lasting_calls
from duramen.runtime.admission.callers import AdmittedCall, ShownCredentials
from duramen.runtime.admission.lasting_calls import AGAIN_S, Judgement, LastingCalls
from duramen.runtime.credentials.principals import Bearer
from tests.component.admission_world import (
    READ,
    RECORDS,
    WRITE,
    AdmissionWorld,
    Headers,
    as_user,
    bear,
    play,
    until,
)
from tests.unit.web_token_forge import NOW_S
from tests.waiting import wait_for

WITHIN_S = 5.0
ANN = as_user("ann")
FORBIDDEN = DuramenError("forbidden", "read on ns/log: you may not")


async def fill(world: AdmissionWorld) -> None:
    await world.open_segment()
    await world.append(2)


async def take_until_end(
    world: AdmissionWorld, client: httpx.AsyncClient, query: str, headers: Headers, end: Any
) -> tuple[list[str], bool]:
    """What a stream gives until it ends, soon after `end`; and whether it ended as it should."""
    begun = asyncio.Event()
    shown = {name: value for name, value in headers.items() if name != "accept"}
    await until(lambda: client.get(RECORDS, headers=shown), 200)
    async with client.stream("GET", f"{RECORDS}?{query}", headers=headers) as answer:
        assert answer.status_code == 200
        found: list[str] = []

        async def read() -> bool:
            try:
                async for line in answer.aiter_lines():
                    found.append(line)
                    begun.set()
            except httpx.HTTPError:
                return False
            return True

        reading = asyncio.create_task(read())
        await begun.wait()
        began_s = time.monotonic()
        await end()
        is_whole = await asyncio.wait_for(reading, WITHIN_S)
        assert time.monotonic() - began_s < WITHIN_S
    return [line for line in found if line], is_whole


@pytest.mark.parametrize("forwarded", [False, True], ids=["own", "forwarded"])
def test_an_event_stream_ends_with_the_reason(tmp_path: Path, forwarded: bool) -> None:
    async def scenario(world: AdmissionWorld) -> None:
        await world.callers.give("ann reader ns")
        await fill(world)
        client = world.write if forwarded else world.http
        shown = {**ANN, "accept": "text/event-stream"}
        lines, is_whole = await take_until_end(
            world, client, "from=head", shown, lambda: world.callers.give("ann reader ns/other")
        )
        assert is_whole and lines[-2] == "event: error"
        problem = json.loads(lines[-1].removeprefix("data: "))
        assert (problem["code"], problem["detail"]) == ("forbidden", FORBIDDEN.detail)
        counts = world.proxy.statistics()["admission"]["lasting"]
        assert (counts["open"], counts["ended"]) == (0, 1)
        assert world.proxy.statistics()["feeds"]["waiting"] == 0

    play(tmp_path, scenario)


def test_lines_end_with_the_reason_where_they_have_notes_and_break_off_where_not(
    tmp_path: Path,
) -> None:
    async def scenario(world: AdmissionWorld) -> None:
        await fill(world)
        shown = {**ANN, "accept": "application/x-ndjson"}
        for query, ends_well in (("wait=60s&notes=true", True), ("wait=60s", False)):
            await world.callers.give("ann reader ns")
            lines, is_whole = await take_until_end(
                world, world.http, f"from=head&{query}", shown, world.callers.give
            )
            assert is_whole is ends_well
            if ends_well:
                assert json.loads(lines[-1])["error"]["code"] == "forbidden"
            else:
                assert all("body" in json.loads(line) for line in lines)

    play(tmp_path, scenario)


@pytest.mark.parametrize("forwarded", [False, True], ids=["own", "forwarded"])
def test_a_long_poll_is_answered_with_the_reason(tmp_path: Path, forwarded: bool) -> None:
    async def scenario(world: AdmissionWorld) -> None:
        await fill(world)
        client = world.write if forwarded else world.http
        text, token_id = await world.callers.make_token("read ns")
        query = f"{RECORDS}?from=tail&wait=60s"
        await until(lambda: client.get(RECORDS, headers=bear(text)), 200)
        polling = asyncio.create_task(client.get(query, headers=bear(text)))

        async def is_waiting() -> bool:
            return bool(world.proxy.statistics()["feeds"]["waiting"])

        await wait_for(is_waiting)
        await world.callers.revoke(token_id)
        answer = await asyncio.wait_for(polling, WITHIN_S)
        if forwarded:
            # The peer's 401 is no word about the client: who judges is the one that it called.
            assert answer.status_code in (401, 503)
        else:
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == 'Bearer realm="duramen"'

    play(tmp_path, scenario)


@pytest.mark.parametrize("forwarded", [False, True], ids=["own", "forwarded"])
def test_a_session_ends_behind_what_is_under_way(tmp_path: Path, forwarded: bool) -> None:
    play(tmp_path, lambda world: _play_session(world, forwarded=forwarded))


async def begin_session(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A session whose first batch is acknowledged."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    line = json.dumps({"records": [{"body": "x"}]}).encode() + b"\n"
    writer.write(
        f"POST {RECORDS}:stream HTTP/1.1\r\nhost: localhost\r\n"
        f"authorization: {ANN['authorization']}\r\ncontent-type: application/x-ndjson\r\n"
        f"transfer-encoding: chunked\r\n\r\n{len(line):x}\r\n".encode()
        + line
        + b"\r\n"
    )
    await reader.readuntil(b'"start"')
    return reader, writer


async def _play_session(world: AdmissionWorld, *, forwarded: bool) -> None:
    await world.callers.give("ann producer ns")
    client = world.http if forwarded else world.write
    record = {"records": [{"body": "x"}]}
    await until(lambda: client.post(RECORDS, json=record, headers=ANN), 200)
    port = world.proxy.port if forwarded else world.write_proxy.port
    reader, writer = await begin_session(port)
    await world.callers.give()
    rest = await asyncio.wait_for(reader.readuntil(b"session_ended"), WITHIN_S)
    assert b'"forbidden"' in rest and b"append to ns/log: you may not" in rest
    assert len(world.sequencer.rows) == 2
    writer.close()


def test_a_credential_ends_what_was_begun_with_it(tmp_path: Path) -> None:
    async def scenario(world: AdmissionWorld) -> None:
        await fill(world)
        await world.callers.give("ann reader ns")
        # Its 30 s of skew are over in two seconds from now.
        ends_s = int(time.time()) - 28
        shown = as_user("ann", iat=NOW_S - 100, exp=ends_s) | {"accept": "text/event-stream"}

        async def wait() -> None:
            return

        lines, is_whole = await take_until_end(world, world.http, "from=head", shown, wait)
        assert is_whole and '"unauthenticated"' in lines[-1]

    play(tmp_path, scenario)


def test_an_identity_outlives_its_header_and_not_its_certificate(tmp_path: Path) -> None:
    async def scenario(world: AdmissionWorld) -> None:
        await fill(world)
        await world.callers.give("service:client/till reader ns")
        till = world.callers.identify("client", "till", READ) | {"accept": "text/event-stream"}

        async def revoke() -> None:
            folders = [world.callers.issued.folder / one.name for one in (READ, WRITE)]
            world.callers.issued.revoke("till", *folders)

        lines, is_whole = await take_until_end(world, world.http, "from=head", till, revoke)
        assert is_whole and '"unauthenticated"' in lines[-1]

    play(tmp_path, scenario)


async def leave(*proxies: Any) -> None:
    """As when another server has taken the port over."""
    for proxy in proxies:
        proxy._admission.lasting.begin_leaving()


@pytest.mark.parametrize("forwarded", [False, True], ids=["own", "forwarded"])
def test_what_leaves_a_replaced_server_is_told_where_to_go_on(
    tmp_path: Path, forwarded: bool
) -> None:
    async def scenario(world: AdmissionWorld) -> None:
        await world.callers.give("ann reader ns")
        await fill(world)
        client = world.write if forwarded else world.http
        shown = {**ANN, "accept": "text/event-stream"}
        lines, is_whole = await take_until_end(
            world, client, "from=head", shown, lambda: leave(world.proxy)
        )
        assert is_whole and lines[-3:-1] == ["event: end", "id: seq:2"]
        told = json.loads(lines[-1].removeprefix("data: "))
        assert told == {"reason": "stopping", "next": "seq:2"}
        goes_on = await client.get(RECORDS, headers=ANN)
        assert goes_on.status_code == 200, "nobody who comes later has to leave"

    play(tmp_path, scenario)


def test_a_poll_that_leaves_is_answered_and_a_session_ended(tmp_path: Path) -> None:
    async def scenario(world: AdmissionWorld) -> None:
        await world.callers.give("ann writer ns")
        await fill(world)
        await until(lambda: world.http.get(RECORDS, headers=ANN), 200)
        query = f"{RECORDS}?from=tail&wait=60s"
        polling = asyncio.create_task(world.http.get(query, headers=ANN))

        async def is_waiting() -> bool:
            return bool(world.proxy.statistics()["feeds"]["waiting"])

        await wait_for(is_waiting)
        reader, writer = await begin_session(world.write_proxy.port)
        await leave(world.proxy, world.write_proxy)
        answer = await asyncio.wait_for(polling, WITHIN_S)
        assert (answer.status_code, answer.json()["records"]) == (200, [])
        rest = await asyncio.wait_for(reader.readuntil(b"session_ended"), WITHIN_S)
        assert b'"server_draining"' in rest
        writer.close()

    play(tmp_path, scenario)


def test_calls_leave_one_after_the_other_and_who_comes_later_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(lasting_calls, "LEAVE_S", 0.01)

        calls = LastingCalls(lambda _: Judgement(None, is_known=True), review, lambda: 0)
        calls.start()
        there, gone, late = make_call(), make_call(), make_call()
        calls.add(there)
        calls.add(gone)
        calls.begin_leaving()
        calls.discard(gone)
        calls.add(late)
        await wait_for(lambda: there.is_leaving)
        woken: list[str] = []
        there.watch(lambda: woken.append("at once"))
        late.watch(lambda: woken.append("never"))
        assert woken == ["at once"] and not late.is_leaving and not gone.is_leaving
        there.check()
        await calls.stop()

    asyncio.run(scenario())


def make_call(until_s: int = NOW_S + 9_999) -> AdmittedCall:
    bearer = Bearer(parse_principal("user:corp/ann"), until_s)
    rights: Any = None
    return AdmittedCall(bearer, ShownCredentials((), ()), None, time.time(), rights)


async def review(_call: AdmittedCall) -> DuramenError | None:
    raise AssertionError("all of these are known")


def test_calls_are_judged_when_something_changed_when_they_are_old_and_when_they_end() -> None:
    async def scenario() -> None:
        judged: list[AdmittedCall] = []
        basis = [1]

        def judge(call: AdmittedCall) -> Judgement:
            judged.append(call)
            return Judgement(FORBIDDEN if call is bad else None, is_known=True)

        calls = LastingCalls(judge, review, lambda: tuple(basis))
        good, old, over, bad = make_call(), make_call(), make_call(NOW_S - 1), make_call()
        ended: list[AdmittedCall] = []
        for call in (good, old, over, bad):
            calls.add(call)
            call.watch(partial(ended.append, call))
        old.judged_s -= AGAIN_S + 1
        calls._basis = calls._find_basis()
        await calls.look()
        assert set(judged) == {old, over} and not ended
        judged.clear()
        basis[0] = 2
        await calls.look()
        assert set(judged) == {good, old, over, bad}
        assert ended == [bad] and bad.refusal is FORBIDDEN
        with pytest.raises(DuramenError):
            bad.check()
        judged.clear()
        await calls.look()
        assert judged == [over], "nothing changed since"
        calls.discard(over)
        calls.discard(good)
        basis[0] = 3
        judged.clear()
        await calls.look()
        assert judged == [old], "who was refused is judged no more"
        assert calls.statistics() == {
            "open": 2, "judged": 8, "ended": 1,
            "reviewing": 0, "reviewing_max": 128, "waiting_for_review": 0,
        }  # fmt: skip

    asyncio.run(scenario())


def test_who_listens_too_late_is_told_at_once() -> None:
    """A call may be refused while its route still looks for its log."""
    call, told = make_call(), list[int]()
    call.end(FORBIDDEN)
    call.watch(lambda: told.append(1))
    call.end(DuramenError("unauthenticated", "later"))
    assert told == [1] and call.refusal is FORBIDDEN


def test_a_look_that_fails_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(lasting_calls, "LOOK_S", 0.001)
        judged: list[AdmittedCall] = []
        basis = [1]

        def judge(call: AdmittedCall) -> Judgement:
            judged.append(call)
            if len(judged) == 1:
                raise RuntimeError("on purpose")
            return Judgement(FORBIDDEN, is_known=True)

        calls = LastingCalls(judge, review, lambda: tuple(basis))
        calls.start()
        call = make_call()
        calls.add(call)
        basis[0] = 2
        await wait_for(lambda: call.refusal is not None)
        await calls.stop()

    asyncio.run(scenario())
