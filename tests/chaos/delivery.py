"""Judges what readers who wait got of what was acknowledged, and when, and what they were told.

    waiter     each waiter gets every acknowledged record by the end of the run, passes over none
    told       no waiter hears `data_unavailable` while its log is healthy: nothing is wrong but
               with ZooKeeper, with proxies or with one bookie, and nothing else was shortly before
    delivery   while a bookie is frozen, and nothing else is wrong, 99 of 100 records are with each
               waiter within 1 s of their acknowledgement
    away       what is acknowledged while every ZooKeeper server is away, in a segment that was
               open before, is with each waiter before a server is back

Times are the product's part, without the machine's stalls. A delivery is one append to one waiter,
and is put down to the kind of fault that was under way meanwhile (`_Timeline.kind_of`).

Pure. Called by `run`, told by `report`. Source: docs/testing.md "Chaos".
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final, NamedTuple

from duramen.ids import parse_dlsn
from tests.chaos.history import Line
from tests.chaos.judge import VIOLATIONS_MAX, Violation
from tests.chaos.schedule import AWAY_KIND
from tests.chaos.waiters import WAITER

FROZEN_BOOKIE: Final = "pause bookie"
DELIVERED_NS: Final = 1_000_000_000
JUDGED_COUNT_MIN: Final = 100
"""Of fewer deliveries the 99th percentile is the slowest one, which no promise is about."""

LAST_NS: Final = 2_000_000_000
"""What is acknowledged later than that before ZooKeeper is back is not judged."""

AFTER_NS: Final = 5_000_000_000
"""A session and a second: for so long a fault that has ended may still be felt."""

HEALTHY_NS: Final = 10_000_000_000
"""After so long without faults a log is healthy: ownership has moved, and its end is known."""

_NONE: Final = "no fault"
_AFTER: Final = "just after a fault"
_SEVERAL: Final = "several faults"
_FROZEN_BOOKIES: Final = "pause of two bookies"
_ONE_BOOKIE: Final = ("kill bookie", "pause bookie", "cut bookie", "cut resets")
_HARMLESS: Final = (
    "kill zookeeper", "pause zookeeper", AWAY_KIND, "kill writeproxy", "pause writeproxy",
    "cut proxy from sequencer", "kill readproxy", "pause readproxy",
)  # fmt: skip


class Stalls:
    """When the machine gave nothing, as `tests.ticker` saw it; instants in ns."""

    def __init__(self, stalls: Iterable[tuple[int, int]] = ()) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []
        for begin, end in sorted(stalls):
            if self._ends and begin <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._begins.append(begin)
                self._ends.append(end)
        lengths = (e - b for b, e in zip(self._begins, self._ends, strict=True))
        self._before = [0, *accumulate(lengths)]

    def product_ns(self, begin_ns: int, end_ns: int) -> int:
        """An interval's length without the stalls in it."""
        return end_ns - begin_ns - (self._until(end_ns) - self._until(begin_ns))

    def _until(self, at_ns: int) -> int:
        """The length of all stalls before an instant."""
        index = bisect_right(self._begins, at_ns)
        if not index:
            return 0
        return self._before[index] - max(self._ends[index - 1] - at_ns, 0)


class _Append(NamedTuple):
    acked_ns: int
    start: int
    end: int
    epoch: int


class Delivery(NamedTuple):
    """One append to one waiter; `got_ns` is None where a record of it never came."""

    log: str
    waiter: str
    start: int
    epoch: int
    acked_ns: int
    got_ns: int | None
    has_passed: bool


@dataclass
class LogDeliveries:
    """What a log's history says of its waiters.

    Attributes:
        told: refusals and broken streams, lines of the history.
        first_acked_ns: epoch → when a record of it was first acknowledged.
    """

    log: str
    deliveries: list[Delivery] = field(default_factory=list)
    told: list[Line] = field(default_factory=list)
    first_acked_ns: dict[int, int] = field(default_factory=dict)


class AwayWindow(NamedTuple):
    """A time without ZooKeeper: deliveries that were due in it, and those that came too late."""

    seconds: float
    due_count: int
    late_count: int
    longest_s: float


