"""What has left the metadata store, judged: N1.

Part of `checkers`. It is told each version of a log's segment nodes, what keepers have bookies
store of metadata logs, and how their epochs end. An entry that counts was held by an ack set of its
segment when that was closed; its bytes are those that its keeper sent. At every change of a log
node each live epoch has its node, or a record that counts and equals the last version of the node.
What was told of an epoch with its configuration is told as long as it lives.

Source: docs/protocol/metadata-logs.md "Words", "Changes"; N1, docs/testing.md "Invariants".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from duramen.core.flexible.segment import AnySegment
from duramen.core.log_node import LogNode
from duramen.core.metadata_log.listing import PlacedRecord, find_counting
from duramen.core.metadata_log.record import MetadataKind
from duramen.core.segment import Segment
from duramen.ids import (
    EntryId,
    Epoch,
    LedgerId,
    LogId,
)
from duramen.wire.nodes.metadata_entries import read_metadata_entry
from tests.sim.segment_record import Tally


class SegmentNode(NamedTuple):
    """A segment node, or what a record says of one."""

    segment: AnySegment
    version: int
    made: int


class MovedRecord:
    """The metadata logs of all logs.

    Args:
        count_holders: how many bookies ever held these bytes of an entry.
        is_there: whether a segment has its node in the metadata store now.
        counts: of the run: what happened.
    """

    def __init__(
        self,
        tally: Tally,
        count_holders: Callable[[LedgerId, EntryId, int], int],
        is_there: Callable[[LogId, Epoch], bool],
        counts: Counter[str],
    ) -> None:
        self._tally = tally
        self._count_holders = count_holders
        self._is_there = is_there
        self._counts = counts
        self._nodes: dict[LogId, dict[Epoch, SegmentNode]] = {}
        """The last version of each segment node of a log, there or gone."""
        self._sent: dict[tuple[LedgerId, EntryId], bytes] = {}
        self._records: dict[LogId, list[PlacedRecord]] = {}
        """What lies in the closed epochs of a log's metadata log, in order."""

    # --- nodes of segments -----------------------------------------------------------------------

    def on_node(self, node: SegmentNode) -> None:
        """A segment node was made or changed."""
        self._nodes.setdefault(node.segment.log_id, {})[node.segment.epoch] = node

    def on_node_gone(self, log: LogNode, segment: AnySegment) -> None:
        """A segment node was deleted; `log` is as it is after the same change."""
        if segment.epoch < log.first_live_epoch:
            return
        is_moved = segment.epoch <= log.metadata.through and segment.epoch < log.first_hot_epoch
        self._check(is_moved and segment.is_closed, segment, "has gone from", log)
        self._counts["segment node moved"] += 1

    # --- metadata logs ---------------------------------------------------------------------------

    def on_entry_sent(self, ledger_id: LedgerId, entry_id: EntryId, payload: bytes) -> None:
        """A keeper has an entry stored, or stored again."""
        known = self._sent.setdefault((ledger_id, entry_id), payload)
        self._check(known == payload, "entry", entry_id, "of", ledger_id, "has other bytes")

    def on_epoch_opened(self, segment: AnySegment, log: LogNode, *, is_set: bool) -> None:
        """An epoch of a metadata log was opened; `is_set`: the same change set the log's node."""
        is_named = is_set and log.metadata.epoch == segment.epoch
        self._check(is_named, segment, "was opened, and its log is", log)
        self._counts["metadata epoch claimed"] += 1

    def on_epoch_closed(self, log_id: LogId, segment: Segment) -> None:
        """An epoch of the metadata log of a log was closed: what it holds is there for ever."""
        assert segment.last_entry is not None
        placed = self._records.setdefault(log_id, [])
        for entry_id in map(EntryId, range(segment.last_entry + 1)):
            payload = self._sent.get((segment.ledger_id, entry_id))
            self._check(payload is not None, "nobody sent entry", entry_id, "of", segment)
            assert payload is not None
            crc = int.from_bytes(payload[4:8], "little")
            holder_count = self._count_holders(segment.ledger_id, entry_id, crc)
            is_held = holder_count >= segment.quorum.ack_quorum
            self._check(is_held, "entry", entry_id, "of", segment, "is held by", holder_count)
            placed += read_metadata_entry(payload, log_id)
        self._counts["metadata epoch closed"] += 1

    def on_metadata_log_changed(self, log: LogNode, before: LogNode, after: LogNode) -> None:
        """The node of a metadata log was replaced; `log` is its log now."""
        first = log.metadata.first_lsn
        is_kept = after.trim_lsn == before.trim_lsn or (
            first is not None and after.trim_lsn <= first
        )
        self._check(is_kept, after, "is trimmed above what counts by", log)
        self._counts["metadata log trimmed"] += after.trim_lsn != before.trim_lsn

    # --- logs ------------------------------------------------------------------------------------

    def on_log_changed(self, before: LogNode, after: LogNode, *, opened: Epoch | None) -> None:
        """A log node was replaced.

        Args:
            opened: the epoch of the metadata log that the same change opened.
        """
        old, new = before.metadata, after.metadata
        is_risen = new.epoch >= old.epoch and new.through >= old.through
        is_risen &= (new.first_lsn or 0) >= (old.first_lsn or 0) and (new.lsn or 0) >= (
            old.lsn or 0
        )
        self._check(is_risen, before, "becomes", after)
        self._check(new.epoch in {old.epoch, opened}, after, "opens no", new.epoch)
        is_cold = new.through == old.through or new.through < after.first_hot_epoch
        self._check(is_cold, after, "has moved what is hot")
        records = self._records.get(after.log_id, [])
        if new.lsn != old.lsn:
            self._check_marks(before, after, records)
        for epoch, found in self._list_missing(after):
            seen = self._nodes[after.log_id][epoch]
            self._check(found == seen, "e", epoch, "of", after, "is", found, "and was", seen)

    def _check_marks(self, before: LogNode, after: LogNode, records: list[PlacedRecord]) -> None:
        """A move or a rewrite: by records of the keeper's own epoch, which is closed."""
        marks = after.metadata
        assert marks.lsn is not None
        is_own = marks.lsn >> 32 == before.metadata.epoch
        is_own &= any(lsn == marks.lsn for lsn, _ in records)
        self._check(is_own, after, "counts what no closed epoch of its keeper holds")
        if marks.through != before.metadata.through:
            self._counts["metadata move"] += 1
        if marks.first_lsn != before.metadata.first_lsn:
            self._counts["metadata log rewritten"] += 1
            self._check_history(after, records)

    def _check_history(self, log: LogNode, records: list[PlacedRecord]) -> None:
        """A rewrite leaves no configuration behind that was told of a live epoch."""
        first = log.metadata.first_lsn or 0
        told = {record.epoch for _, record in records if record.config is not None}
        kept = {r.epoch for lsn, r in records if lsn >= first and r.config is not None}
        lost = sorted(epoch for epoch in told - kept if epoch >= log.first_live_epoch)
        self._check(not lost, log, "has lost the history of", lost)

    def has_moves(self, log_id: LogId, epoch: Epoch) -> bool:
        """Whether a closed epoch of the metadata log holds what may count."""
        placed = self._records.get(log_id, ())
        kinds = (record.kind for lsn, record in placed if lsn >> 32 == epoch)
        return MetadataKind.MOVED in kinds

    def list_moved(self, log: LogNode) -> list[AnySegment]:
        """Every live segment that has moved, as its node was last."""
        epochs = map(Epoch, range(log.first_live_epoch, log.metadata.through + 1))
        return [self._nodes[log.log_id][epoch].segment for epoch in epochs]

    def _list_missing(self, log: LogNode) -> Iterator[tuple[Epoch, SegmentNode | None]]:
        """Live epochs without a node, and the record of each that counts; None: there is none."""
        epochs = map(Epoch, range(log.first_live_epoch, log.next_epoch))
        missing = [epoch for epoch in epochs if not self._is_there(log.log_id, epoch)]
        counting = find_counting(log, self._records.get(log.log_id, ())) if missing else {}
        for epoch in missing:
            record = counting.get(epoch)
            if record is None:
                yield epoch, None
            else:
                yield epoch, SegmentNode(record.segment, record.node_version, record.made)

    def _check(self, is_kept: bool, *what: object) -> None:
        self._tally.check("N1", is_kept, *what)
