"""`GET /v1/cluster/would-refuse`: what each node would refuse with `--security on`, gathered now.

Every node that is registered is asked on its own admin port, as `journals` asks bookies. One that
does not answer is named as silent, and one that turns nothing as having no table. Only reading.

Called by `service` (admin port). Source: docs/protocol/turning-on.md "What is judged, and only
counted".
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from fastapi import FastAPI
from pydantic import BaseModel

from duramen.core.rights.verbs import Verb
from duramen.errors import DuramenError
from duramen.runtime.http_client import PeerError
from duramen.runtime.rights.route_verbs import needs
from duramen.runtime.security.admin_calls import AdminPortCalls
from duramen.runtime.security.process_security import ProcessSecurity
from duramen.runtime.stores.metadata_store import MetadataError, MetadataStore, Rejected
from duramen.runtime.turning.fitting import find_parents
from duramen.runtime.turning.tally import WouldRefuseAnswer
from duramen.wire.metadata_json import MetadataJsonError, Paths, read_node

_ANSWER_S: Final = 2.0
_IN_FLIGHT_MAX: Final = 16


class NodeWouldRefuse(WouldRefuseAnswer):
    """What one node answers."""

    node: str
    role: str


class ClusterWouldRefuse(BaseModel):
    """Of all nodes that are registered, by role and name; `silent`: did not answer."""

    nodes: list[NodeWouldRefuse]
    silent: list[str]


class SecurityReport:
    """Questions to all nodes."""

    def __init__(
        self, store: MetadataStore, paths: Paths, security: ProcessSecurity | None
    ) -> None:
        self._store = store
        self._security = security
        self._parents = find_parents(paths)

    async def gather(self) -> ClusterWouldRefuse:
        """What all say.

        Raises:
            DuramenError: `metadata_unavailable`: who is there is not known.
        """
        try:
            nodes = await self._find()
        except MetadataError as error:
            raise DuramenError("metadata_unavailable", f"ZooKeeper: {error}") from error
        room = asyncio.Semaphore(_IN_FLIGHT_MAX)
        calls = AdminPortCalls(self._security)

        async def ask(role: str, name: str, fields: Mapping[str, Any]) -> NodeWouldRefuse | None:
            async with room:
                return await _ask(calls, role, name, fields)

        try:
            answers = await asyncio.gather(*(ask(*node) for node in nodes))
        finally:
            await calls.close()
        asked = list(zip(nodes, answers, strict=True))
        return ClusterWouldRefuse(
            nodes=[answer for _, answer in asked if answer is not None],
            silent=[name for (_, name, _), answer in asked if answer is None],
        )

    async def _find(self) -> list[tuple[str, str, Mapping[str, Any]]]:
        """Role, name and fields; a node that cannot be read is as silent as its process."""
        found: list[tuple[str, str, Mapping[str, Any]]] = []
        for role, parent in self._parents.items():
            for name in sorted(await self._store.children(parent) or ()):
                try:
                    node = await self._store.get(f"{parent}/{name}")
                    fields = None if node is None else read_node(node.data)
                except (Rejected, MetadataJsonError):
                    fields = {}
                if fields is not None:
                    found.append((role, name, fields))
        return found


def add_security_routes(app: FastAPI, report: SecurityReport) -> None:
    """Add the route to the admin application."""

    @app.get("/v1/cluster/would-refuse", **needs(Verb.OBSERVE))
    async def get_cluster_would_refuse() -> ClusterWouldRefuse:
        return await report.gather()


async def _ask(
    calls: AdminPortCalls, role: str, name: str, fields: Mapping[str, Any]
) -> NodeWouldRefuse | None:
    try:
        async with asyncio.timeout(_ANSWER_S):
            told = await calls.ask_node(fields, "/v1/security/would-refuse")
        return NodeWouldRefuse.model_validate({"node": name, "role": role, **told})
    except (PeerError, TimeoutError, ValueError):
        return None  # ValueError: an older process, which knows no such route
