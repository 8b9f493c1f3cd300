"""What goes wrong when: a schedule that the seed alone decides, and the hands that carry it out.

A step is kill, pause or cut, of one process or several, for a time. The schedule deals the three in
turn and the kinds of each like cards, so that short runs see every action and long ones every kind.
Where it says `OWNER`, the sequencer is struck that owns most logs at that moment.
Most steps stand alone, so that what they cost can be measured; one in five begins while the step
before it is still under way.

Each fault becomes a line with its evidence: that the process died, that the kernel had it paused,
that the cut held bytes back. Whether it struck a cluster at work is for `report` to judge.
Called by `run`. Source: 06-testing "Real processes".
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from tests.chaos.cluster import SESSION_S, SIZE, ChaosCluster
from tests.chaos.history import HistoryFile, Line, read_clock_ns
from tests.chaos.links import Cut
from tests.chaos.waiting import wait_at_most, wait_until

PAUSE_S_MAX: Final = 20.0
RECOVER_S: Final = 40.0
"""How long the next step waits for every log to acknowledge again."""

_READY_S: Final = 45.0
_OVERLAP_RATIO: Final = 0.2

OWNER: Final = "owner"

Action = Literal["kill", "pause", "cut"]

_ROLES: Final = {
    "zookeeper": 1, "bookie": SIZE.bookies, "sequencer": SIZE.sequencers,
    "writeproxy": SIZE.write_proxies, "readproxy": SIZE.read_proxies,
}  # fmt: skip
_EVERYBODY: Final = frozenset(f"{role}-{i}" for role, count in _ROLES.items() for i in range(count))

_CARDS: Final[dict[Action, tuple[str, ...]]] = {
    "kill": (
        "sequencer", "sequencer", "sequencer", "sequencer", "bookie", "bookie", "bookie",
        "two bookies", "writeproxy", "readproxy", "zookeeper", "everything",
    ),
    "pause": (
        "sequencer", "sequencer", "sequencer", "bookie", "bookie", "zookeeper", "zookeeper",
        "writeproxy", "readproxy",
    ),
    "cut": (
        "session", "session", "bookie", "bookie", "sequencer from bookies", "race",
        "one way", "resets", "proxy from sequencer",
    ),
}  # fmt: skip


KINDS: Final = sorted({f"{action} {kind}" for action, cards in _CARDS.items() for kind in cards})
"""Names of all kinds of faults."""


@dataclass(frozen=True)
class Step:
    """One fault of the schedule.

    Attributes:
        duration_s: how long it is down, paused or cut; the least for a kill is what a start takes.
        rest_s: quiet time after the cluster has recovered.
        overlaps: whether it begins while the step before is under way.
    """

    action: Action
    kind: str
    targets: tuple[str, ...]
    duration_s: float
    rest_s: float
    overlaps: bool
    cut: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
    is_one_way: bool = False
    is_reset: bool = False

    @property
    def name(self) -> str:
        """Kind of fault, as summaries count them."""
        return f"{self.action} {self.kind}"


def draw_steps(
    seed: int, *, pause_s_max: float = PAUSE_S_MAX, only: Sequence[str] = ()
) -> Iterator[Step]:
    """The schedule of a seed, without end; `only` of some of `KINDS`, where any are named."""
    rng = random.Random(seed)
    decks: dict[Action, list[str]] = {
        action: [kind for kind in cards if not only or f"{action} {kind}" in only]
        for action, cards in _CARDS.items()
    }
    hands: dict[Action, list[str]] = {action: [] for action, deck in decks.items() if deck}
    assert hands, only
    actions: list[Action] = []
    is_first = True
    while True:
        actions = actions or rng.sample(list(hands), len(hands))
        action = actions.pop()
        if not hands[action]:
            hands[action] = rng.sample(decks[action], len(decks[action]))
        overlaps = not is_first and rng.random() < _OVERLAP_RATIO
        yield _draw_step(rng, action, hands[action].pop(), pause_s_max, overlaps=overlaps)
        is_first = False


def _draw_step(
    rng: random.Random, action: Action, kind: str, pause_s_max: float, *, overlaps: bool
) -> Step:
    rest_s = rng.uniform(0.5, 2.0)
    # Half of them short, so that a process comes back before anybody has given it up.
    long_s = rng.uniform(SESSION_S, pause_s_max) if pause_s_max > SESSION_S else pause_s_max
    duration_s = rng.choice([rng.uniform(1.0, 3.0), long_s])
    count = 2 if kind == "two bookies" else 1
    role = "bookie" if kind == "two bookies" else kind
    if action == "kill" and kind == "everything":
        return Step(action, kind, tuple(sorted(_EVERYBODY)), 0.0, rest_s, overlaps)
    if action in ("kill", "pause"):
        numbers = rng.sample(range(_ROLES[role]), count)
        targets = tuple(f"{role}-{n}" for n in sorted(numbers))
        if role == "sequencer":
            targets = (OWNER,)
        if action == "kill":
            duration_s = rng.choice([0.0, duration_s])
        return Step(action, kind, targets, duration_s, rest_s, overlaps)
    a, b = _draw_sides(rng, kind)
    if kind == "session":
        duration_s = max(duration_s, SESSION_S + rng.uniform(2.0, 4.0))
    return Step(
        action, kind, tuple(sorted(a)), duration_s, rest_s, overlaps, (a, b),
        is_one_way=kind == "one way", is_reset=kind == "resets",
    )  # fmt: skip


def _draw_sides(rng: random.Random, kind: str) -> tuple[frozenset[str], frozenset[str]]:
    """Who is parted from whom."""

    def some(role: str, count: int = 1) -> frozenset[str]:
        return frozenset(f"{role}-{n}" for n in rng.sample(range(_ROLES[role]), count))

    bookie, sequencer = some("bookie"), frozenset({OWNER})
    match kind:
        case "session":
            return rng.choice([sequencer, sequencer, bookie]), frozenset({"zookeeper-0"})
        case "bookie" | "resets":
            return bookie, _EVERYBODY - bookie
        case "sequencer from bookies":
            return sequencer, some("bookie", rng.randint(1, SIZE.bookies))
        case "race":
            # The owner loses its session and goes on with some bookies, the taker sees the others.
            return sequencer, some("bookie", 2) | {"zookeeper-0"}
        case "one way":
            return rng.choice([(bookie, sequencer), (sequencer, bookie)])
        case _:
            assert kind == "proxy from sequencer", kind
            return some("writeproxy"), sequencer


class Nemesis:
    """Carries out a schedule on a cluster.

    Args:
        last_ack_ns: for each log, when the load last had an acknowledgement.
    """

    def __init__(
        self,
        cluster: ChaosCluster,
        faults: HistoryFile,
        last_ack_ns: Callable[[], dict[str, int]],
        on_event: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._faults = faults
        self._last_ack_ns = last_ack_ns
        self._on_event = on_event
        self._under_way: set[asyncio.Task[None]] = set()
        self.fault_count = 0

    async def run(self, steps: Iterator[Step], until: float) -> None:
        """Strike until the loop's time is up; returns when the last fault has ended."""
        loop = asyncio.get_running_loop()
        try:
            for step in steps:
                if not step.overlaps:
                    await self._settle(until)
                if loop.time() + step.duration_s >= until:
                    break
                task = asyncio.create_task(self._strike(step))
                self._under_way.add(task)
                if step.overlaps:
                    continue
                # The next one may begin in the middle of this one.
                await wait_at_most(min(step.duration_s, step.rest_s))
            await self._end_faults()
        finally:
            for task in self._under_way:
                task.cancel()
            await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _settle(self, until: float) -> None:
        """Until no fault is under way, every log acknowledges again, and a moment more."""
        await self._end_faults()
        began_ns = read_clock_ns()
        rest_s = until - asyncio.get_running_loop().time()
        is_well = await wait_until(
            lambda: all(ns > began_ns for ns in self._last_ack_ns().values()),
            min(RECOVER_S, rest_s),
        )
        if not is_well and rest_s > RECOVER_S:
            late = [log for log, ns in self._last_ack_ns().items() if ns <= began_ns]
            self._on_event(f"no acknowledgement for {RECOVER_S:g} s: {', '.join(late)}")
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
        strike = {"kill": self._kill, "pause": self._pause, "cut": self._cut}[step.action]
        line["evidence"] = await strike(step, line) | owned
        line["t1_ns"] = read_clock_ns()
        self._faults.write(line)
        self._faults.flush()
        self.fault_count += 1

    async def _kill(self, step: Step, line: Line) -> dict[str, Any]:
        cluster = self._cluster
        try:
            killed = [node_id for node_id in step.targets if cluster.kill(node_id)]
            died = await wait_until(
                lambda: all(cluster.exited_ns(n) > line["t0_ns"] for n in killed), 10
            )
            await wait_at_most(step.duration_s)
        finally:
            for node_id in step.targets:
                cluster.release(node_id)
        late = await cluster.wait_ready(_READY_S)
        return {"killed": killed, "died": bool(killed) and died, "late": late}

    async def _pause(self, step: Step, line: Line) -> dict[str, Any]:
        cluster = self._cluster
        try:
            for node_id in step.targets:
                cluster.send(node_id, signal.SIGSTOP)
            began = await wait_until(lambda: all(map(cluster.is_stopped, step.targets)), 2)
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
