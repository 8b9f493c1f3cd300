"""The OpenAPI 3.1 document of REST v1: one, the same at every proxy, made from the table of calls.

`make_document` puts together calls, schemas and the table of errors; nothing about a call is said
twice. The committed copy is docs/protocol/openapi.json, compared by a test.

Called by `serving`. Source: docs/protocol/rest.md "Either proxy".
"""

from __future__ import annotations

import re
from functools import cache
from itertools import groupby
from typing import Any, Final

import orjson

from duramen.core.rights.grants import TOKEN_ID_PATTERN
from duramen.errors import ERRORS, DuramenError, Retry
from duramen.limits import (
    APPEND_TIMEOUT_MAX_US,
    FENCING_TOKEN_BYTES_MAX,
    LONG_POLL_MAX_US,
    READ_BYTES_MAX,
    SEQ_NUM_MAX,
)
from duramen.runtime.public.calls import (
    BATCH,
    BATCH_STREAM,
    CALLS,
    EVENTS,
    NDJSON,
    PROBLEM,
    Given,
    PublicCall,
)
from duramen.runtime.public.examples import EXAMPLES, FACTS
from duramen.runtime.public.schemas import (
    POSITION_PATTERN,
    SCOPE_PATTERN,
    Schema,
    make_schemas,
    name_of,
    reference,
)
from duramen.runtime.rights.route_verbs import FIELD as VERB_FIELD
from duramen.units import DURATION_PATTERN, SIZE_PATTERN, format_duration, format_size

VERSION: Final = "1"
"""Of the contract: what v1 means only grows."""

LIST_COUNT_MAX: Final = 1_000
READ_COUNT_MAX: Final = 10_000

NAMESPACE_PATTERN: Final = "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
LOG_ID_PATTERN: Final = "^[1-9][0-9]{0,9}$"
LOG_PATTERN: Final = "^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$"

_DESCRIPTION: Final = """\
A replicated log service: durable, totally ordered, append-only logs. Either proxy answers every
call. Every refusal is a problem with a `code` of the closed list; what a client decides on are
`retryable` and `uncertain`. An answer may get more members in later versions, and a client passes
over those that it does not know; a parameter or member that the server does not know is refused.
Pages of origins that the server was told of may make every call (CORS, without credentials)."""


@cache
def encode_document() -> bytes:
    """The document as it is served and committed."""
    return orjson.dumps(make_document(), option=orjson.OPT_INDENT_2) + b"\n"


def make_document() -> dict[str, Any]:
    """The document."""
    paths: dict[str, dict[str, Any]] = {}
    for call in CALLS:
        paths.setdefault(call.path, {"parameters": _path_parameters(call.path)})
        paths[call.path][call.method.lower()] = _describe(call)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Duramen",
            "version": VERSION,
            "summary": "REST v1",
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": make_schemas(),
            "parameters": _PARAMETERS,
            "headers": _HEADERS,
            "examples": {code: {"value": _example_of(code)} for code in ERRORS},
        },
    }


def codes_by_status(call: PublicCall) -> dict[int, tuple[str, ...]]:
    """The codes that a call may be refused with, by HTTP status."""
    kinds = sorted((ERRORS[code] for code in set(call.codes)), key=lambda kind: kind.status)
    found = {
        status: tuple(kind.code for kind in sorted(group, key=lambda kind: kind.wire))
        for status, group in groupby(kinds, key=lambda kind: kind.status)
    }
    if call.method == "GET":
        found[406] = ("not_acceptable",)
    # A name with a slash in it is another path, and there is none.
    found[404] = ("invalid_argument", *found.get(404, ()))
    return dict(sorted(found.items()))


def _describe(call: PublicCall) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": call.name,
        "summary": call.summary,
        "description": call.description,
        "x-duramen-proxy": call.side.value,
        VERB_FIELD: call.verb.value,
    }
    if call.parameters:
        described["parameters"] = [
            {"$ref": f"#/components/parameters/{name}"} for name in call.parameters
        ]
    if call.body is not None:
        content = {media: _content(media, name) for media, name in call.body.items()}
        _add_examples(content, f"{call.name} takes")
        described["requestBody"] = {"content": content, "required": call.needs_body}
    answers = {str(status): _give(given, call) for status, given in call.given.items()}
    refusals = {
        str(status): _refuse(status, codes) for status, codes in codes_by_status(call).items()
    }
    described["responses"] = {**answers, **refusals}
    return described


