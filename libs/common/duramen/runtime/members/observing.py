"""A write proxy beside the members: asks one of them each period who is away.

All decisions are `core.members.observer`'s. Serves nothing: members never ask an observer.

Called by `duramen_writeproxy.service`. Source: docs/protocol/members.md "Who is a member".
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any

from duramen.core.members.messages import PERIOD_US, PING_TIMEOUT_US, MemberQuestion
from duramen.core.members.observer import Observer
from duramen.runtime.http_client import PeerClient, PeerError
from duramen.runtime.members.places import is_url, read_clock_us
from duramen.units import SECOND
from duramen.wire.frame import FrameError
from duramen.wire.member_calls import PATH, pack_question, parse_reply


class Observing:
    """One observer.

    Args:
        nodes: the roster of sequencers now, id → fields with `data_url`.
        on_away: somebody is away who was not.
        now_us: the monotonic clock.
        rng: decides whom it asks first; one of its own, if None.
    """

    def __init__(
        self,
        self_id: str,
        peers: PeerClient,
        nodes: Callable[[], Mapping[str, Mapping[str, Any]]],
        on_away: Callable[[], None],
        now_us: Callable[[], int] = read_clock_us,
        *,
        rng: random.Random | None = None,
    ) -> None:
        self._observer = Observer(random.Random() if rng is None else rng)
        self._question = pack_question(MemberQuestion(self_id, 0, is_observer=True))
        self._peers = peers
        self._nodes = nodes
        self._on_away = on_away
        self._now_us = now_us
        self._answer_count = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Observe from now on."""
        self.on_roster()
        self._task = asyncio.create_task(self._ask_for_ever())

    async def stop(self) -> None:
        """Ask nobody any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def on_roster(self) -> None:
        """The roster changed."""
        self._observer.learn(self._nodes())

    def list_away(self) -> frozenset[str]:
        """The sequencers that are to be passed over: a hint."""
        return self._observer.list_away(self._now_us())

    def statistics(self) -> dict[str, Any]:
        """Who is away, and how often a member answered."""
        return {"away": sorted(self.list_away()), "answers": self._answer_count}

    async def _ask_for_ever(self) -> None:
        while True:
            begun_us = self._now_us()
            receiver = self._observer.next_receiver(begun_us)
            if receiver is not None:
                await self._ask(receiver)
            rest_us = max(PERIOD_US - (self._now_us() - begun_us), 0)
            await asyncio.sleep(rest_us / SECOND)

    async def _ask(self, receiver: str) -> None:
        url = self._nodes().get(receiver, {}).get("data_url")
        if not is_url(url):
            return
        try:
            body = await self._peers.call(f"{url}{PATH}", self._question, PING_TIMEOUT_US)
            reply = parse_reply(body)
        except (PeerError, FrameError, ValueError):
            # The last: what a node says of its process's place is none.
            return
        self._answer_count += 1
        if self._observer.on_reply(reply, self._now_us()):
            self._on_away()
