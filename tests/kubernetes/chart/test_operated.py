"""A release with its operator, on a real API server with controllers and fake nodes.

Nobody here has more rights than the chart gives: the operator and the hooks' programs run as
processes of this machine with the tokens of the chart's own accounts. Who answers for the write
proxies is the twin of the admin API. The operator's Deployment has no replicas, because a pod on a
fake node would do nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from duramen_operator import installation
from tests.kubernetes.chart.rendering import CHART, OPEN, RELEASE
from tests.kubernetes.cluster.handle import ClusterHandle
from tests.kubernetes.controllers.admin_twin import running_twin
from tests.kubernetes.controllers.operators import Objects, OperatorProcess, running_operator
from tests.process.times import HANG_S
from tests.waiting import wait_in_thread

RESTRICTED = {"pod-security.kubernetes.io__enforce": "restricted"}
ZONES = [{"region": f"r{number}", "zone": f"r{number}-k{number}"} for number in range(3)]
VALUES = {**OPEN, "operator": {"replicas": 0}, "cluster": {"domains": ZONES}}


class Release(Objects):
    """One release, and the programs that it would run as pods."""

    def __init__(self, cluster: ClusterHandle, namespace: str, folder: Path) -> None:
        super().__init__(cluster, namespace)
        self._folder = folder

    def install(self, *flags: str) -> None:
        """`helm upgrade --install`, hooks too, then what the hook's job would have done."""
        self.cluster.helm(
            "upgrade", "--install", RELEASE, CHART, "-n", self.namespace, "--values=-", "--wait",
            "--take-ownership", "--timeout=240s", *flags, stdin=yaml.safe_dump(VALUES),
            timeout_s=300,
        )  # fmt: skip
        self.wait_right("hooks")
        self.run_hook("apply")

    def uninstall(self) -> None:
        """What the job before it does, as its account, then `helm uninstall`."""
        self.run_hook("remove")
        command = [sys.executable, "-m", "duramen_operator.main", "release"]
        subprocess.run(
            [*command, "--namespace", self.namespace],
            env={**os.environ, "KUBECONFIG": str(self.write_kubeconfig("hooks"))},
            check=True,
            timeout=240,
        )
        flags = ("--wait", "--timeout=240s")
        self.cluster.helm("uninstall", RELEASE, "-n", self.namespace, *flags, timeout_s=300)

    def try_delete(self, kind: str) -> str:
        """What is said against it by an API server that deletes nothing in any case."""
        which = (kind, RELEASE, "-n", self.namespace, "--dry-run=server")
        return self.cluster.kubectl("delete", *which, check=False).stderr

    def run_hook(self, command: str) -> None:
        """`apply` or `remove`, as the hooks' account."""
        found = self.cluster.get("configmap", f"{RELEASE}-duramen-defaults", "-n", self.namespace)
        file, token = self._folder / "defaults.yaml", self._folder / "hooks.token"
        file.write_text(found["data"]["defaults.yaml"])
        token.write_text(self._token("hooks"))
        run = {"apply": installation.apply, "remove": installation.remove}[command]
        run(
            namespace=self.namespace,
            file=file,
            server=self.cluster.url,
            token_file=token,
            authority_file=self.cluster.certificate,
        )

    def wait_right(self, account: str) -> None:
        """Until the API server knows what one of the chart's accounts may do."""
        name = f"system:serviceaccount:{self.namespace}:{RELEASE}-duramen-{account}"
        self.cluster.wait_right(name, self.namespace, "get", "logclusters.duramen.io")

    def write_kubeconfig(self, account: str) -> Path:
        """The cluster's, with the token of one of the chart's accounts."""
        document = yaml.safe_load(self.cluster.kubeconfig.read_text())
        document["users"][0]["user"] = {"token": self._token(account)}
        path = self._folder / f"{account}.kubeconfig"
        path.write_text(yaml.safe_dump(document))
        return path

    def _token(self, account: str) -> str:
        name = f"{RELEASE}-duramen-{account}"
        return self.cluster.kubectl("create", "token", name, "-n", self.namespace).stdout.strip()


@contextmanager
def operated(cluster: ClusterHandle, folder: Path) -> Iterator[Release]:
    """A release with its operator, as the operator's account."""
    with cluster.namespace(**RESTRICTED) as namespace, running_twin() as twin:
        release = Release(cluster, namespace, folder)
        release.install()
        kubeconfig = release.write_kubeconfig("operator")
        release.wait_right("operator")
        with running_operator(OperatorProcess(kubeconfig, namespace, twin.url)):
            yield release


def test_a_release_lives_with_the_charts_rights_alone(
    kwok_cluster: ClusterHandle, tmp_path: Path
) -> None:
    with operated(kwok_cluster, tmp_path) as release:
        release.wait("LogCluster", RELEASE, "True/AsWanted")
        release.wait("BookieSet", RELEASE, "True/AllReady")
        release.wait("LogNamespace", "default", "True/AsWanted")
        assert release.condition("LogCluster", RELEASE, "Secure") == "False/NoSecurity"
        release.install("--set=bookies.replicas=6,cluster.readProxies.replicas=3")
        wait_in_thread(lambda: _ready(release) == 6, HANG_S, "six bookies")
        release.wait("LogCluster", RELEASE, "True/AsWanted")
        log = (tmp_path / f"operator-{release.namespace}.log").read_text()
        assert [line for line in log.splitlines() if "orbidden" in line] == []
        for kind in ("bookieset", "logcluster"):
            assert "holds copies of entries" in release.try_delete(kind), kind
        release.uninstall()
        wait_in_thread(lambda: _left(release) == set(), HANG_S, "nothing to be left but claims")
        assert len(release.list("persistentvolumeclaims")) == 2 * 6 + 3


def _ready(release: Release) -> int:
    found = release.find("BookieSet", RELEASE) or {}
    return int(found.get("status", {}).get("readyReplicas", 0))


def _left(release: Release) -> set[str]:
    kinds = (
        "pods,statefulsets,deployments,services,configmaps,jobs,cronjobs,roles,rolebindings,"
        "serviceaccounts,poddisruptionbudgets,horizontalpodautoscalers,networkpolicies,secrets,"
        "logclusters,bookiesets,bookies,lognamespaces,logs,loggrants,archivepolicies"
    )
    names = {f"{one['kind']} {one['metadata']['name']}" for one in release.list(kinds)}
    return names - {"ConfigMap kube-root-ca.crt", "ServiceAccount default"}
