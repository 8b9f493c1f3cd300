"""The chart as helm renders it, without a cluster: what the tests of this folder look at.

`render` gives objects, `lint` and `try_values` what helm says. Needs the helm that is built with
the test cluster; without it the tests skip with that reason.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import yaml

from duramen_operator.names import API_VERSION
from duramen_operator.resources.conditions import first_conditions
from tests.kubernetes.cluster import binaries
from tests.kubernetes.plan.world import World
from tests.process.times import HANG_S
from tests.requirements import Need, leave_out_if

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts" / "duramen"
RELEASE = "demo"
NAMESPACE = "shop"

OPEN: dict[str, Any] = {"security": "none", "acceptAnybody": True}
"""What the chart is told wherever it makes a cluster without identities."""

EVERYTHING: dict[str, Any] = {
    "monitoring": {"monitors": "always", "rules": "always"},
    "cluster": {
        "domains": [{"region": "eu", "zone": f"eu-{n}"} for n in "123"],
        "archive": {"runner": "SparkOnKubernetes"},
    },
}
"""Values that switch on every template."""


def helm(*arguments: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run helm with nothing of the user's own."""
    leave_out_if(Need.KUBERNETES, binaries.reason_missing(("helm",)))
    with tempfile.TemporaryDirectory() as home:
        return subprocess.run(
            [str(binaries.folder() / "helm"), *map(str, arguments)],
            input=stdin,
            env={"PATH": os.environ["PATH"], "HOME": home},
            capture_output=True,
            text=True,
            check=False,
            timeout=HANG_S,
        )


def try_values(values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Render with values on top of the defaults and of `OPEN`; whatever helm says."""
    where = ("--namespace", NAMESPACE, "--values", "-")
    return helm("template", RELEASE, CHART, *where, stdin=yaml.safe_dump({**OPEN, **values}))


def render_text(values: dict[str, Any] | None = None) -> str:
    """All manifests, hooks too, as one text."""
    done = try_values(values or {})
    assert done.returncode == 0, done.stderr
    return done.stdout


def render(values: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """All objects, hooks too."""
    # The definitions are 300 kB: a second for the loader in Python, a tenth of one for libyaml's.
    return [one for one in yaml.load_all(render_text(values), Loader=yaml.CSafeLoader) if one]


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Those of one kind."""
    return [one for one in objects if one["kind"] == kind]


def is_hook(one: dict[str, Any]) -> bool:
    """Whether helm makes it at a moment of its own, and not with the release."""
    return "helm.sh/hook" in (one["metadata"].get("annotations") or {})


def defaults(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The custom resources that the hook applies."""
    found = next(
        one["data"]["defaults.yaml"]
        for one in of_kind(objects, "ConfigMap")
        if "defaults.yaml" in one["data"]
    )
    return [one for one in yaml.safe_load_all(found) if one]


def pod_specs(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of every pod that the chart makes, by itself or through a controller."""
    found = {}
    for one in objects:
        name = f"{one['kind']} {one['metadata']['name']}"
        if one["kind"] == "Pod":
            found[name] = one["spec"]
        elif one["kind"] in {"Deployment", "StatefulSet", "DaemonSet", "Job"}:
            spec = dict(one["spec"]["template"]["spec"])
            # As the controller does it.
            claims = [
                each["metadata"]["name"] for each in one["spec"].get("volumeClaimTemplates", ())
            ]
            mounts = [
                {"name": each, "persistentVolumeClaim": {"claimName": each}} for each in claims
            ]
            found[name] = {**spec, "volumes": [*spec.get("volumes", ()), *mounts]}
    return found


def pod_labels(objects: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    """By component: the labels of every pod that the chart makes."""
    found = {}
    for one in objects:
        template = one if one["kind"] == "Pod" else one.get("spec", {}).get("template")
        if template is not None:
            labels = template["metadata"]["labels"]
            found[labels["app.kubernetes.io/component"]] = labels
    return found


def is_own(one: dict[str, Any]) -> bool:
    """Whether it is one of our custom resources, or the definition of one."""
    return one["apiVersion"] == API_VERSION or bool(one["kind"] == "CustomResourceDefinition")


def operate(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the operator makes of the chart's own cluster, which has to be called `main`."""
    own = [one for one in defaults(objects) if one["kind"] != "LogNamespace"]
    for one in own:
        assert one["metadata"]["name"] == "main"
        one["status"] = {"conditions": first_conditions(one["kind"])}
    world = World(*own)
    world.converge()
    made = [one for one in world.objects.values() if not is_own(one)]
    return [one for one in made if one["kind"] not in {"Pod", "PersistentVolumeClaim"}]
