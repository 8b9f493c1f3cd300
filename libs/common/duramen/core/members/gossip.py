"""One member of the gossip: what it sends, what it answers, and whom it takes for away.

Puts table, probes and rumours together. It does nothing by itself: `look` is called each 25 ms,
`on_question` and `on_reply` when something arrives, and `take_sends` says after each of them what
is to be sent. News go at once to two members, and with the next messages to all others.

Called by `runtime.members`, and by tests in virtual time. Source: docs/protocol/members.md.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any, Final

from duramen.core.members.messages import (
    AWAY_COUNT_MAX,
    PERIOD_US,
    MemberQuestion,
    MemberReply,
    RelayFinding,
    Send,
    Word,
)
from duramen.core.members.probes import MemberProbes
from duramen.core.members.rumours import Rumours
from duramen.core.members.table import MemberTable
from duramen.core.members.witness import HEARD_LATELY_US, judge_ping

_TOLD_AT_ONCE: Final = 2


class Gossip:
    """The state of one member."""

    def __init__(self, self_id: str, rng: random.Random) -> None:
        self.table = MemberTable(self_id)
        self._rng = rng
        self._rumours = Rumours()
        self._probes = MemberProbes(self.table, rng, self._tell)
        self._sends: list[Send] = []
        self._is_news = False

    def learn(self, nodes: Mapping[str, int]) -> None:
        """The roster now: name → registration."""
        for name in self.table.learn(nodes):
            self._rumours.drop(name)

    def learn_helpers(self, names: Iterable[str]) -> None:
        """The bookies that are there, by the names under which they are asked."""
        self.table.helpers = tuple(names)

    def judge_ping(
        self, target: str, *, is_answered: bool, begun_us: int, now_us: int
    ) -> RelayFinding:
        """What to say of a ping for another member."""
        lately_us = max(HEARD_LATELY_US, len(self.table.names) * PERIOD_US)
        was_heard = self.table.is_heard_since(target, begun_us - lately_us)
        took_us = now_us - begun_us
        return judge_ping(is_answered=is_answered, was_heard=was_heard, took_us=took_us)

    def look(self, now_us: int) -> None:
        """Do what is due."""
        self._sends += self._probes.look(now_us)

    def take_sends(self) -> list[Send]:
        """What is to be sent now."""
        if self._is_news:
            self._is_news = False
            alive = [name for name in self.table.names if self.table.accusation_of(name) is None]
            count = min(_TOLD_AT_ONCE, len(alive))
            self._sends += [Send(name) for name in self._rng.sample(alive, count)]
        sends, self._sends = self._sends, []
        return sends

    def ask(self, receiver: str, target: str | None = None) -> MemberQuestion:
        """The question for one receiver, as it is to be sent now."""
        words = self._words_for(receiver, about=target)
        return MemberQuestion(self.table.self_id, self.table.incarnation, words, target)

    def on_question(self, question: MemberQuestion, now_us: int) -> None:
        """Somebody asks: take in what it says."""
        if not question.is_observer:
            self._note(question.sender, question.incarnation, now_us)
            self._learn_words(question.words)

    def answer(
        self, question: MemberQuestion, now_us: int, finding: RelayFinding = RelayFinding.NONE
    ) -> MemberReply:
        """The answer to a question that was taken in."""
        if question.is_observer:
            words = tuple(self._words_of_away(now_us))
        else:
            words = self._words_for(question.sender)
        # Last: what was taken in may have raised it.
        return MemberReply(self.table.self_id, self.table.incarnation, words, finding)

    def on_reply(self, send: Send, reply: MemberReply, now_us: int) -> None:
        """What was sent is answered."""
        self._note(reply.sender, reply.incarnation, now_us)
        self._learn_words(reply.words)
        if send.target is not None:
            self._probes.on_finding(send.receiver, send.target, send.probe, reply.finding)

    def on_mute(self, name: str, now_us: int) -> None:
        """A member answered that it does not gossip: it is there."""
        self.table.note_heard(name, None, now_us)

    def list_away(self, now_us: int) -> list[str]:
        """The members that are to be passed over; nobody for who slept a moment ago."""
        return [] if self._probes.is_quiet(now_us) else self.table.list_away(now_us)

    def describe(self, now_us: int) -> dict[str, Any]:
        """What is known of each member, for people."""
        words = [self.table.own_word]
        words += [word for name in self.table.names if (word := self.table.word_of(name))]
        away = set(self.list_away(now_us))
        members = [
            {
                "id": word.name,
                "state": "away" if word.name in away else word.state.name.lower(),
                "incarnation": word.incarnation,
            }
            for word in sorted(words)
        ]
        return {"members": members}

    def statistics(self, now_us: int) -> dict[str, int]:
        """Counters, and how many are away now."""
        return {
            "members": len(self.table.names) + 1,
            "away": len(self.list_away(now_us)),
            "refuted": self.table.refuted_count,
            "rumours": len(self._rumours),
            **self._probes.counts,
        }

    # --- Words -----------------------------------------------------------------------------------

    def _words_for(self, receiver: str, about: str | None = None) -> tuple[Word, ...]:
        """Rumours, and always what the receiver has to contradict.

        Args:
            about: whom the receiver is to ping, which passes the word on.
        """
        accused = [self.table.accusation_of(name) for name in (receiver, about) if name is not None]
        first = [word for word in accused if word is not None]
        known = {word.name for word in first}
        rumours = self._rumours.take(len(self.table.names) + 1, without=receiver)
        return (*first, *(word for word in rumours if word.name not in known))

    def _words_of_away(self, now_us: int) -> list[Word]:
        words = [self.table.word_of(name) for name in self.list_away(now_us)[:AWAY_COUNT_MAX]]
        return [word for word in words if word is not None]

    def _note(self, name: str, incarnation: int, now_us: int) -> None:
        news = self.table.note_heard(name, incarnation, now_us)
        if news is not None:
            self._pass_on(news)

    def _learn_words(self, words: Iterable[Word]) -> None:
        for word in words:
            self._tell(word)

    def _tell(self, word: Word) -> None:
        news = self.table.merge(word)
        if news is not None:
            self._pass_on(news)

    def _pass_on(self, news: Word) -> None:
        self._rumours.put(news)
        # That a member is alive is urgent to those who were told otherwise, so it goes at once too.
        self._is_news = True
