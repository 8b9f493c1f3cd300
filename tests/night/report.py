"""The report of a night: one page of Markdown, verdict first.

Called by `tests.night.__main__`.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

from tests.night.commands import ROOT
from tests.night.stages import Finding


class Played(NamedTuple):
    """A stage that was carried out."""

    name: str
    finding: Finding
    took_s: float


def format_report(played: Sequence[Played], *, began: str, took_s: float) -> str:
    """The page.

    Args:
        began: the wall clock at the start, as people write it.
    """
    count = sum(len(one.finding.faults) for one in played)
    verdict = "nothing failed" if count == 0 else f"{count} failed" if count > 1 else "one failed"
    lines = [
        f"# Night of {began}: {verdict}",
        "",
        f"Commit {_read_commit()}, {os.cpu_count()} processors, Python "
        f"{platform.python_version()}, {took_s / 60:.0f} minutes.",
        "",
        "| stage | verdict | minutes |",
        "|---|---|---|",
    ]
    lines += [
        f"| {one.name} | {'FAILED' if one.finding.faults else 'passed'} | {one.took_s / 60:.1f} |"
        for one in played
    ]
    for one in played:
        lines += ["", f"## {one.name}", ""]
        lines += [f"- **{fault}**" for fault in one.finding.faults]
        lines += ["```text", *one.finding.lines, "```"] if one.finding.lines else []
        for detail in one.finding.details:
            lines += ["", "```text", detail.rstrip(), "```"]
    return "\n".join(lines) + "\n"


def _read_commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.strip() or "unknown (no checkout)"
