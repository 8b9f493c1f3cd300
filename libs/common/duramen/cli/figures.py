"""What bulk commands report at their end, as one JSON object and as one line for people.

Bytes are those of the record bodies, without the line ends. MB is 10^6 bytes. Percentiles are by
nearest rank over the batches, each from its first try to its acknowledgement.

Called by `duramen append`, `duramen read` and the demo.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from duramen.client.bulk_append import AppendFigures
from duramen.client.bulk_read import ReadFigures
from duramen.units import agree


def find_percentile(values: Sequence[float], percent: float) -> float | None:
    """The smallest value that at least `percent` of the values do not pass; None of none."""
    if not values:
        return None
    rank = max(1, math.ceil(len(values) * percent / 100))
    return sorted(values)[rank - 1]


def summarize_append(figures: AppendFigures) -> dict[str, Any]:
    """The JSON object of `duramen append --json`."""
    is_early = figures.end_seq_num is None and figures.last_dlsn is not None
    return {
        "records": figures.record_count,
        "bytes": figures.body_bytes,
        "seconds": round(figures.seconds, 6),
        "mb_per_s": _rate(figures.body_bytes, figures.seconds),
        "append_p50_ms": _percentile_ms(figures.latencies_s, 50),
        "append_p99_ms": _percentile_ms(figures.latencies_s, 99),
        "first_seq_num": figures.first_seq_num,
        "end_seq_num": figures.end_seq_num,
        "batches": figures.batch_count,
        **({"last_dlsn": figures.last_dlsn} if is_early else {}),
    }


def summarize_read(figures: ReadFigures) -> dict[str, Any]:
    """The same for a read."""
    return {
        "records": figures.record_count,
        "bytes": figures.body_bytes,
        "seconds": round(figures.seconds, 6),
        "mb_per_s": _rate(figures.body_bytes, figures.seconds),
        "first_seq_num": figures.first_seq_num,
        "end_seq_num": figures.end_seq_num,
        "answers": figures.answer_count,
        **({"missing": figures.missing_count} if figures.missing_count else {}),
    }


def format_figures(summary: dict[str, Any]) -> str:
    """One line of either."""
    text = (
        agree(f"{summary['records']:,} records, {summary['bytes'] / 1e6:,.1f} MB ")
        + f"in {summary['seconds']:.2f} s"
    )
    if summary["mb_per_s"] is not None:
        text += f": {summary['mb_per_s']:.1f} MB/s"
    if summary.get("append_p50_ms") is not None:
        text += (
            agree(f"; {summary['batches']:,} appends, ")
            + f"p50 {summary['append_p50_ms']:.1f} ms, "
            f"p99 {summary['append_p99_ms']:.1f} ms"
        )
    if summary["end_seq_num"] is not None:
        text += f"; seq {summary['first_seq_num']} … {summary['end_seq_num'] - 1}"
    elif "last_dlsn" in summary:
        text += f"; the last batch at {summary['last_dlsn']}, its sequence number is not known yet"
    if summary.get("missing"):
        text += agree(f"; {summary['missing']:,} numbers in holes")
    return text


def _rate(size_bytes: int, seconds: float) -> float | None:
    return round(size_bytes / 1e6 / seconds, 3) if seconds > 0 else None


def _percentile_ms(latencies_s: Sequence[float], percent: float) -> float | None:
    found = find_percentile(latencies_s, percent)
    return None if found is None else round(found * 1000, 3)
