"""A look at a folder of certificates every two seconds, for as long as a process lives.

What is refused there is told once and counted, and what was there stays. What is taken over is
handed on until that has worked, as on a disk that was full for a while.

Called by `security.held_identity` and `security.public_certificate`, which say what a look is.
Source: docs/protocol/identity.md "The folder", "Public ports".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from prometheus_client import Counter

LOOK_S: Final = 2.0

_LOG: Final = logging.getLogger(__name__)


class FolderWatch:
    """Looks, and remembers what was told and what has not reached everybody yet.

    Args:
        look: takes over what the folder holds now.
        what: it is that stays as it was, where the folder is refused; for the log.
        refused: counts the generations of the folder that were refused.
    """

    def __init__(
        self, folder: Path, look: Callable[[], Awaitable[None]], what: str, refused: Counter
    ) -> None:
        self._folder = folder
        self._look = look
        self._what = what
        self._refused = refused
        self._told: str | None = None
        self._is_handed_on = True
        self._change_count = 0
        self._refused_count = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look from now on."""
        self._task = asyncio.create_task(self._look_for_ever())

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def tell(self, refusal: str | None) -> None:
        """Why a look took over nothing, or not all; once for each finding, not for each look.

        Args:
            refusal: None: it is as it should be.
        """
        if refusal is not None and refusal != self._told:
            self._refused_count += 1
            self._refused.inc()
            _LOG.error("%s stays as it was: %s", self._what, refusal)
        self._told = refusal

    def note_change(self) -> None:
        """Something was taken over."""
        self._change_count += 1
        self._is_handed_on = False

    def hand_on(self, listener: Callable[[], None]) -> None:
        """Tell of a change, if one has not reached everybody; called at each look's end.

        Raises:
            Exception: what the listener raises; it is told again at the next look.
        """
        if not self._is_handed_on:
            listener()
            self._is_handed_on = True

    def statistics(self) -> dict[str, int]:
        """Changes that counted, and looks that found something to refuse."""
        return {"changes": self._change_count, "refused": self._refused_count}

    async def _look_for_ever(self) -> None:
        while True:
            try:
                await self._look()
            except Exception:
                # What is revoked later, and the end of a certificate, have to be seen still.
                _LOG.exception("a look at %s failed: another one follows", self._folder)
            await asyncio.sleep(LOOK_S)
