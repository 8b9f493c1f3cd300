"""A record of a metadata log: one segment's metadata at one version of its node.

A record of kind TOLD is history. One of kind MOVED may stand for a node that has left ZooKeeper,
if the log node says so: whether it counts is not in the record (`listing`). The configuration is
kept as it was stored, not understood: a record of an old epoch stays readable whatever becomes of
its fields.

Encoded by `wire.nodes.metadata_records`. Source: docs/protocol/metadata-logs.md "The record".
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from duramen.core.flexible.segment import AnySegment
from duramen.ids import Epoch, LogId, is_metadata_log


class MetadataKind(enum.Enum):
    """What a record is there for."""

    TOLD = "told"
    """History: what an epoch was when its owner told it. It never counts."""

    MOVED = "moved"
    """The node as it was when it left ZooKeeper, or was about to."""


@dataclass(frozen=True, slots=True)
class MetadataRecord:
    """The metadata of one segment."""

    kind: MetadataKind
    segment: AnySegment
    node_version: int
    """Of the segment's node, as it was read: a move deletes the node at exactly this version."""

    made: int
    """The transaction that made the node, by which bookies judge damage (ADR 0011)."""

    config_version: int | None = None
    config: Mapping[str, Any] | None = None
    """Of the log when the epoch was opened; None: whoever wrote this did not know it."""

    extra: Mapping[str, Any] = field(default_factory=dict)
    """What a newer writer has said besides; a copy has it too."""

    @property
    def epoch(self) -> Epoch:
        """The segment's."""
        return self.segment.epoch

    @property
    def log_id(self) -> LogId:
        """The log whose segment it is, not the one that the record lies in."""
        return self.segment.log_id

    @property
    def age(self) -> tuple[int, int]:
        """Ordered as versions of the node follow one another, also where it was lost and put back:
        then its versions begin anew."""
        return self.made, self.node_version

    def with_config_of(self, other: MetadataRecord) -> MetadataRecord:
        """With the configuration of another record of the same epoch, if this one has none."""
        assert (self.log_id, self.epoch) == (other.log_id, other.epoch), (self, other)
        if self.config is not None or other.config is None:
            return self
        return replace(self, config=other.config, config_version=other.config_version)

    def validated(self) -> MetadataRecord:
        """The value itself, after its invariants were checked."""
        assert not is_metadata_log(self.log_id), f"a metadata log has none itself: {self}"
        assert self.kind is not MetadataKind.MOVED or self.segment.is_closed, f"may change: {self}"
        assert self.node_version >= 0 and self.made >= 0, f"no version: {self}"
        assert (self.config is None) == (self.config_version is None), f"half of it: {self}"
        return self
