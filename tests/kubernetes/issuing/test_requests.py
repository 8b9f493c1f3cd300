"""What cert-manager issues is an identity for every pod, and what is told while it is not so.

Broken by hand: `ca.crt` of the Secret in place of the ConfigMap's, `Ready` of somebody who is not,
a fault of the ConfigMap that nobody tells, an annotation that is passed over.
"""

from __future__ import annotations

import asyncio
import copy
import datetime as dt
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from duramen.runtime.identity.certificates import Authority
from duramen.runtime.identity.folder import read_folder
from duramen.runtime.identity.names import IdentityError
from duramen.runtime.identity.public_folder import read_public_folder
from duramen_operator.issuing.requests import judge_requests
from duramen_operator.names import CA_ANNOTATION, REVOKE_ANNOTATION
from duramen_operator.plan.cluster.frame import ClusterFrame
from duramen_operator.plan.cluster.secured.certificates import judge_certificates
from duramen_operator.plan.observed import (
    CertificatesView,
    Json,
    KubeObject,
    Problem,
    Ref,
    observe_objects,
)
from duramen_operator.serving.cluster_identity import ClusterIdentity
from tests.kubernetes.issuing.signing import encode_anchors, make_issuer, mount, sign
from tests.kubernetes.plan.requested_world import find_uuid, make_requested
from tests.kubernetes.plan.world import NAMESPACE, World

NOW: Final = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
PUBLIC: Final = Ref("cert-manager.io/v1", "Certificate", "main-public")


@pytest.fixture(scope="module")
def made() -> World:
    return make_requested(replicas=1, zookeeper={"members": 1})


@pytest.fixture
def world(made: World) -> World:
    return copy.deepcopy(made)


@pytest.fixture(scope="module")
def issuer() -> Authority:
    return make_issuer("duramen-1", NOW)


def issue(world: World, begins: dt.datetime = NOW) -> None:
    """cert-manager has issued all."""
    for name in world.names("Certificate"):
        world.find("Certificate", name)["status"] = {
            "conditions": [{"type": "Ready", "status": "True", "reason": "Ready"}],
            "notBefore": f"{begins:%Y-%m-%dT%H:%M:%SZ}",
            "notAfter": f"{begins + dt.timedelta(days=7):%Y-%m-%dT%H:%M:%SZ}",
        }


def make_trust(*issuers: Authority, **more: str) -> KubeObject:
    data = {"ca.crt": encode_anchors(*issuers).decode(), **more}
    return KubeObject({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}, "data": data})


def judge(
    world: World, trust: KubeObject | None, now: dt.datetime = NOW, **others: Any
) -> tuple[CertificatesView, str]:
    """What is seen, and what the condition says."""
    objects = list(world.objects.values())
    seen = observe_objects(NAMESPACE, "main", objects, **others)
    assert seen.cluster is not None
    view = judge_requests(ClusterFrame.read(seen, seen.cluster), trust, now)
    told = observe_objects(NAMESPACE, "main", objects, certificates=view)
    assert told.cluster is not None
    said = judge_certificates(ClusterFrame.read(told, told.cluster), now)
    return view, f"{said.status}/{said.reason}: {said.message}"


def sign_all(world: World, issuer: Authority) -> dict[str, dict[str, bytes]]:
    """The Secrets of all Certificates."""
    return {
        name: sign(world.find("Certificate", name), issuer, NOW)
        for name in world.names("Certificate")
    }


def list_volumes(world: World, volume: str) -> dict[str, Json]:
    """Of each pod that mounts it."""
    return {
        name: found
        for name in world.names("Pod")
        for found in world.find("Pod", name)["spec"]["volumes"]
        if found["name"] == volume
    }


