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
from typing import Any, Final

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import Match

from duramen.core.rights.verbs import Verb
from duramen.errors import DuramenError
from duramen.runtime.audit.recorded_calls import find_address
from duramen.runtime.edge.gated import refuse_request
from duramen.runtime.identity.certificates import CertificateRefusedError
from duramen.runtime.identity.names import Identity
from duramen.runtime.rights.route_verbs import list_verbs
from duramen.runtime.security.process_security import ProcessSecurity, RecordedSend
from duramen.runtime.security.refusals import Refusals
from duramen.runtime.security.shown_certificate import SHOWN, ShownCertificate
from duramen.runtime.turning.tally import WouldBeRefused

_CHALLENGE: Final = ((b"www-authenticate", b"TLS-Certificate"),)
"""No scheme is registered for it, and a 401 has to name one (RFC 9110, 11.6.1)."""

_NOT_KNOWN_NOW: Final = "not_known_now"
"""The one kind that refuses nobody."""

Judge = Callable[[Identity, Verb], bool]
"""Whether an identity may do this to the cluster; raises DuramenError where that is not known."""


class AdminDoor:
    """ASGI: an admin application behind its door.

    Args:
        app: each of its routes has a verb, or is of anybody.
        security: by which certificates are judged; with a tally it counts whom it would refuse.
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
        try:
            who = self._judge(route, verb, scope)
        except _NotAdmittedError as error:
            self._refuse(error, route, verb, scope)
            if error.principal is None:
                return None
            who = error.principal  # it is only counted: what it does is done, and recorded
        records = self._security.admin_records
        if records is None or verb is not Verb.OPERATE:
            return None
        return records.begin(scope, who, f"{scope['method']} {route}", send)

    def _refuse(
        self, error: _NotAdmittedError, route: str | None, verb: Verb | None, scope: Any
    ) -> None:
        """Raise the refusal, told and recorded; while security is turned on it is but counted."""
        if self._security.tally is not None:
            asked = WouldBeRefused(
                "admin", error.who, verb or "other", error.kind, error.why, route or ""
            )
            self._security.tally.note(asked)
            return
        if error.kind != _NOT_KNOWN_NOW:
            self._refusals.tell(error.kind, error.why, dt.datetime.now(dt.UTC))
        if self._security.admin_records is not None:
            word = None if verb is None else verb.value
            status = error.refusal.kind.status
            self._security.admin_records.refuse(scope, error.principal, word, status)
        raise error.refusal from None

    def _judge(self, route: str | None, verb: Verb | None, scope: Any) -> str:
        """Who may, as a principal."""
        identity = self._identify(scope)
        principal = f"service:{identity.role.value}/{identity.name}"
        if verb is None:
            return principal  # Of what is not there the application says so, to who is somebody.
        who = str(identity)
        try:
            may = self._may(identity, verb)
        except DuramenError as error:
            raise _NotAdmittedError(error, _NOT_KNOWN_NOW, error.detail, who, principal) from None
        if not may:
            refusal = DuramenError("forbidden", f"{verb} on the cluster: you may not")
            why = f"{identity} may not {verb}: {scope['method']} {route}"
            raise _NotAdmittedError(refusal, "verb", why, who, principal)
        return principal

    def _identify(self, scope: Any) -> Identity:
        shown = scope.get("state", {}).get(SHOWN)
        if not isinstance(shown, ShownCertificate):
            raise _refuse_unknown("no certificate was shown", scope)
        now = dt.datetime.now(dt.UTC)
        try:
            return shown.judge(self._security.bundle, self._security.identity.domain, now)
        except CertificateRefusedError as error:
            raise _refuse_unknown(f"its certificate {error}", scope) from None

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


class _NotAdmittedError(Exception):
    """A request is refused, or would be; `principal` None: of somebody who is not known."""

    def __init__(
        self, refusal: DuramenError, kind: str, why: str, who: str, principal: str | None = None
    ) -> None:
        super().__init__(why)
        self.refusal = refusal
        self.kind = kind
        self.why = why
        self.who = who
        self.principal = principal


def _refuse_unknown(why: str, scope: Any) -> _NotAdmittedError:
    refusal = DuramenError(
        "unauthenticated", "this needs a certificate of the cluster, shown when connecting"
    )
    who = find_address(scope) or "?"
    return _NotAdmittedError(refusal, "unknown", f"admin port: {why}", who)
