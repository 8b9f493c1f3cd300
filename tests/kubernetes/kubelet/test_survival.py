"""Nodes are drained, a bookie's pod and a whole node die: nothing that was acknowledged is lost.

Writers with producers and readers of the chaos harness work through the two services, from inside a
node that stays. Their histories go before the judge of the chaos runs, with a complete read made
when all is over. The node does not come back, nor do its bookie's data, and the operator was on it:
another one says what happened. There are four bookies then, as a new segment of three copies
needs three: the node may have had a log's sequencer too. All of it is of the night.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.chaos.history import read_clock_ns
from tests.chaos.load import LoadOptions
from tests.kubernetes.cluster.inside import RealCluster
from tests.kubernetes.kubelet.installation import RELEASE, Installation, installed, values
from tests.kubernetes.kubelet.loaded import (
    add_logs,
    has_bookies,
    judge_load,
    make_options,
    scale_bookies,
    wait_calm,
)
from tests.kubernetes.kubelet.pod_history import recording
from tests.process.chaos_load import ChaosLoad, running_load
from tests.process.times import HANG_S
from tests.waiting import comes_true

pytestmark = pytest.mark.night

LOGS = [f"survives-{number}" for number in range(4)]
DRAINED_LOGS = [f"drained-{number}" for number in range(2)]
REMOVED_LOGS = [f"moved-{number}" for number in range(2)]
SPREAD_NS = 15_000_000_000
DRAIN_S = 400
BOOKIES_COUNT = 4
DIES = "node1"
"""One of those with one bookie, wherever the fourth one is; the operator starts there, too."""


@pytest.fixture(scope="module")
def release(kubelet: RealCluster) -> Iterator[Installation]:
    chosen = values(operator={"affinity": _prefer_node(DIES)})
    with installed(kubelet, chosen) as found:
        yield found


@pytest.mark.timeout(900)  # every wait to its bound would take longer than any test may
def test_drained_nodes_wait_for_one_another(release: Installation, tmp_path: Path) -> None:
    """Nodes of three zones at once, as an upgrade of nodes that is in a hurry: a bookie goes when
    the one before has what it missed."""
    add_logs(release, DRAINED_LOGS)
    wait_calm(release)
    before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in release.pods("bookie")}
    nodes = sorted({pod["spec"]["nodeName"] for pod in release.pods("bookie")})
    assert len(before) == len(nodes) == 3, release.describe()
    with release.explained(), recording(release, "bookie") as history:
        asyncio.run(_drain(release, make_options(release, tmp_path, DRAINED_LOGS), nodes))
    after = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in release.pods("bookie")}
    assert before.keys() == after.keys() and not {*before.values()} & {*after.values()}
    assert any(moment.stopped for moment in history.moments)
    at_once = [moment for moment in history.moments if len(moment.stopped) > 1]
    assert not at_once, "\n".join(moment.text for moment in history.moments)
    print(f"\n{release.seconds}, {len(history.moments)} changes of readiness")


async def _drain(release: Installation, options: LoadOptions, nodes: Sequence[str]) -> None:
    async with running_load(options, prefix=release.inside(release.kubelet.nodes[-1])) as load:
        began_ns = read_clock_ns()
        await load.wait_acked_since(began_ns, HANG_S)
        with release.timed("three nodes drained, one bookie after the other"):
            drains = (asyncio.to_thread(_drain_node, release, node) for node in nodes)
            await asyncio.gather(*drains)
            await asyncio.to_thread(wait_calm, release)
        await load.wait_acked_since(read_clock_ns(), HANG_S)
        await load.finish()
    await judge_load(release, options)


def _drain_node(release: Installation, node: str) -> None:
    """As an upgrade of a node does, which is back at once.

    Of bookies alone: on these nodes, each the only one of its zone, a member of ZooKeeper here and
    a bookie there would wait for each other, as docs/kubernetes/evictions.md says.
    """
    flags = (
        "--pod-selector=app.kubernetes.io/component=bookie", "--ignore-daemonsets",
        "--delete-emptydir-data", f"--timeout={DRAIN_S}s",
    )  # fmt: skip
    release.kubectl("drain", node, *flags, timeout_s=DRAIN_S + 30)
    release.kubectl("uncordon", node)


@pytest.mark.timeout(900)  # every wait to its bound would take longer than any test may
def test_bookies_come_and_go_under_load(release: Installation, tmp_path: Path) -> None:
    """Two more, and two fewer: copies move, and nobody goes who holds one."""
    add_logs(release, REMOVED_LOGS)
    wait_calm(release)
    before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in release.pods("bookie")}
    with release.explained(), recording(release, "bookie") as history:
        asyncio.run(_resize(release, make_options(release, tmp_path, REMOVED_LOGS)))
    after = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in release.pods("bookie")}
    assert after == before
    stopped = [moment for moment in history.moments if moment.stopped & before.keys()]
    assert not stopped, "\n".join(moment.text for moment in stopped)
    print(f"\n{release.seconds}")


async def _resize(release: Installation, options: LoadOptions) -> None:
    async with running_load(options, prefix=release.inside(release.kubelet.nodes[-1])) as load:
        await load.wait_acked_since(read_clock_ns(), HANG_S)
        for count, words in ((5, "two bookies more"), (3, "two bookies drained and removed")):
            scale_bookies(release, count)
            with release.timed(words):
                is_there = functools.partial(has_bookies, release, count)
                assert await comes_true(is_there, 2 * HANG_S), release.describe()
            began_ns = read_clock_ns()
            await load.wait_acked_since(began_ns, HANG_S)
            # Segments of ten seconds: those of now have copies on whoever is there.
            await load.wait_acked_since(began_ns + SPREAD_NS, HANG_S)
        await load.finish()
    await judge_load(release, options)


@pytest.mark.timeout(900)  # every wait to its bound would take longer than any test may
def test_nothing_acknowledged_is_lost(release: Installation, tmp_path: Path) -> None:
    scale_bookies(release, BOOKIES_COUNT)
    ready = f"jsonpath={{.status.readyReplicas}}={BOOKIES_COUNT}"
    release.wait(f"bookieset/{RELEASE}", ready)
    add_logs(release, LOGS)
    bookies: dict[str, list[str]] = {}
    for pod in release.pods("bookie"):
        bookies.setdefault(pod["spec"]["nodeName"], []).append(pod["metadata"]["name"])
    # The node with two bookies stays, so that three are left.
    pod_dies, stays = sorted(bookies.keys() - {DIES}, key=lambda node: len(bookies[node]))
    assert len(bookies[DIES]) == 1, release.describe()
    _place_operator(release)
    options = make_options(release, tmp_path, LOGS)
    with release.explained():
        asyncio.run(_scenario(release, options, stays, bookies[pod_dies][0], DIES))
    print(f"\n{release.seconds}")


async def _scenario(
    release: Installation, options: LoadOptions, stays: str, pod: str, node: str
) -> None:
    async with running_load(options, prefix=release.inside(stays)) as load:
        await _kill_pod(release, load, pod)
        await _kill_node(release, load, node)
        await load.finish()
        print(f"\nappends that were refused or not answered, by code: {load.codes}")
    await judge_load(release, options, but=node)


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
    # A Lease of a moment ago says nothing yet; its next holder says more.
    is_silence_told = functools.partial(_is_told, release, "!! operator", "ok operator serves")
    assert await comes_true(is_silence_told, HANG_S), release.describe()
    with release.timed("another operator says what happened"):
        is_told = functools.partial(_is_told, release, "!! Ready False", "!! operator")
        assert await comes_true(is_told, HANG_S), release.describe()


def _is_told(release: Installation, what: str, but: str) -> bool:
    """Whether the plugin says that all is not well, by this and without that."""
    told = release.plugin("status")
    return told.returncode == 1 and what in told.stdout and but not in told.stdout


def _place_operator(release: Installation) -> None:
    """Onto the node that dies, which it prefers, wherever drains sent it."""
    (operator,) = release.pods("operator")
    if operator["spec"]["nodeName"] != DIES:
        release.kubectl("delete", "pod", operator["metadata"]["name"])
    (operator,) = release.pods("operator")
    assert operator["spec"]["nodeName"] == DIES, release.describe()
    release.wait(f"pod/{operator['metadata']['name']}", "condition=Ready")


def _prefer_node(node: str) -> dict[str, object]:
    """It starts there, and elsewhere once that node is gone."""
    there = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    wish = {"weight": 100, "preference": {"matchExpressions": [there]}}
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [wish]}}
