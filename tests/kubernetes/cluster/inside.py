"""The cluster of real nodes, as seen by a program that runs inside its namespaces.

`python -m tests.kubernetes.cluster --tier kubelet … -- COMMAND` leaves in the environment of
COMMAND where the cluster's folder is; `find_cluster` reads it. A node can be lost in two ways: its
power (`kill_node`, with all its pods) and its network (`cut_node`, `mend_node`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.kubernetes.cluster.handle import ClusterHandle

VARIABLE: Final = "DURAMEN_KUBERNETES_NODES_IN"
_FILE: Final = "inside.json"


@dataclass(frozen=True)
class RealCluster(ClusterHandle):
    """A handle that can also take nodes away."""

    nodes: tuple[str, ...] = ()

    def kill_node(self, name: str) -> None:
        """Power loss: every process of the node ends at once. It does not come back."""
        os.kill(int((self.folder / name / "pid").read_text()), signal.SIGKILL)

    def cut_node(self, name: str) -> None:
        """Network loss: its processes and pods go on, and reach nobody."""
        subprocess.run(["ip", "link", "set", name, "down"], check=True)

    def mend_node(self, name: str) -> None:
        """End what `cut_node` began."""
        subprocess.run(["ip", "link", "set", name, "up"], check=True)


def leave_word(cluster: RealCluster) -> dict[str, str]:
    """Write down where the cluster is; returns the environment of the programs inside."""
    word = {
        "kubeconfig": str(cluster.kubeconfig),
        "url": cluster.url,
        "token": cluster.token,
        "certificate": str(cluster.certificate),
        "nodes": cluster.nodes,
    }
    (cluster.folder / _FILE).write_text(json.dumps(word))
    return {VARIABLE: str(cluster.folder), "KUBECONFIG": str(cluster.kubeconfig)}


def find_cluster() -> RealCluster | None:
    """The cluster around this process; None when there is none."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return None
    word = json.loads((Path(folder) / _FILE).read_text())
    return RealCluster(
        kubeconfig=Path(word["kubeconfig"]),
        url=word["url"],
        token=word["token"],
        certificate=Path(word["certificate"]),
        folder=Path(folder),
        nodes=tuple(word["nodes"]),
    )
