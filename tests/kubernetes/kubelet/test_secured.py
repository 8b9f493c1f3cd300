"""A cluster with identities on real nodes, as chart.md has a person make it, and its life after.

The page's lines are typed, one after the other: the chart makes empty Secrets, the operator a CA
and what the Secrets hold, its job founds the cluster, and every port asks who calls. The tests
stand in the order of the release's life and share it. The last ones are of the night: deaths are
also in tests/process, and an issuer that begins anew in tests/kubernetes/issuing.
"""

from __future__ import annotations

import base64
import datetime as dt
import functools
import json
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from duramen_operator.issuing.kept import COURSE_FILE
from tests.kubernetes.cluster.inside import RealCluster
from tests.kubernetes.kubelet.installation import RESTRICTED, Installation
from tests.kubernetes.kubelet.typed_pages import (
    INSTALL,
    NAMESPACE,
    PAGES,
    RELEASE,
    cleaned,
    name_test_image,
    type_commands,
)
from tests.process.times import HANG_S
from tests.waiting import wait_in_thread

HEADING = "### A cluster with identities\n"
LINES = "".join(f"line {number}\n" for number in range(1000))
WRITE, READ = f"https://{RELEASE}-writeproxy:7301", f"https://{RELEASE}-readproxy:7401"
SECRETS = (
    "ca", "bookies", "sequencers", "zookeeper", "writeproxies", "readproxies", "public",
    "operator", "monitor", "archive",
)  # fmt: skip
REVOKED = f"{RELEASE}-1-0"
REMOVED = f"{RELEASE}-2-0"
KILLED = [
    f"{RELEASE}-{name}-0" for name in ("0", "zookeeper", "sequencer", "writeproxy", "readproxy")
]
BOOKIE_ADMIN_PORT = 7102
API = {"apiVersion": "duramen.io/v1alpha1"}
LOG = {
    **API, "kind": "Log", "metadata": {"name": "bills"},
    "spec": {"clusterName": RELEASE, "namespace": "default"},
}  # fmt: skip
TOOLS: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "tools"},
    "spec": {
        "serviceAccountName": "till",
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True, "runAsUser": 10001, "runAsGroup": 10001, "fsGroup": 10002,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": "tools",
                "image": "localhost/duramen:test",
                "command": ["python3", "-c", "import signal; signal.pause()"],
                # Who asks for nothing gets nothing where there is other work.
                "resources": {"requests": {"cpu": "150m"}},
                "env": [
                    {"name": "DURAMEN_TOKEN_FILE", "value": "/etc/token/token"},
                    {"name": "DURAMEN_CA", "value": "/etc/public/ca.crt"},
                ],
                "securityContext": {
                    "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]},
                },
                "volumeMounts": [
                    {"name": name, "mountPath": f"/etc/{name}"}
                    for name in ("token", "public", "operator")
                ],
            }
        ],
        "volumes": [
            {"name": "public", "configMap": {"name": f"{RELEASE}-ca-bundle"}},
            {
                "name": "operator",
                "secret": {"secretName": f"{RELEASE}-operator", "defaultMode": 0o440},
            },
            {
                "name": "token",
                "projected": {
                    "defaultMode": 0o440,
                    "sources": [
                        {
                            "serviceAccountToken": {
                                "path": "token", "audience": f"duramen/{NAMESPACE}/{RELEASE}",
                            }
                        }
                    ],
                },
            },
        ],
    },
}  # fmt: skip


