"""The history of a log: every epoch that anybody can still tell of, oldest first.

What lives is as a listing shows it. What was given up is as its metadata log was told last, until
that is rewritten. The configuration is that of the log when the epoch was opened, where its owner
has told it.

Pure. Called by readers and tools. Source: docs/protocol/metadata-logs.md "History".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from duramen.core.flexible.segment import AnySegment
from duramen.core.metadata_log.listing import (
    PlacedRecord,
    SegmentListing,
    Whereabouts,
    whereabouts_of,
)
from duramen.core.metadata_log.rebuilding import rebuild
from duramen.ids import Epoch


class ToldEpoch(NamedTuple):
    """One epoch of a log."""

    epoch: Epoch
    where: Whereabouts
    """Of its metadata; GIVEN_UP: the segment is as it was told last."""

    segment: AnySegment | None
    """None: its metadata have moved, and cannot be read."""

    config_version: int | None
    config: Mapping[str, Any] | None
    """Of the log when it was opened; None: nobody has told it."""


def report_epochs(listing: SegmentListing, records: Iterable[PlacedRecord]) -> list[ToldEpoch]:
    """Every epoch that lives, and every one before of which there is history.

    Args:
        records: all that can be read of the metadata log, in the order in which they lie.
    """
    told = rebuild(records)
    live = {segment.epoch: segment for segment in listing.segments}
    known = {*live, *listing.unreadable, *(e for e in told if e < listing.log.next_epoch)}
    epochs = []
    for epoch in sorted(known):
        where, record = whereabouts_of(listing.log, epoch), told.get(epoch)
        segment = live.get(epoch)
        if segment is None and where is Whereabouts.GIVEN_UP and record is not None:
            segment = record.segment
        config = (None, None) if record is None else (record.config_version, record.config)
        epochs.append(ToldEpoch(epoch, where, segment, *config))
    return epochs
