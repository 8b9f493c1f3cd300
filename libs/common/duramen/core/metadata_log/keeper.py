"""Moves segments' metadata out of ZooKeeper, one thing after the other, for the keeper of a log.

It looks at the log, decides on one thing, carries it out, and looks again, whatever the answer was:
so no answer has to be believed, and a change of unknown fate is judged by what stands there next.
Every change names the version of the log node that was looked at. An epoch of the metadata log is
its own only while the log node says so (`MetadataMarks.epoch`): opening one sets the log node, and
voids what another keeper has under way. An epoch takes one append and is closed with it.

    REST → LOOKING ─┬─► MAKING, OPENING, TRIMMING ──────────────► LOOKING
                    └─► READING → WRITING → COMMITTING ─────────► LOOKING … REST

A driver takes `outbox`, carries it out, and reports by the method that the want names; after a
failure it wakes the keeper later. Appending, recovery and seals are those of any log.
Not here: whether this process is the keeper (`ownership`). Source: docs/protocol/metadata-logs.md
"Changes".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from duramen.core.log_node import LogNode
from duramen.core.metadata_log.listing import PlacedRecord
from duramen.core.metadata_log.moving import (
    StoredNode,
    carry_move,
    is_rewrite_due,
    list_move_records,
    plan_move,
    plan_rewrite,
    trim_target,
)
from duramen.core.metadata_log.record import MetadataKind, MetadataRecord
from duramen.ids import Epoch, Lsn

HISTORY_COUNT_MAX: Final = 64
"""Records that wait to be told; of more the oldest are forgotten: a rewrite tells them from their
nodes."""


@dataclass(frozen=True, slots=True)
class KeeperView:
    """What a look shows, all of it read after a sync, the log node first."""

    log: LogNode
    version: int
    metadata_log: LogNode | None
    stored: Sequence[StoredNode]
    """From `first_to_move` on, without a gap, as many as were read."""

    rested_unix_ms: int
    """Cold copies that were rechecked after it stay where they are."""

    is_keeper: bool
    """This process looks after the log, and every process understands metadata logs."""


@dataclass(frozen=True, slots=True)
class Look:
    """→ `on_look`."""


@dataclass(frozen=True, slots=True)
class MakeLog:
    """Create the metadata log's nodes, checking the log node → `on_changed`."""

    log: LogNode
    version: int


@dataclass(frozen=True, slots=True)
class ClaimEpoch:
    """Claim the metadata log's next epoch, setting the log node to `metadata.claimed(epoch)` in the
    same `multi()`; seal, recover and close the older ones → `on_opened`."""

    log: LogNode
    version: int


@dataclass(frozen=True, slots=True)
class ReadAll:
    """Everything in the closed epochs and the own one, from `first` on; None: from where the
    metadata log begins → `on_read`."""

    first: Lsn | None


@dataclass(frozen=True, slots=True)
class AppendMetadata:
    """Append to the own epoch and close it, which is over by that → `on_appended`."""

    epoch: Epoch
    records: Sequence[MetadataRecord]


@dataclass(frozen=True, slots=True)
class CommitMarks:
    """Set the log node, and delete nodes at exactly these versions, in one `multi()` →
    `on_changed`."""

    log: LogNode
    version: int
    deleted: Sequence[StoredNode]


@dataclass(frozen=True, slots=True)
class TrimLog:
    """Trim the metadata log to `lsn`, checking the log node's version → `on_changed`."""

    version: int
    lsn: Lsn


Want = Look | MakeLog | ClaimEpoch | ReadAll | AppendMetadata | CommitMarks | TrimLog


