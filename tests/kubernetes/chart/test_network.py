"""NetworkPolicies: who reaches whom is what docs/kubernetes/network.md says, and what is needed.

Three views of one thing: the policies as rendered (worked out by `reachability`), the table that
people read, and the connections of a real cluster with traffic. The pods' labels are those of the
operator, so a label that changes there closes ways here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from duramen_operator import names
from duramen_operator.plan.cluster.pods import list_ports
from tests.chaos.links import list_owners
from tests.kubernetes.chart.reachability import Peer, find_ways
from tests.kubernetes.chart.rendering import NAMESPACE, ROOT, of_kind, pod_labels, render
from tests.process.cluster import LocalCluster

TABLE = ROOT / "docs" / "kubernetes" / "network.md"
VALUES = {
    "cluster": {"coldStore": {"url": "s3://archive/root"}},
    # Otherwise who may ask the API server may reach port 443 of any address.
    "networkPolicies": {"apiServer": {"cidr": "10.0.0.1/32", "ports": [6443]}},
}
SERVERS = (names.BOOKIE, names.SEQUENCER, names.WRITE_PROXY, names.READ_PROXY)
HANDING_ON = {("bookie", "writeproxy"), ("sequencer", "writeproxy")}
"""Ways of clusters with `security: on` alone."""
OUTSIDERS = ("client", "stranger", "monitoring")
Ways = dict[tuple[str, str], set[str]]


def _peers(objects: list[dict[str, Any]], secured: Collection[str]) -> list[Peer]:
    ports = {
        name: {key: ("TCP", port) for key, port in list_ports(name).items()} for name in SERVERS
    }
    ports[names.ZOOKEEPER] = {
        "client": ("TCP", names.ZOOKEEPER_CLIENT_PORT),
        "peer": ("TCP", names.ZOOKEEPER_PEER_PORT),
        "election": ("TCP", names.ZOOKEEPER_ELECTION_PORT),
    }
    ports[names.ARCHIVE] = {"any": ("TCP", 35791)}
    ports[names.ACCESS] = {}
    made = [
        Peer(name, _label(name, is_secured=name in secured), NAMESPACE, ports=ports[name])
        for name in (names.ZOOKEEPER, *SERVERS, names.ARCHIVE, names.ACCESS)
    ]
    metrics = {"metrics": ("TCP", names.OPERATOR_METRICS_PORT)}
    of_chart = pod_labels(objects)
    dns = {"k8s-app": "kube-dns"}
    return [
        *made,
        Peer("operator", of_chart["operator"], NAMESPACE, ports=metrics),
        Peer("hooks", of_chart["hooks"], NAMESPACE),
        Peer("test", of_chart["test"], NAMESPACE),
        Peer("client", {"app": "shop"}, NAMESPACE),
        Peer("stranger", {"app": "other"}, "elsewhere"),
        Peer("monitoring", {"app": "prometheus"}, "monitoring"),
        Peer("DNS", dns, "kube-system", ports={"dns": ("UDP", 53)}),
        Peer("API server", address="10.0.0.1", ports={"api": ("TCP", 6443)}),
        Peer("cold store", address="192.0.2.7", ports={"store": ("TCP", 443)}),
    ]


def _label(component: str, *, is_secured: bool) -> dict[str, str]:
    security = {names.SECURITY_LABEL: "on"} if is_secured else {}
    return names.make_labels("main", component) | security


def _work_out(values: dict[str, Any], secured: Collection[str] = ()) -> Ways:
    objects = render(values)
    policies = of_kind(objects, "NetworkPolicy")
    for one in policies:
        one["metadata"].setdefault("namespace", NAMESPACE)
    found = find_ways(policies, _peers(objects, secured))
    sources = {"DNS", "API server", "cold store"}
    return {pair: ports for pair, ports in found.items() if pair[0] not in sources}


def _read_table() -> Ways:
    rows = [line for line in TABLE.read_text().splitlines() if line.startswith("| ")]
    columns, *rest = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {
        (row[0], column): set(cell.split(", "))
        for row in rest
        for column, cell in zip(columns[1:], row[1:], strict=True)
        if cell
    }


def test_who_reaches_whom_is_what_the_table_says() -> None:
    worked_out, intended = _work_out(VALUES, secured=SERVERS), _read_table()
    for pair in sorted(set(worked_out) | set(intended)):
        assert worked_out.get(pair, set()) == intended.get(pair, set()), pair


@pytest.mark.parametrize("secured", [(), ("bookie", "sequencer"), ("writeproxy",)])
def test_records_are_handed_on_between_secured_pods_alone(secured: Collection[str]) -> None:
    intended = _read_table()
    closed = {pair: ports for pair, ports in intended.items() if pair not in HANDING_ON}
    assert set(intended) - set(closed) == HANDING_ON
    assert _work_out(VALUES, secured) == closed


def test_without_a_cold_store_nobody_is_let_out_to_one() -> None:
    ways = _work_out({})
    # The price of the default, which cannot know where the API server is.
    asking = {"operator", "hooks", "archive"}
    open_ones = {source for source, target in ways if target == "cold store"}
    assert open_ones == asking | set(OUTSIDERS)
    narrow = _work_out({"networkPolicies": VALUES["networkPolicies"]})
    assert {source for source, target in narrow if target == "cold store"} == set(OUTSIDERS)
    assert ("operator", "API server") in narrow


def test_a_file_store_opens_no_way_either() -> None:
    values = {"cluster": {"coldStore": {"url": "file:///archive", "claimName": "archive"}}}
    assert _work_out(values) == _work_out({})


def test_an_external_zookeeper_is_reached_by_its_clients_alone() -> None:
    values = {
        "cluster": {"zookeeper": {"externalServers": "zk.test:2181"}},
        "networkPolicies": {"externalZookeeper": {"cidr": "192.0.2.0/24", "ports": [443]}},
    }
    opened = {source for source, target in set(_work_out(values)) - set(_work_out({}))}
    assert opened == {"bookie", "sequencer", "writeproxy", "readproxy", "access"}


def test_clients_are_who_values_say() -> None:
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "elsewhere"}}}
    ways = _work_out({"networkPolicies": {"clients": [peer]}})
    assert ways["stranger", "writeproxy"] == {"data"}
    assert ("client", "writeproxy") not in ways
    nobody = _work_out({"networkPolicies": {"clients": []}})
    assert ("client", "writeproxy") not in nobody
    assert nobody["test", "writeproxy"] == {"data"}


def test_without_policies_everything_is_open() -> None:
    ways = _work_out({"networkPolicies": {"create": False}})
    assert ways["stranger", "zookeeper"] == {"client", "peer", "election"}


@pytest.mark.process
def test_the_ways_that_a_real_cluster_takes_are_open(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, "--security", "none")
    cluster.start()
    try:
        asyncio.run(_make_traffic(cluster))
        taken = _connections(cluster.state())
    finally:
        cluster.stop()
    intended = {pair: ports for pair, ports in _read_table().items() if pair not in HANDING_ON}
    known = {(s, t, p) for (s, t), ports in intended.items() for p in ports}
    assert taken - known == set(), "taken, and closed by the policies"
    needed = {
        ("sequencer", "bookie", "data"),
        ("writeproxy", "sequencer", "data"),
        ("readproxy", "bookie", "data"),
        ("sequencer", "bookie", "streams"),
        ("writeproxy", "sequencer", "streams"),
    }
    assert needed <= taken


async def _make_traffic(cluster: LocalCluster) -> None:
    """An append through each door and a read through each, and a question to the auditor."""
    state = cluster.state()
    async with httpx.AsyncClient(trust_env=False, timeout=60) as calls:
        for door in ("write_url", "read_url"):
            logs = f"{state[door]}/v1/namespaces/way/logs"
            await calls.put(f"{state[door]}/v1/namespaces/way", json={})
            await calls.put(f"{logs}/taken", json={})
            body = {"records": [{"body": "x"}]}
            answer = await calls.post(f"{logs}/taken/records", json=body)
            assert answer.status_code == 200, answer.text
            answer = await calls.get(f"{logs}/taken/records", params={"from": "head"})
            assert answer.status_code == 200, answer.text
        for path in ("repair", "bookies", "journals"):
            await calls.get(f"{state['admin_url']}/v1/cluster/{path}", follow_redirects=True)


def _connections(state: dict[str, Any]) -> set[tuple[str, str, str]]:
    """(role, role, port) of every connection between two processes of the cluster."""
    serving: dict[int, tuple[str, str]] = {}
    for process in state["processes"]:
        for name in ("data", "admin"):
            if process.get(f"{name}_url"):
                port = urlsplit(process[f"{name}_url"]).port
                assert port is not None
                serving[port] = (process["role"], name)
        if "stream_port" in process:
            serving[process["stream_port"]] = (process["role"], "streams")
    for server in state["zookeeper"].split(","):
        serving[int(server.rsplit(":", 1)[1])] = ("zookeeper", "client")
    roles = {process["pid"]: process["role"] for process in state["processes"]}
    taken = {
        (role, *serving[remote])
        for (_, remote), role in list_owners(roles).items()
        if remote in serving
    }
    return {one for one in taken if one[0] in (*SERVERS, "zookeeper")}
