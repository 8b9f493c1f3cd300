"""The answer of a proxy to a call that is made once: asked again where it says "come again".

On a machine that stands still for seconds a session with ZooKeeper is suspended, and any call may
be refused for that, with advice. Used by the tables of calls of this folder.
Source: docs/protocol/errors.md "retryable".
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import httpx

_WITHIN_S: Final = 60.0
_REST_S: Final = 0.2


def ask_until_settled(send: Callable[[], httpx.Response]) -> httpx.Response:
    """The first answer that is not a refusal for now; the last one where there is none."""
    ends_s, tick = time.monotonic() + _WITHIN_S, threading.Event()
    while True:
        answer = send()
        if answer.status_code != 503 or time.monotonic() > ends_s:
            return answer
        problem = answer.json()
        if problem["uncertain"] or not problem["retryable"]:
            return answer
        tick.wait(_REST_S)
