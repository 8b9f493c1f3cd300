"""Facts of logs, kept between looks: what was read of each, when, and whose turn it is to be read.

A log is read at once where its object changed, is being deleted or was refused something, where
the last plan was not sure of it or a call was made for it, and where nothing is known. All others
take turns, the oldest facts first, as far as the budget of requests goes; a handful is read in each
look whatever the budget says, so that changes made outside of Kubernetes are soon seen where logs
are few. Only logs that are wanted now are kept.

Sans I/O: `admin` asks, and tells what was answered. What comes out is described in
`plan.seen_logs`. Source: docs/kubernetes/one-hand.md "What a look costs" (16, 17).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from duramen_operator.observe.questions import UNANSWERED_COUNT_MAX, Sort
from duramen_operator.observe.request_budget import RequestBudget
from duramen_operator.plan.observed import Json
from duramen_operator.plan.seen_logs import NOT_ASKED

HANDFUL: Final = 10
"""So many logs are read in each look, however fast looks follow one another."""

SEGMENT_FIELDS: Final = ("epoch", "state", "status", "completed", "bytes", "cold_copy")
"""What a plan reads of a segment: where its copies lie is most of it, and there may be many."""

NOTHING_READ: Final[Json] = {"problem": {"code": NOT_ASKED, "detail": "it was not asked yet"}}


@dataclass(frozen=True, slots=True)
class LogWish:
    """What is wanted of a log in this look.

    Attributes:
        is_placed: whether a Log stands for it, whose status tells its tail and where copies lie.
        is_urgent: whether its object calls for facts of this look.
    """

    is_placed: bool = False
    is_urgent: bool = False

    @property
    def parts(self) -> tuple[Sort, ...]:
        """What is asked beside the description."""
        return (Sort.SEGMENTS, Sort.TAIL, Sort.PLACEMENT) if self.is_placed else (Sort.SEGMENTS,)


@dataclass(slots=True)
class _KeptLog:
    """What is known of one log."""

    read_s: float = 0.0
    answer: Json = field(default_factory=lambda: NOTHING_READ)
    """`log`, or the problem that is known instead."""
    is_unanswered: bool = True
    log_id: str = ""
    """Of the log that `parts` and `owner` are about."""
    parts: dict[Sort, Json | None] = field(default_factory=dict)
    owner: str = ""


class KeptLogFacts:
    """The facts of one cluster's logs."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._known: dict[str, _KeptLog] = {}
        self._wanted: Mapping[str, LogWish] = {}
        self._renewed: set[str] = set()
        self._due: frozenset[str] = frozenset()
        """Who could not wait when this look began."""
        self._fresh: set[str] = set()

    @property
    def paths(self) -> frozenset[str]:
        """Logs of which something is kept."""
        return frozenset(self._known)

    def renew(self, paths: Iterable[str]) -> None:
        """Have these read in the next look."""
        self._renewed |= set(paths)

    def begin(self, wanted: Mapping[str, LogWish]) -> None:
        """A look begins: of others nothing is kept."""
        self._wanted = wanted
        self._fresh = set()
        self._known = {path: known for path, known in self._known.items() if path in wanted}
        self._renewed &= set(wanted)

    def choose(self, budget: RequestBudget) -> list[str]:
        """Who is to be read in this look, in order."""
        oldest = sorted(self._wanted, key=self._read_at)
        chosen = [path for path in oldest if self._is_due(path)]
        self._due = frozenset(chosen)
        # Of those that answered nothing the last time no more are asked than give their sort up.
        heard = [path for path in chosen if not self._is_silent(path)]
        silent_count = min(len(chosen) - len(heard), UNANSWERED_COUNT_MAX)
        left = budget.free_count - sum(map(self._cost, heard)) - silent_count
        turns = (path for path in oldest if not self._is_due(path))
        for count, path in enumerate(turns):
            left -= self._cost(path)
            if left < 0 and count >= HANDFUL:
                break
            chosen.append(path)
        return chosen

    def parts_of(self, path: str) -> tuple[Sort, ...]:
        """What is asked of a log beside its description."""
        return self._wanted[path].parts

    def is_described(self, path: str) -> bool:
        """Whether there was a description in this look."""
        return path in self._fresh and "log" in self._known[path].answer

    def on_described(self, path: str, log: Json) -> None:
        """A log's description was read."""
        known = self._note(path, {"log": log}, is_unanswered=False)
        log_id = str(log.get("log_id", ""))
        if known.log_id != log_id:
            known.log_id, known.owner, known.parts = log_id, "", {}

    def on_problem(self, path: str, problem: Json, *, is_unanswered: bool) -> None:
        """There was none; `is_unanswered`: which says nothing of the log."""
        known = self._note(path, problem, is_unanswered=is_unanswered)
        if not is_unanswered:
            known.log_id, known.owner, known.parts = "", "", {}

    def on_part(self, path: str, sort: Sort, answer: Json | None) -> None:
        """Something else of it was read; None: the cluster will not say."""
        if sort is Sort.SEGMENTS and answer is not None:
            answer = {"segments": [_trim(one) for one in answer["segments"]]}
        self._known[path].parts[sort] = answer

    def on_cut(self, path: str) -> None:
        """The look ended before all of it was read. Whose turn it was alone has it again."""
        if path in self._due:
            self._renewed.add(path)

    def on_owners(self, owners: Mapping[str, str], silent: frozenset[str]) -> None:
        """Who owns which log, by its id; of logs whose owner is silent that is not known."""
        for known in self._known.values():
            if known.owner not in silent or known.log_id in owners:
                known.owner = owners.get(known.log_id, "")

    def list_left(self) -> list[str]:
        """Those that should have been read in this look, and were not to the end; the silent ones
        aside."""
        return [path for path in self._wanted if self._is_left(path)]

    def list_stale(self) -> frozenset[str]:
        """Those whose facts are older than this look; the silent ones have none."""
        return frozenset(
            path
            for path, known in self._known.items()
            if path not in self._fresh and not known.is_unanswered
        )

    def view(self) -> dict[str, Json]:
        """Everything that is known of the logs that are wanted."""
        return {path: self._view(path) for path in self._wanted}

    def statistics(self) -> dict[str, int]:
        """How much is held: one entry for each log that is wanted."""
        return {"logs": len(self._known), "renewed": len(self._renewed)}

    def _note(self, path: str, answer: Json, *, is_unanswered: bool) -> _KeptLog:
        known = self._known.setdefault(path, _KeptLog())
        known.read_s, known.answer, known.is_unanswered = self._clock_s(), answer, is_unanswered
        self._fresh.add(path)
        self._renewed.discard(path)
        return known

    def _is_due(self, path: str) -> bool:
        known = self._known.get(path)
        is_unknown = known is None or known.is_unanswered
        return is_unknown or path in self._renewed or self._wanted[path].is_urgent

    def _is_silent(self, path: str) -> bool:
        known = self._known.get(path)
        return known is not None and known.is_unanswered

    def _is_left(self, path: str) -> bool:
        known = self._known.get(path)
        if path in self._fresh or (known is not None and known.is_unanswered):
            return path in self._renewed
        return self._is_due(path)

    def _read_at(self, path: str) -> float:
        known = self._known.get(path)
        return float("-inf") if known is None else known.read_s

    def _cost(self, path: str) -> int:
        return 1 + len(self._wanted[path].parts)

    def _view(self, path: str) -> Json:
        known = self._known.get(path)
        if known is None or "log" not in known.answer:
            return NOTHING_READ if known is None else known.answer
        segments, tail = known.parts.get(Sort.SEGMENTS), known.parts.get(Sort.TAIL)
        found: dict[str, Any] = {
            **known.answer,
            "owner": known.owner,
            "segments": None if segments is None else segments.get("segments"),
            "tail": None if tail is None else tail["tail"].get("seq_num"),
        }
        if self._wanted[path].is_placed:
            found |= _view_placement(known.parts.get(Sort.PLACEMENT))
        return found


def _trim(segment: Json) -> Json:
    return {name: segment[name] for name in SEGMENT_FIELDS if name in segment}


def _view_placement(placed: Json | None) -> dict[str, Any]:
    shown = (placed or {}).get("shown") or ()
    return {
        "violations": None if placed is None else placed.get("violations"),
        "violation": shown[0].get("detail", "") if shown else "",
        "refusal": ((placed or {}).get("nodeset") or {}).get("refusal"),
    }
