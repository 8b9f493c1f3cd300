"""Admin routes of a sequencer about repair; who is not the auditor redirects to who is (307).

Called by `service`. Source: docs/protocol/repair.md "Asking".
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from duramen.errors import DuramenError
from duramen.runtime.rest import parse_object, read_body
from duramen.runtime.stores.metadata_store import MetadataError
from duramen.units import KIB
from duramen.wire.metadata_json import MetadataJsonError
from duramen_sequencer.repair.operations import Answer, NotAuditorError, RepairOperations

_BODY_BYTES_MAX: Final = 4 * KIB


def add_repair_routes(app: FastAPI, operations: RepairOperations) -> None:
    """Add `/v1/repair`, `/v1/repair/bookies`, `/v1/bookies/{id}/…`, `/v1/rebalance`."""

    @app.get("/v1/repair")
    async def get_repair(request: Request) -> Response:
        return await _answer(request, operations.show())

    @app.get("/v1/repair/bookies")
    async def get_repair_bookies(request: Request) -> Response:
        return await _answer(request, operations.list_bookies())

    @app.get("/v1/bookies/{bookie}/disruption")
    async def get_disruption(bookie: str, kind: str, request: Request) -> Response:
        return await _answer(request, operations.judge_disruption(bookie, kind))

    @app.post("/v1/bookies/{bookie}/drain")
    async def post_drain(bookie: str, request: Request) -> Response:
        return await _answer(request, operations.drain(bookie))

    @app.post("/v1/bookies/{bookie}/cancel-drain")
    async def post_cancel_drain(bookie: str, request: Request) -> Response:
        return await _answer(request, operations.cancel_drain(bookie))

    @app.post("/v1/bookies/{bookie}/accept-loss")
    async def post_accept_loss(bookie: str, request: Request) -> Response:
        data = await read_body(request, _BODY_BYTES_MAX, announced=None)
        body = parse_object(data, ("incarnation",))
        return await _answer(request, operations.accept_loss(bookie, body))

    @app.get("/v1/rebalance")
    async def get_rebalance(request: Request) -> Response:
        return await _answer(request, operations.show_rebalance())

    @app.post("/v1/rebalance")
    async def post_rebalance(request: Request) -> Response:
        data = await read_body(request, _BODY_BYTES_MAX, announced=None)
        body: dict[str, Any] = parse_object(data, ("dry_run", "tolerance")) if data else {}
        return await _answer(request, operations.start_rebalance(body))

    @app.delete("/v1/rebalance")
    async def delete_rebalance(request: Request) -> Response:
        return await _answer(request, operations.stop_rebalance())


async def _answer(request: Request, work: Awaitable[Answer]) -> Response:
    try:
        return JSONResponse(await work)
    except NotAuditorError as error:
        query = f"?{request.url.query}" if request.url.query else ""
        location = f"{error.holder.get('admin_url', '')}{request.url.path}{query}"
        return Response(status_code=307, headers={"Location": location})
    except MetadataError as error:
        raise DuramenError("metadata_unavailable", f"ZooKeeper: {error}") from error
    except MetadataJsonError as error:
        raise DuramenError("internal", str(error)) from error
