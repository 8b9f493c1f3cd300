"""A load of a run as a process of its own, tethered to the run: started, followed, ended.

A run has one that keeps the cluster at work, and one of quiet logs and readers who wait. What a
load tells while it runs (`load`) is kept here, and the violations among it go to the evidence.

Called by `run`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import orjson

from tests.chaos import tether
from tests.chaos.load import SETTLE_S, LoadOptions, format_options
from tests.waiting import comes_true

ROOT: Final = Path(__file__).parents[2]
END_S: Final = 2 * SETTLE_S + 60.0
"""Open appends, last words and who waits for them each have their time."""

_SHOWN_CHARS: Final = 2000


class LoadProcess:
    """One load; nothing of it stays after `stop`.

    Args:
        on_progress: called with each line that it tells.
    """

    def __init__(
        self, options: LoadOptions, on_progress: Callable[[Mapping[str, Any]], None]
    ) -> None:
        self._options = options
        self._on_progress = on_progress
        self._log_file = Path(options.folder) / f"{options.part}.log"
        self._told: dict[str, Any] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._follower: asyncio.Task[None] | None = None

    @property
    def last_ack_ns(self) -> dict[str, int]:
        """When each log last acknowledged; 0: never."""
        found: dict[str, int] = self._told.get("acked_ns", dict.fromkeys(self._options.logs, 0))
        return found

    @property
    def ends(self) -> dict[str, int]:
        """Where each log ends at least, by its acknowledgements."""
        found: dict[str, int] = self._told.get("ends", dict.fromkeys(self._options.logs, 0))
        return found

    @property
    def codes(self) -> dict[str, int]:
        """Why appends were not acknowledged."""
        found: dict[str, int] = self._told.get("codes", {})
        return found

    async def start(self, timeout_s: float) -> bool:
        """Whether every log acknowledges in time; `stop` is due whatever happens."""
        command = [sys.executable, "-m", "tests.chaos.load", format_options(self._options)]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        with self._log_file.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-IS", tether.__file__, str(os.getpid()), *command,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log,
                env=os.environ | {"PYTHONPATH": path}, start_new_session=True,
            )  # fmt: skip
        self._follower = asyncio.create_task(self._follow(self._process))
        return await comes_true(lambda: all(self.last_ack_ns.values()), timeout_s)

    async def finish(self) -> int:
        """Let it settle what is open, say its last words and end; its exit status.

        Raises:
            TimeoutError: it does not end.
        """
        assert self._process is not None and self._process.stdin is not None
        with suppress(BrokenPipeError, ConnectionResetError):
            self._process.stdin.write(b"finish\n")
            await self._process.stdin.drain()
        async with asyncio.timeout(END_S):
            status = await self._process.wait()
        if self._follower is not None:
            # What it told last has come when its output has ended.
            await self._follower
        return status

    async def stop(self) -> None:
        """Kill what still runs."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        if self._follower is not None:
            self._follower.cancel()

    def read_log(self) -> str:
        """The end of what it wrote to stderr."""
        return self._log_file.read_text(errors="replace")[-_SHOWN_CHARS:]

    async def _follow(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            self._told = orjson.loads(line)
            self._on_progress(self._told)
