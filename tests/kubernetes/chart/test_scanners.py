"""What others say of the manifests: Kubernetes' schemas, and checkov's list of careless settings.

Looked at is all that comes out of a release: what helm makes, and what the operator then makes of
the chart's own LogCluster and BookieSet (by its plan, in the world of the plan's tests). Nothing is
asked of a network. A finding stands only with a reason, and a reason only with a finding.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.kubernetes.chart import checkov
from tests.kubernetes.chart.rendering import EVERYTHING, NAMESPACE, is_own, operate, render
from tests.requirements import Need, leave_out_if

KUBERNETES = "1.34"
FOREIGN = "monitoring.coreos.com/"
DIGEST = "sha256:" + "5" * 64


def _all() -> list[dict[str, Any]]:
    # Images as checkov wants them to be named; what a release names is its owner's decision.
    image = {"repository": "registry.test/duramen", "digest": DIGEST, "pullPolicy": "Always"}
    zookeeper = {"image": f"registry.test/duramen-zookeeper@{DIGEST}"}
    cluster = {**EVERYTHING["cluster"], "name": "main", "zookeeper": zookeeper}
    values = {**EVERYTHING, "cluster": cluster, "image": image}
    rendered = render(values)
    everything = [*rendered, *operate(rendered)]
    for one in everything:
        one["metadata"]["namespace"] = NAMESPACE
    return everything


def test_kubernetes_schemas_accept_every_object() -> None:
    objects = [one for one in _all() if not is_own(one) and not _is_foreign(one)]
    assert {"Deployment", "StatefulSet", "Job", "NetworkPolicy", "Role"} <= {
        one["kind"] for one in objects
    }
    for one in objects:
        kubernetes_validate.validate(one, KUBERNETES, strict=True)


def test_they_would_refuse_a_misspelt_field() -> None:
    deployment = next(one for one in _all() if one["kind"] == "Deployment")
    broken = copy.deepcopy(deployment)
    broken["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, KUBERNETES, strict=True)


def test_checkov_finds_nothing_that_has_no_reason(tmp_path: Path) -> None:
    leave_out_if(Need.CHECKOV, checkov.reason_missing())
    file = tmp_path / "all.yaml"
    objects = [one for one in _all() if one["kind"] != "CustomResourceDefinition"]
    file.write_text(yaml.safe_dump_all(objects))
    found = checkov.scan(file)
    reasons = {
        (one, leave)
        for one in found
        for leave in checkov.EXCEPTIONS
        if one.check == leave.check and one.resource.startswith(leave.about)
    }
    assert sorted(set(found) - {one for one, _ in reasons}) == []
    assert set(checkov.EXCEPTIONS) - {leave for _, leave in reasons} == set(), "for nothing"


def _is_foreign(one: dict[str, Any]) -> bool:
    return str(one["apiVersion"]).startswith(FOREIGN)
