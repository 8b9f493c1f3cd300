"""The public calls: one table of what REST v1 is, from which its document and forwarding follow.

A row says where a call is found, which proxy does the work, which verb it is, what it takes and
gives, which codes of the closed list it may be refused with, and what it means when a forwarded
call is never answered. A test holds the table against the routes of both proxies, another the
committed document.

Called by `openapi`, `forwarding` and the door of public ports (`runtime.admission`).
Source: docs/protocol/rest.md "Either proxy", docs/protocol/errors.md,
docs/protocol/rights.md "Verbs".
"""

from __future__ import annotations

import enum
import re
from typing import Final, NamedTuple

from duramen.core.rights.verbs import Verb
from duramen.runtime.public.answers import (
    AccessTokenMadeAnswer,
    AccessTokenRevokedAnswer,
    AccessTokensAnswer,
    Answer,
    AppendedAnswer,
    DeletedAnswer,
    EndedAnswer,
    EpochsAnswer,
    FencedAnswer,
    GrantsAnswer,
    LogAnswer,
    LogChangedAnswer,
    LogMadeAnswer,
    LogsAnswer,
    NamespaceAnswer,
    NamespaceChangedAnswer,
    NamespaceDeletedAnswer,
    NamespacesAnswer,
    RecordsAnswer,
    RolledAnswer,
    SegmentsAnswer,
    TailAnswer,
    TruncatedAnswer,
)
from duramen.wire.edge.gate import Bodies

NAMESPACES_PATH: Final = "/v1/namespaces"
NAMESPACE_PATH: Final = "/v1/namespaces/{namespace}"
LOGS_PATH: Final = "/v1/namespaces/{namespace}/logs"
LOG_PATH: Final = "/v1/namespaces/{namespace}/logs/{log}"
RECORDS_PATH: Final = f"{LOG_PATH}/records"
GRANTS_PATH: Final = "/v1/grants"
TOKENS_PATH: Final = "/v1/access-tokens"
TOKEN_PATH: Final = "/v1/access-tokens/{id}"

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
BATCH: Final = "application/vnd.duramen.batch"
BATCH_STREAM: Final = "application/vnd.duramen.batch-stream"
EVENTS: Final = "text/event-stream"
RAW: Final = ("application/octet-stream", "text/plain")
PROBLEM: Final = "application/problem+json"


class Side(enum.Enum):
    """Which proxy does the work of a call; the other one forwards it."""

    WRITE = "write"
    READ = "read"
    BOTH = "both"


class CallFate(enum.Enum):
    """What it means that a call was sent on and never answered."""

    NOTHING = "overloaded"
    """It changes nothing: the next proxy is asked, and in the end it is refused as this."""

    REPEATABLE = "log_unavailable"
    """It may have taken effect, and may be repeated: whoever does so learns what became of it."""

    UNCERTAIN = "append_uncertain"
    """It may have taken effect, and a repetition may do it twice."""


class On(enum.Enum):
    """On what, and so when, a call is judged."""

    PATH = "path"
    """What the path names: the log, else the namespace, else the cluster; before all else."""

    SHOWN = "what it shows"
    """A list: each name that it would show."""

    CALL = "what it says"
    """The target stands in the query or the body: the call itself judges, once it has read it. The
    port sees only that the caller is known."""


class Given(NamedTuple):
    """A successful answer: what it says, and the model of each form that it may have."""

    description: str
    forms: dict[str, type[Answer] | None]
    """Media type → model, None: bytes or lines."""

    headers: tuple[str, ...] = ()


class PublicCall(NamedTuple):
    """One public call."""

    name: str
    method: str
    path: str
    side: Side
    verb: Verb
    """What the caller must be allowed to do; to what, `judged` says."""

    summary: str
    description: str
    given: dict[int, Given]
    codes: tuple[str, ...]
    parameters: tuple[str, ...] = ()
    body: dict[str, str | None] | None = None
    """Media type → name of a schema, None: bytes or lines."""

    needs_body: bool = False
    fate: CallFate = CallFate.NOTHING
    judged: On = On.PATH
    lasts: bool = False
    """Whether it may go on for long, and is judged anew while it does."""


_ANYWHERE: Final = (
    "invalid_argument", "unknown_field", "internal", "overloaded", "metadata_unavailable",
    "server_draining", "misdirected", "forbidden", "unauthenticated", "rate_limited",
)  # fmt: skip
_OF_NAMESPACE: Final = (*_ANYWHERE, "invalid_name", "namespace_not_found")
_OF_LOG: Final = (*_OF_NAMESPACE, "log_not_found", "log_deleted")
_OF_READ: Final = (*_OF_LOG, "data_unavailable")
_OF_CHANGE: Final = (
    *_OF_LOG, "log_held", "log_unavailable", "batch_too_large", "unsupported_media",
    "audit_unavailable",
)  # fmt: skip
_BY_ID: Final = "condition_failed"
"""Of a call that takes `log_id`: the name stands for another log."""

