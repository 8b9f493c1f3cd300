"""A release from `helm install` to `helm uninstall`, on real nodes, with what people do in between.

The tests stand in the order of a release's life and share one; the last one takes it away. Pods are
made by the operator, with the chart's rights only, in a namespace that enforces `restricted`.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from duramen.wire.cold.manifest import read_manifest
from tests.kubernetes.cluster.inside import RealCluster
from tests.kubernetes.cluster.objects import SHARED_CLASS
from tests.kubernetes.kubelet.installation import (
    READY_S,
    RELEASE,
    ROOT,
    WORKLOADS,
    Installation,
    installed,
    values,
)
from tests.process.times import HANG_S
from tests.waiting import wait_in_thread

LINES = "".join(f"line {number}\n" for number in range(20_000))
ARCHIVED_S = 540
SERVICE_POD_COUNT = 12
"""Three bookies, three ZooKeeper servers, two of every other service."""

SUCCEEDED = "jsonpath={.status.lastSuccess}"
"""Not of the last run: one that takes longer than its minute is followed by the next at once."""

CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "cold"},
    "spec": {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": SHARED_CLASS,
        "resources": {"requests": {"storage": "1Gi"}},
    },
}
API = {"apiVersion": "duramen.io/v1alpha1"}
LOG = {
    **API,
    "kind": "Log",
    "metadata": {"name": "archived"},
    "spec": {
        "clusterName": RELEASE,
        "namespace": "default",
        "roll": {"interval": "5s", "size": "64KiB", "idle_close": "5s"},
    },
}
POLICY = {
    **API,
    "kind": "ArchivePolicy",
    "metadata": {"name": "each-minute"},
    "spec": {
        "clusterName": RELEASE,
        "selector": {"namespace": "default", "logs": "archived"},
        "schedule": "* * * * *",
    },
}


@pytest.fixture(scope="module")
def release(kubelet: RealCluster) -> Iterator[Installation]:
    cold = {"url": "file:///cold", "claimName": "cold"}
    with installed(kubelet, values(cluster={"coldStore": cold}), CLAIM) as found:
        yield found
        found.print_figures()


def test_three_bookies_stand_in_three_zones(release: Installation) -> None:
    told = json.loads(release.plugin("status", "--json").stdout)
    assert told["ready"], told["trouble"]
    assert not told["unknown"] and not told["trouble"], told
    places = {(row["region"], row["zone"], row["state"]) for row in told["bookies"]}
    assert places == {(f"r{n}", f"r{n}-k0", "rw") for n in range(3)}
    for pod in release.pods("bookie"):
        labels = pod["metadata"]["labels"]
        node = release.kubelet.get(f"node/{pod['spec']['nodeName']}")["metadata"]["labels"]
        assert node["topology.kubernetes.io/zone"] == labels["duramen.io/zone"]
    print(f"\nmemory when ready: {sum(release.memory_bytes().values()) >> 20} MiB")


def test_helm_test_passes(release: Installation) -> None:
    with release.timed("helm test"):
        assert "Phase:          Succeeded" in release.helm("test", RELEASE)


def test_lines_go_in_and_come_back_through_the_services(release: Installation) -> None:
    node = release.kubelet.nodes[0]
    cli = [*release.inside(node), sys.executable, "-m", "duramen.cli.main"]
    log = "default/through-services"
    flags = ("--create", "--url", release.service_url("writeproxy"))
    done = _run([*cli, "append", log, "-", *flags], LINES)
    assert done.returncode == 0, done.stderr
    done = _run([*cli, "read", log, "--url", release.service_url("readproxy")])
    assert (done.returncode, done.stdout) == (0, LINES), done.stderr


def test_lines_go_in_and_come_back_through_the_plugin(release: Installation) -> None:
    log = "default/through-kubectl"
    done = release.plugin("append", log, "-", "--create", stdin=LINES)
    assert done.returncode == 0, done.stderr
    done = release.plugin("read", log)
    assert (done.returncode, done.stdout) == (0, LINES), done.stderr


@pytest.mark.night
@pytest.mark.timeout(700)  # Spark begins slowly where there is other work
def test_a_policys_cron_job_archives_with_spark(release: Installation) -> None:
    release.apply(LOG)
    release.wait("log/archived", "condition=Ready")
    done = release.plugin("append", "default/archived", "-", stdin=LINES)
    assert done.returncode == 0, done.stderr
    release.apply(POLICY)
    with release.timed("archived by the next minute's run"):
        release.wait("archivepolicy/each-minute", SUCCEEDED, ARCHIVED_S)
    with release.timed("told that no segment waits"):
        release.wait("archivepolicy/each-minute", "condition=Archived")
    assert _names(release, "cronjobs")
    volume = release.get("persistentvolumeclaim/cold")["spec"]["volumeName"]
    folder = release.kubelet.folder / "shared" / volume.removeprefix("shared-")
    manifests = list(folder.glob("v1/*/*/*/manifest.json"))
    assert manifests and list(folder.glob("v1/*/*/*/*/part-*.parquet"))
    rows = sum(read_manifest(path.read_bytes()).row_count for path in manifests)
    print(f"\n{len(manifests)} segments archived, {rows} rows")
    done = release.plugin("read", "default/archived")
    assert (done.returncode, done.stdout) == (0, LINES), done.stderr


def test_a_report_has_the_logs_of_every_pod(release: Installation, tmp_path: Path) -> None:
    # A schedule's pods come and go each minute: those count that were there before and after.
    before = list_started_pods(release)
    path = tmp_path / "report.tar.gz"
    done = release.plugin("report", "--output", str(path))
    assert done.returncode == 0, done.stderr
    pods = before & list_started_pods(release)
    assert len(pods) >= SERVICE_POD_COUNT
    with tarfile.open(path) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
        readme = next(name for name in tar.getnames() if name.endswith("README.txt"))
        text = (tar.extractfile(readme) or io.BytesIO()).read().decode()
    for name in pods:
        assert any(file.startswith(f"logs/{name}/") for file in names), (name, names)
    assert text.strip().endswith("nothing"), text


def list_started_pods(release: Installation) -> set[str]:
    """Pods of the cluster that have begun to run, whether or not they have ended."""
    found = release.get("pods", "--selector=duramen.io/cluster")["items"]
    return {pod["metadata"]["name"] for pod in found if pod["status"]["phase"] != "Pending"}


def test_uninstall_leaves_nothing_but_claims(release: Installation) -> None:
    # What people made beside the release is theirs to take away, and stays otherwise.
    release.kubectl("delete", "archivepolicies,logs", "--all")
    before = _names(release, "persistentvolumeclaims")
    release.print_figures()
    with release.timed("uninstall until nothing runs"):
        release.helm("uninstall", RELEASE, f"--timeout={READY_S}s", "--wait")
        wait_in_thread(lambda: not _names(release, WORKLOADS), HANG_S, "everything to go")
    kinds = "logclusters,bookiesets,bookies,lognamespaces,logs,loggrants,archivepolicies"
    assert not _names(release, kinds)
    assert len(before) == len(("zookeeper", "journal", "ledgers")) * 3 + len(("cold",)), before
    left = set(_names(release, "persistentvolumeclaims"))
    assert left >= {name for name in before if "zookeeper" not in name}
    others = "secrets,roles,rolebindings,serviceaccounts,networkpolicies,configmaps"
    kept = {"serviceaccount/default", "configmap/kube-root-ca.crt"}
    assert set(_names(release, others)) <= kept


def _names(release: Installation, kinds: str) -> list[str]:
    return [name for name in release.kubectl("get", kinds, "--output=name").split() if name]


def _run(command: list[str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, check=False, timeout=HANG_S, cwd=ROOT
    )
