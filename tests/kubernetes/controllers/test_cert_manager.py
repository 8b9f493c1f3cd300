"""An operator that asks cert-manager, with the chart's Role, on an API server in tier kwok.

cert-manager is not at hand offline: its definition is here as far as its fields are used, so what
the operator asks for in other words is refused; the test signs, and says what cert-manager says. No
pod runs, so none reads its key: `issuing/test_requests` shows that an identity comes of it.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.kubernetes.chart.rendering import of_kind, render
from tests.kubernetes.cluster.accounts import NAME, make_account
from tests.kubernetes.cluster.handle import ClusterHandle
from tests.kubernetes.controllers.admin_twin import running_twin
from tests.kubernetes.controllers.operators import (
    SETTLE_S,
    Objects,
    OperatorProcess,
    install_definitions,
    running_operator,
    wait_for_objects,
)
from tests.kubernetes.issuing.signing import encode_anchors, make_issuer, sign

pytestmark = pytest.mark.long

TLS: Final = {"issuer": "certManager", "issuerRef": {"name": "ca"}, "trust": {"name": "trust"}}
VALUES: Final[dict[str, Any]] = {
    "security": "on",
    "acceptAnybody": False,
    "tls": {"issuer": "certManager", "issuerRef": {"name": "ca"}, "trustConfigMap": "trust"},
}
SPEC: Final[dict[str, Any]] = {
    "security": "on",
    "tls": TLS,
    "zookeeper": {"members": 1},
    "sequencers": {"replicas": 2},
    "writeProxies": {"replicas": 1},
    "readProxies": {"replicas": 1},
}
TEXT: Final = {"type": "string"}
TEXTS: Final = {"type": "array", "items": TEXT}


def fields(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


DEFINITION: Final[dict[str, Any]] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "certificates.cert-manager.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
    },
    "spec": {
        "group": "cert-manager.io",
        "scope": "Namespaced",
        "names": {"kind": "Certificate", "plural": "certificates"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": fields(
                        spec=fields(
                            secretName=TEXT,
                            secretTemplate=fields(
                                labels={"type": "object", "additionalProperties": TEXT}
                            ),
                            issuerRef=fields(name=TEXT, kind=TEXT, group=TEXT),
                            commonName=TEXT,
                            subject=fields(organizations=TEXTS, organizationalUnits=TEXTS),
                            uris=TEXTS,
                            dnsNames=TEXTS,
                            usages=TEXTS,
                            duration=TEXT,
                            renewBefore=TEXT,
                            revisionHistoryLimit={"type": "integer"},
                            privateKey=fields(
                                algorithm={"type": "string", "enum": ["RSA", "ECDSA", "Ed25519"]},
                                encoding={"type": "string", "enum": ["PKCS1", "PKCS8"]},
                                rotationPolicy={"type": "string", "enum": ["Never", "Always"]},
                                size={"type": "integer"},
                            ),
                        ),
                        status={"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                    )
                },
            }
        ],
    },
}


@contextmanager
def defined(cluster: ClusterHandle) -> Iterator[None]:
    """cert-manager's definition, for so long: others of this run have none."""
    cluster.apply(DEFINITION)
    name = f"crd/{DEFINITION['metadata']['name']}"
    try:
        cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", name)
        yield
    finally:
        cluster.delete("crd", DEFINITION["metadata"]["name"])


def list_certificates(here: Objects) -> dict[str, Any]:
    found = here.cluster.list("certificates.cert-manager.io", here.namespace)
    return {one["metadata"]["name"]: one for one in found}


def say(
    here: Objects,
    kind: str = "LogCluster",
    name: str = "main",
    condition: str = "CertificatesValid",
) -> str:
    """What a condition says."""
    item = here.find(kind, name) or {}
    conditions = item["status"]["conditions"]
    return next(str(one["message"]) for one in conditions if one["type"] == condition)


def make_object(kind: str, name: str, **content: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **content}


