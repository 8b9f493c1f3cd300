"""A read proxy and a write proxy that ask who calls, over one store; and callers of every kind.

The proxies are the real ones behind real ports, with identities of one CA, bookies and a sequencer
that are faked, and issuers whose keys lie in files. Used by the tests of admission.
Source: docs/protocol/rights.md "How a call is judged".
"""

from __future__ import annotations

import datetime as dt
import json
import ssl
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import httpx
import uvloop

from duramen.core.rights.grants import parse_principal
from duramen.core.rights.system_namespace import SYSTEM_NAMESPACE
from duramen.core.rights.token_scopes import parse_token_scope
from duramen.errors import DuramenError
from duramen.runtime.credentials.access_tokens.issuing import AskedToken, TokenIssuer
from duramen.runtime.credentials.access_tokens.token_stock import TokenStock
from duramen.runtime.credentials.access_tokens.token_table import TokenTable
from duramen.runtime.credentials.access_tokens.token_text import make_token
from duramen.runtime.credentials.principals import Bearer
from duramen.runtime.http_server import Answer
from duramen.runtime.identity.callers import OwnHeaders
from duramen.runtime.identity.folder import HeldIdentity, read_folder
from duramen.runtime.identity.header import NamedClient
from duramen.runtime.identity.names import Identity, make_identity
from duramen.runtime.role import ServiceOptions
from duramen.runtime.security.process_security import ProcessSecurity
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.wire.metadata_json import Paths, encode_node
from duramen.wire.nodes.grants import GrantsNode, encode_grants
from duramen_writeproxy.service import WriteProxy
from tests.component import readproxy_world
from tests.component.credential_world import list_rows, write_issuers
from tests.component.issuing_world import IssuingWorld, read_time
from tests.component.writeproxy_world import FakeSequencer
from tests.unit.grants import given
from tests.unit.identities import DOMAIN
from tests.unit.web_token_forge import LIFE_S, NOW_S, forge
from tests.waiting import wait_for

PATHS: Final = Paths("c")
WRITE: Final = make_identity(DOMAIN, "writeproxy", "wp-0")
READ: Final = make_identity(DOMAIN, "readproxy", "rp-0")
ROOT: Final = Bearer(parse_principal("service:operator/op"), NOW_S + LIFE_S)
LOG: Final = "/v1/namespaces/ns/logs/log"
RECORDS: Final = f"{LOG}/records"
Headers = dict[str, str]


def secure(folder: Path) -> ProcessSecurity:
    return ProcessSecurity(folder, read_folder(folder, read_time()), print)


def bear(text: str) -> Headers:
    return {"authorization": f"Bearer {text}"}


def as_user(name: str, **claims: Any) -> Headers:
    """Of the company's issuer."""
    return bear(forge(None, {"sub": name, **claims}))


class Callers:
    """Whoever calls: people by web tokens, API tokens, identities, proxies for clients."""

    def __init__(self, issued: IssuingWorld, tree: MemoryTree) -> None:
        self.issued = issued
        self._held: dict[tuple[str, str], HeldIdentity] = {}
        self._store = MemoryStore(tree)
        self._table = TokenTable(self._store, PATHS)
        self._tokens = TokenIssuer(self._store, PATHS, TokenStock(self._store, PATHS))

    async def start(self) -> None:
        await self._store.start()
        await self._table.start()

    async def stop(self) -> None:
        await self._table.stop()
        await self._store.close()

    async def give(self, *lines: str) -> None:
        """These grants and no others: `ann reader shop/ord*`."""
        data = encode_grants(GrantsNode(tuple(given(line) for line in lines)))
        found = await self._store.get(PATHS.grants)
        if found is None:
            await self._store.create(PATHS.grants, data, make_parents=True)
        else:
            await self._store.set(PATHS.grants, data, version=found.version)

    async def make_token(self, *scopes: str, life_s: int = 3_600) -> tuple[str, str]:
        """Text and id of an API token: `append,list shop/ord*`."""
        wanted = tuple(
            parse_token_scope(verbs.split(","), on) for verbs, on in map(str.split, scopes)
        )
        made = make_token()
        asked = AskedToken(made.token_id, made.hash, wanted, life_s, "")
        await self._tokens.issue(ROOT, asked, int(time.time()))
        return made.text, made.token_id

    async def revoke(self, token_id: str) -> None:
        await self._tokens.revoke(ROOT, token_id, int(time.time()))

    def identify(
        self,
        role: str,
        name: str,
        receiver: Identity,
        client: NamedClient | None = None,
        at: dt.datetime | None = None,
    ) -> Headers:
        """The header of an identity, in its own name or in a client's."""
        if (role, name) not in self._held:
            self._held[role, name] = read_folder(self.issued.issue(role, name), read_time())
        own = OwnHeaders(self._held[role, name])
        now = at or read_time()
        made = own.give(receiver, now) if client is None else own.give_for(receiver, client, now)
        return {"duramen-identity": made}


