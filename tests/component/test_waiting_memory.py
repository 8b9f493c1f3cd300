"""What one read that waits at a quiet tail holds in memory, counted in bytes of the allocator.

Reads come to the application as the server calls it, without a server: each is a task whose client
stays and says nothing. The night counts the whole process with the HTTP library's part
(tests/process/test_reader_faults.py); what is counted here does not depend on pages or on the
machine, so the gate sees a few hundred bytes more.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import tracemalloc
from typing import Any, Final

import pytest

from tests.component.readproxy_world import RECORDS, World, run
from tests.pauses import look_again_soon

WARM_COUNT: Final = 300
COUNTED: Final = 500
WAIT_BYTES_MAX: Final = 10_000
"""9,790 are usual in every run, some 1,300 of them the test's own: one more coroutine or closure in
the way of each read, or a timer of its own, is told."""


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="objects have other sizes in another Python"
)
def test_a_read_that_waits_holds_little() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        reads: list[asyncio.Task[None]] = []
        await wait_with(world, reads, WARM_COUNT)
        tracemalloc.start()
        try:
            before = count_bytes()
            await wait_with(world, reads, WARM_COUNT + COUNTED)
            each_bytes = (count_bytes() - before) / COUNTED
        finally:
            tracemalloc.stop()
            for read in reads:
                read.cancel()
            await asyncio.gather(*reads, return_exceptions=True)
        print(f"a read that waits: {each_bytes:.0f} bytes")
        assert each_bytes <= WAIT_BYTES_MAX

    run(scenario)


async def wait_with(world: World, reads: list[asyncio.Task[None]], count: int) -> None:
    """Until so many reads wait."""
    while len(reads) < count:
        reads.append(asyncio.create_task(read_tail(world.proxy.app)))
    while world.proxy.feeds.statistics()["waiting"] < count:
        await look_again_soon()


async def read_tail(app: Any) -> None:
    """A long poll of a client that stays and says nothing."""
    loop = asyncio.get_running_loop()
    scope = {
        "type": "http", "http_version": "2", "method": "GET", "scheme": "http", "path": RECORDS,
        "raw_path": RECORDS.encode(), "root_path": "", "query_string": b"from=tail&wait=60s",
        "headers": [(b"host", b"localhost"), (b"accept", b"*/*")],
    }  # fmt: skip
    await app(scope, loop.create_future, drop)


async def drop(_message: Any) -> None:
    """Nobody reads what the proxy says at its end."""


def count_bytes() -> int:
    """What Python's allocator has given since the count began."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]
