"""Operators as processes of their own, for tests: started in moments, killed at any one.

A fork server has imported the operator once; each start is a fork of it that runs the operator's
real command line, so a hundred restarts cost seconds and SIGKILL is the real one. What an operator
logs lies in a file beside its kubeconfig.

Used by the tests of this folder. Source: docs/kubernetes/, CONTRIBUTING "Kubernetes".
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any, Final

import yaml

from duramen_operator.resources.definitions import define_all
from tests.kubernetes.cluster.handle import ClusterHandle
from tests.kubernetes.resources.texts import read_texts
from tests.process.times import HANG_S
from tests.waiting import wait_in_thread

END_S: Final = HANG_S
SETTLE_S: Final = HANG_S
"""Hang bounds both: an operator ends, and objects settle, long before."""

RESYNC_S: Final = 2.0
"""How often an operator looks by its own clock."""

OBJECTS_REST_S: Final = 0.2
"""Between two looks at objects: each look lists some kinds, and many tests wait at once."""

_CONTEXT: Final[ForkServerContext] = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["duramen_operator.main", "tests.kubernetes.controllers.operators"])


class OperatorProcess:
    """One operator of one namespace; `start` again after `kill` is the next one."""

    def __init__(
        self,
        kubeconfig: Path,
        namespace: str,
        cluster_url: str,
        *,
        resync_s: float = RESYNC_S,
        health_port: int = 0,
        metrics_port: int = 0,
        identity: str = "operator",
        image: str = "localhost/duramen:test",
    ) -> None:
        """Make it; it is started by `start`.

        Args:
            cluster_url: of whoever answers for every cluster's write proxy.
            health_port, metrics_port: 0: any that is free.
            identity: its name in the Lease. One that is started again goes on at once, as a
                container does in its pod.
        """
        self.log = kubeconfig.with_name(f"{identity}-{namespace}.log")
        self._kubeconfig = kubeconfig
        self._flags = [
            "run", "--namespace", namespace, "--write-url", cluster_url, "--admin-url", cluster_url,
            "--resync-seconds", str(resync_s), "--host", "127.0.0.1", "--health-port",
            str(health_port), "--metrics-port", str(metrics_port), "--identity", identity,
            "--image", image,
            "--zookeeper-image", "localhost/duramen-zookeeper:test",
            "--spark-image", "localhost/duramen-spark:test",
        ]  # fmt: skip
        self._process: ForkServerProcess | None = None

    def start(self) -> None:
        """Start it; it is not waited for."""
        arguments = (self._flags, str(self._kubeconfig), str(self.log))
        self._process = _CONTEXT.Process(target=run_command, args=arguments, daemon=True)
        self._process.start()

    @property
    def is_running(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.is_alive()

    def join(self, timeout_s: float) -> bool:
        """Whether it ended by itself within that time."""
        assert self._process is not None
        self._process.join(timeout_s)
        return not self._process.is_alive()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.join(END_S)

    def stop(self) -> None:
        """SIGTERM, and it ends by itself."""
        assert self._process is not None
        self._process.terminate()
        if not self.join(END_S):
            self.kill()
            raise AssertionError("the operator did not end")

    def say(self) -> str:
        """The end of its log, for a test that fails."""
        return self.log.read_text(errors="replace")[-6000:] if self.log.exists() else "(no log)"


def run_command(flags: list[str], kubeconfig: str, log: str) -> None:
    """The body of the process: the real command line, with its output in a file."""
    from duramen_operator.main import app

    opened = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number in (1, 2):
        os.dup2(opened, number)
    os.environ["KUBECONFIG"] = kubeconfig
    sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - for the process' whole life
    app(flags)


@contextmanager
def running_operator(operator: OperatorProcess) -> Iterator[OperatorProcess]:
    """An operator that is stopped at the end; a failure shows what it said."""
    operator.start()
    try:
        yield operator
    except BaseException:
        sys.stderr.write(operator.say())
        operator.kill()
        raise
    operator.stop()


def install_definitions(cluster: ClusterHandle) -> None:
    """The custom resources' definitions, established."""
    definitions = define_all(read_texts())
    cluster.apply(*definitions.values())
    names = [f"crd/{one['metadata']['name']}" for one in definitions.values()]
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", *names)


def run_release(cluster: ClusterHandle, namespace: str) -> None:
    """The command of the chart's hook before an uninstall."""
    command = [sys.executable, "-m", "duramen_operator.main", "release", "--namespace", namespace]
    done = subprocess.run(
        command, env=cluster.environment, capture_output=True, text=True, check=False, timeout=180
    )
    assert done.returncode == 0, done.stderr


def write_kubeconfig(cluster: ClusterHandle, namespace: str, url: str) -> Path:
    """A kubeconfig for another address of the same API server, in clear text, in a new folder."""
    document = {
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": url}}],
        "users": [{"name": "test", "user": {"token": cluster.token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    }  # fmt: skip
    path = cluster.kubeconfig.parent / namespace / "kubeconfig"
    path.parent.mkdir()
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def wait_for_objects(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Poll a condition of objects; fails with its name when it does not come true in time."""
    wait_in_thread(condition, timeout_s, what, rest_s=OBJECTS_REST_S)


class Objects:
    """The custom resources of one namespace, as a test looks at them."""

    def __init__(self, cluster: ClusterHandle, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace

    def apply(self, kind: str, name: str, spec: dict[str, Any], **metadata: Any) -> None:
        """Make or change one of ours."""
        self.cluster.apply(
            {
                "apiVersion": "duramen.io/v1alpha1", "kind": kind, "spec": spec,
                "metadata": {"name": name, "namespace": self.namespace, **metadata},
            },
            namespace=self.namespace,
        )  # fmt: skip

    def delete(self, kind: str, name: str) -> None:
        """Ask for a deletion, and do not wait."""
        assert self.cluster.delete(kind, name, self.namespace), f"no {kind} {name}"

    def list(self, kind: str) -> list[dict[str, Any]]:
        """All of a kind."""
        return self.cluster.list(kind, self.namespace)

    def find(self, kind: str, name: str) -> dict[str, Any] | None:
        """One object, if it is there."""
        named = (one for one in self.list(kind) if one["metadata"]["name"] == name)
        return next(named, None)

    def condition(self, kind: str, name: str, condition_type: str = "Ready") -> str:
        """`status/reason` of a condition, if it is said of this generation."""
        item = self.find(kind, name) or {}
        for one in item.get("status", {}).get("conditions", ()):
            is_current = one["observedGeneration"] == item["metadata"]["generation"]
            if one["type"] == condition_type and is_current:
                return f"{one['status']}/{one['reason']}"
        return ""

    def wait(self, kind: str, name: str, wanted: str, condition_type: str = "Ready") -> None:
        """Until a condition reads so."""
        what = f"{kind} {name} to be {wanted}"
        wait_for_objects(
            lambda: self.condition(kind, name, condition_type) == wanted, SETTLE_S, what
        )

    def wait_gone(self, kind: str, name: str) -> None:
        """Until an object is gone."""
        wait_for_objects(lambda: self.find(kind, name) is None, SETTLE_S, f"{kind} {name} to go")

    def events(self, name: str) -> set[str]:
        """Reasons of the events about an object."""
        found = self.cluster.list("events.events.k8s.io", self.namespace)
        return {one["reason"] for one in found if one["regarding"]["name"] == name}

    def wait_event(self, name: str, reason: str) -> None:
        """Until an event with that reason was told of an object."""
        wait_for_objects(lambda: reason in self.events(name), SETTLE_S, f"{reason} of {name}")
