"""A cluster in one ASGI app for the SDK's tests: logs in memory behind a real socket.

Producers, conditions, tokens, truncation and positions `seq:`, `head`, `tail` mean what they do in
Duramen; nothing is durable. Appends meet faults as scripted, one for each request: refuse, store
and lose the answer, lose it before it is stored, hold. Used by the `test_sdk_…` modules.
Source: docs/protocol/rest.md.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote

import orjson

from duramen.errors import DuramenError
from duramen.ids import Dlsn, EntryId, Epoch, parse_dlsn
from duramen.runtime.http_server import PublicServer
from duramen.units import parse_duration_us
from duramen.wire.read_answers import MEDIA_TYPE, PlacedBatch, pack_batches
from duramen.wire.record_batch import BatchInfo, BatchProducer, check_batch

RESULTS_KEPT = 8
_TIME = "2026-01-02T03:04:05.678Z"

Fault = Callable[["Arrival"], Awaitable[None]]
Headers = dict[str, str]


@dataclass
class FakeLog:
    """Batches in order, and what a sequencer would know."""

    batches: list[PlacedBatch] = field(default_factory=list)
    producers: dict[str, tuple[int, list[dict[str, Any]]]] = field(default_factory=dict)
    head: int = 0
    tail: int = 0
    ahead: int = 0
    """Records behind the tail that are acknowledged."""
    token: str = ""
    is_ended: bool = False
    is_deleted: bool = False
    config: dict[str, Any] = field(default_factory=dict)
    holes: dict[int, int] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    """Entries, which are batches here, whose loss was accepted."""

    def mark(self, seq_num: int) -> dict[str, Any]:
        return {"seq_num": seq_num, "timestamp": _TIME, "lsn": "e1n0", "dlsn": f"e1n{seq_num}s0"}


@dataclass
class Arrival:
    """An append that has arrived, for a fault to look at."""

    cluster: FakeCluster
    log: FakeLog
    batch: bytes
    info: BatchInfo
    headers: Headers

    def store(self) -> dict[str, Any]:
        return self.cluster.store(self)


class LostAnswer(Exception):
    """The server breaks off without an answer of its own."""


class FakeCluster:
    """Both proxies; `url` is where they listen."""

    def __init__(self) -> None:
        self.logs: dict[tuple[str, str], FakeLog] = {}
        self.namespaces: dict[str, dict[str, Any]] = {}
        self.faults: deque[Fault] = deque()
        self.read_faults: deque[DuramenError] = deque()
        self.change_faults: deque[Exception] = deque()
        """Each is what comes of a change of a log that was carried out; `LostAnswer`: of it a
        gateway says no more than that."""
        self.is_mute = False
        """Changes of a log are carried out and never answered."""
        self.arrivals: list[BatchProducer | None] = []
        self.reads: list[str] = []
        self.home: str | None = None
        self.elsewhere: str | None = None
        """The proxy that appends are sent to which ask for that."""
        self.asking: list[bool] = []
        """Of each append, whether it asks for that."""
        self.answer_bytes = 1 << 30
        self._changed = asyncio.Event()
        self._never = asyncio.Event()
        self._server: PublicServer | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = PublicServer("127.0.0.1", self.port, self)
        await self._server.start()
        self.port = self._server.port

    async def stop(self) -> None:
        assert self._server is not None
        await self._server.stop()

    def log(self, name: str = "ns/log") -> FakeLog:
        namespace, _, log = name.partition("/")
        return self.logs[namespace, log]

    def add_log(self, name: str = "ns/log", **config: Any) -> FakeLog:
        namespace, _, log = name.partition("/")
        self.namespaces.setdefault(namespace, {})
        return self.logs.setdefault((namespace, log), FakeLog(config=config))

    # --- HTTP ------------------------------------------------------------------------------------

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body, has_more = b"", True
        while has_more:
            message = await receive()
            body += message.get("body", b"")
            has_more = message.get("more_body", False)
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        assert "accept-encoding" not in headers, "coded answers cost a proxy more than they save"
        extra: Headers = {}
        try:
            if self._is_sent_elsewhere(scope, extra):
                status, answer = 307, b""
            else:
                status, answer = await self._route(scope, body, headers, extra)
        except DuramenError as error:
            status, answer = error.kind.status, orjson.dumps(error.problem())
        except LostAnswer:
            status, answer = 502, b"bad gateway"
        pairs = [(name.encode(), value.encode()) for name, value in extra.items()]
        await send({"type": "http.response.start", "status": status, "headers": pairs})
        await send({"type": "http.response.body", "body": answer})

    def _is_sent_elsewhere(self, scope: Any, extra: Headers) -> bool:
        if scope["method"] != "POST" or not scope["path"].endswith("/records"):
            return False
        self.asking.append(scope["query_string"] == b"redirect=owner_region")
        if self.elsewhere is None or not self.asking[-1]:
            return False
        extra["location"] = self.elsewhere + scope["path"]
        return True

    async def _route(
        self, scope: Any, body: bytes, headers: Headers, extra: Headers
    ) -> tuple[int, bytes]:
        method, path = scope["method"], unquote(scope["path"])
        query = {k: v[0] for k, v in parse_qs(scope["query_string"].decode()).items()}
        parts = path.split("/")[3:]
        document = orjson.loads(body) if body and body.startswith(b"{") else {}
        match method, parts:
            case "GET", []:
                return 200, _page(sorted(self.namespaces), query, "namespaces", "namespace")
            case "PUT", [namespace]:
                is_new = namespace not in self.namespaces
                self.namespaces.setdefault(namespace, document)
                return (201 if is_new else 200), b"{}"
            case "PATCH", [namespace]:
                self.namespaces[namespace] |= document
                return 200, orjson.dumps({"config": self.namespaces[namespace], "changed": True})
            case "DELETE", [namespace]:
                if any(ns == namespace for ns, _ in self.logs):
                    raise DuramenError("namespace_not_empty", "it has logs")
                is_there = self.namespaces.pop(namespace, None) is not None
                return 200, orjson.dumps({"namespace": namespace, "changed": is_there})
            case "GET", [namespace]:
                return 200, orjson.dumps({"namespace": namespace, "config": {}})
            case "GET", [namespace, "logs"]:
                names = sorted(log for ns, log in self.logs if ns == namespace)
                return 200, _page(names, query, "logs", "name")
            case "PUT", [namespace, "logs", name]:
                is_new = (namespace, name) not in self.logs
                self.add_log(f"{namespace}/{name}", **document)
                return (201 if is_new else 200), b"{}"
            case _, [namespace, "logs", name, *rest]:
                name, _, verb = name.partition(":")
                log = self.logs.get((namespace, name))
                if log is None:
                    raise DuramenError("log_not_found", f"no log {namespace}/{name}")
                if rest == ["records"] and method == "POST":
                    return 200, orjson.dumps(await self._append(log, body, headers))
                if rest == ["records"]:
                    return 200, await self._read(log, query, extra)
                if rest == ["records", "tail"]:
                    end, ahead = log.mark(log.tail), log.mark(log.tail + log.ahead)
                    answer = {"tail": end, "released": end, "acknowledged": ahead}
                    return 200, orjson.dumps(answer)
                if rest in (["segments"], ["epochs"]):
                    one = {"epoch": 1, "state": "OPEN", "config_version": 1}
                    return 200, orjson.dumps({rest[0]: [one], "configs": {"1": {}}})
                answer = self._change(log, method, verb, document)
                if method != "GET":
                    await self._meet_change_fault()
                return 200, orjson.dumps(answer)
            case _:
                raise DuramenError("invalid_argument", f"no such path: {method} {path}")

    async def _meet_change_fault(self) -> None:
        if self.change_faults:
            raise self.change_faults.popleft()
        if self.is_mute:
            await self._never.wait()

    def _change(
        self, log: FakeLog, method: str, verb: str, document: dict[str, Any]
    ) -> dict[str, Any]:
        match method, verb:
            case "GET", "":
                return {"log_id": "1", "config": log.config, "ended": log.is_ended}
            case "PATCH", "":
                log.config |= document
                return {"config": log.config, "changed": True}
            case "DELETE", "":
                log.is_deleted = True
                return {"log_id": "1", "undelete_until": _TIME}
            case "POST", "undelete":
                log.is_deleted = False
                return {}
            case "POST", "truncate":
                log.head = int(document["to"].removeprefix("seq:"))
                return {"head": {"seq_num": log.head}, "changed": True}
            case "POST", "end":
                log.is_ended = True
                self._changed.set()
                return {"ended": True, "tail": log.mark(log.tail)}
            case "POST", "roll":
                return {"epoch": 1}
            case "POST", "fence":
                if document.get("expected", log.token) != log.token:
                    raise DuramenError("fencing_token_mismatch", "another one is set")
                log.token = document["token"]
                return {"token": log.token, "tail": log.mark(log.tail)}
            case _:
                raise DuramenError("invalid_argument", verb)

    # --- append ----------------------------------------------------------------------------------

    async def _append(self, log: FakeLog, body: bytes, headers: Headers) -> dict[str, Any]:
        arrival = Arrival(self, log, body, check_batch(body), headers)
        self.arrivals.append(arrival.info.producer)
        if self.faults:
            await self.faults.popleft()(arrival)
        return self.store(arrival)

    def store(self, arrival: Arrival) -> dict[str, Any]:
        """Append, or answer a duplicate, or refuse."""
        log, info = arrival.log, arrival.info
        results: list[dict[str, Any]] | None = None
        if info.producer is not None:
            known = self._admit(log, info.producer)
            if isinstance(known, dict):
                return known | {"duplicate": True}
            results = known
        if log.is_ended or log.is_deleted:
            raise DuramenError("log_ended" if log.is_ended else "log_deleted", "no more")
        expected = arrival.headers.get("duramen-match-seq-num")
        if expected is not None and int(expected) != log.tail:
            raise DuramenError(
                "condition_failed", "another tail", facts={"expected_seq_num": log.tail}
            )
        if arrival.headers.get("duramen-fencing-token", log.token) != log.token:
            raise DuramenError("fencing_token_mismatch", "another token")
        log.tail += log.holes.pop(log.tail, 0)
        start, dlsn = log.tail, Dlsn(Epoch(1), EntryId(len(log.batches)), 0)
        log.batches.append(PlacedBatch(dlsn, start, info.record_count, arrival.batch))
        log.tail += info.record_count
        mark = log.mark(start) | {"dlsn": str(dlsn)}
        answer = {"start": mark, "end": log.mark(log.tail), "tail": log.mark(log.tail)}
        if results is not None:
            results.append(answer)
        self._changed.set()
        return answer

    def _admit(
        self, log: FakeLog, producer: BatchProducer
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """The answer to a duplicate, or where the answer of a fresh batch belongs."""
        name, epoch, sequence = producer
        known = log.producers.get(name)
        if known is None:
            if sequence:
                raise DuramenError("producer_unknown", f"{name} is not known")
            known = log.producers[name] = (epoch, [])
        if epoch < known[0]:
            raise DuramenError("producer_fenced", f"epoch {known[0]} is known")
        if epoch > known[0]:
            known = log.producers[name] = (epoch, [])
        results = known[1]
        if sequence > len(results):
            raise DuramenError("producer_gap", f"{len(results)} is next, not {sequence}")
        if sequence < len(results) - RESULTS_KEPT:
            return {"start": None, "end": None, "tail": None}
        return results[sequence] if sequence < len(results) else results

    # --- read ------------------------------------------------------------------------------------

    async def _read(self, log: FakeLog, query: dict[str, str], extra: Headers) -> bytes:
        self.reads.append(query["from"])
        if self.read_faults:
            raise self.read_faults.popleft()
        at = self._find(log, query["from"])
        if at > log.tail:
            raise DuramenError("beyond_tail", f"the tail is {log.tail}", field="from")
        if at < log.head:
            at = log.head
            extra["Duramen-Moved-To"] = f"seq:{at}"
        self._refuse_lost(log, at)
        wait_s = parse_duration_us(query.get("wait", "0s")) / 1e6
        if at == log.tail and wait_s and not log.is_ended:
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), wait_s)
        most = min(int(query["bytes"]), self.answer_bytes)
        found: list[PlacedBatch] = []
        for batch in log.batches:
            if batch.end_seq_num > at and (not found or sum(len(b.batch) for b in found) < most):
                if batch.dlsn.entry in log.lost:
                    break
                found.append(batch)
        end = found[-1].end_seq_num if found else log.tail
        if found:
            extra["Duramen-Start"] = f"seq:{max(at, found[0].seq_num)}"
        extra["Duramen-Next"] = f"seq:{end}"
        extra["content-type"] = MEDIA_TYPE
        if end == log.tail:
            extra["Duramen-Tail"] = orjson.dumps(log.mark(log.tail)).decode()
            if log.is_ended:
                extra["Duramen-Ended"] = "true"
        if self.home is not None:
            extra["Duramen-Home"] = self.home
        return pack_batches(found)

    def _find(self, log: FakeLog, position: str) -> int:
        if position.startswith("tail"):
            return max(log.tail - int(position[5:] or 0), log.head)
        if position.startswith("dlsn:"):
            entry = parse_dlsn(position[5:]).entry
            return log.tail if entry == len(log.batches) else log.batches[entry].seq_num
        return log.head if position == "head" else int(position.removeprefix("seq:"))

    def _refuse_lost(self, log: FakeLog, at: int) -> None:
        """As the proxy: one loss at a time, by the place of the first entry behind it."""
        found = next((b.dlsn.entry for b in log.batches if b.end_seq_num > at), None)
        if found is not None and found in log.lost:
            place = f"dlsn:e1n{found + 1}s0"
            detail = f"the entry e1n{found} is lost for ever: go on from {place}"
            raise DuramenError("data_lost", detail, field="from", facts={"next": place})


def _page(names: list[str], query: dict[str, str], what: str, key: str) -> bytes:
    names = [n for n in names if n.startswith(query.get("prefix", ""))]
    names = [n for n in names if n > query.get("start_after", "")]
    return orjson.dumps({what: [{key: n} for n in names[:2]], "has_more": len(names) > 2})


# --- faults --------------------------------------------------------------------------------------


def refuse(code: str, **more: Any) -> Fault:
    """Nothing is stored, and the answer says why."""

    async def fault(_arrival: Arrival) -> None:
        raise DuramenError(code, "as scripted", **more)

    return fault


async def store_and_lose(arrival: Arrival) -> None:
    """It is stored, and the answer is lost."""
    arrival.store()
    raise LostAnswer


async def lose(_arrival: Arrival) -> None:
    """It is lost on its way."""
    raise LostAnswer


async def serve(_arrival: Arrival) -> None:
    """No fault."""


def hold(until: asyncio.Event) -> Fault:
    """Stored and answered only when the event is set."""

    async def fault(_arrival: Arrival) -> None:
        await until.wait()

    return fault


class Relay:
    """A way to the cluster that can be cut: connections break, and none is made until `mend`.

    Not by asyncio's server: a connection that it accepts as it is closed stays open, and mute.
    """

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self._listener: socket.socket | None = None
        self._joins: set[asyncio.Task[None]] = set()
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def mend(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self._port))
        self._listener.setblocking(False)
        self._port = self._listener.getsockname()[1]
        asyncio.get_running_loop().add_reader(self._listener, self._accept, self._listener)

    def cut(self) -> None:
        assert self._listener is not None
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        for join in self._joins:
            join.cancel()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(BlockingIOError):
            near, _ = listener.accept()
            near.setblocking(False)
            join = asyncio.create_task(self._join(near))
            self._joins.add(join)
            join.add_done_callback(self._joins.discard)
            # Here, because one that is cancelled before it began never gets as far as to close it.
            join.add_done_callback(lambda _: near.close())

    async def _join(self, near: socket.socket) -> None:
        with socket.socket() as far:
            far.setblocking(False)
            await asyncio.get_running_loop().sock_connect(far, ("127.0.0.1", self._cluster.port))
            ways = [asyncio.create_task(_pass_on(*way)) for way in ((near, far), (far, near))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)


async def _pass_on(source: socket.socket, target: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    while piece := await loop.sock_recv(source, 1 << 16):
        await loop.sock_sendall(target, piece)


@asynccontextmanager
async def running_cluster() -> AsyncIterator[FakeCluster]:
    """A cluster with the log `ns/log`."""
    cluster = FakeCluster()
    cluster.add_log()
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()
