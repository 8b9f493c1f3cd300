"""A process that judges credentials: issuers with keys in files, and API tokens in a store.

Used by the tests of credentials. Source: docs/protocol/credentials.md "Who it is".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from duramen.core.rights.token_scopes import TokenScope, parse_token_scope
from duramen.runtime.credentials.access_tokens.issuing import AskedToken, TokenIssuer
from duramen.runtime.credentials.access_tokens.token_stock import TokenStock
from duramen.runtime.credentials.access_tokens.token_table import TokenTable
from duramen.runtime.credentials.access_tokens.token_text import make_token
from duramen.runtime.credentials.clients import ClientCredentials
from duramen.runtime.credentials.issuers import read_issuers
from duramen.runtime.credentials.principals import Bearer, name_user
from duramen.runtime.credentials.web_bearers import WebBearers
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.wire.metadata_json import Paths
from duramen.wire.nodes.grants import GrantsNode, encode_grants
from tests.unit.grants import given
from tests.unit.web_token_forge import (
    AUDIENCE,
    CORP_SET,
    ISSUER,
    K8S_AUDIENCE,
    K8S_ISSUER,
    LIFE_S,
    NOW_S,
    STRANGER,
    forge,
    to_jwk,
    to_set,
)

PATHS: Final = Paths("c1")
ALICE: Final = Bearer(name_user("corp", "alice"), NOW_S + LIFE_S)
"""Owner of everything, unless a test says otherwise."""


def scope(target: str, *verbs: str) -> TokenScope:
    return parse_token_scope(verbs, target)


READING: Final = (scope("events", "read"),)


def write_issuers(folder: Path, rows: list[Mapping[str, Any]]) -> Path:
    path = folder / "issuers.json"
    path.write_bytes(orjson.dumps({"v": 1, "issuers": rows}))
    return path


def list_rows(folder: Path) -> list[Mapping[str, Any]]:
    """The issuers of this world: a company's, a neighbour's and a Kubernetes'."""
    (folder / "corp.jwks").write_bytes(CORP_SET)
    (folder / "other.jwks").write_bytes(to_set(to_jwk(STRANGER, "ec-other")))
    corp = {"kind": "oidc", "issuer": ISSUER, "audience": AUDIENCE}
    return [
        {"name": "corp", **corp, "keys": {"file": str(folder / "corp.jwks")}},
        {
            "name": "other", **corp, "issuer": "https://other.example",
            "algorithms": ["ES256"], "keys": {"file": str(folder / "other.jwks")},
        },
        {
            "name": "k8s", "kind": "kubernetes", "issuer": K8S_ISSUER, "audience": K8S_AUDIENCE,
            "keys": {"file": str(folder / "corp.jwks")},
        },
    ]  # fmt: skip


class CredentialWorld:
    """All that a public port asks, on a store of its own tree."""

    def __init__(self, folder: Path, tree: MemoryTree) -> None:
        self.folder = folder
        self.tree = tree
        self.store = MemoryStore(tree)
        self.table = TokenTable(self.store, PATHS)
        self.issuer = TokenIssuer(self.store, PATHS, TokenStock(self.store, PATHS))
        tree.now_unix_ms = lambda: self.store_s * 1_000
        self.store_s = NOW_S
        """What ZooKeeper's clock says."""
        self.web = WebBearers(read_issuers(write_issuers(folder, list_rows(folder))))
        self.credentials = ClientCredentials(self.table, self.web)

    async def judge(self, text: str, now_s: float = NOW_S) -> Bearer:
        return await self.credentials.judge([f"Bearer {text}"], now_s)

    async def judge_web(self) -> Bearer:
        return await self.judge(forge())

    async def issue(self, issuer: Bearer = ALICE, **more: Any) -> tuple[str, str]:
        """The text and id of a new token."""
        told: dict[str, Any] = {"scopes": READING, "life_s": 3_600, "note": "for a test"} | more
        now_s, made = told.pop("now_s", NOW_S), make_token()
        await self.issuer.issue(issuer, AskedToken(made.token_id, made.hash, **told), now_s)
        return made.text, made.token_id

    async def grant(self, *lines: str) -> None:
        """Have these grants and no others: `user:corp/alice owner *`."""
        data = encode_grants(GrantsNode(tuple(given(line) for line in lines)))
        found = await self.store.get(PATHS.grants)
        if found is None:
            await self.store.create(PATHS.grants, data, make_parents=True)
        else:
            await self.store.set(PATHS.grants, data, version=found.version)

    def knows(self, token_id: str) -> bool:
        return any(one.token_id == token_id for one in self.table.list_tokens())


def play(folder: Path, scenario: Callable[[CredentialWorld], Awaitable[None]]) -> None:
    """Run a scenario in a world whose table and keys are known."""

    async def main() -> None:
        world = CredentialWorld(folder, MemoryTree())
        await world.store.start()
        await world.grant("user:corp/alice owner *")
        await world.table.start()
        await world.web.start()
        try:
            async with asyncio.timeout(30):
                await scenario(world)
        finally:
            await world.web.stop()
            await world.table.stop()

    asyncio.run(main())
