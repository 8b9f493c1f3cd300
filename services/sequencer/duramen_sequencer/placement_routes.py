"""Admin routes of a sequencer about placement: bookies and regions, as `/v1/cluster/…`.

The same as the control calls of `placement_operations`, for a person with a browser or curl at one
sequencer; tools use the write proxy's, which asks a sequencer that is there.

Called by `service`. Source: docs/protocol/placement.md "Places and regions, live".
"""

from __future__ import annotations

from collections.abc import Awaitable

from fastapi import FastAPI, Request

from duramen.core.rights.verbs import Verb
from duramen.errors import DuramenError
from duramen.runtime.public.cluster_answers import BookiesAnswer, RegionsAnswer
from duramen.runtime.rest import parse_object, read_body
from duramen.runtime.rights.route_verbs import needs
from duramen.runtime.stores.metadata_store import MetadataError
from duramen.units import KIB
from duramen.wire.metadata_json import MetadataJsonError
from duramen_sequencer.placement_operations import PlacementOperations

_BODY_BYTES_MAX = 8 * KIB


def add_placement_routes(app: FastAPI, operations: PlacementOperations) -> None:
    """`GET /v1/cluster/bookies`, `GET` and `PUT /v1/cluster/regions`."""

    @app.get("/v1/cluster/bookies", **needs(Verb.OBSERVE))
    async def get_bookies() -> BookiesAnswer:
        return await operations.list_bookies({})

    @app.get("/v1/cluster/regions", **needs(Verb.OBSERVE))
    async def get_regions() -> RegionsAnswer:
        return await _translate(operations.show_regions({}))

    @app.put("/v1/cluster/regions", **needs(Verb.OPERATE))
    async def put_regions(request: Request) -> RegionsAnswer:
        body = await read_body(request, _BODY_BYTES_MAX, announced=None)
        return await _translate(operations.close_regions(parse_object(body, ("closed",))))


async def _translate(answer: Awaitable[RegionsAnswer]) -> RegionsAnswer:
    try:
        return await answer
    except MetadataError as error:
        raise DuramenError("metadata_unavailable", f"ZooKeeper: {error}") from error
    except MetadataJsonError as error:
        raise DuramenError("internal", str(error)) from error
