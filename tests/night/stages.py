"""The stages of a night: what each plays, in which order, for which share of the time.

Each is a function from the night's memory and the second at which it has to stop to what it found.
What a stage did not get to is said, and comes first the next time. The commands are those that
people call by hand, so a finding can be repeated. Called by `tests.night.__main__`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tests.night.commands import Outcome, run_command
from tests.night.memory import Memory
from tests.sim.mutants import MUTANTS

SEEDS_A_SWEEP: Final = 100
"""As many as a sweep needs to be judged for what it never met."""

MUTANT_SEEDS: Final = "400"
ENDS_BEYOND_S: Final = 120.0
"""What a runner that keeps to its time itself may take to end."""

CHAOS_MINUTES: Final = 20.0
CHAOS_BEYOND_S: Final = 300.0
"""Start, convergence, complete reads, and the counting of copies of a chaos run."""

_FAILED_SEED: Final = re.compile(r"^seed (\d+): (?!ok$)", re.MULTILINE)


@dataclass
class Finding:
    """What a stage says: its verdict, figures, and what failed."""

    lines: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    details: list[str] = field(default_factory=list)

    def blame(self, what: str, outcome: Outcome) -> None:
        """A command failed: what was called, and the end of what it said."""
        self.faults.append(what)
        self.details.append(f"{what}: status {outcome.status}\n{outcome.output[-4_000:]}")


class Stage(NamedTuple):
    """One part of a night."""

    name: str
    share: float
    """Of the whole time; what a stage leaves goes to those after it."""
    play: Callable[[Memory, float], Finding]


class Knobs(NamedTuple):
    """A group of tests with the sizes that a night has time for."""

    files: tuple[str, ...]
    sizes: Mapping[str, str]


KNOBS: Final[tuple[Knobs, ...]] = (
    Knobs(("tests/unit", "tests/scenario"), {}),
    Knobs(("tests/explore/test_explore.py",), {}),
    Knobs(("tests/crash/test_crash_states.py",), {"DURAMEN_CRASH_STATES": "60000"}),
    Knobs(("tests/crash/test_bit_flips.py",), {"DURAMEN_BIT_FLIPS": "all"}),
    Knobs(("tests/crash/test_shared_commit.py", "tests/component/test_journal_recycling.py"), {}),
    Knobs(("tests/component/test_granting_races.py",), {}),
    Knobs(("tests/component/test_moved_segments.py",), {}),
    Knobs(("tests/kubernetes/plan", "tests/kubernetes/leading"), {}),
    Knobs(("tests/sim",), {}),
    Knobs(("tests/chaos/test_chaos.py",), {}),
    Knobs(("tests/chaos/test_copies.py",), {}),
    Knobs(
        ("tests/process/test_bookie_faults.py",),
        {"DURAMEN_KILLS": "60", "DURAMEN_POWER_CUTS": "40"},
    ),
    Knobs(("tests/process/test_bookie_limits.py",), {"DURAMEN_SLOW_ROUNDS": "20"}),
    Knobs(("tests/process/test_balance.py",), {}),
    Knobs(("tests/process/test_entry_compression.py",), {}),
    Knobs(("tests/process/test_flexible_faults.py",), {}),
    Knobs(("tests/process/test_region_moves.py",), {}),
    Knobs(("tests/process/test_repair_killed.py",), {}),
    Knobs(("tests/process/test_secured_runs.py",), {}),
    Knobs(("tests/process/test_strange_pages.py",), {}),
    Knobs(("tests/process/test_rolled_credentials.py",), {}),
    Knobs(("tests/process/test_mixed_versions.py",), {}),
    Knobs(("tests/process/test_member_storm.py",), {}),
    Knobs(("tests/process/test_turning.py",), {}),
    Knobs(
        ("tests/process/test_rolling.py",),
        {"DURAMEN_ROLLS": "1000", "DURAMEN_ZOOKEEPER_OUTAGE_S": "120"},
    ),
    Knobs(("tests/process/test_idle_logs.py",), {"DURAMEN_IDLE_LOGS": "10000"}),
    Knobs(("tests/process/test_paused_bookie.py",), {"DURAMEN_PAUSE_S": "120"}),
    Knobs(("tests/process/test_reader_faults.py",), {"DURAMEN_READERS": "full"}),
    Knobs(("tests/process/test_api_cases.py",), {"DURAMEN_API_CASES": "50000"}),
    Knobs(("tests/process/test_cold_stores.py",), {}),
    Knobs(("tests/process/test_faults.py",), {}),
    Knobs(("tests/spark/test_archive_kills.py",), {}),
    Knobs(("tests/spark/test_archive_memory.py",), {}),
    Knobs(("tests/spark/test_planted_keys.py",), {}),
    Knobs(("tests/process", "tests/contract"), {}),
)
"""Every size knob of docs/testing.md, turned up; the last has the bounds of process tests."""

_DEATHS: Final = tuple(
    ("tests.kubernetes.deaths", "--period", "5", "--run", run, "--moment", moment)
    for moment in ("before", "after")
    for run in ("new", "1", "2", "3", "4", "5")
)
KUBERNETES: Final = (
    ("tests.kubernetes", "--only", "api"), ("tests.kubernetes", "--only", "kubelet"), *_DEATHS,
)  # fmt: skip
"""Each with its tests of the night; operators die in one run at a time, which takes minutes."""


def play_kept_seeds(memory: Memory, until_s: float) -> Finding:
    """Seeds that failed in earlier nights: those that pass now are forgotten."""
    finding = Finding()
    for seed in list(memory.failing_seeds):
        if time.monotonic() >= until_s:
            finding.lines.append(f"seed {seed}: no time")
            continue
        outcome = run_command(["-m", "tests.sim", "--seed", str(seed)], until_s)
        if outcome.is_cut:
            finding.lines.append(f"seed {seed}: no time")
        elif outcome.status == 0:
            memory.failing_seeds.remove(seed)
            finding.lines.append(f"seed {seed} passes now")
        else:
            finding.blame(f"python -m tests.sim --seed {seed}", outcome)
    return finding


def play_seeds(memory: Memory, until_s: float) -> Finding:
    """New seeds, a hundred at a time."""
    finding, first, gaps = Finding(), memory.next_seed, set[str]()
    while time.monotonic() < until_s:
        window = ["--seeds", str(SEEDS_A_SWEEP), "--first", str(memory.next_seed), "--quiet"]
        outcome = run_command(["-m", "tests.sim", *window], until_s)
        failed = [int(seed) for seed in _FAILED_SEED.findall(outcome.output)]
        memory.keep_failing(failed)
        gaps |= set(re.findall(r"^never happened: (.*)$", outcome.output, re.MULTILINE))
        if failed:
            finding.blame(
                ", ".join(f"python -m tests.sim --seed {seed}" for seed in failed), outcome
            )
        elif outcome.has_failed and "never happened" not in outcome.output:
            finding.blame(f"python -m tests.sim {' '.join(window)}", outcome)
        if outcome.is_cut:
            break
        memory.next_seed += SEEDS_A_SWEEP
    finding.lines.append(f"{memory.next_seed - first:,} seeds from {first:,} on")
    finding.lines += [f"not met in some hundred seeds: {gap}" for gap in sorted(gaps)]
    return finding


def play_simulator_mutants(memory: Memory, until_s: float) -> Finding:
    """Broken rules of the cores, as many as there is time for, in turn from night to night."""
    finding, names, played = Finding(), list(MUTANTS), 0
    for index in memory.turn("simulator mutants", len(names)):
        call = ["-m", "tests.sim.mutants", names[index], "--seeds", MUTANT_SEEDS]
        outcome = run_command(call, until_s)
        if outcome.is_cut:
            break
        played += 1
        if outcome.status != 0:
            finding.blame(f"python {' '.join(call)}", outcome)
    memory.advance("simulator mutants", played)
    finding.lines.append(f"{played} of {len(names)} mutants of the cores")
    return finding


def play_service_mutants(memory: Memory, until_s: float) -> Finding:
    """Single-line faults outside the cores; the runner keeps to its time itself."""
    finding = Finding()
    turn = memory.turns.get("service mutants", 0)
    hours = max(until_s - time.monotonic(), 60.0) / 3600
    call = ["-m", "tests.mutants_services", "--hours", f"{hours:.3f}", "--seed", str(turn)]
    outcome = run_command(call, until_s + ENDS_BEYOND_S)
    memory.advance("service mutants", 1)
    finding.lines += outcome.output.strip().splitlines()[-3:]
    if outcome.status != 0:
        finding.blame(f"python {' '.join(call)}", outcome)
    return finding


def play_chaos(layout: Sequence[str]) -> Callable[[Memory, float], Finding]:
    """A chaos run in a layout: twenty minutes, or what there is."""

    def play(memory: Memory, until_s: float) -> Finding:
        finding = Finding()
        left_s = until_s - time.monotonic() - CHAOS_BEYOND_S
        minutes = min(CHAOS_MINUTES, max(left_s / 60, 1.0))
        memory.advance("chaos", 1)
        seed = str(memory.turns["chaos"])
        call = ["-m", "tests.chaos", "--minutes", f"{minutes:.1f}", "--seed", seed, *layout]
        outcome = run_command(call, until_s)
        finding.lines += [f"{minutes:.0f} minutes, seed {seed}"]
        finding.lines += [line for line in outcome.output.splitlines() if "void" in line][:3]
        if outcome.is_cut:
            finding.lines.append("cut off before a verdict: void, or the machine is slow")
        elif outcome.status != 0:
            finding.blame(f"python {' '.join(call)}", outcome)
        return finding

    return play


def play_sizes(memory: Memory, until_s: float) -> Finding:
    """The gate's own tests with every size turned up, group by group, in turn."""
    finding, played = Finding(), 0
    for index in memory.turn("sizes", len(KNOBS)):
        group = KNOBS[index]
        spelt = " ".join([*(f"{name}={size}" for name, size in group.sizes.items()), *group.files])
        call = ["-m", "pytest", "-q", "-m", "not kubernetes", *group.files]
        outcome = run_command(call, until_s, {"DURAMEN_TIER": "night", **group.sizes})
        last = outcome.output.strip().splitlines()[-1:] or [""]
        finding.lines.append(f"{spelt}: {'cut off' if outcome.is_cut else last[0]}")
        if outcome.has_failed or re.search(r"^FAILED ", outcome.output, re.MULTILINE):
            finding.blame(spelt, outcome)
        if outcome.is_cut:
            break
        played += 1
    memory.advance("sizes", max(played, 1))
    return finding


