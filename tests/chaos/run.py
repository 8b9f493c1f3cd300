"""One chaos run: a cluster, loads, a nemesis; then peace, complete reads, and the judge.

Two loads: one keeps the cluster at work, one has quiet logs and readers who wait (`waiters`). After
the last fault everything is continued, healed and started again; the loads settle their open
appends and say a last word to every log; fresh readers read every log whole through all read
proxies, one of which has just been started anew; every copy of every entry is counted on the
bookies, and where all has to be repaired, again until it is. All of it is bounded in time. A
violation that is seen meanwhile ends the faults (`evidence`).

Called by `trials`. Source: docs/testing.md "Chaos".
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from duramen.client.credentials.credential import NOTHING_SHOWN, make_credential
from duramen.client.rest_client import RestClient
from duramen.client.retry import repeat_while_refused
from duramen.cluster.layout import CLUSTER_NAME
from duramen.cluster.supervisor import ClusterError
from duramen.errors import DuramenError
from duramen.runtime.embedded_zookeeper import EmbeddedServerError
from duramen.runtime.http_client import PeerError
from tests.chaos.abilities import Abilities, find_abilities, knows_what_suffices, run_cli
from tests.chaos.cluster import ChaosCluster
from tests.chaos.copies import CopyCount
from tests.chaos.delivery import Delivered, Stalls, follow_log, judge_deliveries
from tests.chaos.disks import DiskHands
from tests.chaos.evidence import Evidence
from tests.chaos.history import (
    FINAL,
    HistoryFile,
    Line,
    history_path,
    read_clock_ns,
    read_history,
    read_lines,
)
from tests.chaos.judge import LogJudge, Violation, judge
from tests.chaos.layout import FLAT, Layout
from tests.chaos.load import NAMESPACE, SETTLE_S, LoadOptions, read_once
from tests.chaos.load_process import END_S, LoadProcess
from tests.chaos.nemesis import Nemesis
from tests.chaos.repairs import RepairTally
from tests.chaos.replicas import Replicas
from tests.chaos.report import Summary, summarize
from tests.chaos.schedule import LONG_S, PAUSE_S_MAX, Step, draw_steps
from tests.chaos.turning import Turning
from tests.chaos.waiting import wait_at_most
from tests.combinations import FIRST, Combination
from tests.ticker import Ticker, ticking
from tests.waiting import comes_true

FAULTS_FILE: Final = "faults.jsonl"
STALLS_FILE: Final = "stalls.jsonl"

_READY_S: Final = 90.0
_REPAIRED_S: Final = 240.0
_COUNT_AGAIN_S: Final = 3.0
_FINAL_READ_S: Final = 90.0
_FINAL_READ_BYTES: Final = 1 << 20
_FINAL_CONCURRENCY: Final = 4
_LOAD_START_S: Final = 120.0
"""Until a load's process runs and every log has acknowledged. Beside twenty busy processes half a
minute of it is the start of that process. It judges nothing: without it there is no verdict."""
_BEYOND_S: Final = 900.0
"""The whole run takes at most this much more than its faults: start, convergence, reads, stop."""

# Small segments: rolls, recoveries and many epochs belong to every run.
_ROLL: Final = {"interval": "10s", "size": "256KiB"}

_WAITED_FOR_MS: Final = {
    "rolling": 500, "brisk": 500, "quiet-0": 20_000, "quiet-1": 20_000, "still": 120_000,
}  # fmt: skip
"""Logs at whose end readers wait, and the time between two appends, half as long up to half as
long again. Brisk ones give figures; in quiet ones a wait ends without a record, or not much later
than it; the still one says nothing for longer than anything is waited for."""

_ROLLING: Final = "rolling"
"""Of these, only this one rolls as those of the other load do; others keep a segment open."""


@dataclass(frozen=True)
class ChaosOptions:
    """One run."""

    seed: int
    seconds: float
    layout: Layout = FLAT
    logs: int = 10
    writers: int = 14
    readers: int = 6
    think_ms: int = 40
    has_producers: bool = False
    truncates: bool = False
    has_waiters: bool = False
    """Quiet logs with readers who wait, beside the others."""

    pause_s_max: float = PAUSE_S_MAX
    only: tuple[str, ...] = ()
    """Kinds of faults, such as "kill sequencer"; empty for all."""

    expects_repaired: bool = False
    """Every entry must have its Qw good copies in the right places in the end."""

    combination: Combination = FIRST
    """What kind all logs are."""

    is_secure: bool = False
    """Everybody has an identity and is asked for it."""

    turns: bool = False
    """Certificates and tokens turn meanwhile."""

    def __post_init__(self) -> None:
        assert not self.has_producers or self.is_ordered, "producers need ordered logs (R29)"
        assert self.is_secure or not self.turns, "without security nothing turns"

    @property
    def is_ordered(self) -> bool:
        """Whether what is acknowledged is shown, and nothing is a hole."""
        return self.combination.ack_mode == "ordered"


class RunError(Exception):
    """The run could not be carried out, or the cluster did not come back; says what was awaited."""


async def run_chaos(
    options: ChaosOptions, folder: Path, say: Callable[[str], None] = lambda text: None
) -> Summary:
    """Carry a run out and judge it.

    Raises:
        RunError: no verdict, as something did not happen in time.
    """
    run = _Run(options, folder, say)
    limit_s = options.seconds + _BEYOND_S
    limit = asyncio.timeout(limit_s)
    try:
        async with limit:
            await run.carry_out()
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise RunError(run.report(f"no end within {limit_s:g} s")) from error
    except (DuramenError, PeerError, RunError) as error:
        raise RunError(run.report(str(error))) from error
    return await asyncio.to_thread(run.judge)


class _Run:
    def __init__(self, options: ChaosOptions, folder: Path, say: Callable[[str], None]) -> None:
        self._options = options
        self._folder = folder
        self._say = say
        self._began_ns = read_clock_ns()
        self._logs = [f"chaos-{n}" for n in range(options.logs)]
        self._waited_for = list(_WAITED_FOR_MS) if options.has_waiters else []
        self._loads: dict[str, LoadProcess] = {}
        self.evidence = Evidence()
        self._struck_s = options.seconds
        self._copies = CopyCount()
        self._turning: Turning | None = None
        self._credential = NOTHING_SHOWN
        self._repairs: dict[str, int] = {}

    async def carry_out(self) -> None:
        """Everything but the verdict; nothing runs any more when it returns."""
        options = self._options
        cluster = ChaosCluster(
            self._folder / "cluster", options.layout, self._note, is_secure=options.is_secure
        )
        replicas = Replicas(cluster.zookeeper, cluster.keys)
        tally = RepairTally(cluster)
        faults = HistoryFile(self._folder / FAULTS_FILE)
        held = ExitStack()
        try:
            ticker = held.enter_context(ticking(self._folder))[0] if self._waited_for else None
            try:
                await cluster.start()
            except (ClusterError, EmbeddedServerError) as error:
                raise RunError(str(error)) from error
            if cluster.keys is not None:
                self._turning = Turning(cluster, cluster.keys, self._blame)
                await self._turning.begin()
                self._credential = make_credential(token_file=cluster.keys.token_file)
            await replicas.start()
            abilities = await find_abilities(cluster, self._note)
            if options.expects_repaired and not abilities.repairs:
                raise RunError("everything is to be repaired, and this product repairs nothing")
            tally.start()
            await self._create_logs(cluster)
            await self._start_loads(cluster)
            disks = DiskHands(
                cluster, options.layout, replicas=replicas, logs=self._logs,
                abilities=abilities, on_violation=self._blame,
            )  # fmt: skip
            nemesis = Nemesis(
                cluster, options.layout, disks, turning=self._turning, faults=faults,
                last_ack_ns=self._last_ack_ns, on_event=self._note,
            )  # fmt: skip
            steps = draw_steps(
                options.seed, options.layout, pause_s_max=options.pause_s_max, only=options.only,
                is_long=options.seconds >= LONG_S, turns=options.turns,
            )  # fmt: skip
            await self._strike(nemesis, steps)
            await self._converge(cluster)
            if ticker is not None:
                await asyncio.to_thread(self._write_stalls, ticker)
            await self._read_all(cluster)
            await self._count_copies(cluster, replicas, abilities)
        finally:
            for load in self._loads.values():
                await load.stop()
            held.close()
            faults.close()
            self._repairs = await tally.stop()
            await replicas.close()
            await cluster.stop()

    def judge(self) -> Summary:
        """The verdict on every log, one after the other: memory holds one at a time."""
        verdicts = []
        for log in self._logs:
            lines = read_history(self._folder, log)
            judged = self._judge_log(log, lines)
            verdicts.append(judged.verdict())
        delivered, found = self._judge_waited_for()
        return summarize(
            verdicts,
            self._folder / FAULTS_FILE,
            self._struck_s,
            [*self.evidence.violations, *found],
            layout=self._options.layout,
            only=self._options.only,
            turns=self._options.turns,
            copies=self._copies,
            repairs=self._repairs,
            delivered=delivered,
        )

    def _judge_log(self, log: str, lines: Iterable[Line]) -> LogJudge:
        options = self._options
        return judge(
            log, lines, must_be_definite=options.has_producers, is_ordered=options.is_ordered
        )

    def _judge_waited_for(self) -> tuple[Delivered | None, list[Violation]]:
        """What waiters got, and what is wrong with their logs; those are not measured by load."""
        if not self._waited_for:
            return None, []
        found: list[Violation] = []
        followed = []
        for log in self._waited_for:
            lines = list(read_history(self._folder, log))
            found += self._judge_log(log, lines).violations
            followed.append(follow_log(log, lines))
        stalls = [(line["t0_ns"], line["t1_ns"]) for line in read_lines(self._folder / STALLS_FILE)]
        faults = list(read_lines(self._folder / FAULTS_FILE))
        delivered = judge_deliveries(followed, faults, Stalls(stalls))
        return delivered, [*found, *delivered.violations]

    def report(self, reason: str) -> str:
        """Why there is no verdict, and what was seen all the same."""
        seen = [f"VIOLATION {v.code} {v.log}: {v.text}" for v in self.evidence.violations]
        return "; ".join([reason, *seen])

    # --- steps -----------------------------------------------------------------------------------

    async def _create_logs(self, cluster: ChaosCluster) -> None:
        client = RestClient(cluster.url("writeproxy-0"), credential=self._credential)
        try:
            await repeat_while_refused(
                lambda: client.ensure_namespace(NAMESPACE, {}), timeout_s=60, is_read=True
            )
            kind = self._options.combination
            says, forms = knows_what_suffices(), self._options.layout.list_forms(kind.copysets)
            for number, log in enumerate([*self._logs, *self._waited_for]):
                replication = forms[number % len(forms)].format(says_what_suffices=says)
                config: dict[str, Any] = {"replication": replication, **kind._asdict()}
                if log in self._logs or log == _ROLLING:
                    config["roll"] = _ROLL
                create = partial(client.ensure_log, NAMESPACE, log, config)
                await repeat_while_refused(create, timeout_s=60, is_read=True)
        finally:
            await client.close()

    async def _start_loads(self, cluster: ChaosCluster) -> None:
        options = self._options
        work = LoadOptions(
            folder=str(self._folder),
            write_urls=[cluster.url(node_id) for node_id in cluster.ids("writeproxy")],
            read_urls=[cluster.url(node_id) for node_id in cluster.ids("readproxy")],
            logs=self._logs,
            writers=options.writers,
            readers=options.readers,
            seed=options.seed,
            think_ms=options.think_ms,
            has_producers=options.has_producers,
            truncates=options.truncates,
            ack_mode=options.combination.ack_mode,
            token_file=None if cluster.keys is None else str(cluster.keys.token_file),
        )
        self._loads["load"] = LoadProcess(work, self.evidence.note_told)
        if self._waited_for:
            waiting = replace(
                work, part="waiters", logs=self._waited_for, writers=len(self._waited_for),
                readers=0, truncates=False, think_ms_of=_WAITED_FOR_MS, has_waiters=True,
            )  # fmt: skip
            self._loads["waiters"] = LoadProcess(waiting, self.evidence.note_told)
        for load in self._loads.values():
            if not await load.start(_LOAD_START_S):
                raise RunError(f"not every log acknowledges: {load.codes} {load.read_log()}")

    async def _strike(self, nemesis: Nemesis, steps: Iterator[Step]) -> None:
        """All faults of the schedule, or those until a violation is seen."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        faults = nemesis.run(steps, began + self._options.seconds)
        if not await self.evidence.wait_unless(faults):
            self._struck_s = loop.time() - began
            first = self.evidence.violations[0]
            self._note(f"no more faults: VIOLATION {first.code} {first.log}: {first.text}")

    async def _converge(self, cluster: ChaosCluster) -> None:
        """Peace: everything runs, the load settles what is open, and ends."""
        late = await cluster.wait_ready(_READY_S)
        if late:
            raise RunError(f"not ready {_READY_S:g} s after the faults: {', '.join(late)}")
        self._note("the faults are over: the loads settle")
        await asyncio.gather(*(self._finish(load) for load in self._loads.values()))

    async def _finish(self, load: LoadProcess) -> None:
        try:
            status = await load.finish()
        except TimeoutError:
            raise RunError(f"a load did not end within {END_S:g} s") from None
        if status == 1 and not load.read_log():
            text = f"not every log took an append within {SETTLE_S:g} s after the faults"
            self.evidence.note(Violation("liveness", "*", text))
        elif status:
            raise RunError(f"a load ended with {status}: {load.read_log()}")

    def _write_stalls(self, ticker: Ticker) -> None:
        """Keep what the machine did not give until now; called in a thread, as it waits."""
        ticker.stalled_s(0.0, time.monotonic())
        file = HistoryFile(self._folder / STALLS_FILE)
        for stall in list(ticker.stalls):
            file.write({"t0_ns": int(stall.begin_s * 1e9), "t1_ns": int(stall.end_s * 1e9)})
        file.close()

    async def _read_all(self, cluster: ChaosCluster) -> None:
        """Every log whole, by fresh readers of all read proxies, one of them new itself."""
        fresh = cluster.ids("readproxy")[-1]
        cluster.kill(fresh)
        await comes_true(lambda: fresh not in cluster.pids().values(), 10)
        cluster.release(fresh)
        late = await cluster.wait_ready(_READY_S)
        if late:
            raise RunError(f"not ready: {', '.join(late)}")
        self._note("complete reads")
        limit = asyncio.Semaphore(_FINAL_CONCURRENCY)

        async def read_log(log: str) -> None:
            async with limit:
                file = HistoryFile(history_path(self._folder, log, FINAL))
                try:
                    for node_id in cluster.ids("readproxy"):
                        name = f"{FINAL}-{node_id}"
                        await self._read_whole(cluster.url(node_id), log, name, file)
                    await self._list_segments(cluster, log, file)
                finally:
                    file.close()

        await asyncio.gather(*map(read_log, [*self._logs, *self._waited_for]))

    async def _read_whole(self, url: str, log: str, name: str, file: HistoryFile) -> None:
        client = RestClient(url, credential=self._credential)
        position = "head"
        expected = self._loads["waiters" if log in self._waited_for else "load"].ends[log]
        last: Exception | None = None
        try:
            async with asyncio.timeout(_FINAL_READ_S):
                while True:
                    try:
                        line, position = await read_once(
                            client, log, position, name, most_bytes=_FINAL_READ_BYTES, wait_ms=0
                        )
                    except (DuramenError, PeerError) as error:
                        last = error
                        await wait_at_most(0.2)
                        continue
                    if line is not None:
                        file.write(line)
                        if line["tail"] and line["end"] >= expected:
                            return
        except TimeoutError:
            text = f"{name} came to {position} within {_FINAL_READ_S:g} s, not to {expected}"
            self.evidence.note(Violation("liveness", log, f"{text}; last error: {last}"))
        finally:
            await client.close()

    async def _list_segments(self, cluster: ChaosCluster, log: str, file: HistoryFile) -> None:
        url = cluster.url(cluster.ids("readproxy")[0])
        client = RestClient(url, credential=self._credential)
        names = ("epoch", "state", "start_seq_num", "records", "last_entry")
        try:
            answer = await repeat_while_refused(
                lambda: client.list_segments(NAMESPACE, log), timeout_s=30, is_read=True
            )
        finally:
            await client.close()
        segments = [
            {name: s[name] for name in names} | {"holes": s.get("holes", [])}
            for s in answer["segments"]
        ]
        file.write({"op": "segments", "log": log, "segments": segments})

    async def _count_copies(
        self, cluster: ChaosCluster, replicas: Replicas, abilities: Abilities
    ) -> None:
        """Every copy of every entry, asked of the bookies; again until all is repaired."""
        loop = asyncio.get_running_loop()
        # A run that has failed does not wait for more.
        expects_repaired = self._options.expects_repaired and not self.evidence.is_there
        self._note("copies are counted")
        self._copies = await replicas.count(self._logs)
        deadline = loop.time() + (_REPAIRED_S if expects_repaired else 0)
        while not self._copies.is_whole and loop.time() < deadline:
            missing = self._copies.wanted - self._copies.copies
            self._note(f"{missing} copies are missing")
            await wait_at_most(_COUNT_AGAIN_S)
            self._copies = await replicas.count(self._logs)
        self.evidence.note(*self._copies.violations(expects_repaired=expects_repaired))
        if expects_repaired and abilities.verifies:
            where = ["--zookeeper", cluster.zookeeper, "--cluster", CLUSTER_NAME]
            if cluster.keys is not None:
                where += ["--identity", str(cluster.keys.operator_folder)]
            for log in self._logs:
                status, text = await run_cli("verify", f"{NAMESPACE}/{log}", *where)
                if (status == 0) != self._copies.is_whole:
                    said = f"`duramen verify` ends with {status}, against what was counted: {text}"
                    self.evidence.note(Violation("verify", log, said))

    # --- what goes on ----------------------------------------------------------------------------

    def _last_ack_ns(self) -> dict[str, int]:
        return self._loads["load"].last_ack_ns

    def _blame(self, code: str, text: str) -> None:
        self.evidence.note(Violation(code, "*", text))

    def _note(self, text: str) -> None:
        self._say(f"{(read_clock_ns() - self._began_ns) / 1e9:7.1f} s  {text}")


def end_on_signals(task: asyncio.Task[Any]) -> None:
    """SIGTERM and SIGHUP end a run as Ctrl-C does: in order, leaving nothing."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, task.cancel)
