"""A log's configuration as types: what an editor completes and mypy checks.

Plain mappings at run time, as docs/protocol/configuration.md describes them; the server is the one
that judges. Durations and sizes are texts. `duramen.config` has the same fields, but takes longer
to load than a client does; a test compares the two.

Public as names of `duramen.client`. Source: docs/protocol/configuration.md "Log".
"""

from __future__ import annotations

from typing import Literal, TypedDict


class ReplicationSettings(TypedDict, total=False):
    """How many copies an entry has and where they may lie: fields of one of both forms."""

    ensemble_size: int
    """This and the next four: of striped logs."""
    write_quorum: int
    ack_quorum: int
    min_racks: int
    min_regions: int
    node: int
    """This and the next three: of flexible logs."""
    rack: int
    region: int
    extras: int
    regions_that_must_suffice: int | None
    placement: Literal["strict", "prefer"]


class NodesetSettings(TypedDict, total=False):
    """The bookies that an epoch of a flexible log may use."""

    size: int | Literal["none"] | None
    tolerate: int


class TieringSettings(TypedDict, total=False):
    """What the archive does with closed segments."""

    policy: Literal["none", "copy", "move"]
    keep_hot: str
    min_size: str


class RollSettings(TypedDict, total=False):
    """When a segment is closed and the next one opened."""

    interval: str
    size: str
    idle_close: str


class RetentionSettings(TypedDict, total=False):
    """How long records are kept."""

    age: str | None
    bytes: str | None
    truncated: str
    require_cold_copy: bool


class FlushSettings(TypedDict, total=False):
    """When waiting appends become an entry."""

    policy: Literal["immediate", "periodic", "size"]
    interval: str
    size: str
    wait_max: str


class WindowSettings(TypedDict, total=False):
    """What may be between the oldest and the newest unacknowledged append."""

    entries: int
    bytes: str
    stall: str


class ProducersSettings(TypedDict, total=False):
    """State kept per idempotent producer."""

    results_kept: int
    expire_after: str


class LogSettings(TypedDict, total=False):
    """Fields of a log's configuration; what is left out has its default, or stays."""

    copysets: Literal["striped", "flexible"]
    replication: ReplicationSettings
    ack_mode: Literal["ordered", "out_of_order"]
    nodeset: NodesetSettings
    sticky: Literal["on", "off"] | bool
    early_append: bool
    compression: Literal["none", "zstd"]
    owner_region: Literal["none", "writers"]
    commit: Literal["lac", "control"]
    commit_delay: str
    owed_bytes_max: str
    tiering: TieringSettings
    roll: RollSettings
    retention: RetentionSettings
    flush: FlushSettings
    window: WindowSettings
    producers: ProducersSettings
