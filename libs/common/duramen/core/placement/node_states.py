"""Which bookies are silent or refuse new data, as one process that writes found it.

Shared by all logs of the process: what one log's store met, the others need not meet again. Two
lists, by member, so that a bookie on new disks begins with a clean one:
- gray: silent to a store in time, while other bookies answered stores sent since. For 1 s at first,
  twice as long each time up to 60 s; each answer halves that, and ends the listing.
- black: refused one, for want of space, under overload, or as another incarnation; each has its
  time.
While nobody answers, nobody is listed: then it is us. Listed bookies come last in every choice and
are never a reason to refuse one (`choice`). Writers leave a member that is gray or does not take
entries (`shunned`); one that is overloaded they keep.

Pure: the time is given. Called by `runtime.sequencer.bookie_lanes`; asked by the cores through
`SequencerContext`. Source: R27, docs/protocol/write.md
"Silent and full bookies".
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from duramen.core.placement.rule import Candidate
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
    NO_SPACE = "no space"
    OVERLOADED = "overloaded"
    OTHER_INCARNATION = "other incarnation"


_REFUSALS: Final = {
    BookieStatus.READ_ONLY: (ListReason.NO_SPACE, 10 * SECOND),
    BookieStatus.OVERLOADED: (ListReason.OVERLOADED, 1 * SECOND),
    BookieStatus.WRONG_INCARNATION: (ListReason.OTHER_INCARNATION, 60 * SECOND),
}
"""What each refusal says, and for how long. A full bookie says so in its registration soon, and a
disk that was given room is not left aside for long."""


_ENDED_BY_ANSWERS: Final = (ListReason.SILENT, ListReason.OVERLOADED)


@dataclass(frozen=True, slots=True)
class BookieListing:
    """Why, and until when."""

    reason: ListReason
    until_us: int


@dataclass(slots=True)
class _Heard:
    """What was heard of one member."""

    answered_sent_us: int = -1
    """When the latest store was sent that it answered."""
    silent_since_us: int | None = None
    """When the first store was sent that it did not answer, of those since its last answer."""
    gray_us: int = GRAY_US_FIRST
    """For how long it is listed the next time."""


class NodeStates:
    """The lists of one process.

    Invariants:
        1. A gray member has answered no store that was sent after its listing's silence began.
        2. `shunned` holds every listed member but those that are overloaded.
    """

    def __init__(self) -> None:
        self.shunned: frozenset[Member] = frozenset()
        """Members that writers leave."""
        self._listed: dict[Member, BookieListing] = {}
        self._heard: dict[Member, _Heard] = {}
        self._marked: tuple[Sequence[Candidate], Sequence[Candidate]] | None = None
        self._counts: Counter[str] = Counter()

    # --- what was heard --------------------------------------------------------------------------

    @staticmethod
    def is_refusal(status: BookieStatus) -> bool:
        """Whether it is of the bookie, not of an entry or its epoch."""
        return status in _REFUSALS

    def on_answered(
        self, member: Member, sent_us: int, *, is_entry: bool
    ) -> frozenset[Member] | None:
        """It answered a store that was sent then.

        Args:
            is_entry: a new entry, which a bookie without space refuses.

        Returns:
            Whom writers left until now, if the lists changed; so do the other events.
        """
        heard = self._recall(member)
        heard.answered_sent_us = max(heard.answered_sent_us, sent_us)
        if heard.silent_since_us is not None and sent_us >= heard.silent_since_us:
            heard.silent_since_us = None
        heard.gray_us = max(heard.gray_us // 2, GRAY_US_FIRST)
        listing = self._listed.get(member)
        if listing is None or not (is_entry or listing.reason in _ENDED_BY_ANSWERS):
            return None  # what recovery writes is taken by a full one, too
        return self._take_off([member])

    def on_silent(self, member: Member, sent_us: int, now_us: int) -> frozenset[Member] | None:
        """Nobody answered a store that was sent then."""
        heard = self._recall(member)
        if sent_us <= heard.answered_sent_us:
            return None  # it answered a later one
        if heard.silent_since_us is None:
            heard.silent_since_us = sent_us
        if self._is_gray(member) or not self._has_answered_since(heard.silent_since_us, member):
            return None
        gray_us, heard.gray_us = heard.gray_us, min(2 * heard.gray_us, GRAY_US_MAX)
        return self._put(member, BookieListing(ListReason.SILENT, now_us + gray_us))

    def on_refused(
        self, member: Member, status: BookieStatus, now_us: int
    ) -> frozenset[Member] | None:
        """It answered, and takes no store: `is_refusal` of the status."""
        reason, for_us = _REFUSALS[status]
        return self._put(member, BookieListing(reason, now_us + for_us))

    def expire(self, now_us: int) -> frozenset[Member] | None:
        """Take off whose time is over."""
        return self._take_off([m for m, told in self._listed.items() if now_us >= told.until_us])

    # --- what follows ----------------------------------------------------------------------------

    @property
    def next_expiry_us(self) -> int | None:
        """When `expire` has something to do."""
        return min((listing.until_us for listing in self._listed.values()), default=None)

    def list_reasons(self) -> list[ListReason]:
        """One for each member that is listed."""
        return [listing.reason for listing in self._listed.values()]

    def mark(self, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        """The candidates, of whom those that are listed come last in a choice."""
        if not self._listed:
            return candidates
        if self._marked is None or self._marked[0] is not candidates:
            marked = [
                replace(c, is_steady=False) if c.member in self._listed else c for c in candidates
            ]
            self._marked = candidates, marked
        return self._marked[1]

    def statistics(self, now_us: int) -> dict[str, Any]:
        """Who is listed, why, and for how long still; how often each happened."""
        return {
            "listed": {
                f"{member.bookie}": {
                    "reason": listing.reason.value,
                    "left_us": max(listing.until_us - now_us, 0),
                }
                for member, listing in self._listed.items()
            },
            "listings": dict(self._counts),
        }

    # --- inside ----------------------------------------------------------------------------------

    def _recall(self, member: Member) -> _Heard:
        heard = self._heard.pop(member, None) or _Heard()
        self._heard[member] = heard
        while len(self._heard) > MEMBERS_MAX:
            del self._heard[next(iter(self._heard))]
        return heard

    def _is_gray(self, member: Member) -> bool:
        listing = self._listed.get(member)
        return listing is not None and listing.reason is ListReason.SILENT

    def _has_answered_since(self, since_us: int, silent: Member) -> bool:
        return any(
            heard.answered_sent_us >= since_us
            for member, heard in self._heard.items()
            if member.bookie != silent.bookie
        )

    def _put(self, member: Member, listing: BookieListing) -> frozenset[Member]:
        before = self._listed.get(member)
        self._listed[member] = listing
        self._counts[listing.reason.value] += before is None or before.reason != listing.reason
        return self._change()

    def _take_off(self, members: Sequence[Member]) -> frozenset[Member] | None:
        for member in members:
            del self._listed[member]
        return self._change() if members else None

    def _change(self) -> frozenset[Member]:
        before, self._marked = self.shunned, None
        self.shunned = frozenset(
            member
            for member, listing in self._listed.items()
            if listing.reason is not ListReason.OVERLOADED
        )
        return before

    def validate(self) -> None:
        """Assert the invariants."""
        for member, listing in self._listed.items():
            heard = self._heard.get(member)
            is_gray = listing.reason is ListReason.SILENT
            assert not is_gray or heard is None or heard.silent_since_us is not None, member
            assert (member in self.shunned) == (listing.reason is not ListReason.OVERLOADED), member
        assert self.shunned <= self._listed.keys(), self.shunned
