"""Run a command against a throw-away Kubernetes, or keep one up until Ctrl-C.

    python -m tests.kubernetes.cluster [--tier api|kwok|kubelet] [--nodes N] [--image TAR]…
                                       [--dir FOLDER] [-- COMMAND …]

COMMAND runs with KUBECONFIG set and the cluster's kubectl and helm first in PATH; its exit status
is ours. Tier kubelet starts itself again inside new network, mount and process namespaces: killing
it, even by SIGKILL, ends every process of the cluster. To look into a running one from outside:
`nsenter -t PID -a`, with the pid that it prints. Without --dir the folder is a temporary one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from tests.kubernetes.cluster import binaries, inside, real_nodes
from tests.kubernetes.cluster.control_plane import LOOPBACK, ControlPlane, StartError, Tier
from tests.ports import keep_ports_apart

_INSIDE = "DURAMEN_KUBERNETES_INSIDE"
_UNSHARE = "unshare --net --mount --pid --fork --kill-child=KILL --mount-proc"


def main() -> int:
    """Read the command line, start, run the command, stop; returns its status."""
    parser = argparse.ArgumentParser(prog="python -m tests.kubernetes.cluster")
    parser.add_argument("--tier", type=Tier, default=Tier.NODES, choices=list(Tier))
    parser.add_argument("--nodes", type=int, default=1, help="real nodes, at most 9 zones of them")
    parser.add_argument("--image", type=Path, action="append", default=[], dest="images")
    parser.add_argument("--dir", type=Path, help="logs and data; kept (default: removed)")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    is_nodes = options.tier is Tier.NODES
    needed = (*binaries.COMMANDS, *(() if options.tier is Tier.API else binaries.CONTROLLERS))
    reason = binaries.reason_no_nodes() if is_nodes else binaries.reason_missing(needed)
    if reason is not None:
        sys.stderr.write(f"{reason}\n")
        return 2
    # Paths of sockets in it must be short: no folder of a test's own depth.
    folder = (options.dir or Path(tempfile.mkdtemp(prefix="duramen-k-"))).absolute()
    try:
        if is_nodes and _INSIDE not in os.environ:
            return _start_inside(folder)
        signal.signal(signal.SIGTERM, _end)
        keep_ports_apart()
        return _run(folder, options.tier, options.nodes, options.images, command)
    except StartError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    finally:
        if options.dir is None:
            shutil.rmtree(folder, ignore_errors=True)


def _start_inside(folder: Path) -> int:
    real_nodes.remove_cgroups()
    again = [sys.executable, "-m", "tests.kubernetes.cluster", f"--dir={folder}", *sys.argv[1:]]
    wrapped = ["setpriv", "--pdeathsig", "KILL", *_UNSHARE.split(), *again]
    try:
        with subprocess.Popen(wrapped, env={**os.environ, _INSIDE: "1"}) as child:
            # Ctrl-C reaches the whole group: the child ends by itself.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, lambda *_: child.kill())
            return child.wait()
    finally:
        real_nodes.remove_cgroups()


def _run(
    folder: Path, tier: Tier, nodes: int, images: Sequence[Path], command: Sequence[str]
) -> int:
    is_nodes = tier is Tier.NODES
    if is_nodes:
        real_nodes.make_network()
    plane = ControlPlane(folder, tier, host=real_nodes.BRIDGE_ADDRESS if is_nodes else LOOPBACK)
    try:
        plane.start()
        paths = [image.absolute() for image in images]
        names = real_nodes.start_nodes(plane, nodes, paths) if is_nodes else ()
        cluster = inside.RealCluster(
            plane.kubeconfig, plane.url, plane.token, plane.certificate, plane.folder, names
        )
        word = inside.leave_word(cluster) if is_nodes else {"KUBECONFIG": str(plane.kubeconfig)}
        if not command:
            print(f"KUBECONFIG={plane.kubeconfig} (pid {os.getpid()})", flush=True)
            signal.pause()
        path = f"{plane.binaries}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, **word, "PATH": path}
        return subprocess.run(command, env=environment, check=False).returncode
    finally:
        # The namespace of processes ends with this one, and everything in it.
        if not is_nodes:
            plane.stop()


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
