"""`GET /v1/cluster/would-refuse`: what each node would refuse with `--security on`, gathered now.

Every node that is registered is asked on its own admin port. One that does not answer, or is of a
version that knows no such route, is named as silent, one that turns nothing as having no table.

Called by `service` (admin port). Source: docs/protocol/turning-on.md "What is judged, and only
counted".
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from duramen.core.rights.verbs import Verb
from duramen.runtime.rights.route_verbs import needs
from duramen.runtime.security.process_security import ProcessSecurity
from duramen.runtime.stores.metadata_store import MetadataStore
from duramen.runtime.turning.fitting import find_parents
from duramen.runtime.turning.tally import WouldRefuseAnswer
from duramen.wire.metadata_json import Paths
from duramen_writeproxy.cluster.node_answers import NodeQuestions, RegisteredNode


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
        self._roles = {parent: role for role, parent in find_parents(paths).items()}
        self._nodes = NodeQuestions(store, security, list(self._roles))

    async def gather(self) -> ClusterWouldRefuse:
        """What all say.

        Raises:
            DuramenError: `metadata_unavailable`: who is there is not known.
        """
        found = await self._nodes.ask_all("/v1/security/would-refuse", self._read)
        return ClusterWouldRefuse(
            nodes=[answer for _, answer in found if answer is not None],
            silent=[node.name for node, answer in found if answer is None],
        )

    def _read(self, node: RegisteredNode, told: dict[str, Any]) -> NodeWouldRefuse:
        role = self._roles[node.parent]
        return NodeWouldRefuse.model_validate({**told, "node": node.name, "role": role})


def add_security_routes(app: FastAPI, report: SecurityReport) -> None:
    """Add the route to the admin application."""

    @app.get("/v1/cluster/would-refuse", **needs(Verb.OBSERVE))
    async def get_cluster_would_refuse() -> ClusterWouldRefuse:
        return await report.gather()
