"""`GET /v1/cluster/journals`: what waits at the journal of each bookie that is there now.

Every bookie of `available` is asked on its own admin port (`/v1/journal`), by the proxy's identity
if it has one; one that does not answer in time, or not as a bookie does, is named as silent. Only
reading, and only while somebody looks (`duramen top`): nothing is followed or remembered.

Called by `service` (admin port). Source: docs/protocol/placement.md "Places and regions, live".
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from fastapi import FastAPI

from duramen.core.rights.verbs import Verb
from duramen.errors import DuramenError
from duramen.runtime.http_client import PeerError
from duramen.runtime.public.cluster_answers import BookieJournalAnswer, JournalsAnswer
from duramen.runtime.rights.route_verbs import needs
from duramen.runtime.security.admin_calls import AdminPortCalls
from duramen.runtime.security.process_security import ProcessSecurity
from duramen.runtime.stores.metadata_store import MetadataError, MetadataStore, Rejected
from duramen.wire.metadata_json import MetadataJsonError, Paths, read_node

_ANSWER_S: Final = 2.0
_IN_FLIGHT_MAX: Final = 16


class JournalCalls:
    """Questions to the bookies that are there."""

    def __init__(
        self, store: MetadataStore, paths: Paths, security: ProcessSecurity | None
    ) -> None:
        self._store = store
        self._security = security
        self._parent = paths.available

    async def ask_all(self) -> JournalsAnswer:
        """The journals and the silent, both by id.

        Raises:
            DuramenError: `metadata_unavailable`: who is there is not known.
        """
        try:
            nodes = await self._find()
        except MetadataError as error:
            raise DuramenError("metadata_unavailable", f"ZooKeeper: {error}") from error
        room = asyncio.Semaphore(_IN_FLIGHT_MAX)
        calls = AdminPortCalls(self._security)

        async def ask(name: str, node: Mapping[str, Any]) -> BookieJournalAnswer | None:
            async with room:
                return await _ask(calls, name, node)

        try:
            answers = await asyncio.gather(*(ask(name, node) for name, node in nodes.items()))
        finally:
            await calls.close()
        found = list(zip(nodes, answers, strict=True))
        return JournalsAnswer(
            journals=[journal for _, journal in found if journal],
            silent=[name for name, journal in found if not journal],
        )

    async def _find(self) -> dict[str, Mapping[str, Any]]:
        """Bookie → its fields, by id; a node that cannot be read is as silent as its bookie."""
        nodes: dict[str, Mapping[str, Any]] = {}
        for name in sorted(await self._store.children(self._parent) or ()):
            try:
                node = await self._store.get(f"{self._parent}/{name}")
            except Rejected:
                nodes[name] = {}
                continue
            if node is None:
                continue  # It went between the two reads.
            try:
                nodes[name] = read_node(node.data)
            except MetadataJsonError:
                nodes[name] = {}
        return nodes


def add_journal_routes(app: FastAPI, journals: JournalCalls) -> None:
    """Add the route to the admin application."""

    @app.get("/v1/cluster/journals", **needs(Verb.OBSERVE), response_model_exclude_unset=True)
    async def get_journals() -> JournalsAnswer:
        return await journals.ask_all()


async def _ask(
    calls: AdminPortCalls, name: str, node: Mapping[str, Any]
) -> BookieJournalAnswer | None:
    try:
        async with asyncio.timeout(_ANSWER_S):
            told = await calls.ask_node(node, "/v1/journal")
        return BookieJournalAnswer.model_validate({"bookie": name, **told})
    except (PeerError, TimeoutError, ValueError):
        return None  # ValueError: this is no journal
