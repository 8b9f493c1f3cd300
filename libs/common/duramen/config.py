"""Configuration of a log: one model for REST, custom resource and command line.

Frozen and checked as a whole: unknown keys are refused and all faults are reported at once, each
with its field path. Durations and sizes are texts outside ("2h", "256MiB") and integers inside
(microseconds, bytes); `to_json` writes every field, so that a stored configuration never changes
its meaning when a default does.

Fields whose feature is still to come (see CHANGELOG) accept only their default: a promise that is
not kept yet is refused, not ignored. Source: docs/protocol/configuration.md "Log".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple, NoReturn

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from duramen.errors import DuramenError
from duramen.units import (
    DURATION_PATTERN,
    GIB,
    KIB,
    MIB,
    SIZE_PATTERN,
    format_duration,
    format_size,
    parse_duration_us,
    parse_size_bytes,
)


def _read_duration(value: object) -> int:
    if not isinstance(value, str):
        raise ValueError('write a duration as text, such as "250ms" or "2h"')
    return parse_duration_us(value)


def _read_size(value: object) -> int:
    if not isinstance(value, str):
        raise ValueError('write a size as text, such as "256MiB"')
    return parse_size_bytes(value)


Duration = Annotated[
    int,
    BeforeValidator(_read_duration),
    PlainSerializer(format_duration, return_type=str),
    Field(ge=0),
    WithJsonSchema({"type": "string", "pattern": DURATION_PATTERN}),
]
Size = Annotated[
    int,
    BeforeValidator(_read_size),
    PlainSerializer(format_size, return_type=str),
    Field(ge=0),
    WithJsonSchema({"type": "string", "pattern": SIZE_PATTERN}),
]


def _read_limit(value: object) -> object:
    """No limit is also spelled "none": tools that carry a configuration drop what is null, as
    kubectl does, and a limit that was to go would stay."""
    return None if value == "none" else value


LIMIT_PATTERN: Final = "^none$|"
"""Before the pattern of a duration or a size: what may also be written."""


def _limit_schema(pattern: str) -> WithJsonSchema:
    text = {"type": "string", "pattern": LIMIT_PATTERN + pattern}
    return WithJsonSchema({"anyOf": [text, {"type": "null"}]})


DurationLimit = Annotated[
    Duration | None, BeforeValidator(_read_limit), _limit_schema(DURATION_PATTERN)
]
SizeLimit = Annotated[Size | None, BeforeValidator(_read_limit), _limit_schema(SIZE_PATTERN)]

Count = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
CountLimit = Annotated[
    Annotated[int, Field(strict=True, ge=1, le=1_000_000_000)] | None,
    BeforeValidator(_read_limit),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": 1_000_000_000},
                {"type": "string", "pattern": "^none$"},
                {"type": "null"},
            ]
        }
    ),
]


def _check_size_limit(value_bytes: int | None) -> int | None:
    if value_bytes is not None and value_bytes < SIZE_LIMIT_BYTES_MIN:
        raise ValueError(f'must be "{format_size(SIZE_LIMIT_BYTES_MIN)}" or more')
    return value_bytes


SIZE_LIMIT_BYTES_MIN: Final = 64 * KIB
"""Below it a single body would keep its party waiting for minutes."""

BytesLimit = Annotated[SizeLimit, AfterValidator(_check_size_limit)]


def _at_least(least: str) -> AfterValidator:
    """A bound of a duration, told in the words that the configuration is written in."""
    least_us = parse_duration_us(least)

    def check(value_us: int) -> int:
        if value_us < least_us:
            raise ValueError(f'must be "{least}" or more')
        return value_us

    return AfterValidator(check)


def _at_most(most: str) -> AfterValidator:
    """As `_at_least`."""
    most_us = parse_duration_us(most)

    def check(value_us: int) -> int:
        if value_us > most_us:
            raise ValueError(f'must be "{most}" or less')
        return value_us

    return AfterValidator(check)


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Replication(_Part):
    """How many copies an entry has and where they may lie (R20)."""

    ensemble_size: Annotated[int, Field(strict=True, ge=1, le=64)] = 3
    write_quorum: Count = 3
    ack_quorum: Count = 2
    min_racks: Count = 2
    min_regions: Count = 1
    regions_that_must_suffice: Count | None = None
    """How few regions may be left and still satisfy the rule; None: `min_regions`."""

    placement: Literal["strict", "prefer"] = "strict"

    @model_validator(mode="after")
    def _check_quorum(self) -> Replication:
        if not self.ensemble_size >= self.write_quorum >= self.ack_quorum:
            raise ValueError(
                f"ensemble_size {self.ensemble_size} ≥ write_quorum {self.write_quorum} ≥ "
                f"ack_quorum {self.ack_quorum} must hold"
            )
        if self.ack_quorum < self.min_racks:
            raise ValueError(
                f"ack_quorum {self.ack_quorum} copies cannot lie in min_racks {self.min_racks} "
                f"racks: raise ack_quorum to {self.min_racks} or lower min_racks to "
                f"{self.ack_quorum}"
            )
        if self.ack_quorum < self.min_regions:
            raise ValueError(
                f"ack_quorum {self.ack_quorum} copies cannot lie in min_regions "
                f"{self.min_regions} regions: raise ack_quorum to {self.min_regions} or lower "
                f"min_regions to {self.ack_quorum}"
            )
        return self


class FlexibleReplication(_Part):
    """What the copies of one entry span, whichever bookies of the nodeset have them (R22)."""

    node: Annotated[int, Field(strict=True, ge=1, le=64)] = 3
    rack: Count = 2
    region: Count = 1
    extras: Annotated[int, Field(strict=True, ge=0, le=2)] = 0
    regions_that_must_suffice: Count | None = None
    """How few regions may be left and still satisfy the rule; None: `region`."""

    placement: Literal["strict", "prefer"] = "strict"

    @model_validator(mode="after")
    def _check_span(self) -> FlexibleReplication:
        if not self.node >= self.rack >= self.region:
            raise ValueError(
                f"node {self.node} ≥ rack {self.rack} ≥ region {self.region} must hold: so many "
                "copies cannot lie in more racks, nor these in more regions"
            )
        return self


_FORMS: Final[Mapping[str, type[Replication | FlexibleReplication]]] = {
    "striped": Replication,
    "flexible": FlexibleReplication,
}
"""What `replication` holds, by `copysets`."""


def _name_form(copysets: str) -> str:
    own, other = (
        set(_FORMS[name].model_fields) for name in (copysets, *(set(_FORMS) - {copysets}))
    )
    return ", ".join(name for name in _FORMS[copysets].model_fields if name in own - other)


def _read_replication(value: object, info: ValidationInfo) -> Replication | FlexibleReplication:
    """In the form that `copysets` asks for, which was read before."""
    copysets = info.data.get("copysets", "striped")
    form = _FORMS[copysets]
    if isinstance(value, form):
        return value
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    for name, other in _FORMS.items():
        foreign = set(other.model_fields) - set(form.model_fields)
        if isinstance(value, Mapping) and not foreign.isdisjoint(value):
            raise ValueError(
                f"{', '.join(sorted(foreign & set(value)))}: with copysets {copysets} it has "
                f"{_name_form(copysets)}; {name} logs have {_name_form(name)}"
            )
    return form.model_validate(value)


NODESET_SIZE_MAX: Final = 64


class Nodeset(_Part):
    """The bookies that an epoch of a flexible log may use."""

    size: Annotated[
        Annotated[int, Field(strict=True, ge=1, le=NODESET_SIZE_MAX)] | None,
        BeforeValidator(_read_limit),
        WithJsonSchema(
            {
                "anyOf": [
                    {"type": "integer", "minimum": 1, "maximum": NODESET_SIZE_MAX},
                    {"const": "none"},
                    {"type": "null"},
                ]
            }
        ),
    ] = None
    """None: all, up to 20."""

    tolerate: Annotated[int, Field(strict=True, ge=0, le=63)] = 1
    """How many of them may be away at once."""


def check_nodeset_numbers(
    *,
    node: int,
    region: int,
    extras: int,
    size: int | None,
    tolerate: int,
    regions_that_must_suffice: int | None,
) -> None:
    """Refuse numbers by which no nodeset could be chosen, whatever bookies there are.

    Raises:
        ValueError: with the numbers.
    """
    if not 0 <= tolerate < node:
        raise ValueError(
            f"nodeset.tolerate {tolerate} is not 0 to {node - 1}: with {node} nodes away all "
            "copies of an entry may be (replication.node)"
        )
    least, most = node + extras + tolerate, NODESET_SIZE_MAX if size is None else size
    if not least <= most <= NODESET_SIZE_MAX:
        and_extras = f" and replication.extras {extras}" if extras else ""
        raise ValueError(
            f"nodeset.size {most} is not {least} to {NODESET_SIZE_MAX}: replication.node {node}"
            f"{and_extras} and nodeset.tolerate {tolerate} together are {least} bookies"
        )
    if regions_that_must_suffice is not None and regions_that_must_suffice < region:
        raise ValueError(
            f"replication.regions_that_must_suffice {regions_that_must_suffice} regions are never "
            f"replication.region {region}"
        )


def _read_switch(value: object) -> object:
    """YAML reads an unquoted `on` as true."""
    switches: Mapping[object, bool] = {"on": True, "off": False}
    return switches.get(value, value) if isinstance(value, str) else value


def _write_switch(is_on: bool) -> str:
    return "on" if is_on else "off"


Switch = Annotated[
    bool,
    BeforeValidator(_read_switch),
    PlainSerializer(_write_switch, return_type=str),
    Field(strict=True),
    WithJsonSchema({"enum": ["on", "off", True, False]}),
]


class Roll(_Part):
    """When a segment is closed and the next one opened (R19); both bounds are active.

    The least values leave a segment the time to take an append.
    """

    interval: Annotated[Duration, _at_least("100ms")] = parse_duration_us("2h")
    size: Size = parse_size_bytes("256MiB")
    idle_close: Annotated[Duration, _at_least("1s")] = parse_duration_us("10m")


class Retention(_Part):
    """How long records are kept."""

    age: DurationLimit = parse_duration_us("72h")
    bytes: SizeLimit = None
    truncated: Duration = parse_duration_us("1h")
    require_cold_copy: bool = False


_FlushWait = Annotated[Duration, _at_most("1s")]
"""An append has ten seconds altogether; what waits for company must not be what uses them up."""


class Flush(_Part):
    """When waiting appends become an entry, the pipeline permitting; see `TransmitBuffer.due_us`.

    `immediate`: at once. `periodic`: after `interval`. `size`: when `size` bytes wait, or after
    `wait_max`. A full entry never waits.
    """

    policy: Literal["immediate", "periodic", "size"] = "immediate"
    interval: _FlushWait = parse_duration_us("2ms")
    size: Size = parse_size_bytes("512KiB")
    wait_max: _FlushWait = parse_duration_us("50ms")


_Stall = Annotated[Duration, _at_least("1s"), _at_most("60s")]


class Window(_Part):
    """What may be between the oldest and the newest unacknowledged append; beyond: SEQNOBUF."""

    entries: Annotated[int, Field(strict=True, ge=1, le=100_000)] = 2_000
    bytes: Size = parse_size_bytes("64MiB")
    stall: _Stall = parse_duration_us("10s")
    """How long an entry of a flexible log may be incomplete, before its owner takes the log over by
    itself (R28)."""


class Producers(_Part):
    """State kept per idempotent producer."""

    results_kept: Count = 64
    expire_after: Duration = parse_duration_us("7d")


class Tiering(_Part):
    """What the archive does with closed segments.

    `none`: nothing, unless a run names the log. `copy`: they are archived, and bookies keep them.
    `move`: they are archived, and `keep_hot` after its completion a segment may leave the bookies.
    """

    policy: Literal["none", "copy", "move"] = "none"
    keep_hot: Duration = parse_duration_us("24h")
    min_size: Size = 0
    """Segments with fewer bytes of batches are left alone."""


AckMode = Literal["ordered", "out_of_order"]

Copysets = Literal["striped", "flexible"]

_SHOWN_FIRST: Final = ("replication", "ack_mode", "copysets")
"""`copysets` is read before `replication`, whose form it tells, and shown behind it."""


def _show_in_order(schema: dict[str, Any]) -> None:
    properties = schema["properties"]
    shown = {name: properties[name] for name in _SHOWN_FIRST}
    schema["properties"] = shown | {n: p for n, p in properties.items() if n not in shown}


_LATER_FIELDS: Final = ("compression", "owner_region")
"""Of `LogConfig`: those that the version before does not know, all `none` by default."""


class LogConfig(_Part):
    """The configuration of one log, defaults filled in."""

    model_config = ConfigDict(json_schema_extra=_show_in_order)

    copysets: Copysets = "striped"
    replication: Annotated[
        Replication | FlexibleReplication, BeforeValidator(_read_replication)
    ] = Field(default_factory=dict, validate_default=True)
    ack_mode: AckMode = "ordered"
    nodeset: Nodeset = Field(default=Nodeset(), validate_default=True)
    sticky: Switch = True
    early_append: Annotated[bool, Field(strict=True)] = False
    compression: Literal["none", "zstd"] = "none"
    owner_region: Literal["none", "writers"] = "none"
    commit: Literal["lac", "control"] = "lac"
    commit_delay: Duration = parse_duration_us("5ms")
    owed_bytes_max: Size = parse_size_bytes("64MiB")
    tiering: Tiering = Tiering()
    roll: Roll = Roll()
    retention: Retention = Retention()
    flush: Flush = Flush()
    window: Window = Window()
    producers: Producers = Producers()

    @field_validator("nodeset", "sticky", "window")
    @classmethod
    def _check_form(cls, value: object, info: ValidationInfo) -> object:
        """What is of flexible logs alone is refused where it would say nothing."""
        if info.data.get("copysets") != "striped":
            return value
        if isinstance(value, Window) and value.stall != Window().stall:
            raise ValueError("stall: of logs with copysets flexible alone")
        if value in (Nodeset(), True) or isinstance(value, Window):
            return value
        raise ValueError("of logs with copysets flexible alone")

    @field_validator("nodeset")
    @classmethod
    def _check_numbers(cls, value: Nodeset, info: ValidationInfo) -> Nodeset:
        """What contradicts itself on any bookies."""
        replication = info.data.get("replication")
        if isinstance(replication, FlexibleReplication):
            check_nodeset_numbers(
                node=replication.node,
                region=replication.region,
                extras=replication.extras,
                size=value.size,
                tolerate=value.tolerate,
                regions_that_must_suffice=replication.regions_that_must_suffice,
            )
        return value

    @property
    def is_flexible(self) -> bool:
        """Whether each entry has a copyset of its own."""
        return self.copysets == "flexible"

    @property
    def striped(self) -> Replication:
        """How the copies of a striped log lie."""
        assert isinstance(self.replication, Replication), self
        return self.replication

    def to_json(self) -> dict[str, Any]:
        """Every field, as texts and numbers that `parse_log_config` reads back.

        What is of flexible logs alone is left out of others: older versions read those, too.
        """
        fields = self.model_dump(mode="json")
        shown = {name: fields.pop(name) for name in _SHOWN_FIRST}
        if not self.is_flexible:
            del fields["nodeset"], fields["sticky"], fields["window"]["stall"]
        return shown | fields

    def to_stored(self) -> dict[str, Any]:
        """As `to_json`, for other processes: without what older ones do not know, where it has its
        default. They read such logs as ever, and refuse the others."""
        fields = self.to_json()
        for name in _LATER_FIELDS:
            if fields[name] == "none":
                del fields[name]
        return fields


def needs_new_segment(old: LogConfig, new: LogConfig) -> bool:
    """Whether a changed configuration takes effect only in a segment of its own.

    Everything else is in force as soon as the log's owner knows it.
    """
    names = ("replication", "ack_mode", "copysets", "nodeset")
    return any(getattr(old, name) != getattr(new, name) for name in names)


class ClientLimits(_Part):
    """How much of one proxy process one party may have; None: no limit."""

    calls_per_s: CountLimit = 10_000
    bytes_per_s: BytesLimit = 1 * GIB
    open_calls: CountLimit = 8_192
    open_streams: CountLimit = 6_144
    in_flight_bytes: BytesLimit = 128 * MIB


class NamespaceLimits(ClientLimits):
    """How much of one proxy process, and how many logs, a namespace may have: more than any one of
    its clients."""

    calls_per_s: CountLimit = 20_000
    bytes_per_s: BytesLimit = 2 * GIB
    open_calls: CountLimit = 12_288
    open_streams: CountLimit = 8_192
    in_flight_bytes: BytesLimit = 192 * MIB
    logs: CountLimit = 100_000


_SIZES: Final = ("bytes_per_s", "in_flight_bytes")
"""Limits that are written with a unit."""

_LATER_OF_NAMESPACE: Final = ("limits", "encryption_version")
"""Fields of a namespace that came later."""


class NamespaceConfig(_Part):
    """The configuration of one namespace."""

    auto_create: Annotated[bool, Field(strict=True)] = False
    limits: NamespaceLimits = NamespaceLimits()
    encryption_version: Annotated[int, Field(strict=True, ge=0, le=0)] = 0
    """Of how its records are encrypted where they lie; 0: they are not."""

    def to_json(self) -> dict[str, Any]:
        """Every field, as JSON values."""
        return self.model_dump(mode="json")

    def to_stored(self) -> dict[str, Any]:
        """As `to_json`, for other processes: without what older ones do not know, where it has its
        default. They read such namespaces as ever, and refuse the others."""
        defaults = NamespaceConfig().to_json()
        return {
            name: value
            for name, value in self.to_json().items()
            if name not in _LATER_OF_NAMESPACE or value != defaults[name]
        }


class ConfigFault(NamedTuple):
    """One fault of a configuration."""

    field: str
    message: str
    is_unknown: bool


def parse_log_config(document: Mapping[str, Any]) -> LogConfig:
    """A log's configuration from JSON values; `{}` gives the defaults.

    Raises:
        DuramenError: `unknown_field` or `invalid_argument`, all faults in the detail.
    """
    try:
        return LogConfig.model_validate(document)
    except ValidationError as error:
        _refuse(error)


def parse_namespace_config(document: Mapping[str, Any]) -> NamespaceConfig:
    """A namespace's configuration from JSON values; `{}` gives the defaults.

    Raises:
        DuramenError: `unknown_field` or `invalid_argument`, all faults in the detail.
    """
    try:
        return NamespaceConfig.model_validate(document)
    except ValidationError as error:
        _refuse(error)


def parse_client_limits(assignments: Iterable[str]) -> ClientLimits:
    """Limits from texts such as `calls_per_s=500`; those that are not named have their default.

    Raises:
        DuramenError: `unknown_field` or `invalid_argument`, all faults in the detail.
    """
    fields: dict[str, Any] = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals or name in fields:
            raise DuramenError("invalid_argument", f"{text!r}: one NAME=VALUE for each limit")
        fields[name] = int(value) if value.isdecimal() and name not in _SIZES else value
    try:
        return ClientLimits.model_validate(fields)
    except ValidationError as error:
        _refuse(error)


def faults_of(error: ValidationError) -> tuple[ConfigFault, ...]:
    """Pydantic's findings as fields and sentences, unknown fields first."""
    faults = [
        ConfigFault(
            ".".join(str(part) for part in item["loc"]),
            item["msg"].removeprefix("Value error, "),
            item["type"] == "extra_forbidden",
        )
        for item in error.errors()
    ]
    return tuple(sorted(faults, key=lambda fault: (not fault.is_unknown, fault.field)))


def _refuse(error: ValidationError) -> NoReturn:
    faults = faults_of(error)
    detail = "; ".join(
        f"{fault.field}: not a known field"
        if fault.is_unknown
        else f"{fault.field}: {fault.message}"
        for fault in faults
    )
    code = "unknown_field" if faults[0].is_unknown else "invalid_argument"
    raise DuramenError(code, detail, field=faults[0].field or None) from None
