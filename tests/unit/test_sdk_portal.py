"""The loop behind `SyncClient`: whoever comes while it ends, or later, is told so and never waits.

Deterministic: a call that takes its time to be cancelled holds the end open.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from duramen.client.blocking.portal import Portal
from tests.pauses import stay


async def count() -> AsyncIterator[int]:
    for number in range(3):
        yield number


def test_what_comes_while_the_loop_ends_is_refused_and_a_reader_is_let_go() -> None:
    portal = Portal()
    begun, ending, may_end = threading.Event(), threading.Event(), threading.Event()

    async def linger() -> None:
        begun.set()
        try:
            await stay()
        finally:
            ending.set()
            await asyncio.to_thread(may_end.wait, 30)

    def call() -> None:
        with pytest.raises(BaseException):  # noqa: B017, PT011 - cancelled, however it is called
            portal.call(linger())

    numbers = portal.iterate(count())
    assert next(numbers) == 0
    caller, closer = threading.Thread(target=call), threading.Thread(target=portal.close)
    caller.start()
    assert begun.wait(30)
    closer.start()
    assert ending.wait(30)
    with pytest.raises(RuntimeError, match="closed"):
        portal.call(asyncio.sleep(0))
    numbers.close()
    may_end.set()
    for thread in (caller, closer):
        thread.join(30)
        assert not thread.is_alive()
    with pytest.raises(RuntimeError, match="closed"):
        portal.call(asyncio.sleep(0))


def test_a_reader_that_outlives_its_client_can_be_closed() -> None:
    portal = Portal()
    numbers = portal.iterate(count())
    assert next(numbers) == 0
    portal.close()
    numbers.close()
