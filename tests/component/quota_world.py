"""Both doors of a proxy around an application that counts what it reads, over a store in memory.

Used by the tests of limits and by their benchmark.
Source: docs/protocol/limits.md "How it is counted".
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

from duramen.config import ClientLimits
from duramen.runtime.admission.admission import ClientAdmission
from duramen.runtime.admission.public_door import PublicDoor
from duramen.runtime.admission.quota_door import QuotaDoor
from duramen.runtime.admission.quotas import Quotas
from duramen.runtime.role import ServiceOptions
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.wire.metadata_json import Paths, encode_node
from tests.component.audit_world import record_nowhere
from tests.component.door_world import DOCUMENTS

PATHS: Final = Paths("c")
APPEND: Final = "/v1/namespaces/shop/logs/orders/records"
SESSION: Final = f"{APPEND}:stream"
FREE: Final = ClientLimits.model_validate(dict.fromkeys(ClientLimits.model_fields))
Headers = dict[str, str]


class Told(NamedTuple):
    """How a call ended."""

    status: int
    headers: Headers
    problem: dict[str, Any]


class Limited:
    """One proxy's doors; `serve` is the application.

    Args:
        admission: None: nobody is asked who calls.
    """

    def __init__(
        self,
        store: MemoryStore,
        clients: ClientLimits = FREE,
        admission: ClientAdmission | None = None,
        security: str = "none",
    ) -> None:
        options = ServiceOptions(
            "writeproxy", "c", "wp-0", "127.0.0.1", 0, 0, "", "eu", "ra", security, 4.0, None,
            client_limits=clients,
        )  # fmt: skip
        self.quotas = Quotas(options, store)
        self.pieces: list[bytes] = [b""]
        self.answers: list[bytes] = [b""]
        self.waiting: asyncio.Event | None = None
        self.served_count = 0
        self.read_bytes = 0
        door: Any = QuotaDoor(self._serve, self.quotas)
        if admission is not None:
            door = PublicDoor(door, admission, DOCUMENTS, record_nowhere())
        self._door = door

    async def _serve(self, _scope: Any, receive: Any, send: Any) -> None:
        self.served_count += 1
        has_more = True
        while has_more:
            message = await receive()
            self.read_bytes += len(message.get("body", b""))
            has_more = message.get("more_body", False)
        if self.waiting is not None:
            await self.waiting.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number, body in enumerate(self.answers, 1):
            has_more = number < len(self.answers)
            await send({"type": "http.response.body", "body": body, "more_body": has_more})

    async def call(
        self,
        method: str = "POST",
        path: str = APPEND,
        shown: Headers | None = None,
        *,
        length: int | None = 0,
    ) -> Told:
        """Make a call whose body is `pieces`; `length` is what it announces."""
        pairs = [(n.encode(), v.encode()) for n, v in (shown or {}).items()]
        if length is not None:
            pairs.append((b"content-length", str(length).encode()))
        said: list[Any] = []
        pieces = [*self.pieces]

        async def receive() -> Any:
            body = pieces.pop(0)
            return {"type": "http.request", "body": body, "more_body": bool(pieces)}

        async def send(message: Any) -> None:
            said.append(message)

        scope = {"type": "http", "method": method, "path": path, "headers": pairs}
        await self._door(scope, receive, send)
        body = b"".join(message.get("body", b"") for message in said[1:])
        status: int = said[0]["status"]
        headers = {n.decode(): v.decode() for n, v in said[0]["headers"]}
        return Told(status, headers, json.loads(body) if status >= 400 else {})

    async def call_until_refused(self, most: int, *args: Any, **kwargs: Any) -> Sequence[Told]:
        """All that were let in, then the refusal."""
        told: list[Told] = []
        while len(told) <= most and (not told or told[-1].status == 200):
            told.append(await self.call(*args, **kwargs))
        return told


async def set_limits(store: MemoryStore, namespace: str, **limits: Any) -> None:
    """As if somebody had configured them before."""
    path = PATHS.namespace(namespace)
    data = encode_node({"config": {"limits": limits}, "nonce": "n"})
    found = await store.get(path)
    if found is None:
        await store.create(path, data, make_parents=True)
    else:
        await store.set(path, data, version=found.version)


def play(scenario: Callable[[MemoryStore], Awaitable[None]]) -> None:
    async def main() -> None:
        store = MemoryStore(MemoryTree())
        await store.start()
        async with asyncio.timeout(60):
            await scenario(store)
        await store.close()

    asyncio.run(main())
