"""A bookie's pod and then a whole node die under load: nothing that was acknowledged is lost.

Writers with producers and readers of the chaos harness work through the two services, from inside a
node that stays. Their histories go before the judge of the chaos runs, with a complete read made
when all is over. The node does not come back, nor do its bookie's data. There are four bookies,
as a new segment of three copies needs three: the node may have had a log's sequencer too.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.history import read_clock_ns
from tests.chaos.load import LoadOptions
from tests.kubernetes.cluster.inside import RealCluster
from tests.kubernetes.kubelet.installation import RELEASE, Installation, installed, values
from tests.process.chaos_load import ChaosLoad, judge_logs, require_good, running_load
from tests.process.times import HANG_S
from tests.waiting import comes_true

LOGS = [f"survives-{number}" for number in range(4)]
REPLICAS = {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2, "min_racks": 2}
APPENDS_COUNT, READS_COUNT = 50, 5
"""What each log must see after both deaths, so that the histories say something."""


@pytest.fixture(scope="module")
def release(kubelet: RealCluster) -> Iterator[Installation]:
    with installed(kubelet, values(bookies={"replicas": 4})) as found:
        yield found


@pytest.mark.timeout(900)  # every wait to its bound would take longer than any test may
def test_nothing_acknowledged_is_lost(release: Installation, tmp_path: Path) -> None:
    release.apply(*map(_make_log, LOGS))
    for log in LOGS:
        release.wait(f"log/{log}", "condition=Ready")
    bookies: dict[str, list[str]] = {}
    for pod in release.pods("bookie"):
        bookies.setdefault(pod["spec"]["nodeName"], []).append(pod["metadata"]["name"])
    # The node with two bookies stays, so that three are left.
    node_dies, pod_dies, stays = sorted(bookies, key=lambda node: len(bookies[node]))
    options = LoadOptions(
        folder=str(tmp_path),
        write_urls=[release.service_url("writeproxy")],
        read_urls=[release.service_url("readproxy")],
        logs=LOGS, writers=8, readers=4, seed=1, think_ms=20, has_producers=True,
    )  # fmt: skip
    with release.explained():
        asyncio.run(_scenario(release, options, stays, bookies[pod_dies][0], node_dies))
    print(f"\n{release.seconds}")


async def _scenario(
    release: Installation, options: LoadOptions, stays: str, pod: str, node: str
) -> None:
    async with running_load(options, prefix=release.inside(stays)) as load:
        await _kill_pod(release, load, pod)
        await _kill_node(release, load, node)
        await load.finish()
        print(f"\nappends that were refused or not answered, by code: {load.codes}")
    urls = [
        f"http://{proxy['status']['podIP']}:7401"
        for proxy in release.pods("readproxy")
        if proxy["spec"]["nodeName"] != node
    ]
    verdicts = await judge_logs(urls[0], Path(options.folder), LOGS, must_be_definite=True)
    counts = require_good(verdicts, appends=APPENDS_COUNT, reads=READS_COUNT)
    print(f"judged: {dict(counts)}, {sum(v.epoch_count for v in verdicts)} segments")


async def _kill_pod(release: Installation, load: ChaosLoad, pod: str) -> None:
    old = release.get(f"pod/{pod}")["metadata"]["uid"]
    with release.timed("bookie's pod back"):
        release.kubectl("delete", "pod", pod, "--grace-period=0", "--force")

        def is_back() -> bool:
            found = release.kubectl("get", "pod", pod, "--output=jsonpath={.metadata.uid}",
                                    check=False)  # fmt: skip
            return bool(found) and found != old

        assert await comes_true(is_back, HANG_S), release.describe()
        await asyncio.to_thread(release.wait, f"pod/{pod}", "condition=Ready", HANG_S)
    await load.wait_acked_since(read_clock_ns(), HANG_S)


async def _kill_node(release: Installation, load: ChaosLoad, node: str) -> None:
    release.kubelet.kill_node(node)
    killed_ns = read_clock_ns()
    with release.timed("every log acknowledges after the node's death"):
        await load.wait_acked_since(killed_ns + 1_000_000_000, HANG_S)
    with release.timed("Kubernetes calls the node lost"):
        lost = "condition=Ready=Unknown"
        await asyncio.to_thread(release.wait, f"node/{node}", lost, HANG_S)
    await load.wait_acked_since(read_clock_ns(), HANG_S)
    with release.timed("the cluster is told to be not ready"):
        is_told = functools.partial(_is_told, release)
        assert await comes_true(is_told, HANG_S), release.describe()


def _is_told(release: Installation) -> bool:
    told = release.plugin("status")
    return told.returncode == 1 and "!!" in told.stdout


def _make_log(name: str) -> dict[str, object]:
    spec = {
        "clusterName": RELEASE, "namespace": "default", "replication": REPLICAS,
        "roll": {"interval": "10s", "size": "256KiB"},
    }  # fmt: skip
    return {
        "apiVersion": "duramen.io/v1alpha1", "kind": "Log", "metadata": {"name": name}, "spec": spec
    }  # fmt: skip
