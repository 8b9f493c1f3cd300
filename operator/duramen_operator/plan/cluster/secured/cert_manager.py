"""Certificates of cert-manager for a cluster: one for each node, and for who has a Secret alone.

Each asks for what an identity has to be, so what comes is judged as any other. cert-manager writes
the Secret that a Certificate names; nobody here reads it. A Certificate goes once its node is no
longer wished and its pod has gone, since the Secret may go with it.

Called by `plan`, and by `issuing.requests`, which says how they stand. Pure.
Source: docs/kubernetes/security.md "cert-manager"; docs/protocol/identity.md "Certificates".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from duramen.runtime.identity.names import Identity, make_identity
from duramen_operator.names import CLUSTER_LABEL, make_selector
from duramen_operator.plan.cluster.frame import ClusterFrame
from duramen_operator.plan.cluster.nodes import (
    CA,
    PUBLIC,
    SECRET_OF_ROLE,
    SECRETS,
    SOLE_IDENTITIES,
    list_public_hosts,
    name_own_secret,
    name_secret,
)
from duramen_operator.plan.cluster.secured.living import list_living
from duramen_operator.plan.manifests import make_manifest, plan_apply
from duramen_operator.plan.observed import Json
from duramen_operator.plan.steps import Apply, Delete

GROUP: Final = "cert-manager.io"
KIND: Final = (f"{GROUP}/v1", "Certificate")
LIFE_MINUTES: Final = 7 * 24 * 60
_RENEWED_MINUTES: Final = LIFE_MINUTES // 3
"""Before the end, by the first of the Secrets."""
_TURN_MINUTES: Final = 10
"""And by each one after it so much sooner: one role has its new certificates before the next."""
_REQUESTS_KEPT: Final = 2
_TURNS: Final = tuple(which for which in SECRETS if which != CA)


class Request(NamedTuple):
    """A certificate that is asked for.

    Attributes:
        which: the word of `nodes.SECRETS` under which figures of it are told.
        name: whose it is, for people: the pod, or the word.
    """

    which: str
    name: str
    manifest: Json


def list_requests(frame: ClusterFrame) -> tuple[Request, ...]:
    """All that a cluster is to have; none where it is not cert-manager that issues, or where its
    record does not say yet which cluster it is."""
    if not (frame.trust and frame.is_secured and frame.found.is_recorded):
        return ()
    return tuple(_list_requests(frame))


def plan_requests(frame: ClusterFrame) -> Iterator[Apply | Delete]:
    """The steps that make Certificates so."""
    requests = list_requests(frame)
    for request in requests:
        yield from plan_apply(frame.observed, request.manifest)
    if requests:
        yield from _plan_removal(
            frame, {request.manifest["metadata"]["name"] for request in requests}
        )


def _plan_removal(frame: ClusterFrame, wanted: set[str]) -> Iterator[Delete]:
    kept = wanted | {name_own_secret(pod.name) for pod in frame.observed.list("Pod")}
    for found in frame.observed.list(KIND[1]):
        is_ours = frame.cluster.uid in found.owner_uids
        if is_ours and found.name not in kept and not found.is_leaving:
            yield Delete(found.ref, found.uid, found.resource_version)


def _list_requests(frame: ClusterFrame) -> Iterator[Request]:
    for node in list_living(frame):
        which, secret = SECRET_OF_ROLE[node.role], name_own_secret(node.name)
        identity = make_identity(frame.uuid, node.role, node.name)
        yield Request(which, node.name, _ask_identity(frame, secret, which, identity, node.hosts))
    for which in SOLE_IDENTITIES:
        secret = name_secret(frame.name, which)
        identity = make_identity(frame.uuid, which, which)
        yield Request(which, which, _ask_identity(frame, secret, which, identity))
    secret = name_secret(frame.name, PUBLIC)
    asked = {
        "commonName": secret,
        "dnsNames": list(dict.fromkeys(list_public_hosts(frame))),
        "usages": ["digital signature", "server auth"],
    }
    yield Request(PUBLIC, PUBLIC, _ask(frame, secret, PUBLIC, asked))


def _ask_identity(
    frame: ClusterFrame, secret: str, which: str, identity: Identity, hosts: Iterable[str] = ()
) -> Json:
    server = ["server auth"] if identity.role.is_node else []
    asked = {
        "commonName": identity.name,
        "subject": {
            "organizations": [identity.domain],
            "organizationalUnits": [str(identity.role)],
        },
        "uris": [str(identity)],
        "dnsNames": list(hosts),
        "usages": ["digital signature", *server, "client auth"],
    }
    return _ask(frame, secret, which, asked)


def _ask(frame: ClusterFrame, secret: str, which: str, asked: Json) -> Json:
    issuer = frame.spec.tls.issuer_ref
    assert issuer is not None, "the API server asks for it where there is a trust"
    component = {word: role for role, word in SECRET_OF_ROLE.items()}.get(which, which)
    before = _RENEWED_MINUTES + _TURN_MINUTES * _TURNS.index(which)
    spec = {
        **asked,
        "secretName": secret,
        # By these people find what stays behind: not by who manages it, which is cert-manager.
        "secretTemplate": {
            "labels": {**make_selector(frame.name, component), CLUSTER_LABEL: frame.name}
        },
        "issuerRef": {"name": issuer.name, "kind": issuer.kind, "group": GROUP},
        "duration": _spell(LIFE_MINUTES),
        "renewBefore": _spell(before),
        "revisionHistoryLimit": _REQUESTS_KEPT,
        "privateKey": {
            "algorithm": "ECDSA",
            "size": 256,
            "encoding": "PKCS8",
            "rotationPolicy": "Always",
        },
    }
    return make_manifest(KIND, secret, frame.make_labels(component), frame.cluster, spec=spec)


def _spell(minutes: int) -> str:
    """As Go spells a duration: another spelling would look like somebody's change."""
    return f"{minutes // 60}h{minutes % 60}m0s"
