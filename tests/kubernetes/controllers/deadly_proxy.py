"""A proxy between an operator and the API server that counts requests, and kills at one of them.

Clear text in, TLS out, watches passed on as they come. At the chosen request it calls back before
passing it on, or after the API server did it and before anybody hears of that: the two sides of a
crash. Counting starts anew with `arm`. Watches can be made silent: their connections stay open, and
nothing comes. What else goes wrong is rolled by `api_faults`.

Used by mortals and by tests that disturb what an operator asks. Source: ADR 0020.
"""

from __future__ import annotations

import asyncio
import enum
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
from aiohttp import web

from tests.kubernetes.controllers.api_faults import REFUSALS, ApiFaults, Fault, Kept, make_status
from tests.pauses import let_pass

_HOP_HEADERS: Final = frozenset({"connection", "host", "transfer-encoding", "content-length"})
_START_S: Final = 20.0
_BODY_BYTES_MAX: Final = 1 << 24
_OK: Final = 200


class Moment(enum.Enum):
    """When the callback comes."""

    BEFORE = "before"
    AFTER = "after"


@dataclass(slots=True)
class Aim:
    """At which request, of those that count, and what happens then."""

    number: int
    moment: Moment
    is_writes_only: bool
    strike: Callable[[], None]
    among: tuple[str, ...] = ("",)
    """Only requests of whose path one of these is a part."""
    beside: tuple[str, ...] = ()
    """Not those of whose path one of these is a part."""
    is_wanted: Callable[[str], bool] = lambda _request: True
    """Of those, the ones whose method and path it takes."""


class DeadlyProxy:
    """Counts, passes on, strikes once for each `arm`."""

    def __init__(self, target: str, certificate: Path) -> None:
        self._target = target
        self._tls = ssl.create_default_context(cafile=str(certificate))
        self._lock = threading.Lock()
        self._aim: Aim | None = None
        self._count = 0
        self.url = ""
        self.request_count = 0
        self.struck: list[str] = []
        """Method and path of each request that was struck at."""
        self.faults: ApiFaults | None = None
        """None: nothing goes wrong by itself."""
        self.on_write: Callable[[str, str], None] | None = None
        """Is told method and path of each write before the API server is."""
        self.silent_plurals: frozenset[str] = frozenset()
        """Kinds of whose changes no watch tells any more, whether it is open or begins."""

    @property
    def aimed_count(self) -> int:
        """Requests since it was armed that the aim counts."""
        with self._lock:
            return self._count

    def arm(self, aim: Aim | None) -> None:
        """Count from here; None: never strike."""
        with self._lock:
            self._aim, self._count = aim, 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Pass one request on."""
        aim = self._count_in(request)
        if aim is not None and aim.moment is Moment.BEFORE:
            await asyncio.to_thread(aim.strike)
            return web.Response(status=503)
        faults = None if aim is not None or _is_watch(request) else self.faults
        fault = None if faults is None else faults.choose(request.method, request.path)
        if faults is not None and (instead := _answer_instead(request, faults, fault)) is not None:
            return instead
        if self.on_write is not None and request.method != "GET":
            await asyncio.to_thread(self.on_write, request.method, request.path)
        body = await request.read() or None
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP_HEADERS}
        session: aiohttp.ClientSession = request.app[_SESSION]
        url = self._target + request.raw_path
        async with session.request(
            request.method,
            url,
            data=body,
            headers=headers,
            ssl=self._tls,
            allow_redirects=False,
            skip_auto_headers=("Content-Type",),
        ) as found:
            if aim is not None:
                await found.read()
                await asyncio.to_thread(aim.strike)
                return web.Response(status=503)
            kept = {k: v for k, v in found.headers.items() if k.lower() not in _HOP_HEADERS}
            if faults is not None:
                whole = await found.read()
                if fault is Fault.UNHEARD:
                    return _refuse(fault)
                if request.method == "GET" and found.status == _OK:
                    faults.keep(request.raw_path, Kept(kept, whole))
                return web.Response(status=found.status, headers=kept, body=whole)
            response = web.StreamResponse(status=found.status, headers=kept)
            # A watch ends when the operator does, at whichever side that is noticed first.
            with suppress(aiohttp.ClientError, ConnectionError, asyncio.CancelledError):
                await response.prepare(request)
                await self._pass_on(request, found.content, response)
                await response.write_eof()
            return response

    async def _pass_on(
        self, request: web.Request, content: aiohttp.StreamReader, response: web.StreamResponse
    ) -> None:
        if not _is_watch(request):
            async for piece in content.iter_any():
                await response.write(piece)
            return
        async for event in _split(content):
            faults = self.faults
            wait_s, count = (0.0, 1) if faults is None else faults.disturb()
            if wait_s:
                await let_pass(wait_s, what="an event that is late")
            if not self._is_silent(request):
                await response.write(event * count)

    def _is_silent(self, request: web.Request) -> bool:
        return request.path.rpartition("/")[2] in self.silent_plurals

    def _count_in(self, request: web.Request) -> Aim | None:
        with self._lock:
            self.request_count += 1
            aim = self._aim
            if aim is None or (aim.is_writes_only and request.method == "GET"):
                return None
            if not any(part in request.path for part in aim.among):
                return None
            if any(part in request.path for part in aim.beside):
                return None
            if not aim.is_wanted(f"{request.method} {request.path}"):
                return None
            self._count += 1
            if self._count < aim.number:
                return None
            self._aim = None
            self.struck.append(f"{request.method} {request.path}")
            return aim


def _is_watch(request: web.Request) -> bool:
    return request.query.get("watch") in ("1", "true")


def _answer_instead(
    request: web.Request, faults: ApiFaults, fault: Fault | None
) -> web.Response | None:
    """What is answered without the API server, if anything is."""
    if fault is Fault.OLDER and (older := faults.find_older(request.raw_path)):
        return web.Response(headers=older.headers, body=older.body)
    if fault in REFUSALS and fault is not Fault.UNHEARD:
        return _refuse(fault)
    return None


def _refuse(fault: Fault) -> web.Response:
    code, body = make_status(fault)
    return web.Response(status=code, body=body, content_type="application/json")


async def _split(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """The events of a watch: a line each."""
    rest = b""
    async for piece in content.iter_any():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line + b"\n"


_SESSION: Final = web.AppKey("session", aiohttp.ClientSession)


@contextmanager
def running_proxy(target: str, certificate: Path) -> Iterator[DeadlyProxy]:
    """A proxy on a free port of this machine, in a thread of its own."""
    proxy = DeadlyProxy(target, certificate)
    ready, stop = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        app = web.Application(client_max_size=_BODY_BYTES_MAX)
        app.router.add_route("*", "/{path:.*}", proxy.answer)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_START_S)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(
            timeout=timeout, connector=connector, auto_decompress=False
        ) as session:
            app[_SESSION] = session
            runner = web.AppRunner(
                app, access_log=None, shutdown_timeout=1.0, handler_cancellation=True
            )
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            proxy.url = f"http://{host}:{port}"
            ready.set()
            await stop.wait()
            await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(_START_S)
    try:
        yield proxy
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join(_START_S)
