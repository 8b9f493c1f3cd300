"""The first envelope: all cookies say that there may be some before one is stored.

Writing cookies blocks, so it is done on a thread, one try at a time; whoever wants to store the
first envelope is OVERLOADED meanwhile and asks again, which is the next try if this one failed.

Not here: what a cookie says (`cookie`), which rows wait (`handlers`). Called by `handlers`.
Source: docs/protocol/envelopes.md "Versions", V5.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

_LOG: Final = logging.getLogger(__name__)


class FirstEnvelope:
    """Raises the format of the disks when an envelope is to be stored.

    Args:
        secure_format: `Storage.secure_format`; blocks.
    """

    def __init__(self, secure_format: Callable[[], None]) -> None:
        self._secure_format = secure_format
        self._securing: asyncio.Future[None] | None = None

    def begin(self) -> None:
        """Begin to write the cookies, unless that is under way."""
        if self._securing is None or self._securing.done():
            loop = asyncio.get_running_loop()
            self._securing = loop.run_in_executor(None, self._secure_format)
            self._securing.add_done_callback(_report)

    async def close(self) -> None:
        """Wait until nobody writes cookies: the directories are to be released."""
        if self._securing is not None:
            await asyncio.wait([self._securing])


def _report(securing: asyncio.Future[None]) -> None:
    error = None if securing.cancelled() else securing.exception()
    if error is not None:
        _LOG.error("the cookies cannot be written, so envelopes are refused: %s", error)
