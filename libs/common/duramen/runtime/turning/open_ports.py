"""Whether anything takes connections at a TLS port, asked apart from the call that is to go there.

A firewall that drops packets says nothing: the call's time would end before a connection is known
not to be made, and then nobody may send it again, in plain text or otherwise. So a connection is
tried first, for half of the call's time at most, with nothing sent over it. What came of that is
remembered for a while, and calls that come together share one try.

Called by `http_client`, owned by `process_security`; for peers that have a plain port besides.
Source: docs/protocol/turning-on.md "Which way a call takes".
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final
from urllib.parse import urlsplit

MEMORY_S: Final = 10.0
"""How long what was found is believed; so often calls wait for a port that is silent."""

PORT_COUNT_MAX: Final = 4_096
_TRY_S: Final = 1.0
"""As the connections of calls themselves."""


class OpenPorts:
    """What is known of the ports of peers, a bounded number of them."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[bool, float]] = OrderedDict()
        """Host and port → whether it is open, or silent, and until when that is believed."""
        self._tries: dict[str, asyncio.Task[bool]] = {}

    async def is_open(self, url: str, wait_s: float) -> bool | None:
        """Whether a connection can be made; None: it is not known within this time.

        Args:
            url: `https://`, with its port.
        """
        port = urlsplit(url).netloc
        is_open, until_s = self._known.get(port, (False, 0.0))
        if asyncio.get_running_loop().time() < until_s:
            return is_open
        if port not in self._tries:
            task = self._tries[port] = asyncio.create_task(self._try(port))
            task.add_done_callback(lambda _: self._tries.pop(port, None))
        done, _ = await asyncio.wait([self._tries[port]], timeout=wait_s)
        known = [one.result() for one in done if not one.cancelled()]
        return known[0] if known else None

    async def close(self) -> None:
        """Try no more."""
        tries = [*self._tries.values()]
        for one in tries:
            one.cancel()
        await asyncio.gather(*tries, return_exceptions=True)

    def statistics(self) -> dict[str, int]:
        """Ports that something is known of, those of them that were silent, and tries under way."""
        silent_count = sum(not is_open for is_open, _ in self._known.values())
        return {
            "known": len(self._known),
            "known_max": PORT_COUNT_MAX,
            "silent": silent_count,
            "trying": len(self._tries),
        }

    async def _try(self, port: str) -> bool:
        try:
            parts = urlsplit(f"//{port}")
            async with asyncio.timeout(_TRY_S):
                _, writer = await asyncio.open_connection(parts.hostname, parts.port)
        except TimeoutError:
            self._keep(port, is_open=False)
            return False
        except (OSError, ValueError):
            # It said so at once, and may be back in a moment: its process is started again.
            return False
        writer.close()
        self._keep(port, is_open=True)
        return True

    def _keep(self, port: str, *, is_open: bool) -> None:
        self._known[port] = is_open, asyncio.get_running_loop().time() + MEMORY_S
        self._known.move_to_end(port)
        if len(self._known) > PORT_COUNT_MAX:
            self._known.popitem(last=False)
