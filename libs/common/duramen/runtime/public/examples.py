"""Examples for the document: one small shop's log, by call and media type.

Values only; a test checks each against its schema, so that none of them tells a lie. Examples of
problems are made from the table of errors; here is what some of them carry besides.

Called by `openapi`. Source: docs/protocol/rest.md.
"""

from __future__ import annotations

from typing import Any, Final

from duramen.config import LogConfig
from duramen.runtime.public.calls import JSON, NDJSON

_TIME: Final = "2026-11-21T03:57:06.350Z"
_START: Final = {"seq_num": 0, "timestamp": _TIME, "lsn": "e1n0", "dlsn": "e1n0s0"}
_END: Final = {"seq_num": 2, "timestamp": _TIME, "lsn": "e1n0", "dlsn": "e1n0s2"}
_LOG: Final = {"namespace": "shop", "name": "orders"}
_GRANT: Final = {"who": "user:corp/ann", "role": "owner", "scope": "shop"}
_SCOPES: Final = [{"verbs": ["append", "list"], "target": "shop/ord*"}]
_CONFIG: Final = LogConfig().to_json()

EXAMPLES: Final[dict[str, dict[str, dict[str, Any]]]] = {
    "append takes": {
        JSON: {
            "two records": {
                "records": [{"body": "one"}, {"body": "two", "headers": [["kind", "test"]]}]
            },
            "with a producer": {
                "records": [{"body": "one", "txid": 7}],
                "producer": {"id": "till-4", "epoch": 1, "seq": 0},
            },
        },
        NDJSON: {"two records": '{"body": "one"}\n{"body": "two"}\n'},
    },
    "append gives": {JSON: {"positions": {"start": _START, "end": _END, "tail": _END}}},
    "getRecords gives": {
        JSON: {
            "up to the tail": {
                "records": [
                    {"seq_num": 0, "dlsn": "e1n0s0", "timestamp": _TIME, "body": "one"},
                    {
                        "seq_num": 1,
                        "dlsn": "e1n0s1",
                        "timestamp": _TIME,
                        "headers": [["kind", "test"]],
                        "body": "two",
                    },
                ],
                "next": "seq:2",
                "tail": _END,
            }
        },
    },
    "getTail gives": {JSON: {"tail": {"tail": _END, "released": _END, "acknowledged": _END}}},
    "ensureLog takes": {
        JSON: {
            "smaller segments": {"roll": {"size": "64MiB"}},
            "copies on any bookies of three racks": {
                "copysets": "flexible",
                "replication": {"node": 3, "rack": 3},
            },
        }
    },
    "ensureLog gives": {JSON: {"the log": {**_LOG, "log_id": "5", "config": _CONFIG}}},
    "changeLog takes": {JSON: {"for ever": {"retention": {"age": None}}}},
    "truncateLog takes": {JSON: {"keep from there": {"to": "seq:2"}}},
    "truncateLog gives": {
        JSON: {
            "done": {
                "head": {"seq_num": 2, "lsn": "e1n0", "dlsn": "e1n0s2"},
                "tail": _END,
                "changed": True,
            }
        }
    },
    "fenceLog takes": {JSON: {"set": {"token": "till-4", "expected": ""}}},
    "fenceLog gives": {JSON: {"done": {"token": "till-4", "tail": _END}}},
    "ensureNamespace takes": {JSON: {"logs by themselves": {"auto_create": True}}},
    "getGrants gives": {
        JSON: {
            "one": {
                "version": 3,
                "grants": [{**_GRANT, "by": "service:operator/op", "given": _TIME}],
            }
        }
    },
    "replaceGrants takes": {JSON: {"one owner": {"grants": [_GRANT]}}},
    "makeAccessToken takes": {
        JSON: {"for a till": {"scopes": _SCOPES, "expires": "30d", "note": "till 4"}}
    },
    "listLogs gives": {JSON: {"one": {"logs": [{**_LOG, "log_id": "5"}], "has_more": False}}},
}
"""`<call> takes` and `<call> gives`: media type → title → value."""

FACTS: Final[dict[str, dict[str, Any]]] = {
    "beyond_tail": {"tail": _END},
    "condition_failed": {"expected_seq_num": 2, "tail": _END},
    "data_lost": {"next": "dlsn:e1n3s0"},
    "producer_gap": {"expected_producer_seq": 3},
}
"""What the problems of some codes carry besides."""