@dataclass
class Delivered:
    """What waiters got of a run.

    Attributes:
        spans_s: kind of fault → the product's part of every delivery that was made, rising.
        told: what waiters were told, or how their streams broke → how often.
        windows: without ZooKeeper.
    """

    violations: list[Violation] = field(default_factory=list)
    spans_s: dict[str, list[float]] = field(default_factory=dict)
    told: Counter[str] = field(default_factory=Counter)
    windows: list[AwayWindow] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "spans_s": {kind: find_percentiles(spans) for kind, spans in self.spans_s.items()},
            "told": dict(self.told),
            "without_zookeeper": [window._asdict() for window in self.windows],
        }

    def format(self) -> str:
        """For people."""
        lines = [f"{'delivered to who waits, s':28} {'count':>9}    p50    p99    max"]
        for kind, spans in sorted(self.spans_s.items()):
            found = find_percentiles(spans)
            lines.append(
                f"{kind:28} {found['count']:9.0f} {found['p50']:6.2f} {found['p99']:6.2f} "
                f"{found['max']:6.2f}"
            )
        if 0 < len(self.spans_s.get(FROZEN_BOOKIE, ())) < JUDGED_COUNT_MIN:
            lines.append("too few deliveries while a bookie was frozen alone to be judged")
        lines += [
            f"{window.seconds:.0f} s without ZooKeeper: deliveries due {window.due_count}, late "
            f"{window.late_count}, the longest took {window.longest_s:.2f} s"
            for window in self.windows
        ]
        told = ", ".join(f"{what} {count}" for what, count in sorted(self.told.items()))
        return "\n".join([*lines, f"told in place of records: {told or 'nothing'}"])


# --- One log -------------------------------------------------------------------------------------


def follow_log(log: str, lines: Iterable[Line]) -> LogDeliveries:
    """Match what was acknowledged with what each waiter got; lines in any order."""
    found = LogDeliveries(log)
    appends: list[_Append] = []
    got: dict[str, dict[int, int]] = {}
    for line in lines:
        if line["op"] == "append" and line["outcome"] == "ok":
            epoch = parse_dlsn(line["dlsn"])[0]
            appends.append(_Append(line["t1_ns"], line["start"], line["end"], epoch))
        elif str(line.get("proc", "")).startswith(WAITER):
            times = got.setdefault(line["proc"], {})
            if line["op"] == "read":
                _note_times(times, line)
            elif line["op"] in ("told", "broken"):
                found.told.append(line)
    appends.sort()
    for append in appends:
        first = found.first_acked_ns.get(append.epoch, append.acked_ns)
        found.first_acked_ns[append.epoch] = min(first, append.acked_ns)
    for waiter, times in sorted(got.items()):
        last = max(times, default=-1)
        found.deliveries += [_match(log, waiter, append, times, last) for append in appends]
    return found


def _note_times(times: dict[int, int], line: Line) -> None:
    for _, seq_num, hashes in line["batches"]:
        for place in range(seq_num, seq_num + len(hashes)):
            times[place] = min(line["t1_ns"], times.get(place, line["t1_ns"]))


def _match(log: str, waiter: str, append: _Append, times: dict[int, int], last: int) -> Delivery:
    came = [times.get(place) for place in range(append.start, append.end)]
    got_ns = None if None in came else max(at for at in came if at is not None)
    return Delivery(
        log, waiter, append.start, append.epoch, append.acked_ns, got_ns,
        has_passed=got_ns is None and append.start < last,
    )  # fmt: skip


# --- All logs, and the faults --------------------------------------------------------------------


def judge_deliveries(
    logs: Iterable[LogDeliveries], faults: Sequence[Line], stalls: Stalls
) -> Delivered:
    """The verdict, and the figures behind it."""
    logs, found, timeline = list(logs), Delivered(), _Timeline(faults)
    for log in logs:
        found.violations += _find_missing(log)
        found.violations += _find_told(log, timeline, stalls)
        for line in log.told:
            found.told[line["code"]] += 1
        for delivery in log.deliveries:
            if delivery.got_ns is not None:
                got_ns = max(delivery.got_ns, delivery.acked_ns)
                kind = timeline.kind_of(delivery.acked_ns, got_ns)
                span_s = stalls.product_ns(delivery.acked_ns, got_ns) / 1e9
                found.spans_s.setdefault(kind, []).append(span_s)
    for spans in found.spans_s.values():
        spans.sort()
    found.violations += _find_slowness(found.spans_s.get(FROZEN_BOOKIE, []))
    for fault in faults:
        if fault["kind"] == AWAY_KIND and fault["evidence"].get("died"):
            _judge_window(fault, logs, stalls, found)
    return found


def find_percentiles(spans: Sequence[float]) -> dict[str, float]:
    """Count, 50th and 99th percentile (nearest rank) and maximum of a rising sequence."""
    return {
        "count": len(spans), "p50": round(_rank(spans, 50), 3),
        "p99": round(_rank(spans, 99), 3), "max": round(spans[-1], 3),
    }  # fmt: skip


