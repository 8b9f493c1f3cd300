"""A network of gossiping members in virtual time: loss, cuts, freezes, clocks that jump or stop.

Messages take one to twenty milliseconds, each way. A frozen member looks and answers nothing; what
was sent to it waits and is worked off when it wakes, after its first look, as with a process that
was stopped. A relay pings with its own time limit, and says `unsure` where its clock shows a sleep.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from functools import partial

from duramen.core.members.gossip import Gossip
from duramen.core.members.messages import (
    RELAY_TIMEOUT_US,
    MemberQuestion,
    MemberReply,
    RelayFinding,
    Send,
)
from duramen.core.members.observer import Observer
from duramen.core.members.witness import WITNESS_PERIOD_US, Witness, judge_ping
from duramen.units import MS

LOOK_US = 25 * MS


class World:
    """Members `0` … and what goes between them."""

    def __init__(self, count: int, seed: int, *, loss: float = 0.0, bookie_count: int = 0) -> None:
        self.now_us = 0
        self.rng = random.Random(seed)
        self.loss = loss
        self.cuts: set[tuple[str, str]] = set()
        """(from, to): no message passes in this direction."""
        self.frozen: set[str] = set()
        self.clock_off_us: dict[str, int] = {}
        """What a member's clock is ahead of the world's."""
        self.stopped_at_us: dict[str, int] = {}
        """Members whose clock stands still, and where."""
        self.message_words: list[int] = []
        self.away_at: dict[tuple[str, str], int] = {}
        """(who, whom) → when it was first called away."""
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._waiting: dict[str, list[Callable[[], None]]] = {}
        self.members = {
            str(i): Gossip(str(i), random.Random(seed * 1_000 + i)) for i in range(count)
        }
        self.registrations = dict.fromkeys(self.members, 1)
        self.witnesses = {f"bookie/{i}": Witness() for i in range(bookie_count)}
        self.notify_roster()
        for name in self.witnesses:
            self.at(self.rng.randrange(WITNESS_PERIOD_US), partial(self._witness, name))
        for name in self.members:
            self.at(self.rng.randrange(LOOK_US), partial(self._look, name))

    def notify_roster(self) -> None:
        for member in self.members.values():
            member.learn(self.registrations)
            member.learn_helpers(self.witnesses)
        for witness in self.witnesses.values():
            witness.learn(self.registrations)

    def at(self, delay_us: int, act: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now_us + delay_us, next(self._order), act))

    def run(self, duration_us: int) -> None:
        end_us = self.now_us + duration_us
        while self._queue and self._queue[0][0] <= end_us:
            self.now_us, _, act = heapq.heappop(self._queue)
            act()
        self.now_us = end_us

    def run_until(self, is_so: Callable[[], bool], most_us: int) -> int:
        begun_us = self.now_us
        while not is_so():
            assert self.now_us - begun_us <= most_us, f"not within {most_us} us"
            self.run(LOOK_US // 5)
        return self.now_us - begun_us

    def run_until_away(self, name: str, count: int, most_us: int) -> int:
        """Until so many take a member for away; how long that took."""
        return self.run_until(lambda: len(self.says_away(name)) >= count, most_us)

    def clock(self, name: str) -> int:
        return self.stopped_at_us.get(name, self.now_us) + self.clock_off_us.get(name, 0)

    def freeze(self, name: str) -> None:
        self.frozen.add(name)

    def wake(self, name: str) -> None:
        self.frozen.discard(name)
        # A process that wakes runs what is due by its clock first.
        self._look(name, is_repeated=False)
        for act in self._waiting.pop(name, ()):
            act()

    def says_away(self, name: str) -> list[str]:
        """Who takes a member for away."""
        return [
            other
            for other, member in self.members.items()
            if other != name
            and other not in self.frozen
            and name in member.list_away(self.clock(other))
        ]

    def state_counts(self, key: str) -> int:
        return sum(m.statistics(self.clock(n))[key] for n, m in self.members.items())

    # --- Between them ---

    def _deliver(self, source: str, target: str, act: Callable[[], None]) -> None:
        if (source, target) in self.cuts or self.rng.random() < self.loss:
            return
        self.at(self.rng.randrange(MS, 20 * MS), lambda: self._run_at(target, act))

    def _run_at(self, name: str, act: Callable[[], None]) -> None:
        if name in self.frozen:
            self._waiting.setdefault(name, []).append(act)
        else:
            act()

    def _look(self, name: str, *, is_repeated: bool = True) -> None:
        if is_repeated:
            self.at(LOOK_US, lambda: self._look(name))
        if name in self.frozen:
            return
        member = self.members[name]
        member.look(self.clock(name))
        for other in member.list_away(self.clock(name)):
            self.away_at.setdefault((name, other), self.now_us)
        self._flush(name)

    def _flush(self, name: str) -> None:
        for send in self.members[name].take_sends():
            self._ask(name, send)

    def _ask(self, name: str, send: Send) -> None:
        question = self.members[name].ask(send.receiver, send.target)
        self.message_words.append(len(question.words))

        def on_reply(reply: MemberReply) -> None:
            self.members[name].on_reply(send, reply, self.clock(name))
            self._flush(name)

        self.send_question(name, send.receiver, question, on_reply)

    def send_question(
        self,
        source: str,
        target: str,
        question: MemberQuestion,
        on_reply: Callable[[MemberReply], None],
    ) -> None:
        if target in self.witnesses:
            assert question.target is not None, "a bookie is only asked about others"
            subject = question.target
            tell = self._deliver_finding(target, source, on_reply)
            self._deliver(source, target, lambda: self._ping_as_witness(target, subject, tell))
            return

        def arrive() -> None:
            member = self.members[target]
            member.on_question(question, self.clock(target))
            if question.target is None:
                answer(RelayFinding.NONE)
            else:
                self._relay(target, question.target, answer)
            self._flush(target)

        def answer(finding: RelayFinding) -> None:
            reply = self.members[target].answer(question, self.clock(target), finding)
            self.message_words.append(len(reply.words))
            self._deliver(target, source, lambda: on_reply(reply))

        self._deliver(source, target, arrive)

    def _relay(self, relay: str, target: str, tell: Callable[[RelayFinding], None]) -> None:
        is_told = False
        begun_us = self.clock(relay)

        def settle(finding: RelayFinding) -> None:
            nonlocal is_told
            if not is_told:
                is_told = True
                tell(finding)

        def on_reply(reply: MemberReply) -> None:
            self.members[relay].on_reply(Send(target), reply, self.clock(relay))
            settle(RelayFinding.ANSWERED)

        def expire() -> None:
            now_us = self.clock(relay)
            judge = self.members[relay].judge_ping
            settle(judge(target, is_answered=False, begun_us=begun_us, now_us=now_us))

        self.send_question(relay, target, self.members[relay].ask(target), on_reply)
        self.at(RELAY_TIMEOUT_US, lambda: self._run_at(relay, expire))

    # --- Bookies ---

    def _deliver_finding(
        self, witness: str, asker: str, on_reply: Callable[[MemberReply], None]
    ) -> Callable[[RelayFinding], None]:
        def deliver(finding: RelayFinding) -> None:
            reply = MemberReply(witness, 0, finding=finding)
            self._deliver(witness, asker, lambda: on_reply(reply))

        return deliver

    def _witness(self, name: str) -> None:
        self.at(WITNESS_PERIOD_US, partial(self._witness, name))
        if name not in self.frozen:
            for target in self.witnesses[name].names:
                self._ping_as_witness(name, target, lambda _finding: None)

    def _ping_as_witness(
        self, name: str, target: str, tell: Callable[[RelayFinding], None]
    ) -> None:
        witness, begun_us = self.witnesses[name], self.clock(name)
        was_heard = witness.was_heard(target, begun_us)
        told: list[RelayFinding] = []

        def settle(*, is_answered: bool) -> None:
            took_us = self.clock(name) - begun_us
            if not told:
                told.append(
                    judge_ping(is_answered=is_answered, was_heard=was_heard, took_us=took_us)
                )
                tell(told[0])

        def on_reply(_reply: MemberReply) -> None:
            witness.note_heard(target, self.clock(name))
            settle(is_answered=True)

        self.send_question(name, target, MemberQuestion(name, 0, is_observer=True), on_reply)
        self.at(RELAY_TIMEOUT_US, lambda: self._run_at(name, lambda: settle(is_answered=False)))


class Watching:
    """An observer in such a world."""

    def __init__(self, world: World, name: str = "proxy") -> None:
        self.world = world
        self.name = name
        self.observer = Observer(random.Random(1))
        self.observer.learn(world.members)
        self._ask()

    def _ask(self) -> None:
        world, observer = self.world, self.observer
        receiver = observer.next_receiver(world.now_us)
        world.at(250 * MS, self._ask)
        if receiver is not None:
            question = MemberQuestion(self.name, 0, is_observer=True)
            world.send_question(
                self.name,
                receiver,
                question,
                lambda r: (observer.on_reply(r, world.now_us), None)[1],
            )
