"""Reader: follows one log from a position upwards, entry by entry and segment by segment.

Sans-IO: inputs are the `on_…` methods, effects wait in an outbox that the driver drains with
`take_effects`. The driver verifies entries. The reader decides whom to ask, what may be shown (up
to the LAC in a segment that is not CLOSED, to its last entry in a CLOSED one: R17), and when the
next segment begins (R18). It asks the cold store for what left the bookies. It recovers nothing.

    what it waits for   left by
    METADATA            on_metadata
    READ                on_read_answer; on_timer asks the next replica as well (speculation)
    POLL                the same; on_metadata or on_lac that raise the bound cancel both polls
    PAUSE               on_timer, an on_metadata that changed something, or on_confirmed
    CONSUMER            on_consumed (the buffer is full), or at the tail without `is_following`

Driven by `runtime.reading.log_reader`. Source: docs/protocol/reading.md, R18.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from duramen.backoff import Backoff
from duramen.core.log_node import LogNode
from duramen.core.reading.absence import SuspectedAbsence, suspect
from duramen.core.reading.effects import (
    ALL_NODES,
    COLD_STORE,
    CancelRead,
    ConfirmAbsence,
    Deliver,
    Effect,
    Entry,
    Gap,
    SendRead,
    SetTimer,
    Skip,
    WatchMetadata,
)
from duramen.core.reading.polling import (
    LOOK_US,
    OWNER_WAIT_US,
    POLL_GRACE_US,
    POLL_US,
    SECOND_POLL_US,
    OwnerPace,
    is_to_bring,
)
from duramen.core.reading.range_read import NodesAbsence
from duramen.core.reading.read_ahead import DEFAULT_LIMITS, ReadAhead, ReaderLimits
from duramen.core.reading.replica_order import ReplicaOrder
from duramen.core.reading.runs import (
    WINDOW_COUNT_MAX,
    find_proved_lac,
    last_of_run,
    list_replicas,
    runs_beyond,
)
from duramen.core.segment_base import SegmentBase
from duramen.core.status import BOOKIE_FAULTS, BookieStatus
from duramen.ids import LAST_ENTRY_ID, NOTHING, EntryId, Epoch, Member
from duramen.limits import COLD_READ_TIMEOUT_US, READ_TIMEOUT_US, RETRY_DELAY_MAX_US
from duramen.units import MS, SECOND

FIRST_PAUSE_US: Final = 50 * MS
"""First pause after all replicas failed."""

_BACKOFF: Final = Backoff(FIRST_PAUSE_US, RETRY_DELAY_MAX_US)

RECHECK_US: Final = 5 * SECOND
"""At the end of the last segment the metadata are read again this often, watch or no watch."""


class ReaderState(enum.Enum):
    """What a reader waits for."""

    METADATA = "metadata"
    READ = "read"
    POLL = "poll"
    PAUSE = "pause"
    CONSUMER = "consumer"


class _SentRead(NamedTuple):
    """A request that is out."""

    read: SendRead
    at_us: int


class Reader:
    """One reader of one log; see the module.

    Invariants: two polls at most are out, or reads of the next entry, at different members;
    `position` never falls; no entry above `bound` is delivered; within a segment only holes, and
        what is lost, are left out.

    Args:
        position: (epoch, entry) of the first entry to deliver; the epoch may not exist yet.
        is_following: at the tail, poll for more; otherwise rest there.
    """

    def __init__(
        self,
        position: tuple[Epoch, EntryId],
        order: ReplicaOrder,
        *,
        is_following: bool,
        limits: ReaderLimits = DEFAULT_LIMITS,
    ) -> None:
        self._epoch, self._next = position
        self._order = order
        self._limits = limits
        self._is_following = is_following
        self._effects: list[Effect] = []
        self._log: LogNode | None = None
        self._segment: SegmentBase | None = None
        self._start_seq_num: int | None = None
        self._is_fresh = False
        self._state = ReaderState.METADATA
        self._reads: dict[int, _SentRead] = {}
        self._speculate_at_us = 0
        """When another member is asked for the same."""
        self._looked_us: int | None = None
        self._last_read_id = 0
        self._lac: EntryId = NOTHING
        self._owner = OwnerPace()
        self._stored: EntryId = NOTHING
        self._is_sealed = False
        self._kept: Member | None = None
        """Who answered last is asked again, as long as no other one is better."""
        self._tried: list[Member] = []
        self._tries_cold = False
        """No bookie gives what is wanted, and there is a cold copy of it."""
        self._polled: list[Member] = []
        self._failed_polls = 0
        self._failed_rounds = 0
        self._pause_us = 0
        self._buffered_bytes = 0
        self._entry_bytes = 0
        self._ahead = ReadAhead(limits.range_bytes)
        self._suspected: SuspectedAbsence | None = None
        self._unavailable_since_us: int | None = None
        self._errors: Counter[BookieStatus] = Counter()
        self._effects.append(WatchMetadata(self._epoch))

    # --- What it knows ---------------------------------------------------------------------------

    @property
    def state(self) -> ReaderState:
        """What the reader waits for."""
        return self._state

    @property
    def position(self) -> tuple[Epoch, EntryId]:
        """The next entry to deliver."""
        return self._epoch, self._next

    @property
    def epoch(self) -> Epoch:
        """The segment that the reader is in, or waits for."""
        return self._epoch

    @property
    def bound(self) -> EntryId:
        """The last entry of this segment that may be shown now (R17)."""
        if self._segment is None or self._start_seq_num is None:
            return NOTHING
        if self._segment.last_entry is not None:
            return self._segment.last_entry
        return self._lac

    @property
    def is_at_tail(self) -> bool:
        """Whether all that may be shown, as far as is known, has been delivered."""
        return (
            self._is_fresh and self._next > self.bound and self._state is not ReaderState.METADATA
        )

    @property
    def is_at_seal(self) -> bool:
        """Whether only a newer segment node can tell what follows: its bookies take no more."""
        return self._is_sealed and self._next > self.bound

    @property
    def unavailable_since_us(self) -> int | None:
        """Since when no replica gave what is wanted; None while one does."""
        return self._unavailable_since_us

    @property
    def is_cold(self) -> bool:
        """Whether what comes next has left the bookies."""
        return self._log is not None and self._log.first_hot_epoch > self._epoch

    @property
    def upcoming_epoch(self) -> Epoch | None:
        """The segment behind this one, once this one's end is known and a range away.

        Worth opening ahead of time; entered only after this one's last entry (R18).
        """
        segment = self._segment
        if segment is None or segment.last_entry is None or not self._entry_bytes:
            return None
        left_bytes = (segment.last_entry - self._next + 1) * self._entry_bytes
        return Epoch(self._epoch + 1) if left_bytes <= self._ahead.range_bytes else None

    def take_effects(self) -> list[Effect]:
        """The effects since the last call, in order; to be carried out by the driver."""
        effects, self._effects = self._effects, []
        return effects

    def statistics(self) -> dict[str, int]:
        """Sizes now and failures since the start."""
        return {
            "buffered_bytes": self._buffered_bytes,
            "failed_rounds": self._failed_rounds,
            **{f"errors_{status.name.lower()}": n for status, n in sorted(self._errors.items())},
        }

    def __repr__(self) -> str:
        return (
            f"<reader e{self._epoch}n{self._next} bound={self.bound} {self._state.value} "
            f"buffered={self._buffered_bytes}>"
        )

    # --- Inputs ----------------------------------------------------------------------------------

    def on_metadata(self, log: LogNode, segment: SegmentBase | None, now_us: int) -> None:
        """Log node and the segment node of `epoch` (None: it does not exist), read or changed."""
        known_log = self._log
        if known_log is None or log.is_as_new_as(known_log):
            self._log = known_log = log
        if known_log.first_live_epoch > self._epoch:
            self._skip_truncated(known_log)
            return
        if self._state is ReaderState.METADATA:
            self._looked_us = now_us  # what others learnt is no look of one's own
        was_fresh = self._is_fresh
        is_changed = self._take_segment(segment)
        self._is_fresh = self._segment is not None or self._epoch >= known_log.next_epoch
        if self._state is ReaderState.METADATA:
            self._decide(now_us)
        elif self._state is ReaderState.PAUSE and was_fresh and not self._is_fresh:
            self._ask_metadata()  # the epoch that was waited for exists: look at its segment
        elif is_changed and self._state is not ReaderState.READ:
            self._is_sealed = False
            self._decide(now_us)

    def on_follow(self, now_us: int) -> None:
        """From now on poll at the tail."""
        self._is_following = True
        if self._state in (ReaderState.CONSUMER, ReaderState.PAUSE) and self.is_at_tail:
            self._decide(now_us)

    def on_lac(self, epoch: Epoch, lac: EntryId, now_us: int, *, by_owner: bool = False) -> None:
        """A LAC of segment `epoch` that the driver learnt elsewhere, perhaps from its owner."""
        if by_owner:
            self._owner.on_told(now_us)
        if epoch != self._epoch or lac <= self._lac:
            return
        was_told, self._lac = self._next <= self._lac, lac
        if by_owner and self._is_coming():
            if not was_told and self._next <= lac:
                self._speculate_at_us = now_us + OWNER_WAIT_US
                self._effects.append(SetTimer(self._speculate_at_us))
        elif self._state in (ReaderState.POLL, ReaderState.CONSUMER):
            self._decide(now_us)

    def on_read_answer(
        self,
        read_id: int,
        *,
        status: BookieStatus,
        lac: EntryId,
        highest: EntryId,
        is_sealed: bool,
        entries: Sequence[Entry],
        now_us: int,
        sender: Member | None = None,
        absent: NodesAbsence | None = None,
    ) -> None:
        """The answer to a SendRead, of a bookie or made by the driver.

        Args:
            entries: those that passed their checks, ascending; cut before the first damaged one
                (none left: UNKNOWN).
            sender: of all nodes, who gave the last of the entries.
            absent: what no node has (R25).
        """
        sent = self._reads.pop(read_id, None)
        if sent is None:
            return
        read = sent.read
        stored = max([highest, *(entry_id for entry_id, _ in entries[-1:])])
        is_news = lac > self._lac or stored > self._stored
        self._lac = max(self._lac, lac)
        self._stored = max(self._stored, stored)
        delivered = self._deliver(entries)
        has_come = delivered or (read.wait_us > 0 and is_news)
        if has_come:
            self._on_progress(sent, sender or read.member, now_us)
        elif read.wait_us:
            self._on_empty_poll(sent, status, is_sealed, now_us)
        elif absent is not None and (
            found := suspect(absent, self._next, self._log, self._segment)
        ):
            self._suspected, self._state = found, ReaderState.PAUSE
            self._effects.append(ConfirmAbsence(self._epoch))
        else:
            self._on_failed_read(read, status, now_us)
        is_idle = self._state is ReaderState.READ and not self._reads
        ends_pause = self._state is ReaderState.PAUSE and has_come
        if is_idle or ends_pause or self._state is ReaderState.POLL:
            self._decide(now_us)

    def on_confirmed(self, log: LogNode, segment: SegmentBase | None, now_us: int) -> None:
        """The metadata, read after all nodes said that they have none of some entries (R25)."""
        suspected, self._suspected = self._suspected, None
        self.on_metadata(log, segment, now_us)
        if suspected is None or (suspected.segment.epoch, suspected.first) != self.position:
            return
        is_cold = segment is not None and segment.cold_copy is not None
        if log.trim.dlsn[:2] > self.position:
            self._pass_trimmed(log, now_us)
        elif suspected.is_loss(log, segment) and not is_cold:
            self._effects.append(Gap(self._epoch, self._next, suspected.last, is_lost=True))
            self._next = EntryId(suspected.last + 1)
            self._pass_hole()
            self._decide(now_us)
        elif is_cold:
            self._tries_cold = True
            self._decide(now_us)
        elif self._state is ReaderState.PAUSE:
            self._on_failed_round(now_us)

    def on_consumed(self, size_bytes: int, now_us: int) -> None:
        """The consumer took delivered entries of `size_bytes` off the buffer."""
        assert 0 <= size_bytes <= self._buffered_bytes, (size_bytes, self)
        self._buffered_bytes -= size_bytes
        if self._state is ReaderState.CONSUMER:
            self._decide(now_us)

    def on_timer(self, now_us: int) -> None:
        """The time of the last SetTimer has come; one that is early is set again."""
        is_early = bool(self._reads) and now_us < self._speculate_at_us
        if self._state is ReaderState.PAUSE:
            self._ask_metadata()
        elif self._state in (ReaderState.READ, ReaderState.POLL) and is_early:
            self._effects.append(SetTimer(self._speculate_at_us))
        elif self._state is ReaderState.POLL:
            self._decide(now_us)
        elif self._state is ReaderState.READ and self._reads:
            self._speculate(now_us)

    # --- Decisions -------------------------------------------------------------------------------

    def _decide(self, now_us: int) -> None:
        """Find the one thing to wait for next."""
        if self._next <= self.bound or self._is_over() or self._is_sealed:
            self._cancel_reads()
        segment = self._segment
        if segment is None or self._start_seq_num is None:
            self._wait_for_segment(now_us)
        elif self._next <= self.bound:
            self._send_read(segment, now_us)
        elif self._is_over():
            self._enter(Epoch(self._epoch + 1), EntryId(0))
            self._ask_metadata()
        elif not self._is_following:
            self._state = ReaderState.CONSUMER
        elif self._is_sealed:
            self._pause(now_us)
        else:
            self._send_poll(segment, now_us)

    def _is_over(self) -> bool:
        """Whether this segment is CLOSED and fully delivered: only then comes the next (R18)."""
        segment = self._segment
        return segment is not None and segment.is_closed and self._next > self.bound

    def _enter(self, epoch: Epoch, entry: EntryId) -> None:
        assert epoch > self._epoch, (epoch, self)
        self._epoch, self._next = epoch, entry
        self._segment = None
        self._start_seq_num = None
        self._is_fresh = False
        self._lac = self._stored = NOTHING
        self._is_sealed = False
        self._tried = []
        self._tries_cold = False
        self._polled = []

    def _skip_truncated(self, log: LogNode) -> None:
        """What is left of the log begins later, maybe inside a segment: go on at the trim point.

        Truncated segments that are not given up yet are read to their end by who is in them.
        """
        self._cancel_reads()
        epoch, entry, _ = log.trim.dlsn
        self._enter(epoch, entry)
        self._effects.append(Skip(epoch, entry, log.trim_seq_num))
        self._ask_metadata()

    def _pass_trimmed(self, log: LogNode, now_us: int) -> None:
        """What nobody has was truncated: below the trim point nothing is a loss (R25)."""
        epoch, entry, _ = log.trim.dlsn
        if epoch > self._epoch:
            self._skip_truncated(log)
            return
        self._effects.append(Skip(epoch, entry, log.trim_seq_num))
        self._next = entry
        self._pass_hole()
        self._decide(now_us)

    def _take_segment(self, segment: SegmentBase | None) -> bool:
        """Adopt newer metadata of the current segment; whether anything changed."""
        assert self._log is not None
        known, known_start = self._segment, self._start_seq_num
        if segment is not None and segment.epoch == self._epoch:
            is_step_back = known is not None and known.is_closed and not segment.is_closed
            if not is_step_back:
                self._segment = segment
        if self._segment is not None and self._start_seq_num is None:
            if self._segment.is_closed:
                self._start_seq_num = self._segment.start_seq_num
            elif self._log.last_clean_epoch == self._epoch - 1:
                self._start_seq_num = self._log.totals.record_count
        if self._segment is not None:
            self._lac = max(self._lac, find_proved_lac(self._segment))
        self._pass_hole()
        return self._segment != known or self._start_seq_num != known_start

    def _pass_hole(self) -> None:
        """Report a hole as a gap, never as loss, and loss as loss, and go on behind them."""
        while self._segment is not None:
            absence = self._segment.absence_at(self._next)
            if absence is None:
                return
            is_lost = self._segment.lost_at(self._next) is not None
            self._effects.append(Gap(self._epoch, self._next, absence[1], is_lost))
            self._next = EntryId(absence[1] + 1)

    def _wait_for_segment(self, now_us: int) -> None:
        """The segment does not exist yet, or the one before it is not CLOSED (R18)."""
        assert self._log is not None
        if self._epoch < self._log.next_epoch:
            self._pause(now_us)
            return
        self._state = ReaderState.PAUSE
        if self._is_following:
            self._effects.append(SetTimer(now_us + RECHECK_US))

    def _ask_metadata(self) -> None:
        self._state = ReaderState.METADATA
        self._effects.append(WatchMetadata(self._epoch))

    def _pause(self, now_us: int) -> None:
        """Wait a little longer each time, then read the metadata again."""
        self._pause_us = _BACKOFF.next_us(self._pause_us)
        self._state = ReaderState.PAUSE
        self._effects.append(SetTimer(now_us + self._pause_us))

    def _cancel_reads(self) -> None:
        self._effects += [CancelRead(read_id) for read_id in self._reads]
        self._reads.clear()

    def _send_read(self, segment: SegmentBase, now_us: int) -> None:
        if self._buffered_bytes >= self._limits.buffer_bytes:
            self._state = ReaderState.CONSUMER
            return
        if self.is_cold or self._tries_cold:
            self._ask_cold_store(now_us)
        else:
            replicas = list_replicas(segment, self._next)
            members = [m for m in replicas if m not in self._tried] or list(replicas)
            self._ask_replica(segment, members, now_us)

    def _speculate(self, now_us: int) -> None:
        """The answer is late: ask the next replica as well; the first answer wins."""
        segment = self._segment
        assert segment is not None, self
        asked = [sent.read.member for sent in self._reads.values()]
        if COLD_STORE in asked:
            return
        replicas = list_replicas(segment, self._next)
        members = [m for m in replicas if m not in (*asked, *self._tried)]
        if members:
            self._order.speculation.on_request()
            self._ask_replica(segment, members, now_us)

    def _ask_replica(self, segment: SegmentBase, members: Sequence[Member], now_us: int) -> None:
        member = self._order.rank(members, now_us, self._kept)[0]
        last = min(self.bound, last_of_run(segment, self._next, member))
        beyond: tuple[tuple[EntryId, EntryId], ...] = ()
        if self._entry_bytes and not self._reads:
            # Nothing ahead besides a read that is late, or before an entry has shown its size.
            count = min(self._ahead.range_bytes // self._entry_bytes, WINDOW_COUNT_MAX)
            beyond_last = min(self.bound, EntryId(self._next + count - 1))
            beyond = runs_beyond(segment, self._next, beyond_last, member)
        self._state = ReaderState.READ
        self._send(
            member, self._next, last, self._ahead.range_bytes, READ_TIMEOUT_US,
            now_us=now_us, beyond=beyond, is_second=bool(self._reads),
        )  # fmt: skip
        self._speculate_at_us = now_us + self._order.speculation.delay_us(len(self._reads))
        self._effects.append(SetTimer(self._speculate_at_us))

    def _ask_cold_store(self, now_us: int) -> None:
        self._state = ReaderState.READ
        ahead_bytes, timeout_us = self._ahead.range_bytes, COLD_READ_TIMEOUT_US
        self._send(COLD_STORE, self._next, self.bound, ahead_bytes, timeout_us, now_us=now_us)

    def _send_poll(self, segment: SegmentBase, now_us: int) -> None:
        """Wait for the next entry to be confirmed; what is stored already is not waited for.

        One poll at first, and a second one beside it when nothing came for a moment.
        """
        self._state = ReaderState.POLL
        if len(self._reads) == 2 or self._waits_for_owner(now_us):
            return
        if not self._reads:
            self._speculate_at_us = now_us + SECOND_POLL_US
        if self._reads and now_us < self._speculate_at_us:
            self._effects.append(SetTimer(self._speculate_at_us))
            return
        asked = [sent.read.member for sent in self._reads.values()]
        ensemble = [m for m in segment.members if m not in asked]
        members = [m for m in ensemble if m not in self._polled]
        if not members:
            self._polled, members = [], ensemble
        if not members:
            return
        # Of a flexible segment's nodes, who sent last is likely to be sent what is next.
        is_kept = self._kept in members and list_replicas(segment, self._next) == (ALL_NODES,)
        first_choice = [m for m in members if m == self._kept] if is_kept else members
        self._send(
            self._order.rank(first_choice, now_us, self._kept)[0],
            EntryId(min(max(self._next, self._stored + 1), LAST_ENTRY_ID)), LAST_ENTRY_ID,
            self._limits.poll_bytes, POLL_US + POLL_GRACE_US,
            wait_us=POLL_US, now_us=now_us, is_second=bool(asked),
        )  # fmt: skip
        if not asked:
            self._effects.append(SetTimer(self._speculate_at_us))

    def _is_coming(self) -> bool:
        """Whether a poll that is out is to bring what comes next."""
        if self._segment is None or self._state is not ReaderState.POLL:
            return False
        polled = [sent.read.member for sent in self._reads.values()]
        is_here = self._next <= self._stored
        return not is_here and is_to_bring(polled, self._kept, self._segment, self._next)

    def _waits_for_owner(self, now_us: int) -> bool:
        """Whether what comes next is here, and its LAC about to come from the owner."""
        is_here = not self._reads and self._next <= self._stored
        end_us = self._owner.find_end(self.position, now_us) if is_here else None
        if end_us is not None:
            self._effects.append(SetTimer(end_us))
        return end_us is not None

    def _send(
        self,
        member: Member,
        first: EntryId,
        last: EntryId,
        bytes_max: int,
        timeout_us: int,
        *,
        wait_us: int = 0,
        now_us: int,
        beyond: tuple[tuple[EntryId, EntryId], ...] = (),
        is_second: bool = False,
    ) -> None:
        assert self._segment is not None, self
        self._last_read_id += 1
        is_flexible = list_replicas(self._segment, self._next) == (ALL_NODES,)
        read = SendRead(
            self._last_read_id, member, self._segment.ledger_id, first, last, bytes_max, timeout_us,
            wait_us, self._next if wait_us else NOTHING, beyond, is_second,
            self.bound if is_flexible else None,
        )  # fmt: skip
        self._reads[read.read_id] = _SentRead(read, now_us)
        self._effects.append(read)

    # --- What answers mean -----------------------------------------------------------------------

    def _deliver(self, entries: Sequence[Entry]) -> bool:
        """Hand on the entries that follow without a gap, up to the bound and to the next hole.

        A bookie may hold an entry inside a hole: it was never acknowledged, and is none (R17).
        """
        run: list[Entry] = []
        following, bound = self._next, self.bound
        absent = () if self._segment is None else (*self._segment.holes, *self._segment.lost)
        hole = min(
            (first for first, last in absent if last >= following), default=LAST_ENTRY_ID + 1
        )
        for entry_id, body in entries:
            if entry_id < following:
                continue
            if entry_id != following or entry_id > bound or entry_id >= hole:
                break
            run.append((entry_id, body))
            following = EntryId(following + 1)
        if not run:
            return False
        assert self._start_seq_num is not None, self
        self._next = following
        size_bytes = sum(len(body) for _, body in run)
        self._buffered_bytes += size_bytes
        self._entry_bytes = max(1, size_bytes // len(run))
        self._ahead.on_delivered(is_at_end=self._next > self.bound)
        self._effects.append(Deliver(self._epoch, self._start_seq_num, tuple(run)))
        self._pass_hole()
        return True

    def _on_progress(self, sent: _SentRead, giver: Member, now_us: int) -> None:
        read = sent.read
        for other in self._reads.values():
            waited_us = now_us - other.at_us
            if not other.read.wait_us:
                self._order.on_late(other.read.member, waited_us, now_us)
            elif waited_us >= SECOND_POLL_US:
                self._order.on_silence(other.read.member, now_us)
        self._cancel_reads()
        if not read.is_cold:
            self._kept = giver
            self._order.on_success(giver)
            if not read.wait_us and not read.is_of_all_nodes:
                self._order.speculation.on_answer(now_us - sent.at_us)
        self._tried = []
        self._polled = []
        self._failed_polls = 0
        self._failed_rounds = 0
        self._pause_us = 0
        self._unavailable_since_us = None

    def _on_empty_poll(
        self, sent: _SentRead, status: BookieStatus, is_sealed: bool, now_us: int
    ) -> None:
        """Nothing new: the segment may be closed or this bookie may lag. Look, then ask another."""
        read = sent.read
        self._polled.append(read.member)
        self._is_sealed |= is_sealed
        if status in (BookieStatus.OK, BookieStatus.NO_ENTRY):
            self._order.on_success(read.member)
            self._unavailable_since_us = None
            self._failed_polls = 0
            if now_us - sent.at_us < read.wait_us // 2 and not is_sealed:
                self._pause(now_us)  # it did not wait: never ask in a tight loop
            elif is_sealed or self._looked_us is None or now_us - self._looked_us >= LOOK_US:
                self._ask_metadata()
            return
        self._on_error(read.member, status, now_us)
        self._failed_polls += 1
        assert self._segment is not None
        if self._failed_polls >= len(self._segment.members):
            self._failed_polls = 0
            self._on_failed_round(now_us)

    def _on_failed_read(self, read: SendRead, status: BookieStatus, now_us: int) -> None:
        """This replica did not give it: the next one, or all of them again after a pause.

        GONE from a bookie means that the log node has changed: it was given up, or released.
        """
        segment = self._segment
        assert segment is not None
        self._on_error(read.member, status, now_us)
        if read.is_cold or (status is BookieStatus.GONE and not self._failed_rounds):
            self._tries_cold = False
            self._cancel_reads()
            self._on_failed_round(now_us)
            return
        self._tried.append(read.member)
        if all(member in self._tried for member in list_replicas(segment, self._next)):
            self._tries_cold = self._failed_rounds > 0 and segment.cold_copy is not None
            self._on_failed_round(now_us)

    def _on_error(self, member: Member, status: BookieStatus, now_us: int) -> None:
        self._errors[status] += 1
        if member in (COLD_STORE, ALL_NODES):
            return
        if status in BOOKIE_FAULTS:
            self._order.on_failure(member, now_us)
        elif status is BookieStatus.OVERLOADED:
            self._order.on_overload(member, now_us)

    def _on_failed_round(self, now_us: int) -> None:
        """Every replica failed: ensemble or copies may have changed; look at once, then later."""
        self._tried = []
        self._failed_rounds += 1
        if self._unavailable_since_us is None:
            self._unavailable_since_us = now_us
        if self._failed_rounds == 1:
            self._ask_metadata()
        else:
            self._pause(now_us)