def test_every_pod_finds_its_identity_in_its_volume(
    world: World, issuer: Authority, tmp_path: Path
) -> None:
    secrets, later = sign_all(world, issuer), make_issuer("duramen-2", NOW)
    for data in secrets.values():
        data["ca.crt"] = encode_anchors(later)  # of another moment: nobody reads it
    maps = {"main-trust": {"ca.crt": encode_anchors(issuer, later)}}
    volumes = list_volumes(world, "identity")
    assert len(volumes) == 1 + 1 + 2 * 3
    for pod, volume in volumes.items():
        folder = tmp_path / pod
        folder.mkdir()
        held = read_folder(mount(volume, secrets, maps, folder) / pod, NOW)
        assert held.identity.domain == find_uuid(world)
        assert held.identity.name == pod
        assert len(held.bundle.anchors) == 2
    for pod, volume in list_volumes(world, "public").items():
        folder = tmp_path / f"{pod}-public"
        folder.mkdir()
        assert read_public_folder(mount(volume, secrets, maps, folder), NOW).anchors == b""


def test_a_pod_waits_for_the_trust_and_a_bookie_for_its_own_secret(
    world: World, issuer: Authority, tmp_path: Path
) -> None:
    secrets, maps = sign_all(world, issuer), {"main-trust": {"ca.crt": encode_anchors(issuer)}}
    volumes = list_volumes(world, "identity")
    with pytest.raises(KeyError, match="main-trust"):
        mount(volumes["main-sequencer-0"], secrets, {}, tmp_path / "1")
    del secrets["bookies-0-0-tls"], secrets["main-sequencer-1-tls"]
    with pytest.raises(KeyError, match="bookies-0-0-tls"):
        mount(volumes["bookies-0-0"], secrets, maps, tmp_path / "2")
    folder = mount(volumes["main-sequencer-0"], secrets, maps, tmp_path / "3")
    assert read_folder(folder / "main-sequencer-0", NOW).identity.role == "sequencer"
    assert not (folder / "main-sequencer-1" / "tls.crt").exists()


class Api:
    """Secret and ConfigMap of the operator's identity."""

    def __init__(self, secret: Mapping[str, bytes], trust: KubeObject | None) -> None:
        self.secret, self.trust = secret, trust

    async def get(self, ref: Ref) -> Json | None:
        if ref == Ref("v1", "ConfigMap", "main-trust"):
            return None if self.trust is None else self.trust.body
        assert ref == Ref("v1", "Secret", "main-operator")
        return {"data": {name: b64encode(one).decode() for name, one in self.secret.items()}}


def test_the_operator_believes_what_pods_believe(world: World) -> None:
    now = dt.datetime.now(dt.UTC).replace(microsecond=0)
    issuer, later = (make_issuer(name, now) for name in ("duramen-1", "duramen-2"))
    domain = find_uuid(world)
    api = Api(sign(world.find("Certificate", "main-operator"), later, now), make_trust(issuer))
    identity = ClusterIdentity(api, "main")

    async def read() -> str:
        return (await identity.read(domain, "main-trust")).trusted

    with pytest.raises(IdentityError, match=r"the Secret main-operator.*issued by no CA"):
        asyncio.run(read())
    api.trust = make_trust(issuer, later)
    assert asyncio.run(read()).encode() == encode_anchors(issuer, later)
    for nothing in (None, KubeObject({"data": {}})):
        api.trust = nothing
        with pytest.raises(IdentityError, match=r"ConfigMap main-trust.*has no ca\.crt"):
            asyncio.run(read())
    api.trust = KubeObject({"data": {"ca.crt": "no certificate"}})
    with pytest.raises(IdentityError, match=r"the ConfigMap main-trust: ca\.crt holds no"):
        asyncio.run(read())
    identity.forget()


