"""What is sent of a range of a flexible segment, what stands in it as unvouched, where it ends.

`choose` goes through what is here in the order of entries. Each entry is sent, or left to whoever
its envelope and the reader's filter name; what the bookie cannot vouch for is told whether or not
it would have been sent, so that damage never looks like absence. Where a bound is met the range
ends: `next` is the first entry of which nothing is said, neither that it is here nor that it is
not. `finish` does the same once more when bodies turned out to be broken.

Pure. Called by the bookie's `reads`. Source: docs/protocol/envelopes.md
"Read: `POST /b/read`, version 2", R15, V8, V10.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from duramen.core.bookie.bookie_state import RangePlan, Ranges
from duramen.core.entry_ranges import EntryRanges
from duramen.core.flexible.sending import CopysetHint, ReadFilter, has_to_send
from duramen.ids import EntryId, NodeNumber
from duramen.limits import FILTERED_ENTRY_COUNT_MAX, FILTERED_RANGE_COUNT_MAX, READ_BYTES_MAX

NAMELESS_COUNT_MAX: Final = 1_024
"""Each of them may be damage, which the event loop has to be told of one by one."""

Hint = TypeVar("Hint", bound=CopysetHint)


class MetEntry(NamedTuple, Generic[Hint]):
    """An entry that is here by the book."""

    entry_id: EntryId
    identity: int | None
    """None: nothing can say what it is, so that it is unvouched."""
    size_bytes: int
    envelope: Hint | None


class Wish(NamedTuple):
    """What a row asks for, beside its range."""

    read_filter: ReadFilter | None
    own: NodeNumber | None
    bytes_max: int
    headers_only: bool
    is_digest: bool


@dataclass
class AnswerRoom:
    """What is left of one answer; its rows share it. The first body comes whatever its size."""

    entry_count: int = FILTERED_ENTRY_COUNT_MAX
    """Entries to be met, sent or not."""
    run_count: int = FILTERED_RANGE_COUNT_MAX
    """Runs of entries with equal envelopes to be met."""
    range_count: int = FILTERED_RANGE_COUNT_MAX
    """Unvouched ranges to be told."""
    nameless_count: int = NAMELESS_COUNT_MAX
    """Entries to be met that nothing can say what they are."""
    body_bytes: int = READ_BYTES_MAX
    is_body_taken: bool = False


class Choice(NamedTuple, Generic[Hint]):
    """What is to be sent of a range, in the order of entries, and what is said of the rest."""

    next: int
    """The first entry that was not looked at."""
    sent: Sequence[MetEntry[Hint]]
    unvouched: Ranges


class _Row(Generic[Hint]):
    """One row while it is gone through."""

    def __init__(self, plan: RangePlan, wish: Wish, room: AnswerRoom) -> None:
        self.sent: list[MetEntry[Hint]] = []
        self.unvouched = EntryRanges()
        self._wish = wish
        self._room = room
        self._is_doubtful = plan.is_doubtful
        # Where all that is not here is in doubt, so are the entries that cannot be read.
        self._damages = deque(() if plan.is_doubtful else plan.unvouched)
        self._sent_bytes = 0
        self._envelope: Hint | None = None
        self._is_mine = has_to_send(wish.read_filter, None, wish.own)
        """Envelope of the entry that was met last, and whether such entries are sent from here."""

    def pass_over(self, position: int, end: int) -> int:
        """Tell what is in doubt from `position` to before `end`, where no entry is met.

        Returns:
            `end`, or the first entry of what there is no room to tell.
        """
        if self._is_doubtful:
            return end if position == end or self._tell(position, end - 1) else position
        while self._damages and self._damages[0][0] < end:
            first, last = self._damages.popleft()
            if not self._tell(first, last):
                return first
        return end

    def meet(self, met: MetEntry[Hint]) -> bool:
        """Look at an entry that is here; False if there is no room for it."""
        room = self._room
        is_run_begun = False
        if met.envelope is not self._envelope and met.envelope != self._envelope:
            is_run_begun = met.envelope is not None
            self._is_mine = has_to_send(self._wish.read_filter, met.envelope, self._wish.own)
        if room.entry_count < 1 or room.run_count < is_run_begun:
            return False
        if met.identity is None:
            if room.nameless_count < 1 or not self._tell(met.entry_id, met.entry_id):
                return False
            room.nameless_count -= 1
        elif self._is_mine:
            if not self._take_body(met.size_bytes):
                return False
            self.sent.append(met)
        room.entry_count -= 1
        room.run_count -= is_run_begun
        self._envelope = met.envelope
        return True

    def _tell(self, first: int, last: int) -> bool:
        """Put a range among the unvouched; False if there is no room for it."""
        self.unvouched.add(first, last)
        if self.unvouched.range_count <= self._room.range_count:
            return True
        self.unvouched.remove(first, last)
        return False

    def _take_body(self, size_bytes: int) -> bool:
        """Whether the body fits; the first one of an answer does, whatever its size."""
        wish, room = self._wish, self._room
        if wish.is_digest:
            return True
        is_row_full = not wish.headers_only and self._sent_bytes + size_bytes > wish.bytes_max
        if self.sent and is_row_full:
            return False
        if room.is_body_taken and size_bytes > room.body_bytes:
            return False
        room.body_bytes -= size_bytes
        room.is_body_taken = True
        self._sent_bytes += size_bytes
        return True


def choose(
    plan: RangePlan, known: Iterable[MetEntry[Hint]], wish: Wish, room: AnswerRoom
) -> Choice[Hint]:
    """Go through a range.

    Args:
        known: what the plan has, ascending; more is not taken from it than is met.
        room: of the whole answer; what is chosen is taken from it.

    Returns:
        `next` is the plan's first where there was no room for anything.
    """
    row: _Row[Hint] = _Row(plan, wish, room)
    following = _go_through(plan, known, row)
    room.range_count -= row.unvouched.range_count
    return Choice(following, row.sent, tuple(row.unvouched.list_ranges()))


def finish(choice: Choice[Hint], broken: Sequence[EntryId], end: int | None) -> Choice[Hint]:
    """The choice when the bodies of some entries turned out not to be readable.

    Where there are too many ranges to tell, or bodies were not read from some entry on, it ends
    before those, and what would have been told behind them is not.

    Args:
        broken: ascending.
        end: from here on no body was read; None: all were.
    """
    following = choice.next if end is None else end
    unvouched = EntryRanges(choice.unvouched)
    for entry in broken:
        unvouched.add(entry)
    ranges = unvouched.within(0, following - 1)
    if len(ranges) > FILTERED_RANGE_COUNT_MAX:
        following = ranges[FILTERED_RANGE_COUNT_MAX][0]
        ranges = ranges[:FILTERED_RANGE_COUNT_MAX]
    lost = set(broken)
    sent = [one for one in choice.sent if one.entry_id < following and one.entry_id not in lost]
    return Choice(following, sent, tuple(ranges))


def _go_through(plan: RangePlan, known: Iterable[MetEntry[Hint]], row: _Row[Hint]) -> int:
    """Fill the row; returns where it ends."""
    position: int = plan.first
    for met in known:
        if met.entry_id >= plan.end:
            break
        reached = position if position == met.entry_id else row.pass_over(position, met.entry_id)
        if reached < met.entry_id or not row.meet(met):
            return reached
        position = met.entry_id + 1
    return row.pass_over(position, plan.end)
