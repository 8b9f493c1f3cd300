"""Readers that wait at the end of a log, in every form in which a read proxy lets them.

    poll     JSON with `wait`, one answer after the other
    lines    NDJSON with `wait`: a stream that ends when nothing came for so long, and is begun anew
    events   server-sent events, resumed by the last id, as a browser does

A waiter begins at the head and wants every record, once and in order. It stays with its proxy for
as long as that answers, and asks the next one after a refusal, a broken stream or a silence that is
no quiet log's. It notes what it was given and when, what it was told instead, and that it waits at
all: `delivery` judges that, and `judge` its reads like any other reader's.

Called by `load`, whose clock also says when a record was acknowledged. Source: docs/testing.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx
import orjson

from tests.chaos.history import Line, find_gaps, hash_body, read_clock_ns
from tests.chaos.shown_token import show_token
from tests.chaos.waiting import wait_at_most
from tests.waiting import comes_true

WAITER: Final = "waiter"
"""Names of waiters begin with this."""

_AFTER_FAILURE_S: Final = 0.2
_CONNECT_S: Final = 5.0


@dataclass(frozen=True)
class _Form:
    """A way to wait.

    Attributes:
        silence_s: longer than a proxy that works is silent, by its heartbeat or the end of `wait`.
    """

    name: str
    accept: str
    wait: str | None
    silence_s: float


_FORMS: Final = (
    _Form("poll", "application/json", "20s", 32.0),
    _Form("lines", "application/x-ndjson", "20s", 32.0),
    _Form("events", "text/event-stream", None, 16.0),
)


class _ToldError(Exception):
    """What a waiter was told in place of records: an HTTP status and the code of a problem."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(f"{status} {code}")
        self.status = status
        self.code = code