def test_it_is_true_while_cert_manager_says_so_of_each(world: World, issuer: Authority) -> None:
    trust = make_trust(issuer)
    view, said = judge(world, trust)
    assert (view.lives, len(view.lacking)) == ((), len(world.names("Certificate")))
    assert said.startswith("False/NotIssued")
    issue(world)
    view, said = judge(world, trust)
    assert said.startswith(f"True/Valid: {len(world.names('Certificate'))} are valid")
    assert {life.secret for life in view.lives} >= {"bookies", "zookeeper", "public", "operator"}
    assert judge(world, trust, NOW + dt.timedelta(days=6))[1].startswith("False/Ending")
    status = world.find("Certificate", "bookies-0-0-tls")["status"]
    status["conditions"][0] |= {"status": "False", "message": "the spec\nhas changed"}
    view, said = judge(world, trust)
    assert said.startswith("True/Valid") and said.endswith("the spec has changed")
    assert not view.lacking, "what its Secret holds is valid"
    view, said = judge(world, trust, NOW + dt.timedelta(days=8))
    assert said.startswith("False/NotIssued") and "bookies-0-0" in view.lacking
    assert "bookies-0-0" in {life.name for life in view.lives}, "an alert goes by when it ended"
    del status["notBefore"], status["notAfter"]  # as cert-manager does where there is no Secret
    status["conditions"][0]["message"] = "Issuing certificate\nas Secret does not exist"
    _, said = judge(world, trust)
    assert said == (
        "False/NotIssued: 1 are not issued: bookies-0-0; Issuing certificate as Secret does not "
        "exist"
    )


@pytest.mark.parametrize("reason", ["Failed", "policy.example.org"])
def test_an_issuer_that_fails_is_told_in_its_own_words(
    world: World, issuer: Authority, reason: str
) -> None:
    issue(world)
    failed = {"type": "Issuing", "status": "False", "reason": reason, "message": "vault: denied"}
    world.find("Certificate", "main-public")["status"]["conditions"].append(failed)
    view, said = judge(world, make_trust(issuer))
    assert view.waiting == ("public: vault: denied",)
    assert said.startswith("True/Valid") and said.endswith("vault: denied")


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (Problem("NotFound", "could not find the requested resource"), "install cert-manager"),
        (Problem("Http404", "404 page not found"), "install cert-manager"),
        (Problem("Forbidden", "cannot patch"), "cannot patch; the chart grants it where tls.issu"),
        (Problem("NameTaken", "there is one that the operator did not make"), "did not make"),
    ],
)
def test_a_certificate_that_cannot_be_made_says_why(
    world: World, issuer: Authority, problem: Problem, words: str
) -> None:
    issue(world)
    del world.objects[PUBLIC]
    _, said = judge(world, make_trust(issuer), refusals={PUBLIC: problem})
    assert said.startswith("False/NotIssued: 1 are not issued: public") and words in said


def test_a_change_that_is_refused_is_told_beside_what_is_valid(
    world: World, issuer: Authority
) -> None:
    issue(world)
    refusals = {PUBLIC: Problem("Forbidden", "cannot patch")}
    view, said = judge(world, make_trust(issuer), refusals=refusals)
    assert said.startswith("True/Valid") and view.waiting == ("public: cannot patch",)


def test_a_trust_that_pods_would_refuse_is_told(world: World, issuer: Authority) -> None:
    issue(world)
    same = make_issuer("duramen-1", NOW)
    for trust, words in (
        (None, "there is no ConfigMap main-trust, which tls.trust names"),
        (KubeObject({"data": {}}), "the ConfigMap main-trust/ca.crt holds no certificates"),
        (make_trust(issuer, same), "holds two certificates with one subject: give CAs other names"),
        (make_trust(issuer, **{"ca.crl": ""}), "the ConfigMap main-trust/ca.crl"),
    ):
        _, said = judge(world, trust)
        assert said.startswith("False/IssuingRefused") and words in said


def test_what_cert_manager_cannot_do_is_refused_and_not_passed_over(
    world: World, issuer: Authority
) -> None:
    issue(world)
    metadata = world.find("LogCluster", "main")["metadata"]
    metadata["annotations"] = {REVOKE_ANNOTATION: "x@2026-01-01T00:00:00Z", CA_ANNOTATION: "switch"}
    _, said = judge(world, make_trust(issuer))
    assert "duramen.io/revoke: cert-manager makes no lists" in said
    assert "duramen.io/ca: the CA is not the operator's" in said
