"""Which bookies are silent or refuse new data, as one process that writes found it.

Shared by all logs of the process: what one log's store met, the others need not meet again. Three
lists, by member, so that a bookie on new disks begins with a clean one:
- gray: silent to a store in time. For 1 s at first, twice as long each time up to 60 s; each entry
  that it stores halves that, and ends the listing. Writers leave gray members (`shunned`).
- slow: late by what its peers need. As long; an entry stored in time ends it. For waves alone.
- black: it refused one, for want of space or duty, under overload, or as another incarnation; each
  has its time.
Listed bookies come last in every choice and are never a reason to refuse one (`choice`). Nobody is
listed while nobody else is heard: then it is us. When somebody is again, silences that began in
between are forgotten. Pure: the time is given. Called by `runtime.sequencer.node_watch`; asked by
cores through `SequencerContext`. Source: R27, docs/protocol/write.md "Silent and full bookies".
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from duramen.core.placement.rule import Candidate
from duramen.core.placement.store_times import LATE_US_MIN
from duramen.core.status import BookieStatus
from duramen.ids import Member
from duramen.units import SECOND

GRAY_US_FIRST: Final = 1 * SECOND
GRAY_US_MAX: Final = 60 * SECOND
MEMBERS_MAX: Final = 10_000
"""Members that are remembered, more than any cluster has; the one heard of least lately goes."""


class ListReason(enum.Enum):
    """Why a member is listed."""

    SILENT = "silent"
    SLOW = "slow"
    TAKES_NOTHING_NEW = "takes nothing new"
    """Its disk is full, or it is being drained."""
    OVERLOADED = "overloaded"
    OTHER_INCARNATION = "other incarnation"


_REFUSALS: Final = {
    BookieStatus.OVERLOADED: (ListReason.OVERLOADED, 1 * SECOND),
    BookieStatus.READ_ONLY: (ListReason.TAKES_NOTHING_NEW, 10 * SECOND),
    BookieStatus.WRONG_INCARNATION: (ListReason.OTHER_INCARNATION, 60 * SECOND),
}
"""What each refusal says, and for how long. A full bookie says so in its registration soon, and one
that was given room is not left aside for long."""


@dataclass(frozen=True, slots=True)
class BookieRefusal:
    """Why it is on the black list, and until when."""

    reason: ListReason
    until_us: int


@dataclass(slots=True)
class _Heard:
    """What was heard of one member."""

    heard_us: int = -1
    """When it answered last, whatever it said."""
    stored_sent_us: int = -1
    """When the latest entry was sent that it stored."""
    gray_us: int = GRAY_US_FIRST
    """For how long it is listed the next time that it is silent."""
    slow_us: int = GRAY_US_FIRST
    """For how long it is listed the next time that it is late."""


class ListChange(NamedTuple):
    """What became of the lists."""

    shunned: frozenset[Member]
    """Writers have to leave these as of now."""
    members: frozenset[Member]
    """All that came to a list, or left one."""


class NodeStates:
    """The lists of one process.

    Invariants:
        1. A silent member has stored nothing that was sent after its silence began.
        2. `shunned` are the gray members.
    """

    def __init__(self) -> None:
        self.shunned: frozenset[Member] = frozenset()
        """Members that writers leave."""
        self.change_count = 0
        """Grows whenever somebody is listed or taken off."""
        self._gray: dict[Member, int] = {}
        """With the end of each listing."""
        self._slow: dict[Member, int] = {}
        """With the end of each listing."""
        self._black: dict[Member, BookieRefusal] = {}
        self._silent: dict[Member, int] = {}
        """With the time at which the first store was sent that each did not answer, of those since
        it stored something."""
        self._heard: dict[Member, _Heard] = {}
        self._last_heard_us = -1
        self._deaf_until_us = -1
        """Nobody was heard before that for a while: what was sent until then says nothing."""
        self._marked: tuple[Sequence[Candidate], Sequence[Candidate]] | None = None
        self._counts: Counter[str] = Counter()

    # --- what was heard --------------------------------------------------------------------------

    def on_answered(
        self, member: Member, statuses: Sequence[BookieStatus], sent_us: int, now_us: int
    ) -> None:
        """It answered a frame of entries that was sent then; statuses as they are, one a row."""
        self._note_heard(now_us)
        heard = self._recall(member)
        heard.heard_us = now_us
        if BookieStatus.OK in statuses:
            self._note_stored(member, heard, sent_us)
            if now_us - sent_us <= LATE_US_MIN:
                self._note_in_time(member, heard)
        for status in _REFUSALS:  # the last one that fits is the most severe
            if status in statuses:
                reason, for_us = _REFUSALS[status]
                self._black[member] = BookieRefusal(reason, now_us + for_us)
                self._note_listed(reason)

    def on_silent(self, member: Member, sent_us: int, now_us: int) -> None:
        """Nobody answered a frame of entries that was sent then."""
        heard = self._recall(member)
        if sent_us <= max(heard.stored_sent_us, self._deaf_until_us):
            return
        since_us = self._silent.setdefault(member, sent_us)
        if member in self._gray or not self._was_another_heard(since_us, member):
            return
        self._gray[member] = now_us + heard.gray_us
        heard.gray_us = min(2 * heard.gray_us, GRAY_US_MAX)
        self._note_listed(ListReason.SILENT)

    def on_late(self, member: Member, sent_us: int, now_us: int) -> None:
        """A store that was sent then is late, by what its peers need (`store_times`)."""
        heard = self._recall(member)
        if member in self._slow or sent_us <= self._deaf_until_us:
            return
        if self._was_another_heard(sent_us, member):
            self._slow[member] = now_us + heard.slow_us
            heard.slow_us = min(2 * heard.slow_us, GRAY_US_MAX)
            self._note_listed(ListReason.SLOW)

    def expire(self, now_us: int) -> None:
        """Take off whose time is over."""
        gray = {member: until_us for member, until_us in self._gray.items() if now_us < until_us}
        slow = {member: until_us for member, until_us in self._slow.items() if now_us < until_us}
        black = {m: refusal for m, refusal in self._black.items() if now_us < refusal.until_us}
        if len(gray) + len(slow) + len(black) < self._listed_count:
            self._gray, self._slow, self._black = gray, slow, black
            self._change()

    # --- what follows ----------------------------------------------------------------------------

    @property
    def next_expiry_us(self) -> int | None:
        """When `expire` has something to do."""
        refused = (refusal.until_us for refusal in self._black.values())
        return min([*self._gray.values(), *self._slow.values(), *refused], default=None)

    @property
    def gray(self) -> tuple[Member, ...]:
        """Who should get no copies, who is to be forgiven first at the front: slow ones before
        silent ones, and who is listed longest first."""
        return tuple(dict.fromkeys([*self._slow, *self._gray]))

    @property
    def black(self) -> frozenset[Member]:
        """Who refuses new data."""
        return frozenset(self._black)

    @property
    def other_incarnations(self) -> frozenset[Member]:
        """Members that answered as another life of their disks."""
        other = ListReason.OTHER_INCARNATION
        return frozenset(m for m, refusal in self._black.items() if refusal.reason is other)

    @property
    def listings(self) -> frozenset[tuple[Member, ListReason]]:
        """Who is listed, and why."""
        refused = {(member, refusal.reason) for member, refusal in self._black.items()}
        silent = {(member, ListReason.SILENT) for member in self._gray}
        slow = {(member, ListReason.SLOW) for member in self._slow}
        return frozenset(refused | silent | slow)

    @property
    def _listed_count(self) -> int:
        return len(self._gray) + len(self._slow) + len(self._black)

    def count_reasons(self) -> Counter[ListReason]:
        """Members that are listed now."""
        counts = Counter(refusal.reason for refusal in self._black.values())
        counts[ListReason.SILENT] = len(self._gray)
        counts[ListReason.SLOW] = len(self._slow)
        return counts

    def mark(self, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        """The candidates, of whom those that are listed come last in a choice."""
        if not self._listed_count:
            return candidates
        if self._marked is None or self._marked[0] is not candidates:
            listed = self._gray.keys() | self._slow.keys() | self._black.keys()
            marked = [replace(c, is_steady=False) if c.member in listed else c for c in candidates]
            self._marked = candidates, marked
        return self._marked[1]

    def statistics(self, now_us: int) -> dict[str, Any]:
        """Who is listed, why, and for how long still; how often each happened."""
        gray = [(m, ListReason.SILENT, until_us) for m, until_us in self._gray.items()]
        slow = [(m, ListReason.SLOW, until_us) for m, until_us in self._slow.items()]
        black = [(m, refusal.reason, refusal.until_us) for m, refusal in self._black.items()]
        return {
            "listed": [
                {
                    "bookie": member.bookie,
                    "incarnation": member.incarnation,
                    "reason": reason.value,
                    "left_us": max(until_us - now_us, 0),
                }
                for member, reason, until_us in gray + slow + black
            ],
            "listings": dict(self._counts),
        }

    # --- inside ----------------------------------------------------------------------------------

    def _recall(self, member: Member) -> _Heard:
        heard = self._heard.pop(member, None) or _Heard()
        self._heard[member] = heard
        while len(self._heard) > MEMBERS_MAX:
            del self._heard[next(iter(self._heard))]
        return heard

    def _note_heard(self, now_us: int) -> None:
        """Somebody answers: silences during which nobody did were ours."""
        if self._silent and self._last_heard_us < min(self._silent.values()):
            self._deaf_until_us = now_us
            self._silent.clear()
        self._last_heard_us = now_us

    def _note_stored(self, member: Member, heard: _Heard, sent_us: int) -> None:
        heard.stored_sent_us = max(heard.stored_sent_us, sent_us)
        if sent_us < self._silent.get(member, 0):
            return
        self._silent.pop(member, None)
        heard.gray_us = max(heard.gray_us // 2, GRAY_US_FIRST)
        if self._gray.pop(member, None) is not None:
            self._change()

    def _note_in_time(self, member: Member, heard: _Heard) -> None:
        heard.slow_us = max(heard.slow_us // 2, GRAY_US_FIRST)
        if self._slow.pop(member, None) is not None:
            self._change()

    def _was_another_heard(self, since_us: int, silent: Member) -> bool:
        return any(
            heard.heard_us > since_us
            for member, heard in self._heard.items()
            if member.bookie != silent.bookie
        )

    def _note_listed(self, reason: ListReason) -> None:
        self._counts[reason.value] += 1
        self._change()

    def _change(self) -> None:
        self._marked = None
        self.change_count += 1
        if self.shunned != self._gray.keys():
            self.shunned = frozenset(self._gray)

    def validate(self) -> None:
        """Assert the invariants."""
        assert self.shunned == self._gray.keys(), (self.shunned, self._gray)
        for member in self._silent.keys() & self._heard.keys():
            stored_sent_us = self._heard[member].stored_sent_us
            assert stored_sent_us < self._silent[member], (member, stored_sent_us)
