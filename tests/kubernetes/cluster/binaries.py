"""The programs that the throw-away cluster consists of: where they lie, and how they are made.

`python -m tests.kubernetes.cluster.binaries` builds what go.mod names (Kubernetes, etcd, helm,
CoreDNS, KWOK) and unpacks Debian's containerd, runc and network plugins, all below
build/kubernetes. Nothing is installed but what nodes call by name, as nft. Both are made
again only when what they are made of has changed: a cold build takes about ten minutes and 4 GB of
Go's cache, a warm one seconds.

Variables: DURAMEN_KUBERNETES_BIN is another folder with the programs, such as that of another
checkout. Called by the fixtures of tests/kubernetes/conftest.py, `make test-kubernetes` and people.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[2] / "build" / "kubernetes"
STAMP = "made-of"
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
GO_MAJOR, GO_MINOR = 1, 26
_GO = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly -trimpath"}


class BuildError(Exception):
    """A command that builds or fetches something has failed; what it said is on stderr."""


def folder() -> Path:
    """Where the programs lie, or will."""
    return Path(os.environ.get("DURAMEN_KUBERNETES_BIN") or BUILD / "bin").absolute()


def node_folder() -> Path:
    """Where Debian's packages of a node are unpacked: beside the programs."""
    return folder().parent / "debian"


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
    if not (node_folder() / STAMP).exists():
        return f"no containerd in {node_folder()}: make test-kubernetes unpacks it (needs apt)"
    for command, package in TOOLS.items():
        if shutil.which(command) is None:
            return f"no {command}, which real nodes need (Debian's package {package})"
    if not Path("/sys/fs/cgroup/cpuset").is_dir():
        return "real nodes were made for cgroup v1 only, and this machine has v2"
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


def source_hash() -> str:
    """Names one state of everything that the programs are built from."""
    digest = hashlib.sha256()
    for pattern in SOURCES:
        for path in sorted(HERE.glob(pattern)):
            digest.update(f"{path.relative_to(HERE)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def build() -> None:
    """Build all programs into `folder()`, unless they are of this go.mod already.

    Raises:
        BuildError: Go cannot build them.
    """
    out = folder()
    stamp = out / STAMP
    if stamp.exists() and stamp.read_text() == source_hash():
        return
    print(f"building Kubernetes into {out}: ten minutes when Go's cache is empty", flush=True)
    out.mkdir(parents=True, exist_ok=True)
    stamp.unlink(missing_ok=True)
    flags = ["-buildvcs=false", "-o", f"{out}/"]
    linked = _linker_flags(_version("k8s.io/kubernetes"), _version("helm.sh/helm/v3"))
    _go("build", *flags, "-ldflags", linked, "tool", "./etcd", "./pause", "./coredns")
    _go("build", *flags, "-ldflags", "-s -w", "tool", cwd=HERE / "kwok")
    (out / "kwok-stages.yaml").write_text(_stages())
    stamp.write_text(source_hash())


def unpack_node_packages() -> None:
    """Unpack Debian's packages of a node, and install the tools that are called by name.

    Raises:
        BuildError: apt cannot give them.
    """
    out = node_folder()
    stamp = out / STAMP
    wanted = "\n".join(PACKAGES)
    if not (stamp.exists() and stamp.read_text() == wanted):
        shutil.rmtree(out, ignore_errors=True)
        if not any(Path("/var/lib/apt/lists").glob("*Packages*")):
            _run("apt-get", "update", "-qq")
        archives = out / "archives"
        archives.mkdir(parents=True)
        # apt downloads as its own user, who must be able to write there.
        archives.chmod(0o777)
        _run("apt-get", "download", "-qq", *PACKAGES, cwd=archives)
        for archive in sorted(archives.glob("*.deb")):
            _run("dpkg-deb", "-x", str(archive), str(out))
        shutil.rmtree(archives)
        stamp.write_text(wanted)
    missing = [package for command, package in TOOLS.items() if shutil.which(command) is None]
    if missing:
        _run("apt-get", "install", "-qq", "-y", "--no-install-recommends", *missing)


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
