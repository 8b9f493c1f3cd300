"""Who reaches whom, worked out from NetworkPolicies as Kubernetes defines them.

A way is open when some policy that selects the target lets the source in (or none selects it), and
some policy that selects the source lets it out to the target (or none selects it). Peers are pods
with the labels that the operator and the chart give them, pods of strangers, and addresses that are
no pods. The network of the test cluster enforces nothing, so this stands in for it.

Called by `test_network`. Source: the API reference of networking.k8s.io/v1 NetworkPolicy.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Policy = Mapping[str, Any]


@dataclass(frozen=True)
class Peer:
    """One end of a way: a pod, or an address outside of all pods."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    namespace: str = ""
    address: str = ""
    """Of what is no pod; empty for pods."""
    ports: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """That it listens on: name → protocol, number."""


def find_ways(policies: Sequence[Policy], peers: Iterable[Peer]) -> dict[tuple[str, str], set[str]]:
    """(from, to) → names of the ports that are open, for each pair that has one."""
    peers = list(peers)
    found: dict[tuple[str, str], set[str]] = {}
    for source in peers:
        for target in peers:
            for name, port in target.ports.items():
                if _is_let_out(policies, source, target, port) and _is_let_in(
                    policies, source, target, port
                ):
                    found.setdefault((source.name, target.name), set()).add(name)
    return found


def _is_let_in(
    policies: Sequence[Policy], source: Peer, target: Peer, port: tuple[str, int]
) -> bool:
    return _is_open(policies, "Ingress", target, source, port)


def _is_let_out(
    policies: Sequence[Policy], source: Peer, target: Peer, port: tuple[str, int]
) -> bool:
    return _is_open(policies, "Egress", source, target, port)


def _is_open(
    policies: Sequence[Policy], kind: str, here: Peer, there: Peer, port: tuple[str, int]
) -> bool:
    selecting = [
        one
        for one in policies
        if kind in one["spec"]["policyTypes"]
        and not here.address
        and one["metadata"]["namespace"] == here.namespace
        and _matches(one["spec"]["podSelector"], here.labels)
    ]
    if not selecting:
        return True
    ends, rules = ("from", "ingress") if kind == "Ingress" else ("to", "egress")
    return any(
        _has_peer(rule.get(ends), there, here.namespace) and _has_port(rule.get("ports"), port)
        for one in selecting
        for rule in one["spec"].get(rules) or ()
    )


def _has_peer(peers: Sequence[Mapping[str, Any]] | None, there: Peer, namespace: str) -> bool:
    if not peers:
        return True
    return any(_is_peer(one, there, namespace) for one in peers)


def _is_peer(one: Mapping[str, Any], there: Peer, namespace: str) -> bool:
    if "ipBlock" in one:
        # Whether a block covers pods depends on the network; blocks are for what is no pod.
        return bool(there.address) and ipaddress.ip_address(there.address) in ipaddress.ip_network(
            one["ipBlock"]["cidr"]
        )
    if there.address:
        return False
    if "namespaceSelector" in one:
        labels = {"kubernetes.io/metadata.name": there.namespace}
        if not _matches(one["namespaceSelector"], labels):
            return False
    elif there.namespace != namespace:
        return False
    return _matches(one.get("podSelector", {}), there.labels)


def _has_port(ports: Sequence[Mapping[str, Any]] | None, port: tuple[str, int]) -> bool:
    if not ports:
        return True
    return any((one.get("protocol", "TCP"), one["port"]) == port for one in ports)


def _matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    assert set(selector) <= {"matchLabels"}, "matchExpressions are not worked out here"
    wanted = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in wanted.items())
