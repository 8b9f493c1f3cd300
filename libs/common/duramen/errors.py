"""The one table of errors: code, HTTP status, retry advice, certainty, number on the wire.

Every refusal that leaves a process has a code of this closed list. `uncertain` is the one that
matters most: the append may have happened, and only recovery or idempotence can tell. Data-plane
answers carry the number, REST answers carry the code as RFC 9457 problem+json.

Not here: statuses of single adds and reads between sequencer and bookie (`core.status`).
Called by everybody. Source: docs/protocol/errors.md.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final, NamedTuple


class Retry(enum.Enum):
    """What a client may do with the same request."""

    NO = "no"
    AFTER = "after"
    IDEMPOTENT = "with idempotence only"
    SAFE_ONLY = "safe only"


class ErrorKind(NamedTuple):
    """One row of the table."""

    code: str
    wire: int
    status: int
    retry: Retry
    uncertain: bool
    title: str


_ROWS: Final = (
    ErrorKind("invalid_argument", 1, 400, Retry.NO, False, "an argument is not valid"),
    ErrorKind("invalid_name", 2, 400, Retry.NO, False, "a name is not valid"),
    ErrorKind("invalid_position", 3, 400, Retry.NO, False, "a position is not valid"),
    ErrorKind("unknown_field", 4, 400, Retry.NO, False, "a field is not known"),
    ErrorKind("unsupported_media", 5, 415, Retry.NO, False, "this content type is not served"),
    ErrorKind("unauthenticated", 6, 401, Retry.NO, False, "who are you"),
    ErrorKind("forbidden", 7, 403, Retry.NO, False, "you may not do this"),
    ErrorKind("namespace_not_found", 8, 404, Retry.NO, False, "no such namespace"),
    ErrorKind("log_not_found", 9, 404, Retry.NO, False, "no such log"),
    ErrorKind("segment_not_found", 10, 404, Retry.NO, False, "no such segment"),
    ErrorKind(
        "log_exists_with_other_config",
        11,
        409,
        Retry.NO,
        False,
        "exists with another configuration",
    ),
    ErrorKind("config_conflict", 12, 409, Retry.NO, False, "the configuration changed meanwhile"),
    ErrorKind("log_deleted", 13, 409, Retry.NO, False, "the log was deleted"),
    ErrorKind("log_ended", 14, 409, Retry.NO, False, "the log has ended"),
    ErrorKind("condition_failed", 15, 412, Retry.NO, False, "the condition does not hold"),
    ErrorKind("fencing_token_mismatch", 16, 412, Retry.NO, False, "another fencing token is set"),
    ErrorKind("producer_fenced", 17, 412, Retry.NO, False, "a newer producer epoch is known"),
    ErrorKind("producer_gap", 18, 412, Retry.NO, False, "a producer sequence is missing"),
    ErrorKind("producer_unknown", 19, 412, Retry.NO, False, "the producer's state has expired"),
    ErrorKind("record_too_large", 20, 413, Retry.NO, False, "a record is too large"),
    ErrorKind("batch_too_large", 21, 413, Retry.NO, False, "the batch is too large"),
    ErrorKind("too_many_records", 22, 413, Retry.NO, False, "the batch has too many records"),
    ErrorKind("beyond_tail", 23, 416, Retry.NO, False, "the position is beyond the tail"),
    ErrorKind("placement_impossible", 24, 422, Retry.NO, False, "no placement can satisfy this"),
    ErrorKind("rate_limited", 25, 429, Retry.AFTER, False, "too many requests"),
    ErrorKind(
        "append_uncertain", 26, 503, Retry.IDEMPOTENT, True, "the append may or may not be stored"
    ),
    ErrorKind("window_full", 27, 503, Retry.AFTER, False, "the log's window is full (SEQNOBUF)"),
    ErrorKind("overloaded", 28, 503, Retry.AFTER, False, "too much is waiting"),
    ErrorKind("not_enough_bookies", 29, 503, Retry.AFTER, False, "too few bookies can be reached"),
    ErrorKind("log_unavailable", 30, 503, Retry.AFTER, False, "the log is being taken over"),
    ErrorKind("metadata_unavailable", 31, 503, Retry.AFTER, False, "ZooKeeper cannot be reached"),
    ErrorKind("cold_store_unavailable", 32, 503, Retry.AFTER, False, "the cold store is down"),
    ErrorKind("server_draining", 33, 503, Retry.AFTER, False, "this server is stopping"),
    ErrorKind("data_unavailable", 34, 503, Retry.AFTER, False, "no copy can be read now"),
    ErrorKind("data_lost", 35, 410, Retry.NO, False, "an operator accepted the loss of this"),
    ErrorKind("internal", 36, 500, Retry.SAFE_ONLY, False, "the server made a mistake"),
    ErrorKind("namespace_not_empty", 37, 409, Retry.NO, False, "the namespace has logs"),
    ErrorKind("log_held", 38, 409, Retry.NO, False, "another writer has the log"),
    ErrorKind("misdirected", 39, 421, Retry.NO, False, "this server does not go by this name"),
    ErrorKind("not_acceptable", 40, 406, Retry.NO, False, "no form of this is accepted"),
    ErrorKind("needs_ordered", 41, 409, Retry.NO, False, "this needs a log with ack_mode ordered"),
    ErrorKind("mode_changing", 42, 409, Retry.NO, False, "the log's ack_mode is to change"),
    ErrorKind("not_appended", 43, 503, Retry.AFTER, False, "too few bookies took the append"),
    ErrorKind(
        "too_many_logs", 44, 429, Retry.NO, False, "the namespace has as many logs as it may"
    ),
    ErrorKind("audit_unavailable", 45, 503, Retry.AFTER, False, "it could not be recorded now"),
)

PROBLEM_FACTS: Final = ("expected_seq_num", "expected_producer_seq", "tail", "next")
"""Fields of a problem that say what a condition was compared with, and where lost records end."""

ERRORS: Final = {row.code: row for row in _ROWS}
ERRORS_BY_WIRE: Final = {row.wire: row for row in _ROWS}
assert len(ERRORS) == len(ERRORS_BY_WIRE) == len(_ROWS)


class DuramenError(Exception):
    """A refusal with a code of the table.

    Args:
        code: a code of `ERRORS`.
        detail: one sentence for a person: what is wrong and the way out.
        field: the request's field that is at fault, if one is.
        retry_after_ms: when the same request is worth sending again.
        uncertain: overrides the table where an append of unknown fate ends in `internal`.
        facts: further fields of the problem, such as what a condition was compared with.
    """

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        field: str | None = None,
        retry_after_ms: int | None = None,
        uncertain: bool | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(f"{code}: {detail}")
        self.kind = ERRORS[code]
        self.code = code
        self.detail = detail
        self.field = field
        self.retry_after_ms = retry_after_ms
        self.uncertain = self.kind.uncertain if uncertain is None else uncertain
        self.facts = dict(facts or {})

    def problem(self) -> dict[str, Any]:
        """The problem+json object of docs/protocol/errors.md."""
        problem: dict[str, Any] = {
            **self.facts,
            "type": f"urn:duramen:error:{self.code}",
            "title": self.kind.title,
            "status": self.kind.status,
            "code": self.code,
            "detail": self.detail,
            "retryable": self.kind.retry is Retry.AFTER,
            "uncertain": self.uncertain,
        }
        if self.field is not None:
            problem["field"] = self.field
        if self.kind.retry is Retry.AFTER:
            problem["retry_after_ms"] = self.retry_after_ms or 500
        return problem


class BeyondTailError(DuramenError):
    """A position lies beyond the tail, which the problem tells.

    Args:
        tail: the position P of docs/protocol/read-answers.md.
    """

    def __init__(self, detail: str, tail: dict[str, Any], *, field: str) -> None:
        super().__init__("beyond_tail", detail, field=field)
        self.tail = tail

    def problem(self) -> dict[str, Any]:
        """The problem of the table, with the tail."""
        return {**super().problem(), "tail": self.tail}


def read_problem(document: Mapping[str, Any]) -> DuramenError | None:
    """The error that a problem+json object of ours stands for; None if it is none."""
    code, detail = document.get("code"), document.get("detail")
    if code not in ERRORS or not isinstance(detail, str):
        return None
    field, retry_after_ms = document.get("field"), document.get("retry_after_ms")
    tail = document.get("tail")
    if code == "beyond_tail" and isinstance(tail, dict) and isinstance(field, str):
        return BeyondTailError(detail, tail, field=field)
    return DuramenError(
        code,
        detail,
        field=field if isinstance(field, str) else None,
        retry_after_ms=retry_after_ms if isinstance(retry_after_ms, int) else None,
        uncertain=document.get("uncertain") is True,
        facts={name: document[name] for name in PROBLEM_FACTS if name in document},
    )
