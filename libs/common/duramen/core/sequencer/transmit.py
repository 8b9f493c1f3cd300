"""Transmit buffer of one log: appends that wait, and which append lies where in a sent entry.

Batches that wait while earlier entries are under way are packed into one entry. So the bytes per
call grow with load, without any timer. The buffer knows of every append whether it was ever sent.
That alone decides between "failed, nothing happened" and "uncertain" (R9). The log's flush policy
says when waiting batches are due (`due_us`).

Invariants (checked by `validate`):
 1 queued bytes are the sum over the queue, and of each append in it the arrival is known.
 2 an append is either queued or placed in exactly one entry.
Owned by `append_pipeline`. Source: docs/protocol/write.md "Window and flush".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from duramen.config import Flush, Window
from duramen.core.segment import Totals
from duramen.core.sequencer.effects import Complete, CompleteEarly, Fail, TailMark, Yield
from duramen.core.sequencer.exactly_once.stamps import SetToken, Stamp
from duramen.ids import Dlsn, EntryId, Epoch
from duramen.limits import ENTRY_BYTES_MAX, ENTRY_TARGET_BYTES

_DEFAULT_WINDOW = Window()


@dataclass(frozen=True, slots=True)
class QueuedAppend:
    """One record batch of one client, checked at the edge; or a command and its control record."""

    append_id: int
    batch: bytes
    record_count: int
    max_txid: int | None
    max_timestamp_ms: int
    deadline_us: int
    min_txid: int | None = None
    stamp: Stamp | None = None
    match_seq_num: int | None = None
    fencing_token: str | None = None
    command: SetToken | None = None
    tried: tuple[str, ...] = ()
    """Sequencers that it has been to in vain."""

    decoded_bytes: int = 0
    """What a compressed batch is for readers."""

    region: str | None = None
    """Of the proxy that it came through, if that said so."""

    @property
    def is_plain(self) -> bool:
        """Nothing is to be judged: it is appended, whatever the log holds."""
        return (
            self.stamp is None
            and self.min_txid is None
            and self.match_seq_num is None
            and self.fencing_token is None
            and self.command is None
        )


@dataclass(frozen=True, slots=True)
class PlacedAppend:
    """An append that was sent, and where it lies in its entry and in its segment."""

    append: QueuedAppend
    slot: int
    position: int


class TransmitBuffer:
    """Appends of one log on their way."""

    def __init__(self) -> None:
        self.queue: deque[QueuedAppend] = deque()
        self.queued_bytes = 0
        self._arrivals_us: deque[int] = deque()
        self._half_time_us: int | None = None
        """When the first of the queue has half of its time left; None: not known now."""
        self._placed: dict[EntryId, list[PlacedAppend]] = {}

    @property
    def count(self) -> int:
        """Appends that wait, queued or in flight."""
        return len(self.queue) + sum(map(len, self._placed.values()))

    @property
    def is_empty(self) -> bool:
        """Nothing is queued and nothing waits for its acknowledgement."""
        return not self.queue and not self._placed

    def push(self, append: QueuedAppend, now_us: int) -> None:
        """Queue an append."""
        self.queue.append(append)
        self._arrivals_us.append(now_us)
        if self._half_time_us is not None:
            self._half_time_us = min(self._half_time_us, _half_time_us(append, now_us))
        self.queued_bytes += len(append.batch)

    def find_fault(
        self, append: QueuedAppend, window: Window | None, *, held_bytes: int, held_count: int
    ) -> str | None:
        """Why the window has no room for another append, or None.

        Args:
            window: of the log's configuration, if it was read.
            held_bytes: what waits elsewhere for this log, sent or not.
            held_count: appends that were taken and go into no entry for now.
        """
        window = window or _DEFAULT_WINDOW
        waiting = self.queued_bytes + held_bytes
        if waiting and waiting + len(append.batch) > window.bytes:
            return f"{waiting} bytes wait for acknowledgement: {window.bytes} may"
        if self.count + held_count >= window.entries:
            return f"{window.entries} appends wait for acknowledgement already"
        return None

    def due_us(self, flush: Flush) -> int | None:
        """When what is queued becomes an entry, the pipeline permitting; None if nothing is.

        A whole entry never waits, whatever the policy: nothing would be gained. And nobody waits
        for company for more than half of its time: the other half is for being stored.
        """
        if not self.queue:
            return None
        full_bytes = ENTRY_TARGET_BYTES
        wait_us = 0
        match flush.policy:
            case "periodic":
                wait_us = flush.interval
            case "size":
                wait_us = flush.wait_max
                full_bytes = min(flush.size, ENTRY_TARGET_BYTES)
        oldest_us = self._arrivals_us[0]
        if not wait_us or self.queued_bytes >= full_bytes:
            return oldest_us
        if self._half_time_us is None:
            queued = zip(self.queue, self._arrivals_us, strict=True)
            self._half_time_us = min(_half_time_us(append, at_us) for append, at_us in queued)
        return min(oldest_us + wait_us, self._half_time_us)

    def take(self, admit: Callable[[QueuedAppend], bool]) -> list[QueuedAppend]:
        """The appends of the next entry, up to ENTRY_TARGET_BYTES; a command is alone in its own.

        What they are when decoded is bounded, too: readers take an entry apart as a whole.

        Args:
            admit: judges what leaves the queue, in its order; False: it is kept or answered
                elsewhere. None may be admitted of what was queued.
        """
        taken: list[QueuedAppend] = []
        size = decoded = 0
        self._half_time_us = None
        while self.queue:
            first = self.queue[0]
            if taken and (
                size + len(first.batch) > ENTRY_TARGET_BYTES
                or decoded + first.decoded_bytes > ENTRY_BYTES_MAX
            ):
                break
            if taken and (taken[0].command is not None or self.queue[0].command is not None):
                break
            append = self.queue.popleft()
            self._arrivals_us.popleft()
            self.queued_bytes -= len(append.batch)
            if admit(append):
                taken.append(append)
                size += len(append.batch)
                decoded += append.decoded_bytes
        return taken

    def push_back(self, appends: list[QueuedAppend]) -> None:
        """Queue appends before all others, in their order: they were there before, and are due."""
        self.queue.extendleft(reversed(appends))
        self._arrivals_us.extendleft([0] * len(appends))
        self.queued_bytes += sum(len(append.batch) for append in appends)
        self._half_time_us = None

    def place(self, entry: EntryId, appends: list[QueuedAppend], before: Totals) -> None:
        """Remember where the appends lie in an entry that begins after `before`."""
        placed = []
        slot = 0
        for append in appends:
            placed.append(PlacedAppend(append, slot, before.record_count + slot))
            slot += append.record_count
        self._placed[entry] = placed

    def complete(self, epoch: Epoch, entry: EntryId, start_seq_num: int) -> list[Complete]:
        """The entry is acknowledged: the answers to its appends that still wait."""
        return answer_placed(self._placed.pop(entry, ()), epoch, entry, start_seq_num)

    def complete_early(self, epoch: Epoch, entry: EntryId) -> list[CompleteEarly]:
        """As `complete`, while nobody knows how many records the older epochs hold."""
        return [
            CompleteEarly(
                placed.append.append_id,
                Dlsn(epoch, entry, placed.slot),
                placed.append.record_count,
                placed.append.max_timestamp_ms,
            )
            for placed in self._placed.pop(entry, ())
        ]

    def expire(self, now_us: int, code: str, detail: str, *, is_vain: bool = False) -> list[Fail]:
        """Answer what waited past its deadline: `code` if never sent, otherwise uncertain.

        Args:
            is_vain: everything waits in vain, as `detail` says, and is answered at once.
        """

        def is_over(append: QueuedAppend) -> bool:
            return is_vain or append.deadline_us <= now_us

        answers = []
        for append in self.queue:
            if is_over(append):
                answers.append(Fail(append.append_id, code, detail))
                self.queued_bytes -= len(append.batch)
        if answers:
            queued = zip(self.queue, self._arrivals_us, strict=True)
            kept = [pair for pair in queued if not is_over(pair[0])]
            self.queue = deque(append for append, _ in kept)
            self._arrivals_us = deque(arrival_us for _, arrival_us in kept)
            self._half_time_us = None
        why = detail if is_vain else "not acknowledged in time"
        for entry, placed in self._placed.items():
            late = [p for p in placed if is_over(p.append)]
            if late:
                answers += [_uncertain(p, why) for p in late]
                self._placed[entry] = [p for p in placed if not is_over(p.append)]
        return answers

    def fail_sent(self, reason: str) -> list[Fail]:
        """Answer everything that was sent as uncertain: only recovery knows its fate."""
        answers = [_uncertain(p, reason) for placed in self._placed.values() for p in placed]
        self._placed.clear()
        return answers

    def take_sent(self) -> dict[EntryId, list[PlacedAppend]]:
        """Remove what was sent, by entry: its fate is decided elsewhere."""
        placed, self._placed = self._placed, {}
        return placed

    def fail_queued(self, code: str, detail: str) -> list[Fail]:
        """Answer everything that was never sent with an error."""
        answers = [Fail(append.append_id, code, detail) for append in self.queue]
        self._clear_queue()
        return answers

    def yield_queued(self) -> list[Yield]:
        """Give everything that was never sent back for another owner."""
        answers = [Yield(append.append_id) for append in self.queue]
        self._clear_queue()
        return answers

    def _clear_queue(self) -> None:
        self.queue.clear()
        self._arrivals_us.clear()
        self._half_time_us = None
        self.queued_bytes = 0

    def validate(self) -> None:
        """Assert invariants 1 and 2."""
        assert self.queued_bytes == sum(len(a.batch) for a in self.queue), f"1: {self}"
        assert len(self._arrivals_us) == len(self.queue), f"1: {self}"
        ids = [a.append_id for a in self.queue]
        ids += [p.append.append_id for placed in self._placed.values() for p in placed]
        assert len(ids) == len(dict.fromkeys(ids)), f"2: {self}"

    def __repr__(self) -> str:
        return f"<transmit queued={len(self.queue)} sent={list(self._placed)}>"


def answer_placed(
    placed: Iterable[PlacedAppend], epoch: Epoch, entry: EntryId, start_seq_num: int
) -> list[Complete]:
    """The answers to appends of an entry that is acknowledged."""
    answers = []
    for one in placed:
        append = one.append
        seq_num = start_seq_num + one.position
        after = one.slot + append.record_count
        end = TailMark(
            Dlsn(epoch, entry, after), seq_num + append.record_count, append.max_timestamp_ms
        )
        answers.append(
            Complete(
                append.append_id,
                Dlsn(epoch, entry, one.slot),
                seq_num,
                append.record_count,
                append.max_timestamp_ms,
                end,
            )
        )
    return answers


def _half_time_us(append: QueuedAppend, arrival_us: int) -> int:
    return (arrival_us + append.deadline_us) // 2


def _uncertain(placed: PlacedAppend, reason: str) -> Fail:
    detail = f"{reason}; the append was sent to bookies and may or may not be stored"
    return Fail(placed.append.append_id, "append_uncertain", detail)
