"""LogNamespace and Log: what people keep in a cluster, as objects.

A Log's configuration is that of `duramen.config`, with its own names (ADR 0019). A field that is
not named is left as it is, and starts from the namespace's, the cluster's, then Duramen's default
when the operator makes the log: an object that says nothing of `retention` must not shorten it.
`replication` alone is taken as a whole, because its rules are about all its fields at once. Which
of its two forms it has, its fields say. Whether that is the form of the log's copysets is known
where all defaults are, so a mismatch is a condition of the log and no fault of the object.

Called by the operator, the plugin and `schema`. Source: docs/protocol/configuration.md "Log".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from duramen.config import (
    AckMode,
    Copysets,
    Count,
    Duration,
    FlexibleReplication,
    Flush,
    LogConfig,
    Nodeset,
    Producers,
    Replication,
    Retention,
    Roll,
    Size,
    Switch,
    Tiering,
    Window,
    check_nodeset_numbers,
)
from duramen.config_changes import keep_form
from duramen.errors import DuramenError
from duramen.texts import check_log_name, check_namespace, parse_position
from duramen_operator.resources.part import (
    ObjectName,
    Part,
    Resource,
    ResourceStatus,
    StatusPart,
)

DeletionPolicy = Literal["Retain", "Delete"]

NAMESPACE_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
LOG_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$"
TRUNCATION_PATTERN = (
    r"^((seq:)?[0-9]{1,16}|dlsn:e[0-9]{1,10}n[0-9]{1,10}s[0-9]{1,10}|lsn:e[0-9]{1,10}n[0-9]{1,10})$"
)
"""No position that moves: the operator comes back again and again, and `tail` or `ago:` would cut
off each time what was written since. What `time:` and `txid:` name, only the log knows."""


class LogReplication(BaseModel):
    """How many copies an entry has and where they may lie, in the form of striped or of flexible
    logs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ensemble_size: Annotated[int | None, Field(strict=True, ge=1, le=64)] = None
    write_quorum: Count | None = None
    ack_quorum: Count | None = None
    min_racks: Count | None = None
    min_regions: Count | None = None
    node: Annotated[int | None, Field(strict=True, ge=1, le=64)] = None
    rack: Count | None = None
    region: Count | None = None
    extras: Annotated[int | None, Field(strict=True, ge=0, le=2)] = None
    regions_that_must_suffice: Count | None = None
    placement: Literal["strict", "prefer"] | None = None

    @property
    def copysets(self) -> Copysets | None:
        """Of the logs whose form it has; None: it names only what both forms have."""
        if self._named() & _OF_FLEXIBLE:
            return "flexible"
        return "striped" if self._named() & _OF_STRIPED else None

    def config(self, copysets: Copysets | None) -> dict[str, Any]:
        """As REST takes it: whole, if its form is known.

        Args:
            copysets: of the log, where it names them.
        """
        named = {name: value for name, value in self if name in self._named()}
        form = _FORMS.get(self.copysets or copysets or "")
        return named if form is None else form.model_validate(named).model_dump(mode="json")

    def _named(self) -> set[str]:
        """`kubectl apply` may write null for what is not named."""
        return {name for name, value in self if value is not None}

    @model_validator(mode="after")
    def _check_form(self) -> LogReplication:
        striped, flexible = self._named() & _OF_STRIPED, self._named() & _OF_FLEXIBLE
        if striped and flexible:
            raise ValueError(
                f"{', '.join(sorted(striped))} are of striped logs and "
                f"{', '.join(sorted(flexible))} of flexible ones: a log has one form"
            )
        self.config(None)
        return self


_FORMS: Final[Mapping[str, type[Replication | FlexibleReplication]]] = {
    "striped": Replication,
    "flexible": FlexibleReplication,
}
_OF_STRIPED: Final = set(Replication.model_fields) - set(FlexibleReplication.model_fields)
_OF_FLEXIBLE: Final = set(FlexibleReplication.model_fields) - set(Replication.model_fields)


