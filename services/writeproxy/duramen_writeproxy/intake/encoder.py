"""Bodies become batches: at once where that is short, in a thread of its own where it is not.

The loop serves everybody, so no body may hold it for more than 50 ms. The thread takes one large
body after the other, in pieces (`json_pieces`) between which the loop has its turn; what waits for
the thread is bounded by the room for bodies (`budget`).

Called by `append_route` and `stream_route`.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from duramen_writeproxy.bodies import Prepared, encode_body, takes_long
from duramen_writeproxy.intake.conditions import Conditions


class Encoder:
    """Encodes the bodies of all requests; one instance per process, to be closed."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="large-bodies")
        self._large_count = 0
        self._waiting_count = 0
        self._waiting_bytes = 0

    async def encode(
        self, media: str, body: bytes, now_ms: int, *, is_base64: bool, conditions: Conditions
    ) -> Prepared:
        """As `bodies.encode_body`."""
        encode = partial(
            encode_body, media, body, now_ms, is_base64=is_base64, conditions=conditions
        )
        if not takes_long(media, body):
            return encode()
        self._large_count += 1
        self._waiting_count += 1
        self._waiting_bytes += len(body)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, encode)
        finally:
            self._waiting_count -= 1
            self._waiting_bytes -= len(body)

    def statistics(self) -> dict[str, int]:
        """Large bodies since the start, and those that wait for the thread or are in it."""
        return {
            "large": self._large_count,
            "waiting": self._waiting_count,
            "waiting_bytes": self._waiting_bytes,
        }

    def close(self) -> None:
        """Drop what waits; returns once the thread is through with its body."""
        self._thread.shutdown(cancel_futures=True)