def _give(given: Given, call: PublicCall) -> dict[str, Any]:
    described: dict[str, Any] = {"description": given.description}
    if given.headers:
        described["headers"] = {
            name: {"$ref": f"#/components/headers/{name}"} for name in given.headers
        }
    if given.forms:
        content = {
            media: _content(media, None if model is None else name_of(model))
            for media, model in given.forms.items()
        }
        _add_examples(content, f"{call.name} gives")
        described["content"] = content
    return described


def _content(media: str, schema: str | None) -> dict[str, Any]:
    if schema is not None:
        return {"schema": reference(schema)}
    if media in (NDJSON, EVENTS):
        return {"schema": {"type": "string", "description": "one JSON object a line, or events"}}
    if media in (BATCH, BATCH_STREAM):
        description = "as wire.md and read-answers.md say"
    else:
        description = "the body of one record, as it is"
    return {"schema": {"type": "string", "format": "binary", "description": description}}


def _add_examples(content: dict[str, Any], name: str) -> None:
    for media, examples in EXAMPLES.get(name, {}).items():
        content[media]["examples"] = {title: {"value": value} for title, value in examples.items()}


def _refuse(status: int, codes: tuple[str, ...]) -> dict[str, Any]:
    narrowed = {"properties": {"status": {"const": status}, "code": {"enum": list(codes)}}}
    described: dict[str, Any] = {
        "description": "; ".join(f"`{code}`: {ERRORS[code].title}" for code in codes),
        "content": {
            PROBLEM: {
                "schema": {"allOf": [reference("Problem"), narrowed]},
                "examples": {
                    code: {"$ref": f"#/components/examples/{code}"}
                    for code in codes
                    if ERRORS[code].status == status
                },
            }
        },
    }
    if any(ERRORS[code].retry is Retry.AFTER for code in codes):
        described["headers"] = {"Retry-After": {"$ref": "#/components/headers/Retry-After"}}
    return described


def _example_of(code: str) -> dict[str, Any]:
    detail = f"{ERRORS[code].title}: here is said what, and the way out"
    return DuramenError(code, detail, facts=FACTS.get(code)).problem()


def _whole(least: int, most: int) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most}


def _path_parameters(path: str) -> list[dict[str, str]]:
    names = re.findall(r"{(\w+)}", path)
    return [{"$ref": f"#/components/parameters/{name}"} for name in names]


def _query(name: str, description: str, schema: Schema, example: Any) -> dict[str, Any]:
    described = {"name": name, "in": "query", "description": description, "schema": schema}
    return {**described, "example": example}


def _header(name: str, description: str, schema: Schema, example: Any) -> dict[str, Any]:
    return {**_query(name, description, schema, example), "in": "header"}


def _path(name: str, pattern: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "schema": {"type": "string", "pattern": pattern},
    }


_POSITION: Final = {"type": "string", "pattern": POSITION_PATTERN}
_TEXT: Final = {"type": "string"}

