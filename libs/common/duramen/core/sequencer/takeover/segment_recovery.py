"""What recovery of any segment does in the metadata, whatever it asks bookies.

    MARK → SEAL → SEALED → … → CLOSE → DONE

MARK says in the metadata that only recovery may close the segment. SEAL fences its bookies. SEALED
waits for the close of the epoch before; for a log with `early_append` it first writes the bound,
above which nothing is recovered. Between SEALED and CLOSE the kind of segment decides: what is
there is found and made durable. CLOSE moves LCE in the same `multi()`. Many may recover at once:
one close succeeds, the others adopt it.
Invariants (see `validate`):
 1 finding begins after SEAL was covered, and with the epoch before closed.
 2 an end is known in CLOSE and DONE alone. 3 it is not below the highest LAC seen (R13).
 4 it is not above a known bound.
Extended by `sequencer.recovery` and `flexible.recovery`. Source: docs/protocol/recovery.md, R2, R3,
R13, R17.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar, cast

from duramen.core.flexible.segment import AnySegment
from duramen.core.log_node import LogNode
from duramen.core.segment_base import SegmentState, Totals
from duramen.core.sequencer.context import Ports
from duramen.core.sequencer.effects import (
    Commit,
    CommitOutcome,
    LogView,
    ReadMetadata,
    SetLog,
    SetSegment,
)
from duramen.ids import NOTHING, EntryId, Epoch, Member
from duramen.limits import RETRY_BACKOFF

S = TypeVar("S", bound=AnySegment)


class RecoveryState(enum.Enum):
    """Where a recovery is."""

    MARK = "mark"
    SEAL = "seal"
    SEALED = "sealed"
    DIGEST = "digest"
    READ = "read"
    WRITE_BACK = "write back"
    GUEST = "guest"
    CLOSE = "close"
    DONE = "done"


class SegmentRecovery(ABC, Generic[S]):
    """Recovers one segment after the LCE of `log`; it is read and closed when it is the next one.

    Args:
        segment: as read; with `version` of its node.
        log: as read in the same view; with `log_version`.
        needs_bound: newer epochs may be appended to before this one is closed.
        unix_ms: wall-clock time of the driver's `now_us`, to be shown only.
    """

    def __init__(
        self,
        segment: S,
        version: int,
        log: LogNode,
        log_version: int,
        *,
        ports: Ports,
        unix_ms: Callable[[int], int],
        needs_bound: bool,
    ) -> None:
        assert segment.epoch > log.last_clean_epoch, (segment, log)
        self.state = RecoveryState.MARK
        self.segment: S = segment
        self.version = version
        self.log = log
        self.log_version = log_version
        self.recovered_count = 0
        self._ports = ports
        self._unix_ms = unix_ms
        self._needs_bound = needs_bound
        self._lac = NOTHING
        self._end: EntryId | None = None
        self._end_totals = Totals()
        self._end_has_state = True
        self._token: int | None = None
        self._changed: S | None = None
        self._closing: tuple[SetSegment, SetLog] | None = None
        self._retry_at_us: int | None = None
        self._retry_delay_us = RETRY_BACKOFF.first_us

    # --- what the kind of segment decides --------------------------------------------------------

    @abstractmethod
    def _freeze(self) -> None:
        """The segment is IN_RECOVERY as it is now: whom it names is sealed and read (R14)."""

    @abstractmethod
    def _send_seals(self) -> None:
        """Seal whoever may hold entries, or who has not answered."""

    @abstractmethod
    def _is_sealed_by_cover(self) -> bool:
        """R12 or R23 holds, and R13: the cover has seen the entry that its highest LAC tells."""

    @abstractmethod
    def _find_bound(self) -> EntryId | None:
        """The highest entry that was acknowledged, at most; None: that is in doubt."""

    @abstractmethod
    def _begin_reading(self, now_us: int) -> None:
        """Find what there is from the highest LAC on, from the start."""

    @abstractmethod
    def _ask_again(self, now_us: int) -> None:
        """Go on with finding after a pause."""

    @property
    @abstractmethod
    def _reading_at(self) -> EntryId | None:
        """The entry that is being found or made durable."""

    @abstractmethod
    def _make_closed(self, nonce: str, now_us: int) -> S:
        """The segment closed at what was found (R17)."""

    @property
    def is_done(self) -> bool:
        """The segment is closed, by us or by another; `log` is the node as it was read then."""
        return self.state is RecoveryState.DONE

    @property
    def epoch(self) -> Epoch:
        """The epoch that is recovered."""
        return self.segment.epoch

    @property
    @abstractmethod
    def members(self) -> frozenset[Member]:
        """Who has, or is to have, what is recovered; more than the node tells until CLOSE."""

    @property
    def progress(self) -> tuple[Epoch, RecoveryState, EntryId | None]:
        """Differs whenever it has come further."""
        return self.epoch, self.state, self._reading_at

    @property
    def may_have_state(self) -> bool:
        """Whether the segment may carry producers or control records, as far as was seen."""
        return self._end_has_state

    @property
    def is_bounded(self) -> bool:
        """A cover is sealed, and nothing that is not stored by now will ever be part of it."""
        return self.segment.bound is not None and self.state not in (
            RecoveryState.MARK,
            RecoveryState.SEAL,
        )

    def wakeup_at_us(self) -> int | None:
        """When `on_timer` wants to be called next."""
        return self._retry_at_us

    def start(self, now_us: int) -> None:
        """Begin with MARK, or go on from what the segment's state says."""
        self._go_on(now_us)

    def follow(self, view: LogView, now_us: int) -> None:
        """The nodes as they were just read: this one's turn comes with the close of the others."""
        if view.log_version > self.log_version:
            self.log, self.log_version = view.log, view.log_version
        if self._token is not None or self.state in (RecoveryState.MARK, RecoveryState.CLOSE):
            return  # an answer is on its way, or it reads the nodes by itself
        for segment, version in view.segments:
            # A view that was asked for before our own change came into force may come after it.
            is_news = segment.epoch == self.segment.epoch and version > self.version
            if is_news and not segment.is_closed:
                self._adopt(segment, version)
        if self.state is RecoveryState.SEALED:
            self._leave_sealed(now_us)
        elif self._reading_at is not None and self._is_above_bound(self._reading_at):
            self._begin_reading_anew(now_us)

    # --- metadata --------------------------------------------------------------------------------

    def on_commit(self, token: int, outcome: CommitOutcome, now_us: int) -> None:
        """MARK or CLOSE was applied or not."""
        if token != self._token:
            return
        self._token = None
        if outcome is not CommitOutcome.APPLIED:
            # Whatever it was, the nodes decide: read them again, after a pause.
            self._retry_later(now_us)
        elif self.state is RecoveryState.CLOSE:
            self._finish_by_own_close()
        else:
            assert self._changed is not None
            self.segment, self.version = self._changed, self.version + 1
            self._go_on(now_us)

    def on_metadata(self, token: int, view: LogView | None, now_us: int) -> None:
        """The nodes as they are after a conflict, an unknown outcome or a pause."""
        if token != self._token:
            return
        self._token = None
        if view is None:
            self._retry_later(now_us)
            return
        if view.log_version > self.log_version:
            self.log, self.log_version = view.log, view.log_version
        if view.log.last_clean_epoch >= self.segment.epoch:
            self.state = RecoveryState.DONE
            # Another may have closed it at an end that was not seen here.
            self._end_has_state = True
            return
        for segment, version in view.segments:
            if segment.epoch == self.segment.epoch:
                self._adopt(segment, version)
        self._go_on(now_us)

    def _adopt(self, segment: AnySegment, version: int) -> None:
        """The node as it is now."""
        assert isinstance(segment, type(self.segment)), (segment, self.segment)
        self.segment, self.version = cast(S, segment), version

    # --- bound and close -----------------------------------------------------------------------

    def _leave_sealed(self, now_us: int) -> None:
        """Write the bound where one is wanted, then wait for the epoch before to be closed."""
        bound = self._find_bound() if self._needs_bound and self.segment.bound is None else None
        if bound is not None:
            self._change(cast(S, self.segment.bounded(bound, self._ports.new_nonce())))
        elif self.log.last_clean_epoch == self.segment.epoch - 1:
            self._begin_reading(now_us)

    def _begin_reading_anew(self, now_us: int) -> None:
        """Another wrote a bound meanwhile: what was found above it does not count."""
        self._end = None
        self._begin_reading(now_us)

    def _is_above_bound(self, entry: EntryId) -> bool:
        return self.segment.bound is not None and entry > self.segment.bound

    def _close(self, now_us: int) -> None:
        """One `multi()` closes the segment and moves LCE and totals; requires LCE = epoch − 1."""
        assert self._end is not None and self._end >= self._lac, self
        self.state = RecoveryState.CLOSE
        nonce = self._ports.new_nonce()
        closed = self._make_closed(nonce, now_us)
        self._token = self._ports.new_token()
        log = self.log.with_clean(closed, nonce)
        if self.log.is_stateless and not self._end_has_state:
            # Retention need not wait for an owner's close to know that nothing is to be rebuilt.
            log = log.with_stateless()
        self._closing = (SetSegment(closed, self.version), SetLog(log, self.log_version))
        self._ports.put(Commit(self._token, self._closing))

    def _finish_by_own_close(self) -> None:
        assert self._closing is not None
        segment, log = self._closing
        self._adopt(segment.segment, segment.version + 1)
        self.log, self.log_version = log.log, log.version + 1
        self.state = RecoveryState.DONE

    # --- progress --------------------------------------------------------------------------------

    def _go_on(self, now_us: int) -> None:
        """Do what the segment's state, as just read, asks for."""
        if self.segment.is_closed:
            # Another closed it between the reads of the two nodes: LCE will show it.
            self._retry_later(now_us)
        elif self.segment.state is SegmentState.OPEN:
            assert self.state is RecoveryState.MARK, self
            self._change(cast(S, self.segment.marked(self._ports.new_nonce())))
        elif self.state is RecoveryState.MARK:
            self._seal(now_us)
        elif self.state is RecoveryState.SEALED:
            self._leave_sealed(now_us)
        elif self.state is RecoveryState.CLOSE:
            assert self._end is not None
            if self._is_above_bound(self._end):
                self._begin_reading_anew(now_us)
            else:
                self._close(now_us)
        else:
            self._resume(now_us)

    def _change(self, segment: S) -> None:
        self._token = self._ports.new_token()
        self._changed = segment
        self._ports.put(Commit(self._token, (SetSegment(segment, self.version),)))

    def _seal(self, now_us: int) -> None:
        self.state = RecoveryState.SEAL
        self._freeze()
        self._send_seals()
        self._retry_later(now_us)

    def _retry_later(self, now_us: int) -> None:
        if self._retry_at_us is None:
            self._retry_at_us = now_us + self._retry_delay_us
            self._retry_delay_us = RETRY_BACKOFF.next_us(self._retry_delay_us)

    def on_timer(self, now_us: int) -> None:
        """Ask again where doubt or silence was left."""
        if self._retry_at_us is None or now_us < self._retry_at_us:
            return
        self._retry_at_us = None
        match self.state:
            case RecoveryState.MARK | RecoveryState.SEALED | RecoveryState.CLOSE:
                self._read_nodes()
            case RecoveryState.SEAL:
                self._send_seals()
                self._retry_later(now_us)
            case RecoveryState.DONE:
                pass
            case _:
                self._ask_again(now_us)

    def _read_nodes(self) -> None:
        if self._token is None:
            self._token = self._ports.new_token()
            self._ports.put(ReadMetadata(self._token))

    def _resume(self, now_us: int) -> None:
        """A change of the segment's node that was made while finding has been stored, or not."""

    def validate(self) -> None:
        """Assert invariants 1 to 4."""
        is_finding = self.state not in (
            RecoveryState.MARK, RecoveryState.SEAL, RecoveryState.SEALED, RecoveryState.DONE,
        )  # fmt: skip
        if is_finding:
            assert self._is_sealed_by_cover(), f"1: {self}"
            assert self.log.last_clean_epoch == self.epoch - 1, f"1: {self}"
        if self._end is not None:
            assert self.state in (RecoveryState.CLOSE, RecoveryState.DONE), f"2: {self}"
            assert self._end >= self._lac, f"3: {self}"
            assert self.segment.is_closed or not self._is_above_bound(self._end), f"4: {self}"
