"""What every public port has besides its own routes: the document, forwarding, and honest 405s.

`complete_app` is called once a proxy's own routes are there, each of which is a call of the table
and so has a verb. Calls of the table that it does not serve itself are forwarded, or, where
forwarding is switched off, no path here. The document is the same in either case: it describes the
contract, not the process.

Called by both proxies. Source: docs/protocol/rest.md "Either proxy",
docs/protocol/rights.md "Verbs".
"""

from __future__ import annotations

import re
from collections.abc import Awaitable
from typing import Final

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from duramen.runtime.admission.admission import ClientAdmission
from duramen.runtime.admission.call_rows import guard_route
from duramen.runtime.admission.public_door import PublicDoor
from duramen.runtime.admission.quota_door import QuotaDoor
from duramen.runtime.admission.quotas import Quotas
from duramen.runtime.audit.recorded_calls import RecordedCalls
from duramen.runtime.edge.cross_origin import allow_origins
from duramen.runtime.edge.document_page import DOCS_PATH, make_page_endpoint
from duramen.runtime.edge.embedded_server import ServerLimits
from duramen.runtime.edge.negotiation import Negotiation
from duramen.runtime.http_server import PublicServer
from duramen.runtime.public.calls import CALLS, LOG_PATH, PublicCall
from duramen.runtime.public.forwarding import Forwarder
from duramen.runtime.public.openapi import encode_document, make_document
from duramen.runtime.rest import METHODS, Endpoint, LeanRoute, add_route, refuse_method
from duramen.runtime.role import ServiceOptions, StartRefusedError
from duramen.runtime.security.public_certificate import PublicCertificate

DOCUMENT_PATHS: Final = ("/v1/openapi.json", "/openapi.json")
_VERB_PATH: Final = f"{LOG_PATH}:{{verb}}"


def complete_app(app: FastAPI, forwarder: Forwarder | None) -> None:
    """Add the document, what is forwarded, and the refusal of other methods behind a verb.

    Args:
        forwarder: None: calls of the other kind of proxy are not served here.

    Raises:
        StartRefusedError: a route of the proxy is no call of the table, so nobody knows its verb.
    """
    _refuse_unknown(app)
    for path in DOCUMENT_PATHS:
        add_route(app, "GET", path, _give_document)
    add_route(app, "GET", DOCS_PATH, make_page_endpoint(make_document(), DOCUMENT_PATHS[0]))
    own = {
        (method, _shape(route.path))
        for route in app.router.routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }
    for call in CALLS:
        if forwarder is not None and (call.method, _shape(call.path)) not in own:
            add_route(app, call.method, call.path, _make_endpoint(forwarder, call))
    _guard_verbs(app)
    _guard_rows(app)
    app.add_middleware(_KeptByNobody)
    app.add_middleware(Negotiation)


def _refuse_unknown(app: FastAPI) -> None:
    """What is served before the document is there must be calls of the table."""
    known = {(call.method, _shape(call.path)) for call in CALLS}
    for route in app.router.routes:
        methods = route.methods or () if isinstance(route, APIRoute) else ("any method",)
        path = getattr(route, "path", str(route))
        for method in sorted(methods):
            if (method, _shape(path)) not in known:
                raise StartRefusedError(
                    f"the route {method} {path} is no public call, so no verb is known of it: give "
                    "it a row in the table of duramen.runtime.public.calls"
                )


def _guard_rows(app: FastAPI) -> None:
    """Each call of the table runs as what the door judged it to be, or not at all."""
    rows = {(call.method, _shape(call.path)): call for call in CALLS}
    for route in app.router.routes:
        if isinstance(route, APIRoute):
            for method in route.methods or ():
                if (row := rows.get((method, _shape(route.path)))) is not None:
                    route.app = guard_route(route.app, row)


def make_public_server(
    app: FastAPI,
    options: ServiceOptions,
    quotas: Quotas,
    admission: ClientAdmission | None = None,
    certificate: PublicCertificate | None = None,
    *,
    recorded: RecordedCalls | None = None,
) -> PublicServer:
    """The server of a complete application, for the pages and names that its options allow.

    Args:
        quotas: what its callers may have of it.
        admission: None: nobody is asked who calls.
        certificate: None: HTTP in clear.
        recorded: what the audit log is told; there exactly where somebody is asked who calls.
    """
    assert (admission is None) == (recorded is None), "who is known is recorded"
    of_anybody = (*DOCUMENT_PATHS, DOCS_PATH)
    inner: ASGIApp = QuotaDoor(app, quotas)
    if admission is not None and recorded is not None:
        inner = PublicDoor(inner, admission, of_anybody, recorded, admission.tally)
    return PublicServer(
        options.host,
        options.data_port,
        allow_origins(inner, options.cors_origins),
        options.make_gate(options.cors_origins),
        limits=ServerLimits(connection_count=options.connection_count),
        certificate=certificate,
        tls_port=options.tls_data_port,
        on_replaced=None if admission is None else admission.lasting.begin_leaving,
    )


class _KeptByNobody:
    """ASGI: what does not say how long caches may keep it, none may keep.

    Plain functions that hand on what they wrap: a waiting read costs no coroutine more.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Pass the call on; only answers to GET are ever kept."""
        if scope["method"] != "GET":
            return self._app(scope, receive, send)

        def send_marked(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start" and not any(
                name == b"cache-control" for name, _ in message["headers"]
            ):
                message["headers"] = [*message["headers"], (b"cache-control", b"no-store")]
            return send(message)

        return self._app(scope, receive, send_marked)


def _make_endpoint(forwarder: Forwarder, call: PublicCall) -> Endpoint:
    async def forward(request: Request) -> Response:
        return await forwarder.forward(request, call)

    return forward


async def _give_document(_request: Request) -> Response:
    return Response(encode_document(), media_type="application/json")


def _guard_verbs(app: FastAPI) -> None:
    """`DELETE …/logs/l:end` is no deletion of a log with a strange name: a method not served."""
    verb = f"{LOG_PATH}:"
    allowed = {c.path.removeprefix(verb): c.method for c in CALLS if c.path.startswith(verb)}

    async def refuse(request: Request) -> Response:
        method = allowed.get(request.path_params["verb"])
        if method is None or method == request.method:
            raise HTTPException(404)
        return refuse_method(request, [method])

    def guard(*methods: str) -> LeanRoute:
        return LeanRoute(_VERB_PATH, refuse, methods=list(methods), include_in_schema=False)

    routes = app.router.routes
    of_log = [isinstance(r, APIRoute) and _shape(r.path) == _shape(LOG_PATH) for r in routes]
    # Before the routes of a log, which take any name.
    first = of_log.index(True) if True in of_log else len(routes)
    routes.insert(first, guard(*(name for name in METHODS if name != "POST")))
    routes.append(guard("POST"))


def _shape(path: str) -> str:
    """The path without the names of its parameters, which differ between proxies."""
    return "/".join("{}" if re.fullmatch(r"{\w+}", part) else part for part in path.split("/"))
