"""Counts what one read that waits at a quiet tail holds; `python -m` prints it, in bytes.

Reads come to the application as the server calls it, without a server: each is a task whose client
stays and says nothing. Used by `test_waiting_memory`, in a process of its own.
"""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from typing import Any, Final

from tests.component.readproxy_world import RECORDS, World, run
from tests.pauses import look_again_soon

WARM_COUNT: Final = 300
COUNTED: Final = 500


async def count_reads(world: World) -> None:
    """Print the bytes of each of the reads that come after others have warmed everything up."""
    await world.fill()
    reads: list[asyncio.Task[None]] = []
    await wait_with(world, reads, WARM_COUNT)
    tracemalloc.start()
    before = count_bytes()
    await wait_with(world, reads, WARM_COUNT + COUNTED)
    print((count_bytes() - before) / COUNTED)
    tracemalloc.stop()
    for read in reads:
        read.cancel()
    await asyncio.gather(*reads, return_exceptions=True)


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


if __name__ == "__main__":
    run(count_reads)
