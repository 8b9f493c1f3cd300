"""The work that audits found, in the order in which it is done, and what became of it.

A finding is a task. The most urgent task is taken first; a bound holds for all running tasks and
another one for those of each target. A task that fails is tried again after a pause that doubles. A
finding that cannot be repaired is reported once, with its ranges, and tried again only when its
facts change. What keeps copies on a bookie that drains is told with its logs. The list is bounded:
beyond the bound only the most urgent are kept, and the next round finds the others again.

Pure: time comes with the calls. Called by the auditor. Source: docs/protocol/repair.md.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from duramen.core.repair.audit import Finding, RepairProblem, WorkKey
from duramen.core.repair.copies import Flaw
from duramen.core.repair.swap import Swap
from duramen.ids import BookieId, Member, epoch_of, log_of
from duramen.limits import (
    REPAIR_BACKOFF,
    REPAIR_TASK_COUNT_MAX,
    REPAIR_TASKS_PER_TARGET,
    REPAIR_TASKS_RUNNING,
)
from duramen.units import MINUTE, SECOND

_RATE_WINDOW_US: Final = 1 * MINUTE
"""The estimate is made of what was copied in the last one to two minutes."""

_OLD_COUNT_MAX: Final = 100
"""So many are judged anew within moments, and are told on until then: another bookie that comes or
goes is no news of them. Of more nothing is told before."""

_STUCK_ATTEMPTS: Final = 3
"""What failed so often in a row does not get on by itself soon."""


class StuckKind(enum.Enum):
    """What would have a fragment get on."""

    PLACE = "place"
    """A bookie that may take the copy."""
    ENTRIES = "entries"
    """A good copy of entries of which none can be verified now."""
    FAILING = "failing"
    """It failed three times in a row, and goes on being tried."""


class Stuck(NamedTuple):
    """Why a fragment does not get on, for people."""

    kind: StuckKind
    reason: str
    since_us: int
    is_old: bool = False
    """It was judged by facts that are no more, and is to be judged anew."""


@dataclass(slots=True)
class Task:
    """One finding on its way.

    `swap`: already decided, as by the plan of a rebalance. `judged_facts`: those of the finding as
    whoever carries the task out sees it, which may be newer or older than what a round found.
    `log_name`, `holders`: the log of the fragment, and the bookies that it is to leave or to stay
    on, as they were read last; nobody before that, and of a task that has no copy leave.
    `stuck`: why it does not get on.
    """

    finding: Finding
    swap: Swap | None = None
    judged_facts: Hashable = None
    attempt_count: int = 0
    not_before_us: int = 0
    is_running: bool = False
    copied_bytes: int = 0
    flaws: tuple[Flaw, ...] = ()
    reason: str = ""
    unrepairable_since_us: int | None = None
    log_name: str = ""
    holders: frozenset[BookieId] = frozenset()
    stuck: Stuck | None = None

    @property
    def left_bytes(self) -> int:
        """About what is still to be copied."""
        return max(0, self.finding.size_bytes - self.copied_bytes)


class _Window(NamedTuple):
    began_us: int
    copied_bytes: int


class Backlog:
    """Every task, and the slots of those that run.

    Invariants:
     1 at most `running_max` tasks run, at most `per_target_max` for one target.
     2 at most one task of a fragment runs.
     3 at most `count_max` tasks are kept, besides those that run.
    """

    def __init__(
        self,
        *,
        running_max: int = REPAIR_TASKS_RUNNING,
        per_target_max: int = REPAIR_TASKS_PER_TARGET,
        count_max: int = REPAIR_TASK_COUNT_MAX,
    ) -> None:
        self.tasks: dict[WorkKey, Task] = {}
        self._running_max = running_max
        self._per_target_max = per_target_max
        self._count_max = count_max
        self._targets: dict[Member, int] = {}
        self._least_urgent: tuple[int, int, int, int] | None = None
        """Of a full list, as long as it is known: most findings are refused by it at once."""
        self._windows = (_Window(0, 0), _Window(0, 0))
        self._counts = dict.fromkeys(
            ("done", "failed", "postponed", "unrepairable_reported", "beyond", "copied_bytes"), 0
        )

    # --- What there is to do ---------------------------------------------------------------------

    def put(self, finding: Finding, swap: Swap | None = None) -> None:
        """A finding of the round that runs; what is known of the same work stays."""
        known = self.tasks.get(finding.key)
        if known is None:
            if len(self.tasks) >= self._count_max and not self._make_room(finding):
                self._counts["beyond"] += 1
                return
            self.tasks[finding.key] = Task(finding, swap)
            self._least_urgent = None
            return
        if known.finding.facts != finding.facts and not known.is_running:
            # Something moved: what could not be repaired may be now, and at once.
            known.attempt_count = known.not_before_us = 0
            known.flaws, known.reason, known.unrepairable_since_us = (), "", None
            known.stuck = None if known.stuck is None else known.stuck._replace(is_old=True)
        known.finding, known.swap = finding, swap

    def clear(self) -> None:
        """A new term of leadership: what was known of the time before counts for nothing."""
        self.tasks = {}
        self._windows = (_Window(0, 0), _Window(0, 0))

    def keep_only(self, found: Iterable[WorkKey]) -> None:
        """A whole round is over: what it did not find is no work any more."""
        keep = set(found)
        self.tasks = {k: t for k, t in self.tasks.items() if k in keep or t.is_running}

    def take(self, now_us: int) -> Task | None:
        """The most urgent task that may run now, which then runs; None if there is none."""
        running = [task for task in self.tasks.values() if task.is_running]
        if len(running) >= self._running_max:
            return None
        busy = {task.finding.key.fragment for task in running}
        waiting = [
            task
            for key, task in self.tasks.items()
            if not task.is_running
            and task.unrepairable_since_us is None
            and task.not_before_us <= now_us
            and key.fragment not in busy
        ]
        if not waiting:
            return None
        task = min(waiting, key=lambda one: one.finding.urgency)
        task.is_running = True
        task.judged_facts = task.finding.facts
        task.copied_bytes = 0
        return task

    def next_us(self) -> int | None:
        """When the next task that waits for its time may run."""
        return min(
            (
                task.not_before_us
                for task in self.tasks.values()
                if not task.is_running and task.unrepairable_since_us is None
            ),
            default=None,
        )

    # --- Targets ---------------------------------------------------------------------------------

    def has_room(self, target: Member) -> bool:
        """Whether one more task may copy to this bookie."""
        return self._targets.get(target, 0) < self._per_target_max

    def claim(self, target: Member) -> bool:
        """Take a slot of a target; to be given back with `release`."""
        if not self.has_room(target):
            return False
        self._targets[target] = self._targets.get(target, 0) + 1
        return True

    def release(self, target: Member) -> None:
        """Give a slot back."""
        self._targets[target] -= 1
        if not self._targets[target]:
            del self._targets[target]

    # --- What became of it -----------------------------------------------------------------------

    def on_progress(self, task: Task, copied_bytes: int, now_us: int) -> None:
        """So many bytes more were copied."""
        task.copied_bytes += copied_bytes
        self._counts["copied_bytes"] += copied_bytes
        before, current = self._windows
        if now_us - current.began_us >= _RATE_WINDOW_US:
            before, current = current, _Window(now_us, 0)
        current = current._replace(copied_bytes=current.copied_bytes + copied_bytes)
        self._windows = (before, current)

    def on_done(self, task: Task) -> None:
        """Mended, or found to be no work any more."""
        task.is_running = False
        self.tasks.pop(task.finding.key, None)
        self._counts["done"] += 1

    def on_postponed(
        self, task: Task, pause_us: int, now_us: int, *, was_asked: bool = False
    ) -> None:
        """Nothing was tried: no target has room now, or somebody was asked and is to act."""
        task.is_running = False
        if was_asked:
            task.attempt_count, task.stuck = 0, None
        task.not_before_us = now_us + pause_us
        self._counts["postponed"] += 1

    def on_failed(self, task: Task, reason: str, now_us: int) -> None:
        """Something was in the way that may pass."""
        task.is_running = False
        task.reason = reason
        task.not_before_us = now_us + REPAIR_BACKOFF.pause_us(task.attempt_count)
        task.attempt_count += 1
        if task.attempt_count >= _STUCK_ATTEMPTS:
            self._hold(task, StuckKind.FAILING, reason, now_us)
        self._counts["failed"] += 1

    def on_unrepairable(
        self,
        task: Task,
        reason: str,
        flaws: Iterable[Flaw],
        now_us: int,
        kind: StuckKind = StuckKind.ENTRIES,
    ) -> bool:
        """It cannot be repaired while the facts are these; whether that was not said before.

        If a round has found other facts than it was judged by, it is tried again: they would be
        found again by every round, and never differ from what is known.
        """
        if task.judged_facts != task.finding.facts:
            self.on_failed(task, reason, now_us)
            return False
        task.is_running = False
        is_news = task.unrepairable_since_us is None
        task.reason, task.flaws = reason, tuple(flaws)
        task.unrepairable_since_us = now_us
        self._hold(task, kind, reason, now_us)
        self._counts["unrepairable_reported"] += is_news
        return is_news

    def _hold(self, task: Task, kind: StuckKind, reason: str, now_us: int) -> None:
        task.stuck = Stuck(kind, reason, now_us if task.stuck is None else task.stuck.since_us)

    def on_cut(self, task: Task) -> None:
        """The auditor stopped in the middle: as if it had not been begun."""
        task.is_running = False

    # --- What is shown ---------------------------------------------------------------------------

    def bytes_per_s(self, now_us: int) -> float:
        """About how fast copies were made lately."""
        before, current = self._windows
        span_us = now_us - (before.began_us or current.began_us)
        copied_bytes = before.copied_bytes + current.copied_bytes
        return copied_bytes * SECOND / span_us if span_us > 0 else 0.0

    def estimate_us(self, now_us: int) -> int | None:
        """About how long the work that can be done will last; None while nobody knows."""
        tasks = [task for task in self.tasks.values() if task.unrepairable_since_us is None]
        left_bytes = sum(task.left_bytes for task in tasks)
        rate = self.bytes_per_s(now_us)
        if not left_bytes:
            return 0
        return int(left_bytes / rate * SECOND) if rate > 0 else None

    def is_repairing(self) -> bool:
        """Whether anything but moves of a rebalance can still be done."""
        return any(
            task.finding.problem is not RepairProblem.UNBALANCED
            and task.unrepairable_since_us is None
            for task in self.tasks.values()
        )

    def list_unrepairable(self) -> list[Task]:
        """What cannot be repaired now, in the order of its urgency."""
        tasks = [task for task in self.tasks.values() if task.unrepairable_since_us is not None]
        return sorted(tasks, key=lambda task: task.finding.urgency)

    def list_stuck(self, before_us: int) -> list[Task]:
        """What keeps copies where they are since before that moment, in the order of the fragments:
        what is told of the first one stays while it stays."""
        tasks: list[Task] = []
        old: list[Task] = []
        for task in self.tasks.values():
            if task.stuck is not None and task.holders and task.stuck.since_us <= before_us:
                (old if task.stuck.is_old else tasks).append(task)
        if len(old) <= _OLD_COUNT_MAX:
            tasks += [task for task in old if not (task.is_running and task.copied_bytes)]
        return sorted(tasks, key=lambda task: task.finding.key.fragment)

    def statistics(self) -> dict[str, Any]:
        """What waits by problem, what runs, what became of the rest."""
        by_problem: dict[str, int] = {}
        for task in self.tasks.values():
            name = task.finding.problem.name.lower()
            by_problem[name] = by_problem.get(name, 0) + 1
        return {
            "tasks": len(self.tasks),
            "tasks_max": self._count_max,
            "running": sum(task.is_running for task in self.tasks.values()),
            "running_max": self._running_max,
            "targets": {member.bookie: count for member, count in sorted(self._targets.items())},
            "unrepairable": len(self.list_unrepairable()),
            "left_bytes": sum(task.left_bytes for task in self.tasks.values()),
            "by_problem": by_problem,
            **self._counts,
        }

    def validate(self) -> None:
        """Assert the invariants."""
        running = [task for task in self.tasks.values() if task.is_running]
        fragments = [task.finding.key.fragment for task in running]
        assert len(running) <= self._running_max, f"1: {running}"
        assert all(0 < n <= self._per_target_max for n in self._targets.values()), "1"
        assert len(fragments) == len(set(fragments)), f"2: {running}"
        assert len(self.tasks) <= self._count_max + self._running_max, "3"

    def _make_room(self, finding: Finding) -> bool:
        """Drop the least urgent task for a more urgent one; False if there is none."""
        if self._least_urgent is not None and self._least_urgent <= finding.urgency:
            return False
        waiting = [task for task in self.tasks.values() if not task.is_running]
        least = max(waiting, key=lambda task: task.finding.urgency, default=None)
        if least is None or least.finding.urgency <= finding.urgency:
            self._least_urgent = None if least is None else least.finding.urgency
            return False
        self._counts["beyond"] += 1
        self._least_urgent = None
        del self.tasks[least.finding.key]
        return True


def describe(task: Task) -> dict[str, Any]:
    """A task for people, in JSON."""
    finding = task.finding
    ledger_id = finding.key.ledger_id
    return {
        "log_id": str(log_of(ledger_id)),
        "epoch": epoch_of(ledger_id),
        "first_entry": finding.key.first_entry,
        "problem": finding.problem.name.lower(),
        "action": finding.key.action.value,
        "good_copies": finding.good_count,
        "bytes": finding.size_bytes,
        "copied_bytes": task.copied_bytes,
        "attempts": task.attempt_count,
        "reason": task.reason,
        "ranges": [
            {"bookie": flaw.member.bookie, "first": flaw.first, "last": flaw.last,
             "why": flaw.fault.value}
            for flaw in task.flaws
        ],
    }  # fmt: skip
