"""JSON schemas of everything that a public call takes or gives, by the name it has in the document.

Limits come from where the code has them, configurations from their models, problems from the one
table of errors. What a schema cannot say (quorums that fit each other, a time-out's bound) the
description says, and the code refuses. Answers of later versions may have more members: only what
a client sends is closed.

Called by `openapi`. Source: docs/protocol/rest.md, docs/protocol/errors.md.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, models_json_schema

from duramen.config import LogConfig, NamespaceConfig
from duramen.core.rights.changes import GRANT_COUNT_MAX
from duramen.core.rights.token_scopes import SCOPE_COUNT_MAX
from duramen.core.rights.verbs import GrantedRole, Verb
from duramen.errors import ERRORS
from duramen.limits import BATCH_RECORD_COUNT_MAX, FENCING_TOKEN_BYTES_MAX, SEQ_NUM_MAX
from duramen.runtime.public.answers import ANSWERS, DESCRIBED_BY, Answer
from duramen.texts import LAST_TIME_MS
from duramen.units import DURATION_PATTERN
from duramen.wire.nodes.access_tokens import NOTE_LENGTH_MAX

Schema = dict[str, Any]

_SUFFIX: Final = "Answer"
_KEYWORDS: Final = {
    name: index
    for index, name in enumerate(
        (
            "type", "items", "minItems", "maxItems", "required", "properties", "minimum",
            "maximum", "description", "pattern", "format",
        )
    )
}  # fmt: skip

SCOPE_PATTERN: Final = (
    r"^(\*|[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(/[A-Za-z0-9][A-Za-z0-9._-]{0,254}\*?)?)$"
)
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


def taken(members: dict[str, Schema], required: tuple[str, ...] = ()) -> Schema:
    """An object that a client sends: a member that is not known is refused."""
    closed: Schema = {"type": "object", "properties": members, "additionalProperties": False}
    return {**closed, "required": list(required)} if required else closed


def make_schemas() -> dict[str, Schema]:
    """All of them, by name."""
    return {
        **_make_log_config(),
        **_make_namespace_config(),
        **_make_answers(),
        **_REQUESTS,
        "Problem": _make_problem(),
    }


def name_of(answer: type[Answer]) -> str:
    """The name of an answer's schema."""
    return answer.__name__.removesuffix(_SUFFIX)


def _make_answers() -> dict[str, Schema]:
    _, whole = models_json_schema(
        [(model, "validation") for model in ANSWERS],
        schema_generator=_AnswerSchemas,
        ref_template="#/components/schemas/{model}",
    )
    parts: dict[str, Schema] = whole["$defs"]
    for part in parts.values():
        part.pop("title", None)
        part["description"] = " ".join(part["description"].split())
    return {name_of(model): parts[name_of(model)] for model in ANSWERS}


class _AnswerSchemas(GenerateJsonSchema):
    """Schemas without what repeats a member's name or speaks of the code."""

    def normalize_name(self, name: str) -> str:
        return super().normalize_name(name).removesuffix(_SUFFIX)

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def default_schema(self, schema: Any) -> JsonSchemaValue:
        # The default of an answer's member says only that the member may be absent.
        return self.generate_inner(schema["schema"])

    def literal_schema(self, schema: Any) -> JsonSchemaValue:
        described = super().literal_schema(schema)
        described.pop("type", None)
        return described

    def sort(self, value: JsonSchemaValue, parent_key: str | None = None) -> JsonSchemaValue:
        arranged: JsonSchemaValue = _arrange(value, are_members=parent_key == "properties")
        return arranged


def _arrange(value: Any, *, are_members: bool = False) -> Any:
    """Keywords in one order; members in that of their declaration, which is that of the answer."""
    if isinstance(value, list):
        return [_arrange(one) for one in value]
    if not isinstance(value, dict):
        return value
    if DESCRIBED_BY in value:
        return reference(value[DESCRIBED_BY])
    names = list(value)
    if not are_members:
        names.sort(key=lambda name: _KEYWORDS.get(name, 0))
    return {name: _arrange(value[name], are_members=name == "properties") for name in names}


def _make_log_config() -> dict[str, Schema]:
    """With the fields of flexible logs, whose `replication` has another form."""
    flexible = LogConfig(copysets="flexible").to_json()
    defaults = {**flexible, **LogConfig().to_json(), "window": flexible["window"]}
    defaults["flexiblereplication"] = flexible["replication"]
    made = _make_config("LogConfig", LogConfig, defaults)
    # Each form has defaults of its own, which stand there.
    del made["LogConfig"]["properties"]["replication"]["default"]
    return made


def _make_namespace_config() -> dict[str, Schema]:
    defaults = NamespaceConfig().to_json()
    defaults["namespacelimits"] = defaults["limits"]
    return _make_config("NamespaceConfig", NamespaceConfig, defaults)


def _make_config(
    name: str, model: type[LogConfig | NamespaceConfig], defaults: dict[str, Any]
) -> dict[str, Schema]:
    """The model's schema and its parts', with defaults as a client would write them."""
    whole = model.model_json_schema(ref_template="#/components/schemas/{model}")
    parts: dict[str, Schema] = whole.pop("$defs", {})
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
                "of a read's `data_lost`: the `from` at which the log goes on",
                pattern="^dlsn:e[0-9]+n[0-9]+s[0-9]+$",
            ),
            "retry_after_ms": number("when to try again", least=1),
        },
    }


_TXID: Final = number(
    "rises along the log; all records of a batch have one, or none", most=2**63 - 1
)
_TOKEN: Final = text(
    f"at most {FENCING_TOKEN_BYTES_MAX} bytes; empty: none", maxLength=FENCING_TOKEN_BYTES_MAX
)

_SCOPE: Final = text("*, namespace, namespace/prefix* or namespace/log", pattern=SCOPE_PATTERN)

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
    "NewGrant": taken(
        {
            "who": text("a principal", maxLength=400),
            "role": {"enum": [role.value for role in GrantedRole]},
            "scope": _SCOPE,
        },
        required=("who", "role", "scope"),
    ),
    "WantedGrants": taken(
        {
            "grants": listed(reference("NewGrant"), maxItems=GRANT_COUNT_MAX),
            "not_understood": listed(
                {"type": "object"},
                description="of *: the rows that stay of those that are not understood; else all",
            ),
        },
        required=("grants",),
    ),
    "NewAccessToken": taken(
        {
            "scopes": listed(
                taken(
                    {
                        "verbs": listed(
                            {"enum": [verb.value for verb in Verb]}, minItems=1, uniqueItems=True
                        ),
                        "target": _SCOPE,
                    },
                    required=("verbs", "target"),
                ),
                minItems=1,
                maxItems=SCOPE_COUNT_MAX,
            ),
            "expires": text("from now: 1 minute to 366 days", pattern=DURATION_PATTERN),
            "note": text("what it is for", maxLength=NOTE_LENGTH_MAX),
        },
        required=("scopes", "expires"),
    ),
    "Nothing": taken({}),
}  # fmt: skip
