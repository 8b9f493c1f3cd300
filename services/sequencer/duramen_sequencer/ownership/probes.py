"""Whether an owner's process is there at all: a connection to its data port, made and closed.

Only a refused connection counts: the machine answers, and no process listens. A process that is
paused, cut off or slow accepts, or says nothing; it is not hinted dead, its session decides. So one
bad link between a proxy and an owner makes no takeover. Questions about one process at one time
share one connection, and its answer holds for a moment.

Called by `claims`. Source: docs/protocol/ownership.md "Failure detection".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Final
from urllib.parse import urlsplit

from duramen.runtime.shared_tasks import take_failure

_LOG = logging.getLogger(__name__)

CONNECT_TIMEOUT_S: Final = 0.5
ANSWER_KEPT_S: Final = 0.3
"""Hundreds of logs of one dead process ask within this time."""

_URL_COUNT_MAX: Final = 1_000


class Probes:
    """Looks at other sequencers' data ports."""

    def __init__(self) -> None:
        self._asked: dict[str, tuple[float, asyncio.Task[bool]]] = {}
        self.probe_count = 0
        self.refused_count = 0

    async def is_refused(self, url: str) -> bool:
        """Whether the process at `url` refuses connections; False also where nobody can tell."""
        asked = self._asked.get(url)
        if asked is None or (asked[1].done() and time.monotonic() - asked[0] > ANSWER_KEPT_S):
            if len(self._asked) >= _URL_COUNT_MAX:
                self._asked.clear()
            asked = (time.monotonic(), asyncio.create_task(self._look(url)))
            asked[1].add_done_callback(take_failure)
            self._asked[url] = asked
        return await asyncio.shield(asked[1])

    async def _look(self, url: str) -> bool:
        self.probe_count += 1
        try:
            parts = urlsplit(url)
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, writer = await asyncio.open_connection(parts.hostname, parts.port)
        except ConnectionRefusedError:
            _LOG.info("%s refuses connections: its process is gone", url)
            self.refused_count += 1
            return True
        except (OSError, ValueError):
            return False
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return False
