"""The programs that the throw-away cluster consists of: where they lie, and how they are made.

`python -m tests.kubernetes.cluster.binaries` builds what go.mod names (Kubernetes, etcd, helm,
CoreDNS, KWOK) and unpacks Debian's containerd, runc and network plugins, both in the user's cache
folder, so that all checkouts share them. Nothing is installed but what nodes call by name, as nft.
Both are made again only when what they are made of has changed: a cold build takes about ten
minutes and 4 GB of Go's cache.

Called by the fixtures of tests/kubernetes/conftest.py, `make test-kubernetes` and people.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests import debian, go_builds
from tests.cache import cache_folder, cached_path

HERE = Path(__file__).resolve().parent
SOURCES = ("go.mod", "go.sum", "kwok/go.mod", "kwok/go.sum", "*/main.go")
COMMANDS = ("etcd", "kube-apiserver", "kubectl", "helm")
CONTROLLERS = ("kube-controller-manager", "kube-scheduler", "kwok")
NODE_COMMANDS = ("kubelet", "kube-proxy", "coredns", "pause")
PACKAGES = ("containerd", "runc", "containernetworking-plugins")
# What real nodes and their images call by name, and the packages that have it.
TOOLS = {
    "nft": "nftables",
    "ip": "iproute2",
    "sysctl": "procps",
    "setpriv": "util-linux",
    "mmdebstrap": "mmdebstrap",
}
NO_CGROUPS = "real nodes were made for cgroup v1 only, and this machine has v2"
GO_MAJOR, GO_MINOR = 1, 26
_GO = {**go_builds.ENVIRONMENT, "GOTOOLCHAIN": "local"}


class BuildError(Exception):
    """A command that builds or fetches something has failed; what it said is on stderr."""


def folder() -> Path:
    """Where the programs lie, or will."""
    return cached_path("kubernetes", *_sources())


def node_folder() -> Path:
    """Where Debian's packages of a node are unpacked, or will be."""
    return cached_path("node-packages", *PACKAGES)


def reason_missing(commands: tuple[str, ...]) -> str | None:
    """Why these programs cannot be started here, with the way out; None when they can."""
    missing = [name for name in commands if not os.access(folder() / name, os.X_OK)]
    if missing:
        return f"no {', '.join(missing)} in {folder()}: make test-kubernetes builds them (needs Go)"
    if shutil.which("openssl") is None:
        return "no openssl, which makes the key of the service accounts"
    return None


def reason_no_nodes() -> str | None:
    """Why no real nodes can be started here; None when they can."""
    if os.geteuid() != 0:
        return "real nodes need root: namespaces, mounts and cgroups"
    if not node_folder().is_dir():
        return f"no containerd in {node_folder()}: make test-kubernetes unpacks it (needs apt)"
    for command, package in TOOLS.items():
        if shutil.which(command) is None:
            return f"no {command}, which real nodes need (Debian's package {package})"
    if not Path("/sys/fs/cgroup/cpuset").is_dir():
        return NO_CGROUPS
    return reason_missing((*COMMANDS, *CONTROLLERS, *NODE_COMMANDS))


def reason_no_go() -> str | None:
    """Why the programs cannot be built here; None when they can."""
    if shutil.which("go") is None:
        return f"no Go: the programs are built from source with Go {GO_MAJOR}.{GO_MINOR} or newer"
    answer = subprocess.run(["go", "env", "GOVERSION"], check=True, capture_output=True, text=True)
    found = re.match(r"go(\d+)\.(\d+)", answer.stdout)
    if not found or (int(found[1]), int(found[2])) < (GO_MAJOR, GO_MINOR):
        return f"{answer.stdout.strip()}: Go {GO_MAJOR}.{GO_MINOR} or newer is needed"
    return None


def build() -> None:
    """Build all programs into `folder()`, unless they are there.

    Raises:
        BuildError: Go cannot build them.
    """
    cache_folder("kubernetes", *_sources(), make=_build)


def unpack_node_packages() -> None:
    """Unpack Debian's packages of a node, and install the tools that are called by name.

    Raises:
        BuildError: apt cannot give them.
    """
    try:
        cache_folder("node-packages", *PACKAGES, make=lambda out: debian.unpack(out, *PACKAGES))
        missing = [package for command, package in TOOLS.items() if shutil.which(command) is None]
        if missing:
            debian.update_lists()
            _run("apt-get", "install", "-qq", "-y", "--no-install-recommends", *missing)
    except subprocess.CalledProcessError as error:
        raise BuildError(str(error)) from error


def _sources() -> list[str | bytes]:
    """Everything that the programs are built from: names and contents, in turn."""
    found: list[str | bytes] = []
    for pattern in SOURCES:
        for path in sorted(HERE.glob(pattern)):
            found += [path.relative_to(HERE).as_posix(), path.read_bytes()]
    return found


def _build(out: Path) -> None:
    print("building Kubernetes: ten minutes when Go's cache is empty", flush=True)
    flags = ["-buildvcs=false", "-o", f"{out}/"]
    linked = _linker_flags(_version("k8s.io/kubernetes"), _version("helm.sh/helm/v3"))
    _go("build", *flags, "-ldflags", linked, "tool", "./etcd", "./pause", "./coredns")
    _go("build", *flags, "-ldflags", "-s -w", "tool", cwd=HERE / "kwok")
    (out / "kwok-stages.yaml").write_text(_stages())


def _linker_flags(kubernetes: str, helm: str) -> str:
    """What release builds link in: without it the API server calls itself v0.0.0."""
    minor = kubernetes.split(".")[1]
    names: dict[str, str] = {}
    for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"):
        names |= {f"{package}.gitVersion": kubernetes, f"{package}.gitTreeState": "clean"}
        names |= {f"{package}.gitMajor": "1", f"{package}.gitMinor": minor}
    for package in ("pkg/chartutil", "pkg/lint/rules"):
        names[f"helm.sh/helm/v3/{package}.k8sVersionMajor"] = "1"
        names[f"helm.sh/helm/v3/{package}.k8sVersionMinor"] = minor
    names["helm.sh/helm/v3/internal/version.version"] = helm
    return " ".join(["-s -w", *(f"-X {name}={value}" for name, value in names.items())])


def _stages() -> str:
    """What KWOK's fake nodes and pods go through: its own stages, in one file."""
    found = _go("list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kwok", cwd=HERE / "kwok")
    stages = Path(found) / "kustomize" / "stage"
    files = [
        stages / "node" / "fast" / "node-initialize.yaml",
        stages / "node" / "heartbeat-with-lease" / "node-heartbeat-with-lease.yaml",
        *sorted((stages / "pod" / "fast").glob("pod-*.yaml")),
    ]
    return "".join(f"---\n{path.read_text()}" for path in files)


def _version(module: str) -> str:
    return _go("list", "-m", "-f", "{{.Version}}", module)


def _go(*arguments: str, cwd: Path = HERE) -> str:
    return _run("go", *arguments, cwd=cwd, env=_GO).strip()


def _run(*command: str, cwd: Path = HERE, env: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        check=False,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        raise BuildError(f"{' '.join(command[:3])} … ended with {done.returncode}")
    return done.stdout


def main() -> None:
    """Make what can be made here; says what is left out and why."""
    reason = reason_no_go()
    if reason is not None:
        raise SystemExit(reason)
    try:
        build()
    except BuildError as error:
        raise SystemExit(str(error)) from error
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        print("no real nodes: Debian's apt-get and root are needed for containerd", file=sys.stderr)
        return
    try:
        unpack_node_packages()
    except BuildError as error:
        print(f"no real nodes: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
