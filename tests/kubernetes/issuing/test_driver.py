"""The issuer's way to the API server: what it asks, what it says of refusals, when it lets be.

Broken by hand: a list of Secrets, a refusal that ends the pass of the cluster, no wait behind one.
"""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from cryptography import x509

from duramen_operator.issuing.wishes import find_frame, want_certificates
from duramen_operator.kube import Refused
from duramen_operator.names import PAUSED_ANNOTATION, UUID_LABEL
from duramen_operator.plan.cluster.nodes import SECRETS, SOLE_IDENTITIES, name_secret
from duramen_operator.plan.observed import CertificatesView, Problem, Ref
from duramen_operator.serving import metrics
from tests.kubernetes.issuing.ground import NOW, Ground


def test_one_look_founds_a_cluster_and_the_next_writes_nothing() -> None:
    ground = Ground()
    view = ground.look()
    assert view is not None
    assert not view.lacking
    assert ground.kube.writes == [
        "main-ca", "main-ca", "main-authority", *(name_secret("main", w) for w in SECRETS[1:]),
    ]  # fmt: skip
    frame = find_frame(ground.observe())
    assert frame is not None
    names = {node.name for node in want_certificates(frame).nodes}
    assert {life.name for life in view.lives} == names | {"public", *SOLE_IDENTITIES}
    for role in SOLE_IDENTITIES:
        (leaf,) = x509.load_pem_x509_certificates(base64.b64decode(ground.data(role)["tls.crt"]))
        named = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        (uri,) = named.get_values_for_type(x509.UniformResourceIdentifier)
        assert uri == f"spiffe://{frame.uuid}/{role}/{role}"
    count = len(ground.kube.writes)
    ground.look()
    assert len(ground.kube.writes) == count


@pytest.mark.parametrize(
    "spec",
    [
        {"tls": {"issuer": "secret"}},
        {"security": "none", "acceptAnybody": True},
    ],
)
def test_it_looks_at_no_secret_of_others_clusters(spec: dict[str, Any]) -> None:
    ground = Ground(**spec)
    ground.kube.objects.clear()
    assert ground.look() is None


def test_nothing_is_issued_before_the_record_says_which_cluster_this_is() -> None:
    ground = Ground()
    del ground.world.objects[Ref("v1", "ConfigMap", "main-foundation")]
    assert ground.look() == CertificatesView()
    assert ground.kube.writes == []


def _lose_the_record(ground: Ground) -> None:
    del ground.world.objects[Ref("v1", "ConfigMap", "main-foundation")]
    ground.world.change("LogCluster", "main", zookeeper={"members": 5})


def _spoil_the_record(ground: Ground) -> None:
    ground.world.find("ConfigMap", "main-foundation")["data"] = {}


def _spoil_the_spec(ground: Ground) -> None:
    ground.world.change("LogCluster", "main", image=5)


def _delete_the_cluster(ground: Ground) -> None:
    metadata = ground.world.find("LogCluster", "main")["metadata"]
    metadata["deletionTimestamp"] = "2026-03-01T00:00:00Z"


def _take_the_record(ground: Ground) -> None:
    metadata = ground.world.find("ConfigMap", "main-foundation")["metadata"]
    metadata["ownerReferences"] = []


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (_lose_the_record, "there is no record of what this cluster is"),
        (_spoil_the_record, "main-foundation is no record of a cluster"),
        (_spoil_the_spec, "the LogCluster is not valid"),
        (_delete_the_cluster, "is being deleted"),
        (_take_the_record, "main-foundation belongs to somebody else"),
    ],
)
def test_who_is_not_renewed_any_more_is_told_and_its_figures_stay(
    spoil: Callable[[Ground], None], why: str
) -> None:
    ground = Ground()
    series = metrics.ClusterSeries("held")
    series.report_certificates(ground.look())
    count = len(ground.kube.writes)
    spoil(ground)
    view = ground.look(NOW + dt.timedelta(days=5))
    assert view is not None
    assert why in view.problems[0]
    assert len(ground.kube.writes) == count
    series.report_certificates(view)
    labels = {"cluster": "held", "role": "zookeeper"}
    name = "duramen_operator_certificate_expires_seconds"
    assert metrics.registry.get_sample_value(name, labels) is not None
    series.forget()


def test_a_doubt_stands_in_the_condition() -> None:
    ground = Ground()
    _lose_the_record(ground)
    ground.world.do(ground.world.plan(NOW, certificates=ground.look()).steps)
    said = ground.world.condition("LogCluster", "main", "CertificatesValid")
    assert (said["status"], said["reason"]) == ("False", "IssuingRefused")
    ground = Ground(security="none", acceptAnybody=True)
    _lose_the_record(ground)
    ground.world.do(ground.world.plan(NOW, certificates=ground.look()).steps)
    said = ground.world.condition("LogCluster", "main", "CertificatesValid")
    assert (said["status"], said["reason"]) == ("Unknown", "NoSecurity")


def test_a_cluster_that_is_held_by_a_uuid_which_came_too_late_is_renewed() -> None:
    ground = Ground()
    ground.look()
    count = len(ground.kube.writes)
    metadata = ground.world.find("LogCluster", "main")["metadata"]
    metadata["annotations"] = {UUID_LABEL: "ab" * 16}
    ground.world.settle()
    said = ground.world.condition("LogCluster", "main", "Progressing")
    assert said["reason"] == "FoundationUnclear"
    ground.look(NOW + dt.timedelta(days=5))
    assert len(ground.kube.writes) > count


