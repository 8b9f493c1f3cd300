"""`/v1/cluster/…` about placement on the write proxy's admin port: bookies, regions, checks.

Routes only: each reads its request strictly and asks a sequencer, any one that answers; the calls
may be sent again, so nothing is lost with one that dies.

Called by `service`. Source: docs/protocol/placement.md "Places and regions, live".
"""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI, Request

from duramen.core.rights.verbs import Verb
from duramen.runtime.public.answers import read_answer
from duramen.runtime.public.cluster_answers import (
    BookiesAnswer,
    LocatedAnswer,
    PlacementCheckAnswer,
    RegionsAnswer,
)
from duramen.runtime.rest import parse_object, read_body
from duramen.runtime.rights.route_verbs import needs
from duramen.texts import check_log_name, check_namespace
from duramen.units import KIB
from duramen_writeproxy.logs.creation import Creator
from duramen_writeproxy.logs.names import NameCache

_BODY_BYTES_MAX: Final = 8 * KIB
_PLACE_FIELDS: Final = ("region", "rack", "storage_capacity", "weight", "from_flags")
"""`weight` is the older name of `storage_capacity`."""


def add_placement_routes(app: FastAPI, names: NameCache, creator: Creator) -> None:
    """Add the routes to the admin application."""

    @app.get("/v1/cluster/bookies", **needs(Verb.OBSERVE))
    async def get_bookies() -> BookiesAnswer:
        told = await creator.ask("", {"op": "bookies"}, ("bookies",))
        return read_answer(BookiesAnswer, told)

    @app.patch("/v1/cluster/bookies/{bookie}", **needs(Verb.OPERATE))
    async def patch_bookie(bookie: str, request: Request) -> LocatedAnswer:
        change = await _read(request, _PLACE_FIELDS)
        told = await creator.ask("", {"op": "locate", "id": bookie, **change}, ("id",))
        return read_answer(LocatedAnswer, told)

    @app.get("/v1/cluster/regions", **needs(Verb.OBSERVE))
    async def get_regions() -> RegionsAnswer:
        told = await creator.ask("", {"op": "regions"}, ("closed", "regions"))
        return read_answer(RegionsAnswer, told)

    @app.put("/v1/cluster/regions", **needs(Verb.OPERATE))
    async def put_regions(request: Request) -> RegionsAnswer:
        body = await _read(request, ("closed",))
        message = {"op": "close_regions", "closed": body.get("closed")}
        told = await creator.ask("", message, ("closed", "regions"))
        return read_answer(RegionsAnswer, told)

    @app.get(
        "/v1/cluster/logs/{namespace}/{log}/placement",
        **needs(Verb.OBSERVE),
        response_model_exclude_unset=True,
    )
    async def get_placement(namespace: str, log: str) -> PlacementCheckAnswer:
        log_id = await names.find(check_namespace(namespace), check_log_name(log))
        message = {"op": "check_placement", "log_id": str(log_id)}
        told = await creator.ask(f"{namespace}/{log}", message, ("violations", "shown"))
        return read_answer(PlacementCheckAnswer, told)


async def _read(request: Request, known: tuple[str, ...]) -> dict[str, Any]:
    return parse_object(await read_body(request, _BODY_BYTES_MAX, announced=None), known)
