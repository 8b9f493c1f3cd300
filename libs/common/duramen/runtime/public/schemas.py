"""JSON schemas of everything that a public call takes or gives, by the name it has in the document.

Limits come from where the code has them, configurations from their models, problems from the one
table of errors. What a schema cannot say (quorums that fit each other, a time-out's bound) the
description says, and the code refuses. Answers of later versions may have more members: only what
a client sends is closed.

Called by `openapi`. Source: docs/protocol/rest.md, docs/protocol/errors.md.
"""

from __future__ import annotations

from typing import Any, Final

from duramen.config import LogConfig, NamespaceConfig
from duramen.errors import ERRORS
from duramen.limits import BATCH_RECORD_COUNT_MAX, FENCING_TOKEN_BYTES_MAX, SEQ_NUM_MAX
from duramen.texts import LAST_TIME_MS

Schema = dict[str, Any]

HEADER_COUNT_MAX: Final = 1_000
PRODUCER_ID_PATTERN: Final = "^[ -~]{1,64}$"
_NUMBER_PATTERN: Final = "[0-9]{1,15}"
_EPOCH_PATTERN: Final = "e[1-9][0-9]{0,8}n[0-9]{1,9}"
_PLACE: Final = (
    f"head|tail(-{_NUMBER_PATTERN})?|(seq:)?{_NUMBER_PATTERN}"
    f"|lsn:{_EPOCH_PATTERN}|dlsn:{_EPOCH_PATTERN}s[0-9]{{1,9}}"
)
PLACE_PATTERN: Final = f"^({_PLACE})$"
"""Positions that name a place: what a log may be truncated to."""

_TIME_PATTERN: Final = "[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}.{1,30}"
POSITION_PATTERN: Final = (
    f"^({_PLACE}|txid:[0-9]{{1,19}}|time:([0-9]{{1,15}}|{_TIME_PATTERN})"
    "|ago:([0-9]{1,15}(ms|us|d|h|m|s))+)$"
)


def text(description: str, **more: Any) -> Schema:
    """A string."""
    return {"type": "string", "description": description, **more}


def number(description: str, *, least: int = 0, most: int = SEQ_NUM_MAX) -> Schema:
    """A whole number within bounds."""
    return {"type": "integer", "minimum": least, "maximum": most, "description": description}


def reference(name: str) -> Schema:
    """A schema by its name."""
    return {"$ref": f"#/components/schemas/{name}"}


def listed(items: Schema, **more: Any) -> Schema:
    """An array."""
    return {"type": "array", "items": items, **more}


def answered(members: dict[str, Schema], optional: tuple[str, ...] = ()) -> Schema:
    """An object of an answer; later versions may have more members."""
    required = [name for name in members if name not in optional]
    return {"type": "object", "required": required, "properties": members}


def taken(members: dict[str, Schema], required: tuple[str, ...] = ()) -> Schema:
    """An object that a client sends: a member that is not known is refused."""
    closed: Schema = {"type": "object", "properties": members, "additionalProperties": False}
    return {**closed, "required": list(required)} if required else closed


def nullable(schema: Schema) -> Schema:
    """The schema, or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def make_schemas() -> dict[str, Schema]:
    """All of them, by name."""
    return {
        **_make_config("LogConfig", LogConfig),
        **_make_config("NamespaceConfig", NamespaceConfig),
        **_ANSWERS,
        **_REQUESTS,
        "Problem": _make_problem(),
    }


def _make_config(name: str, model: type[LogConfig | NamespaceConfig]) -> dict[str, Schema]:
    """The model's schema and its parts', with defaults as a client would write them."""
    whole = model.model_json_schema(ref_template="#/components/schemas/{model}")
    parts: dict[str, Schema] = whole.pop("$defs", {})
    defaults = model().to_json()
    for part_name, part in parts.items():
        _tidy(part, defaults[part_name.lower()])
    _tidy(whole, defaults)
    return {name: whole, **parts}


def _tidy(schema: Schema, defaults: dict[str, Any]) -> None:
    """Leave out what repeats a member's name or speaks of the code; defaults in their text form."""
    schema.pop("title", None)
    if "description" in schema:
        schema["description"] = schema["description"].split("\n")[0].partition(";")[0]
    for member, described in schema["properties"].items():
        described.pop("title", None)
        described["default"] = defaults[member]