def play_kubernetes(memory: Memory, until_s: float) -> Finding:
    """The tests on a real Kubernetes with those of the night: one part after the other, in turn."""
    finding, played = Finding(), 0
    for index in memory.turn("kubernetes", len(KUBERNETES)):
        call = ["-m", *KUBERNETES[index]]
        part = " ".join(call)
        outcome = run_command(call, until_s, {"DURAMEN_TIER": "night"})
        if outcome.has_failed or re.search(r"^FAILED ", outcome.output, re.MULTILINE):
            finding.blame(f"DURAMEN_TIER=night python {part}", outcome)
        if outcome.is_cut:
            finding.lines.append(f"{part}: cut off after {outcome.took_s / 60:.0f} minutes")
            break
        finding.lines += outcome.output.strip().splitlines()[-1:]
        played += 1
    memory.advance("kubernetes", max(played, 1))
    return finding


def play_bench(memory: Memory, until_s: float) -> Finding:
    """`make bench` against the figures that are kept."""
    finding = Finding()
    outcome = run_command(["-m", "tests.bench", "--against-kept"], until_s)
    finding.lines += outcome.output.strip().splitlines()[-60:]
    if outcome.is_cut:
        finding.faults.append("the benchmark did not end in its time")
    elif outcome.status != 0:
        finding.blame("python -m tests.bench --against-kept", outcome)
    return finding


STAGES: Final[tuple[Stage, ...]] = (
    Stage("Seeds that failed before", 0.05, play_kept_seeds),
    Stage("Benchmark", 0.1, play_bench),
    Stage("Chaos, three bookies", 0.15, play_chaos(())),
    Stage("Chaos, three regions", 0.16, play_chaos(("--regions",))),
    Stage("Kubernetes", 0.1, play_kubernetes),
    Stage("Sizes", 0.18, play_sizes),
    Stage("Faults outside the cores", 0.1, play_service_mutants),
    Stage("Faults in the cores", 0.06, play_simulator_mutants),
    Stage("Seeds", 0.1, play_seeds),
)
"""The seeds come last: they take whatever time is left."""
