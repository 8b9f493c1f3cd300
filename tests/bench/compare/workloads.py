"""The short loads that both sides get, and what they cost: counts, CPU and times per append.

The load generator is the working tree's for both. It speaks public REST alone (one append a
request, or a record batch of format 1), so it drives any revision that has these; what is counted
comes from the admin ports and, where the product's own word is not enough, from outside
(`probe/sitecustomize`, /proc, ZooKeeper's `srvr`). What a revision does not tell is left out of its
sample, and the comparison names it.

Counts of `lone` and `batches` do not depend on timing: one append in flight, acknowledged by all
three bookies, and no commit of a quiet log meanwhile. In `singles` entries and syncs are shared by
appends that happen to be there at once, so its counts are `GROUPED`.

Called by `python -m tests.bench.compare` and `kept`. Source: docs/benchmarks.md.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tests.bench.cluster import BenchError, call
from tests.bench.compare.sides import Side
from tests.bench.compare.verdict import Figure, Kind
from tests.bench.load import LoadResult, LoadSpec, run_load
from tests.bench.report import find_ms

_APPENDS_MIN: Final = 200
"""However slow the machine: what happens once a second weighs less then than the slack."""

_EXACT: Final[Mapping[str, Any]] = {
    "replication": {"ack_quorum": 3},
    # The next append comes sooner than either on any machine.
    "commit_delay": "1m",
    "roll": {"interval": "24h"},
}
_SRVR_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Workload:
    """A load, without its log, and how its counts are to be judged."""

    load: LoadSpec
    counts: Kind
    config: Mapping[str, Any] = field(default_factory=dict)


WORKLOADS: Final[Mapping[str, Workload]] = {
    "lone": Workload(LoadSpec([], 0, 1), Kind.COUNT, _EXACT),
    "batches": Workload(LoadSpec([], 0, 1, batch_records=100), Kind.COUNT, _EXACT),
    "singles": Workload(LoadSpec([], 0, 64), Kind.GROUPED),
}


def prepare(side: Side, name: str) -> None:
    """Make the log of a workload and have it taken over; what follows finds it open."""
    workload = WORKLOADS[name]
    body = json.dumps(workload.config).encode()
    call("PUT", _find_url(side, name), body)
    run_load(replace(workload.load, urls=[f"{_find_url(side, name)}/records"], count_min=20))


def measure(side: Side, name: str, seconds: float) -> dict[Figure, float]:
    """One turn of a workload at one side.

    Raises:
        BenchError: an append failed, or a process was lost.
    """
    workload = WORKLOADS[name]
    urls = [f"{_find_url(side, name)}/records"]
    before, cpu = read_counts(side), side.cluster.read_cpu()
    load = run_load(replace(workload.load, urls=urls, seconds=seconds, count_min=_APPENDS_MIN))
    used_s = side.cluster.read_cpu().since(cpu)
    after = read_counts(side)
    # The generator's first append is not among the latencies.
    count = len(load.latencies_s) + len(urls)
    sample: dict[Figure, float] = {}
    for what in before.keys() & after.keys():
        unit, per_count, slack = _COUNTS[what]
        kind = Kind.PACED if what in _PACED else workload.counts
        figure = Figure(name, what, unit, kind, slack)
        sample[figure] = (after[what] - before[what]) * per_count / count
    for role, role_s in sorted(used_s.items()):
        slack_us = _IDLE_CPU_SLACK_US if role in _IDLE_ROLES else _CPU_SLACK_US
        figure = Figure(name, f"CPU of {role}", "µs an append", Kind.CPU, slack_us)
        sample[figure] = role_s * 1e6 / count
    return sort_like_counts(sample) | _find_times(name, load)


def sort_like_counts(sample: Mapping[Figure, float]) -> dict[Figure, float]:
    """In the order of the table of counts, then what else there is."""
    order = list(_COUNTS)
    places = {figure: order.index(figure.name) for figure in sample if figure.name in _COUNTS}
    return {
        figure: sample[figure]
        for figure in sorted(sample, key=lambda figure: places.get(figure, len(order)))
    }


def _find_url(side: Side, name: str) -> str:
    return f"{side.cluster.document()['write_url']}/v1/namespaces/default/logs/{name}"


def _find_times(name: str, load: LoadResult) -> dict[Figure, float]:
    return {
        Figure(name, "time of an append, p50", "ms", Kind.TIME): find_ms(load.latencies_s, 50),
        Figure(name, "p99", "ms", Kind.TIME): find_ms(load.latencies_s, 99),
        Figure(name, "time per append, all at once", "ms", Kind.TIME): 1e3 / load.rate_per_s,
    }


# --- Counts --------------------------------------------------------------------------------------

_A_THOUSAND: Final = "per 1,000"
_CPU_SLACK_US: Final = 20.0
_IDLE_CPU_SLACK_US: Final = 300.0
"""Of roles that do nothing for an append: a tick of 10 ms now and then, among 200 appends."""

_IDLE_ROLES: Final = ("readproxy", "zookeeper")

_COUNTS: Final[Mapping[str, tuple[str, float, float]]] = {
    # Name → unit, per how many appends, slack. What depends on pauses alone stays far below these:
    # checkpoints and cookies sync once in a while, sessions of ZooKeeper ping a few times a second.
    "calls of the sequencer": (_A_THOUSAND, 1000, 10),
    "calls of bookies": (_A_THOUSAND, 1000, 10),
    "frames to bookies": (_A_THOUSAND, 1000, 10),
    "entries to bookies": (_A_THOUSAND, 1000, 10),
    "fsyncs of bookies": (_A_THOUSAND, 1000, 10),
    "bytes journaled": ("an append", 1, 50),
    "ZooKeeper operations": (_A_THOUSAND, 1000, 200),
    "bytes written by bookies": ("an append", 1, 1024),
    "ZooKeeper packets": (_A_THOUSAND, 1000, 200),
}
_PACED: Final = ("bytes written by bookies", "ZooKeeper packets")
"""Checkpoints and room for the journal; pings of sessions."""


def read_counts(side: Side) -> dict[str, float]:
    """Totals since the start, of what this revision tells."""
    found: dict[str, float] = {}
    bookies = list(side.cluster.statistics("bookie").values())
    sequencers = list(side.cluster.statistics("sequencer").values())
    proxies = list(side.cluster.statistics("writeproxy").values())
    syncs, written_bytes = side.read_disk_calls()
    readings: dict[str, Callable[[], float]] = {
        "calls of the sequencer": lambda: sum(
            lane["frames"] for one in proxies for lane in one["lanes"].values()
        ),
        "calls of bookies": lambda: sum(
            sum(one["data_plane"]["requests"].values()) for one in bookies
        ),
        "frames to bookies": lambda: _sum_lanes(sequencers, "frames"),
        "entries to bookies": lambda: _sum_lanes(sequencers, "adds"),
        # A pause of 50 ms is followed by a mark, which is a sync of its own.
        "fsyncs of bookies": lambda: syncs - sum(
            one["storage"]["journal"]["mark_count"] for one in bookies
        ),
        "bytes journaled": lambda: sum(
            one["storage"]["journal"]["written_bytes"] for one in bookies
        ),
        "ZooKeeper operations": lambda: sum(
            one["metadata"]["reads"] + one["metadata"]["writes"] for one in [*sequencers, *proxies]
        ),
        "bytes written by bookies": lambda: written_bytes,
        "ZooKeeper packets": lambda: _ask_zookeeper(side.cluster.document()["zookeeper"]),
    }  # fmt: skip
    for name, read in readings.items():
        with suppress(KeyError, TypeError):
            found[name] = read()
    return found


def _sum_lanes(sequencers: list[dict[str, Any]], what: str) -> float:
    return float(
        sum(lane[what] for one in sequencers for lane in one["lanes"]["by_bookie"].values())
    )


def _ask_zookeeper(address: str) -> float:
    """Packets that the server has received: every operation and every ping of a session.

    Raises:
        BenchError: it gave no such number.
    """
    host, _, port = address.rpartition(":")
    answer = b""
    with socket.create_connection((host, int(port)), _SRVR_TIMEOUT_S) as connection:
        connection.sendall(b"srvr")
        while piece := connection.recv(4096):
            answer += piece
    for line in answer.decode().splitlines():
        if line.startswith("Received:"):
            return float(line.split()[1])
    raise BenchError(f"ZooKeeper at {address} said {answer[:200]!r}")
