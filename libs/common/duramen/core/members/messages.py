"""What members say to one another: questions, answers, and words about a third.

Values only. A word about a member is its incarnation and a state; of two words the one with the
higher incarnation counts, of one incarnation the worse state. A member alone raises its
incarnation, so it can contradict whatever is said of it.

Called by all modules of this package, `wire.member_calls` and `runtime.members`.
Source: docs/protocol/members.md "Suspicion" and "The call".
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from duramen.units import MS, SECOND

PERIOD_US: Final = 250 * MS
PING_COUNT: Final = 2
"""Members that are pinged in a period."""

PING_TIMEOUT_US: Final = PERIOD_US
RELAY_TIMEOUT_US: Final = 200 * MS
"""A relay's ping of whom it is asked about."""

ASK_TIMEOUT_US: Final = 300 * MS
"""From the question of relays to the verdict: a relay's ping, and the way to the relay."""

CONFIRM_AFTER_US: Final = 200 * MS
"""What a suspected member has to contradict, from the moment at which it is suspected."""

LIFE_SIGN_US: Final = 3 * PERIOD_US
"""So long after a message from a member nobody's word makes it away."""

LATE_US: Final = 300 * MS
"""A look that comes so long after the one before was slept through; looks come each 25 ms."""

OBSERVED_US: Final = SECOND
"""How long an observer believes what a member told it."""

MEMBER_COUNT_MAX: Final = 1_000
RELAY_COUNT: Final = 4
SILENT_COUNT: Final = 3
"""Relays that must have had no answer, of those asked."""

RUMOUR_COUNT_MAX: Final = 16
"""Rumours in a message between members."""

AWAY_COUNT_MAX: Final = 63
"""Members that an observer is told of: with the sender, 64 rows."""

NAME_BYTES_MAX: Final = 255
"""Of an id; a sequencer with a longer one is no member."""

INCARNATION_MAX: Final = 2**32 - 1
"""Not believed: nobody could contradict it."""


class MemberState(enum.IntEnum):
    """What is said of a member; of one incarnation the greater counts."""

    ALIVE = 0
    SUSPECTED = 1
    CONFIRMED = 2


class Word(NamedTuple):
    """What somebody says of a member."""

    name: str
    incarnation: int
    state: MemberState

    def overrides(self, other: Word) -> bool:
        """Whether this counts and `other`, about the same member, does not."""
        return (self.incarnation, self.state) > (other.incarnation, other.state)


class RelayFinding(enum.IntEnum):
    """What came of an indirect ping."""

    NONE = 0
    """Of an answer to a plain ping."""
    ANSWERED = 1
    SILENT = 2
    UNSURE = 3
    """The relay has no such member, no room, or slept meanwhile: that proves nothing."""


class MemberQuestion(NamedTuple):
    """A ping; with a target an indirect one; from an observer only a question."""

    sender: str
    incarnation: int
    words: tuple[Word, ...] = ()
    target: str | None = None
    is_observer: bool = False


class MemberReply(NamedTuple):
    """The answer to a question."""

    sender: str
    incarnation: int
    words: tuple[Word, ...] = ()
    finding: RelayFinding = RelayFinding.NONE


class Send(NamedTuple):
    """Something to be sent to a member: a ping, or the question to ping `target`."""

    receiver: str
    target: str | None = None
    probe: int = 0
    """To which probe the answer belongs; 0: to none, news are told."""
