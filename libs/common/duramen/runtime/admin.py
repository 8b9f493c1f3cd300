"""The admin application that every service has: probes, metrics, statistics, configuration, stop.

FastAPI on uvicorn over HTTP/1.1, so that probes and Prometheus never queue behind data. The role's
own routes are added by the service. Source: docs/protocol/admin.md "Every service".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import prometheus_client
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict

from duramen import __version__
from duramen.core.rights.verbs import Verb
from duramen.errors import DuramenError
from duramen.runtime.credentials.principals import CHALLENGE
from duramen.runtime.edge.document_page import (
    DOCS_PATH,
    make_document_endpoint,
    make_page_endpoint,
)
from duramen.runtime.edge.negotiation import Negotiation
from duramen.runtime.rights.route_verbs import OF_ANYBODY, list_verbs, needs
from duramen.runtime.role import RoleService, ServiceOptions
from duramen.runtime.turning.tally import RefusalTally, WouldRefuseAnswer

_DOCUMENT_PATH = "/openapi.json"
_PROBLEM = "application/problem+json"


class Health(BaseModel):
    """What the process is about."""

    status: Literal["ok", "stopping"]


class Readiness(BaseModel):
    """Whether the process serves its role; with status 503: it does not."""

    ready: bool


class Statistics(BaseModel):
    """What each part of the service counts; parts add members freely, so none is promised."""

    model_config = ConfigDict(extra="allow")


def make_admin_app(
    service: RoleService,
    options: ServiceOptions,
    stop: Callable[[], None],
    tally: RefusalTally | None = None,
) -> FastAPI:
    """Build the admin application around a service.

    Args:
        stop: begins the clean stop of the process and returns at once.
        tally: what the process would refuse; None: it refuses, or asks nobody.

    Raises:
        StartRefusedError: a route of the service has no verb.
    """
    title = f"Duramen {options.role} administration"
    # The framework's pages load scripts from elsewhere, and its routes have no verb.
    app = FastAPI(title=title, version=__version__, openapi_url=None)
    add_problem_handler(app)
    app.add_middleware(Negotiation)

    @app.get("/healthz", **OF_ANYBODY)
    async def get_health() -> Health:
        return Health(status="ok")

    @app.get("/readyz", **OF_ANYBODY)
    async def get_readiness(response: Response) -> Readiness:
        is_ready = service.is_ready()
        response.status_code = 200 if is_ready else 503
        return Readiness(ready=is_ready)

    @app.get("/metrics", **needs(Verb.OBSERVE))
    async def get_metrics() -> Response:
        return Response(
            prometheus_client.generate_latest(), media_type=prometheus_client.CONTENT_TYPE_LATEST
        )

    @app.get("/v1/statistics", **needs(Verb.OBSERVE))
    async def get_statistics() -> Statistics:
        return Statistics(**service.statistics())

    @app.get("/v1/config", **needs(Verb.OBSERVE))
    async def get_config() -> ServiceOptions:
        return options

    @app.post("/v1/drain-and-stop", **needs(Verb.OPERATE), status_code=202)
    async def drain_and_stop() -> Health:
        stop()
        return Health(status="stopping")

    @app.get("/v1/security/would-refuse", **needs(Verb.OBSERVE))
    async def get_would_refuse() -> WouldRefuseAnswer:
        if tally is None:
            return WouldRefuseAnswer(security=options.security, rows=None, forgotten=0)
        return tally.describe(options.security)

    service.add_admin_routes(app)
    list_verbs(app)
    document = app.openapi()
    for path, endpoint in (
        (_DOCUMENT_PATH, make_document_endpoint(document)),
        (DOCS_PATH, make_page_endpoint(document, _DOCUMENT_PATH)),
    ):
        app.add_api_route(path, endpoint, include_in_schema=False, **needs(Verb.OBSERVE))
    return app


def add_problem_handler(app: FastAPI) -> None:
    """Answer every DuramenError as RFC 9457 problem+json with its status and retry advice."""

    @app.exception_handler(DuramenError)
    async def answer_problem(_request: Request, error: DuramenError) -> Response:
        return problem_response(error)


def problem_response(error: DuramenError) -> Response:
    """The problem+json answer to an error."""
    problem = error.problem()
    headers = {}
    if "retry_after_ms" in problem:
        headers["Retry-After"] = str(-(-problem["retry_after_ms"] // 1000))
    if error.code == "unauthenticated":
        headers["WWW-Authenticate"] = CHALLENGE
    return JSONResponse(
        problem, status_code=error.kind.status, media_type=_PROBLEM, headers=headers
    )
