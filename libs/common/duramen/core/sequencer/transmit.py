"""Transmit buffer of one log: appends that wait, and which append lies where in a sent entry.

Batches that wait while earlier entries are under way are packed into one entry (03-api: "one entry
from the batches that wait"), so that bytes per call grow with load without any timer. The buffer
knows of every append whether it was ever sent: that alone decides between "failed, nothing
happened" and "uncertain" (R9).

Invariants (checked by `validate`):
 1 queued bytes are the sum over the queue.
 2 an append is either queued or placed in exactly one entry.
Called by `log_sequencer`. Source: 01-protocol section 3.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from duramen.core.segment import Totals
from duramen.core.sequencer.effects import Complete, Fail, TailMark, Yield
from duramen.ids import Dlsn, EntryId, Epoch
from duramen.limits import ENTRY_TARGET_BYTES


@dataclass(frozen=True, slots=True)
class QueuedAppend:
    """One record batch of one client, checked at the edge.

    `tried`: sequencers that it has been to in vain.
    """

    append_id: int
    batch: bytes
    record_count: int
    max_txid: int | None
    max_timestamp_ms: int
    deadline_us: int
    tried: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Placed:
    append: QueuedAppend
    slot: int
    position: int


class TransmitBuffer:
    """Appends of one log on their way."""

    def __init__(self) -> None:
        self.queue: deque[QueuedAppend] = deque()
        self.queued_bytes = 0
        self._placed: dict[EntryId, list[_Placed]] = {}

    @property
    def is_empty(self) -> bool:
        """Nothing is queued and nothing waits for its acknowledgement."""
        return not self.queue and not self._placed

    def push(self, append: QueuedAppend) -> None:
        """Queue an append."""
        self.queue.append(append)
        self.queued_bytes += len(append.batch)

    def take(self) -> list[QueuedAppend]:
        """The appends of the next entry: at least one, up to ENTRY_TARGET_BYTES."""
        taken = [self.queue.popleft()]
        size = len(taken[0].batch)
        while self.queue and size + len(self.queue[0].batch) <= ENTRY_TARGET_BYTES:
            taken.append(self.queue.popleft())
            size += len(taken[-1].batch)
        self.queued_bytes -= size
        return taken

    def place(self, entry: EntryId, appends: list[QueuedAppend], before: Totals) -> None:
        """Remember where the appends lie in an entry that begins after `before`."""
        placed = []
        slot = 0
        for append in appends:
            placed.append(_Placed(append, slot, before.record_count + slot))
            slot += append.record_count
        self._placed[entry] = placed

    def complete(self, epoch: Epoch, entry: EntryId, start_seq_num: int) -> list[Complete]:
        """The entry is acknowledged: the answers to its appends that still wait."""
        answers = []
        for placed in self._placed.pop(entry, ()):
            append = placed.append
            seq_num = start_seq_num + placed.position
            after = placed.slot + append.record_count
            end = TailMark(
                Dlsn(epoch, entry, after),
                seq_num + append.record_count,
                append.max_timestamp_ms,
            )
            answers.append(
                Complete(
                    append.append_id,
                    Dlsn(epoch, entry, placed.slot),
                    seq_num,
                    append.record_count,
                    append.max_timestamp_ms,
                    end,
                )
            )
        return answers

    def expire(self, now_us: int, code: str, detail: str) -> list[Fail]:
        """Answer what waited past its deadline: `code` if never sent, otherwise uncertain."""
        answers = []
        for append in self.queue:
            if append.deadline_us <= now_us:
                answers.append(Fail(append.append_id, code, detail))
                self.queued_bytes -= len(append.batch)
        if answers:
            self.queue = deque(a for a in self.queue if a.deadline_us > now_us)
        for entry, placed in self._placed.items():
            late = [p for p in placed if p.append.deadline_us <= now_us]
            if late:
                answers += [_uncertain(p, "not acknowledged in time") for p in late]
                self._placed[entry] = [p for p in placed if p.append.deadline_us > now_us]
        return answers

    def fail_sent(self, reason: str) -> list[Fail]:
        """Answer everything that was sent as uncertain: only recovery knows its fate."""
        answers = [_uncertain(p, reason) for placed in self._placed.values() for p in placed]
        self._placed.clear()
        return answers

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
        self.queued_bytes = 0

    def validate(self) -> None:
        """Assert invariants 1 and 2."""
        assert self.queued_bytes == sum(len(a.batch) for a in self.queue), f"1: {self}"
        ids = [a.append_id for a in self.queue]
        ids += [p.append.append_id for placed in self._placed.values() for p in placed]
        assert len(ids) == len(dict.fromkeys(ids)), f"2: {self}"

    def __repr__(self) -> str:
        return f"<transmit queued={len(self.queue)} sent={list(self._placed)}>"


def _uncertain(placed: _Placed, reason: str) -> Fail:
    detail = f"{reason}; the append was sent to bookies and may or may not be stored"
    return Fail(placed.append.append_id, "append_uncertain", detail)
