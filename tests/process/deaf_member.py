"""A sequencer that loses some of its pings: `-m tests.process.deaf_member RATIO MODULE ARGUMENT…`.

Half of the lost ones never leave, of the others the answer is lost; the caller waits its time for
both. Everything else of the process is the product's, as `MODULE` starts it.

Started by `test_member_storm`. Source: docs/protocol/members.md "When it is wrong".
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import runpy
import sys

from duramen.core.members.messages import MemberQuestion, Send
from duramen.runtime.http_client import PeerClient, PeerError
from duramen.runtime.members.gossiping import Gossiping
from duramen.units import SECOND
from duramen.wire.member_calls import pack_question
from tests.pauses import let_pass


def lose_pings(ratio: float) -> None:
    """Let calls of gossip of this process get lost from now on."""
    call = Gossiping._call

    async def call_or_lose(
        self: Gossiping, send: Send, question: MemberQuestion, timeout_us: int
    ) -> bool:
        if random.random() >= ratio:
            return await call(self, send, question, timeout_us)
        begun_s = asyncio.get_running_loop().time()
        url = self._url_of(send.receiver)
        if url is not None and random.random() < 0.5:
            await ask_in_vain(self._peers, url, pack_question(question), timeout_us)
        passed_s = asyncio.get_running_loop().time() - begun_s
        await let_pass(timeout_us / SECOND - passed_s, what="the time of a call without an answer")
        return False

    Gossiping._call = call_or_lose  # type: ignore[method-assign]


async def ask_in_vain(peers: PeerClient, url: str, body: bytes, timeout_us: int) -> None:
    """Ask, and hear nothing."""
    with contextlib.suppress(PeerError, ValueError):
        await peers.request_json("POST", url, body, timeout_us)


if __name__ == "__main__":
    _, ratio, module, *arguments = sys.argv
    lose_pings(float(ratio))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
