"""The unclosed epochs of a log below its owner's: marked and sealed in one round, closed in order.

There is one `Recovery` for each epoch, oldest first. All of them mark and seal at once. Only the
one after the LCE reads, writes back and closes. After each close `log_sequencer` reads the log's
nodes and passes them on through `adopt`, so no recovery goes on with metadata that another
sequencer has changed meanwhile.

Invariant (see `validate`): the epochs are consecutive.
Called by `log_sequencer`. Source: docs/protocol/recovery.md "Takeover", R2, R18.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from duramen.core.flexible.recovery import Digest, FlexibleRecovery
from duramen.core.flexible.segment import AnySegment, FlexibleSegment
from duramen.core.sequencer.context import Ports
from duramen.core.sequencer.effects import CommitOutcome, LogView, StoredEntry
from duramen.core.sequencer.proposals import rule_of
from duramen.core.sequencer.recovery import Recovery
from duramen.core.status import BookieStatus
from duramen.ids import EntryId, Epoch, Member

AnyRecovery = Recovery | FlexibleRecovery

UNRECOVERED_EPOCH_MAX = 4
"""With so many unclosed epochs no other is opened: appends wait."""


class OlderEpochs:
    """The recoveries of one log.

    Args:
        unix_ms: wall-clock time of the driver's `now_us`, to be shown only.
    """

    def __init__(self, ports: Ports, unix_ms: Callable[[int], int]) -> None:
        self.recoveries: list[AnyRecovery] = []
        self.recovery_count = 0
        self._ports = ports
        self._unix_ms = unix_ms

    @property
    def oldest(self) -> AnyRecovery | None:
        """The one that is closed next."""
        return self.recoveries[0] if self.recoveries else None

    @property
    def are_bounded(self) -> bool:
        """Every one is sealed by a cover, and holds nothing that is sent from now on: appends of
        newer epochs may be acknowledged."""
        return all(recovery.is_bounded for recovery in self.recoveries)

    def adopt(self, view: LogView, below: Epoch, now_us: int) -> None:
        """Recover the unclosed epochs under `below`, as the log's nodes show them now."""
        self.recoveries = [r for r in self.recoveries if r.epoch > view.log.last_clean_epoch]
        known = [recovery.epoch for recovery in self.recoveries]
        for recovery in list(self.recoveries):
            recovery.follow(view, now_us)
        for segment, version in view.segments:
            if segment.epoch < below and segment.epoch not in known:
                recovery = self._make(segment, version, view)
                self.recoveries.append(recovery)
                self.recovery_count += 1
                recovery.start(now_us)

    def _make(self, segment: AnySegment, version: int, view: LogView) -> AnyRecovery:
        needs_bound = view.log.config.early_append
        if isinstance(segment, FlexibleSegment):
            return FlexibleRecovery(
                segment, version, view.log, view.log_version,
                ports=self._ports, unix_ms=self._unix_ms, needs_bound=needs_bound,
            )  # fmt: skip
        return Recovery(
            segment, version, view.log, view.log_version,
            rule=rule_of(view.log), ports=self._ports, unix_ms=self._unix_ms,
            needs_bound=needs_bound,
        )  # fmt: skip

    def take_closed(self) -> AnyRecovery | None:
        """Remove the oldest one if it is closed."""
        if self.recoveries and self.recoveries[0].is_done:
            return self.recoveries.pop(0)
        return None

    def clear(self) -> None:
        """Whoever owns the log next recovers what is left."""
        self.recoveries.clear()

    # --- results ---------------------------------------------------------------------------------

    def on_add(
        self, member: Member, epoch: Epoch, entry: EntryId, status: BookieStatus, now_us: int
    ) -> None:
        """A bookie answered a write-back."""
        for recovery in self._of(epoch):
            recovery.on_add(member, entry, status, now_us)

    def on_seal(  # noqa: PLR0917 - one answer of a bookie, as it comes
        self,
        member: Member,
        epoch: Epoch,
        status: BookieStatus,
        lac: EntryId,
        highest: EntryId,
        now_us: int,
    ) -> None:
        """A bookie answered a seal."""
        for recovery in self._of(epoch):
            recovery.on_seal(member, status, lac, highest, now_us)

    def on_read(  # noqa: PLR0917 - one answer of a bookie, as it comes
        self,
        member: Member,
        epoch: Epoch,
        entry: EntryId,
        status: BookieStatus,
        stored: StoredEntry | None,
        now_us: int,
    ) -> None:
        """A bookie answered a recovery read."""
        for recovery in self._of(epoch):
            recovery.on_read(member, entry, status, stored, now_us)

    def on_digest(
        self, member: Member, epoch: Epoch, status: BookieStatus, digest: Digest | None, now_us: int
    ) -> None:
        """A bookie told what it has of a range."""
        for recovery in self._of(epoch):
            if isinstance(recovery, FlexibleRecovery):
                recovery.on_digest(member, status, digest, now_us)

    def on_commit(self, token: int, outcome: CommitOutcome, now_us: int) -> None:
        """A metadata change was applied, refused, or nobody knows; tokens of others are ignored."""
        for recovery in self.recoveries:
            recovery.on_commit(token, outcome, now_us)

    def on_metadata(self, token: int, view: LogView | None, now_us: int) -> None:
        """The log's nodes were read, or could not be; tokens of others are ignored."""
        for recovery in self.recoveries:
            recovery.on_metadata(token, view, now_us)

    def wakeup_at_us(self) -> int | None:
        """When `on_timer` wants to be called next."""
        times = [recovery.wakeup_at_us() for recovery in self.recoveries]
        return min((time for time in times if time is not None), default=None)

    def on_timer(self, now_us: int) -> None:
        """Ask again where doubt or silence was left."""
        for recovery in self.recoveries:
            recovery.on_timer(now_us)

    def _of(self, epoch: Epoch) -> list[AnyRecovery]:
        return [recovery for recovery in self.recoveries if recovery.epoch == epoch]

    def validate(self) -> None:
        """Assert the invariant, and those of the recoveries."""
        epochs = [recovery.epoch for recovery in self.recoveries]
        assert all(b == a + 1 for a, b in itertools.pairwise(epochs)), self
        for recovery in self.recoveries:
            recovery.validate()

    def __repr__(self) -> str:
        return " ".join(map(repr, self.recoveries))
