"""Search over a world's states: every state once, and the way to a fault in words.

Breadth first finds a shortest trace; depth first reaches the ends of histories in worlds that are
too large to be seen whole. Both are complete when they end by themselves.

Called by `__main__.py` and `test_explore.py`. Not here: what a step is (`model.py`).
Source: docs/explorer.md.
"""

from __future__ import annotations

import itertools
import time
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.explore.model import Found, Scenario, State, World


@dataclass(slots=True)
class Result:
    """What a search saw."""

    world: World
    state_count: int = 0
    step_count: int = 0
    depth: int = 0
    seconds: float = 0.0
    is_complete: bool = False
    fault: str = ""
    trace: list[str] = field(default_factory=list)
    local: str = ""
    states: Sequence[State] = ()
    """All that were reached."""

    @property
    def states_per_s(self) -> float:
        """Distinct states a second."""
        return self.state_count / max(self.seconds, 1e-9)

    def __str__(self) -> str:
        end = "complete" if self.is_complete else "cut off"
        counts = f"{self.state_count:,} states, {self.step_count:,} steps"
        head = (
            f"{self.world.scenario.name}: {counts}, depth {self.depth}, "
            f"{self.seconds:.1f} s, {self.states_per_s:,.0f} states/s, "
            f"{self.fault or f'no fault, {end}'}\n    {self.local}"
        )
        return "\n".join([head, *(f"    {line}" for line in self.trace)])


class _Seen:
    """Every state that was reached, how, and how far it is from the beginning."""

    def __init__(self, first: State) -> None:
        self.states = [first]
        self._numbers = {first: 0}
        self._origins = array("l", [-1])
        self.depths = array("H", [0])

    def __len__(self) -> int:
        return len(self.states)

    def add(self, state: State, origin: int) -> bool:
        """False if the state was reached before."""
        if state in self._numbers:
            return False
        self._numbers[state] = len(self.states)
        self.states.append(state)
        self._origins.append(origin)
        self.depths.append(self.depths[origin] + 1)
        return True

    def path_to(self, number: int) -> list[State]:
        """From the beginning to a state."""
        path = []
        while number >= 0:
            path.append(self.states[number])
            number = self._origins[number]
        return path[::-1]


def search(scenario: Scenario, *, state_count_max: int, is_deep: bool = False) -> Result:
    """Visit states until all are seen, one is wrong, or there are too many.

    Args:
        state_count_max: distinct states to be visited at most.
        is_deep: depth first; otherwise nearest first.
    """
    world = World(scenario)
    result = Result(world)
    began_s = time.perf_counter()
    first = world.begin()
    seen = _Seen(first)
    waiting = deque([0])
    result.fault = world.judge(first)
    while waiting and not result.fault and len(seen) < state_count_max:
        number = waiting.pop() if is_deep else waiting.popleft()
        for found in world.steps_of(seen.states[number]):
            result.step_count += 1
            if found.fault:
                result.fault = found.fault
                result.trace = format_trace(world, seen.path_to(number), found)
                break
            if seen.add(found.state, number):
                waiting.append(len(seen) - 1)
    result.is_complete = not waiting
    result.depth = max(seen.depths)
    result.state_count, result.states = len(seen), seen.states
    result.seconds = time.perf_counter() - began_s
    result.local = world.count_local()
    return result


def format_trace(world: World, path: list[State], last: Found) -> list[str]:
    """The way to a fault, step by step in words."""
    steps = [
        next(found for found in world.steps_of(state) if found.state == after)
        for state, after in itertools.pairwise(path)
    ]
    lines = []
    for number, found in enumerate([*steps, last], start=1):
        head, *rest = world.format(found)
        lines += [f"{number:3}. {head}", *(f"     {line}" for line in rest)]
    return lines