class Waiters:
    """All of a load; none until `start`."""

    def __init__(
        self,
        namespace: str,
        urls: Sequence[str],
        note: Callable[[Line], None],
        *,
        meets_holes: bool = False,
        token_file: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`meets_holes`: NDJSON tells those by numbers alone; elsewhere they are a fault.

        `token_file`: of the token that is shown.
        """
        self._meets_holes = meets_holes
        self._token_file = token_file
        self._namespace = namespace
        self._urls = urls
        self._note = note
        limits = httpx.Limits(max_connections=None)
        self._http = httpx.AsyncClient(limits=limits, transport=transport)
        self._waiters: list[_Waiter] = []
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, logs: Iterable[str]) -> None:
        """Wait at the end of each log in every form."""
        for index, log in enumerate(logs):
            paths = [f"{url}/v1/namespaces/{self._namespace}/logs/{log}" for url in self._urls]
            for number, form in enumerate(_FORMS):
                waiter = _Waiter(
                    self._http, paths, log, form, index + number, self._note,
                    meets_holes=self._meets_holes, token_file=self._token_file,
                )  # fmt: skip
                self._waiters.append(waiter)
                self._tasks.append(asyncio.create_task(waiter.run()))

    async def catch_up(self, ends: Mapping[str, int], timeout_s: float) -> None:
        """Until each has all that was acknowledged, or the time is over: the judge sees which."""
        await comes_true(lambda: all(w.position >= ends[w.log] for w in self._waiters), timeout_s)

    async def stop(self) -> None:
        """End all; raises what one of them died of."""
        for task in self._tasks:
            task.cancel()
        ends = await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._http.aclose()
        for end in ends:
            if isinstance(end, Exception):
                raise end


class _Waiter:
    """One reader of one log."""

    def __init__(  # noqa: PLR0917 - made at one place
        self,
        http: httpx.AsyncClient,
        urls: Sequence[str],
        log: str,
        form: _Form,
        proxy: int,
        note: Callable[[Line], None],
        *,
        meets_holes: bool,
        token_file: str | None,
    ) -> None:
        self._meets_holes = meets_holes
        self._token_file = token_file
        self._shown: dict[str, str] = {}
        self.log = log
        self.position = 0
        self._http = http
        self._urls = urls
        self._form = form
        self._name = f"{WAITER}-{form.name}"
        self._proxy = proxy
        self._note = note
        self._asked_ns = read_clock_ns()
        self._last_id: str | None = None

    async def run(self) -> None:
        """Until cancelled."""
        self._note_line("waits", "ok")
        while True:
            self._asked_ns = read_clock_ns()
            try:
                await self._wait_once()
                continue
            except _ToldError as told:
                if told.code == "unauthenticated" and self._shown != show_token(self._token_file):
                    # What was begun with a token ends with it: the other one goes on.
                    continue
                self._note_line("told", "fail", status=told.status, code=told.code)
            except httpx.HTTPError as error:
                self._note_line("broken", "fail", code=type(error).__name__)
            self._proxy += 1
            await wait_at_most(_AFTER_FAILURE_S)

    @property
    def _url(self) -> str:
        return self._urls[self._proxy % len(self._urls)]

    async def _wait_once(self) -> None:
        """One request and what is given on it."""
        query = {"from": f"seq:{self.position}"}
        if self._form.wait is not None:
            query["wait"] = self._form.wait
        self._shown = show_token(self._token_file)
        headers = {"accept": self._form.accept, **self._shown}
        if self._last_id is not None:
            headers["last-event-id"] = self._last_id
        timeout = httpx.Timeout(_CONNECT_S, read=self._form.silence_s)
        async with self._http.stream(
            "GET", f"{self._url}/records", params=query, headers=headers, timeout=timeout
        ) as answer:
            if answer.status_code != 200:
                raise _read_problem(answer.status_code, await answer.aread())
            match self._form.name:
                case "poll":
                    document = orjson.loads(await answer.aread())
                    gaps = [_read_hole(gap) for gap in document.get("gaps", ())]
                    self._take(document["records"], tail=document.get("tail"), gaps=gaps)
                case "lines":
                    async for line in answer.aiter_lines():
                        self._take([orjson.loads(line)])
                case _:
                    await self._take_events(answer.aiter_lines())

    async def _take_events(self, lines: AsyncIterator[str]) -> None:
        event: dict[str, str] = {}
        async for line in lines:
            if line:
                name, _, value = line.partition(":")
                event[name] = value.removeprefix(" ")
                continue
            data = event.get("data", "")
            if event.get("event") == "error":
                raise _read_problem(200, data.encode())
            if event.get("event") == "records":
                self._take(orjson.loads(data)["records"])
            if event.get("event") == "gap" and orjson.loads(data)["kind"] == "hole":
                self._take([], gaps=[_read_hole(orjson.loads(data))])
            self._last_id = event.get("id", self._last_id)
            event = {}

    def _take(
        self,
        records: Sequence[dict[str, Any]],
        *,
        tail: dict[str, Any] | None = None,
        gaps: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Note what was given, as a read that began where this waiter stood."""
        if not records and not gaps and tail is None:
            return
        asked = self.position
        batches = [[r["dlsn"], r["seq_num"], [hash_body(r["body"].encode())]] for r in records]
        ends = [end for _, end in gaps] + [r["seq_num"] + 1 for r in records[-1:]]
        end = max(ends, default=asked)
        if self._form.name == "lines" and self._meets_holes:
            gaps = find_gaps(asked, batches, end)
        starts = [first for first, _ in gaps] + [r["seq_num"] for r in records[:1]]
        start = min(starts, default=asked)
        self.position = end
        more = {"from": asked, "batches": batches, "start": start, "end": end, "n": len(records)}
        if gaps:
            more["gaps"] = list(gaps)
        self._note_line("read", "ok", **more, tail=tail is not None)

    def _note_line(self, op: str, outcome: str, **more: Any) -> None:
        line: Line = {
            "t0_ns": self._asked_ns, "t1_ns": read_clock_ns(), "op": op, "proc": self._name,
            "log": self.log, "outcome": outcome,
        }  # fmt: skip
        self._note(line | more)


def _read_hole(gap: Mapping[str, Any]) -> tuple[int, int]:
    """The numbers of a hole; JSON has no other gaps."""
    first, end = (int(gap[name].removeprefix("seq:")) for name in ("from", "next"))
    return first, end


def _read_problem(status: int, body: bytes) -> _ToldError:
    try:
        return _ToldError(status, str(orjson.loads(body)["code"]))
    except (ValueError, KeyError, TypeError):
        return _ToldError(status, "?")