class Secured(Installation):
    """The release of the page, and what its lines printed."""

    printed: str = ""

    def run(self, *command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command of ours in a pod of the namespace."""
        where = f"--namespace={self.namespace}"
        return self.kubelet.kubectl(
            where, "exec", "-i", "tools", "--", *command, stdin=stdin, check=False, timeout_s=180
        )

    def read_secret(self, which: str) -> dict[str, bytes]:
        """The items of a Secret of the cluster."""
        data: Mapping[str, str] = self.get(f"secret/{RELEASE}-{which}").get("data", {})
        return {name: base64.b64decode(text) for name, text in data.items()}

    def read_conditions(self, what: str) -> dict[str, str]:
        """The conditions of an object: type to status and reason."""
        found = self.get(what)["status"]["conditions"]
        return {one["type"]: f"{one['status']}/{one['reason']}" for one in found}


@pytest.fixture(scope="module")
def secured(kubelet: RealCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """The page is typed; what fails in it says how everything is."""
    section = PAGES.joinpath("chart.md").read_text(encoding="utf-8").partition(HEADING)[2]
    lines = section.partition("```sh\n")[2].partition("```\n")[0]
    assert INSTALL in lines
    found = Secured(kubelet, NAMESPACE)
    with cleaned(kubelet):
        try:
            with found.explained(), found.timed("the page's lines"):
                folder = tmp_path_factory.mktemp("page")
                (found.printed,) = type_commands(kubelet, [name_test_image(lines)], folder)
            yield found
            print(f"\n{found.seconds}")
        finally:
            # Finalizers are the operator's to take away.
            kubelet.helm("uninstall", RELEASE, f"--namespace={NAMESPACE}", "--wait", check=False)


def read_issued(secured: Secured) -> dict[tuple[str, str], bytes]:
    """By Secret and item; but for the state of the step under way, which a later pass notes."""
    found = {which: secured.read_secret(which) for which in SECRETS}
    items = {(which, name): one for which, held in found.items() for name, one in held.items()}
    return {key: one for key, one in items.items() if key != ("ca", COURSE_FILE)}


@pytest.mark.timeout(1200)  # fourteen pods begin slowly where there is other work
def test_the_page_makes_a_cluster_that_asks_who_calls(secured: Secured) -> None:
    assert secured.printed.endswith("\n998\n999\n1000\n")
    conditions = secured.read_conditions(f"logcluster/{RELEASE}")
    assert conditions["Ready"] == "True/AsWanted"
    assert conditions["Available"] == "True/Serving"
    assert conditions["Secure"] == "True/SecurityOn"
    assert conditions["CertificatesValid"] == "True/Valid"
    secured.wait("lognamespace/default", "condition=Ready")
    grant = secured.get("loggrant/till-writes")["status"]
    assert (grant["by"], grant["who"]) == (
        "service:operator/operator",
        f"serviceaccount:k8s/{NAMESPACE}/till",
    )
    assert all(secured.read_secret(which) for which in SECRETS)
    jobs = secured.get("jobs")["items"]
    assert jobs == [], json.dumps(jobs)[:2000]
    # Else the API server warns of each pod that would not have been let in.
    (label,) = (f"{name}={value}" for name, value in RESTRICTED.items())
    done = secured.kubelet.kubectl("label", "namespace", NAMESPACE, label)
    assert "Warning" not in done.stderr, done.stderr


def test_a_program_in_the_cluster_is_asked_for_its_token(secured: Secured) -> None:
    secured.apply(TOOLS, LOG)
    secured.wait("pod/tools", "condition=Ready")
    with secured.explained():
        secured.wait("log/bills", "condition=Ready")
        append = ("duramen", "append", "default/bills", "-", "--url", WRITE)
        done = secured.run("env", "-u", "DURAMEN_TOKEN_FILE", *append, stdin=LINES)
        assert done.returncode != 0 and "unauthenticated" in done.stderr, "without a token"
        done = secured.run(*append, stdin=LINES)
        assert done.returncode == 0, done.stderr
        done = secured.run("duramen", "read", "default/bills", "--url", READ)
        assert (done.returncode, done.stdout) == (0, LINES), done.stderr
        done = secured.run("duramen", "read", "default/bills", "--url", WRITE)
        assert (done.returncode, done.stdout) == (0, LINES), f"forwarded: {done.stderr}"
    zookeeper = secured.get(f"logcluster/{RELEASE}")["status"]["endpoints"]["zookeeper"]
    reach = ("--zookeeper", zookeeper, "--cluster", RELEASE)
    done = secured.run("duramen", "access", "check", "/etc/operator", "--json", *reach)
    assert done.returncode == 0, f"nodes without their rights: {done.stdout}{done.stderr}"


def test_the_plugin_lets_in_who_has_a_grant(secured: Secured) -> None:
    secured.kubectl("create", "serviceaccount", "nobody")
    done = secured.plugin("append", "default/bills", "-", stdin="x\n")
    assert done.returncode != 0 and "asks who calls: give --account" in done.stderr
    done = secured.plugin("append", "default/bills", "-", "--account=nobody", stdin="x\n")
    assert done.returncode != 0 and "forbidden" in done.stderr, done.stderr
    done = secured.plugin("status")
    assert done.returncode == 0 and "ok CertificatesValid True" in done.stdout, done.stdout


@pytest.mark.night
@pytest.mark.timeout(900)  # a bookie more, and its drain
def test_a_bookie_is_removed_by_its_name(secured: Secured) -> None:
    """The last of the first three, which is in the middle once another one took its place."""

    def list_bookies() -> set[str]:
        return {one["metadata"]["name"] for one in secured.get("bookies")["items"]}

    before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in secured.pods("bookie")}
    done = secured.plugin("drain", REMOVED)
    assert done.returncode == 0, done.stderr
    with secured.explained(), secured.timed("a bookie removed by its name"):
        wait_in_thread(lambda: REMOVED not in list_bookies(), 2 * HANG_S, "it to be gone")
        secured.wait(f"bookieset/{RELEASE}", "condition=Ready")
    after = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in secured.pods("bookie")}
    assert after.keys() == {*before.keys(), f"{RELEASE}-3-0"} - {REMOVED}
    assert all(after[name] == before[name] for name in after.keys() & before.keys())
    claims = {claim["metadata"]["name"] for claim in secured.get("pvc")["items"]}
    assert {f"journal-{REMOVED}", f"ledgers-{REMOVED}"} <= claims, "claims stay"
    with secured.explained():
        done = secured.plugin("read", "default/bills", "--account=till")
        assert (done.returncode, done.stdout) == (0, LINES), done.stderr


@pytest.mark.night
@pytest.mark.timeout(600)  # kubelets hand files on within two minutes
def test_a_revoked_pod_goes_on_with_another_certificate(secured: Secured) -> None:
    before, kept = secured.read_secret("bookies"), secured.get(f"pod/{REVOKED}")
    now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    wishes = (f"duramen.io/revoke={REVOKED}@{now}", "duramen.io/ca=announce")
    secured.kubectl("annotate", "logcluster", RELEASE, *wishes)

    def read_leaf() -> bytes:
        return secured.read_secret("bookies")[f"{REVOKED}.tls.crt"]

    def is_handed_on() -> bool:
        address = (kept["status"]["podIP"], BOOKIE_ADMIN_PORT)
        served = ssl.get_server_certificate(address, timeout=10).encode()
        return read_leaf().startswith(served)

    with secured.explained(), secured.timed("the revoked one has its other certificate"):
        old = before[f"{REVOKED}.tls.crt"]
        wait_in_thread(lambda: read_leaf() != old, HANG_S, "another certificate")
        wait_in_thread(is_handed_on, HANG_S, "the certificate that is served", rest_s=1)
    after = secured.read_secret("bookies")
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"ca.crt", "ca.crl", f"{REVOKED}.tls.crt", f"{REVOKED}.tls.key"}
    assert after["ca.crt"].count(b"BEGIN CERTIFICATE") == 2, "the other CA is announced"
    now_there = secured.get(f"pod/{REVOKED}")
    assert now_there["metadata"]["uid"] == kept["metadata"]["uid"], "it goes on"
    secured.wait(f"logcluster/{RELEASE}", "condition=CertificatesValid")


@pytest.mark.night
def test_an_upgrade_keeps_what_was_issued(secured: Secured) -> None:
    done = secured.plugin("token", "till")
    assert done.returncode == 0, done.stderr
    shown = {"metadata": {"name": "shown"}, "stringData": {"token": done.stdout.strip()}}
    secured.apply({"apiVersion": "v1", "kind": "Secret", **shown})
    before = read_issued(secured)
    # An annotation more has the operator begin anew.
    more = ("hooks.testTokenSecretName=shown", "operator.podAnnotations.again=yes")
    flags = ("--reuse-values", *(f"--set={value}" for value in more))
    secured.helm("upgrade", *INSTALL.split()[2:], *flags)
    with secured.explained():
        assert "Phase:          Succeeded" in secured.helm("test", RELEASE), "with a token"
    after = read_issued(secured)
    changed = {name for name in before | after if before.get(name) != after.get(name)}
    assert changed == set()


@pytest.mark.night
@pytest.mark.timeout(600)  # each pod begins slowly where there is other work
def test_one_of_each_kind_dies(secured: Secured) -> None:
    old = {name: secured.get(f"pod/{name}")["metadata"]["uid"] for name in KILLED}
    secured.kubectl("delete", "pods", *KILLED, "--force", "--grace-period=0")

    def is_back(name: str) -> bool:
        pods = [pod for pod in secured.get("pods")["items"] if pod["metadata"]["name"] == name]
        uids = {pod["metadata"]["uid"] for pod in pods}
        return bool(uids) and old[name] not in uids

    with secured.explained(), secured.timed("one of each kind back"):
        for name in KILLED:
            wait_in_thread(functools.partial(is_back, name), HANG_S, f"another {name}")
            secured.wait(f"pod/{name}", "condition=Ready")
        secured.wait(f"logcluster/{RELEASE}", "condition=Ready")
    conditions = secured.read_conditions(f"logcluster/{RELEASE}")
    assert conditions["CertificatesValid"] == "True/Valid"
    with secured.explained():
        done = secured.plugin("append", "default/bills", "-", "--account=till", stdin="last\n")
        assert done.returncode == 0, done.stderr
        done = secured.plugin("read", "default/bills", "--account=till")
        assert (done.returncode, done.stdout) == (0, f"{LINES}last\n"), done.stderr


@pytest.mark.night
def test_certificates_stay_when_the_release_goes(secured: Secured) -> None:
    before = read_issued(secured)
    # What people made beside the release is theirs to take away.
    secured.kubectl("delete", "logs,loggrants", "--all")
    secured.print_figures()
    with secured.timed("uninstall"):
        secured.helm("uninstall", RELEASE, "--wait")
    assert read_issued(secured) == before
    assert not secured.get("logclusters,lognamespaces,loggrants")["items"]
