"""A cluster's own API as a worker uses it: one look a pass, and the calls of a plan.

Puts `observe.admin` and `apply.admin_calls` behind the worker's port. A cluster that does not
answer is an answer, too: nothing is known of it then, which is not the same as nothing being there.

Called by `running`, once for each cluster. Source: docs/protocol/rest.md.
"""

import asyncio
from typing import Final

from duramen.errors import DuramenError
from duramen.runtime.http_client import PeerError
from duramen_operator.apply.admin_calls import ProxyCalls
from duramen_operator.observe.admin import observe_logs
from duramen_operator.observe.grants import observe_grants
from duramen_operator.plan.observed import AdminView, Json, Observed
from duramen_operator.plan.steps import Call

LOOK_S: Final = 60.0
"""All that is asked in one look; a cluster that takes longer is told to be unreachable."""


class ClusterAdmin:
    """The write proxies of one cluster."""

    def __init__(self, write_url: str, admin_url: str) -> None:
        self._calls = ProxyCalls(write_url, admin_url)
        self._write_url = write_url

    async def look(self, seen: Observed) -> AdminView:
        """What the cluster says of its bookies, and of what objects of ours are about."""
        try:
            async with asyncio.timeout(LOOK_S):
                return await self._look(seen)
        except TimeoutError:
            return AdminView(reason=f"{self._write_url} takes longer than {LOOK_S:g} s")
        except (PeerError, DuramenError) as error:
            return AdminView(reason=str(error))

    async def call(self, step: Call) -> None:
        """Make one call.

        Raises:
            CallRefused: it was refused, or its fate is open; doing it again is safe.
        """
        await self._calls.call(step)

    async def _look(self, seen: Observed) -> AdminView:
        found = await self._calls.admin.get_json("/v1/cluster/bookies")
        bookies: dict[str, Json] = {str(row["id"]): row for row in found["bookies"]}
        about = [
            item.body for kind in ("LogNamespace", "Log", "ArchivePolicy")
            for item in seen.list(kind)
        ]  # fmt: skip
        logs = await observe_logs(self._calls.public, self._calls.admin, about)
        return AdminView(
            is_reachable=True,
            reason="",
            bookies=bookies,
            namespaces=logs.namespaces,
            logs=logs.logs,
            holdings=await self._count_copies(),
            grants=await self._look_at_grants(seen),
        )

    async def _look_at_grants(self, seen: Observed) -> Json | None:
        """All of them, where an object is about one."""
        if not seen.list("LogGrant"):
            return None
        return await observe_grants(self._calls.public, self._calls.admin)

    async def _count_copies(self) -> dict[str, Json] | None:
        """What the auditor counted on each bookie; None until it has, or while there is none."""
        try:
            found = await self._calls.admin.get_json("/v1/cluster/repair/bookies")
        except (PeerError, DuramenError):
            return None
        return {str(row["bookie"]): row for row in found["bookies"]}
