"""A request for every code of the error table that a healthy cluster can answer with.

Used by the tests of error codes of both layers. Source: docs/protocol/errors.md.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from duramen.limits import BATCH_RECORD_COUNT_MAX, RECORD_BYTES_MAX

NS: Final = "/v1/namespaces/default"
FEW: Final = "/v1/namespaces/few"
RAW: Final = "application/octet-stream"


class Ask(NamedTuple):
    """One call; `{log}` in the path is a log of the case's own."""

    method: str
    path: str
    body: bytes | dict[str, Any] | None = None
    headers: tuple[tuple[str, str], ...] = ()


LOG = NS + "/logs/{log}"
RECORDS = LOG + "/records"


def append(*headers: tuple[str, str], body: bytes = b"x") -> Ask:
    """A raw append."""
    return Ask("POST", RECORDS, body, (("content-type", RAW), *headers))


def producer(epoch: int, seq: int) -> Ask:
    """A raw append of producer `p`."""
    return append(("duramen-producer", f"p;{epoch};{seq}"))


MANY = {"records": [{"body": ""}] * (BATCH_RECORD_COUNT_MAX + 1)}
WIDE = {"replication": {"ensemble_size": 5, "write_quorum": 5, "ack_quorum": 3}}
CASES: Final[dict[str, tuple[Ask, ...]]] = {
    "invalid_argument": (Ask("GET", RECORDS + "?count=0"),),
    "invalid_name": (Ask("GET", NS + "/logs/.{log}"),),
    "invalid_position": (Ask("GET", RECORDS + "?from=yesterday"),),
    "unknown_field": (Ask("GET", RECORDS + "?form=head"),),
    "unsupported_media": (Ask("POST", RECORDS, b"x", (("content-type", "image/png"),)),),
    "not_acceptable": (Ask("GET", RECORDS, None, (("accept", "image/png"),)),),
    "namespace_not_found": (Ask("GET", "/v1/namespaces/nowhere"),),
    "log_not_found": (Ask("GET", LOG + "-other/records"),),
    "log_exists_with_other_config": (Ask("PUT", LOG, {"roll": {"interval": "1h"}}),),
    "config_conflict": (
        Ask("PATCH", LOG, {"roll": {"interval": "1h"}}),
        Ask("PATCH", LOG + "?config_version=1", {"roll": {"interval": "3h"}}),
    ),
    "log_deleted": (Ask("DELETE", LOG), Ask("PUT", LOG), Ask("POST", LOG + ":undelete")),
    "log_ended": (append(), Ask("POST", LOG + ":end"), append()),
    "condition_failed": (append(), append(("duramen-match-seq-num", "7"))),
    "fencing_token_mismatch": (append(), append(("duramen-fencing-token", "mine"))),
    "producer_fenced": (producer(1, 0), producer(0, 0)),
    "producer_gap": (producer(0, 0), producer(0, 2)),
    "producer_unknown": (producer(0, 3),),
    "record_too_large": (append(body=bytes(RECORD_BYTES_MAX + 1)),),
    "batch_too_large": (Ask("PUT", LOG, b" " * (1 << 17)),),
    "too_many_records": (Ask("POST", RECORDS, MANY),),
    "beyond_tail": (append(), Ask("GET", RECORDS + "?from=seq:9")),
    "misdirected": (Ask("GET", RECORDS, headers=(("host", "rebound.example"),)),),
    "forbidden": (Ask("POST", LOG + ":end", headers=(("origin", "http://stranger.example"),)),),
    "namespace_not_empty": (Ask("DELETE", NS),),
    "too_many_logs": (
        Ask("PUT", FEW, {"limits": {"logs": 1}}), Ask("PUT", FEW + "/logs/a"),
        Ask("PUT", FEW + "/logs/b"),
    ),
    "placement_impossible": (Ask("PUT", LOG + "-wide", WIDE),),
}  # fmt: skip
"""Code → calls: all but the last one succeed, and the last one is answered with the code."""
