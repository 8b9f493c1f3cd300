"""A write proxy with all its neighbours faked: what `test_writeproxy` plays its scenarios in.

The proxy is the real one behind real HTTP. The sequencers speak the real wire
(`wire.sequencer_calls`) and are scripted row by row: answer, hold, or end the stream without an
answer. The metadata store is the in-memory twin. Source: docs/protocol/wire.md "Sequencer: POST
/s/append".
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import orjson
import uvloop
from fastapi import FastAPI
from pyreqwest.client import ClientBuilder

from duramen.config import parse_log_config
from duramen.core.hashing import rank_nodes
from duramen.core.log_node import LogNode
from duramen.ids import Dlsn, EntryId, Epoch, LogId, SequencerId
from duramen.runtime.admin import add_problem_handler
from duramen.runtime.http_server import Answer, DataServer, Reply
from duramen.runtime.role import ServiceOptions
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.wire.metadata_json import Paths, encode_log, encode_node
from duramen.wire.sequencer_calls import (
    Append,
    AppendedBatch,
    AppendResult,
    LogMark,
    Redirect,
    pack_results,
    parse_appends,
)
from duramen_writeproxy.service import WriteProxy
from tests.waiting import wait_for

PATHS = Paths("c")
RECORDS = "/v1/namespaces/a/logs/l/records"
RAW = "application/octet-stream"
_HANG_S = 120
Scenario = Callable[["World"], Awaitable[None]]
Decide = Callable[[Append], Awaitable[AppendResult | None]]


class FakeSequencer:
    """Answers each row of each frame as `decide` says; None ends the stream without an answer."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.frames: list[list[Append]] = []
        self.controls: list[dict[str, Any]] = []
        """Control calls, without their nonces."""
        self.nonces: list[str | None] = []
        self.control_answers: list[tuple[int, dict[str, Any]]] = []
        self.garbage: bytes | None = None
        self.refusal: Reply | None = None
        self.on_control: Callable[[str, bytes], Awaitable[Answer]] | None = None
        self.decide: Decide = self.accept
        self._next = 0
        self._server = DataServer("127.0.0.1", 0, self._on_call, self._on_stream)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.port}"

    @property
    def rows(self) -> list[Append]:
        return [row for frame in self.frames for row in frame]

    async def accept(self, _append: Append) -> AppendResult:
        self._next += 1
        start = LogMark(Dlsn(Epoch(1), EntryId(self._next), 0), self._next, 5)
        return AppendedBatch(start, 1, start)

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop()

    async def _on_call(self, path: str, body: bytes, _caller: object) -> Answer:
        if self.refusal is not None:
            return self.refusal
        if path != "/s/control":
            return 500, "text/plain", b""
        message = json.loads(body)
        self.nonces.append(message.pop("nonce", None))
        self.controls.append(message)
        if self.on_control is not None:
            return await self.on_control(path, body)
        if not self.control_answers:
            return 500, "text/plain", b"no JSON"
        status, document = self.control_answers.pop(0)
        return status, "application/json", json.dumps(document).encode()

    def _on_stream(
        self, path: str, body: bytes, send: Callable[[bytes], Awaitable[None]]
    ) -> Awaitable[None] | None:
        if path != "/s/append" or self.refusal is not None:
            return None
        return self._answer(body, send)

    async def _answer(self, body: bytes, send: Callable[[bytes], Awaitable[None]]) -> None:
        appends = parse_appends(body)
        self.frames.append(appends)
        if self.garbage is not None:
            await send(self.garbage)
            return

        async def answer_row(index: int, append: Append) -> bool:
            result = await self.decide(append)
            if result is not None:
                await send(pack_results([(index, result)]))
            return result is not None

        rows = enumerate(appends)
        if not any(await asyncio.gather(*(answer_row(i, append) for i, append in rows))):
            await send(b"D")  # the first byte of a frame, and then the end


