"""A token for everything, with which every `RestClient` of this process calls a secured cluster.

Written as whoever writes ZooKeeper can, beside the ports. Used by the tests of identities.
Source: docs/protocol/credentials.md "API tokens".
"""

from __future__ import annotations

import time

import pytest
from pyreqwest.client import ClientBuilder

from duramen.client import rest_client
from duramen.core.rights.grants import parse_principal
from duramen.core.rights.verbs import Verb
from duramen.runtime.credentials.access_tokens.issuing import TokenIssuer
from duramen.runtime.credentials.access_tokens.token_table import TokenTable
from duramen.runtime.credentials.principals import Bearer
from duramen.runtime.stores.zookeeper_store import ZooKeeperStore
from duramen.wire.metadata_json import Paths
from duramen.wire.nodes.access_tokens import Scope
from tests.process.cluster import LocalCluster, run


async def _make_token(cluster: LocalCluster) -> str:
    store = ZooKeeperStore(cluster.state()["zookeeper"])
    await store.start()
    try:
        paths = Paths(cluster.state()["cluster"])
        table = TokenTable(store, paths)
        await table.start()
        now_s = int(time.time())
        root = Bearer(parse_principal("service:operator/test"), now_s + 86_400)
        everything = [Scope(frozenset(verb.value for verb in Verb), "*")]
        made, _ = await TokenIssuer(store, paths, table).issue(
            root, everything, everything, life_s=86_400, note="a test", now_s=now_s
        )
        await table.stop()
        return made.text
    finally:
        await store.close()


def call_with_token(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, until the test is over."""
    shown = {"authorization": f"Bearer {run(_make_token(cluster))}"}
    monkeypatch.setattr(
        rest_client, "ClientBuilder", lambda: ClientBuilder().default_headers(shown)
    )