class Keeper:
    """Keeps the metadata log of one log.

    Args:
        make_nonce: draws one that was never used.
    """

    def __init__(self, make_nonce: Callable[[], str]) -> None:
        self._make_nonce = make_nonce
        self.outbox: deque[Want] = deque()
        self.epoch: Epoch | None = None
        """The epoch of the metadata log that this keeper has open; None: none. Where it rests with
        one, nothing is to be written: its driver closes it."""

        self.closed_epoch: Epoch | None = None
        """The one that was closed with what is being made to count."""

        self._history: deque[MetadataRecord] = deque(maxlen=HISTORY_COUNT_MAX)
        self._wanted: Want | None = None
        self._view: KeeperView | None = None
        self._is_rewriting = False
        self._moved: Sequence[StoredNode] = ()
        self._told_count = 0
        """Of the history, from its beginning: what is being appended and was not forgotten yet."""

    @property
    def is_resting(self) -> bool:
        """Whether nothing is under way."""
        return self._wanted is None

    @property
    def has_history(self) -> bool:
        """Whether history waits to be told."""
        return bool(self._history)

    def tell(self, record: MetadataRecord) -> None:
        """History that is to be written with the next work; nothing waits for it."""
        assert record.kind is MetadataKind.TOLD, record
        if len(self._history) == HISTORY_COUNT_MAX and self._told_count:
            self._told_count -= 1  # the oldest, which is being written, makes room
        self._history.append(record)

    def wake(self) -> None:
        """Look whether something is to be done; goes on until nothing is."""
        if self._wanted is None:
            self._want(Look())

    # --- What the driver reports -----------------------------------------------------------------

    def on_look(self, view: KeeperView | None) -> None:
        """What stands there now; None: it cannot be read, or there is no such log."""
        self._finish(Look)
        self._view = view
        if view is None:
            return
        own, self.closed_epoch = self.epoch or self.closed_epoch, None
        if own is not None and view.log.metadata.epoch != own:
            # Somebody else is the keeper, or takes himself for it: two that claim at once go on so.
            self.epoch = None
            return
        if view.is_keeper and not view.log.is_deleted:
            self._decide(view)

    def on_opened(self, epoch: Epoch | None) -> None:
        """The own epoch is open and every older one is closed; None: it did not come to that."""
        self._finish(ClaimEpoch)
        if epoch is not None:
            self.epoch = epoch
            self._want(Look())

    def on_read(self, records: Sequence[PlacedRecord] | None) -> None:
        """All that lies there; None: it cannot be read."""
        self._finish(ReadAll)
        assert self._view is not None
        if records is None:
            return
        copies = plan_rewrite(self._view.log, records, self._view.stored)
        if copies:
            assert self.epoch is not None
            self._is_rewriting, self._moved = True, ()
            self._want(AppendMetadata(self.epoch, copies))

    def on_appended(self, first: Lsn | None, last: Lsn | None) -> None:
        """Where the records lie in the closed epoch; None: their fate is not known.

        Then nothing is known of the epoch either, and whoever opens the next one recovers it.
        """
        self._finish(AppendMetadata)
        told_count, self._told_count = self._told_count, 0
        self.closed_epoch, self.epoch = self.epoch, None
        if first is None or last is None:
            return
        view = self._view
        assert view is not None
        for _ in range(told_count):
            self._history.popleft()
        if self._is_rewriting:
            marks = view.log.metadata.rewritten(first, last)
            after = view.log.with_metadata(marks, self._make_nonce())
            self._want(CommitMarks(after, view.version, ()))
        elif self._moved:
            after = carry_move(view.log, self._moved, first, last, self._make_nonce())
            self._want(CommitMarks(after, view.version, self._moved))
        else:
            self._want(Look())

    def on_changed(self, *, is_worth_a_look: bool) -> None:
        """A change was applied or not: what stands there says; False: nobody answers just now."""
        self._finish(MakeLog, CommitMarks, TrimLog)
        if is_worth_a_look:
            self._want(Look())

    # --- Decisions -------------------------------------------------------------------------------

    def _decide(self, view: KeeperView) -> None:
        """The one thing that is due, or nothing."""
        metadata_log = view.metadata_log
        moved = plan_move(view.log, view.stored, view.rested_unix_ms)
        if metadata_log is None:
            if moved or self._history:
                self._want(MakeLog(view.log, view.version))
            return
        target = trim_target(view.log, metadata_log)
        if target is not None:
            self._want(TrimLog(view.version, target))
        elif moved or self._history:
            self._prepare(view, metadata_log, moved)

    def _prepare(
        self, view: KeeperView, metadata_log: LogNode, moved: Sequence[StoredNode]
    ) -> None:
        """An epoch first, then what is read of it, then what is written to it."""
        if self.epoch is None:
            self._want(ClaimEpoch(view.log, view.version))
        elif is_rewrite_due(metadata_log):
            self._want(ReadAll(view.log.metadata.first_lsn))
        else:
            self._told_count = len(self._history)
            self._is_rewriting, self._moved = False, moved
            self._want(AppendMetadata(self.epoch, [*self._history, *list_move_records(moved)]))

    # --- The one thing that is under way ---------------------------------------------------------

    def _want(self, want: Want) -> None:
        assert self._wanted is None, (self._wanted, want)
        self._wanted = want
        self.outbox.append(want)

    def _finish(self, *kinds: type[Want]) -> None:
        assert isinstance(self._wanted, kinds), (self._wanted, kinds)
        self._wanted = None