class SequencerWithoutAudit(FakeSequencer):
    """Makes no audit log: the trails ask for one when they like, and take no test's answer."""

    async def _on_call(self, path: str, body: bytes, caller: object) -> Answer:
        if path == "/s/control" and json.loads(body).get("namespace") == SYSTEM_NAMESPACE:
            none = DuramenError("namespace_not_found", "there is no audit log here")
            return none.kind.status, "application/json", json.dumps(none.problem()).encode()
        return await super()._on_call(path, body, caller)


class AdmissionWorld(readproxy_world.World):
    """Both proxies, and `ns/log` of the world of read proxies, which has a segment."""

    def __init__(self, folder: Path, *, has_tls: bool = False) -> None:
        issued = IssuingWorld(folder / "proxies")
        read, write = (secure(issued.issue(one.role.value, one.name)) for one in (READ, WRITE))
        self.securities = (read, write)
        issuers = write_issuers(folder, list_rows(folder))
        self.key_file = folder / "corp.jwks"
        """Of the keys of the company's issuer."""
        folders = [issued.folder / one.name if has_tls else None for one in (READ, WRITE)]
        # As `duramen run` does. There is no audit log here, and what waits for it in memory alone
        # costs each stop of a proxy three seconds.
        spools = [folder / one.role.value for one in (READ, WRITE)]
        for spool in spools:
            spool.mkdir()
        super().__init__(
            security=read, issuers=issuers, public_tls_dir=folders[0], data_dir=spools[0]
        )
        self.callers = Callers(issued, self.tree)
        self.sequencer = SequencerWithoutAudit("s0")
        options = ServiceOptions(
            "writeproxy", "c", "wp-0", "127.0.0.1", 0, 0, "", "eu", "ra", "none", 4.0, spools[1],
            issuers=issuers, public_tls_dir=folders[1],
        )  # fmt: skip
        self.write_proxy = WriteProxy(options, MemoryStore(self.tree), write)
        self.scheme = "https" if has_tls else "http"
        self.trusted = trust(issued)
        """By what the clients know the proxies."""
        self.http, self.write = (
            httpx.AsyncClient(timeout=30, trust_env=False, verify=self.trusted) for _ in range(2)
        )

    async def start(self) -> None:
        for security in self.securities:
            security.start()
        await super().start()
        await self.callers.start()
        await self.sequencer.start()
        fields = {"data_url": self.sequencer.url, "region": "eu", "rack": "ra"}
        await self.put(f"{PATHS.sequencers}/s0", encode_node(fields))
        await self.write_proxy.start()
        self.http.base_url = httpx.URL(f"{self.scheme}://127.0.0.1:{self.proxy.port}")
        self.write.base_url = httpx.URL(f"{self.scheme}://127.0.0.1:{self.write_proxy.port}")

    async def stop(self) -> None:
        await self.write.aclose()
        await self.write_proxy.stop()
        await self.sequencer.stop()
        await self.callers.stop()
        await super().stop()
        for security in self.securities:
            await security.stop()


async def until(find: Callable[[], Awaitable[httpx.Response]], *statuses: int) -> httpx.Response:
    """The answer, once it has one of these statuses: proxies hear of a grant by a watch."""
    last: list[httpx.Response] = []

    async def has_status() -> bool:
        last.append(await find())
        return last[-1].status_code in statuses

    await wait_for(has_status)
    return last[-1]


def trust(issued: IssuingWorld) -> ssl.SSLContext:
    """What a client knows of the cluster."""
    context = ssl.create_default_context(cafile=issued.server / "ca.crt")
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def play(
    folder: Path,
    scenario: Callable[[AdmissionWorld], Awaitable[None]],
    *,
    has_tls: bool = False,
) -> None:
    """Run a scenario between both proxies, whose public ports speak TLS or not."""

    async def main() -> None:
        world = AdmissionWorld(folder, has_tls=has_tls)
        await world.start()
        try:
            await scenario(world)
        finally:
            await world.stop()

    uvloop.run(main())
