"""Real nodes: containerd, kubelet and kube-proxy, each node in namespaces of its own.

Must run as root inside network, mount and process namespaces that are thrown away afterwards
(`__main__` makes them), so that nothing of it outlives the run or is reachable from outside. Nodes
are joined by a bridge: 10.200.0.1 is the control plane, with CoreDNS; node N has 10.200.0.(10 + N)
and pods in 10.244.N.0/24. Node N stands in region N mod 3, zone N div 3. Each has its own
containerd, because a kubelet removes every container that it does not know, and local volumes,
which are chosen where their first pod runs. The kernels of such machines have no netem: no delay
and no loss can be added to the network. What a node starts is in `node.sh`.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.kubernetes.cluster import binaries, objects
from tests.kubernetes.cluster.control_plane import ControlPlane
from tests.kubernetes.image.oci import Settings, write_image, write_layer

BRIDGE_ADDRESS = "10.200.0.1"
_VOLUMES_PER_NODE = 16
_SHARED_VOLUMES = 4
_VOLUME_SIZE = "100Gi"
_NODES_READY_S = 180.0
_IMPORT_S = 240.0
_CGROUPS = Path("/sys/fs/cgroup")
CGROUP = "duramen-tests"
_SESSIONS_COUNT = 9
"""Beside twenty busy ones that is a third of the machine."""
_SESSION_SHARES = 1024
"""The weight of a session, where the kernel groups processes so, and of a group nobody weighed."""

_COREFILE = """\
.:53 {{
  bind {address}
  errors
  kubernetes cluster.local in-addr.arpa {{
    kubeconfig {kubeconfig} test
    ttl 1
  }}
}}
"""


def make_network() -> None:
    """The bridge that stands for the wires between control plane and nodes."""
    for command in (
        "ip link set lo up",
        "ip link add br0 type bridge",
        f"ip addr add {BRIDGE_ADDRESS}/24 dev br0",
        "ip link set br0 up",
        "sysctl -qw net.ipv4.ip_forward=1",
    ):
        subprocess.run(command.split(), check=True)


def remove_cgroups() -> None:
    """Empty cgroups are all that real nodes can leave behind."""
    for top in _CGROUPS.glob(f"*/{CGROUP}"):
        for path, _, _ in os.walk(top, topdown=False):
            with suppress(OSError):  # another run's
                os.rmdir(path)


def start_nodes(plane: ControlPlane, count: int, images: Sequence[Path]) -> tuple[str, ...]:
    """Start DNS and nodes with these images, and wait until they are ready; returns their names."""
    corefile = plane.folder / "Corefile"
    corefile.write_text(_COREFILE.format(address=BRIDGE_ADDRESS, kubeconfig=plane.kubeconfig))
    plane.spawn("coredns", plane.binaries / "coredns", "-conf", corefile)
    store = _import_images(plane, [_pause_image(plane), *images])
    names = tuple(f"node{index}" for index in range(count))
    _weigh_nodes(plane)
    for index, name in enumerate(names):
        _start_node(plane, index, name, store)
    plane.wait(f"{count} real nodes", lambda: plane.ready_nodes_count() >= count, _NODES_READY_S)
    for name in names:
        _offer_volumes(plane, name)
    _offer_shared_volumes(plane)
    return names


def _weigh_nodes(plane: ControlPlane) -> None:
    """Let all nodes together weigh as much as several sessions of other processes, not as one.

    Beside twenty busy sessions their pods would share a tenth of a processor otherwise, and lose
    probes and ZooKeeper's sessions for minutes.
    """
    for group in (_CGROUPS / "cpu" / CGROUP, _CGROUPS / "cpu" / CGROUP / plane.folder.name):
        group.mkdir(parents=True, exist_ok=True)
        (group / "cpu.shares").write_text(str(_SESSIONS_COUNT * _SESSION_SHARES))


def _pause_image(plane: ControlPlane) -> Path:
    layer, image = plane.folder / "pause-layer.tar", plane.folder / "pause.tar"
    write_layer(layer, [(plane.binaries / "pause", "/pause")])
    write_image(image, "localhost/pause:test", [layer], Settings(entrypoint=["/pause"]))
    return image


def _import_images(plane: ControlPlane, images: Sequence[Path]) -> Path:
    """Unpack the images once; returns the folder that every node's containerd starts from."""
    store = plane.folder / "store"
    child = plane.spawn(
        "images",
        binaries.HERE / "images.sh",
        env={
            "DIR": str(store),
            "DEB": str(binaries.node_folder()),
            "IMAGES": " ".join(map(str, images)),
        },
    )
    plane.wait_end("images", child, _IMPORT_S)
    return store


def _start_node(plane: ControlPlane, index: int, name: str, store: Path) -> None:
    folder = plane.folder / name
    folder.mkdir()
    labels = objects.domain_labels(index % 3, index // 3 % 3)
    child = plane.spawn(
        name,
        *("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"),
        binaries.HERE / "node.sh",
        env={
            "NAME": name,
            "INDEX": str(index),
            "DIR": str(folder),
            "BIN": str(plane.binaries),
            "DEB": str(binaries.node_folder()),
            "CGROUP": f"/{CGROUP}/{plane.folder.name}/{name}",
            "KUBECONFIG": str(plane.kubeconfig),
            "STORE": str(store),
            "LABELS": ",".join(f"{key}={value}" for key, value in labels.items()),
        },
    )
    (folder / "pid").write_text(str(child.pid))
    ours = os.readlink("/proc/self/ns/net")
    plane.wait(f"{name}'s network", lambda: os.readlink(f"/proc/{child.pid}/ns/net") != ours)
    for command in (
        f"ip link add {name} type veth peer name eth0 netns {child.pid}",
        f"ip link set {name} master br0 up",
        f"ip route add 10.244.{index}.0/24 via 10.200.0.{10 + index}",
    ):
        subprocess.run(command.split(), check=True)


def _offer_shared_volumes(plane: ControlPlane) -> None:
    """For a cold store in a folder: nodes here are on one machine, and see the same files."""
    for index in range(_SHARED_VOLUMES):
        path = plane.folder / "shared" / str(index)
        path.mkdir(parents=True)
        # Kubernetes gives such a folder no group of the pod's.
        path.chmod(0o777)
        plane.create(objects.shared_volume(f"shared-{index}", path, _VOLUME_SIZE))


def _offer_volumes(plane: ControlPlane, node: str) -> None:
    for index in range(_VOLUMES_PER_NODE):
        path = plane.folder / node / "disks" / str(index)
        path.mkdir(parents=True)
        plane.create(objects.local_volume(f"{node}-{index}", node, path, _VOLUME_SIZE))
