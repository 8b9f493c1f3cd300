"""`/v1/cluster/…` on the write proxy's admin port: the whole cluster through one address.

Routes only: each reads its request strictly, asks `sequencers` and gives its answer.

Called by `service`. Source: docs/protocol/ownership.md "Through one address".
"""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI, Request

from duramen.core.ownership.balance import MOVE_COUNT_DEFAULT, MOVE_COUNT_MAX
from duramen.core.rights.verbs import Verb
from duramen.errors import DuramenError
from duramen.runtime.public.cluster_answers import (
    BalancedAnswer,
    HandedOverAnswer,
    MembersAnswer,
    OwnersAnswer,
    StoryAnswer,
    WeighedAnswer,
)
from duramen.runtime.rest import parse_object
from duramen.runtime.rights.route_verbs import needs
from duramen.texts import check_log_name, check_namespace
from duramen.units import KIB
from duramen_writeproxy.cluster.sequencers import Cluster

_BODY_BYTES_MAX: Final = 4 * KIB


def add_cluster_routes(app: FastAPI, cluster: Cluster) -> None:
    """Add the routes about ownership to the admin application."""

    @app.get("/v1/cluster/owners", **needs(Verb.OBSERVE))
    async def get_owners() -> OwnersAnswer:
        return await cluster.owners()

    @app.get("/v1/cluster/members", **needs(Verb.OBSERVE))
    async def get_members() -> MembersAnswer:
        return await cluster.members()

    @app.get(
        "/v1/cluster/logs/{namespace}/{log}/story",
        **needs(Verb.OBSERVE),
        response_model_exclude_unset=True,
    )
    async def get_story(namespace: str, log: str) -> StoryAnswer:
        return await cluster.story(check_namespace(namespace), check_log_name(log))

    @app.post("/v1/cluster/logs/{namespace}/{log}/hand-over", **needs(Verb.OPERATE))
    async def post_hand_over(namespace: str, log: str, request: Request) -> HandedOverAnswer:
        body = await _read_body(request, ("to",))
        to = body.get("to")
        if to is not None and not isinstance(to, str):
            raise DuramenError("invalid_argument", "to: the id of a sequencer", field="to")
        return await cluster.hand_over(check_namespace(namespace), check_log_name(log), to)

    @app.patch("/v1/cluster/sequencers/{name}", **needs(Verb.OPERATE))
    async def patch_sequencer(name: str, request: Request) -> WeighedAnswer:
        body = await _read_body(request, ("sequencer_weight",))
        return await cluster.weigh(name, body.get("sequencer_weight"))

    @app.post("/v1/cluster/balance", **needs(Verb.OPERATE), response_model_exclude_unset=True)
    async def post_balance(request: Request) -> BalancedAnswer:
        body = await _read_body(request, ("dry_run", "moves"))
        is_dry_run, moves = body.get("dry_run", False), body.get("moves", MOVE_COUNT_DEFAULT)
        if not isinstance(is_dry_run, bool):
            raise DuramenError("invalid_argument", "dry_run: true or false", field="dry_run")
        if type(moves) is not int or not 1 <= moves <= MOVE_COUNT_MAX:
            raise DuramenError(
                "invalid_argument", f"moves: a number from 1 to {MOVE_COUNT_MAX}", field="moves"
            )
        return await cluster.balance(is_dry_run=is_dry_run, move_count_max=moves)


async def _read_body(request: Request, known: tuple[str, ...]) -> dict[str, Any]:
    body = await request.body()
    if len(body) > _BODY_BYTES_MAX:
        raise DuramenError("invalid_argument", "the body is too long", field="body")
    return parse_object(body, known) if body else {}
