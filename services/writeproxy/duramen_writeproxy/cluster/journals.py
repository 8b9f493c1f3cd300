"""`GET /v1/cluster/journals`: what waits at the journal of each bookie that is there now.

Every bookie of `available` is asked on its own admin port (`/v1/journal`); one that does not answer
as a bookie does is named as silent. Only while somebody looks (`duramen top`).

Called by `service` (admin port). Source: docs/protocol/placement.md "Places and regions, live".
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from duramen.core.rights.verbs import Verb
from duramen.runtime.public.cluster_answers import BookieJournalAnswer, JournalsAnswer
from duramen.runtime.rights.route_verbs import needs
from duramen.runtime.security.process_security import ProcessSecurity
from duramen.runtime.stores.metadata_store import MetadataStore
from duramen.wire.metadata_json import Paths
from duramen_writeproxy.cluster.node_answers import NodeQuestions, RegisteredNode


class JournalCalls:
    """Questions to the bookies that are there."""

    def __init__(
        self, store: MetadataStore, paths: Paths, security: ProcessSecurity | None
    ) -> None:
        self._bookies = NodeQuestions(store, security, [paths.available])

    async def ask_all(self) -> JournalsAnswer:
        """The journals and the silent, both by id.

        Raises:
            DuramenError: `metadata_unavailable`: who is there is not known.
        """
        found = await self._bookies.ask_all("/v1/journal", _read)
        return JournalsAnswer(
            journals=[journal for _, journal in found if journal is not None],
            silent=[node.name for node, journal in found if journal is None],
        )


def add_journal_routes(app: FastAPI, journals: JournalCalls) -> None:
    """Add the route to the admin application."""

    @app.get("/v1/cluster/journals", **needs(Verb.OBSERVE), response_model_exclude_unset=True)
    async def get_journals() -> JournalsAnswer:
        return await journals.ask_all()


def _read(node: RegisteredNode, told: dict[str, Any]) -> BookieJournalAnswer:
    return BookieJournalAnswer.model_validate({**told, "bookie": node.name})
