"""Admin route for work on ZooKeeper: suspend rolling and ensemble changes everywhere, or resume.

The answer says of each sequencer whether it obeys and how many of its logs are still in the middle
of a change, so that whoever stops ZooKeeper next knows that nothing waits for it.

Called by `service` (admin port). Source: docs/protocol/write.md "Roll", docs/protocol/rest.md.
"""

from __future__ import annotations

from typing import Final

from fastapi import FastAPI, Request
from pydantic import BaseModel

from duramen.core.rights.verbs import Verb
from duramen.errors import DuramenError
from duramen.runtime.rest import parse_object, read_body
from duramen.runtime.rights.route_verbs import needs
from duramen.units import KIB
from duramen_writeproxy.logs.creation import Creator

_BODY_BYTES_MAX: Final = 1 * KIB


class MaintenanceAnswer(BaseModel):
    """Whether changes are suspended, and how many of each sequencer are still under way."""

    rolling_suspended: bool
    is_settled: bool
    under_way: dict[str, int | None]
    """By sequencer; null: it does not answer, so that nothing is known of it."""


def add_maintenance_routes(app: FastAPI, creator: Creator) -> None:
    """`PUT /v1/cluster/maintenance` with `{"rolling_suspended": true | false}`."""

    @app.put("/v1/cluster/maintenance", **needs(Verb.OPERATE))
    async def put_maintenance(request: Request) -> MaintenanceAnswer:
        body = parse_object(await read_body(request, _BODY_BYTES_MAX, announced=None))
        wanted = body.get("rolling_suspended")
        if list(body) != ["rolling_suspended"] or not isinstance(wanted, bool):
            detail = "expected an object with rolling_suspended: true or false, and nothing else"
            raise DuramenError("invalid_argument", detail, field="rolling_suspended")
        under_way = await creator.suspend_rolling(is_suspended=wanted)
        return MaintenanceAnswer(
            rolling_suspended=wanted,
            is_settled=bool(under_way) and all(count == 0 for count in under_way.values()),
            under_way=under_way,
        )
