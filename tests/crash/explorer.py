"""Every state that a power cut may leave during a workload, each one started and judged.

A *point* is just before a sync, and the end: the states before a write, a rename or a removal are
among those before the sync that follows, with the same promises. A workload does the same each
time: it runs once to count the states of each point, and once to judge as many as the budget
allows, so that points with few states are tried whole and the others share what is left.

A state is judged by a start: it must come up, break no promise, take a new entry, and show the same
after the power goes again. Of some, every point of that start is tried too. At each point the
process is also killed and started over the page cache, and the power cut then.

Called by `test_crash_states`. The disk is `disk`'s, the promises are `promises`'s.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from tests.crash.disk import Disk, Operation, crash_states
from tests.crash.promises import Promises, ledger
from tests.crash.runs import Faulty, OpenEngine, Run, Stop, Workload

PROBE = ledger(99, 1)
"""What a started engine is given, to see that it works."""

_END = "end"
_POINTS = ("fdatasync", "fsync", "fsync_directory", _END)
_NESTED_EVERY = 20
_NESTED_STATES = 3
_STATES_AFTER_KILL = 6


@dataclass
class Figures:
    """What was judged: states of crashes of the workload (of how many that there are), of crashes
    during the start after one of them, and of crashes after a start after a kill."""

    point_count: int = 0
    state_count: int = 0
    total_count: int = 0
    nested_count: int = 0
    kill_count: int = 0

    def __str__(self) -> str:
        total = self.total_count
        of = f"{total:,}" if total < 10**9 else f"{total:.0e}"
        return (
            f"{self.point_count} points, {self.state_count:,} of {of} states, "
            f"{self.nested_count:,} of crashes at starts, {self.kill_count:,} after kills"
        )


class Explorer:
    """One workload on one kind of engine.

    Args:
        make_disk: an empty disk.
        open_engine: starts an engine on a disk.
        seed: of every choice.
    """

    def __init__(
        self,
        workload: Workload,
        make_disk: Callable[[], Disk],
        open_engine: OpenEngine,
        seed: int = 0,
    ) -> None:
        self.figures = Figures()
        self._workload = workload
        self._make_disk = make_disk
        self._open_engine = open_engine
        self._seed = seed
        self._rng = random.Random(seed)

    def survey(self) -> list[int]:
        """The number of states at each point, up to a fault: `run` will meet it, too."""
        totals: list[int] = []

        def count(run: Run, operation: Operation) -> None:
            totals.append(crash_states(run.disk, 2, self._rng).total_count)

        with suppress(Faulty):
            self._play(count)
        return totals

    def run(self, limit: int) -> Figures:
        """Judge so many states of each point, all if there are no more.

        Raises:
            Faulty: with the workload, the point and the choice that led to it.
        """

        def judge(run: Run, operation: Operation) -> None:
            point = f"point {self.figures.point_count}, before {operation.name} {operation.path}"
            self._judge_point(run, point, limit)

        self._play(judge)
        return self.figures

    def _play(self, on_point: Callable[[Run, Operation], None]) -> None:
        run = Run(self._make_disk(), self._open_engine, random.Random(self._seed))
        faults: list[Faulty] = []

        def hook(operation: Operation) -> None:
            if operation.name not in _POINTS:
                return
            try:
                on_point(run, operation)
            except Faulty as fault:
                faults.append(fault)  # the engine takes it for an error of the disk
                raise

        run.disk.hook = hook
        failure: Exception | None = None
        try:
            self._workload(run)
            hook(Operation(_END, ""))
        except Exception as error:
            failure = error
        # Where the workload expects an error, it takes a fault for it: what was judged counts.
        fault = faults[0] if faults else failure
        if fault is not None:
            raise Faulty(f"{self._workload.__name__}, seed {self._seed}: {fault}") from fault

    # --- Judging ---------------------------------------------------------------------------------

    def _judge_point(self, run: Run, point: str, limit: int) -> None:
        figures = self.figures
        states = crash_states(run.disk, limit, self._rng)
        figures.point_count += 1
        figures.total_count += states.total_count
        for choice in states.choices():
            figures.state_count += 1
            where = f"{point}, choice {choice}"
            if figures.state_count % _NESTED_EVERY == 0:
                self._judge_start(states.make(choice), run.promises, where)
            self._judge(states.make(choice), run.promises, where)
        self._judge_kill(run, f"{point}, killed")

    def _judge_kill(self, run: Run, where: str) -> None:
        """Start over the page cache, then cut the power: what was shown stays, synced or not."""
        again = Run(run.disk.copy(), self._open_engine, self._rng, run.promises.copy())
        try:
            again.start()
        except Faulty as fault:
            raise Faulty(f"{where}: {fault}") from fault
        for state in crash_states(again.disk, _STATES_AFTER_KILL, self._rng):
            self.figures.kill_count += 1
            self._judge(state, again.promises, f"{where}, started, cut off")

    def _judge_start(self, disk: Disk, promises: Promises, where: str) -> None:
        """Cut the power at every point of a start."""

        def judge(operation: Operation) -> None:
            if operation.name not in _POINTS:
                return
            for state in crash_states(disk, _NESTED_STATES, self._rng):
                self.figures.nested_count += 1
                self._judge(state, promises, f"{where}, start, before {operation}")

        disk.hook = judge
        self._open_engine(disk)

    def _judge(self, disk: Disk, promises: Promises, where: str) -> None:
        """Start on a disk, work, cut the power and start again."""
        run = Run(disk, self._open_engine, self._rng, promises.copy())
        try:
            run.start()
            run.add(PROBE, [0, 1], size_bytes=600)
            if self._rng.random() < 0.25:
                run.restart(Stop.CLEAN)
            run.restart(Stop.POWER)
        except Faulty as fault:
            raise Faulty(f"{where}: {fault}") from fault
        finally:
            run.disk.hook = None


def share_out(totals: list[int], budget: int) -> int:
    """The limit per point, 2 at least, with which about so many states are judged."""
    limit = 2
    while sum(min(total, limit) for total in totals) < budget and limit < max(totals, default=0):
        limit += 1 + limit // 50
    return limit
