"""The twin of the admin API keeps the contract of the real one: the same cases on both.

A case calls and compares status, code, field and members of the answer; every answer to a public
call is held against the published schema as well, whoever gave it. What the real cluster does a
moment later (a segment closes after `:roll`) is waited for on both.

Source: docs/protocol/rest.md, docs/protocol/openapi.json.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final

import httpx
import jsonschema_rs
import pytest

from duramen.config import NamespaceConfig
from duramen.runtime.public.calls import CALLS, JSON, PublicCall
from duramen.runtime.public.openapi import make_document
from duramen.runtime.public.schemas import name_of
from tests.kubernetes.controllers.admin_twin import running_twin
from tests.kubernetes.controllers.twin_state import make_bookie
from tests.process.cluster import running_plain_cluster
from tests.process.times import HANG_S
from tests.waiting import wait_in_thread

Answer = dict[str, Any]

RECORDS: Final = {"records": [{"body": "one"}, {"body": "two"}, {"body": "three"}]}


class Proxy:
    """A write proxy, real or not, behind its public and its admin address."""

    def __init__(self, public_url: str, admin_url: str) -> None:
        self._public_url, self._admin_url = public_url, admin_url
        self._client = httpx.Client(timeout=30)

    def call(self, method: str, path: str, body: Answer | None = None) -> tuple[int, Answer]:
        """Status and answer; a public one is compared with the schema."""
        is_admin = path.startswith("/v1/cluster/")
        url = (self._admin_url if is_admin else self._public_url) + path
        response = self._client.request(method, url, json=body)
        document: Answer = response.json()
        if not is_admin:
            check_schema(method, path.partition("?")[0], response.status_code, document)
        return response.status_code, document

    def refused(self, method: str, path: str, body: Answer | None = None) -> tuple[Any, ...]:
        """Status, code and field of a refusal."""
        status, document = self.call(method, path, body)
        return status, document.get("code"), document.get("field")


@cache
def validator(name: str) -> Any:
    document = make_document()
    schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    return jsonschema_rs.validator_for(schema)


def check_schema(method: str, path: str, status: int, document: Answer) -> None:
    call = find_call(method, path)
    model = None if status >= 400 else call.given[status].forms[JSON]
    name = "Problem" if model is None else name_of(model)
    faults = [f"{fault.instance_path}: {fault.message}" for fault in
              validator(name).iter_errors(document)]  # fmt: skip
    assert not faults, f"{method} {path} {status}: {faults}"
    assert status < 400 or document["code"] in call.codes, f"{call.name} {document['code']}"


def find_call(method: str, path: str) -> PublicCall:
    for call in CALLS:
        pattern = re.sub(r"\{\w+\}", "[^/:]+", call.path)
        if call.method == method and re.fullmatch(pattern, path):
            return call
    raise AssertionError(f"{method} {path} is no public call")


@pytest.fixture(scope="module", params=["twin", "real"])
def proxy(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Proxy]:
    if request.param == "twin":
        with running_twin() as twin:
            racks = ("a", "b", "c")
            twin.state.bookies = [make_bookie(f"bookie-{r}", "local", r) for r in racks]
            yield Proxy(twin.url, twin.url)
        return
    with running_plain_cluster(tmp_path_factory.mktemp("contract") / "data") as cluster:
        state = cluster.state()
        yield Proxy(state["write_url"], state["admin_url"])


def case_namespace(proxy: Proxy) -> None:
    path = "/v1/namespaces/shop-ns"
    assert proxy.refused("GET", path) == (404, "namespace_not_found", "namespace")
    assert proxy.call("PUT", path, {}) == (
        201, {"namespace": "shop-ns", "config": NamespaceConfig().to_json()}
    )  # fmt: skip
    assert proxy.call("PUT", path, {})[0] == 200
    other = proxy.refused("PUT", path, {"auto_create": True})
    assert other == (409, "log_exists_with_other_config", None)
    assert proxy.call("PATCH", path, {"auto_create": True})[1]["changed"] is True
    assert proxy.call("PATCH", path, {"auto_create": True})[1]["changed"] is False
    wanted = NamespaceConfig(auto_create=True).to_json()
    assert proxy.call("GET", path)[1]["config"] == wanted
    assert proxy.refused("PATCH", path, {"quota": 1}) == (400, "unknown_field", "quota")
    assert proxy.call("DELETE", path)[1] == {"namespace": "shop-ns", "changed": True}
    assert proxy.call("DELETE", path)[1]["changed"] is False
    assert proxy.refused("PATCH", path, {}) == (404, "namespace_not_found", "namespace")


def case_drain(proxy: Proxy) -> None:
    bookies = proxy.call("GET", "/v1/cluster/bookies")[1]["bookies"]
    bookie = bookies[0]["id"]
    path = f"/v1/cluster/bookies/{bookie}"
    proxy.call("PUT", "/v1/namespaces/drains", {})
    proxy.call("PUT", "/v1/namespaces/drains/logs/l", {})

    def is_refused() -> bool:
        found = proxy.refused("POST", path + "/drain", {})
        if found[1] is None:  # the auditor has not read the log yet
            proxy.call("POST", path + "/cancel-drain", {})
        return found == (422, "placement_impossible", "bookie")

    wait_in_thread(is_refused, HANG_S, "three bookies to be needed")
    said = proxy.call("POST", path + "/cancel-drain", {})[1]
    incarnation = bookies[0]["incarnation"]
    assert said == {"bookie": bookie, "incarnation": incarnation, "duty": "serving"}
    nobody = proxy.refused("POST", "/v1/cluster/bookies/nobody/drain", {})
    assert nobody == (400, "invalid_argument", "bookie")
    question = {
        "token": "0c" * 16, "target": f"bookie/{bookie}", "kind": "remove", "holder": "a test",
        "life_ms": 10_000,
    }  # fmt: skip
    denied = proxy.call("POST", "/v1/cluster/disruptions", question)[1]
    assert denied["grant"] is None
    assert "not_drained" in {one["code"] for one in denied["reasons"]}
    held = proxy.call("GET", "/v1/cluster/repair/bookies")[1]["bookies"]
    assert {row["bookie"] for row in held} == {row["id"] for row in bookies}
    assert all(type(row["copies"]) is int and type(row["bytes"]) is int for row in held)


def case_names(proxy: Proxy) -> None:
    assert proxy.refused("PUT", "/v1/namespaces/Shop", {})[:2] == (400, "invalid_name")
    proxy.call("PUT", "/v1/namespaces/names", {})
    log = "/v1/namespaces/names/logs/.orders"
    assert proxy.refused("PUT", log, {})[:2] == (400, "invalid_name")
    nowhere = "/v1/namespaces/nowhere/logs/orders"
    assert proxy.refused("PUT", nowhere, {}) == (404, "namespace_not_found", "namespace")
    assert proxy.refused("GET", nowhere) == (404, "namespace_not_found", "namespace")


def case_log(proxy: Proxy) -> None:
    path = "/v1/namespaces/logs-ns/logs/orders"
    proxy.call("PUT", "/v1/namespaces/logs-ns", {})
    assert proxy.refused("GET", path) == (404, "log_not_found", "log")
    status, made = proxy.call("PUT", path, {"retention": {"age": "60m"}})
    assert (status, made["config"]["retention"]["age"]) == (201, "1h")
    assert proxy.call("PUT", path, {"retention": {"age": "1h"}})[0] == 200
    other = proxy.refused("PUT", path, {})
    assert other == (409, "log_exists_with_other_config", None)
    shown = proxy.call("GET", path)[1]
    assert (shown["config_version"], shown["ended"]) == (1, False)
    assert shown["head"]["seq_num"] == 0
    assert shown["log_id"] == made["log_id"]
    changed = proxy.call("PATCH", path + "?config_version=1", {"retention": {"age": None}})[1]
    assert (changed["changed"], changed["config_version"]) == (True, 2)
    assert changed["config"]["retention"]["age"] is None
    stale = proxy.refused("PATCH", path + "?config_version=1", {"retention": {"age": "2h"}})
    assert stale == (409, "config_conflict", "config_version")
    again = proxy.call("PATCH", path, {"retention": {"age": None}})[1]
    assert (again["changed"], again["config_version"]) == (False, 2)
    spaces = proxy.call("GET", "/v1/namespaces?start_after=logs-n&limit=1")[1]
    assert spaces["namespaces"] == [{"namespace": "logs-ns"}]
    listed = proxy.call("GET", "/v1/namespaces/logs-ns/logs")[1]
    assert [row["name"] for row in listed["logs"]] == ["orders"]


def case_refused_configuration(proxy: Proxy) -> None:
    path = "/v1/namespaces/refused-ns/logs/orders"
    proxy.call("PUT", "/v1/namespaces/refused-ns", {})
    assert proxy.refused("PUT", path, {"retenton": {}}) == (400, "unknown_field", "retenton")
    bad: Answer = {"replication": {"ensemble_size": 2, "write_quorum": 3}}
    assert proxy.refused("PUT", path, bad) == (400, "invalid_argument", "replication")
    bad = {"roll": {"interval": "soon"}}
    assert proxy.refused("PUT", path, bad) == (400, "invalid_argument", "roll.interval")
    wide = {"ensemble_size": 5, "write_quorum": 5, "ack_quorum": 5, "min_racks": 5}
    status, code, _ = proxy.refused("PUT", path, {"replication": wide})
    assert (status, code) == (422, "placement_impossible")
    proxy.call("PUT", path, {})
    assert proxy.refused("PATCH", path, {"replication": wide})[1] == "placement_impossible"
    assert proxy.call("GET", path)[1]["config_version"] == 1


def case_records_and_ends(proxy: Proxy) -> None:
    path = "/v1/namespaces/ends-ns/logs/orders"
    proxy.call("PUT", "/v1/namespaces/ends-ns", {})
    proxy.call("PUT", path, {})
    assert proxy.call("GET", path + "/records/tail")[1]["tail"]["seq_num"] == 0
    assert proxy.call("POST", path + "/records", RECORDS)[1]["end"]["seq_num"] == 3
    assert proxy.call("GET", path + "/records/tail")[1]["tail"]["seq_num"] == 3
    beyond = proxy.refused("POST", path + ":truncate", {"to": "seq:9"})
    assert beyond == (416, "beyond_tail", "to")
    cut = proxy.call("POST", path + ":truncate", {"to": "seq:2"})[1]
    assert (cut["changed"], cut["head"]["seq_num"], cut["tail"]["seq_num"]) == (True, 2, 3)
    assert proxy.call("POST", path + ":truncate", {"to": "seq:2"})[1]["changed"] is False
    assert proxy.call("POST", path + ":truncate", {"to": "seq:1"})[1]["changed"] is False
    assert proxy.call("GET", path)[1]["head"]["seq_num"] == 2
    assert proxy.refused("POST", path + ":truncate", {"to": "soon"})[1] == "invalid_position"
    assert proxy.refused("POST", path + ":end", {"x": 1}) == (400, "unknown_field", "x")
    for _ in range(2):
        ended = proxy.call("POST", path + ":end", {})[1]
        assert (ended["ended"], ended["tail"]["seq_num"]) == (True, 3)
    assert proxy.call("GET", path)[1]["ended"] is True
    assert proxy.refused("POST", path + "/records", RECORDS)[:2] == (409, "log_ended")


def case_standing(proxy: Proxy) -> None:
    def is_calm() -> bool:
        """The real one says so once an auditor leads and everything is there."""
        status, found = proxy.call("GET", "/v1/cluster/disruptions/standing")
        rows = found.get("bookies", [])
        return status == 200 and len(rows) == 3 and all(_is_calm(row) for row in rows)

    wait_in_thread(is_calm, HANG_S, "three bookies, and nothing against any of them")
    found = proxy.call("GET", "/v1/cluster/disruptions/standing")[1]
    listed = proxy.call("GET", "/v1/cluster/bookies")[1]["bookies"]
    assert [(one["bookie"], one["incarnation"]) for one in found["bookies"]] == sorted(
        (one["id"], one["incarnation"]) for one in listed
    )
    assert type(found["read_unix_ms"]) is type(found["metadata_age_ms"]) is int
    assert proxy.call("GET", "/v1/cluster/disruptions")[1] == {"grants": []}


def case_grants_of_disruption(proxy: Proxy) -> None:
    path = "/v1/cluster/disruptions"
    token, other = (digits * 16 for digits in ("0a", "0b"))
    ask: Answer = {
        "token": token, "target": "zookeeper/main-zookeeper-0", "kind": "restart",
        "holder": "operator logs/main", "life_ms": 60_000, "voters": 3, "others_serving": 2,
    }  # fmt: skip

    def is_granted() -> bool:
        """The real one grants once an auditor leads."""
        status, found = proxy.call("POST", path, ask)
        return status == 200 and found["grant"] is not None

    wait_in_thread(is_granted, HANG_S, "a grant")
    again = proxy.call("POST", path, ask)[1]
    assert again["allowed"] and again["grant"]["holder"] == "operator logs/main"
    assert 60_000 < again["grant"]["over_in_ms"] <= 65_000
    denied = proxy.call("POST", path, {**ask, "token": other})[1]
    assert denied["grant"] is None and [one["code"] for one in denied["reasons"]] == ["granted"]
    (listed,) = proxy.call("GET", path)[1]["grants"]
    assert [listed[k] for k in ("token", "target")] == [token, ask["target"]]
    assert proxy.call("POST", f"{path}/{token}/renew", {})[1]["grant"]["token"] == token
    for was_there in (True, False):
        ended = proxy.call("DELETE", f"{path}/{token}")[1]
        assert ended == {"token": token, "ended": was_there}
    assert proxy.call("POST", f"{path}/{token}/renew", {})[1] == {"grant": None}


def _is_calm(row: Answer) -> bool:
    names = {"bookie", "incarnation", "there", "reasons", "lacks_count"}
    return set(row) == names and row["there"] and not row["reasons"] and not row["lacks_count"]


def case_segments_and_owner(proxy: Proxy) -> None:
    path = "/v1/namespaces/segments-ns/logs/orders"
    proxy.call("PUT", "/v1/namespaces/segments-ns", {})
    log_id = proxy.call("PUT", path, {})[1]["log_id"]
    assert proxy.call("GET", path + "/segments")[1]["segments"] == []
    proxy.call("POST", path + "/records", RECORDS)
    owners = proxy.call("GET", "/v1/cluster/owners")[1]
    row = next(row for row in owners["logs"] if row["log_id"] == log_id)
    assert (row["name"], row["state"]) == ("segments-ns/orders", "active")
    assert row["sequencer"] in [one["id"] for one in owners["sequencers"]]
    assert owners["silent"] == []
    assert proxy.call("POST", path + ":roll")[1]["epoch"] == 1

    def first() -> Answer:
        found: Answer = proxy.call("GET", path + "/segments")[1]["segments"][0]
        return found

    wait_in_thread(lambda: first()["state"] == "CLOSED", HANG_S, "the segment to close")
    closed = first()
    assert (closed["epoch"], closed["records"], closed["cold_copy"]) == (1, 3, None)
    assert closed["completed"] is not None
    assert closed["bytes"] > 0
    assert (closed["status"], closed["hot_copies"]) == ("LIVE", "kept")
    placed = proxy.call("GET", "/v1/cluster/logs/segments-ns/orders/placement")[1]
    assert (placed["log_id"], placed["violations"], placed["shown"]) == (log_id, 0, [])


def case_deletion(proxy: Proxy) -> None:
    path = "/v1/namespaces/gone-ns/logs/orders"
    proxy.call("PUT", "/v1/namespaces/gone-ns", {})
    assert proxy.refused("DELETE", path) == (404, "log_not_found", "log")
    first = proxy.call("PUT", path, {})[1]["log_id"]
    not_empty = proxy.refused("DELETE", "/v1/namespaces/gone-ns")
    assert not_empty == (409, "namespace_not_empty", "namespace")
    for _ in range(2):
        deleted = proxy.call("DELETE", path)[1]
        assert deleted["log_id"] == first
        assert deleted["undelete_until"] > "2026"
    assert proxy.refused("GET", path)[:2] == (409, "log_deleted")
    assert proxy.refused("GET", path + "/segments")[1] == "log_deleted"
    assert proxy.refused("PATCH", path, {"retention": {"age": "1h"}})[1] == "log_deleted"
    assert proxy.call("GET", "/v1/namespaces/gone-ns/logs")[1]["logs"] == []
    # The name of a deleted log counts until it is purged.
    assert proxy.refused("DELETE", "/v1/namespaces/gone-ns")[1] == "namespace_not_empty"
    assert proxy.call("POST", path + ":undelete")[1]["log_id"] == first
    assert proxy.call("GET", path)[1]["log_id"] == first
    proxy.call("DELETE", path)
    status, anew = proxy.call("PUT", path, {})
    assert status == 201
    assert anew["log_id"] != first


def case_meant_log(proxy: Proxy) -> None:
    """A change that names an id: the name has got another log, none, or a deleted one."""
    path = "/v1/namespaces/meant-ns/logs/orders"
    proxy.call("PUT", "/v1/namespaces/meant-ns", {})
    calls: list[tuple[str, str, Answer]] = [
        ("PATCH", path, {"retention": {"age": "1h"}}),
        ("POST", path + ":truncate", {"to": "seq:2"}),
        ("POST", path + ":roll", {}),
        ("POST", path + ":end", {}),
        ("DELETE", path, {}),
    ]
    for method, url, body in calls:
        nothing = proxy.refused(method, f"{url}?log_id=7", body)
        assert nothing == (404, "log_not_found", "log")
    first = proxy.call("PUT", path, {})[1]["log_id"]
    assert proxy.call("DELETE", f"{path}?log_id={first}")[1]["log_id"] == first
    second = proxy.call("PUT", path, {})[1]["log_id"]
    proxy.call("POST", path + "/records", RECORDS)
    shown = proxy.call("GET", path)[1]
    for method, url, body in calls:
        for text in ("", "0", f"0{second}", "orders", "9999999999"):
            bad = proxy.refused(method, f"{url}?log_id={text}", body)
            assert bad == (400, "invalid_argument", "log_id")
        late = proxy.refused(method, f"{url}?log_id={first}", body)
        assert late == (412, "condition_failed", "log_id")
    assert proxy.call("GET", path)[1] == shown
    assert proxy.call("GET", path + "/segments")[1]["segments"][0]["state"] == "OPEN"
    both = proxy.refused("PATCH", f"{path}?log_id={first}&config_version=7", {})
    assert both == (412, "condition_failed", "log_id")
    stale = proxy.refused("PATCH", f"{path}?log_id={second}&config_version=7", {})
    assert stale == (409, "config_conflict", "config_version")
    for method, url, body in calls:
        assert proxy.call(method, f"{url}?log_id={second}", body)[0] in {200, 202}
    # It has its name until that is given away: deleting it again is done already.
    assert proxy.call("DELETE", f"{path}?log_id={second}")[1]["log_id"] == second
    deleted = proxy.refused("POST", f"{path}:end?log_id={second}", {})
    assert deleted == (409, "log_deleted", "log")
    assert proxy.refused("DELETE", f"{path}?log_id={first}")[1] == "condition_failed"
    back = proxy.refused("POST", f"{path}:undelete?log_id={second}", {})
    assert back == (400, "unknown_field", "log_id")


def case_bookies(proxy: Proxy) -> None:
    rows = proxy.call("GET", "/v1/cluster/bookies")[1]["bookies"]
    assert len(rows) == 3
    members = {
        "id", "incarnation", "region", "rack", "state", "duty", "weight", "free_bytes", "doubtful",
        "takes_new_data", "steady_in_s",
    }  # fmt: skip
    assert all(set(row) == members and row["takes_new_data"] for row in rows)
    assert proxy.call("GET", "/v1/cluster/regions")[1]["closed"] == []


CASES: Final[tuple[Callable[[Proxy], None], ...]] = tuple(
    found for name, found in sorted(globals().items()) if name.startswith("case_")
)


@pytest.mark.parametrize("case", CASES, ids=[case.__name__[5:] for case in CASES])
def test_both_answer_alike(proxy: Proxy, case: Callable[[Proxy], None]) -> None:
    case(proxy)