def issue_all(here: Objects) -> None:
    """What cert-manager and an administrator do."""
    now = dt.datetime.now(dt.UTC).replace(microsecond=0)
    issuer = make_issuer("duramen-1", now)
    anchors = encode_anchors(issuer).decode()
    made = list_certificates(here)
    secret = sign(made["main-operator"], issuer, now)
    data = {name: base64.b64encode(value).decode() for name, value in secret.items()}
    here.cluster.apply(
        make_object("ConfigMap", "trust", data={"ca.crt": anchors}),
        make_object("Secret", "main-operator", data=data),
        namespace=here.namespace,
    )
    status = {
        "conditions": [{"type": "Ready", "status": "True", "reason": "Ready"}],
        "notBefore": f"{now:%Y-%m-%dT%H:%M:%SZ}",
        "notAfter": f"{now + dt.timedelta(days=7):%Y-%m-%dT%H:%M:%SZ}",
    }
    patch = json.dumps({"status": status})
    run = here.cluster.kubectl
    run(
        *("-n", here.namespace, "patch", *(f"certificate/{name}" for name in made)),
        *("--subresource=status", "--type=merge", "-p", patch),
    )


def wait_called(here: Objects, words: str) -> None:
    """Until the operator says this of its calls to the cluster."""
    wait_for_objects(
        lambda: words in say(here, "LogNamespace", "shop", "Ready"), SETTLE_S, f"{words!r}"
    )


def test_certificates_are_made_kept_and_go_with_their_pods_and_their_cluster(
    kwok_cluster: ClusterHandle, tmp_path: Path
) -> None:
    install_definitions(kwok_cluster)
    roles = of_kind(render(VALUES), "Role")
    (rules,) = (one["rules"] for one in roles if one["metadata"]["name"].endswith(NAME))
    with kwok_cluster.namespace() as namespace, running_twin() as twin:
        # As the chart would name the cluster's Secret: its release is called otherwise here.
        text = json.dumps(rules).replace("demo-operator", "main-operator")
        config = make_account(kwok_cluster, namespace, json.loads(text), tmp_path)
        account = f"system:serviceaccount:{namespace}:{NAME}"
        kwok_cluster.wait_right(account, namespace, "list", "logclusters.duramen.io")
        here = Objects(kwok_cluster, namespace)
        here.apply("LogCluster", "main", SPEC)
        here.apply("BookieSet", "main", {"clusterName": "main", "replicas": 2})
        here.apply("LogNamespace", "shop", {"clusterName": "main"})
        operator = OperatorProcess(config, namespace, twin.url)
        with running_operator(operator):
            wait_for_objects(
                lambda: "install cert-manager" in say(here), SETTLE_S, "it to say what is missing"
            )
            with defined(kwok_cluster):
                wait_for_objects(
                    lambda: len(list_certificates(here)) == 11, SETTLE_S, "all Certificates"
                )
                here.wait("LogCluster", "main", "False/NotIssued", "CertificatesValid")
                assert "there is no ConfigMap trust" in say(here)
                wait_called(here, "there is no Secret main-operator")
                issue_all(here)
                here.wait("LogCluster", "main", "True/Valid", "CertificatesValid")
                # It has read its identity and what to trust: the twin speaks no TLS.
                wait_called(here, "an identity is named over https alone")
                made = list_certificates(here)
                assert {one["metadata"]["generation"] for one in made.values()} == {1}
                here.apply("LogCluster", "main", {**SPEC, "sequencers": {"replicas": 1}})
                wait_for_objects(
                    lambda: "main-sequencer-1-tls" not in list_certificates(here),
                    SETTLE_S,
                    "the Certificate of a pod that has gone to go",
                )
                assert len(list_certificates(here)) == 10
                here.delete("LogCluster", "main")
                wait_for_objects(
                    lambda: list_certificates(here) == {}, SETTLE_S, "all Certificates to go"
                )
        assert "forbidden" not in operator.say().lower()
