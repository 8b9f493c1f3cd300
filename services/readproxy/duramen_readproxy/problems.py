"""Every error of the public port as RFC 9457 problem+json: ours, FastAPI's, and the unforeseen.

The tail travels in the problem of a position beyond it. Wrong paths and methods keep their HTTP
status (404, 405) under the code `invalid_argument`: they are no state of a log.

Installed by `rest.make_app`. Source: 08-interfaces "Answers".
"""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from duramen.errors import DuramenError
from duramen.runtime.admin import problem_response
from duramen_readproxy.positions import BeyondTailError

_LOG = logging.getLogger(__name__)


def add_problem_handlers(app: FastAPI) -> None:
    """Answer every error of the application as a problem."""

    @app.exception_handler(DuramenError)
    async def answer_error(_request: Request, error: DuramenError) -> Response:
        if isinstance(error, BeyondTailError):
            problem = {**error.problem(), "tail": error.tail.spell()}
            return _problem(problem, error.kind.status)
        return problem_response(error)

    @app.exception_handler(RequestValidationError)
    async def answer_validation(_request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        field = str(first["loc"][-1]) if first["loc"] else None
        return problem_response(DuramenError("invalid_argument", first["msg"], field=field))

    @app.exception_handler(HTTPException)
    async def answer_http(request: Request, error: HTTPException) -> Response:
        detail = {
            404: f"there is nothing at {request.url.path}",
            405: f"{request.method} is not served at {request.url.path}",
        }.get(error.status_code, str(error.detail))
        problem = DuramenError("invalid_argument", detail).problem()
        problem["status"] = error.status_code
        return _problem(problem, error.status_code, dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def answer_mistake(request: Request, error: Exception) -> Response:
        _LOG.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return problem_response(DuramenError("internal", "the read proxy made a mistake"))


def _problem(
    problem: dict[str, object], status: int, headers: dict[str, str] | None = None
) -> Response:
    return JSONResponse(
        problem, status_code=status, media_type="application/problem+json", headers=headers
    )
