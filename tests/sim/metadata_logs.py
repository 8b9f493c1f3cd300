"""Metadata logs as a run sees them: every change of the store that concerns them, told to N1.

Which changes came in one commit is read off the store as it was before. At the end it says what
keepers have left undone, and judges what a reader lists.

Called by `run`. Documented in docs/testing.md.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from duramen.core.flexible.segment import AnySegment
from duramen.core.log_node import LogNode
from duramen.core.metadata_log.listing import SegmentListing
from duramen.core.metadata_log.moving import StoredNode, first_to_move, plan_move, trim_target
from duramen.core.placement import PlacementRule
from duramen.core.segment import Segment
from duramen.ids import Epoch, LogId, described_by, is_metadata_log, metadata_log_of
from duramen.runtime.stores.metadata_store import Create, DeleteNode, Op, Set
from duramen.units import MS, SECOND
from duramen.wire.metadata_json import read_any_segment, read_log
from tests.sim.checkers import Checkers
from tests.sim.log_kinds import rule_of_configs
from tests.sim.metadata import PATHS, Store, StoreSession
from tests.sim.moved_record import MovedRecord, SegmentNode
from tests.sim.world import Node, World

_RESTED_US: Final = 5 * SECOND
"""Since the second look at a cold copy: keepers, which come round every few seconds, move it."""


class _Closed(NamedTuple):
    """A keeper has closed an epoch of its own, and is to make it count."""

    epoch: Epoch
    keeper: Node
    life: int


class MetadataLogWatch:
    """All metadata logs of a run.

    Args:
        rules: placement of each log that there is; metadata logs are added.
    """

    def __init__(
        self,
        world: World,
        store: Store,
        checkers: Checkers,
        rules: dict[LogId, PlacementRule],
    ) -> None:
        self._world = world
        self._store = store
        self._checkers = checkers
        self._rules = rules
        self._log_ids = list(rules)
        self._paths = {PATHS.log(log_id): log_id for log_id in self._log_ids}
        self._metadata_paths = {PATHS.log(metadata_log_of(log_id)) for log_id in self._log_ids}
        self._closed: dict[LogId, _Closed] = {}
        self.record = MovedRecord(
            checkers.tally, checkers.count_holders, self._has_node, world.counts
        )

    # --- Changes ---------------------------------------------------------------------------------

    def on_applied(self, op: Op, before: bytes | None, session: StoreSession) -> bool:
        """An operation of a commit was applied; True: it is of no other business."""
        if op.path in self._metadata_paths:
            if isinstance(op, Create | Set):
                self._report_metadata_log(before, read_log(op.data))
            return True
        if isinstance(op, Set) and before is not None and op.path in self._paths:
            self._report_log(read_log(before), read_log(op.data))
        elif isinstance(op, DeleteNode) and before is not None and "/segments/" in op.path:
            segment = read_any_segment(before)
            if not is_metadata_log(segment.log_id):
                self.record.on_node_gone(self._find_log(segment.log_id), segment)
        elif isinstance(op, Create | Set) and "/segments/" in op.path:
            self._report_node(op.path, before, read_any_segment(op.data), session.node)
        return False

    def has_moved(self, segment: AnySegment) -> bool:
        """Whether a segment whose node is gone lives."""
        return segment.epoch >= self._find_log(segment.log_id).first_live_epoch

    def _report_node(
        self, path: str, before: bytes | None, segment: AnySegment, author: Node
    ) -> None:
        if not is_metadata_log(segment.log_id):
            stored = self._store.find(path)
            assert stored is not None
            self.record.on_node(SegmentNode(segment, stored.version, stored.made))
            return
        log_id = described_by(segment.log_id)
        if before is None:
            path = PATHS.log(log_id)
            is_set = self._store.find(path, self._store.zxid - 1) != self._store.find(path)
            self.record.on_epoch_opened(segment, self._find_log(log_id), is_set=is_set)
            self._count_ended(log_id)
        elif segment.is_closed and not read_any_segment(before).is_closed:
            assert isinstance(segment, Segment)
            self.record.on_epoch_closed(log_id, segment)
            self._closed[log_id] = _Closed(segment.epoch, author, author.life)

    def _count_ended(self, log_id: LogId) -> None:
        """The next keeper has come: what became of the one before."""
        closed = self._closed.pop(log_id, None)
        if closed is None or not self.record.has_moves(log_id, closed.epoch):
            return
        lsn = self._find_log(log_id).metadata.lsn or 0
        if lsn >> 32 < closed.epoch:
            self._world.counts["records of a move that never came"] += 1
            is_gone = closed.keeper.life != closed.life
            self._world.counts["keeper ended between record and move"] += is_gone

    def _report_metadata_log(self, data: bytes | None, after: LogNode) -> None:
        log_id = after.log_id
        self._rules[log_id] = rule_of_configs(after.config, None)
        if data is None:
            self._world.counts["metadata log made"] += 1
            return
        before, log = read_log(data), self._find_log(described_by(log_id))
        self.record.on_metadata_log_changed(log, before, after)
        # Its keeper is the operator who asks for it.
        self._checkers.on_truncation(log_id, is_asked=True)
        self._checkers.on_log_changed(self._world.now_us, before, after)
        self._checkers.on_truncation(log_id, is_asked=False)

    def _report_log(self, before: LogNode, after: LogNode) -> None:
        epoch = Epoch(after.metadata.epoch)
        opened = None
        if epoch != before.metadata.epoch:
            stored = self._store.find(PATHS.segment(metadata_log_of(after.log_id), epoch))
            is_at_once = stored is not None and stored.made == self._store.zxid
            opened = epoch if is_at_once else None
        self.record.on_log_changed(before, after, opened=opened)

    # --- The end ---------------------------------------------------------------------------------

    def list_nodes(self) -> list[tuple[LogId, LogNode]]:
        """The metadata logs that there are."""
        found = []
        for log_id in map(metadata_log_of, self._log_ids):
            stored = self._store.find(PATHS.log(log_id))
            if stored is not None:
                found.append((log_id, read_log(stored.data)))
        return found

    @property
    def is_closed(self) -> bool:
        """Whether every epoch of every metadata log is closed."""
        return not any(log.unclosed_epochs for _, log in self.list_nodes())

    def list_due(self) -> list[object]:
        """What keepers should have done by now."""
        due: list[object] = [log for _, log in self.list_nodes() if log.unclosed_epochs]
        rested_ms = (self._world.now_us - _RESTED_US) // MS
        for log in map(self._find_log, self._log_ids):
            due += plan_move(log, self._list_stored(log), rested_ms)
        for log_id, metadata_log in self.list_nodes():
            log = self._find_log(described_by(log_id))
            if trim_target(log, metadata_log) is not None:
                due.append((log, metadata_log))
        return due

    def check_listing(self, listing: SegmentListing) -> None:
        """What a reader was told of a log at the end; what has not moved may change meanwhile."""
        log = listing.log
        moved = [s for s in listing.segments if s.epoch <= log.metadata.through]
        is_right = not listing.unreadable and moved == self.record.list_moved(log)
        self._checkers.tally.check("N1", is_right, log, "is listed as", listing)
        self._world.counts["moved segment listed"] += len(moved)

    def _list_stored(self, log: LogNode) -> list[StoredNode]:
        stored: list[StoredNode] = []
        for epoch in map(Epoch, range(first_to_move(log), log.next_epoch)):
            node = self._store.find(PATHS.segment(log.log_id, epoch))
            if node is None:
                break
            segment = read_any_segment(node.data)
            stored.append(StoredNode(segment, node.version, node.made, len(node.data)))
        return stored

    def _has_node(self, log_id: LogId, epoch: Epoch) -> bool:
        return self._store.find(PATHS.segment(log_id, epoch)) is not None

    def _find_log(self, log_id: LogId) -> LogNode:
        stored = self._store.find(PATHS.log(log_id))
        assert stored is not None
        return read_log(stored.data)
