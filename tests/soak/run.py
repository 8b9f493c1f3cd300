"""A soak: start, calibrate, work for hours at a third of what the machine can, look, judge, stop.

The first minute is a closed loop of many writers: what they get is the capacity of this machine,
with whatever else goes on there. Then two lanes of logs share a third of it (`lane`), the archive
works on them, and everything is looked at every few seconds (`samples`). A violation ends the run
at once, and so does a process that ended: nobody kills any here. Whatever ends it, nothing is left
running.

Called by `__main__`. Source: docs/testing.md "Soak".
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Final

from duramen.cluster.layout import ClusterSize
from duramen.cluster.supervisor import ClusterError
from duramen.errors import DuramenError
from duramen.runtime.embedded_zookeeper import EmbeddedServerError
from duramen.runtime.http_client import PeerError
from tests.chaos.layout import FLAT, Layout
from tests.chaos.load import NAMESPACE
from tests.pauses import let_pass
from tests.soak.cluster import SoakCluster
from tests.soak.lane import ARCHIVED, Lane, Tally
from tests.soak.samples import TOLERANCES, Sampler
from tests.soak.slopes import Verdict, judge_all

LAYOUT: Final[Layout] = replace(
    FLAT, size=ClusterSize(bookies=4, sequencers=2, write_proxies=2, read_proxies=2)
)
LANES: Final = 2
SHARE: Final = 1 / 3
"""Of the capacity."""

_CALIBRATION_S: Final = 60.0
_CALIBRATION_RATIO: Final = 0.15
_CALIBRATION_WRITERS: Final = 24
_GENERATIONS: Final = 12
_GENERATION_S: Final = (20.0, 600.0)
_SAMPLES: Final = 400
_SAMPLE_S: Final = (1.0, 5.0)
_JOBS_A_GENERATION: Final = 3
_ARCHIVE: Final = (
    ("archive", f"{NAMESPACE}/soak-*-{ARCHIVED}-*", "--runner", "threads",
     "--recheck-after", "0s", "--orphan-age", "1m"),
    ("retention", "--truncated", "--deleted", "--older-than", "0s", "--delay", "10s", "--remove"),
)  # fmt: skip


class SoakError(Exception):
    """The run could not go on; says why."""


_FAILURES: Final = (
    AssertionError, SoakError, ClusterError, EmbeddedServerError, DuramenError, PeerError, OSError,
)  # fmt: skip
"""What a run that cannot go on ends with; whatever else is a fault of the harness."""


@dataclass
class Outcome:
    """What there is to report, filled as the run goes on.

    Attributes:
        capacity_per_s, paced_per_s: appends acknowledged, of the closed loop and of the soak.
        jobs: of the archive, by kind and exit status.
        faults: why the run failed, beside violations and slopes.
    """

    seconds: float
    seed: int
    capacity_per_s: float = 0.0
    paced_per_s: float = 0.0
    generation_s: float = 0.0
    tally: Tally = field(default_factory=Tally)
    jobs: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    is_interrupted: bool = False

    @property
    def is_good(self) -> bool:
        """Whether it came to its end and nothing is to be blamed."""
        leaks = any(verdict.fault for verdict in self.verdicts)
        blamed = self.faults or self.tally.violations or leaks or self.is_interrupted
        return bool(self.verdicts) and not blamed


class Soak:
    """One run.

    Args:
        folder: an empty one for the cluster and the histories.
    """

    def __init__(self, seconds: float, seed: int, folder: Path, say: Callable[[str], None]) -> None:
        self.outcome = Outcome(seconds, seed)
        self._folder = folder
        self._say = say
        self._logs: set[str] = set()
        self._stop = asyncio.Event()
        self._ended: list[str] = []

    async def carry_out(self) -> None:
        """From start to verdict; the outcome holds what there is, whatever happens."""
        try:
            async with self._running() as cluster:
                sampler = Sampler(cluster, cluster.cold)
                try:
                    await sampler.start()
                    await self._soak(cluster, sampler)
                finally:
                    await sampler.close()
                    self.outcome.verdicts = judge_all(sampler.series, TOLERANCES)
        except* _FAILURES as group:
            said = (f"{type(error).__name__}: {error}" for error in flatten(group))
            self.outcome.faults += said
        finally:
            self.outcome.faults += self._ended

    async def _soak(self, cluster: SoakCluster, sampler: Sampler) -> None:
        outcome, loop = self.outcome, asyncio.get_running_loop()
        deadline = loop.time() + outcome.seconds
        await self._calibrate(cluster)
        lanes = [self._make_lane(cluster, number) for number in range(LANES)]
        await self._work(cluster, sampler, lanes, deadline)
        outcome.paced_per_s = sum(fmean(lane.rates_per_s) for lane in lanes if lane.rates_per_s)

    @contextlib.asynccontextmanager
    async def _running(self) -> AsyncIterator[SoakCluster]:
        is_stopping = False

        def on_event(text: str) -> None:
            self._say(text)
            if ": exited" in text and not is_stopping:
                self._ended.append(f"a process ended: {text}")
                self._stop.set()

        cluster = SoakCluster(self._folder / "cluster", LAYOUT, on_event)
        try:
            await cluster.start()
            yield cluster
        finally:
            is_stopping = True
            await cluster.stop()

    async def _calibrate(self, cluster: SoakCluster) -> None:
        outcome = self.outcome
        seconds = min(_CALIBRATION_S, _CALIBRATION_RATIO * outcome.seconds)
        lane = self._make_lane(cluster, LANES)
        made = await lane.work(seconds, 0, self._stop, writers=_CALIBRATION_WRITERS)
        if not made.rate_per_s:
            raise SoakError("no append was acknowledged in the closed loop")
        await lane.close(made)
        outcome.capacity_per_s = made.rate_per_s
        low, high = _GENERATION_S
        outcome.generation_s = min(max(outcome.seconds / _GENERATIONS, low), high)
        self._say(f"capacity {made.rate_per_s:.0f} appends a second")

    async def _work(
        self, cluster: SoakCluster, sampler: Sampler, lanes: Sequence[Lane], deadline: float
    ) -> None:
        """Lanes, archive and samples until the deadline, a violation or a process that ended."""
        outcome, loop = self.outcome, asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            looks = group.create_task(self._look(cluster, sampler))
            archive = group.create_task(self._archive(cluster))
            working = []
            for lane in lanes:
                rate_per_s = SHARE * outcome.capacity_per_s / LANES
                run = lane.run(outcome.generation_s, rate_per_s, self._stop)
                working.append(group.create_task(run))
                apart_s = outcome.generation_s / LANES
                await let_pass(apart_s, what="between two lanes' beginnings", until=self._stop)
            while not self._stop.is_set() and loop.time() < deadline:
                left_s = min(1.0, deadline - loop.time())
                await let_pass(left_s, what="the soak, between two looks", until=self._stop)
                if outcome.tally.violations:
                    break
            self._stop.set()
            self._say("the load settles; what is left is judged")
            await asyncio.gather(*working)
            await archive
            await looks

    async def _look(self, cluster: SoakCluster, sampler: Sampler) -> None:
        low, high = _SAMPLE_S
        pause_s = min(max(self.outcome.seconds / _SAMPLES, low), high)
        loop = asyncio.get_running_loop()
        while not self._stop.is_set():
            await sampler.take(loop.time(), sorted(self._logs))
            await let_pass(pause_s, what="between two samples", until=self._stop)

    async def _archive(self, cluster: SoakCluster) -> None:
        pause_s = self.outcome.generation_s / _JOBS_A_GENERATION
        while not self._stop.is_set():
            await let_pass(pause_s, what="between two jobs", until=self._stop)
            if self._stop.is_set():
                break
            for words in _ARCHIVE:
                status, report, said = await cluster.run_job(*words)
                self.outcome.jobs[f"{words[0]}: exit {status}"] += 1
                for name, count in report.get("segments", {}).items():
                    self.outcome.jobs[f"segments {name}"] += count
                if status:
                    self._say(f"{words[0]} ended with {status}: {said or report}")

    def _make_lane(self, cluster: SoakCluster, number: int) -> Lane:
        return Lane(
            cluster, self._folder, number=number, seed=self.outcome.seed,
            tally=self.outcome.tally, logs=self._logs, say=self._say,
        )  # fmt: skip


def flatten(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """The exceptions of a group, of its groups too."""
    found: list[BaseException] = []
    for error in group.exceptions:
        found += flatten(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
