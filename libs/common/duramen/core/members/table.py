"""What one process makes of the members: the last word about each, and when it was heard itself.

The roster says who is a member; what is said of anybody else is passed over, and a member whose
registration is new begins anew. One's own place is here too: whoever is told that it is suspected
takes the next incarnation, which contradicts that. Being away is more than the word: who heard the
member itself a moment ago does not believe it.

Called by `gossip` and `probes`. Source: docs/protocol/members.md "Who is a member", "Suspicion".
"""

from __future__ import annotations

from collections.abc import Mapping

from duramen.core.members.messages import (
    INCARNATION_MAX,
    LIFE_SIGN_US,
    MEMBER_COUNT_MAX,
    NAME_BYTES_MAX,
    MemberState,
    Word,
)


class _Member:
    __slots__ = ("heard_us", "is_mute", "made", "word")

    def __init__(self, name: str, made: int) -> None:
        self.made = made
        self.word = Word(name, 0, MemberState.ALIVE)
        self.heard_us: int | None = None
        self.is_mute = False
        """It is there and does not gossip."""

    @property
    def is_confirmed(self) -> bool:
        return self.word.state is MemberState.CONFIRMED


class MemberTable:
    """The members as one of them sees them."""

    def __init__(self, self_id: str) -> None:
        self.self_id = self_id
        self.incarnation = 0
        """One's own."""
        self.refuted_count = 0
        self.helpers: tuple[str, ...] = ()
        """Bookies that can be asked to ping a member."""
        self._others: dict[str, _Member] = {}
        self._confirmed: set[str] = set()

    @property
    def names(self) -> tuple[str, ...]:
        """The other members, by id."""
        return tuple(self._others)

    def learn(self, nodes: Mapping[str, int]) -> list[str]:
        """The roster now: name → registration. Returns whose state was forgotten."""
        able = (name for name in nodes if len(name.encode()) <= NAME_BYTES_MAX)
        others = sorted(name for name in able if name != self.self_id)[: MEMBER_COUNT_MAX - 1]
        before, self._others = self._others, {}
        for name in others:
            known = before.pop(name, None)
            if known is None or known.made != nodes[name]:
                self._others[name] = _Member(name, nodes[name])
                if known is not None:
                    before[name] = known
            else:
                self._others[name] = known
        self._confirmed &= {name for name, member in self._others.items() if member.is_confirmed}
        return list(before)

    def merge(self, word: Word) -> Word | None:
        """What is news in a word: it, or a contradiction where it is about oneself."""
        if word.incarnation >= INCARNATION_MAX:
            return None
        if word.name == self.self_id:
            if word.state is MemberState.ALIVE or word.incarnation < self.incarnation:
                return None
            self.incarnation = word.incarnation + 1
            self.refuted_count += 1
            return self.own_word
        member = self._others.get(word.name)
        if member is None or not word.overrides(member.word):
            return None
        member.word = word
        (self._confirmed.add if member.is_confirmed else self._confirmed.discard)(word.name)
        return word

    def note_heard(self, name: str, incarnation: int | None, now_us: int) -> Word | None:
        """A message of a member came; the word that is news with it.

        Args:
            incarnation: None: it does not gossip.
        """
        member = self._others.get(name)
        if member is None:
            return None
        member.heard_us = now_us
        member.is_mute = incarnation is None
        alive = Word(name, incarnation or 0, MemberState.ALIVE)
        return self.merge(alive) if alive.incarnation > member.word.incarnation else None

    @property
    def own_word(self) -> Word:
        """What one says of oneself."""
        return Word(self.self_id, self.incarnation, MemberState.ALIVE)

    def word_of(self, name: str) -> Word | None:
        """The last word about a member, None if there is none of this name."""
        member = self._others.get(name)
        return None if member is None else member.word

    def accusation_of(self, name: str) -> Word | None:
        """What a member has to contradict, if anything."""
        word = self.word_of(name)
        return None if word is None or word.state is MemberState.ALIVE else word

    def is_heard_since(self, name: str, since_us: int) -> bool:
        """Whether a message of the member came at that moment or later."""
        member = self._others.get(name)
        return member is not None and member.heard_us is not None and member.heard_us >= since_us

    def is_fresh(self, name: str, now_us: int) -> bool:
        """Whether the member gave a sign of life a moment ago."""
        return self.is_heard_since(name, now_us - LIFE_SIGN_US)

    def list_away(self, now_us: int) -> list[str]:
        """The members that are confirmed, where nothing that was heard here speaks against it."""
        return sorted(name for name in self._confirmed if not self.is_fresh(name, now_us))

    def relays(self, target: str, now_us: int) -> tuple[list[str], list[str]]:
        """Who may be asked to ping another: those heard a moment ago, and the rest."""
        able = [
            name
            for name, member in self._others.items()
            if name != target and not member.is_mute and member.word.state is MemberState.ALIVE
        ]
        fresh = [name for name in able if self.is_fresh(name, now_us)]
        return fresh, [name for name in able if name not in set(fresh)]
