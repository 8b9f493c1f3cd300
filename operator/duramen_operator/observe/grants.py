"""Asks a cluster for all grants, once it has said that it judges calls by them.

Whether it does is asked of the process that answers, not read from the LogCluster: while a cluster
is changed over, what runs is what counts. What is refused or not answered is kept as a problem, so
that grants which cannot be read hide no log.

Called by the worker. What it gives is described in `plan.seen_grants`. Source:
docs/protocol/rights.md "Calls and tools".
"""

from __future__ import annotations

from duramen.errors import DuramenError
from duramen.runtime.http_client import PeerError
from duramen_operator.observe.questions import AdminClient
from duramen_operator.plan.observed import Json


async def observe_grants(public: AdminClient, admin: AdminClient) -> Json:
    """What the cluster says of its grants.

    Args:
        public, admin: the write proxy's two ports.
    """
    try:
        settings = await admin.get_json("/v1/config")
        if settings.get("security") == "none":
            return {"is_judged": False}
        return await public.get_json("/v1/grants", {"scope": "*"})
    except DuramenError as error:
        return {"problem": {"code": error.code, "detail": error.detail}}
    except PeerError as error:
        return {"problem": {"code": "unreachable", "detail": str(error)}}
