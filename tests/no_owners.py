"""Owners that tell no LAC, for feeds whose readers learn all from bookies.

Used by the simulator and by the component tests of `duramen_readproxy.following`.
"""

from __future__ import annotations

from duramen.ids import LogId
from duramen.wire.sequencer_calls import LacWait, OpenLac


class NoOwners:
    """Nobody owns a log."""

    async def find(self, _log_id: LogId, /) -> str | None:
        return None

    async def wait_lac(self, _url: str, _wait: LacWait, /) -> OpenLac | None:
        raise AssertionError("nobody was found")
