"""What a write proxy makes of the members: it asks one of them each period, and listens.

An observer probes nobody and is probed by nobody. Whom a member calls confirmed counts for a
second; then somebody has to say it again. So what an observer slept through is forgotten, and one
member that is wrong costs a second. Where it is told of all members, it believes nothing.

Called by `runtime.members`. Source: docs/protocol/members.md "Who is a member".
"""

from __future__ import annotations

import random
from collections.abc import Collection

from duramen.core.members.messages import (
    MEMBER_COUNT_MAX,
    OBSERVED_US,
    MemberReply,
    MemberState,
)


class Observer:
    """The state of one observer."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._names: tuple[str, ...] = ()
        self._turns: list[str] = []
        self._told_us: dict[str, int] = {}
        """When a member was last called confirmed."""

    def learn(self, names: Collection[str]) -> None:
        """The roster now."""
        self._names = tuple(sorted(names)[:MEMBER_COUNT_MAX])
        self._told_us = {name: at for name, at in self._told_us.items() if name in self._names}
        self._turns = [name for name in self._turns if name in self._names]

    def next_receiver(self, now_us: int) -> str | None:
        """Whom to ask in this period; None: nobody is there."""
        away = self.list_away(now_us)
        if not away:
            self._told_us.clear()
        if all(name in away for name in self._turns):
            self._turns = [name for name in self._names if name not in away]
            self._rng.shuffle(self._turns)
        while self._turns:
            name = self._turns.pop()
            if name not in away:
                return name
        return None

    def on_reply(self, reply: MemberReply, now_us: int) -> bool:
        """A member answered; True: somebody is away who was not."""
        before = self.list_away(now_us)
        for word in reply.words:
            if word.state is MemberState.CONFIRMED and word.name in self._names:
                self._told_us[word.name] = now_us
        # Whoever answers is there.
        self._told_us.pop(reply.sender, None)
        return not self.list_away(now_us) <= before

    def list_away(self, now_us: int) -> frozenset[str]:
        """The members that are to be passed over; nobody where that would be all."""
        if not self._told_us:
            return frozenset()
        away = {name for name, at in self._told_us.items() if now_us - at < OBSERVED_US}
        return frozenset() if len(away) == len(self._names) else frozenset(away)
