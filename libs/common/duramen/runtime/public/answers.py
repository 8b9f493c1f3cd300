"""Answers of public calls as models: the one source of what is sent and of the schema that says so.

A route makes a model and gives it with `respond`. The document takes its schema from the same model
(`schemas`), under the name of the class without `Answer`. A member with a default is left out of
the answer unless it is set; null is said only where the type has None.

`append` and `getRecords` are the exception: they encode dicts, because a model per record would
cost more than reading it. Their models only describe, and a test holds what is encoded against
them.

Called by both proxies and `calls`. Source: docs/protocol/rest.md, docs/protocol/read-answers.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeVar

from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema
from pydantic.json_schema import SkipJsonSchema

from duramen.core.life.trim import SegmentStatus
from duramen.core.log_node import LogNode
from duramen.core.rights.grants import TOKEN_ID_PATTERN
from duramen.core.rights.verbs import GrantedRole, Verb
from duramen.core.segment import SegmentState
from duramen.errors import DuramenError
from duramen.limits import SEQ_NUM_MAX

AnswerT = TypeVar("AnswerT", bound="Answer")


class Answer(BaseModel):
    """An answer, or an object in one. Later versions may have more members."""

    # Built when first used: most processes that import the table of calls give none of these.
    model_config = ConfigDict(frozen=True, defer_build=True, serialize_by_alias=True)

    def encode(self) -> bytes:
        """The JSON that is sent."""
        return self.model_dump_json(exclude_unset=True).encode()


def read_answer(model: type[AnswerT], told: Mapping[str, Any]) -> AnswerT:
    """What a sequencer told, as the answer that it is passed on in.

    Raises:
        DuramenError: `internal`, uncertain: it is not understood.
    """
    try:
        return model.model_validate(told)
    except ValidationError as error:
        detail = f"a sequencer's answer is not understood: {error.errors()[0]['msg']}"
        raise DuramenError("internal", detail, uncertain=True) from error


def respond(answer: Answer, status: int = 200) -> Response:
    """The HTTP answer."""
    return Response(answer.encode(), status_code=status, media_type="application/json")


DESCRIBED_BY: Final = "x-described-by"
"""In the schema of a member that is passed on as it came: the name of the schema that it has."""

# A sequencer of a later version may know more members of a configuration than this process.
_LogConfig = Annotated[dict[str, Any], WithJsonSchema({DESCRIBED_BY: "LogConfig"})]
_NamespaceConfig = Annotated[dict[str, Any], WithJsonSchema({DESCRIBED_BY: "NamespaceConfig"})]
_Absent = SkipJsonSchema[None]
"""Of a member that may be left out, and is never null."""

_SeqNum = Annotated[int, Field(ge=0, le=SEQ_NUM_MAX, description="a sequence number")]
_Count = Annotated[int, Field(ge=0)]
_Number = Annotated[int, Field(ge=1)]
_Time = Annotated[
    str,
    Field(
        description="RFC 3339 in UTC with milliseconds", json_schema_extra={"format": "date-time"}
    ),
]
_Lsn = Annotated[str, Field(description="e<epoch>n<entry>", pattern="^e[0-9]+n[0-9]+$")]
_Dlsn = Annotated[
    str, Field(description="e<epoch>n<entry>s<slot>", pattern="^e[0-9]+n[0-9]+s[0-9]+$")
]
_Id = Annotated[str, Field(description="a number as text", pattern="^[0-9]+$")]
_Next = Annotated[
    str, Field(description="the `from` of the request that goes on", pattern="^seq:[0-9]+$")
]
_State = Annotated[str, WithJsonSchema({"enum": [state.value for state in SegmentState]})]
_Role = Annotated[str, WithJsonSchema({"enum": [role.value for role in GrantedRole]})]
_Verb = Annotated[str, WithJsonSchema({"enum": [verb.value for verb in Verb]})]
_TokenId = Annotated[str, Field(pattern=f"^{TOKEN_ID_PATTERN}$")]
_Status = Annotated[str, WithJsonSchema({"enum": [status.value for status in SegmentStatus]})]


# --- Places --------------------------------------------------------------------------------------


class MarkAnswer(Answer):
    """A place between two records; `seq_num` is the next record's; `timestamp` null: the log has
    had no record."""

    seq_num: _SeqNum
    timestamp: _Time | None
    lsn: _Lsn
    dlsn: _Dlsn


class EarlyMarkAnswer(Answer):
    """As Mark; the number may not be known yet (`early_append`)."""

    seq_num: _SeqNum | None
    timestamp: _Time | None
    lsn: _Lsn
    dlsn: _Dlsn


class HeadAnswer(Answer):
    """Where a log begins."""

    seq_num: _SeqNum
    lsn: _Lsn | _Absent = None
    dlsn: _Dlsn


class TailAnswer(Answer):
    """Where a log ends: `tail`, and beside it by their names what that is.

    They differ only for a while, in a log with `ack_mode: out_of_order`.
    """

    tail: MarkAnswer
    """As `released`."""
    released: MarkAnswer
    """Readers are given what lies before it."""
    acknowledged: MarkAnswer
    """Every record that was acknowledged before the question lies before it."""


# --- Records: these describe what `append_route`, `rest` and `record_json` encode -----------------


class AppendedAnswer(Answer):
    """Where the records of an append are."""

    start: EarlyMarkAnswer | None
    end: MarkAnswer | None
    tail: MarkAnswer | None
    duplicate: Annotated[
        Literal[True] | _Absent, Field(description="it was in the log already")
    ] = None


class RecordAnswer(Answer):
    """One record."""

    seq_num: _SeqNum
    dlsn: _Dlsn
    txid: _Count | _Absent = None
    timestamp: _Time
    format: Annotated[
        Literal["base64"] | _Absent,
        Field(
            description="body, header names and values of this record are base64, since one of "
            "them is not UTF-8; left out where base64 was asked for"
        ),
    ] = None
    headers: Annotated[
        list[Annotated[list[str], Field(min_length=2, max_length=2)]] | _Absent,
        Field(description="pairs of name and value"),
    ] = None
    body: Annotated[
        str, Field(description="UTF-8, or base64 where `format` says so or that was asked for")
    ]


class GapAnswer(Answer):
    """Sequence numbers without a record: a hole of an `out_of_order` segment."""

    kind: Literal["hole"]
    from_: Annotated[str, Field(alias="from", pattern="^seq:[0-9]+$")]
    next: _Next
    first_lsn: Annotated[_Lsn | _Absent, Field(description="of the entries in the hole")] = None
    last_lsn: _Lsn | _Absent = None


class RecordsAnswer(Answer):
    """Records from a position on."""

    records: list[RecordAnswer]
    next: _Next
    tail: Annotated[
        MarkAnswer | _Absent, Field(description="the end of what may be read was reached")
    ] = None
    ended: Annotated[
        Literal[True] | _Absent, Field(description="the log has ended: nothing follows")
    ] = None
    moved_to: Annotated[
        HeadAnswer | _Absent,
        Field(description="the position was truncated: this is the oldest record"),
    ] = None
    gaps: Annotated[
        list[GapAnswer] | _Absent, Field(description="holes between `from` and `next`, ascending")
    ] = None


# --- Segments ------------------------------------------------------------------------------------


class CopyAnswer(Answer):
    """A bookie that holds a copy."""

    bookie: str
    incarnation: str


class FragmentAnswer(Answer):
    """The bookies of a segment from one entry on."""

    first_entry: _Count
    ensemble: list[CopyAnswer]


class PropertyAnswer(Answer):
    """What the copies of each entry of a flexible segment span."""

    node: _Number
    rack: _Number
    region: _Number


class SegmentNodeAnswer(Answer):
    """A bookie that may have entries of a flexible segment; its place as the segment has it."""

    number: _Count
    bookie: str
    incarnation: str
    region: str
    rack: str
    weight: float
    role: Annotated[
        Literal["own", "guest", "added"],
        Field(description="own: of the epoch; guest: recovery took it in; added: repair did"),
    ]


class ColdCopyAnswer(Answer):
    """The whole segment in the cold store, compared with the hot copies."""

    attempt: Annotated[str, Field(description="of the archive: 32 hex digits")]
    manifest_sha256: Annotated[str, Field(description="64 hex digits")]
    bytes: _Count
    verified: _Time
    rechecked: _Time | None


class SegmentAnswer(Answer):
    """A segment; null where one that is not closed does not know yet."""

    epoch: _Number
    ledger_id: _Id
    state: _State
    status: _Status
    min_active_dlsn: _Dlsn | None
    first_entry: int
    last_entry: Annotated[int, Field(ge=-1)] | None
    lost: Annotated[list[list[int]], Field(description="ranges of entries given up")]
    start_seq_num: _SeqNum | None
    records: _SeqNum | None
    bytes: _Count | None
    first_txid: _Count | None
    last_txid: _Count | None
    first_timestamp: _Time | None
    last_timestamp: _Time | None
    created: _Time
    completed: _Time | None
    cold_copy: ColdCopyAnswer | None
    hot_copies: Literal["kept", "released"]
    ensemble_size: Annotated[int | _Absent, Field(description="of striped segments")] = None
    write_quorum: Annotated[int | _Absent, Field(description="of striped segments")] = None
    ack_quorum: Annotated[int | _Absent, Field(description="of striped segments")] = None
    fragments: Annotated[
        list[FragmentAnswer] | _Absent, Field(description="of striped segments")
    ] = None
    property: Annotated[PropertyAnswer | _Absent, Field(description="of flexible segments")] = None
    nodes: Annotated[
        list[SegmentNodeAnswer] | _Absent,
        Field(description="of flexible segments: who may have its entries, by number"),
    ] = None
    holes: Annotated[
        list[list[int]] | _Absent,
        Field(description="ranges of entries that were never acknowledged, and are not there"),
    ] = None
    missing_records: Annotated[
        int | _Absent, Field(description="of flexible segments: records of holes and losses")
    ] = None


class SegmentsAnswer(Answer):
    """The live segments of a log."""

    segments: Annotated[list[SegmentAnswer], Field(description="oldest first")]


class EpochAnswer(Answer):
    """An epoch of a log, which lives or was given up."""

    epoch: _Number
    metadata: Annotated[
        Literal["zookeeper", "metadata_log", "history"],
        Field(description="where its metadata are; `history`: given up, as it was told last"),
    ]
    config_version: Annotated[
        int | None, Field(description="of the log when it was opened; null: nobody has told it")
    ]
    segment: Annotated[SegmentAnswer | None, Field(description="null: its metadata cannot be read")]


class EpochsAnswer(Answer):
    """The history of a log, as far as anybody can tell it."""

    epochs: Annotated[list[EpochAnswer], Field(description="oldest first")]
    configs: Annotated[
        dict[str, dict[str, Any]], Field(description="by version: those that epochs name")
    ]


# --- Namespaces and logs -------------------------------------------------------------------------


class NamespaceAnswer(Answer):
    """A namespace."""

    namespace: str
    config: _NamespaceConfig


class NamespaceChangedAnswer(Answer):
    """A namespace after a change of its configuration."""

    namespace: str
    config: _NamespaceConfig
    changed: bool


class NamespaceDeletedAnswer(Answer):
    """A namespace that is not there any more."""

    namespace: str
    changed: bool


class ListedNamespaceAnswer(Answer):
    """A namespace in a listing."""

    namespace: str


class NamespacesAnswer(Answer):
    """A page of the namespaces."""

    namespaces: list[ListedNamespaceAnswer]
    has_more: bool


class LogMadeAnswer(Answer):
    """A log that was made, or was there."""

    namespace: str
    name: str
    log_id: _Id
    config: _LogConfig


class LogAnswer(Answer):
    """A log."""

    namespace: str
    name: str
    log_id: _Id
    config: _LogConfig
    config_version: _Number
    ended: bool
    head: Annotated[HeadAnswer, Field(description="the first live record")]


class LogChangedAnswer(Answer):
    """A log after a change of its configuration."""

    namespace: str
    name: str
    log_id: _Id
    config: _LogConfig
    config_version: _Number
    changed: bool


class ListedLogAnswer(Answer):
    """A log in a listing."""

    namespace: str
    name: str
    log_id: _Id


class LogsAnswer(Answer):
    """A page of the logs of a namespace."""

    logs: list[ListedLogAnswer]
    has_more: bool


class RolledAnswer(Answer):
    """The epoch that is being closed."""

    namespace: str
    name: str
    epoch: _Number | None


class TruncatedAnswer(Answer):
    """Where a log begins after a truncation."""

    head: HeadAnswer
    tail: MarkAnswer
    changed: bool


class EndedAnswer(Answer):
    """Where a log has ended."""

    log_id: _Id
    ended: Literal[True]
    tail: MarkAnswer


class DeletedAnswer(Answer):
    """Until when a deleted log can be had back."""

    log_id: _Id
    undelete_until: _Time


class FencedAnswer(Answer):
    """The token that holds from `tail` on."""

    token: str
    tail: MarkAnswer


# --- Grants and access tokens --------------------------------------------------------------------


class GivenGrantAnswer(Answer):
    """A grant, with who gave it and when."""

    who: Annotated[str, Field(description="a principal")]
    role: _Role
    scope: Annotated[str, Field(description="*, namespace, namespace/prefix* or namespace/log")]
    by: Annotated[str, Field(description="a principal")]
    given: _Time


class GrantsAnswer(Answer):
    """The grants within a scope."""

    version: Annotated[_Count, Field(description="of all grants; 0: there are none yet")]
    grants: list[GivenGrantAnswer]
    not_understood: Annotated[
        list[dict[str, Any]] | _Absent, Field(description="of *: rows that give nothing here")
    ] = None
    unreadable: Annotated[
        str | _Absent, Field(description="of *: why nobody understands any grant")
    ] = None


class TokenScopeAnswer(Answer):
    """What an access token may do, and on what."""

    verbs: list[_Verb]
    target: Annotated[str, Field(description="a scope, as of grants")]


class AccessTokenAnswer(Answer):
    """An access token without its secret."""

    id: _TokenId
    prefix: Annotated[str, Field(description="how its text begins")]
    scopes: list[TokenScopeAnswer]
    by: Annotated[str, Field(description="its maker, a principal")]
    created: _Time
    ends: _Time
    note: str
    parent: Annotated[_TokenId | _Absent, Field(description="the token that made it")] = None


class AccessTokenMadeAnswer(AccessTokenAnswer):
    """An access token that was made: its text is nowhere else."""

    token: Annotated[str, Field(pattern="^dur1_[a-z2-7]{16}_[a-z2-7]{52}$")]


class AccessTokensAnswer(Answer):
    """A page of the access tokens that the caller may see."""

    tokens: Annotated[list[AccessTokenAnswer], Field(description="by id")]
    has_more: bool


class AccessTokenRevokedAnswer(Answer):
    """An access token that is not there any more."""

    id: _TokenId
    changed: bool


ANSWERS: Final[tuple[type[Answer], ...]] = (
    MarkAnswer, EarlyMarkAnswer, HeadAnswer, AppendedAnswer, RecordAnswer, GapAnswer,
    RecordsAnswer,
    TailAnswer, SegmentAnswer, ColdCopyAnswer, CopyAnswer, FragmentAnswer, PropertyAnswer,
    SegmentNodeAnswer, SegmentsAnswer, EpochAnswer, EpochsAnswer,
    NamespaceAnswer, NamespaceChangedAnswer, NamespaceDeletedAnswer, ListedNamespaceAnswer,
    NamespacesAnswer, LogMadeAnswer, LogAnswer, LogChangedAnswer, ListedLogAnswer, LogsAnswer,
    RolledAnswer, TruncatedAnswer, EndedAnswer, DeletedAnswer, FencedAnswer,
    GivenGrantAnswer, GrantsAnswer, TokenScopeAnswer, AccessTokenAnswer, AccessTokenMadeAnswer,
    AccessTokensAnswer, AccessTokenRevokedAnswer,
)  # fmt: skip
"""In the order of the document."""


def describe_log(node: LogNode) -> LogAnswer:
    """A log as either proxy shows it."""
    return LogAnswer(
        namespace=node.namespace,
        name=node.name,
        log_id=str(node.log_id),
        config=node.config.to_json(),
        config_version=node.config_version,
        ended=node.is_ended,
        head=HeadAnswer(seq_num=node.trim_seq_num, dlsn=str(node.trim.dlsn)),
    )