def _rank(spans: Sequence[float], percent: int) -> float:
    return spans[max(0, -(-len(spans) * percent // 100) - 1)]


def _find_missing(log: LogDeliveries) -> list[Violation]:
    missing = [delivery for delivery in log.deliveries if delivery.got_ns is None]
    return [
        Violation(
            "waiter", log.log,
            f"{'passed over' if delivery.has_passed else 'never got'} by {delivery.waiter}: the "
            f"append at {delivery.start}, acknowledged at {delivery.acked_ns / 1e9:.3f} s",
        )
        for delivery in missing[:VIOLATIONS_MAX]
    ]  # fmt: skip


def _find_told(log: LogDeliveries, timeline: _Timeline, stalls: Stalls) -> list[Violation]:
    found = []
    for line in log.told:
        if line["code"] == "data_unavailable" and timeline.is_healthy(line["t1_ns"], stalls):
            at_s, asked_s = line["t1_ns"] / 1e9, line["t0_ns"] / 1e9
            text = (
                f"{line['proc']} was told {line['status']} {line['code']} of a healthy log at "
                f"{at_s:.3f} s, asked at {asked_s:.3f} s, while {timeline.format(line['t1_ns'])}"
            )
            found.append(Violation("told", log.log, text))
    return found[:VIOLATIONS_MAX]


def _find_slowness(spans: Sequence[float]) -> list[Violation]:
    if len(spans) < JUDGED_COUNT_MIN or _rank(spans, 99) * 1e9 <= DELIVERED_NS:
        return []
    slow = len(spans) - bisect_right(spans, DELIVERED_NS / 1e9)
    text = (
        f"{slow} of {len(spans)} deliveries while a bookie was frozen took more than "
        f"{DELIVERED_NS / 1e9:g} s; p99 {_rank(spans, 99):.2f} s"
    )
    return [Violation("delivery", "*", text)]


def _judge_window(
    fault: Line, logs: Sequence[LogDeliveries], stalls: Stalls, found: Delivered
) -> None:
    began_ns, until_ns = fault["evidence"]["down_ns"]
    due, late = list[int](), list[Violation]()
    for log in logs:
        for one in log.deliveries:
            is_open = log.first_acked_ns[one.epoch] < fault["t0_ns"]
            is_within = began_ns <= one.acked_ns <= until_ns
            if is_open and is_within and stalls.product_ns(one.acked_ns, until_ns) >= LAST_NS:
                got_ns = max(until_ns if one.got_ns is None else one.got_ns, one.acked_ns)
                due.append(stalls.product_ns(one.acked_ns, got_ns))
                if got_ns >= until_ns:
                    text = (
                        f"{one.waiter} got the append at {one.start}, acknowledged "
                        f"{(one.acked_ns - began_ns) / 1e9:.1f} s after ZooKeeper had gone, "
                        f"only when it was back, {(until_ns - one.acked_ns) / 1e9:.1f} s later"
                    )
                    late.append(Violation("away", log.log, text))
    found.violations += late[:VIOLATIONS_MAX]
    seconds, longest_s = (until_ns - began_ns) / 1e9, max(due, default=0) / 1e9
    found.windows.append(AwayWindow(seconds, len(due), len(late), longest_s))


class _Timeline:
    """Which faults were under way when."""

    def __init__(self, faults: Sequence[Line]) -> None:
        self._faults = sorted(faults, key=lambda fault: fault["t0_ns"])
        self._begins = [fault["t0_ns"] for fault in self._faults]
        self._longest_ns = max((f["t1_ns"] - f["t0_ns"] for f in self._faults), default=0)

    def kind_of(self, begin_ns: int, end_ns: int) -> str:
        """The kind of fault that was under way, if none of another kind was, or just had been."""
        felt = self._under_way(begin_ns - AFTER_NS, end_ns)
        if not felt:
            return _NONE
        if not (now := [fault for fault in felt if fault["t1_ns"] >= begin_ns]):
            return _AFTER
        if all(fault["kind"] == FROZEN_BOOKIE for fault in felt):
            # Whichever bookie was frozen before that one: the promise is about any.
            targets = {target for fault in now for target in fault["targets"]}
            return FROZEN_BOOKIE if len(targets) == 1 else _FROZEN_BOOKIES
        return str(felt[0]["kind"]) if len(felt) == 1 else _SEVERAL

    def is_healthy(self, at_ns: int, stalls: Stalls) -> bool:
        """Whether no log could suffer from what was under way then, or not long before."""
        before_ns = at_ns - HEALTHY_NS - self._longest_ns
        bookies = set[str]()
        for fault in self._under_way(before_ns, at_ns):
            ended_ns = min(fault["t1_ns"], at_ns)
            if stalls.product_ns(ended_ns, at_ns) >= HEALTHY_NS or fault["kind"] in _HARMLESS:
                continue
            if fault["kind"] not in _ONE_BOOKIE:
                return False
            bookies.update(fault.get("targets", ()))
        return len(bookies) <= 1

    def format(self, at_ns: int) -> str:
        """What was under way at an instant."""
        kinds = [str(fault["kind"]) for fault in self._under_way(at_ns, at_ns)]
        return ", ".join(kinds) or "nothing was wrong"

    def _under_way(self, begin_ns: int, end_ns: int) -> list[Line]:
        low = bisect_left(self._begins, begin_ns - self._longest_ns)
        high = bisect_right(self._begins, end_ns)
        return [fault for fault in self._faults[low:high] if fault["t1_ns"] >= begin_ns]
