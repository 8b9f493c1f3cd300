"""Nine bookies on nine nodes in three regions, under load, of a cluster from before ADR 0047.

They share a StatefulSet for each domain, are restarted, become more and fewer, one by its name, and
move over to StatefulSets of their own; then a node is cut off. Of the night. Histories of the load
go before the judge of the chaos runs, and each tells how long logs went without an acknowledgement;
pods of bookies are recorded, change by change. Source: docs/kubernetes/restarts.md, removal.md.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from duramen_operator.names import BOOKIE_LABEL
from tests.chaos.history import read_clock_ns
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
from tests.kubernetes.kubelet.pod_history import PodHistory, recording
from tests.kubernetes.plan.world import leave_disks, make_bookie_set, make_cluster, make_domains
from tests.process.chaos_load import ChaosLoad, running_load
from tests.process.times import HANG_S
from tests.waiting import comes_true

pytestmark = [pytest.mark.night, pytest.mark.timeout(1_500)]

COUNT, MORE = 9, 12
RENEWED_S = 900
SPREAD_NS = 15_000_000_000
CUT_S = 60.0
LOAD_NODE = "node8"
"""The load runs in its network; it is not cut off."""


@pytest.fixture(scope="module")
def release(kubelet: RealCluster) -> Iterator[Installation]:
    domains = make_domains(3, 3)
    chosen = values(cluster={"domains": domains}, bookies={"replicas": COUNT})
    # Over disks of the older form its StatefulSets are made again, as in a reinstall.
    older = leave_disks(
        make_cluster(RELEASE, domains=domains), make_bookie_set(RELEASE, RELEASE, replicas=COUNT)
    )
    for claim in older:
        claim["spec"] = {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}
        }  # fmt: skip
    with installed(kubelet, chosen, *older) as found:
        wait_calm(found)
        assert len(list_sharing(found)) == COUNT
        yield found
        found.print_figures()


def list_uids(release: Installation) -> dict[str, str]:
    """Name to uid of each bookie's pod."""
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in release.pods("bookie")}


def list_sharing(release: Installation) -> list[str]:
    """The bookies whose StatefulSet may have others."""
    pods = release.pods("bookie")
    found = [pod for pod in pods if BOOKIE_LABEL not in pod["metadata"]["labels"]]
    return sorted(pod["metadata"]["name"] for pod in found)


def have_go(release: Installation, names: Sequence[str]) -> None:
    """These bookies are to go, by their names."""
    patch = json.dumps({"spec": {"decommission": True}})
    for name in names:
        release.kubectl("patch", "bookie", name, "--type=merge", f"--patch={patch}")


def wait_settled(
    release: Installation, count: int, words: str, without: Iterable[str] = ()
) -> None:
    """Until so many bookies serve, none of these, and nothing is left to be done."""
    gone = {*without}

    def is_done() -> bool:
        return not gone & list_uids(release).keys() and has_bookies(release, count)

    with release.timed(words):
        assert asyncio.run(comes_true(is_done, 4 * HANG_S)), release.describe()
    wait_calm(release)


def find_stopped(history: PodHistory, names: Iterable[str]) -> list[str]:
    """Moments at which one of these was stopped."""
    chosen = {*names}
    return [one.text for one in history.moments if one.stopped & chosen]


async def load_beside(
    release: Installation, folder: Path, log: str, act: Callable[[ChaosLoad], object]
) -> None:
    """A load of two logs while something is done in a thread, and what the judge says of it."""
    logs = [f"{log}-{number}" for number in range(2)]
    await asyncio.to_thread(add_logs, release, logs)
    options = make_options(release, folder, logs)
    async with running_load(options, prefix=release.inside(LOAD_NODE)) as load:
        await load.wait_acked_since(read_clock_ns(), HANG_S)
        await asyncio.to_thread(act, load)
        began_ns = read_clock_ns()
        # Segments of ten seconds: those of now have copies on whoever is there.
        await load.wait_acked_since(began_ns + SPREAD_NS, HANG_S)
        await load.finish()
        print(f"\nappends that were refused or not answered, by code: {load.codes}")
    await judge_load(release, options)


