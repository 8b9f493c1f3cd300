"""`/v1/cluster/disruptions`: who may stop what, as the auditor says.

Called by `service` (admin port). Source: docs/protocol/disruption.md "Asking".
"""

from __future__ import annotations

from fastapi import FastAPI, Request

from duramen.core.repair.disruption_grants import QUESTION_FIELDS
from duramen.core.rights.verbs import Verb
from duramen.runtime.public.answers import read_answer
from duramen.runtime.public.repair_answers import (
    DisruptionsAnswer,
    EndedDisruptionAnswer,
    RenewedDisruptionAnswer,
    StandingAnswer,
    TakenDisruptionAnswer,
)
from duramen.runtime.rest import parse_object, read_body
from duramen.runtime.rights.route_verbs import needs
from duramen_writeproxy.cluster.repair import BODY_BYTES_MAX, AuditorCalls


def add_disruption_routes(app: FastAPI, auditor: AuditorCalls) -> None:
    """Add the routes to the admin application."""

    @app.get("/v1/cluster/disruptions", **needs(Verb.OBSERVE))
    async def get_disruptions() -> DisruptionsAnswer:
        return read_answer(DisruptionsAnswer, await auditor.ask("disruptions"))

    @app.get("/v1/cluster/disruptions/standing", **needs(Verb.OBSERVE))
    async def get_standing() -> StandingAnswer:
        return read_answer(StandingAnswer, await auditor.ask("standing"))

    @app.post("/v1/cluster/disruptions", **needs(Verb.OPERATE))
    async def post_disruption(request: Request) -> TakenDisruptionAnswer:
        data = await read_body(request, BODY_BYTES_MAX, announced=None)
        body = parse_object(data, QUESTION_FIELDS) if data else {}
        return read_answer(TakenDisruptionAnswer, await auditor.ask("take_disruption", **body))

    @app.post("/v1/cluster/disruptions/{token}/renew", **needs(Verb.OPERATE))
    async def post_renewal(token: str) -> RenewedDisruptionAnswer:
        told = await auditor.ask("renew_disruption", token=token)
        return read_answer(RenewedDisruptionAnswer, told)

    @app.delete("/v1/cluster/disruptions/{token}", **needs(Verb.OPERATE))
    async def delete_disruption(token: str) -> EndedDisruptionAnswer:
        told = await auditor.ask("end_disruption", token=token)
        return read_answer(EndedDisruptionAnswer, told)
