"""One lane of a soak: a few logs are made, worked on, judged, verified and deleted; then the next.

A generation of logs lives for some minutes. Its load is that of the chaos runs, paced, with rolls;
every other generation is truncated all the time, the others are archived and let go of their hot
copies. At its end everything is read whole and judged (nothing lost, doubled, reordered), and
`duramen verify` has to say the same of each log. So a violation is seen within a generation, and
neither histories nor the memory for judging them grow with the length of the run.

Called by `run`, which runs two lanes half a generation apart. Source: docs/testing.md "Soak".
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from duramen.client.rest_client import RestClient
from duramen.client.retry import repeat_while_refused
from duramen.cluster.layout import CLUSTER_NAME
from tests.chaos.abilities import run_cli
from tests.chaos.judge import Violation
from tests.chaos.load import NAMESPACE, LoadOptions
from tests.pauses import let_pass
from tests.process.chaos_load import judge_logs, running_load
from tests.soak.cluster import SoakCluster

LOGS: Final = 3
WRITERS: Final = 6
READERS: Final = 3
ARCHIVED: Final = "archived"
"""In the names of the logs that are."""

_ROLL: Final = {"interval": "5s", "size": "256KiB"}
_REPLICATION: Final = {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2}
_RETENTION: Final = {"age": None, "truncated": "5s"}
_RECORD_BYTES: Final = 400
_ASK_S: Final = 60.0


@dataclass
class Tally:
    """What the generations of a run came to."""

    generations: int = 0
    verified: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    segments: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)


class Generation(NamedTuple):
    """Logs that have been worked on, with their histories."""

    folder: Path
    logs: list[str]
    rate_per_s: float


def pause_more_ms(rate_per_s: float, wanted_per_s: float) -> float:
    """By how much a writer's pause is to change, where all of them have had this rate."""
    return 1000 * WRITERS * (1 / wanted_per_s - 1 / max(rate_per_s, 0.1))


class Lane:
    """Generations of logs, one after the other.

    Args:
        number: of the lane; which generations are archived depends on it.
        tally: what they came to, shared by the lanes.
        logs: the names of all logs that are there, kept by the lanes.

    Attributes:
        rates_per_s: appends acknowledged, of each generation that worked to its end.
    """

    def __init__(
        self,
        cluster: SoakCluster,
        folder: Path,
        *,
        number: int,
        seed: int,
        tally: Tally,
        logs: set[str],
        say: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._folder = folder
        self._number = number
        self._seed = seed
        self._tally = tally
        self._logs = logs
        self._say = say
        self._generation = 0
        self.rates_per_s: list[float] = []

    async def run(self, seconds: float, rate_per_s: float, stop: asyncio.Event) -> None:
        """Generations of that length and rate until told to stop; all of them are judged.

        One is judged while the next one works, so that the load goes on.

        Raises:
            AssertionError: the load does not go on, or does not settle.
        """
        think_ms = 1000 * WRITERS / rate_per_s
        async with asyncio.TaskGroup() as group:
            before: asyncio.Task[None] | None = None
            while not stop.is_set():
                is_archived = (self._number + self._generation) % 2 == 0
                made = await self.work(seconds, round(think_ms), stop, is_archived=is_archived)
                if not stop.is_set():
                    self.rates_per_s.append(made.rate_per_s)
                # What an append itself takes is known now; by half, as it is otherwise soon.
                more_ms = pause_more_ms(made.rate_per_s, rate_per_s) / 2
                think_ms = max(0.0, think_ms + more_ms)
                if before is not None:
                    await before
                before = group.create_task(self.close(made))

    async def work(
        self,
        seconds: float,
        think_ms: int,
        stop: asyncio.Event,
        *,
        is_archived: bool = False,
        writers: int = WRITERS,
    ) -> Generation:
        """Make a generation of logs and put load on it."""
        kind = ARCHIVED if is_archived else "truncated"
        name = f"soak-{self._number}-{self._generation}"
        logs = [f"{name}-{kind}-{n}" for n in range(LOGS)]
        self._generation += 1
        folder = self._folder / name
        folder.mkdir()
        await self._create(logs, is_archived=is_archived)
        options = LoadOptions(
            folder=str(folder),
            write_urls=[self._cluster.url(node) for node in self._cluster.ids("writeproxy")],
            read_urls=[self._cluster.url(node) for node in self._cluster.ids("readproxy")],
            logs=logs, writers=writers, readers=READERS,
            seed=self._seed + self._number + 1000 * self._generation,
            think_ms=think_ms, record_bytes=_RECORD_BYTES,
            has_producers=True, truncates=not is_archived,
        )  # fmt: skip
        async with running_load(options) as load:
            loop = asyncio.get_running_loop()
            began, before = loop.time(), load.append_count
            await let_pass(seconds, what="a generation's load", until=stop)
            rate = (load.append_count - before) / max(loop.time() - began, 1.0)
            await load.finish()
            self._tally.codes.update(load.codes)
        self._say(f"{name} {kind}: {rate:.0f} appends a second, pauses of {think_ms} ms")
        return Generation(folder, logs, rate)

    async def close(self, made: Generation) -> None:
        """Read, judge, verify and delete the logs of a generation."""
        await self._judge(made)
        await self._verify(made.logs)
        await self._delete(made.logs)
        self._tally.generations += 1
        if not self._tally.violations:
            await asyncio.to_thread(shutil.rmtree, made.folder)

    async def _create(self, logs: list[str], *, is_archived: bool) -> None:
        tiering = {"policy": "move", "keep_hot": "0s"} if is_archived else {"policy": "none"}
        config: dict[str, Any] = {
            "replication": _REPLICATION, "roll": _ROLL, "retention": _RETENTION, "tiering": tiering,
        }  # fmt: skip
        client = RestClient(self._cluster.url("writeproxy-0"))
        try:
            namespace = partial(client.ensure_namespace, NAMESPACE, {})
            await repeat_while_refused(namespace, timeout_s=_ASK_S, is_read=True)
            for log in logs:
                create = partial(client.ensure_log, NAMESPACE, log, config)
                await repeat_while_refused(create, timeout_s=_ASK_S, is_read=True)
                self._logs.add(log)
        finally:
            await client.close()

    async def _judge(self, made: Generation) -> None:
        url = self._cluster.url(self._cluster.ids("readproxy")[-1])
        for verdict in await judge_logs(url, made.folder, made.logs, must_be_definite=True):
            self._tally.violations += verdict.violations
            self._tally.segments += verdict.epoch_count
            self._tally.counts.update(verdict.counts)

    async def _verify(self, logs: list[str]) -> None:
        where = ("--zookeeper", self._cluster.zookeeper, "--cluster", CLUSTER_NAME)
        for log in logs:
            status, text = await run_cli("verify", f"{NAMESPACE}/{log}", *where)
            if status:
                said = f"`duramen verify` ends with {status}: {' '.join(text.split())[:500]}"
                self._tally.violations.append(Violation("verify", log, said))
            self._tally.verified += 1

    async def _delete(self, logs: list[str]) -> None:
        client = RestClient(self._cluster.url("writeproxy-1"))
        try:
            for log in logs:
                self._logs.discard(log)
                delete = partial(client.delete_log, NAMESPACE, log)
                await repeat_while_refused(delete, timeout_s=_ASK_S, is_read=True)
        finally:
            await client.close()
