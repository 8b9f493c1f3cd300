"""Nine bookies on nine nodes in three regions, under load: restarted, more and fewer, one cut off.

Of the night. The histories of the load go before the judge of the chaos runs, and each tells how
long logs went without an acknowledgement; pods of bookies are recorded, change by change. Source:
docs/kubernetes/restarts.md, docs/kubernetes/removal.md.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

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
from tests.kubernetes.kubelet.pod_history import recording
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
    domains = [{"region": f"r{r}", "zone": f"r{r}-k{k}"} for r in range(3) for k in range(3)]
    chosen = values(cluster={"domains": domains}, bookies={"replicas": COUNT})
    with installed(kubelet, chosen) as found:
        wait_calm(found)
        yield found
        found.print_figures()


def list_uids(release: Installation) -> dict[str, str]:
    """Name to uid of each bookie's pod."""
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in release.pods("bookie")}


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


def test_three_bookies_come_and_go(release: Installation, tmp_path: Path) -> None:
    before = list_uids(release)

    def resize(_: ChaosLoad) -> None:
        for count, words in ((MORE, "three bookies more"), (COUNT, "three drained and removed")):
            scale_bookies(release, count)
            with release.timed(words):
                is_there = functools.partial(has_bookies, release, count)
                assert asyncio.run(comes_true(is_there, 4 * HANG_S)), release.describe()
            wait_calm(release)

    with release.explained(), recording(release, "bookie") as history:
        asyncio.run(load_beside(release, tmp_path, "resized", resize))
    assert list_uids(release) == before
    assert not [one.text for one in history.moments if one.stopped & before.keys()]
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