class LogFields(Part):
    """A log's configuration with nothing filled in: what is None is not named."""

    replication: LogReplication | None = None
    ack_mode: AckMode | None = None
    copysets: Copysets | None = None
    nodeset: Nodeset | None = None
    sticky: Switch | None = None
    early_append: Annotated[bool | None, Field(strict=True)] = None
    compression: Literal["none", "zstd"] | None = None
    owner_region: Literal["none", "writers"] | None = None
    commit: Literal["lac", "control"] | None = None
    commit_delay: Duration | None = None
    owed_bytes_max: Size | None = None
    tiering: Tiering | None = None
    roll: Roll | None = None
    retention: Retention | None = None
    flush: Flush | None = None
    window: Window | None = None
    producers: Producers | None = None

    @model_validator(mode="after")
    def _check_nodeset(self) -> LogFields:
        """As far as both are named: the rest stays as it is, and is not known here."""
        nodeset, replication = self.nodeset, self.replication
        if nodeset is None or "tolerate" not in nodeset.model_fields_set:
            return self
        if replication is None or replication.node is None:
            return self
        check_nodeset_numbers(
            node=replication.node,
            region=replication.region or 1,
            extras=replication.extras or 0,
            size=nodeset.size,
            tolerate=nodeset.tolerate,
            regions_that_must_suffice=replication.regions_that_must_suffice,
        )
        return self

    def config(self) -> dict[str, Any]:
        """The named fields alone, as REST takes them; `replication` with all of its fields."""
        found = self.model_dump(
            mode="json", include=set(LogConfig.model_fields), exclude_unset=True
        )
        if self.replication is not None:
            found["replication"] = self.replication.config(self.copysets)
        return {name: value for name, value in found.items() if value is not None}


class LogDefaults(LogFields):
    """What a new log starts from, where it names nothing itself."""


def merge_config(*documents: Mapping[str, Any]) -> dict[str, Any]:
    """One configuration of several, later ones before earlier ones; `replication` as a whole.

    Who names `copysets` drops what the earlier ones say for logs of the other form.
    """
    merged: dict[str, Any] = {}
    for document in documents:
        merged = keep_form(merged, document.get("copysets"))
        for name, value in document.items():
            old = merged.get(name)
            if isinstance(value, dict) and isinstance(old, dict) and name != "replication":
                merged[name] = {**old, **value}
            else:
                merged[name] = value
    return merged


class LogNamespaceSpec(Part):
    """What a namespace is to be."""

    cluster_name: Annotated[
        ObjectName, Field(description="The LogCluster that it is in, in the same namespace.")
    ]
    name: Annotated[
        str | None,
        Field(
            max_length=63,
            pattern=NAMESPACE_PATTERN,
            description="Its name in Duramen. Left out: metadata.name.",
        ),
    ] = None
    auto_create: Annotated[
        bool | None,
        Field(
            strict=True,
            description="Whether an append creates its log. Left out: as it is, at first the "
            "cluster's default.",
        ),
    ] = None
    defaults: Annotated[
        LogDefaults,
        Field(
            description="Configuration that a new log starts from, where its Log names nothing. "
            "Logs that exist keep what they have."
        ),
    ] = LogDefaults()
    deletion_policy: Annotated[
        DeletionPolicy,
        Field(
            description="What becomes of the namespace when this object is deleted. Retain: it "
            "stays. Delete: it goes, once no log is in it."
        ),
    ] = "Retain"


class LogNamespaceStatus(ResourceStatus):
    """What became of a namespace."""

    logs: Annotated[int | None, Field(ge=0, description="Logs in it.")] = None
    is_auto_creating: Annotated[
        bool | None, Field(alias="autoCreate", description="What the cluster has in force.")
    ] = None


