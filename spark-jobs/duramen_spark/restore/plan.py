"""What a restored log consists of: its manifests by epoch, without a gap in sequence numbers.

Epochs, entries and slots stay what they were, so DLSNs do too. Epochs that closed empty and were
never archived become empty segments; a gap that had records is refused. The first archived segment
need not be the log's first: the log begins there, truncated. Pure.

Called by `restore.driver`. Source: docs/archive.md, docs/protocol/archive.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from duramen.core.flexible.segment import AnySegment
from duramen.core.log_node import LogNode
from duramen.core.segment_base import SegmentState, Totals
from duramen.ids import NOTHING, EntryId, Epoch, LogId, lsn_of
from duramen.wire.cold.manifest import Manifest, Ranges
from duramen_spark.restore.placing import Placing

RESTORED_FROM = "restored_from"
"""Field of the restored log's node: cluster, log id and last epoch of what it was made of."""


class RestoreError(Exception):
    """The archive does not hold a log that can be restored; definite, nothing was made."""


class RestorePlan(NamedTuple):
    """What is to be made.

    Attributes:
        manifests: by epoch; an epoch from the first to the last that has none is empty.
    """

    manifests: dict[Epoch, Manifest]
    first: Epoch
    last: Epoch
    start_seq_num: int

    @property
    def source(self) -> dict[str, object]:
        """What the node of the restored log says of where it comes from."""
        manifest = self.manifests[self.first]
        return {
            "cluster": manifest.cluster,
            "log_id": str(manifest.log_id),
            "first_epoch": self.first,
            "last_epoch": self.last,
        }


def plan_restore(manifests: Sequence[Manifest], until: Epoch | None = None) -> RestorePlan:
    """Check that manifests of one log follow one another.

    Args:
        until: the last epoch that is wanted; None: all.

    Raises:
        RestoreError: there are none, or records between two of them are not there.
    """
    wanted = [one for one in manifests if until is None or one.epoch <= until]
    by_epoch = {one.epoch: one for one in sorted(wanted, key=lambda one: one.epoch)}
    if not by_epoch:
        raise RestoreError("nothing of this log is in the archive")
    chain = list(by_epoch.values())
    expected = chain[0].start_seq_num
    before = chain[0]
    for one in chain:
        if one.start_seq_num != expected:
            raise RestoreError(
                f"records {expected} to {one.start_seq_num - 1}, between epochs {before.epoch} and "
                f"{one.epoch}, are not in the archive; --until {before.epoch} restores what is "
                "before them"
            )
        expected += one.totals.record_count
        before = one
    return RestorePlan(by_epoch, chain[0].epoch, chain[-1].epoch, chain[0].start_seq_num)


def begin_log(log: LogNode, plan: RestorePlan) -> LogNode:
    """The log before its first segment: deleted, so that one that is given up is purged.

    Args:
        log: id, name and configuration are taken over.
    """
    before = Epoch(plan.first - 1)
    return replace(
        log,
        next_epoch=plan.first,
        last_clean_epoch=before,
        totals=Totals(record_count=plan.start_seq_num),
        trim_lsn=lsn_of(plan.first, EntryId(0)),
        trim_seq_num=plan.start_seq_num,
        first_live_epoch=plan.first,
        truncated_below=plan.first,
        is_deleted=True,
    ).validated()


def add_segment(log: LogNode, segment: AnySegment, *, unix_ms: int, nonce: str) -> LogNode:
    """One more segment is there, whole: still deleted, counted anew from now on."""
    assert log.is_deleted and segment.epoch == log.next_epoch, (log, segment)
    assert segment.totals is not None, segment
    return replace(
        log,
        next_epoch=Epoch(segment.epoch + 1),
        last_clean_epoch=segment.epoch,
        totals=log.totals.plus(segment.totals),
        deleted_unix_ms=unix_ms,
        nonce=nonce,
    ).validated()


def make_segment(
    plan: RestorePlan,
    epoch: Epoch,
    *,
    log_id: LogId,
    start_seq_num: int,
    placing: Placing,
    length_bytes: int,
    unix_ms: int,
    nonce: str,
) -> AnySegment:
    """A CLOSED segment all of whose entries were written where they should be, and compared.

    Args:
        start_seq_num: where it begins, for an epoch without a manifest.
        length_bytes: of its batches as they are now: compressed ones may have another size.
        unix_ms: it counts as completed now, so that retention does not take it at once.
    """
    manifest = plan.manifests.get(epoch)
    totals, last = Totals(), NOTHING
    holes: Ranges = ()
    lost: Ranges = ()
    history: dict[str, object] = {}
    if manifest is not None:
        totals = manifest.totals._replace(length_bytes=length_bytes)
        holes, lost, last = manifest.holes, manifest.lost, manifest.last_entry
        start_seq_num = manifest.start_seq_num
        history = dict(manifest.history)
    mode = history.get("ack_mode")
    created = history.get("created_unix_ms")
    fields = {
        "log_id": log_id,
        "epoch": epoch,
        "state": SegmentState.CLOSED,
        "ack_mode": "out_of_order" if holes or mode == "out_of_order" else "ordered",
        "last_entry": last,
        "holes": holes,
        "lost": lost,
        "totals": totals,
        "start_seq_num": start_seq_num,
        "created_unix_ms": created if isinstance(created, int) else unix_ms,
        "completed_unix_ms": unix_ms,
        "nonce": nonce,
    }
    missing_count = 0 if manifest is None else manifest.missing_record_count
    return placing.make_segment(fields, missing_count).validated()