def test_a_paused_cluster_is_looked_at_and_not_written() -> None:
    ground = Ground()
    cluster = next(one for one in ground.world.objects.values() if one["kind"] == "LogCluster")
    cluster["metadata"]["annotations"] = {PAUSED_ANNOTATION: "true"}
    assert ground.look() == CertificatesView()
    assert ground.kube.writes == []


def test_a_secret_that_refuses_is_let_be_and_the_others_are_served() -> None:
    ground = Ground()
    ground.kube.refused["main-bookies"] = Refused(403, Problem("Forbidden", "not yours"))
    ground.look()
    assert ground.kube.writes[-1] == "main-bookies"
    ground.kube.writes.clear()
    view = ground.look()
    assert view is not None
    assert "main-bookies" not in ground.kube.writes
    assert view.problems == ("main-bookies cannot be written: Forbidden: not yours",)
    assert "ca.crt" in ground.data("zookeeper")
    ground.clock_s = 61.0
    ground.kube.refused.clear()
    ground.look()
    assert "ca.crt" in ground.data("bookies")


def test_a_record_that_is_refused_is_let_be_and_nothing_is_noted_meanwhile() -> None:
    ground = Ground()
    ground.kube.refused["main-authority"] = Refused(403, Problem("Forbidden", "not yours"))
    ground.look()
    assert ground.kube.writes[-1] == "main-authority"
    count = len(ground.kube.writes)
    view = ground.look()
    assert view is not None
    assert view.problems == ("main-authority cannot be written: Forbidden: not yours",)
    assert len(ground.kube.writes) == count
    ground.clock_s = 61.0
    ground.kube.refused.clear()
    ground.look()
    assert "ca.crt" in ground.data("bookies")
    # What was refused before is past: the first refusal of another change costs a minute again.
    ground.ask_for("announce")
    ground.kube.refused["main-authority"] = Refused(403, Problem("Forbidden", "not yours"))
    ground.look()
    ground.clock_s += 61.0
    ground.kube.refused.clear()
    ground.look()
    assert len(ground.authorities()) == 2


def test_a_secret_that_is_not_there_or_not_ours_is_named() -> None:
    ground = Ground()
    del ground.kube.objects[Ref("v1", "Secret", "main-monitor")]
    ground.look()
    assert "ca.crt" in ground.data("bookies")
    ground.kube.objects[Ref("v1", "Secret", "main-public")]["data"] = {"tls.crt": "%"}
    view = ground.look()
    assert view is not None
    assert [text.split(":")[0] for text in view.problems] == [
        "there is no Secret main-monitor",
        "the Secret main-public cannot be read",
    ]


def test_no_ca_is_made_before_every_secret_was_read() -> None:
    ground = Ground()
    ground.kube.unreadable = {"main-public"}
    view = ground.look()
    assert view is not None
    assert "no other Secret trusts one: public" in view.problems[-1]
    assert ground.kube.writes == []
    ground.kube.unreadable = set()
    ground.look()
    assert "ca.crt" in ground.data("public")


def test_a_record_that_is_somebody_elses_stops_it() -> None:
    ground = Ground()
    metadata = {"name": "main-authority"}
    found = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    ground.kube.objects[Ref("v1", "ConfigMap", "main-authority")] = found
    view = ground.look()
    assert view is not None
    assert "belongs to somebody else" in view.problems[0]
    assert ground.kube.writes == []


def test_a_write_that_comes_too_late_ends_the_look_quietly() -> None:
    ground = Ground()
    ground.kube.refused["main-ca"] = Refused(409, Problem("Conflict", "it has changed"))
    ground.look()
    assert ground.kube.writes == ["main-ca"]
    ground.kube.refused.clear()
    ground.look()
    assert base64.b64decode(ground.data("public")["tls.crt"]).startswith(b"-----BEGIN CERT")


def test_bookies_that_are_there_are_served_though_their_set_is_not() -> None:
    ground = Ground()
    ground.world.change("BookieSet", "bookies", replicas="many")
    frame = find_frame(ground.observe())
    assert frame is not None
    bookies = [node for node in want_certificates(frame).nodes if node.role == "bookie"]
    assert len(bookies) == 2
    assert all(len(node.hosts) == 4 for node in bookies)


def test_the_condition_and_the_gauge_say_how_long() -> None:
    ground = Ground()
    view = ground.look()
    assert view is not None

    def say(now: dt.datetime, seen: CertificatesView | None) -> tuple[str, str]:
        plan = ground.world.plan(now, certificates=seen)
        ground.world.do(plan.steps)
        found = ground.world.condition("LogCluster", "main", "CertificatesValid")
        return found["status"], found["reason"]

    assert say(NOW, view) == ("True", "Valid")
    assert say(NOW + dt.timedelta(days=6), view) == ("False", "Ending")
    assert say(NOW, view._replace(lacking=("main-bookie-0",))) == ("False", "NotIssued")
    assert say(NOW, view._replace(problems=("no",))) == ("False", "IssuingRefused")
    assert say(NOW, None) == ("Unknown", "NotYetObserved")
    series = metrics.ClusterSeries("gauged")
    series.report_certificates(view)
    labels = {"cluster": "gauged", "role": "zookeeper"}
    name = "duramen_operator_certificate_expires_seconds"
    left = metrics.registry.get_sample_value(name, labels)
    ends = min(life.ends for life in view.lives if life.secret == "zookeeper")
    assert left is not None
    assert abs(left - (ends - dt.datetime.now(dt.UTC)).total_seconds()) < 60
    series.forget()
    assert metrics.registry.get_sample_value(name, labels) is None
