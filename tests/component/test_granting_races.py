"""Holders, auditors and their clocks in any order: never may two stop something at one time.

Three sequencers with the product's `Granting` on one store, each with a clock of its own, and
the auditor for a while, so that two take themselves for it now and then; holders whose
questions and answers take up to half a minute, who ask again with the token that they have, renew,
lose answers, sleep and die. Time is played. A holder may stop something for its whole life from
before its last question that was answered, by its own clock, and nobody else may at that moment.
Source: docs/protocol/disruption.md.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest

from duramen.core.repair.disruption_grants import LIFE_MIN_MS
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.units import MS, SECOND
from duramen.wire.metadata_json import Paths
from duramen_sequencer.repair.disruption.book import GrantBook
from duramen_sequencer.repair.disruption.granting import Granting
from duramen_sequencer.repair.disruption.questions import parse_question
from tests.tiers import sized

SEEDS = sized(fast=20, gate=50, night=3_000)
DRIFTS = (0.999, 1.0, 1.001)


@dataclass
class Holder:
    """One that wants to stop its own member of ZooKeeper, which is always allowed by itself."""

    name: str
    rate: float
    token: str
    life_ms: int = LIFE_MIN_MS
    asked_us: float | None = None
    """By its own clock, before the question that was answered last; None: it has no grant."""
    granted_ms: int = 0
    is_asleep: bool = False

    def may_stop(self, now_us: int) -> bool:
        """Whether it takes itself for somebody who may, at this moment of the world."""
        if self.asked_us is None:
            return False
        return now_us * self.rate - self.asked_us < self.granted_ms * MS


class World:
    """Everything, at one moment after the other."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.now_us = 0
        self.holders = [Holder(name, rng.choice(DRIFTS), self.draw()) for name in "abc"]
        self.tree, self.granted_count = MemoryTree(), 0
        self.answers: list[tuple[int, Holder, str, float, int]] = []
        self.books: list[GrantBook] = []
        self.granting: list[Granting] = []

    def draw(self) -> str:
        return f"{self.rng.getrandbits(128):032x}"

    async def begin(self) -> None:
        for _ in range(3):
            store = MemoryStore(self.tree)
            await store.start()
            book = GrantBook(store, Paths("c"), self.make_clock())
            self.books.append(book)
            self.granting.append(Granting(book, cast(Any, None), cast(Any, None), lambda: True))

    def make_clock(self) -> Callable[[], int]:
        """One sequencer's: it begins anywhere and goes a little too fast or too slowly."""
        rate, offset_us = self.rng.choice(DRIFTS), self.rng.randrange(10**9)
        return lambda: int(self.now_us * rate) + offset_us

    async def step(self) -> None:
        self.now_us += self.rng.randrange(1, 2 * SECOND)
        for answer in [one for one in self.answers if one[0] <= self.now_us]:
            self.answers.remove(answer)
            _, holder, token, asked_us, life_ms = answer
            if not holder.is_asleep and holder.token == token:
                holder.asked_us, holder.granted_ms = asked_us, life_ms
        holder, granting = self.rng.choice(self.holders), self.rng.choice(self.granting)
        match self.rng.randrange(12):
            case 0:
                await self.end(holder, granting)
            case 1:
                holder.is_asleep = not holder.is_asleep
            case 2:
                holder.life_ms = self.rng.choice([LIFE_MIN_MS, 3 * LIFE_MIN_MS])
            case 3:
                number = self.rng.randrange(len(self.books))
                self.books[number].forget()  # it was not the auditor meanwhile
            case 4:
                await self.rng.choice(self.books).sweep()
            case 5 | 6:
                await self.renew(holder, granting)
            case _:
                await self.ask(holder, granting)
        self.judge()

    async def ask(self, holder: Holder, granting: Granting) -> None:
        if holder.is_asleep:
            return
        asked_us = self.send()
        asked = {
            "token": holder.token, "target": f"zookeeper/{holder.name}", "kind": "restart",
            "holder": holder.name, "life_ms": holder.life_ms, "voters": 3, "others_serving": 2,
        }  # fmt: skip
        answer = await granting.take(parse_question(asked))
        self.hear(holder, answer, asked_us * holder.rate, holder.life_ms)

    async def renew(self, holder: Holder, granting: Granting) -> None:
        if holder.is_asleep or holder.asked_us is None:
            return
        asked_us = self.send()
        answer = await granting.renew(holder.token)
        self.hear(holder, answer, asked_us * holder.rate, holder.granted_ms)

    async def end(self, holder: Holder, granting: Granting) -> None:
        """A holder that ends it has stopped counting before, and draws anew."""
        if holder.is_asleep:
            return
        token, holder.token, holder.asked_us = holder.token, self.draw(), None
        await granting.end(token)

    def send(self) -> int:
        """A question is under way for a while; gives when it was sent."""
        asked_us = self.now_us
        self.now_us += self.rng.randrange(30 * SECOND // self.rng.choice([1, 30]))
        return asked_us

    def hear(self, holder: Holder, answer: dict[str, Any], asked_us: float, life_ms: int) -> None:
        if answer["grant"] is None:
            return
        self.granted_count += 1
        if self.rng.randrange(2):  # or the answer is lost
            back_us = self.now_us + self.rng.randrange(5 * SECOND)
            self.answers.append((back_us, holder, holder.token, asked_us, life_ms))

    def judge(self) -> None:
        able = [one.name for one in self.holders if one.may_stop(self.now_us)]
        assert len(able) <= 1, f"at {self.now_us}: {able}"


async def play(seed: int) -> int:
    """A world of some ten minutes; gives how many answers were yes."""
    world = World(seed)
    await world.begin()
    while world.now_us < 600 * SECOND:
        await world.step()
    return world.granted_count


@pytest.mark.parametrize("block", range(4))
def test_never_may_two_stop_something(block: int) -> None:
    seeds = range(block * SEEDS, (block + 1) * SEEDS)
    granted = sum(asyncio.run(play(seed)) for seed in seeds)
    assert granted > 10 * SEEDS, "hardly anything was granted"