class LogNamespace(Resource):
    """A namespace of logs in a cluster."""

    kind: Literal["LogNamespace"] = "LogNamespace"
    spec: LogNamespaceSpec
    status: LogNamespaceStatus = LogNamespaceStatus()

    @property
    def namespace_name(self) -> str:
        """Its name in Duramen."""
        return self.spec.name or self.metadata.name

    @model_validator(mode="after")
    def _check_name(self) -> LogNamespace:
        _as_value_error(check_namespace, self.namespace_name)
        return self


class LogSpec(LogFields):
    """What a log is to be: where it is, and its configuration."""

    cluster_name: Annotated[
        ObjectName, Field(description="The LogCluster that it is in, in the same namespace.")
    ]
    namespace: Annotated[
        str,
        Field(
            min_length=1,
            max_length=63,
            pattern=NAMESPACE_PATTERN,
            description="The namespace in Duramen that it is in.",
        ),
    ]
    name: Annotated[
        str | None,
        Field(
            max_length=255,
            pattern=LOG_PATTERN,
            description="Its name in Duramen. Left out: metadata.name.",
        ),
    ] = None
    deletion_policy: Annotated[
        DeletionPolicy,
        Field(
            description="What becomes of the log when this object is deleted. Retain: it stays, "
            "with its records. Delete: it goes, and its records with it."
        ),
    ] = "Retain"
    sealed: Annotated[
        bool,
        Field(
            strict=True,
            description="End the log: it takes no appends any more and can be read. It cannot be "
            "taken back.",
        ),
    ] = False
    truncation: Annotated[
        str | None,
        Field(
            max_length=100,
            pattern=TRUNCATION_PATTERN,
            description="Readers are shown nothing before this position: seq:N, dlsn:e1n2s3 or "
            "lsn:e1n2. It only moves forward.",
        ),
    ] = None

    @model_validator(mode="after")
    def _check_truncation(self) -> LogSpec:
        if self.truncation is not None:
            _as_value_error(parse_position, self.truncation)
        return self


class SegmentCounts(StatusPart):
    """Segments of a log by their state."""

    open: Annotated[int, Field(ge=0, description="Being written.")] = 0
    closed: Annotated[int, Field(ge=0, description="Closed, on bookies.")] = 0
    archived: Annotated[int, Field(ge=0, description="With a verified cold copy.")] = 0
    truncated: Annotated[int, Field(ge=0, description="Not shown to readers any more.")] = 0


class LogStatus(ResourceStatus):
    """What became of a log."""

    log_id: Annotated[str, Field(max_length=32, description="Its number in the cluster.")] = ""
    owner: Annotated[str, Field(max_length=253, description="The sequencer that owns it.")] = ""
    tail: Annotated[
        int | None, Field(ge=0, description="Sequence number that the next record gets.")
    ] = None
    size_bytes: Annotated[int | None, Field(ge=0, description="Bytes of its segments.")] = None
    segments: Annotated[SegmentCounts, Field(description="Its segments by state.")] = (
        SegmentCounts()
    )
    is_sealed: Annotated[
        bool | None, Field(alias="sealed", description="Whether it takes no appends any more.")
    ] = None
    config: dict[str, Any] = Field(
        default_factory=dict, description="The whole configuration that is in force."
    )


class LogResource(Resource):
    """A log in a namespace of a cluster, with its configuration."""

    kind: Literal["Log"] = "Log"
    spec: LogSpec
    status: LogStatus = LogStatus()

    @property
    def log_name(self) -> str:
        """Its name in Duramen, without the namespace."""
        return self.spec.name or self.metadata.name

    @property
    def path(self) -> str:
        """`namespace/log`."""
        return f"{self.spec.namespace}/{self.log_name}"

    @model_validator(mode="after")
    def _check_name(self) -> LogResource:
        _as_value_error(check_log_name, self.log_name)
        return self


def _as_value_error(check: Any, text: str) -> None:
    """What the library says of a text, as pydantic collects it."""
    try:
        check(text)
    except DuramenError as error:
        raise ValueError(error.detail) from None
