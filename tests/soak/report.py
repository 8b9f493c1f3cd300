"""One Markdown report of a soak: the verdict, what was done, and a table of slopes and bounds.

Pure. Called by `__main__`; the verdicts are those of `slopes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.soak.run import Outcome
from tests.soak.slopes import Verdict


def format_report(outcome: Outcome) -> str:
    """The whole report."""
    word = "good" if outcome.is_good else "interrupted" if outcome.is_interrupted else "FAILED"
    tally = outcome.tally
    lines = [
        f"# Soak of {outcome.seconds / 3600:.2f} hours: {word}",
        "",
        f"Seed {outcome.seed}. {tally.generations} generations of logs were made, worked on, read "
        f"whole, judged and deleted; {tally.verified} logs went through `duramen verify`.",
        "",
        "| what | |",
        "|---|---|",
        f"| capacity, closed loop | {outcome.capacity_per_s:.0f} appends a second |",
        f"| the soak | {outcome.paced_per_s:.0f} a second, {format_share(outcome)} |",
        f"| a generation | {outcome.generation_s:.0f} s |",
        f"| operations | {format_counts(tally.counts)} |",
        f"| segments | {tally.segments} |",
        f"| not acknowledged at first | {format_counts(tally.codes)} |",
        f"| archive | {format_counts(outcome.jobs)} |",
        "",
        "## Why it failed" if not outcome.is_good else "## Nothing failed",
        "",
        *(f"- {line}" for line in list_faults(outcome)),
        "",
        "## Slopes over the second half",
        "",
        *format_verdicts(outcome.verdicts),
    ]
    return "\n".join(lines) + "\n"


def list_faults(outcome: Outcome) -> list[str]:
    """Everything that is to blame, the gravest first."""
    violations = [f"VIOLATION {v.code} {v.log}: {v.text}" for v in outcome.tally.violations]
    slopes = [f"{v.name}: {v.fault}" for v in outcome.verdicts if v.fault]
    ended = ["interrupted: nothing is proved"] if outcome.is_interrupted else []
    missing = [] if outcome.verdicts else ["nothing was sampled"]
    return [*violations, *outcome.faults, *ended, *slopes, *missing]


def format_share(outcome: Outcome) -> str:
    """Of the capacity."""
    share = outcome.paced_per_s / outcome.capacity_per_s if outcome.capacity_per_s else 0.0
    return f"{share:.0%} of it"


def format_counts(counts: Mapping[str, int]) -> str:
    """In the order of the alphabet."""
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"


def format_verdicts(verdicts: Sequence[Verdict]) -> list[str]:
    """A row for each quantity, what fails first."""
    rows = sorted(verdicts, key=lambda verdict: (verdict.fault is None, verdict.name))
    return [
        "| quantity | unit | samples | median | growth | at most | per hour | at most | verdict |",
        "|---|---|---:|---:|---:|---:|---:|---:|---|",
        *(
            f"| {v.name} | {v.unit} | {v.sample_count} | {v.middle:.1f} | {v.growth:+.2f} "
            f"| {v.most:.1f} | {v.per_hour:+.1f} | {v.most_per_hour:.1f} "
            f"| {'good' if v.fault is None else '**' + v.fault + '**'} |"
            for v in rows
        ),
    ]
