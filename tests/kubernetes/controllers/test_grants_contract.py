"""The twin's grants keep the contract of a real cluster with identities: one story on both.

The real one is asked with the token of its run, which may grant everything, as the operator may.
Source: docs/protocol/rights.md "Calls and tools".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import httpx
import pytest

from tests.kubernetes.controllers.admin_twin import AdminTwin, running_twin
from tests.process.cluster import running_cluster

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]

ANN: Final = {"who": "user:corp/ann", "role": "reader", "scope": "shop"}
BOB: Final = {"who": "group:corp/bob", "role": "owner", "scope": "shop/ord*"}
FAR: Final = {"who": "service:client/x", "role": "writer", "scope": "shop2/orders"}
LOOSE: Final = {"who": "user:corp/ann", "role": "operator", "scope": "shop"}


@pytest.fixture(params=["twin", "real"])
def asked(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[httpx.Client]:
    """Whoever answers for a write proxy's public port, with nothing granted yet."""
    if request.param == "twin":
        twin = AdminTwin()
        twin.state.security = "on"
        with running_twin(twin), httpx.Client(base_url=twin.url) as client:
            yield client
        return
    folder = tmp_path / "data"
    with running_cluster(folder, "--security", "on") as cluster:
        shown = {"Authorization": f"Bearer {(folder / 'token').read_text().strip()}"}
        url = cluster.state()["write_url"]
        with httpx.Client(base_url=url, headers=shown, timeout=30) as client:
            yield client


def show(client: httpx.Client, scope: str) -> tuple[int, list[dict[str, str]]]:
    """Version and grants within a scope, without who gave them and when."""
    answer = client.get("/v1/grants", params={"scope": scope}).json()
    rows = [dict(row) for row in answer["grants"]]
    for row in rows:
        assert row.pop("by").partition(":")[0] in {"service", "token"}
        assert row.pop("given").endswith("Z")
    return answer["version"], rows


def replace(client: httpx.Client, scope: str, version: int, *rows: dict[str, str]) -> Any:
    """Status, and the code of a refusal or the version of the answer."""
    query = {"scope": scope, "version": str(version)}
    answer = client.put("/v1/grants", params=query, json={"grants": list(rows)})
    document = answer.json()
    return answer.status_code, document.get("code", document.get("version"))


def test_both_answer_alike(asked: httpx.Client) -> None:
    assert show(asked, "*") == (0, [])
    assert replace(asked, "shop", 0, ANN) == (200, 1)
    assert replace(asked, "shop/ord*", 1, BOB) == (200, 2)
    assert replace(asked, "shop2/orders", 2, FAR) == (200, 3)
    first = asked.get("/v1/grants", params={"scope": "shop"}).json()["grants"]
    assert show(asked, "shop") == (3, [ANN, BOB])
    assert show(asked, "*") == (3, [ANN, BOB, FAR])
    assert replace(asked, "shop", 2, ANN) == (409, "config_conflict")
    assert replace(asked, "shop", 3, ANN, FAR) == (400, "invalid_argument")
    assert replace(asked, "shop", 3, LOOSE) == (400, "invalid_argument")
    assert replace(asked, "shop", 3, ANN, BOB) == (200, 3), "the same list changes nothing"
    assert replace(asked, "shop/ord*", 3) == (200, 4)
    kept = asked.get("/v1/grants", params={"scope": "shop"}).json()["grants"]
    assert kept == first[:1], "what stays keeps who gave it and when"
    assert show(asked, "*") == (4, [ANN, FAR])
