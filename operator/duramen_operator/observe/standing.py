"""How a cluster's bookies stand, as its auditor says: asked beside the looks, kept between them.

The auditor reads all metadata for an answer, so a look waits for it a little and no longer; what
comes later counts in the next one. An answer is about the pods as they were listed before it was
asked for. It is asked for often only while somebody waits for it, and never more than it costs.

Called by `serving.cluster_admin`. Source: docs/kubernetes/evictions.md 1 to 3.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from duramen.errors import DuramenError
from duramen.runtime.http_client import PeerError
from duramen_operator.plan.evictions.lives import is_waited_for, list_lives
from duramen_operator.plan.observed import Json, Observed, PodLife, StandingView

WAIT_S: Final = 2.5
"""A look waits so long for an answer: owners take 2 s where the last copies are under way."""
PAUSE_S: Final = 25.0
HASTE_S: Final = 2.0
"""Between two answers for which somebody waits: so long, then so much longer each time."""
_COST_RATIO: Final = 20
_HASTY_COST_RATIO: Final = 4
"""An answer that took a second is asked for again after so many of them."""
LOOK_AGAIN_S: Final = 2.0

_UNKNOWN_CALL: Final = "invalid_argument"
"""What write proxies and sequencers of before that question answer."""

AskAuditor = Callable[[], Awaitable[Mapping[str, Any]]]
"""Raises DuramenError where it is refused, PeerError where there is no usable answer."""


@dataclass(frozen=True, slots=True)
class _Answered:
    """What was answered, when it was asked for, and what it cost."""

    standing: StandingView
    asked_s: float
    ended_s: float
    cost_s: float

    @property
    def calm_s(self) -> float:
        """How long nobody asks again in calm days."""
        return max(PAUSE_S, _COST_RATIO * self.cost_s)

    @property
    def until_s(self) -> float:
        """How long it counts."""
        return self.ended_s + 2 * self.calm_s


class StandingQuestion:
    """The question of one cluster, and its last answer."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._task: asyncio.Task[_Answered] | None = None
        self._last: _Answered | None = None
        self._good: _Answered | None = None
        """The last one that says something: one that fails does not take it back."""
        self._hasty_count = 0
        """Answers in a row for which somebody waited: what takes long is asked for less often."""

    async def look(self, ask: AskAuditor, seen: Observed) -> StandingView | None:
        """The last answer that is young enough; None: there is none (yet).

        Args:
            ask: asks through a write proxy, and ends in time.
        """
        if self._task is None and self._is_due(seen):
            self._hasty_count = self._hasty_count + 1 if self._is_hasty(seen) else 0
            self._task = asyncio.create_task(_ask(ask, list_lives(seen), self._clock_s))
        if self._task is not None:
            await asyncio.wait([self._task], timeout=WAIT_S)
            if self._task.done():
                task, self._task = self._task, None
                self._note(task.result())
        for answered in (self._good, self._last):
            if answered is not None and self._clock_s() <= answered.until_s:
                return answered.standing
        return None

    def look_again_s(self, seen: Observed) -> float | None:
        """How soon to look again; None: nobody waits for it."""
        if self._task is not None:
            return LOOK_AGAIN_S
        if self._last is None or not self._is_hasty(seen):
            return None
        return max(LOOK_AGAIN_S, self._find_due_s(self._last, seen) - self._clock_s())

    async def forget(self) -> None:
        """Ask nobody any more, and know nothing."""
        task, self._task = self._task, None
        self._last = self._good = None
        self._hasty_count = 0
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _note(self, answered: _Answered) -> None:
        self._last = answered
        if answered.standing.rows is not None or answered.standing.is_unknown_call:
            self._good = answered

    def _is_hasty(self, seen: Observed) -> bool:
        """Whether somebody waits for what an answer may say."""
        last = self._last
        if last is None:
            return True
        if last.standing.is_unknown_call:
            return False
        return is_waited_for(seen) or dict(last.standing.lives) != list_lives(seen)

    def _is_due(self, seen: Observed) -> bool:
        return self._last is None or self._clock_s() >= self._find_due_s(self._last, seen)

    def _find_due_s(self, last: _Answered, seen: Observed) -> float:
        pause_s = last.calm_s
        if self._is_hasty(seen):
            hasty_s = max(HASTE_S * max(1, self._hasty_count), _HASTY_COST_RATIO * last.cost_s)
            pause_s = min(pause_s, hasty_s)
        return last.ended_s + pause_s


async def _ask(
    ask: AskAuditor, lives: Mapping[str, PodLife], clock_s: Callable[[], float]
) -> _Answered:
    began_s = clock_s()
    standing = StandingView(lives)
    try:
        found = await ask()
        rows: dict[str, Json] = {str(row["bookie"]): row for row in found["bookies"]}
        standing = replace(standing, rows=rows)
    except DuramenError as error:
        is_unknown = error.code == _UNKNOWN_CALL
        standing = replace(standing, why=str(error), is_unknown_call=is_unknown)
    except PeerError as error:
        standing = replace(standing, why=str(error))
    except (KeyError, TypeError) as error:
        standing = replace(standing, why=f"the answer is not understood: {error!r}")
    ended_s = clock_s()
    # What fails costs the auditor nothing, as far as is known: another one may answer at once.
    cost_s = ended_s - began_s if standing.rows is not None else 0.0
    return _Answered(standing, began_s, ended_s, cost_s)
