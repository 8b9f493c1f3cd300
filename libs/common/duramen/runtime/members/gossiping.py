"""A sequencer among the members: looks each 25 ms, sends what is due, answers what is asked.

All decisions are `core.members.gossip`'s. Here are the calls, each bounded in time, the relayed
pings of others, and the clock. What does not answer is not told to the core: it looks at the clock.
A relay whose own clock shows that it slept during its ping says that it is not sure.

Called by `duramen_sequencer.service`. Source: docs/protocol/members.md.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from typing import Any, Final

from duramen.core.members.gossip import Gossip
from duramen.core.members.messages import (
    ASK_TIMEOUT_US,
    PING_TIMEOUT_US,
    RELAY_TIMEOUT_US,
    MemberQuestion,
    RelayFinding,
    Send,
)
from duramen.ids import BookieId
from duramen.runtime.http_client import PeerClient, PeerError
from duramen.runtime.http_server import Answer
from duramen.runtime.identity.names import Identity
from duramen.runtime.members.metrics import show_gossip
from duramen.runtime.members.places import is_url, read_clock_us, speaks_for_itself
from duramen.wire.frame import FrameError
from duramen.wire.member_calls import (
    HELPER_PATH,
    HELPER_PREFIX,
    PATH,
    pack_question,
    pack_reply,
    parse_question,
    parse_reply,
)

_LOG = logging.getLogger(__name__)

LOOK_INTERVAL_S: Final = 0.025
CALL_COUNT_MAX: Final = 64
"""Calls under way, and questions to ping others."""

_FRAME: Final = "application/octet-stream"
_TEXT: Final = "text/plain; charset=utf-8"


class Gossiping:
    """One member.

    Args:
        nodes: the roster of sequencers now, id → fields with `data_url`.
        made: their registrations.
        bookies: where the registered bookies are, which can be asked to ping.
        now_us: the monotonic clock.
        rng: decides whom it asks first; one of its own, if None.
    """

    def __init__(
        self,
        self_id: str,
        peers: PeerClient,
        nodes: Callable[[], Mapping[str, Mapping[str, Any]]],
        made: Callable[[], Mapping[str, int]],
        bookies: Callable[[], Mapping[BookieId, str]] = dict,
        *,
        now_us: Callable[[], int] = read_clock_us,
        rng: random.Random | None = None,
    ) -> None:
        self._gossip = Gossip(self_id, random.Random() if rng is None else rng)
        self._peers = peers
        self._nodes = nodes
        self._made = made
        self._bookies = bookies
        self._now_us = now_us
        self._calls: set[asyncio.Task[None]] = set()
        self._relayed_count = 0
        self._known_away: frozenset[str] = frozenset()
        self._shown: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Gossip from now on."""
        self.on_roster()
        self.on_bookies()
        self._task = asyncio.create_task(self._look_for_ever())

    async def stop(self) -> None:
        """Ask nobody any more; questions are answered still."""
        tasks = [*self._calls, *([] if self._task is None else [self._task])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def on_roster(self) -> None:
        """The roster changed."""
        self._gossip.learn(self._made())

    def on_bookies(self) -> None:
        """Bookies came or went."""
        self._gossip.learn_helpers(f"{HELPER_PREFIX}{name}" for name in self._bookies())

    def list_away(self) -> list[str]:
        """The sequencers that are confirmed not to answer: a hint."""
        return self._gossip.list_away(self._now_us())

    def describe(self) -> dict[str, Any]:
        """What this member makes of all, for people."""
        return self._gossip.describe(self._now_us())

    def statistics(self) -> dict[str, int]:
        """Counters."""
        return self._gossip.statistics(self._now_us())

    async def on_call(self, body: bytes, caller: Identity | None = None) -> Answer:
        """Answer a question.

        Args:
            caller: who asks, and asks for itself alone; None: nobody is asked who it is.
        """
        try:
            question = parse_question(body)
        except FrameError as error:
            return 400, _TEXT, str(error).encode()
        if caller is not None and not speaks_for_itself(question, caller):
            return 403, _TEXT, b"a member speaks for itself alone"
        self._gossip.on_question(question, self._now_us())
        finding = RelayFinding.NONE
        if question.target is not None:
            finding = await self._relay(question.target)
        reply = self._gossip.answer(question, self._now_us(), finding)
        self._flush()
        return 200, _FRAME, pack_reply(reply)

    # --- Looking and sending ---------------------------------------------------------------------

    async def _look_for_ever(self) -> None:
        while True:
            self._gossip.look(self._now_us())
            self._flush()
            self._tell()
            await asyncio.sleep(LOOK_INTERVAL_S)

    def _tell(self) -> None:
        statistics = self.statistics()
        show_gossip(statistics, self._shown)
        away = frozenset(self.list_away())
        for name in sorted(away - self._known_away):
            _LOG.warning("%s is away: it answers nobody", name)
        for name in sorted(self._known_away - away):
            _LOG.info("%s is not away any more", name)
        self._known_away = away

    def _flush(self) -> None:
        for send in self._gossip.take_sends():
            if len(self._calls) < CALL_COUNT_MAX:
                task = asyncio.create_task(self._send(send))
                self._calls.add(task)
                task.add_done_callback(self._calls.discard)

    async def _send(self, send: Send) -> None:
        question = self._gossip.ask(send.receiver, send.target)
        timeout_us = PING_TIMEOUT_US if send.target is None else ASK_TIMEOUT_US
        if await self._call(send, question, timeout_us):
            self._flush()

    async def _call(self, send: Send, question: MemberQuestion, timeout_us: int) -> bool:
        """Whether an answer came in time; it was taken in."""
        url = self._url_of(send.receiver)
        if url is None:
            return False
        try:
            # The one way to a status that is no success; nobody reads the type of the body.
            status, body = await self._peers.request_json(
                "POST", url, pack_question(question), timeout_us
            )
        except (PeerError, ValueError):
            # The second: what a node says of its process's place is none.
            return False
        try:
            reply = parse_reply(body) if status == 200 else None
        except FrameError:
            reply = None
        if reply is None:
            # It does not gossip, or not as this version does; but it is there.
            self._gossip.on_mute(send.receiver, self._now_us())
        else:
            self._gossip.on_reply(send, reply, self._now_us())
        return True

    def _url_of(self, receiver: str) -> str | None:
        """Where a receiver takes the call; None: it has just gone, or says nothing of use."""
        if receiver.startswith(HELPER_PREFIX):
            bookie = BookieId(receiver.removeprefix(HELPER_PREFIX))
            base, path = self._bookies().get(bookie), HELPER_PATH
        else:
            base, path = self._nodes().get(receiver, {}).get("data_url"), PATH
        return f"{base}{path}" if is_url(base) else None

    # --- Relaying --------------------------------------------------------------------------------

    async def _relay(self, target: str) -> RelayFinding:
        """Ping a member for another one."""
        if target not in self._nodes() or self._relayed_count >= CALL_COUNT_MAX:
            return RelayFinding.UNSURE
        self._relayed_count += 1
        begun_us = self._now_us()
        try:
            question = self._gossip.ask(target)
            is_answered = await self._call(Send(target), question, RELAY_TIMEOUT_US)
        finally:
            self._relayed_count -= 1
        return self._gossip.judge_ping(
            target, is_answered=is_answered, begun_us=begun_us, now_us=self._now_us()
        )
