"""etcd, API server, controllers, scheduler and KWOK's fake nodes, as children of this process.

Three sizes, each with the ones before it: `API` stores objects and checks them; `KWOK` has
controllers, a scheduler and nine fake nodes in three regions of three zones, on which pods pretend
to run; `NODES` has controllers and scheduler for the real nodes of `real_nodes.py`.

Everything listens on loopback (or on the bridge of the real nodes' own network) and ends with
`stop`; a token that is made at the start lets its holder do everything. Called by the fixtures of
tests/kubernetes/conftest.py and by `python -m tests.kubernetes.cluster`.
"""

from __future__ import annotations

import enum
import json
import os
import secrets
import shutil
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from duramen.cluster.layout import pick_free_port
from tests.kubernetes.cluster import binaries, objects
from tests.pauses import look_again

LOOPBACK = "127.0.0.1"
READY_S = 90.0
STOP_S = 10.0
GARBAGE_PERCENT = "400"
"""How much garbage Go's collector lets grow: a cluster lives for minutes, and memory is there."""
_REQUEST_S = 5.0
# A run of tests that is killed leaves no processes behind, as far as util-linux is there.
_END_WITH_US = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()


class Tier(enum.Enum):
    """How much of a cluster there is."""

    API = "api"
    KWOK = "kwok"
    NODES = "kubelet"


class StartError(Exception):
    """A component does not run; the text has the end of its log."""


