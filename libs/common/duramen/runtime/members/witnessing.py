"""A bookie as a relay: pings sequencers now and then, and at once when it is asked about one.

All decisions are `core.members.witness`'s. What it asks is an observer's question, so nothing of it
changes what sequencers think; what it is asked is served at the bookie's data port as any call.

Called by `duramen_bookie.service`. Source: docs/protocol/members.md "Suspicion".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from duramen.core.members.messages import (
    PING_TIMEOUT_US,
    RELAY_TIMEOUT_US,
    MemberQuestion,
    MemberReply,
    RelayFinding,
)
from duramen.core.members.witness import WITNESS_PERIOD_US, Witness, judge_ping
from duramen.runtime.http_client import PeerClient, PeerError
from duramen.runtime.identity.names import Role
from duramen.runtime.members.places import is_url, read_clock_us
from duramen.runtime.registry import Roster
from duramen.runtime.security.process_security import ProcessSecurity, learn_role
from duramen.runtime.stores.metadata_store import MetadataStore
from duramen.units import SECOND
from duramen.wire.member_calls import (
    HELPER_PREFIX,
    PATH,
    pack_question,
    pack_reply,
    parse_question,
)

CALL_COUNT_MAX: Final = 64
"""Questions that are being answered; one more is answered without a ping."""


class Witnessing:
    """One bookie's part in the gossip.

    Args:
        parent: of the sequencers' nodes in the store.
        security: by which sequencers are pinged.
        now_us: the monotonic clock.
    """

    def __init__(
        self,
        bookie_id: str,
        store: MetadataStore,
        parent: str,
        *,
        security: ProcessSecurity | None = None,
        now_us: Callable[[], int] = read_clock_us,
    ) -> None:
        self._now_us = now_us
        self._name = f"{HELPER_PREFIX}{bookie_id}"
        self._question = pack_question(MemberQuestion(self._name, 0, is_observer=True))
        self._witness = Witness()
        self._roster = Roster(
            store, parent, self._on_roster, learn=learn_role(security, Role.SEQUENCER)
        )
        self._client = PeerClient(security)
        self._asked_count = 0
        self._running_count = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Ping from now on, once the sequencers are known."""
        self._task = asyncio.create_task(self._ping_for_ever())

    async def stop(self) -> None:
        """Ping nobody any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._roster.stop()
        await self._client.close()

    async def on_call(self, body: bytes, _peer: str) -> bytes:
        """Answer whoever asks about a sequencer.

        Raises:
            FrameError: no such question.
        """
        question = parse_question(body)
        finding = RelayFinding.UNSURE
        is_known = question.target in self._witness.names
        if question.target is not None and is_known and self._running_count < CALL_COUNT_MAX:
            self._asked_count += 1
            self._running_count += 1
            try:
                finding = await self._relay(question.target)
            finally:
                self._running_count -= 1
        return pack_reply(MemberReply(self._name, 0, finding=finding))

    def statistics(self) -> dict[str, Any]:
        """Whom it pings, and how often it was asked."""
        return {"pinged": list(self._witness.names), "asked": self._asked_count}

    def _on_roster(self) -> None:
        self._witness.learn(self._roster.made)

    async def _relay(self, target: str) -> RelayFinding:
        begun_us = self._now_us()
        was_heard = self._witness.was_heard(target, begun_us)
        is_answered = await self._ping(target, RELAY_TIMEOUT_US)
        took_us = self._now_us() - begun_us
        return judge_ping(is_answered=is_answered, was_heard=was_heard, took_us=took_us)

    async def _ping_for_ever(self) -> None:
        await self._roster.start()
        while True:
            names = self._witness.names
            await asyncio.gather(*(self._ping(name, PING_TIMEOUT_US) for name in names))
            await asyncio.sleep(WITNESS_PERIOD_US / SECOND)

    async def _ping(self, name: str, timeout_us: int) -> bool:
        """Whether a sequencer answers anything at all: then it is there."""
        url = self._roster.nodes.get(name, {}).get("data_url")
        if not is_url(url):
            return False
        try:
            await self._client.request_json("POST", f"{url}{PATH}", self._question, timeout_us)
        except (PeerError, ValueError):
            # The second: what a node says of its process's place is none.
            return False
        self._witness.note_heard(name, self._now_us())
        return True
