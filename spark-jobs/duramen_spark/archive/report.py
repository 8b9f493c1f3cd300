"""What a run did, for people, for programs and for Prometheus.

Counted as it happens, so that a run that fails in the middle still tells what it finished. The
metrics are written as a text file, which a node exporter's textfile collector picks up: a job lives
too shortly to be scraped.

Called by `driver` (fills it) and the command (prints it). Source: docs/archive.md "Reading the
report".
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from duramen.units import MIB, SECOND

_SHOWN_COUNT: Final = 20
_SUMMARY_CHARACTERS: Final = 500


@dataclass(slots=True)
class RunReport:
    """Counters of one run.

    Attributes:
        outcomes: segments by what became of them (`commit.SegmentOutcome`), and "failed".
        skipped: segments by why they were left alone (`policy.ArchiveVerdict`).
        entry_bytes: that were read from bookies; `file_bytes`: that were written.
        segments: a row for each segment that something was done with.
        failures, mismatches: sentences; a mismatch is a copy that is not what it should be.
        lag_us: how long the oldest segment waits that is to be archived and is not; 0: none is.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    record_count: int = 0
    entry_count: int = 0
    entry_bytes: int = 0
    file_count: int = 0
    file_bytes: int = 0
    rechecked_count: int = 0
    removed_file_count: int = 0
    segments: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    mismatches: list[str] = field(default_factory=list)
    lag_us: int = 0
    elapsed_us: int = 0

    @property
    def is_good(self) -> bool:
        """Whether everything that was to be done was done, and nothing was found broken."""
        return not self.failures and not self.mismatches

    @property
    def bytes_per_s(self) -> float:
        """Entry bytes over the whole run's time, reading back included."""
        return self.entry_bytes * SECOND / max(1, self.elapsed_us)

    def to_json(self) -> dict[str, Any]:
        """The report as one JSON object."""
        return {
            "ok": self.is_good,
            "segments": dict(sorted(self.outcomes.items())),
            "skipped": dict(sorted(self.skipped.items())),
            "records": self.record_count,
            "entries": self.entry_count,
            "entry_bytes": self.entry_bytes,
            "files": self.file_count,
            "file_bytes": self.file_bytes,
            "rechecked": self.rechecked_count,
            "removed_files": self.removed_file_count,
            "seconds": round(self.elapsed_us / SECOND, 3),
            "bytes_per_s": round(self.bytes_per_s),
            "lag_seconds": round(self.lag_us / SECOND, 3),
            "mismatches": self.mismatches,
            "failures": self.failures,
            "rows": self.segments,
        }

    def summarize(self) -> dict[str, Any]:
        """The report in a few hundred bytes, for a place that keeps no more (Kubernetes: 4 KiB)."""
        summary = {name: value for name, value in self.to_json().items() if name != "rows"}
        summary["mismatches"], summary["failures"] = len(self.mismatches), len(self.failures)
        if self.mismatches or self.failures:
            summary["failure"] = [*self.mismatches, *self.failures][0][:_SUMMARY_CHARACTERS]
        return summary

    def list_lines(self) -> list[str]:
        """The report as lines of text."""
        lines = [f"{_format_row(row)}" for row in self.segments[:_SHOWN_COUNT]]
        if len(self.segments) > _SHOWN_COUNT:
            lines.append(f"… and {len(self.segments) - _SHOWN_COUNT} more segments")
        lines += [f"MISMATCH {text}" for text in self.mismatches[:_SHOWN_COUNT]]
        lines += [f"FAILED {text}" for text in self.failures[:_SHOWN_COUNT]]
        done = ", ".join(f"{count} {name}" for name, count in sorted(self.outcomes.items()))
        left = ", ".join(f"{count} {name}" for name, count in sorted(self.skipped.items()))
        lines.append(f"segments: {done or 'none'} (left alone: {left or 'none'})")
        lines.append(
            f"{self.record_count:,} records, {self.entry_bytes:,} bytes of entries, "
            f"{self.file_count} files of {self.file_bytes:,} bytes, "
            f"{self.elapsed_us / SECOND:.1f} s, {self.bytes_per_s / MIB:.1f} MiB/s; "
            f"{self.rechecked_count} copies looked at again, "
            f"{self.removed_file_count} files removed, {len(self.mismatches)} mismatches"
        )
        return lines

    def list_metrics(self, finished_unix_s: float) -> list[str]:
        """Lines of Prometheus' text format."""
        gauges: Sequence[tuple[str, str, float]] = [
            ("lag_seconds", "age of the oldest segment that waits", self.lag_us / SECOND),
            ("run_records", "records archived by the last run", self.record_count),
            ("run_entry_bytes", "bytes of entries it read", self.entry_bytes),
            ("run_file_bytes", "bytes of files it wrote", self.file_bytes),
            ("run_segments", "segments it archived", self.outcomes["archived"]),
            ("run_mismatches", "copies that it found to be broken", len(self.mismatches)),
            ("run_failures", "segments that it could not archive", len(self.failures)),
            ("run_seconds", "how long it took", self.elapsed_us / SECOND),
            ("run_finished_unix_seconds", "when it ended", finished_unix_s),
        ]
        lines = []
        for name, text, value in gauges:
            lines += [
                f"# HELP duramen_archive_{name} {text[0].upper()}{text[1:]}.",
                f"# TYPE duramen_archive_{name} gauge",
                f"duramen_archive_{name} {value:.15g}",
            ]
        return lines


def write_metrics(path: Path, lines: Sequence[str]) -> None:
    """Replace the file at once: a collector never reads half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    temporary.rename(path)


def write_summary(path: Path, report: RunReport) -> None:
    """Write the summary where it is looked for; in place, since that may be no common file."""
    path.write_text(json.dumps(report.summarize()), encoding="utf-8")


def write_failure(path: Path, error: Exception) -> None:
    """Write the summary of a run that came to no report: its one sentence, on one line.

    What others raise is named by its class as well: its text alone may say nothing, or be missing.
    """
    text = " ".join(str(error).split())
    if not type(error).__module__.startswith("duramen"):
        text = f"{type(error).__name__}: {text}"
    summary = {"ok": False, "failure": text[:_SUMMARY_CHARACTERS]}
    path.write_text(json.dumps(summary), encoding="utf-8")


def _format_row(row: dict[str, Any]) -> str:
    return (
        f"{row['log']} e{row['epoch']}  {row['outcome']}  {row['records']:,} records  "
        f"{row['entry_bytes']:,} bytes  {row['files']} files"
    )
