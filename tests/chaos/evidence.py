"""What a run is to be blamed for while it goes on: the first violation ends its faults.

A violation is final. Whoever sees one (the load, the hands at the disks, the checks at the end)
notes it here; the run strikes no more then, makes peace, reads what there is, and fails.

Called by `run`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from tests.chaos.judge import Violation


class Evidence:
    """Violations of one run, beside those that the judge finds in the histories."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self._is_there = asyncio.Event()

    @property
    def is_there(self) -> bool:
        """Whether anything was noted: the run has failed."""
        return self._is_there.is_set()

    def note(self, *violations: Violation) -> None:
        """Keep what was seen, each once."""
        for violation in violations:
            if violation not in self.violations:
                self.violations.append(violation)
                self._is_there.set()

    def note_told(self, progress: Mapping[str, Any]) -> None:
        """Keep what the load tells of in a line of its progress."""
        self.note(*(Violation(*told) for told in progress.get("violations", ())))

    async def wait_unless(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do something to its end, or until something is noted; whether it came to its end."""
        task = asyncio.ensure_future(work)
        seen = asyncio.ensure_future(self._is_there.wait())
        try:
            await asyncio.wait((task, seen), return_when=asyncio.FIRST_COMPLETED)
            is_done = task.done()
            if is_done:
                await task
            return is_done
        finally:
            for one in (task, seen):
                one.cancel()
            await asyncio.gather(task, seen, return_exceptions=True)