def test_a_new_flag_restarts_all_bookies_one_by_one(release: Installation, tmp_path: Path) -> None:
    before = list_uids(release)
    assert len(before) == COUNT

    def renew(_: ChaosLoad) -> None:
        patch = json.dumps({"spec": {"journalFileSize": "48MiB"}})
        release.kubectl("patch", "bookieset", RELEASE, "--type=merge", f"--patch={patch}")
        with release.timed(f"{COUNT} bookies restarted"):
            release.wait(f"bookieset/{RELEASE}", _progress("Restarting"))
            release.wait(f"bookieset/{RELEASE}", _progress("Settled"), RENEWED_S)
        wait_calm(release)

    with release.explained(), recording(release, "bookie") as history:
        asyncio.run(load_beside(release, tmp_path, "renewed", renew))
    after = list_uids(release)
    assert before.keys() == after.keys() and not {*before.values()} & {*after.values()}
    assert any(moment.stopped for moment in history.moments)
    at_once = [moment for moment in history.moments if len(moment.stopped) > 1]
    assert not at_once, "\n".join(moment.text for moment in history.moments)
    print(f"\n{release.seconds}, {len(history.moments)} changes of readiness")


def test_three_bookies_come_and_three_go_one_by_its_name(
    release: Installation, tmp_path: Path
) -> None:
    before = list_uids(release)
    named = sorted(before)[COUNT // 2]

    def resize(_: ChaosLoad) -> None:
        scale_bookies(release, MORE)
        wait_settled(release, MORE, "three bookies more")
        scale_bookies(release, COUNT)
        have_go(release, [named])
        wait_settled(release, COUNT, f"{named} and two others drained and removed", [named])

    with release.explained(), recording(release, "bookie") as history:
        asyncio.run(load_beside(release, tmp_path, "resized", resize))
    after = list_uids(release)
    assert before.items() - {(named, before[named])} <= after.items()
    assert len(after) == COUNT and named not in after
    assert not find_stopped(history, before.keys() - {named})
    print(f"\n{release.seconds}")


def test_all_move_to_statefulsets_of_their_own(release: Installation, tmp_path: Path) -> None:
    older = list_sharing(release)
    kept = {name: uid for name, uid in list_uids(release).items() if name not in older}
    assert len(older) == COUNT - 1 and len(kept) == 1

    def move(_: ChaosLoad) -> None:
        for region in range(3):
            names = [name for name in older if f"-r{region}-" in name]
            have_go(release, names)
            wait_settled(release, COUNT, f"{len(names)} of r{region} moved over", names)

    with release.explained(), recording(release, "bookie") as history:
        asyncio.run(load_beside(release, tmp_path, "moved", move))
    after = list_uids(release)
    assert list_sharing(release) == [] and len(after) == COUNT
    assert kept.items() <= after.items() and not find_stopped(history, kept)
    print(f"\n{release.seconds}")


def test_a_node_that_is_cut_off_for_a_minute_comes_back(
    release: Installation, tmp_path: Path
) -> None:
    before = list_uids(release)
    node = min(
        pod["spec"]["nodeName"]
        for pod in release.pods("bookie")
        if pod["spec"]["nodeName"] != LOAD_NODE
    )

    def cut(load: ChaosLoad) -> None:
        release.kubelet.cut_node(node)
        cut_ns = read_clock_ns()
        try:
            with release.timed("every log acknowledges after the cut"):
                asyncio.run(load.wait_acked_since(cut_ns + 1_000_000_000, HANG_S))
            end_ns = cut_ns + int(CUT_S * 1e9)
            assert asyncio.run(comes_true(lambda: read_clock_ns() >= end_ns, HANG_S))
        finally:
            release.kubelet.mend_node(node)
        with release.timed("all caught up after the cut"):
            release.wait(f"node/{node}", "condition=Ready", HANG_S)
            wait_calm(release)

    with release.explained():
        asyncio.run(load_beside(release, tmp_path, "cut", cut))
    assert list_uids(release) == before, "nobody is made anew for that"
    print(f"\n{release.seconds}")


def _progress(reason: str) -> str:
    return f'jsonpath={{.status.conditions[?(@.type=="Progressing")].reason}}={reason}'
