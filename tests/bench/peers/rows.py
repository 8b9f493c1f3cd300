"""What one measured run gives: a row, of whichever product, with CPU of servers and clients.

The peers' scripts append a JSON object for each run to a file; our own loads write the same. A
workload has a name such as `W1-tuned`: a family (`W1`, one log as fast as it goes; `W1b`, one in
flight; `W5`, 1,000 a second, open loop; `W3-100`, a hundred logs; `W7`, catching up) and how it was
done. Rows of a machine that others kept busy, and of a weaker promise, are set aside.

Called by `python -m tests.bench.peers`. Source: docs/benchmarks.md "Beside real peers".
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

OWN: Final = "duramen"
FAMILIES: Final = ("W3-100", "W1b", "W5", "W7", "W1")
"""A family is found by the first that fits: longer names come first."""

OTHER_CPU_RATIO_MAX: Final = 0.15
"""Of all cores' time; with more than that taken by others a run says little."""


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One run of one workload.

    Times are in milliseconds, rates in records and 10^6 bytes a second; `record_count` counts what
    the CPU was used for, warm-up included.
    """

    peer: str
    kind: str
    workload: str
    size_bytes: int
    record_count: int
    records_per_s: float
    mb_per_s: float
    server_cpu_s: float
    client_cpu_s: float
    other_cpu_s: float
    wall_s: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    errors: int = 0

    @property
    def family(self) -> str:
        """What it is compared with; "": nothing."""
        fits = (f for f in FAMILIES if self.workload == f or self.workload.startswith(f"{f}-"))
        return next(fits, "")

    @property
    def server_cpu_us(self) -> float:
        """CPU of all servers, a record."""
        return self.server_cpu_s / self.record_count * 1e6

    @property
    def client_cpu_us(self) -> float:
        """CPU of the client, a record."""
        return self.client_cpu_s / self.record_count * 1e6

    def explain_doubt(self) -> str:
        """Why it is set aside; "": it counts."""
        if self.errors:
            return f"{self.errors} records failed"
        if self.kind.startswith("D0") or self.kind == "D1":
            return f"class {self.kind}: acknowledged before a quorum has synced"
        share = self.other_cpu_s / (self.wall_s * (os.cpu_count() or 1))
        if share > OTHER_CPU_RATIO_MAX:
            return f"others took {share:.0%} of the CPU"
        return ""

    def to_json(self) -> dict[str, Any]:
        """For a program."""
        return dataclasses.asdict(self)


def read_row(document: Mapping[str, Any]) -> Row:
    """A line of the scripts' results.

    Raises:
        ValueError: a field is missing, or no number.
    """
    try:
        return Row(
            peer=str(document["peer"]),
            kind=str(document["cls"]),
            workload=str(document["wl"]),
            size_bytes=int(document["size"]),
            record_count=int(document.get("recs_total", document["recs"])),
            records_per_s=float(document["rec_s"]),
            mb_per_s=float(document["MB_s"]),
            server_cpu_s=float(document["srv_cpu"]),
            client_cpu_s=float(document["cli_cpu"]),
            other_cpu_s=float(document["other_cpu"]),
            wall_s=float(document["wall"]),
            p50_ms=_read_number(document.get("p50")),
            p99_ms=_read_number(document.get("p99")),
            errors=int(document.get("errors", 0)),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"a row without {error}: {dict(document)}") from error


def read_rows(path: Path) -> list[Row]:
    """All lines of such a file; none where there is no file.

    Raises:
        ValueError: as `read_row`.
    """
    if not path.exists():
        return []
    return [read_row(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def sift(rows: Iterable[Row]) -> tuple[list[Row], list[str]]:
    """Those that count, and a line for each that does not."""
    kept, doubts = [], []
    for row in rows:
        doubt = row.explain_doubt()
        if doubt:
            doubts.append(f"{row.peer} {row.workload} {row.size_bytes} B: {doubt}")
        elif row.family:
            kept.append(row)
    return kept, doubts


def _read_number(value: object) -> float | None:
    return None if value is None else float(str(value))
