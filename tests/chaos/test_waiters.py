"""What a waiter notes of the answers that it gets, and where it goes on.

Read proxies are functions here, the HTTP client is real; the runs of `test_chaos` have real ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from tests.chaos.history import FINAL, Line, hash_body
from tests.chaos.judge import judge
from tests.chaos.lines import LOG, append, read
from tests.chaos.waiters import WAITER, Waiters
from tests.pauses import stay
from tests.waiting import comes_true

POLL, LINES, EVENTS = f"{WAITER}-poll", f"{WAITER}-lines", f"{WAITER}-events"
FORMS = {"application/json": POLL, "application/x-ndjson": LINES, "text/event-stream": EVENTS}
PROBLEM = {"code": "data_unavailable", "detail": "no bookie answers"}

Answer = Callable[[str, int, httpx.Request], httpx.Response | None]


def record(seq_num: int) -> dict[str, Any]:
    return {"seq_num": seq_num, "dlsn": f"e1n{seq_num}s0", "body": f"body {seq_num}"}


def event(kind: str, data: Any, resume: str | None = None) -> str:
    head = "" if resume is None else f"id: {resume}\n"
    return f"{head}event: {kind}\ndata: {orjson.dumps(data).decode()}\n\n"


def encode_value(form: str, *seq_nums: int) -> httpx.Response:
    """What a proxy answers with these records, in the form that was asked for."""
    records = [record(seq_num) for seq_num in seq_nums]
    following = f"seq:{seq_nums[-1] + 1}"
    if form == POLL:
        return httpx.Response(200, json={"records": records, "next": following})
    if form == LINES:
        return httpx.Response(200, content=b"".join(orjson.dumps(r) + b"\n" for r in records))
    text = "retry: 1000\n\n" + event("heartbeat", {"next": "seq:0"}, "seq:0")
    text += event("records", {"records": records, "next": following}, f"{following};count=9")
    return httpx.Response(200, text=text)


async def follow(
    answer: Answer,
    is_enough: Callable[[list[Line]], bool],
    *,
    meets_holes: bool = False,
    token_file: str | None = None,
) -> list[Line]:
    """Let waiters of all forms ask two proxies, until their lines are enough."""
    lines: list[Line] = []
    asked = dict.fromkeys(FORMS.values(), 0)

    async def handle(request: httpx.Request) -> httpx.Response:
        form = FORMS[request.headers["accept"]]
        asked[form] += 1
        if (response := answer(form, asked[form], request)) is not None:
            return response
        await stay()
        raise AssertionError("nobody ends this wait")

    transport = httpx.MockTransport(handle)
    waiters = Waiters(
        "ns", ["http://a", "http://b"], lines.append, meets_holes=meets_holes,
        token_file=token_file, transport=transport,
    )  # fmt: skip
    waiters.start([LOG])
    try:
        assert await comes_true(lambda: is_enough(lines), 30), lines
    finally:
        await waiters.stop()
    return lines


def of(lines: list[Line], form: str, op: str) -> list[Line]:
    return [line for line in lines if line["proc"] == form and line["op"] == op]


def has_read(lines: list[Line], count: int) -> bool:
    """Whether every form was given so many records."""
    return all(
        sum(line["n"] for line in of(lines, form, "read")) >= count for form in FORMS.values()
    )


def test_each_form_takes_every_record_once_and_goes_on_behind_it() -> None:
    asked: dict[str, list[httpx.Request]] = {form: [] for form in FORMS.values()}

    def answer(form: str, count: int, request: httpx.Request) -> httpx.Response | None:
        asked[form].append(request)
        return encode_value(form, *((0, 1) if count == 1 else (2,))) if count <= 2 else None

    lines = asyncio.run(follow(answer, lambda lines: has_read(lines, 3)))
    for form in FORMS.values():
        assert len(of(lines, form, "waits")) == 1
        reads = of(lines, form, "read")
        batches = [batch for line in reads for batch in line["batches"]]
        assert batches == [[f"e1n{n}s0", n, [hash_body(b"body %d" % n)]] for n in range(3)]
        assert all(line["from"] == line["start"] and not line["tail"] for line in reads)
        places = [request.url.params["from"] for request in asked[form][:2]]
        assert places == ["seq:0", "seq:2"]
        assert len({request.url.host for request in asked[form]}) == 1
    assert [r.headers.get("last-event-id") for r in asked[EVENTS][:2]] == [None, "seq:2;count=9"]
    assert "wait" not in asked[EVENTS][0].url.params and asked[LINES][0].url.params["wait"]


def encode_hole(form: str) -> httpx.Response:
    """Record 0, a hole of 1 and 2, record 3."""
    gap = {"kind": "hole", "from": "seq:1", "next": "seq:3"}
    if form == POLL:
        records = [record(0), record(3)]
        return httpx.Response(200, json={"records": records, "gaps": [gap], "next": "seq:4"})
    if form == LINES:
        return encode_value(form, 0, 3)
    parts = ((0, "seq:1"), (3, "seq:4"))
    before, after = (event("records", {"records": [record(n)]}, place) for n, place in parts)
    return httpx.Response(200, text=before + event("gap", gap, "seq:3") + after)


def test_each_form_tells_of_a_hole_and_goes_on_behind_it() -> None:
    asked: dict[str, list[str]] = {form: [] for form in FORMS.values()}

    def answer(form: str, count: int, request: httpx.Request) -> httpx.Response | None:
        asked[form].append(request.url.params["from"])
        return encode_hole(form) if count == 1 else encode_value(form, 4) if count == 2 else None

    lines = asyncio.run(follow(answer, lambda lines: has_read(lines, 3), meets_holes=True))
    for form in FORMS.values():
        reads = of(lines, form, "read")
        assert [gap for line in reads for gap in line.get("gaps", ())] == [(1, 3)]
        assert asked[form][:2] == ["seq:0", "seq:4"]
        bodies = {n: [hash_body(b"body %d" % n)] for n in (0, 3, 4)}
        appends = [append("a", n, 0, 1, n, hash=bodies[n]) for n in bodies]
        batches = [(f"e1n{n}s0", n, bodies[n]) for n in bodies]
        whole = read(f"{FINAL}-0", 90, 91, *batches, gaps=[[1, 3]])
        assert not judge(LOG, [*appends, *reads, whole], is_ordered=False).violations


def test_an_ordered_log_has_no_hole_for_a_stream_of_lines() -> None:
    def answer(form: str, count: int, request: httpx.Request) -> httpx.Response | None:
        return encode_value(form, 0, 3) if count == 1 and form == LINES else None

    lines = asyncio.run(follow(answer, lambda lines: bool(of(lines, LINES, "read")[1:])))
    first, second = of(lines, LINES, "read")
    assert (first["from"], first["start"]) == (0, 0)
    assert (second["from"], second["start"], second.get("gaps")) == (1, 3, None), "the judge sees"


@pytest.mark.parametrize("fault", ["refusal", "broken"])
def test_a_waiter_notes_why_it_asks_the_next_proxy(fault: str) -> None:
    hosts: dict[str, list[str]] = {form: [] for form in FORMS.values()}

    def answer(form: str, count: int, request: httpx.Request) -> httpx.Response | None:
        hosts[form].append(request.url.host)
        if count > 1:
            return encode_value(form, 0) if count == 2 else None
        if fault == "broken":
            raise httpx.RemoteProtocolError("peer closed connection")
        if form == EVENTS:
            return httpx.Response(200, text=event("error", PROBLEM))
        return httpx.Response(503, json=PROBLEM)

    lines = asyncio.run(follow(answer, lambda lines: has_read(lines, 1)))
    op, code = {
        "refusal": ("told", "data_unavailable"), "broken": ("broken", "RemoteProtocolError"),
    }[fault]  # fmt: skip
    for form in FORMS.values():
        assert [line["code"] for line in of(lines, form, op)] == [code]
        assert set(hosts[form][:2]) == {"a", "b"}


def test_a_waiter_goes_on_with_another_token_and_tells_where_there_is_none(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first")
    shown: list[str] = []

    def answer(form: str, count: int, request: httpx.Request) -> httpx.Response | None:
        if form != POLL or count > 3:
            return None
        shown.append(request.headers["authorization"])
        if count == 3:
            return encode_value(form, 0)
        if count == 1:
            file.write_text("second")  # while the call is open
        return httpx.Response(401, json=PROBLEM | {"code": "unauthenticated"})

    def has_read_one(lines: list[Line]) -> bool:
        return bool(of(lines, POLL, "read"))

    lines = asyncio.run(follow(answer, has_read_one, token_file=str(file)))
    assert shown == ["Bearer first", "Bearer second", "Bearer second"]
    (told,) = of(lines, POLL, "told")
    assert told["code"] == "unauthenticated", "the second had no other one"


def test_a_poll_that_says_that_this_is_the_end_is_held_to_it() -> None:
    def answer(form: str, count: int, request: httpx.Request) -> httpx.Response | None:
        if form != POLL or count > 1:
            return None
        tail = {"seq_num": 0}
        return httpx.Response(200, json={"records": [], "next": "seq:0", "tail": tail})

    (line,) = of(asyncio.run(follow(answer, lambda lines: len(lines) > 3)), POLL, "read")
    assert line["tail"] and (line["start"], line["end"]) == (0, 0)
    settled = {**line, "op": "tail", "t0_ns": 0, "t1_ns": 0, "end": 1}
    assert "L1" in {violation.code for violation in judge(LOG, [settled, line]).violations}


def test_a_waiter_that_dies_is_told() -> None:
    def answer(form: str, count: int, request: httpx.Request) -> httpx.Response | None:
        return httpx.Response(200, text="no record") if form == LINES else None

    def has_died(lines: list[Line]) -> bool:
        """Two of three are left, beside this one."""
        return len(lines) >= 3 and len(asyncio.all_tasks()) == 3

    with pytest.raises(ValueError, match="invalid literal"):
        asyncio.run(follow(answer, has_died))
