"""The door of an admin port: who connected, and whether it may do what the route does.

Judged before a body is read and before anything is looked up, by the certificate of the connection
and the verb of the route. The probes are of anybody; all else needs an identity of the cluster,
also a path that is not there: who is nobody learns of no route. The target of each verb is the
cluster.

Put between gate and application by `runtime.http_server`.
Source: docs/protocol/identity.md "TLS", docs/protocol/rights.md "Verbs".
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Awaitable, Callable
from typing import Any, Final, NoReturn

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import Match

from duramen.core.rights.verbs import Verb
from duramen.errors import DuramenError
from duramen.runtime.edge.gated import refuse_request
from duramen.runtime.identity.certificates import CertificateRefusedError
from duramen.runtime.identity.names import Identity
from duramen.runtime.rights.route_verbs import list_verbs
from duramen.runtime.security.process_security import ProcessSecurity, RecordedSend
from duramen.runtime.security.refusals import Refusals
from duramen.runtime.security.shown_certificate import SHOWN, ShownCertificate

_CHALLENGE: Final = ((b"www-authenticate", b"TLS-Certificate"),)
"""No scheme is registered for it, and a 401 has to name one (RFC 9110, 11.6.1)."""

Judge = Callable[[Identity, Verb], bool]
"""Whether an identity may do this to the cluster; raises DuramenError where that is not known."""


class AdminDoor:
    """ASGI: an admin application behind its door.

    Args:
        app: each of its routes has a verb, or is of anybody.
        security: by which certificates are judged.
        may: judges.

    Raises:
        StartRefusedError: a route has no verb.
    """

    def __init__(self, app: FastAPI, security: ProcessSecurity, may: Judge) -> None:
        self._app = app
        self._security = security
        self._may = may
        self._refusals = Refusals()
        verbs = list_verbs(app)
        self._verbs = [
            (route, {method: verbs[method, route.path] for method in route.methods or ()})
            for route in app.router.routes
            if isinstance(route, APIRoute)
        ]

    def __call__(self, scope: Any, receive: Any, send: Any) -> Awaitable[None]:
        """Serve one request, or refuse it."""
        if scope["type"] != "http":
            raise ValueError(f"an admin port has no {scope['type']!r}")
        try:
            recorded = self._admit(scope, send)
        except DuramenError as refusal:
            challenge = _CHALLENGE if refusal.code == "unauthenticated" else ()
            return refuse_request(refusal, receive, send, challenge)
        if recorded is None:
            return self._app(scope, receive, send)
        return self._serve_recorded(scope, receive, recorded)

    async def _serve_recorded(self, scope: Any, receive: Any, recorded: RecordedSend) -> None:
        try:
            await self._app(scope, receive, recorded)
        finally:
            recorded.end()

    def _admit(self, scope: Any, send: Any) -> RecordedSend | None:
        """See that the request is of anybody, or that its sender may make it.

        Gives what the answer goes by, where somebody records what it changes.

        Raises:
            DuramenError: `unauthenticated`, `forbidden`, `metadata_unavailable`.
        """
        route, verb = self._find_verb(scope)
        if route is not None and verb is None:
            return None
        now = dt.datetime.now(dt.UTC)
        records = self._security.admin_records
        who = None
        try:
            identity = self._identify(scope, now)
            who = f"service:{identity.role.value}/{identity.name}"
            # Of what is not there the application says so, to whoever is somebody.
            if verb is not None and not self._may(identity, verb):
                self._refusals.tell(
                    "verb", f"{identity} may not {verb}: {scope['path'][:200]!r}", now
                )
                raise DuramenError("forbidden", f"{verb} on the cluster: you may not")
        except DuramenError as refusal:
            if records is not None:
                word = None if verb is None else verb.value
                records.refuse(scope, who, word, refusal.kind.status)
            raise
        if records is None or verb is not Verb.OPERATE:
            return None
        return records.begin(scope, who, f"{scope['method']} {route}", send)

    def _identify(self, scope: Any, now: dt.datetime) -> Identity:
        shown = scope.get("state", {}).get(SHOWN)
        if not isinstance(shown, ShownCertificate):
            self._refuse_unknown("no certificate was shown", now)
        try:
            return shown.judge(self._security.bundle, self._security.identity.domain, now)
        except CertificateRefusedError as error:
            self._refuse_unknown(f"its certificate {error}", now)

    def _refuse_unknown(self, why: str, now: dt.datetime) -> NoReturn:
        self._refusals.tell("unknown", f"admin port: {why}", now)
        raise DuramenError(
            "unauthenticated", "this needs a certificate of the cluster, shown when connecting"
        )

    def _find_verb(self, scope: Any) -> tuple[str | None, Verb | None]:
        """The path of the route that takes the request, and its verb; None: it is of anybody."""
        # A HEAD is the GET without its body, and the application makes one of it.
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        asked = {**scope, "method": method}
        for route, verbs in self._verbs:
            match, _ = route.matches(asked)
            if match is Match.FULL:
                return route.path, verbs[method]
        return None, None