class ControlPlane:
    """The processes of one cluster."""

    def __init__(self, folder: Path, tier: Tier, *, host: str = LOOPBACK) -> None:
        self.folder = folder.absolute()
        self.tier = tier
        self.host = host
        self.token = secrets.token_hex(16)
        self.url = f"https://{host}:{pick_free_port()}"
        self.kubeconfig = self.folder / "kubeconfig"
        self.certificate = self.folder / "certs" / "apiserver.crt"
        self.binaries = binaries.folder()
        self._children: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._began = time.monotonic()

    def start(self) -> None:
        """Start everything and wait until it is ready.

        Raises:
            StartError: something ended or does not become ready.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        key = self.folder / "service-accounts.key"
        _make_key(key)
        self._start_store_and_api(key)
        self.wait("the API server", lambda: self.request("/readyz") == b"ok")
        if self.tier is not Tier.API:
            self._start_controllers(key)
            default = "/api/v1/namespaces/default/serviceaccounts/default"
            self.wait("the controllers", lambda: bool(self.request(default)))
            self.create(objects.storage_class(is_provisioned=self.tier is Tier.KWOK))
        if self.tier is Tier.KWOK:
            self._start_fake_nodes()
            self.wait("nine fake nodes", lambda: self.ready_nodes_count() >= 9)

    def stop(self) -> None:
        """End everything, newest first, within a bound."""
        if self.tier is Tier.KWOK:
            self._remove_volumes()
        for _, child in reversed(self._children):
            if child.poll() is None:
                child.terminate()
                try:
                    child.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
        self._children.clear()

    def spawn(
        self, name: str, *command: object, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a component whose end is an error; its output goes to NAME.log."""
        with (self.folder / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                [*_END_WITH_US, *(str(part) for part in command)],
                cwd=self.folder,
                env={**os.environ, "GOGC": GARBAGE_PERCENT, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._children.append((name, child))
        return child

    def request(self, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        """GET a path of the API, or POST an object to it."""
        request = urllib.request.Request(
            self.url + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"},
        )
        # Its certificate is made by the server itself, while it starts.
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
        with urllib.request.build_opener(*handlers).open(request, timeout=_REQUEST_S) as answer:
            found: bytes = answer.read()
            return found

    def create(self, manifest: Mapping[str, Any]) -> None:
        """POST an object to its collection."""
        self.request(objects.collection_path(manifest), manifest)

    def wait(self, what: str, is_true: Callable[[], bool], timeout_s: float = READY_S) -> None:
        """Poll until it is true; says on stderr when it was."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._require_children()
            with suppress(OSError, ValueError):
                if is_true():
                    break
            if time.monotonic() > deadline:
                raise StartError(f"waited {timeout_s:.0f} s for {what}; logs in {self.folder}")
            look_again()
        self._say(what)

    def wait_end(self, name: str, child: subprocess.Popen[bytes], timeout_s: float) -> None:
        """Wait until a component that does one thing has done it."""
        self._children.remove((name, child))
        try:
            status = child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            child.kill()
            status = child.wait()
        if status:
            raise StartError(f"{name} ended with {status}:\n{self._log_end(name)}")
        self._say(name)

    def ready_nodes_count(self) -> int:
        """Nodes whose condition Ready is True."""
        nodes = json.loads(self.request("/api/v1/nodes"))["items"]
        conditions = [c for node in nodes for c in node["status"].get("conditions", ())]
        return sum(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def _start_store_and_api(self, key: Path) -> None:
        client, peer = (f"http://{LOOPBACK}:{pick_free_port()}" for _ in range(2))
        self.spawn(
            "etcd",
            self.binaries / "etcd",
            *("--data-dir", self.folder / "etcd", "--unsafe-no-fsync", "--log-level=warn"),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer),
        )
        tokens = self.folder / "tokens.csv"
        tokens.write_text(f"{self.token},admin,admin,system:masters\n")
        flags = {
            "etcd-servers": client,
            "bind-address": self.host,
            "advertise-address": self.host,
            "secure-port": self.url.rpartition(":")[2],
            "cert-dir": self.certificate.parent,
            "token-auth-file": tokens,
            "service-account-key-file": key,
            "service-account-signing-key-file": key,
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-cluster-ip-range": "10.96.0.0/16",
            "authorization-mode": "Node,RBAC",
            # Else exec, logs and port-forward would look the node's name up in DNS.
            "kubelet-preferred-address-types": "InternalIP",
            "allow-privileged": "true",
            "profiling": "false",
            "shutdown-delay-duration": "0s",
        }
        if self.tier is not Tier.NODES:  # an address of loopback may not be an endpoint
            flags["endpoint-reconciler-type"] = "none"
        if self.tier is Tier.API:  # no controller would make the default service account
            flags["disable-admission-plugins"] = "ServiceAccount"
        self.spawn("kube-apiserver", self.binaries / "kube-apiserver", *_format(flags))
        self.kubeconfig.write_text(
            json.dumps(objects.kubeconfig(self.url, self.token, self.certificate))
        )

    def _start_controllers(self, key: Path) -> None:
        both = {
            "kubeconfig": self.kubeconfig,
            "leader-elect": "false",
            "bind-address": LOOPBACK,
            "profiling": "false",
        }
        flags = {
            "service-account-private-key-file": key,
            "root-ca-file": self.certificate,
            "secure-port": pick_free_port(),
            "allocate-node-cidrs": "true",
            "cluster-cidr": "10.244.0.0/16",
            "service-cluster-ip-range": "10.96.0.0/16",
            # A node that is away is noticed after 12 s instead of 40. Fake ones never are: they
            # beat once in ten minutes, have no lease, and pods of one that was lost stay unready.
            "node-monitor-grace-period": "24h" if self.tier is Tier.KWOK else "12s",
            "node-monitor-period": "1s",
            # Makes volumes for the claims of pods that only pretend to run.
            "enable-hostpath-provisioner": str(self.tier is Tier.KWOK).lower(),
        }
        name = "kube-controller-manager"
        self.spawn(name, self.binaries / name, *_format(both | flags))
        name = "kube-scheduler"
        self.spawn(name, self.binaries / name, *_format(both | {"secure-port": pick_free_port()}))

    def _start_fake_nodes(self) -> None:
        flags = {
            "kubeconfig": self.kubeconfig,
            "config": self.binaries / "kwok-stages.yaml",
            "manage-all-nodes": "false",
            "manage-nodes-with-annotation-selector": objects.FAKE_NODE,
        }
        self.spawn("kwok", self.binaries / "kwok", *_format(flags))
        for region in range(3):
            for zone in range(3):
                self.create(objects.fake_node(region, zone))

    def _remove_volumes(self) -> None:
        """The provisioner for tests makes its folders, empty ones here, in a place of its own."""
        with suppress(OSError, ValueError):
            for volume in json.loads(self.request("/api/v1/persistentvolumes"))["items"]:
                made = Path(volume["spec"].get("hostPath", {}).get("path", ""))
                if made.is_relative_to("/tmp/hostpath_pv"):
                    shutil.rmtree(made, ignore_errors=True)

    def _require_children(self) -> None:
        for name, child in self._children:
            if child.poll() is not None:
                raise StartError(f"{name} ended with {child.returncode}:\n{self._log_end(name)}")

    def _log_end(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]

    def _say(self, what: str) -> None:
        passed_s = time.monotonic() - self._began
        print(f"{passed_s:6.2f} s: {what}", file=sys.stderr, flush=True)


def _format(flags: Mapping[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in flags.items()]


def _make_key(path: Path) -> None:
    subprocess.run(["openssl", "genrsa", "-out", path, "2048"], check=True, capture_output=True)
