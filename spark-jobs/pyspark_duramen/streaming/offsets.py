"""How far a streaming query has read each log, and how much further a micro-batch goes.

An offset says for each log its id, so that a log that was deleted and made anew is another one;
where reading of it began, so that the first micro-batch can be repeated exactly; and the next
sequence number. Spark keeps offsets as JSON in its checkpoint: version 1 is
`{"namespace/log": {"id": "5", "first": 0, "seq": 100}}`.

Pure. Called by `streaming.reader`. Source: docs/spark.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

LogName = tuple[str, str]


class LogOffset(NamedTuple):
    """Of one log: everything from `first` up to, not including, `seq` was read."""

    log_id: str
    first: int
    seq: int


Offsets = dict[LogName, LogOffset]


def encode_offsets(offsets: Mapping[LogName, LogOffset]) -> dict[str, Any]:
    """As Spark keeps them; the same offsets are the same text, which Spark compares."""
    return {
        "/".join(log): {"id": each.log_id, "first": each.first, "seq": each.seq}
        for log, each in sorted(offsets.items())
    }


def read_offsets(document: Mapping[str, Any]) -> Offsets:
    """The offsets of a checkpoint.

    Raises:
        ValueError: it is none of this source.
    """
    try:
        found = {}
        for text, each in document.items():
            namespace, _, name = text.partition("/")
            offset = LogOffset(str(each["id"]), int(each["first"]), int(each["seq"]))
            found[namespace, name] = offset
        return found
    except (LookupError, TypeError, ValueError) as error:
        raise ValueError(f"the checkpoint has no offsets of logs: {document!r}") from error


def find_begin(before: LogOffset | None, after: LogOffset) -> int:
    """Where a micro-batch begins in a log that it leaves at `after`.

    A log that is new in it begins where its offset says. So does one whose offset before says
    otherwise: then the first micro-batch is repeated, and Spark has asked for a start anew, which
    may be another one by now (`from=tail`).
    """
    is_going_on = before is not None and before[:2] == after[:2]
    return before.seq if before is not None and is_going_on else after.first


def share(lags: Mapping[LogName, int], most: int) -> dict[LogName, int]:
    """How many of `most` records each log may give: in proportion to its lag, never more.

    Together they give all of `most`, or everything there is; ties go by name.
    """
    total = sum(lags.values())
    if total <= most:
        return dict(lags)
    shares = {log: most * lag // total for log, lag in lags.items()}
    rest = most - sum(shares.values())
    for log in sorted(lags, key=lambda log: (most * lags[log] % total * -1, log)):
        if rest <= 0:
            break
        if shares[log] < lags[log]:
            shares[log] += 1
            rest -= 1
    return shares
