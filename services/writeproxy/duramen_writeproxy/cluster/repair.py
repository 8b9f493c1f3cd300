"""`/v1/cluster/…` about repair: every question and request goes to the sequencer that audits.

Who that is stands in the node `auditor`, which is read for each call; a sequencer that is it no
longer says so, and the node is read again. All these requests may be sent twice.

Called by `service` (admin port). Source: docs/protocol/repair.md "Asking".
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from fastapi import FastAPI, Request

from duramen.core.rights.verbs import Verb
from duramen.errors import DuramenError
from duramen.runtime.public.answers import read_answer
from duramen.runtime.public.repair_answers import (
    AcceptedLossAnswer,
    AuditedBookiesAnswer,
    DisruptionAnswer,
    DutyAnswer,
    RebalanceAnswer,
    RebalancePlanAnswer,
    RepairAnswer,
)
from duramen.runtime.rest import parse_object, read_body
from duramen.runtime.rights.route_verbs import needs
from duramen.runtime.stores.metadata_store import MetadataError, MetadataStore
from duramen.units import KIB, SECOND
from duramen.wire.metadata_json import MetadataJsonError, Paths, read_node
from duramen_writeproxy.cluster.sequencers import Cluster

BODY_BYTES_MAX: Final = 4 * KIB
"""Of what the auditor is asked."""

_TIMEOUT_US: Final = 60 * SECOND
"""A disruption is judged on the nodes of every log: some 2,000 of them are read in a second."""

_TRIES: Final = 3
_PAUSE_S: Final = 0.3
"""Between two looks at who the auditor is: a new one is elected as soon as the old one's node is
gone."""


class AuditorCalls:
    """Calls to whichever sequencer is the auditor."""

    def __init__(self, store: MetadataStore, paths: Paths, cluster: Cluster) -> None:
        self._store = store
        self._path = paths.auditor
        self._cluster = cluster

    async def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """The auditor's answer.

        Raises:
            DuramenError: its refusal; `metadata_unavailable`: there is none now, or it cannot be
                found; `log_unavailable`, uncertain: it did not answer. Safe to repeat.
        """
        for attempt in range(_TRIES):
            if attempt:
                await asyncio.sleep(_PAUSE_S)
            name = await self._find()
            if name is None:
                continue
            answer = await self._cluster.calls.ask(name, {"op": op, **fields}, _TIMEOUT_US)
            if not isinstance(answer.get("auditor"), dict):
                return answer
        raise DuramenError(
            "metadata_unavailable", "no sequencer is the auditor now: try again in a second"
        )

    async def _find(self) -> str | None:
        try:
            stored = await self._store.get(self._path)
            return None if stored is None else str(read_node(stored.data)["sequencer"])
        except (MetadataError, MetadataJsonError, KeyError) as error:
            detail = f"the auditor is not known: {error!r}"
            raise DuramenError("metadata_unavailable", detail) from error


def add_repair_routes(app: FastAPI, auditor: AuditorCalls) -> None:
    """Add the routes to the admin application."""

    @app.get("/v1/cluster/repair", **needs(Verb.OBSERVE))
    async def get_repair() -> RepairAnswer:
        return read_answer(RepairAnswer, await auditor.ask("repair"))

    @app.get("/v1/cluster/repair/bookies", **needs(Verb.OBSERVE))
    async def get_repair_bookies() -> AuditedBookiesAnswer:
        return read_answer(AuditedBookiesAnswer, await auditor.ask("repair_bookies"))

    _add_bookie_routes(app, auditor)
    _add_rebalance_routes(app, auditor)


def _add_bookie_routes(app: FastAPI, auditor: AuditorCalls) -> None:
    @app.get("/v1/cluster/bookies/{bookie}/disruption", **needs(Verb.OBSERVE))
    async def get_disruption(bookie: str, kind: str) -> DisruptionAnswer:
        told = await auditor.ask("disruption", bookie=bookie, kind=kind)
        return read_answer(DisruptionAnswer, told)

    @app.post("/v1/cluster/bookies/{bookie}/drain", **needs(Verb.OPERATE))
    async def post_drain(bookie: str) -> DutyAnswer:
        return read_answer(DutyAnswer, await auditor.ask("drain", bookie=bookie))

    @app.post("/v1/cluster/bookies/{bookie}/cancel-drain", **needs(Verb.OPERATE))
    async def post_cancel_drain(bookie: str) -> DutyAnswer:
        return read_answer(DutyAnswer, await auditor.ask("cancel_drain", bookie=bookie))

    @app.post("/v1/cluster/bookies/{bookie}/accept-loss", **needs(Verb.OPERATE))
    async def post_accept_loss(bookie: str, request: Request) -> AcceptedLossAnswer:
        data = await read_body(request, BODY_BYTES_MAX, announced=None)
        body = parse_object(data, ("incarnation",)) if data else {}
        told = await auditor.ask("accept_loss", bookie=bookie, **body)
        return read_answer(AcceptedLossAnswer, told)


def _add_rebalance_routes(app: FastAPI, auditor: AuditorCalls) -> None:
    @app.get("/v1/cluster/rebalance", **needs(Verb.OBSERVE), response_model_exclude_unset=True)
    async def get_rebalance() -> RebalanceAnswer:
        return read_answer(RebalanceAnswer, await auditor.ask("rebalance"))

    @app.post("/v1/cluster/rebalance", **needs(Verb.OPERATE), response_model_exclude_unset=True)
    async def post_rebalance(request: Request) -> RebalanceAnswer | RebalancePlanAnswer:
        data = await read_body(request, BODY_BYTES_MAX, announced=None)
        body = parse_object(data, ("dry_run", "tolerance")) if data else {}
        told = await auditor.ask("start_rebalance", **body)
        if body.get("dry_run"):
            return read_answer(RebalancePlanAnswer, told)
        return read_answer(RebalanceAnswer, told)

    @app.delete("/v1/cluster/rebalance", **needs(Verb.OPERATE), response_model_exclude_unset=True)
    async def delete_rebalance() -> RebalanceAnswer:
        return read_answer(RebalanceAnswer, await auditor.ask("stop_rebalance"))