_PARAMETERS: Final = {
    "namespace": _path("namespace", NAMESPACE_PATTERN),
    "log": _path("log", LOG_PATTERN),
    "prefix": _query("prefix", "only names that begin so", _TEXT, "ord"),
    "start_after": _query("start_after", "the last name of the page before", _TEXT, "orders"),
    "limit": _query("limit", "names in a page", _whole(1, LIST_COUNT_MAX), 100),
    "id": _path("id", f"^{TOKEN_ID_PATTERN}$"),
    "scope": {
        **_query(
            "scope", "*, namespace, namespace/prefix* or namespace/log",
            {"type": "string", "pattern": SCOPE_PATTERN}, "shop/ord*",
        ),
        "required": True,
    },
    "version": {
        **_query(
            "version", "refuse as `config_conflict` unless this is the version of the grants",
            _whole(0, 999_999_999), 1,
        ),
        "required": True,
    },
    "log_id": _query(
        "log_id", "refuse as `condition_failed` unless the name stands for the log of this id",
        {"type": "string", "pattern": LOG_ID_PATTERN}, "7",
    ),
    "config_version": _query(
        "config_version",
        "refuse as `config_conflict` unless the stored configuration has this version",
        _whole(1, 999_999_999), 1,
    ),
    "from": _query("from", "the position to begin at; default: head", _POSITION, "seq:0"),
    "until": _query("until", "the answer ends before this position", _POSITION, "tail"),
    "count": _query("count", "records at most", _whole(1, READ_COUNT_MAX), 10),
    "bytes": _query(
        "bytes",
        f"a size up to {format_size(READ_BYTES_MAX)}; the first record comes whatever its size",
        {"type": "string", "pattern": SIZE_PATTERN}, "64KiB",
    ),
    "wait": _query(
        "wait",
        f"a duration up to {format_duration(LONG_POLL_MAX_US)}: how long an answer that would be "
        "empty waits at the tail",
        {"type": "string", "pattern": DURATION_PATTERN}, "10ms",
    ),
    "clamp": _query(
        "clamp", "true: a position beyond the tail is the tail", {"enum": ["true", "false"]}, "true"
    ),
    "format_query": _query(
        "format", "as Duramen-Format, where headers cannot be set", {"enum": ["utf-8", "base64"]},
        "utf-8",
    ),
    "redirect": _query(
        "redirect",
        "owner_region: where the log's owner is in another region than the proxy, 307 names a "
        "write proxy there",
        {"enum": ["owner_region"]}, "owner_region",
    ),
    "notes": _query(
        "notes", "true: NDJSON tells of gaps, of silence, and why it ends",
        {"enum": ["true", "false"]}, "false",
    ),
    "last_event_id": _header(
        "Last-Event-ID", "events: the id after which to go on", _TEXT, "ID of the last event"
    ),
    "format": _header(
        "Duramen-Format", "how bodies, header names and values are written in JSON and NDJSON",
        {"enum": ["utf-8", "base64"]}, "utf-8",
    ),
    "timeout": _header(
        "Duramen-Timeout",
        f"bound of the whole append, up to {format_duration(APPEND_TIMEOUT_MAX_US)}",
        {"type": "string", "pattern": DURATION_PATTERN}, "5s",
    ),
    "match_seq_num": _header(
        "Duramen-Match-Seq-Num", "the first record must get this sequence number",
        _whole(0, SEQ_NUM_MAX), 2,
    ),
    "fencing_token": _header(
        "Duramen-Fencing-Token", "the log's fencing token must be this one; empty: none",
        {"type": "string", "maxLength": FENCING_TOKEN_BYTES_MAX}, "till-4",
    ),
    "producer": _header(
        "Duramen-Producer", "id;epoch;seq: who makes the batch, and which of its batches it is",
        {"type": "string", "pattern": "^[!-~]([ -~]{0,62}[!-~])?;[0-9]{1,15};[0-9]{1,15}$"},
        "till-4;1;0",
    ),
    "if_none_match": _header(
        "If-None-Match", "the ETag of an answer that never changes", _TEXT, '"5-seq:0-seq:9"'
    ),
}  # fmt: skip

_HEADERS: Final = {
    "Retry-After": {"description": "seconds, rounded up", "schema": {"type": "integer"}},
    "Duramen-Moved-To": {"description": "`seq:N`: the position was truncated", "schema": _TEXT},
    "Duramen-Start": {"description": "batches: `seq:N` of the first record", "schema": _TEXT},
    "Duramen-Next": {"description": "batches: `next`", "schema": _TEXT},
    "Duramen-Tail": {"description": "batches: `tail` as JSON", "schema": _TEXT},
    "Duramen-Ended": {"description": "batches: `ended`", "schema": {"const": "true"}},
    "Duramen-Home": {"description": "the log's own read proxy", "schema": _TEXT},
    "Location": {"description": "where to send the same call", "schema": _TEXT},
    "ETag": {"description": "only of an answer that never changes", "schema": _TEXT},
    "Cache-Control": {"description": "how long caches may keep the answer", "schema": _TEXT},
}
