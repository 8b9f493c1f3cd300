"""The hands that carry a schedule out, and the evidence that each fault left.

Each fault becomes a line with its evidence: that the process died, that the kernel had it paused,
that the cut held bytes back, that a disk was another one afterwards. Whether it struck a cluster at
work is for `report` to judge. What touches disks is done by `disks`; what this product cannot do is
left out, and counted.

Called by `run`. Source: docs/testing.md "Chaos".
"""

from __future__ import annotations

import asyncio
import dataclasses
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, Final, Literal

from tests.chaos.cluster import ChaosCluster
from tests.chaos.disks import DiskHands
from tests.chaos.history import HistoryFile, Line, read_clock_ns
from tests.chaos.layout import Layout
from tests.chaos.links import Cut
from tests.chaos.schedule import OWNER, Step
from tests.chaos.turning import Turning
from tests.chaos.waiting import wait_at_most
from tests.waiting import comes_true

_LEFT_OUT_MAX: Final = 1000
"""Steps in a row that cannot be done: then there is nothing to do at all."""

Hand = Callable[[Step, Line], Awaitable[dict[str, Any]]]


class Nemesis:
    """Carries out a schedule on a cluster.

    Args:
        last_ack_ns: for each log, when the load last had an acknowledgement.
        turning: carries out what turns, in a run with security.
    """

    def __init__(
        self,
        cluster: ChaosCluster,
        layout: Layout,
        disks: DiskHands,
        *,
        turning: Turning | None = None,
        faults: HistoryFile,
        last_ack_ns: Callable[[], dict[str, int]],
        on_event: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._layout = layout
        self._disks = disks
        self._turning = turning
        self._faults = faults
        self._last_ack_ns = last_ack_ns
        self._on_event = on_event
        self._under_way: set[asyncio.Task[None]] = set()
        self.left_out: Counter[str] = Counter()

    async def run(self, steps: Iterator[Step], until: float) -> None:
        """Strike until the loop's time is up; returns when the last fault has ended."""
        loop = asyncio.get_running_loop()
        try:
            for step in steps:
                if self._is_left_out(step):
                    if sum(self.left_out.values()) > _LEFT_OUT_MAX:
                        break
                    continue
                if not step.overlaps:
                    await self._settle(until)
                if loop.time() + step.duration_s >= until:
                    break
                task = asyncio.create_task(self._strike(step))
                self._under_way.add(task)
                if not step.overlaps and not step.is_alone:
                    # The next one may begin in the middle of this one.
                    await wait_at_most(min(step.duration_s, step.rest_s))
            await self._end_faults()
        finally:
            for task in self._under_way:
                task.cancel()
            await asyncio.gather(*self._under_way, return_exceptions=True)

    def _is_left_out(self, step: Step) -> bool:
        """Whether this product cannot do that yet; says so the first time."""
        reason = self._disks.why_not(step)
        if reason is None:
            return False
        if not self.left_out[step.name]:
            self._on_event(f"left out: {step.name}, because {reason}")
        self.left_out[step.name] += 1
        return True

    async def _settle(self, until: float) -> None:
        """Until no fault is under way, every log acknowledges again, and a moment more."""
        await self._end_faults()
        began_ns = read_clock_ns()
        rest_s = until - asyncio.get_running_loop().time()
        recover_s = self._layout.settle_s
        is_well = await comes_true(
            lambda: all(ns > began_ns for ns in self._last_ack_ns().values()),
            min(recover_s, rest_s),
        )
        if not is_well and rest_s > recover_s:
            late = [log for log, ns in self._last_ack_ns().items() if ns <= began_ns]
            self._on_event(f"no acknowledgement for {recover_s:g} s: {', '.join(late)}")
        await wait_at_most(min(1.0, rest_s))

    async def _end_faults(self) -> None:
        if self._under_way:
            tasks, self._under_way = self._under_way, set()
            await asyncio.gather(*tasks)

    async def _strike(self, step: Step) -> None:
        """One fault from its beginning to its end, and its line."""
        step, owned = await self._aim(step)
        self._on_event(f"{step.name} {' '.join(step.targets)} {step.duration_s:.1f} s")
        line: Line = {
            "t0_ns": read_clock_ns(), "kind": step.name, "targets": step.targets,
            "duration_s": round(step.duration_s, 3), "overlaps": step.overlaps,
            "evidence": {},
        }  # fmt: skip
        hands: dict[str, Hand] = {
            "kill": self._kill, "pause": self._pause, "cut": self._cut, "turn": self._turn,
        }  # fmt: skip
        strike = hands.get(step.action, self._touch_disk)
        line["evidence"] = await strike(step, line) | owned
        line["t1_ns"] = read_clock_ns()
        self._faults.write(line)
        self._faults.flush()

    async def _kill(self, step: Step, line: Line) -> dict[str, Any]:
        cluster = self._cluster
        try:
            killed = [node_id for node_id in step.targets if cluster.kill(node_id)]
            died = await comes_true(
                lambda: all(cluster.exited_ns(n) > line["t0_ns"] for n in killed), 10
            )
            gone_ns = read_clock_ns()
            await wait_at_most(step.duration_s)
        finally:
            until_ns = read_clock_ns()
            for node_id in step.targets:
                cluster.release(node_id)
        late = await cluster.wait_ready(self._layout.settle_s)
        has_died = bool(killed) and died
        return {"killed": killed, "died": has_died, "late": late, "down_ns": [gone_ns, until_ns]}

    async def _pause(self, step: Step, line: Line) -> dict[str, Any]:
        cluster = self._cluster
        try:
            for node_id in step.targets:
                cluster.send(node_id, signal.SIGSTOP)
            began = await comes_true(lambda: all(map(cluster.is_stopped, step.targets)), 2)
            await wait_at_most(step.duration_s)
            lasted = all(map(cluster.is_stopped, step.targets))
        finally:
            for node_id in step.targets:
                cluster.send(node_id, signal.SIGCONT)
        return {"stopped": began and lasted}

    async def _cut(self, step: Step, line: Line) -> dict[str, Any]:
        sessions = await self._count_sessions(step)
        mode: Literal["silent", "reset"] = "reset" if step.is_reset else "silent"
        cut = Cut(*step.cut, is_one_way=step.is_one_way, mode=mode)
        line["t0_ns"] = read_clock_ns()
        self._cluster.links.cut(cut)
        try:
            await wait_at_most(step.duration_s)
        finally:
            self._cluster.links.heal(cut)
        evidence: dict[str, Any] = {"withheld": cut.withheld_count}
        if sessions is not None:
            expired = await self._wait_new_session(step, sessions)
            evidence["session_expired"] = expired
        return evidence

    async def _touch_disk(self, step: Step, line: Line) -> dict[str, Any]:
        evidence = await self._disks.strike(step)
        self._on_event(f"{step.name}: {evidence}")
        return evidence

    async def _turn(self, step: Step, line: Line) -> dict[str, Any]:
        assert self._turning is not None, "a run without security turns nothing"
        evidence = await self._turning.turn(step)
        self._on_event(f"{step.name}: {evidence}")
        return evidence

    async def _aim(self, step: Step) -> tuple[Step, dict[str, int]]:
        """Put the sequencer that owns most logs in the place of `OWNER`, and say how many."""
        if OWNER not in {*step.targets, *step.cut[0], *step.cut[1]}:
            return step, {}
        owned = {}
        for node_id in self._cluster.ids("sequencer"):
            logs = await self._cluster.ask(node_id, "/v1/logs")
            owned[node_id] = sum(1 for log in logs or () if log.get("epoch"))
        owner = max(sorted(owned), key=lambda node_id: owned[node_id])

        def put_in(names: Iterable[str]) -> list[str]:
            return [owner if name == OWNER else name for name in names]

        cut = (frozenset(put_in(step.cut[0])), frozenset(put_in(step.cut[1])))
        targets = tuple(put_in(step.targets))
        return dataclasses.replace(step, targets=targets, cut=cut), {"owned": owned[owner]}

    async def _count_sessions(self, step: Step) -> int | None:
        """How many ZooKeeper sessions the target has had; None where that is not the point."""
        if step.kind != "session":
            return None
        statistics = await self._cluster.ask(step.targets[0], "/v1/statistics") or {}
        store = statistics.get("store") or statistics.get("metadata") or {}
        return int(store.get("sessions", 0))

    async def _wait_new_session(self, step: Step, before: int) -> bool:
        """Whether the target had to begin a new session."""
        for _ in range(20):
            now = await self._count_sessions(step)
            if now is not None and now > before:
                return True
            await wait_at_most(0.25)
        return False