class World:
    """A proxy, its sequencers in the order of their claim on `a/l`, and a client."""

    def __init__(self, sequencer_count: int, cors_origins: tuple[str, ...] = ()) -> None:
        self.tree = MemoryTree()
        self.setup, self.store = MemoryStore(self.tree), MemoryStore(self.tree)
        names = rank_nodes("a/l", {f"s{i}": 1.0 for i in range(sequencer_count)})
        self.sequencers = [FakeSequencer(name) for name in names]
        options = ServiceOptions(
            "writeproxy", "c", "w1", "127.0.0.1", 0, 0, "", "r", "r", "none", 4.0, None,
            cors_origins=cors_origins,
        )  # fmt: skip
        self.proxy = WriteProxy(options, self.store)
        self._client = ClientBuilder().no_proxy().build()

    @property
    def first(self) -> FakeSequencer:
        return self.sequencers[0]

    @property
    def rows(self) -> list[Append]:
        return [row for sequencer in self.sequencers for row in sequencer.rows]

    async def __aenter__(self) -> "World":
        await self.setup.start()
        await self.put(PATHS.namespace("a"), {"config": {}})
        await self.put_log("l", 5)
        await self.put_log("m", 6)
        for sequencer in self.sequencers:
            await sequencer.start()
            await self.register(sequencer.name, sequencer.url)
        await self.proxy.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.proxy.stop()
        for sequencer in self.sequencers:
            await sequencer.stop()
        await self._client.close()

    async def put(self, path: str, fields: dict[str, Any]) -> None:
        await self.setup.create(path, encode_node(fields), make_parents=True)

    async def put_log(self, name: str, log_id: int) -> None:
        node = LogNode(LogId(log_id), "a", name, parse_log_config({}))
        await self.setup.create(PATHS.log(LogId(log_id)), encode_log(node), make_parents=True)
        await self.put(PATHS.name("a", name), {"log_id": str(log_id)})

    async def register(self, name: str, url: str) -> None:
        await self.put(f"{PATHS.sequencers}/{name}", {"data_url": url})

    async def call(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, Any]:
        """The status and the JSON of the answer; `headers` are written with underscores.

        A body is JSON unless a header says otherwise; an empty one is left out.
        """
        if body is not None:
            headers = {"content_type": "application/json", **headers}
        headers = {name: value for name, value in headers.items() if value}
        builder = self._client.request(method, f"http://127.0.0.1:{self.proxy.port}{path}")
        for name, value in headers.items():
            builder = builder.header(name.replace("_", "-"), value)
        if body is not None:
            builder = builder.body_bytes(body)
        response = await builder.build().send()
        return response.status, orjson.loads(bytes(await response.bytes()))

    async def append(
        self, body: bytes = b"x", path: str = RECORDS, **headers: str
    ) -> tuple[int, Any]:
        return await self.call("POST", path, body, **{"content_type": RAW, **headers})


def run(
    scenario: Scenario, sequencer_count: int = 1, *, cors_origins: tuple[str, ...] = ()
) -> None:
    async def play() -> None:
        async with World(sequencer_count, cors_origins) as world, asyncio.timeout(_HANG_S):
            await scenario(world)

    uvloop.run(play())


async def wait_requests(world: World, count: int) -> None:
    """Wait until so many appends are being served."""
    await wait_for(lambda: world.proxy.statistics()["requests"] == count)


def lane_of(world: World) -> dict[str, int]:
    """Statistics of the lane to the only sequencer; zeros before its first append."""
    found: dict[str, dict[str, int]] = world.proxy.statistics()["lanes"]
    return next(iter(found.values()), dict.fromkeys(("held", "held_bytes", "open_frames"), 0))


def always(result: AppendResult | None) -> Decide:
    async def decide(_append: Append) -> AppendResult | None:
        return result

    return decide


def owner(sequencer: FakeSequencer) -> Redirect:
    return Redirect(SequencerId(sequencer.name), sequencer.url)


def make_client(world: World) -> httpx.AsyncClient:
    app = FastAPI()
    add_problem_handler(app)
    world.proxy.add_admin_routes(app)
    transport = httpx.ASGITransport(app)
    return httpx.AsyncClient(transport=transport, base_url="http://proxy")
