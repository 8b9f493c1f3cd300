"""A release of the chart on real nodes: installed into a namespace of its own, asked, measured.

The namespace enforces the restricted profile. Services are called from inside a node, where their
addresses are known; pods are reachable from here as well. `print_figures` tells what a run took.
Used by the tests beside this module.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.kubernetes.chart.rendering import OPEN
from tests.kubernetes.cluster.inside import RealCluster

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts" / "duramen"
RELEASE = "main"
READY_S = 240
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
SERVICES = ("sequencer", "writeproxy", "readproxy", "bookie")
LAST_LINES_COUNT = 60
WORKLOADS = "pods,statefulsets,deployments,services,jobs,cronjobs,poddisruptionbudgets"


@dataclass
class Installation:
    """A release, and the namespace that it is in."""

    kubelet: RealCluster
    namespace: str
    seconds: dict[str, float] = field(default_factory=dict)
    """What took how long."""

    def kubectl(self, *arguments: str, timeout_s: float = 60, check: bool = True) -> str:
        """What kubectl prints, in the namespace."""
        where = f"--namespace={self.namespace}"
        return self.kubelet.kubectl(where, *arguments, timeout_s=timeout_s, check=check).stdout

    def helm(self, *arguments: str) -> str:
        """What helm prints, in the namespace."""
        where = f"--namespace={self.namespace}"
        return self.kubelet.helm(*arguments, where, timeout_s=READY_S + 60).stdout

    def get(self, *what: str) -> Any:
        """Objects as JSON."""
        return json.loads(self.kubectl("get", *what, "--output=json"))

    def apply(self, *manifests: Any) -> None:
        """Apply objects in the namespace."""
        self.kubelet.apply(*manifests, namespace=self.namespace)

    def plugin(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run `kubectl duramen`."""
        command = [sys.executable, "-m", "kubectl_duramen.main", *arguments, "-n", self.namespace]
        path = os.pathsep.join(os.path.abspath(place) for place in sys.path if place)
        return subprocess.run(
            command, input=stdin, capture_output=True, text=True, check=False, timeout=120,
            env={**self.kubelet.environment, "PYTHONPATH": path},
        )  # fmt: skip

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Note how long a block takes."""
        began = time.monotonic()
        yield
        self.seconds[what] = round(time.monotonic() - began, 1)

    def wait(self, what: str, condition: str, timeout_s: float = READY_S) -> None:
        """Until an object has a condition; fails with the state of everything."""
        flags = (f"--for={condition}", f"--timeout={timeout_s:g}s")
        try:
            self.kubectl("wait", what, *flags, timeout_s=timeout_s + 10)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.describe()}") from None

    def describe(self) -> str:
        """What a person looks at first."""
        pods = self.kubectl("get", "pods", "--output=wide", check=False)
        events = self.kubectl("get", "events", "--sort-by=.lastTimestamp", check=False)
        return f"{self.plugin('status').stdout}\n{pods}\n{events[-3000:]}"

    @contextmanager
    def explained(self) -> Iterator[None]:
        """What fails in the block says how everything is, and what the services said last."""
        try:
            yield
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.describe()}\n{self._last_lines()}") from error

    def _last_lines(self) -> str:
        """Of every service's log; a pod whose node is gone says nothing."""
        told = []
        for role in SERVICES:
            for pod in self.pods(role):
                name = pod["metadata"]["name"]
                lines = self.kubectl("logs", name, f"--tail={LAST_LINES_COUNT}", check=False)
                told.append(f"{name}:\n{lines}")
        return "\n".join(told)

    def service_url(self, role: str) -> str:
        """Where a service is found inside a node."""
        spec = self.get("service", f"{RELEASE}-{role}")["spec"]
        port = next(port["port"] for port in spec["ports"] if port["name"] == "data")
        return f"http://{spec['clusterIP']}:{port}"

    def pods(self, role: str) -> list[dict[str, Any]]:
        """The pods of a role."""
        label = f"app.kubernetes.io/component={role}"
        found: list[dict[str, Any]] = self.get("pods", f"--selector={label}")["items"]
        return found

    def inside(self, node: str) -> list[str]:
        """What runs a command in the network of a node."""
        pid = (self.kubelet.folder / node / "pid").read_text()
        return ["nsenter", f"--target={pid}", "--net"]

    def print_figures(self) -> None:
        """Times, and the memory of each pod as its node counts it."""
        took = ", ".join(f"{what} {seconds} s" for what, seconds in self.seconds.items())
        print(f"\n{took}\nmemory: {format_memory(self.memory_bytes())}")

    def memory_bytes(self) -> dict[str, int]:
        """Pod to its working set."""
        found = {}
        for node in self.kubelet.nodes:
            path = f"/api/v1/nodes/{node}/proxy/stats/summary"
            done = self.kubelet.kubectl("get", "--raw", path, check=False)
            pods = json.loads(done.stdout)["pods"] if done.returncode == 0 else []
            for pod in pods:
                if pod["podRef"]["namespace"] == self.namespace:
                    found[pod["podRef"]["name"]] = pod.get("memory", {}).get("workingSetBytes", 0)
        return found


def values(**more: Any) -> dict[str, Any]:
    """Three bookies over three zones, small claims, the images of the tests."""
    domains = [{"region": f"r{n}", "zone": f"r{n}-k0"} for n in range(3)]
    base = {
        "image": {"tag": "test"},
        "cluster": {"domains": domains, "zookeeper": {"storage": {"size": "1Gi"}}},
        "bookies": {"journal": {"size": "1Gi"}, "ledgers": {"size": "1Gi"}},
    }
    return _merge(base, more)


@contextmanager
def installed(
    kubelet: RealCluster, chosen: Mapping[str, Any], *before: Any
) -> Iterator[Installation]:
    """A release whose cluster is Ready. Its namespace goes with the block.

    Args:
        before: objects that are there before it.
    """
    with kubelet.namespace(**RESTRICTED) as namespace:
        found = Installation(kubelet, namespace)
        if before:
            found.apply(*before)
        with found.timed("install until Ready"):
            install(found, chosen)
            found.wait(f"logcluster/{RELEASE}", "condition=Ready")
        yield found


def install(found: Installation, chosen: Mapping[str, Any]) -> None:
    """`helm install` of the chart; fails with the state of everything."""
    folder = found.kubelet.folder / f"{found.namespace}.yaml"
    folder.write_text(yaml.safe_dump({**OPEN, **chosen}))
    # The definitions of an earlier test's release were kept, and say that they are its own.
    flags = (f"--values={folder}", f"--timeout={READY_S}s", "--take-ownership")
    try:
        found.helm("install", RELEASE, str(CHART), *flags)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{found.describe()}") from None


def format_memory(found: Mapping[str, int]) -> str:
    """By pod and in all."""
    each = ", ".join(f"{name} {size >> 20} MiB" for name, size in sorted(found.items()))
    return f"{sum(found.values()) >> 20} MiB in all: {each}"


def _merge(base: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for name, value in more.items():
        old = merged.get(name)
        both = isinstance(old, dict) and isinstance(value, Mapping)
        merged[name] = _merge(old, value) if both else value  # type: ignore[arg-type] # both
    return merged