def _make_problem() -> Schema:
    mark = reference("EarlyMark")
    return {
        "type": "object",
        "description": "RFC 9457. Programs decide by `code`, `retryable` and `uncertain`.",
        "required": ["type", "title", "status", "code", "detail", "retryable", "uncertain"],
        "properties": {
            "type": text("urn:duramen:error: and the code"),
            "title": text("the same for every problem of the code"),
            "status": {"type": "integer", "minimum": 400, "maximum": 599},
            "code": {"enum": list(ERRORS), "description": "the closed list of errors.md"},
            "detail": text("what is wrong and the way out, for people; not to be parsed"),
            "field": text("the parameter, header or member at fault"),
            "retryable": {"type": "boolean", "description": "the same request may be sent again"},
            "uncertain": {"type": "boolean", "description": "it may have happened, or may yet"},
            "expected_seq_num": number("what match_seq_num would have had to be"),
            "expected_producer_seq": number("the producer's next sequence"),
            "tail": {**mark, "description": "the tail that a condition was compared with"},
            "next": text(
                "of `data_lost`: the `from` at which the log goes on",
                pattern="^dlsn:e[0-9]+n[0-9]+s[0-9]+$",
            ),
            "retry_after_ms": number("when to try again", least=1),
        },
    }


_NAME: Final = {"type": "string"}
_NUMBER: Final = number("a sequence number")
_TIMESTAMP: Final = text("RFC 3339 in UTC with milliseconds", format="date-time")
_LSN: Final = text("e<epoch>n<entry>", pattern="^e[0-9]+n[0-9]+$")
_DLSN: Final = text("e<epoch>n<entry>s<slot>", pattern="^e[0-9]+n[0-9]+s[0-9]+$")
_ID: Final = text("a number as text", pattern="^[0-9]+$")
_HEADERS: Final = listed(
    listed({"type": "string"}, minItems=2, maxItems=2), description="pairs of name and value"
)
_NEXT: Final = text("the `from` of the request that goes on", pattern="^seq:[0-9]+$")
_LOG_NAMES: Final = {"namespace": _NAME, "name": _NAME}

_ANSWERS: Final[dict[str, Schema]] = {
    "Mark": {
        **answered(
            {"seq_num": _NUMBER, "timestamp": nullable(_TIMESTAMP), "lsn": _LSN, "dlsn": _DLSN}
        ),
        "description": "a place between two records; `seq_num` is the next record's; `timestamp` "
        "null: the log has had no record",
    },
    "EarlyMark": {
        **answered(
            {
                "seq_num": nullable(_NUMBER),
                "timestamp": nullable(_TIMESTAMP),
                "lsn": _LSN,
                "dlsn": _DLSN,
            }
        ),
        "description": "as Mark; the number may not be known yet (`early_append`)",
    },
    "Head": answered({"seq_num": _NUMBER, "lsn": _LSN, "dlsn": _DLSN}, optional=("lsn",)),
    "Appended": answered(
        {
            "start": nullable(reference("EarlyMark")),
            "end": nullable(reference("Mark")),
            "tail": nullable(reference("Mark")),
            "duplicate": {"const": True, "description": "it was in the log already"},
        },
        optional=("duplicate",),
    ),
    "Record": answered(
        {
            "seq_num": _NUMBER,
            "dlsn": _DLSN,
            "txid": {"type": "integer", "minimum": 0},
            "timestamp": _TIMESTAMP,
            "format": {
                "const": "base64",
                "description": "body, header names and values of this record are base64, since "
                "one of them is not UTF-8; left out where base64 was asked for",
            },
            "headers": _HEADERS,
            "body": text("UTF-8, or base64 where `format` says so or that was asked for"),
        },
        optional=("txid", "format", "headers"),
    ),
    "Records": answered(
        {
            "records": listed(reference("Record")),
            "next": _NEXT,
            "tail": {**reference("Mark"), "description": "the end of what may be read was reached"},
            "ended": {"const": True, "description": "the log has ended: nothing follows"},
            "moved_to": {
                **reference("Head"),
                "description": "the position was truncated: this is the oldest record",
            },
        },
        optional=("tail", "ended", "moved_to"),
    ),
    "Tail": answered({"tail": reference("Mark")}),
    "Segment": answered(
        {
            "epoch": {"type": "integer", "minimum": 1},
            "ledger_id": _ID,
            "state": {"enum": ["OPEN", "IN_RECOVERY", "CLOSED"]},
            "status": {"enum": ["LIVE", "PARTIALLY_TRUNCATED", "TRUNCATED"]},
            "min_active_dlsn": nullable(_DLSN),
            "first_entry": {"type": "integer"},
            "last_entry": nullable({"type": "integer", "minimum": -1}),
            "lost": listed(listed({"type": "integer"}), description="ranges of entries given up"),
            "start_seq_num": nullable(_NUMBER),
            "records": nullable(_NUMBER),
            "bytes": nullable({"type": "integer", "minimum": 0}),
            "first_txid": nullable({"type": "integer", "minimum": 0}),
            "last_txid": nullable({"type": "integer", "minimum": 0}),
            "first_timestamp": nullable(_TIMESTAMP),
            "last_timestamp": nullable(_TIMESTAMP),
            "created": _TIMESTAMP,
            "completed": nullable(_TIMESTAMP),
            "cold_copy": nullable(reference("ColdCopy")),
            "hot_copies": {"enum": ["kept", "released"]},
            "ensemble_size": {"type": "integer"},
            "write_quorum": {"type": "integer"},
            "ack_quorum": {"type": "integer"},
            "fragments": listed(reference("Fragment")),
        }
    ),
    "ColdCopy": {
        **answered(
            {
                "attempt": text("of the archive: 32 hex digits"),
                "manifest_sha256": text("64 hex digits"),
                "bytes": {"type": "integer", "minimum": 0},
                "verified": _TIMESTAMP,
                "rechecked": nullable(_TIMESTAMP),
            }
        ),
        "description": "the whole segment in the cold store, compared with the hot copies",
    },
    "Fragment": answered(
        {
            "first_entry": {"type": "integer", "minimum": 0},
            "ensemble": listed(answered({"bookie": _NAME, "incarnation": _NAME})),
        }
    ),
    "Segments": answered({"segments": listed(reference("Segment"), description="oldest first")}),
    "Namespace": answered({"namespace": _NAME, "config": reference("NamespaceConfig")}),
    "NamespaceChanged": answered(
        {
            "namespace": _NAME,
            "config": reference("NamespaceConfig"),
            "changed": {"type": "boolean"},
        }
    ),
    "NamespaceDeleted": answered({"namespace": _NAME, "changed": {"type": "boolean"}}),
    "Namespaces": answered(
        {"namespaces": listed(answered({"namespace": _NAME})), "has_more": {"type": "boolean"}}
    ),
    "LogMade": answered({**_LOG_NAMES, "log_id": _ID, "config": reference("LogConfig")}),
    "Log": answered(
        {
            **_LOG_NAMES,
            "log_id": _ID,
            "config": reference("LogConfig"),
            "config_version": {"type": "integer", "minimum": 1},
            "ended": {"type": "boolean"},
            "head": {**reference("Head"), "description": "the first live record"},
        }
    ),
    "LogChanged": answered(
        {
            **_LOG_NAMES,
            "log_id": _ID,
            "config": reference("LogConfig"),
            "config_version": {"type": "integer", "minimum": 1},
            "changed": {"type": "boolean"},
        }
    ),
    "Logs": answered(
        {"logs": listed(answered({**_LOG_NAMES, "log_id": _ID})), "has_more": {"type": "boolean"}}
    ),
    "Rolled": answered({**_LOG_NAMES, "epoch": nullable({"type": "integer", "minimum": 1})}),
    "Truncated": answered(
        {"head": reference("Head"), "tail": reference("Mark"), "changed": {"type": "boolean"}}
    ),
    "Ended": answered({"log_id": _ID, "ended": {"const": True}, "tail": reference("Mark")}),
    "Deleted": answered({"log_id": _ID, "undelete_until": _TIMESTAMP}),
    "Fenced": answered({"token": _NAME, "tail": reference("Mark")}),
}  # fmt: skip

