"""What stands in a table where records do not: a row that tells which are missing, and why.

A hole has a row always: what lay there was never acknowledged, so nothing is gone. What is gone has
one with `on_truncation = skip`; `fail` ends the query with the same facts. A gap's row has the
log's name and `gap`, and null everywhere else.
Called by `reading.hot` and `reading.cold`. Source: docs/protocol/read-answers.md, docs/spark.md.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

import pyarrow as pa

from duramen.errors import DuramenError


class GapReason(Enum):
    """Why records are missing."""

    TRUNCATED = "truncated"
    LOST = "lost"
    DELETED = "deleted"
    HOLE = "hole"


class RecordGap(NamedTuple):
    """Sequence numbers `first` up to, not including, `end` have no records any more.

    `end` is None where nobody knows it: the log was deleted, and another has its name.
    """

    reason: GapReason
    first: int
    end: int | None


def make_gap_row(gap: RecordGap, log: tuple[str, str], schema: pa.Schema) -> pa.RecordBatch:
    """One row that stands for a gap."""
    facts = {"reason": gap.reason.value, "first_seq_num": gap.first, "end_seq_num": gap.end}
    known: dict[str, Any] = {"namespace": log[0], "log": log[1], "gap": facts}
    arrays = [pa.array([known.get(field.name)], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def refuse_gap(gap: RecordGap, log: tuple[str, str]) -> DuramenError:
    """The error that a gap is where records must not be missing."""
    last = "the end" if gap.end is None else gap.end - 1
    what = f"records {gap.first} to {last} of {'/'.join(log)} are {gap.reason.value}"
    detail = f"{what}, and were not read; option on_truncation=skip goes on with a row that says so"
    return DuramenError("data_lost", detail)
