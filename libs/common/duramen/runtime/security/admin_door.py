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
from duramen.runtime.edge.gated import refuse_request
from duramen.runtime.identity.certificates import CertificateRefusedError
from duramen.runtime.identity.names import Identity
from duramen.runtime.rights.route_verbs import list_verbs
from duramen.runtime.security.process_security import ProcessSecurity
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
            self._admit(scope)
        except DuramenError as refusal:
            challenge = _CHALLENGE if refusal.code == "unauthenticated" else ()
            return refuse_request(refusal, receive, send, challenge)
        return self._app(scope, receive, send)

    def _admit(self, scope: Any) -> None:
        """See that the request is of anybody, or that its sender may make it.

        Raises:
            DuramenError: `unauthenticated`, `forbidden`, `metadata_unavailable`.
        """
        is_route, verb = self._find_verb(scope)
        if is_route and verb is None:
            return
        try:
            self._judge(verb, scope)
        except _NotAdmittedError as error:
            if self._security.tally is None:
                if error.kind != _NOT_KNOWN_NOW:
                    self._refusals.tell(error.kind, error.why, dt.datetime.now(dt.UTC))
                raise error.refusal from None
            self._security.tally.note(
                WouldBeRefused(
                    "admin", error.who, verb or "other", error.kind, error.why, scope["path"]
                )
            )

    def _judge(self, verb: Verb | None, scope: Any) -> None:
        identity = self._identify(scope)
        if verb is None:
            return  # Of what is not there the application says so, to whoever is somebody.
        why = f"{identity} may not {verb}: {scope['path'][:200]!r}"
        try:
            may = self._may(identity, verb)
        except DuramenError as error:
            raise _NotAdmittedError(error, _NOT_KNOWN_NOW, error.detail, str(identity)) from None
        if not may:
            refusal = DuramenError("forbidden", f"{verb} on the cluster: you may not")
            raise _NotAdmittedError(refusal, "verb", why, str(identity))

    def _identify(self, scope: Any) -> Identity:
        shown = scope.get("state", {}).get(SHOWN)
        if not isinstance(shown, ShownCertificate):
            raise _refuse_unknown("no certificate was shown", scope)
        now = dt.datetime.now(dt.UTC)
        try:
            return shown.judge(self._security.bundle, self._security.identity.domain, now)
        except CertificateRefusedError as error:
            raise _refuse_unknown(f"its certificate {error}", scope) from None

    def _find_verb(self, scope: Any) -> tuple[bool, Verb | None]:
        """Whether a route takes the request, and its verb; None: it is of anybody."""
        # A HEAD is the GET without its body, and the application makes one of it.
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        asked = {**scope, "method": method}
        for route, verbs in self._verbs:
            match, _ = route.matches(asked)
            if match is Match.FULL:
                return True, verbs[method]
        return False, None


class _NotAdmittedError(Exception):
    """A request is refused, or would be."""

    def __init__(self, refusal: DuramenError, kind: str, why: str, who: str) -> None:
        super().__init__(why)
        self.refusal = refusal
        self.kind = kind
        self.why = why
        self.who = who


def _refuse_unknown(why: str, scope: Any) -> _NotAdmittedError:
    refusal = DuramenError(
        "unauthenticated", "this needs a certificate of the cluster, shown when connecting"
    )
    who = str((scope.get("client") or ("?",))[0])
    return _NotAdmittedError(refusal, "unknown", f"admin port: {why}", who)
