"""The verb of each route, written where the route is, and the refusal to start without one.

`needs(verb)` and `OF_ANYBODY` go into a route's definition and stand in the OpenAPI document as
`x-duramen-verb`; `list_verbs` reads them back from the application, over all of its routes. It
finds a route that somebody added and gave nothing. Nothing is judged here.

Called by the admin application, its routes and its door, and both public applications.
Source: docs/protocol/rights.md "Verbs".
"""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from fastapi.routing import APIRoute

from duramen.core.rights.verbs import Verb
from duramen.runtime.role import StartRefusedError

FIELD: Final = "x-duramen-verb"
ANYBODY: Final = "anybody"
"""In place of a verb: the route needs no identity."""

Definition = dict[str, Any]
"""Arguments of a route's decorator."""


def needs(verb: Verb) -> Definition:
    """What a route is defined with that does this."""
    return {"openapi_extra": {FIELD: verb.value}}


OF_ANYBODY: Final[Definition] = {"openapi_extra": {FIELD: ANYBODY}}
"""What a route is defined with that answers whoever asks."""


def list_verbs(app: FastAPI) -> dict[tuple[str, str], Verb | None]:
    """Method and path of each route → its verb; None: it is of anybody.

    Raises:
        StartRefusedError: a route has no verb, or is none whose verb could be known.
    """
    found: dict[tuple[str, str], Verb | None] = {}
    for route in app.router.routes:
        if not isinstance(route, APIRoute):
            raise StartRefusedError(_say(f"{getattr(route, 'path', route)!s}"))
        said = (route.openapi_extra or {}).get(FIELD)
        for method in sorted(route.methods or ()):
            if said != ANYBODY and said not in list(Verb):
                raise StartRefusedError(_say(f"{method} {route.path}"))
            found[method, route.path] = None if said == ANYBODY else Verb(said)
    return found


def _say(route: str) -> str:
    return (
        f"the route {route} says of no verb that it is needed: define it with needs(Verb…), or "
        "OF_ANYBODY if it is for whoever asks"
    )
