"""What a frozen, a slow and a full bookie cost a flexible log, with a striped one beside it.

    make bench-flexible
    make bench-flexible FIGUREFLAGS="--seconds 600 --rounds 1"

Six bookies in three racks; each log has a sequencer of its own. Single records of 1 KiB come to
both at a pace, whatever becomes of earlier ones. Each fault strikes a bookie that both write to, a
moment after its load has begun, and is measured against a load without a fault right before. Rounds
of both are counted together, since a machine changes from minute to minute. Beside latencies:
failed appends, writes of the log's metadata, epochs, memory of the owner. At the end both logs get
as much as they take, in turn. `test_flexible_faults` does the same with little load and without a
word about time.
Source: docs/benchmarks.md "A bookie in trouble", docs/protocol/waves.md.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import resource
import signal
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Final

import httpx

from duramen.client.rest_client import RestClient
from duramen.core.flexible.segment import AnySegment
from duramen.core.segment import Segment
from duramen.ids import NOTHING, Epoch, LogId
from duramen.wire.metadata_json import read_any_segment
from tests.bench.load import LoadResult, LoadSpec, run_load
from tests.bench.machine import CpuWatch, describe_machine
from tests.bench.report import Figure, Target, at_least, at_most, find_ms, format_table
from tests.pauses import let_pass
from tests.process.cluster import LocalCluster, create_log, running_plain_cluster
from tests.process.copies import ask_until, close_segment, open_store
from tests.process.drain_figures import used_cpu_s
from tests.process.faulty_bookie import faulty, set_fault
from tests.process.log_changes import LogVersions, read_versions
from tests.process.owners import owners_of
from tests.process.times import HANG_S

FLAGS: Final = ("--bookies", "6", "--racks", "a,b,c", "--sequencers", "2", "--no-restart")
FROZEN: Final = "frozen"
FAULTS: Final = (FROZEN, "slow", "full")
SIDES: Final = ("flexible", "striped")
RECORD_BYTES: Final = 1024
LEAD_S: Final = 2.0
"""From the start of a load to its fault, which strikes while appends are under way."""
SAMPLE_S: Final = 1.0
RATE: Final = "rate"
ROLES: Final = ("bookie", "sequencer", "writeproxy")
TURNS_COUNT: Final = 5
IN_FLIGHT: Final = 64
P99_RATIO_MAX: Final = 1.5
RATE_RATIO_MIN: Final = 0.9
MEMORY_MB_MAX: Final = 8.0
"""What an allocator may keep between the first third of a load and its last."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two logs: its copysets are its name."""

    name: str
    log_id: LogId
    owner: str
    url: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one log in loads of one kind."""

    latencies_s: list[float]
    failed_count: int
    """Appends that were answered by an error, or not in time, or could not be sent."""
    write_count: int
    epoch_count: int
    memory_bytes: list[int]
    """Of its owner, each second."""

    def join(self, other: Outcome) -> Outcome:
        """Both together."""
        return Outcome(
            self.latencies_s + other.latencies_s,
            self.failed_count + other.failed_count,
            self.write_count + other.write_count,
            self.epoch_count + other.epoch_count,
            self.memory_bytes + other.memory_bytes,
        )

    @property
    def growth_mb(self) -> float:
        """Of the owner's memory, from the first third of the samples to the last."""
        third = max(1, len(self.memory_bytes) // 3)
        first, last = self.memory_bytes[:third], self.memory_bytes[-third:]
        return (statistics.median(last) - statistics.median(first)) / 1e6


@dataclass(frozen=True, slots=True)
class Comparison:
    """The phases of one fault, by log: without it, then with it."""

    fault: str
    calm: dict[str, Outcome]
    struck: dict[str, Outcome]


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn at full rate; CPU by role."""

    rate_per_s: float
    cpu_us_per_append: dict[str, float]


class Figures:
    """One run: a cluster with both logs, and what is measured on it."""

    def __init__(self, cluster: LocalCluster, sides: Sequence[Side], rate_per_s: float) -> None:
        self.cluster = cluster
        self.sides = sides
        self._rate_per_s = rate_per_s

    async def compare(self, fault: str, seconds: float, round_count: int) -> Comparison:
        """Both logs without the fault and with it, so many times."""
        rounds = []
        for _ in range(round_count):
            calm = await self._measure(seconds)
            rounds.append((calm, await self.strike(await self.choose_victim(), fault, seconds)))
        without, struck = (
            {side: reduce(Outcome.join, (one[side] for one in phases)) for side in SIDES}
            for phases in zip(*rounds, strict=True)
        )
        return Comparison(fault, without, struck)

    async def strike(self, victim: str, fault: str, seconds: float) -> dict[str, Outcome]:
        """Both logs with the fault, until it is over and every bookie is well again."""
        say(f"{fault}: {victim}")
        async with self._striking(victim, fault):
            struck = await self._measure(seconds, strikes=(victim, fault))
        await self._wait_healed()
        return struck

    async def compare_rates(self, seconds: float) -> dict[str, list[Turn]]:
        """As much as each log alone takes, in turns."""
        turns: dict[str, list[Turn]] = {side.name: [] for side in self.sides}
        for _ in range(TURNS_COUNT):
            for side in self.sides:
                spec = LoadSpec([side.url], seconds, IN_FLIGHT, body_bytes=RECORD_BYTES)
                before = used_cpu_s(self.cluster)
                done = await asyncio.to_thread(run_load, spec)
                used = used_cpu_s(self.cluster)
                used_us = {role: (used[role] - before[role]) * 1e6 for role in used}
                count = len(done.latencies_s)
                turns[side.name].append(
                    Turn(done.rate_per_s, {role: us / count for role, us in used_us.items()})
                )
        return turns

    async def count_missing(self, appended: dict[str, int]) -> dict[str, int]:
        """How many of so many acknowledged records lie beyond the end of each log."""
        client = RestClient(self.cluster.state()["read_url"])
        try:
            tails = {name: await client.find_tail("default", name) for name in appended}
        finally:
            await client.close()
        return {name: max(0, count - tails[name]) for name, count in appended.items()}

    async def _measure(
        self, seconds: float, *, strikes: tuple[str, str] | None = None
    ) -> dict[str, Outcome]:
        """A load on both at the same time; the fault comes when it is under way."""
        before = await self._read_versions()
        memory: dict[str, list[int]] = {side.name: [] for side in self.sides}
        sampling = asyncio.create_task(self._sample(memory))
        tasks = [asyncio.create_task(self._load(side, seconds)) for side in self.sides]
        try:
            if strikes is not None:
                await let_pass(LEAD_S, what="the load begins")
                self._strike(*strikes)
            loads = await asyncio.gather(*tasks)
        finally:
            sampling.cancel()
            await asyncio.gather(sampling, *tasks, return_exceptions=True)
        after = await self._read_versions()
        return {
            side.name: Outcome(
                load.latencies_s,
                sum(load.failed.values()),
                after[side.name].count_writes(before[side.name]),
                after[side.name].epoch_count - before[side.name].epoch_count,
                memory[side.name],
            )
            for side, load in zip(self.sides, loads, strict=True)
        }

    async def _load(self, side: Side, seconds: float) -> LoadResult:
        spec = LoadSpec(
            [side.url], seconds, rate_per_s=self._rate_per_s, body_bytes=RECORD_BYTES
        )  # fmt: skip
        return await asyncio.to_thread(run_load, spec, may_fail=True)

    async def _sample(self, memory: dict[str, list[int]]) -> None:
        while True:
            for side in self.sides:
                pid = self.cluster.pid(side.owner)
                pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
                memory[side.name].append(pages * resource.getpagesize())
            await let_pass(SAMPLE_S, what="between two samples")

    async def _read_versions(self) -> dict[str, LogVersions]:
        return {side.name: await read_versions(self.cluster, side.log_id) for side in self.sides}

    async def choose_victim(self) -> str:
        """A bookie that both logs write to now."""
        async with asyncio.timeout(HANG_S):
            while not (common := await self._list_striped() & await self.list_flexible()):
                side = self._side("flexible")
                await close_segment(self.cluster, side.name)
                await asyncio.to_thread(run_load, LoadSpec([side.url], 0.5, 1))
        return min(common)

    async def _list_striped(self) -> set[str]:
        """The ensemble of the striped log."""
        segment = await self._read_newest(self._side("striped"))
        assert isinstance(segment, Segment)
        return {str(member.bookie) for member in segment.fragments[-1].ensemble}

    async def list_flexible(self) -> set[str]:
        """Who has the newest entry of the flexible log: its block's copyset, while that lasts."""
        held = await self._read_flexible()
        ends = {name: ranges[-1][1] if ranges else NOTHING for name, ranges in held.items()}
        return {name for name, end in ends.items() if end == max(ends.values())}

    async def count_flexible(self) -> dict[str, int]:
        """How many entries of the flexible log's newest segment each bookie has."""
        held = await self._read_flexible()
        return {
            name: sum(last - first + 1 for first, last in ranges) for name, ranges in held.items()
        }

    async def _read_flexible(self) -> dict[str, list[tuple[int, int]]]:
        """The ranges of entries of the flexible log's newest segment that each bookie has."""
        ledger_id = (await self._read_newest(self._side("flexible"))).ledger_id
        held = {}
        async with httpx.AsyncClient(timeout=30) as http:
            for name in self.cluster.ids("bookie"):
                url = self.cluster.process(name)["admin_url"]
                answer = await http.get(f"{url}/v1/ledgers/{ledger_id}/entries")
                held[name] = answer.json().get("ranges") or []
        return held

    async def _read_newest(self, side: Side) -> AnySegment:
        async with open_store(self.cluster) as (store, paths):
            epochs = await store.children(paths.segments(side.log_id)) or ()
            newest = max(Epoch(int(epoch)) for epoch in epochs)
            node = await store.get(paths.segment(side.log_id, newest))
        assert node is not None
        return read_any_segment(node.data)

    def _side(self, name: str) -> Side:
        return next(side for side in self.sides if side.name == name)

    @asynccontextmanager
    async def _striking(self, victim: str, fault: str) -> AsyncIterator[None]:
        """Whatever happens inside, the fault is over afterwards."""
        try:
            yield
        finally:
            if fault == FROZEN:
                self.cluster.send(victim, signal.SIGCONT)
            set_fault(self._data_dir(victim), None)

    def _strike(self, victim: str, fault: str) -> None:
        if fault == FROZEN:
            self.cluster.send(victim, signal.SIGSTOP)
        else:
            set_fault(self._data_dir(victim), fault)

    def _data_dir(self, bookie: str) -> str:
        return str(self.cluster.process(bookie)["data_dir"])

    async def _wait_healed(self) -> None:
        """Until every bookie says that it takes entries."""

        async def is_healed() -> bool:
            async with open_store(self.cluster) as (store, paths):
                names = [f"{paths.available}/{one}" for one in self.cluster.ids("bookie")]
                nodes = [await store.get(name) for name in names]
            return all(node and json.loads(node.data)["state"] == "rw" for node in nodes)

        await ask_until(is_healed, HANG_S, "every bookie to be well again")


@asynccontextmanager
async def figures_of(cluster: LocalCluster, rate_per_s: float) -> AsyncIterator[Figures]:
    """A started cluster made ready: bookies that can have faults, two logs, an owner for each."""
    await asyncio.to_thread(cluster.start_anew, *cluster.ids("bookie"), wrap=faulty)
    owners = dict(zip(SIDES, cluster.ids("sequencer"), strict=True))
    sides = []
    for name in SIDES:
        log_id = LogId(int(await create_log(cluster, name, {"copysets": name})))
        url = f"{cluster.state()['write_url']}/v1/namespaces/default/logs/{name}/records"
        sides.append(Side(name, log_id, owners[name], url))
        await asyncio.to_thread(run_load, LoadSpec([url], 0.5, 4, body_bytes=RECORD_BYTES))
    await _give(cluster, owners)
    yield Figures(cluster, sides, rate_per_s)


async def _give(cluster: LocalCluster, owners: dict[str, str]) -> None:
    """Hand each log to its owner."""
    client = RestClient(cluster.state()["admin_url"])

    async def is_given() -> bool:
        found = await owners_of(cluster)
        for log, owner in owners.items():
            if found.get(log) != {owner}:
                await client.post_json(
                    f"/v1/cluster/logs/default/{log}/hand-over", {"to": owner}
                )  # fmt: skip
                return False
        return True

    try:
        await ask_until(is_given, HANG_S, "each log to be its owner's")
    finally:
        await client.close()


# --- How it is shown -----------------------------------------------------------------------------


def list_figures(found: Comparison) -> list[Figure]:
    """Of one fault: the flexible log's with targets, the striped one's beside them."""
    figures = []
    for side in SIDES:
        is_judged = side == "flexible"
        calm, struck = found.calm[side], found.struck[side]
        calm_ms = find_ms(calm.latencies_s, 99)

        def figure(
            name: str, value: float, unit: str, target: Target, *, is_judged: bool = is_judged,
            side: str = side,
        ) -> Figure:  # fmt: skip
            label = f"{side}: {name}"
            return Figure(found.fault, label, value, unit, target=target if is_judged else None)

        figures += [
            Figure(found.fault, f"{side}: p50 before", find_ms(calm.latencies_s, 50), "ms"),
            Figure(found.fault, f"{side}: p50", find_ms(struck.latencies_s, 50), "ms"),
            Figure(found.fault, f"{side}: p99 before", calm_ms, "ms"),
            figure(
                "p99", find_ms(struck.latencies_s, 99), "ms",
                at_most(P99_RATIO_MAX * calm_ms),
            ),
            Figure(found.fault, f"{side}: longest", find_ms(struck.latencies_s, 100), "ms"),
            figure("failed appends", struck.failed_count, "", at_most(0)),
            figure("writes of its metadata", struck.write_count, "", at_most(0)),
            figure("epochs", struck.epoch_count, "", at_most(0)),
            Figure(found.fault, f"{side}: owner's memory", struck.memory_bytes[-1] / 1e6, "MB"),
            figure("growth of it", struck.growth_mb, "MB", at_most(MEMORY_MB_MAX)),
        ]  # fmt: skip
    return figures


def list_rate_figures(turns: dict[str, list[Turn]]) -> list[Figure]:
    """As much as each log takes, in turns; the ratio is that of pairs."""
    pairs = list(zip(turns["flexible"], turns["striped"], strict=True))
    ratio = statistics.median(mine.rate_per_s / other.rate_per_s for mine, other in pairs)
    figures = []
    for side in SIDES:
        label = f"{side}: {IN_FLIGHT} in flight"
        rate_per_s = statistics.median(turn.rate_per_s for turn in turns[side])
        figures.append(Figure(RATE, label, rate_per_s, "/s"))
        for role in ROLES:
            us = statistics.median(turn.cpu_us_per_append[role] for turn in turns[side])
            figures.append(Figure(RATE, f"{side}: CPU of {role}", us, "µs each"))
    target = at_least(RATE_RATIO_MIN)
    return [*figures, Figure(RATE, "flexible to striped", ratio, "", target=target)]


async def measure(cluster: LocalCluster, options: argparse.Namespace) -> list[Figure]:
    """Everything, one after the other."""
    figures: list[Figure] = []
    appended = dict.fromkeys(SIDES, 0)
    async with figures_of(cluster, options.rate) as run:
        wanted = options.only or [*FAULTS, RATE]
        for fault in (fault for fault in FAULTS if fault in wanted):
            found = await run.compare(fault, options.seconds, options.rounds)
            figures += list_figures(found)
            for phase in (found.calm, found.struck):
                for side in SIDES:
                    appended[side] += len(phase[side].latencies_s)
        missing = await run.count_missing(appended)
        assert not any(missing.values()), f"acknowledged and beyond the end: {missing}"
        if RATE in wanted:
            figures += list_rate_figures(await run.compare_rates(options.turn_seconds))
    return figures


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-flexible")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each of the loads")
    parser.add_argument("--rounds", type=int, default=3, help="of a load without and one with it")
    parser.add_argument("--turn-seconds", type=float, default=5.0, help="of a turn at full rate")
    parser.add_argument("--rate", type=float, default=500.0, help="appends a second to each log")
    parser.add_argument("--only", action="append", choices=[*FAULTS, RATE], help="may be repeated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    options = parser.parse_args()
    watch = CpuWatch()
    with tempfile.TemporaryDirectory() as folder:
        machine: dict[str, Any] = describe_machine(Path(folder))
        with running_plain_cluster(Path(folder) / "c", *FLAGS) as cluster:
            figures = asyncio.run(measure(cluster, options))
    machine["foreign_cpu_ratio"] = watch.find_foreign_ratio()
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    sys.stdout.write(
        f"{now}: {options.rate:g} appends of {RECORD_BYTES} bytes a second to each log, "
        f"{options.rounds} rounds of {options.seconds:g} s; {json.dumps(machine)}\n\n"
        f"{format_table(figures)}\n"
    )
    if options.json is not None:
        document = {"machine": machine, "figures": [figure.to_json() for figure in figures]}
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
