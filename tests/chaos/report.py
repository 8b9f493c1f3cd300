"""What a run amounts to: verdicts, effective faults, times without acknowledgement; void or not.

A fault is effective when its own evidence says that it happened (`nemesis`) and appends were being
acknowledged when it began. The time without acknowledgement of a fault is that of the log that
waited longest: the largest gap between two of its acknowledgements that overlaps the time from the
fault to the next one, cut off there. Only faults that stood alone are measured. How many copies
there were at the end is told, and judged by `copies`.

Pure but for reading the faults file. Called by `run`. Source: docs/testing.md "Chaos".
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

from tests.chaos.copies import CopyCount
from tests.chaos.delivery import Delivered
from tests.chaos.history import Line, read_lines
from tests.chaos.judge import Verdict, Violation
from tests.chaos.layout import FLAT, Layout
from tests.chaos.schedule import AWAY_KIND, LONG_S

UNDER_LOAD_NS: Final = 2_000_000_000
"""Acknowledged that shortly before it began: the fault met a cluster at work."""

ACKS_PER_S_MIN: Final = 5.0
READS_PER_S_MIN: Final = 0.5
REQUIRED_OF_ONLY_S: Final = 30.0
"""A run of some kinds of faults only that lasts so long has to have met each of them."""


@dataclass(frozen=True)
class Summary:
    """The outcome of a run.

    Attributes:
        void: why the run proves nothing; empty if it does.
        starved: those reasons that are a want of appends or reads.
        voids_before: the reasons of each void run that this one repeats.
        faults: effective ones by kind; `idle_faults` had no effect.
        stalls_s: kind of fault → longest time without acknowledgement, one a fault.
        copies: what was counted at the end; None: nothing was.
        repairs: what repair did, by name.
        delivered: what readers who wait got; None: nobody waited.
    """

    seconds: float
    violations: list[Violation]
    void: list[str]
    counts: dict[str, int]
    codes: dict[str, int]
    epochs: int
    faults: dict[str, int]
    idle_faults: dict[str, int]
    stalls_s: dict[str, list[float]]
    copies: CopyCount | None = None
    repairs: Mapping[str, int] = field(default_factory=dict)
    starved: Sequence[str] = ()
    voids_before: Sequence[Sequence[str]] = ()
    delivered: Delivered | None = None

    @property
    def is_good(self) -> bool:
        """Neither void nor violated."""
        return not self.violations and not self.void

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "seconds": self.seconds, "is_good": self.is_good, "void": self.void,
            "voids_before": [list(reasons) for reasons in self.voids_before],
            "violations": [violation._asdict() for violation in self.violations],
            "counts": self.counts, "codes": self.codes, "epochs": self.epochs,
            "faults": self.faults, "idle_faults": self.idle_faults,
            "stalls_s": {kind: spread(values) for kind, values in self.stalls_s.items()},
            "copies": None if self.copies is None else self.copies.to_json(),
            "repairs": dict(self.repairs),
            "delivered": None if self.delivered is None else self.delivered.to_json(),
        }  # fmt: skip

    def format(self) -> str:
        """For people."""
        counts = self.counts
        lines = [
            f"{counts['ok']} appends acknowledged ({counts['ok'] / self.seconds:.0f} a second), "
            f"{counts['fail']} refused, {counts['info']} uncertain ({counts['info_found']} of them "
            f"found), {counts['read']} reads, {counts['tail']} tails, {self.epochs} segments, "
            f"{counts['truncate']} truncations, {counts.get('hole', 0)} numbers in holes",
            "not acknowledged: "
            + (", ".join(f"{code} {n}" for code, n in sorted(self.codes.items())) or "none"),
            "",
            f"{'fault':28} effective  idle   longest time without acknowledgement, s",
            f"{'':28} {'':15}   alone  median     p90     max",
        ]
        for kind in sorted({*self.faults, *self.idle_faults}):
            found = spread(self.stalls_s.get(kind, []))
            figures = "" if found is None else (
                f"{found['count']:8} {found['median']:7.2f} {found['p90']:7.2f} {found['max']:7.2f}"
            )  # fmt: skip
            effective, idle = self.faults.get(kind, 0), self.idle_faults.get(kind, 0)
            lines.append(f"{kind:28} {effective:9} {idle:5}{figures}")
        if self.copies is not None:
            lines += ["", self.copies.format()]
        if self.repairs:
            lines.append(", ".join(f"{name} {count}" for name, count in self.repairs.items()))
        if self.delivered is not None:
            lines += ["", self.delivered.format()]
        lines.append("")
        if self.voids_before:
            lines.append(f"{len(self.voids_before)} void before this one:")
            lines += [f"  {'; '.join(reasons)}" for reasons in self.voids_before]
        lines += [f"void: {reason}" for reason in self.void]
        lines += [f"VIOLATION {v.code} {v.log}: {v.text}" for v in self.violations]
        if self.is_good:
            lines.append("nothing lost, doubled, reordered or invented")
        return "\n".join(lines)


def summarize(
    verdicts: Sequence[Verdict],
    faults_file: Path,
    seconds: float,
    extra: Sequence[Violation] = (),
    *,
    layout: Layout = FLAT,
    only: Sequence[str] = (),
    turns: bool = False,
    copies: CopyCount | None = None,
    repairs: Mapping[str, int] | None = None,
    delivered: Delivered | None = None,
) -> Summary:
    """Put the verdicts on all logs, the faults and the copies together.

    Args:
        only: the kinds of faults that there were to be, if not all.
        turns: what says who is who was to turn as well.
        copies, repairs, delivered: told, not judged; what they violate is in `extra`.
    """
    faults = sorted(read_lines(faults_file), key=lambda fault: fault["t0_ns"])
    counts: Counter[str] = Counter()
    codes: Counter[str] = Counter()
    for verdict in verdicts:
        counts.update(verdict.counts)
        codes.update(verdict.codes)
    effective = [fault for fault in faults if is_effective(fault, verdicts)]
    idle = [fault for fault in faults if fault not in effective]
    starved = find_starvation(counts, seconds)
    stalls: dict[str, list[float]] = {}
    for fault, until_ns in find_lone(faults):
        if fault in effective:
            stall_s = find_stall_s(verdicts, fault["t0_ns"], until_ns)
            stalls.setdefault(fault["kind"], []).append(stall_s)
    return Summary(
        seconds=seconds,
        violations=[*extra, *(v for verdict in verdicts for v in verdict.violations)],
        void=[*starved, *find_voids(effective, seconds, layout, only, turns=turns)],
        counts=dict(counts),
        codes=dict(codes),
        epochs=sum(verdict.epoch_count for verdict in verdicts),
        faults=dict(Counter(fault["kind"] for fault in effective)),
        idle_faults=dict(Counter(fault["kind"] for fault in idle)),
        stalls_s=stalls,
        copies=copies,
        repairs=repairs or {},
        delivered=delivered,
        starved=starved,
    )


def is_effective(fault: Line, verdicts: Sequence[Verdict]) -> bool:
    """Whether the fault happened, to a cluster at work."""
    evidence = fault["evidence"]
    match fault["kind"].split()[0]:
        case "kill":
            happened = evidence["died"] and evidence.get("owned", 1) > 0
        case "pause":
            happened = evidence["stopped"] and evidence.get("owned", 1) > 0
        case "disk" | "drain" | "turn":
            happened = evidence["done"]
        case _:
            happened = evidence["withheld"] > 0 and evidence.get("session_expired", True)
    return bool(happened) and any(
        _has_ack(verdict.ack_times_ns, fault["t0_ns"] - UNDER_LOAD_NS, fault["t0_ns"])
        for verdict in verdicts
    )


def find_lone(faults: Sequence[Line]) -> list[tuple[Line, int]]:
    """Faults (by their beginning) that overlap no other, each with when the next one began."""
    lone = []
    for index, fault in enumerate(faults):
        others = [other for other in faults if other is not fault]
        if not any(
            other["t0_ns"] <= fault["t1_ns"] and fault["t0_ns"] <= other["t1_ns"]
            for other in others
        ):
            following = faults[index + 1]["t0_ns"] if index + 1 < len(faults) else 1 << 62
            lone.append((fault, following))
    return lone


def find_stall_s(verdicts: Sequence[Verdict], t0_ns: int, until_ns: int) -> float:
    """The largest gap between acknowledgements of one log that overlaps the time given."""
    longest = 0
    for verdict in verdicts:
        times = verdict.ack_times_ns
        first = max(bisect_left(times, t0_ns) - 1, 0)
        for index in range(first, len(times) - 1):
            if times[index] >= until_ns:
                break
            longest = max(longest, min(times[index + 1], until_ns) - times[index])
    return longest / 1e9


def find_starvation(counts: Counter[str], seconds: float) -> list[str]:
    """What there was too little of that a cluster at work gives to a load."""
    starved = []
    if counts["ok"] < ACKS_PER_S_MIN * seconds:
        starved.append(f"{counts['ok']} appends acknowledged in {seconds:g} s")
    if counts["read"] < READS_PER_S_MIN * seconds:
        starved.append(f"{counts['read']} reads in {seconds:g} s")
    return starved


def find_voids(
    effective: Sequence[Line],
    seconds: float,
    layout: Layout,
    only: Sequence[str] = (),
    *,
    turns: bool = False,
) -> list[str]:
    """Why the faults prove nothing."""
    voids = []
    # A turn is made of many steps, and processes die between them: its time is not for others.
    turning_s = (
        sum(f["t1_ns"] - f["t0_ns"] for f in effective if f["kind"].startswith("turn")) / 1e9
    )
    if len(effective) < int(layout.faults_per_minute_min * max(0.0, seconds - turning_s) / 60):
        voids.append(f"{len(effective)} effective faults in {seconds:g} s")
    long = (AWAY_KIND, *(("turn",) if turns else ())) if seconds >= LONG_S else ()
    required = only or (*layout.required, *long)
    if seconds >= (REQUIRED_OF_ONLY_S if only else layout.required_after_s):
        met = [fault["kind"] for fault in effective]
        voids += [
            f"no effective fault of: {wanted}"
            for wanted in required
            if not any(kind.startswith(wanted) for kind in met)
        ]
    return voids


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Count, median, 90th percentile (nearest rank) and maximum; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    rank = max(0, -(-len(ordered) * 9 // 10) - 1)
    return {
        "count": len(ordered),
        "median": round(median(ordered), 3),
        "p90": round(ordered[rank], 3),
        "max": round(ordered[-1], 3),
    }


def _has_ack(times: Sequence[int], low_ns: int, high_ns: int) -> bool:
    index = bisect_left(times, low_ns)
    return index < len(times) and times[index] < high_ns