_TXID: Final = number(
    "rises along the log; all records of a batch have one, or none", most=2**63 - 1
)
_TOKEN: Final = text(
    f"at most {FENCING_TOKEN_BYTES_MAX} bytes; empty: none", maxLength=FENCING_TOKEN_BYTES_MAX
)

_REQUESTS: Final[dict[str, Schema]] = {
    "NewRecord": taken(
        {
            "body": text("UTF-8, or base64 with `Duramen-Format: base64`"),
            "headers": listed(
                {
                    "type": "array",
                    "prefixItems": [{"type": "string", "minLength": 1}, {"type": "string"}],
                    "minItems": 2,
                    "maxItems": 2,
                },
                maxItems=HEADER_COUNT_MAX,
            ),
            "timestamp": {
                "description": "RFC 3339 with a zone, or unix ms; default: when it arrives",
                "anyOf": [
                    {"type": "integer", "minimum": 0, "maximum": LAST_TIME_MS},
                    {"type": "string", "format": "date-time"},
                ],
            },
            "txid": _TXID,
        },
        required=("body",),
    ),
    "Producer": taken(
        {
            "id": text("chosen by the client", pattern=PRODUCER_ID_PATTERN),
            "epoch": number("fences every lower one of the id"),
            "seq": number("counts the batches of (log, id, epoch) from 0"),
        },
        required=("id", "epoch", "seq"),
    ),
    "NewRecords": taken(
        {
            "records": listed(
                reference("NewRecord"), minItems=1, maxItems=BATCH_RECORD_COUNT_MAX
            ),
            "match_seq_num": number("the first record must get this sequence number"),
            "fencing_token": _TOKEN,
            "producer": reference("Producer"),
        },
        required=("records",),
    ),
    "Truncation": taken(
        {
            "to": {
                "description": "the first record to keep",
                "anyOf": [
                    {"type": "string", "pattern": PLACE_PATTERN},
                    {"type": "integer", "minimum": 0, "maximum": SEQ_NUM_MAX},
                ],
            }
        },
        required=("to",),
    ),
    "Token": taken(
        {
            "token": _TOKEN,
            "expected": {**_TOKEN, "description": "only in place of this one"},
        },
        required=("token",),
    ),
    "Nothing": taken({}),
}  # fmt: skip