_OF_CONFIG: Final = (
    "unsupported_media", "batch_too_large", "log_unavailable", "audit_unavailable",
)  # fmt: skip
_OF_RIGHTS: Final = (*_ANYWHERE, "log_unavailable")
_PAGE: Final = ("prefix", "start_after", "limit")


def _given(status: int, description: str, model: type[Answer]) -> dict[int, Given]:
    return {status: Given(description, {JSON: model})}


def _made(model: type[Answer]) -> dict[int, Given]:
    return {**_given(200, "it was there", model), **_given(201, "created", model)}


CALLS: Final = (
    PublicCall(
        "append", "POST", RECORDS_PATH, Side.WRITE, Verb.APPEND,
        "Append a batch atomically",
        "All records of the body follow each other in the log, or none is there. JSON may carry "
        "the conditions; with any other form they are headers.",
        {
            **_given(200, "as many copies as the log asks for are on disks", AppendedAnswer),
            307: Given(
                "with `redirect`: nothing was appended; send the same to `Location`", {},
                ("Location",),
            ),
        },
        (
            *_OF_LOG, "unsupported_media", "record_too_large", "batch_too_large",
            "too_many_records", "log_ended", "log_held", "condition_failed",
            "fencing_token_mismatch", "producer_fenced", "producer_gap", "producer_unknown",
            "append_uncertain", "window_full", "not_enough_bookies", "log_unavailable", "data_lost",
            "needs_ordered", "mode_changing", "not_appended", "too_many_logs",
        ),
        ("redirect", "format", "timeout", "match_seq_num", "fencing_token", "producer"),
        {JSON: "NewRecords", NDJSON: None, **dict.fromkeys(RAW), BATCH: None},
        needs_body=True, fate=CallFate.UNCERTAIN,
    ),
    PublicCall(
        "appendStream", "POST", f"{RECORDS_PATH}:stream", Side.WRITE, Verb.APPEND,
        "Append batches in a pipelined session",
        "Batches go up as lines of JSON, each as the body of `append`, or as frames; one line "
        "comes down for each, in order: its answer, or a problem. The session ends with the "
        "client's body, or with a last line that says why.",
        {200: Given("a line for each batch", {NDJSON: None})},
        (*_OF_LOG, "unsupported_media", "log_unavailable", "too_many_logs"),
        ("format", "timeout", "fencing_token"),
        {NDJSON: None, BATCH_STREAM: None}, needs_body=True, fate=CallFate.UNCERTAIN, lasts=True,
    ),
    PublicCall(
        "getRecords", "GET", RECORDS_PATH, Side.READ, Verb.READ,
        "Read records from a position",
        "The form of the answer follows `Accept`. `next` of an answer is the `from` of the "
        "request that goes on; `tail` is there exactly when the end was reached.",
        {
            200: Given(
                "records, possibly none",
                {JSON: RecordsAnswer, NDJSON: None, EVENTS: None, BATCH: None},
                ("Duramen-Moved-To", "Duramen-Start", "Duramen-Next", "Duramen-Tail",
                 "Duramen-Ended", "Duramen-Home", "ETag", "Cache-Control"),
            ),
            204: Given("an event stream that came back for nothing: all was given", {}),
            304: Given("as `If-None-Match` says", {}, ("ETag", "Cache-Control")),
        },
        (*_OF_READ, "invalid_position", "beyond_tail", "data_lost",
         "cold_store_unavailable"),
        (
            "from", "count", "bytes", "until", "wait", "clamp", "format_query", "notes",
            "format", "if_none_match", "last_event_id",
        ),
        lasts=True,
    ),
    PublicCall(
        "getTail", "GET", f"{RECORDS_PATH}/tail", Side.READ, Verb.READ,
        "The tail, linearizable",
        "Every record that was acknowledged before the question is before `acknowledged`, and "
        "before the tail, unless the log acknowledges out of order.",
        _given(200, "the tail", TailAnswer), _OF_READ,
    ),
    PublicCall(
        "getSegments", "GET", f"{LOG_PATH}/segments", Side.READ, Verb.READ,
        "The live segments with their placement", "Oldest first.",
        _given(200, "the segments", SegmentsAnswer), _OF_LOG,
    ),
    PublicCall(
        "getEpochs", "GET", f"{LOG_PATH}/epochs", Side.READ, Verb.READ,
        "The history of a log's epochs",
        "Oldest first, also those that were given up and are still told of.",
        _given(200, "the epochs", EpochsAnswer), _OF_LOG,
    ),
    PublicCall(
        "ensureLog", "PUT", LOG_PATH, Side.WRITE, Verb.CREATE,
        "Ensure that a log exists",
        "The body is its configuration; no body is `{}`, all defaults.",
        _made(LogMadeAnswer),
        (
            *_OF_NAMESPACE, *_OF_CONFIG, "log_deleted", "log_exists_with_other_config",
            "placement_impossible", "too_many_logs",
        ),
        body={JSON: "LogConfig"}, fate=CallFate.REPEATABLE,
    ),
    PublicCall(
        "changeLog", "PATCH", LOG_PATH, Side.WRITE, Verb.CONFIGURE,
        "Change members of a log's configuration",
        "The others stay. What needs a new segment gets one at once.",
        _given(200, "the configuration as it is now", LogChangedAnswer),
        (
            *_OF_LOG, *_OF_CONFIG, _BY_ID, "config_conflict", "placement_impossible",
            "needs_ordered", "log_held",
        ),
        ("log_id", "config_version"), {JSON: "LogConfig"}, fate=CallFate.REPEATABLE,
    ),
    PublicCall(
        "getLog", "GET", LOG_PATH, Side.BOTH, Verb.LIST,
        "What a log is", "Its id, its configuration, and where it begins.",
        _given(200, "the log", LogAnswer), _OF_LOG,
    ),
    PublicCall(
        "deleteLog", "DELETE", LOG_PATH, Side.WRITE, Verb.DELETE,
        "Delete a log", "It can be had back until `undelete_until`.",
        _given(200, "it is deleted", DeletedAnswer), (*_OF_CHANGE, _BY_ID), ("log_id",),
        body={JSON: "Nothing"}, fate=CallFate.REPEATABLE,
    ),
    PublicCall(
        "undeleteLog", "POST", f"{LOG_PATH}:undelete", Side.WRITE, Verb.DELETE,
        "Have a deleted log back", "As it was.",
        _given(200, "the log", LogMadeAnswer), _OF_CHANGE,
        body={JSON: "Nothing"}, fate=CallFate.REPEATABLE,
    ),
    PublicCall(
        "truncateLog", "POST", f"{LOG_PATH}:truncate", Side.WRITE, Verb.TRUNCATE,
        "Truncate everything before a position", "`changed` is false if that was so already.",
        _given(200, "where the log begins now", TruncatedAnswer),
        (*_OF_CHANGE, _BY_ID, "invalid_position", "beyond_tail", "data_unavailable", "data_lost",
         "cold_store_unavailable"),
        ("log_id",),
        body={JSON: "Truncation"}, needs_body=True, fate=CallFate.REPEATABLE,
    ),
    PublicCall(
        "endLog", "POST", f"{LOG_PATH}:end", Side.WRITE, Verb.END,
        "End the stream", "No append any more; everything stays readable.",
        _given(200, "it has ended", EndedAnswer), (*_OF_CHANGE, _BY_ID), ("log_id",),
        body={JSON: "Nothing"}, fate=CallFate.REPEATABLE,
    ),
    PublicCall(
        "fenceLog", "POST", f"{LOG_PATH}:fence", Side.WRITE, Verb.FENCE,
        "Set the fencing token",
        "Every append from `tail` on that names another token is refused.",
        _given(200, "it is set", FencedAnswer),
        (
            *_OF_CHANGE, _BY_ID, "log_ended", "fencing_token_mismatch", "append_uncertain",
            "not_enough_bookies", "window_full", "needs_ordered", "mode_changing",
        ),
        ("log_id",),
        body={JSON: "Token"}, needs_body=True, fate=CallFate.UNCERTAIN,
    ),
    PublicCall(
        "rollLog", "POST", f"{LOG_PATH}:roll", Side.WRITE, Verb.ROLL,
        "Close the open segment and open the next one", "Soon. `epoch` null: none is open.",
        _given(202, "it is being closed", RolledAnswer),
        (
            *_OF_LOG, _BY_ID, "log_unavailable", "log_ended", "log_held", "unsupported_media",
            "audit_unavailable",
        ),
        ("log_id",),
        fate=CallFate.REPEATABLE,
    ),
    PublicCall(
        "listLogs", "GET", LOGS_PATH, Side.WRITE, Verb.LIST,
        "List a namespace's logs", "Sorted by name.",
        _given(200, "a page", LogsAnswer), _OF_NAMESPACE, _PAGE, judged=On.SHOWN,
    ),
    PublicCall(
        "ensureNamespace", "PUT", NAMESPACE_PATH, Side.WRITE, Verb.CREATE,
        "Ensure that a namespace exists",
        "The body is its configuration; no body is `{}`, all defaults. `limits` needs `operate` on "
        "the cluster, too.",
        _made(NamespaceAnswer),
        (*_ANYWHERE, "invalid_name", *_OF_CONFIG, "log_exists_with_other_config"),
        body={JSON: "NamespaceConfig"}, fate=CallFate.REPEATABLE,
    ),
    PublicCall(
        "changeNamespace", "PATCH", NAMESPACE_PATH, Side.WRITE, Verb.CONFIGURE,
        "Change members of a namespace's configuration",
        "The others stay. `limits` needs `operate` on the cluster, too.",
        _given(200, "the configuration as it is now", NamespaceChangedAnswer),
        (*_OF_NAMESPACE, *_OF_CONFIG),
        body={JSON: "NamespaceConfig"}, fate=CallFate.REPEATABLE,
    ),
    PublicCall(
        "deleteNamespace", "DELETE", NAMESPACE_PATH, Side.WRITE, Verb.DELETE,
        "Delete a namespace that has no logs",
        "`changed` is false if there was none. A deleted log counts until it is purged.",
        _given(200, "there is none", NamespaceDeletedAnswer),
        (*_ANYWHERE, "invalid_name", *_OF_CONFIG, "namespace_not_empty"),
        body={JSON: "Nothing"}, fate=CallFate.REPEATABLE,
    ),
    PublicCall(
        "getNamespace", "GET", NAMESPACE_PATH, Side.WRITE, Verb.LIST,
        "What a namespace is", "Its configuration.",
        _given(200, "the namespace", NamespaceAnswer), _OF_NAMESPACE,
    ),
    PublicCall(
        "listNamespaces", "GET", NAMESPACES_PATH, Side.WRITE, Verb.LIST,
        "List the namespaces", "Sorted by name.",
        _given(200, "a page", NamespacesAnswer), _ANYWHERE, _PAGE, judged=On.SHOWN,
    ),
    PublicCall(
        "getGrants", "GET", GRANTS_PATH, Side.WRITE, Verb.GRANT,
        "The grants within a scope", "With the version that a change of them names.",
        _given(200, "the grants", GrantsAnswer), _OF_RIGHTS, ("scope",), judged=On.CALL,
    ),
    PublicCall(
        "replaceGrants", "PUT", GRANTS_PATH, Side.WRITE, Verb.GRANT,
        "Have these grants within a scope, and no others",
        "As a whole or not at all. Whoever has every verb of a role, and `grant`, on all of a "
        "scope gives that role there.",
        _given(200, "the grants as they are now", GrantsAnswer),
        (*_OF_RIGHTS, *_OF_CONFIG, "config_conflict"),
        ("scope", "version"), {JSON: "WantedGrants"}, needs_body=True, fate=CallFate.REPEATABLE,
        judged=On.CALL,
    ),
    PublicCall(
        "makeAccessToken", "POST", TOKENS_PATH, Side.WRITE, Verb.GRANT,
        "Make an access token",
        "It may do no more than its maker, and ends with its maker's credential unless that one "
        "has `grant` on each of its targets.",
        _given(201, "the token, which is shown here alone", AccessTokenMadeAnswer),
        (*_OF_RIGHTS, *_OF_CONFIG),
        body={JSON: "NewAccessToken"}, needs_body=True, fate=CallFate.REPEATABLE, judged=On.CALL,
    ),
    PublicCall(
        "listAccessTokens", "GET", TOKENS_PATH, Side.WRITE, Verb.GRANT,
        "List the access tokens that the caller made or grants on", "Sorted by id.",
        _given(200, "a page", AccessTokensAnswer), _OF_RIGHTS, ("start_after", "limit"),
        judged=On.CALL,
    ),
    PublicCall(
        "revokeAccessToken", "DELETE", TOKEN_PATH, Side.WRITE, Verb.GRANT,
        "Revoke an access token", "`changed` is false if there was none.",
        _given(200, "there is none", AccessTokenRevokedAnswer), (*_OF_RIGHTS, *_OF_CONFIG),
        body={JSON: "Nothing"}, fate=CallFate.REPEATABLE, judged=On.CALL,
    ),
)  # fmt: skip
"""The append first: routes are looked at in this order where a call is forwarded."""

_OWN_BODIES: Final = re.compile(
    "|".join(
        re.sub(r"{\w+}", "[^/]+", call.path)
        for call in CALLS
        if call.body is not None and set(call.body) != {JSON}
    )
)


def find_bodies(path: str) -> Bodies:
    """Which bodies a path of a public port takes: JSON, unless the table gives it others."""
    return Bodies.OWN if _OWN_BODIES.fullmatch(path) else Bodies.JSON
