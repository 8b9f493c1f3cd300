"""A program that owns a log by itself: it appends for ever and prints what was acknowledged.

One line a record, `SEQ BODY`, written and flushed only after the acknowledgement, in the order of
the appends. It is there to be killed: whatever it has printed must be found in the log.

Run by `test_core_client` as `python -m tests.process.core_writer ZOOKEEPER LOG`.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque

from duramen.client.core import AppendTicket, CoreClient

_IN_FLIGHT = 50


async def append_for_ever(zookeeper: str, name: str) -> None:
    """Never returns; ends with the exception of the first append that failed."""
    under_way: deque[tuple[bytes, AppendTicket]] = deque()
    async with CoreClient(zookeeper) as core, core.open_log("default", name) as log:
        number = 0
        while True:
            while len(under_way) < _IN_FLIGHT:
                body = b"%d" % number
                under_way.append((body, log.append(body)))
                number += 1
            body, ticket = under_way.popleft()
            print((await ticket).start, body.decode(), flush=True)


if __name__ == "__main__":
    asyncio.run(append_for_ever(*sys.argv[1:]))
