"""A release under the load of the chaos runs: logs, writers and readers, the judge, append stalls.

Used by the tests beside this module that kill, drain, cut off and resize under load.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from tests.chaos.history import read_history
from tests.chaos.load import LoadOptions
from tests.kubernetes.kubelet.installation import RELEASE, Installation
from tests.process.chaos_load import judge_logs, require_good
from tests.process.times import HANG_S

REPLICAS = {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2, "min_racks": 2}
APPENDS_COUNT, READS_COUNT = 50, 5
"""What each log must see, so that the histories say something."""


def add_logs(release: Installation, names: Sequence[str]) -> None:
    """Logs of three copies whose segments end after ten seconds; waits until they are ready."""
    release.apply(*map(_make_log, names))
    for name in names:
        release.wait(f"log/{name}", "condition=Ready")


def make_options(release: Installation, folder: Path, logs: Sequence[str]) -> LoadOptions:
    """A load of these logs through the release's services."""
    return LoadOptions(
        folder=str(folder),
        write_urls=[release.service_url("writeproxy")],
        read_urls=[release.service_url("readproxy")],
        logs=list(logs), writers=8, readers=4, seed=1, think_ms=20, has_producers=True,
    )  # fmt: skip


async def judge_load(release: Installation, options: LoadOptions, *, but: str = "") -> None:
    """By a read of a proxy that is not on the node `but`; tells the stalls of appends, too."""
    urls = [
        f"http://{proxy['status']['podIP']}:7401"
        for proxy in release.pods("readproxy")
        if proxy["spec"]["nodeName"] != but
    ]
    folder = Path(options.folder)
    verdicts = await judge_logs(urls[0], folder, options.logs, must_be_definite=True)
    counts = require_good(verdicts, appends=APPENDS_COUNT, reads=READS_COUNT)
    print(f"judged: {dict(counts)}, {sum(v.epoch_count for v in verdicts)} segments")
    print(describe_stalls(folder, options.logs))


def describe_stalls(folder: Path, logs: Sequence[str]) -> str:
    """How long each log went without an acknowledgement, all gaps of all logs together."""
    gaps: list[float] = []
    for log in logs:
        lines = (line for line in read_history(folder, log) if line["op"] == "append")
        acked = sorted(line["t1_ns"] for line in lines if line["outcome"] == "ok")
        gaps += [(after - before) / 1e9 for before, after in pairwise(acked)]
    gaps.sort()
    if not gaps:
        return "no stalls: nothing was appended twice"
    parts = [f"{name} {gaps[int(share * (len(gaps) - 1))]:.3f} s" for name, share in _SHARES]
    return f"between acknowledgements of a log: {', '.join(parts)}, longest {gaps[-3:]}"


_SHARES = (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999))


def wait_calm(release: Installation) -> None:
    """Until all bookies are Ready and caught up. (EvictionsAllowed is True as well while one that
    is away may be evicted, and nobody else.)"""
    reason = 'jsonpath={.status.conditions[?(@.type=="EvictionsAllowed")].reason}=CaughtUp'
    release.wait(f"logcluster/{RELEASE}", reason, HANG_S)


def scale_bookies(release: Installation, count: int) -> None:
    """So many bookies are to stay."""
    patch = json.dumps({"spec": {"replicas": count}})
    release.kubectl("patch", "bookieset", RELEASE, "--type=merge", f"--patch={patch}")


def has_bookies(release: Installation, count: int) -> bool:
    """Whether so many serve, and nothing is left to be done about them."""
    status = release.get(f"bookieset/{RELEASE}")["status"]
    told = {one["type"]: one for one in status["conditions"]}
    is_settled = (told["Progressing"]["reason"], told["Ready"]["status"]) == ("Settled", "True")
    return is_settled and status["replicas"] == status["readyReplicas"] == count


def _make_log(name: str) -> dict[str, object]:
    spec = {
        "clusterName": RELEASE, "namespace": "default", "replication": REPLICAS,
        "roll": {"interval": "10s", "size": "256KiB"},
    }  # fmt: skip
    return {
        "apiVersion": "duramen.io/v1alpha1", "kind": "Log", "metadata": {"name": name}, "spec": spec
    }  # fmt: skip
