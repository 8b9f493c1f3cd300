"""Admin routes of a sequencer about repair; who is not the auditor redirects to who is (307).

Called by `service`. Source: docs/protocol/repair.md "Asking".
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from duramen.core.repair.disruption_grants import QUESTION_FIELDS
from duramen.core.rights.verbs import Verb
from duramen.errors import DuramenError
from duramen.runtime.public.answers import AnswerT
from duramen.runtime.public.repair_answers import (
    AcceptedLossAnswer,
    AuditedBookiesAnswer,
    DisruptionAnswer,
    DisruptionsAnswer,
    DutyAnswer,
    EndedDisruptionAnswer,
    RebalanceAnswer,
    RebalancePlanAnswer,
    RenewedDisruptionAnswer,
    RepairAnswer,
    StandingAnswer,
    TakenDisruptionAnswer,
)
from duramen.runtime.rest import parse_object, read_body
from duramen.runtime.rights.route_verbs import needs
from duramen.runtime.stores.metadata_store import MetadataError
from duramen.runtime.turning.addresses import find_next_url
from duramen.units import KIB
from duramen.wire.metadata_json import MetadataJsonError
from duramen_sequencer.repair.operations import Answer, NotAuditorError, RepairOperations

_BODY_BYTES_MAX: Final = 4 * KIB

_FORM: Final[dict[str, Any]] = {
    "response_model_exclude_unset": True,
    # Weights and shares can be small: this says 1e-05, and a model that makes its own JSON 1e-5.
    "response_class": JSONResponse,
}
"""Of every route here: how its answer becomes JSON."""


def add_repair_routes(app: FastAPI, operations: RepairOperations) -> None:
    """Add `/v1/repair`, `/v1/repair/bookies`, `/v1/bookies/{id}/…`, `/v1/disruptions`,
    `/v1/rebalance`."""
    app.add_exception_handler(NotAuditorError, _redirect)

    @app.get("/v1/repair", **needs(Verb.OBSERVE), **_FORM)
    async def get_repair() -> RepairAnswer:
        return await _read(RepairAnswer, operations.show())

    @app.get("/v1/repair/bookies", **needs(Verb.OBSERVE), **_FORM)
    async def get_repair_bookies() -> AuditedBookiesAnswer:
        return await _read(AuditedBookiesAnswer, operations.list_bookies())

    _add_bookie_routes(app, operations)
    _add_disruption_routes(app, operations)
    _add_rebalance_routes(app, operations)


def _add_bookie_routes(app: FastAPI, operations: RepairOperations) -> None:
    @app.get("/v1/bookies/{bookie}/disruption", **needs(Verb.OBSERVE), **_FORM)
    async def get_disruption(bookie: str, kind: str) -> DisruptionAnswer:
        return await _read(DisruptionAnswer, operations.judge_disruption(bookie, kind))

    @app.post("/v1/bookies/{bookie}/drain", **needs(Verb.OPERATE), **_FORM)
    async def post_drain(bookie: str) -> DutyAnswer:
        return await _read(DutyAnswer, operations.drain(bookie))

    @app.post("/v1/bookies/{bookie}/cancel-drain", **needs(Verb.OPERATE), **_FORM)
    async def post_cancel_drain(bookie: str) -> DutyAnswer:
        return await _read(DutyAnswer, operations.cancel_drain(bookie))

    @app.post("/v1/bookies/{bookie}/accept-loss", **needs(Verb.OPERATE), **_FORM)
    async def post_accept_loss(bookie: str, request: Request) -> AcceptedLossAnswer:
        data = await read_body(request, _BODY_BYTES_MAX, announced=None)
        body = parse_object(data, ("incarnation",))
        return await _read(AcceptedLossAnswer, operations.accept_loss(bookie, body))


def _add_disruption_routes(app: FastAPI, operations: RepairOperations) -> None:
    @app.get("/v1/disruptions", **needs(Verb.OBSERVE), **_FORM)
    async def get_disruptions() -> DisruptionsAnswer:
        return await _read(DisruptionsAnswer, operations.list_disruptions())

    @app.get("/v1/disruptions/standing", **needs(Verb.OBSERVE), **_FORM)
    async def get_standing() -> StandingAnswer:
        return await _read(StandingAnswer, operations.show_standing())

    @app.post("/v1/disruptions", **needs(Verb.OPERATE), **_FORM)
    async def post_disruption(request: Request) -> TakenDisruptionAnswer:
        data = await read_body(request, _BODY_BYTES_MAX, announced=None)
        body = parse_object(data, QUESTION_FIELDS)
        return await _read(TakenDisruptionAnswer, operations.take_disruption(body))

    @app.post("/v1/disruptions/{token}/renew", **needs(Verb.OPERATE), **_FORM)
    async def post_renewal(token: str) -> RenewedDisruptionAnswer:
        return await _read(RenewedDisruptionAnswer, operations.renew_disruption(token))

    @app.delete("/v1/disruptions/{token}", **needs(Verb.OPERATE), **_FORM)
    async def delete_disruption(token: str) -> EndedDisruptionAnswer:
        return await _read(EndedDisruptionAnswer, operations.end_disruption(token))


def _add_rebalance_routes(app: FastAPI, operations: RepairOperations) -> None:
    @app.get("/v1/rebalance", **needs(Verb.OBSERVE), **_FORM)
    async def get_rebalance() -> RebalanceAnswer:
        return await _read(RebalanceAnswer, operations.show_rebalance())

    @app.post("/v1/rebalance", **needs(Verb.OPERATE), **_FORM)
    async def post_rebalance(request: Request) -> RebalanceAnswer | RebalancePlanAnswer:
        data = await read_body(request, _BODY_BYTES_MAX, announced=None)
        body: dict[str, Any] = parse_object(data, ("dry_run", "tolerance")) if data else {}
        if body.get("dry_run"):
            return await _read(RebalancePlanAnswer, operations.start_rebalance(body))
        return await _read(RebalanceAnswer, operations.start_rebalance(body))

    @app.delete("/v1/rebalance", **needs(Verb.OPERATE), **_FORM)
    async def delete_rebalance() -> RebalanceAnswer:
        return await _read(RebalanceAnswer, operations.stop_rebalance())


async def _read(model: type[AnswerT], work: Awaitable[Answer]) -> AnswerT:
    try:
        return model.model_validate(await work)
    except MetadataError as error:
        raise DuramenError("metadata_unavailable", f"ZooKeeper: {error}") from error
    except MetadataJsonError as error:
        raise DuramenError("internal", str(error)) from error


async def _redirect(request: Request, error: Exception) -> Response:
    assert isinstance(error, NotAuditorError), error
    query = f"?{request.url.query}" if request.url.query else ""
    # Who came by TLS goes on by TLS, where the auditor has both.
    base = find_next_url(error.holder, "admin", request.url.scheme) or ""
    location = f"{base}{request.url.path}{query}"
    return Response(status_code=307, headers={"Location": location})
