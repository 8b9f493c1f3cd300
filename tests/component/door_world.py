"""The doors of both proxies around an application that says who came, and who comes to them.

Used by the tests of the door and by its benchmark.
Source: docs/protocol/rights.md "How a call is judged".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from duramen.runtime.admission.admission import ClientAdmission
from duramen.runtime.admission.public_door import PublicDoor
from duramen.runtime.audit.recorded_calls import RecordedCalls
from duramen.runtime.credentials.issuers import read_issuers
from duramen.runtime.identity.header import NamedClient
from duramen.runtime.identity.names import Identity, Role
from duramen.runtime.public.calls import Side
from duramen.runtime.security.process_security import ProcessSecurity
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from tests.component.admission_world import (
    PATHS,
    READ,
    WRITE,
    Callers,
    Headers,
    as_user,
    bear,
    secure,
)
from tests.component.audit_world import AuditLogTwin, make_trail
from tests.component.credential_world import list_rows, write_issuers
from tests.component.issuing_world import IssuingWorld
from tests.unit.web_token_forge import LIFE_S, NOW_S, forge_account
from tests.waiting import wait_for

DOCUMENTS: Final = ("/v1/openapi.json", "/docs")
GRANTS: Final = (
    "own writer shop", "reader reader shop/orders", "other owner stock", "edge owner shop/ord*",
    "group:corp/team producer shop/orders", "serviceaccount:k8s/shop/cart reader shop",
    "service:client/till producer shop/orders", "admin operator *",
)  # fmt: skip
TOKEN: Final = ("append,list shop/ord*", "create stock")
FAR_S: Final = NOW_S + LIFE_S


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Port:
    """One proxy's door.

    Attributes:
        status: what the application answers.
    """

    def __init__(
        self, receiver: Identity, admission: ClientAdmission, *, is_audit_required: bool = False
    ) -> None:
        self.receiver = receiver
        self.reached: list[Any] = []
        self.status = 200
        self.audit_log = AuditLogTwin()
        node = f"{receiver.role.value}/{receiver.name}"
        self.trail = make_trail(self.audit_log, node, is_required=is_audit_required)
        side = Side.WRITE if receiver.role is Role.WRITEPROXY else Side.READ
        recorded = RecordedCalls(self.trail, side)
        self._door = PublicDoor(self._serve, admission, DOCUMENTS, recorded)

    async def _serve(self, scope: Any, _receive: Any, send: Any) -> None:
        self.reached.append(scope)
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def call(self, method: str, path: str, *shown: Headers, twice: bool = False) -> Answer:
        pairs = [(b"content-length", b"16777216")]
        pairs += [(n.encode(), v.encode()) for one in shown for n, v in one.items()] * (1 + twice)
        scope = {"type": "http", "method": method, "path": path, "headers": pairs}
        said: list[Any] = []

        async def receive() -> Any:
            assert said, "the body of a call was read before it was let in"
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            said.append(message)

        await self._door(scope, receive, send)
        headers = {n.decode(): v.decode() for n, v in said[0]["headers"]}
        return Answer(said[0]["status"], headers, b"".join(m.get("body", b"") for m in said[1:]))


class World:
    """The doors of a write proxy and of a read proxy, and who comes to them."""

    def __init__(self, folder: Path) -> None:
        self.tree = MemoryTree()
        self.issued = IssuingWorld(folder / "cluster")
        self.strangers = IssuingWorld(folder / "strangers")
        self.callers = Callers(self.issued, self.tree)
        self.store = MemoryStore(self.tree)
        issuers = read_issuers(write_issuers(folder, list_rows(folder)))
        self.securities: list[ProcessSecurity] = []
        self.admissions: list[ClientAdmission] = []
        self.ports: list[Port] = []
        for one in (WRITE, READ):
            security = secure(self.issued.issue(one.role.value, one.name))
            admission = ClientAdmission(self.store, PATHS, security, issuers)
            self.securities.append(security)
            self.admissions.append(admission)
            self.ports.append(Port(one, admission))


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[World]:
    world = World(folder)
    await world.store.start()
    await world.callers.start()
    for security, admission in zip(world.securities, world.admissions, strict=True):
        security.rights.follow(world.store, PATHS)
        await admission.start()
    try:
        yield world
    finally:
        for admission in world.admissions:
            await admission.stop()
        for security in world.securities:
            await security.rights.stop()
            await security.stop()
        await world.callers.stop()


def play(folder: Path, scenario: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(120), opened(folder) as world:
            await scenario(world)

    asyncio.run(main())


async def list_known(world: World, port: Port) -> dict[str, tuple[Headers, NamedClient]]:
    """Callers who are known: what they show, and how a proxy names them."""
    text, token_id = await world.callers.make_token(*TOKEN)

    async def is_known() -> bool:
        status = (await port.call("GET", "/v1/namespaces", bear(text))).status
        return status == 200

    await wait_for(is_known)
    people = {
        name: (as_user(name), NamedClient(f"user:corp/{name}", (), FAR_S))
        for name in ("own", "reader", "other", "edge", "admin", "nobody")
    }
    team = as_user("dan", groups=["team"])
    till = world.callers.identify("client", "till", port.receiver)
    op = world.callers.identify("operator", "op", port.receiver)
    return people | {
        "group:corp/team": (team, NamedClient("user:corp/dan", ("team",), FAR_S)),
        "serviceaccount:k8s/shop/cart": (
            bear(forge_account()), NamedClient("serviceaccount:k8s/shop/cart", (), FAR_S),
        ),
        "token": (bear(text), NamedClient(f"token:{token_id}", (), FAR_S)),
        "service:client/till": (till, NamedClient("service:client/till", (), FAR_S)),
        "operator": (op, NamedClient("service:operator/op", (), FAR_S)),
    }  # fmt: skip
