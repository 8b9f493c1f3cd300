"""What the calls of members have in common: their clock, where one is called, and who may speak.

Beside `gossiping`, so that a bookie, which is asked and owns no log, loads nothing of sequencers.
Called by `gossiping`, `observing` and `witnessing`. Source: docs/protocol/members.md "The call".
"""

from __future__ import annotations

import time

from duramen.core.members.messages import MemberQuestion
from duramen.runtime.identity.names import Identity, Role
from duramen.wire.member_calls import HELPER_PREFIX


def read_clock_us() -> int:
    """The monotonic clock."""
    return time.monotonic_ns() // 1_000


def is_url(text: object) -> bool:
    """Whether what a node says of its process's place can be called."""
    return isinstance(text, str) and text.startswith(("http://", "https://"))


def speaks_for_itself(question: MemberQuestion, caller: Identity) -> bool:
    """Whether a caller may ask so: only sequencers are members, all others observe.

    Else any node could spread rumours in the name of another one.
    """
    if caller.role is Role.SEQUENCER:
        return question.sender == caller.name and not question.is_observer
    prefix = HELPER_PREFIX if caller.role is Role.BOOKIE else ""
    return question.is_observer and question.sender == f"{prefix}{caller.name}"
