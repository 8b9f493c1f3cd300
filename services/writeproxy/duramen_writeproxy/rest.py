"""The write proxy's public REST application: namespaces, logs, append.

Routes only: each reads its request, asks one of the parts below and gives its answer. Input is
checked here, before anything is sent to anybody. `duramen.runtime.public` describes every route
and serves the document.

Called by `service`. Source: docs/protocol/rest.md, docs/protocol/errors.md.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import orjson
from fastapi import FastAPI, Request, Response

from duramen.config import parse_log_config, parse_namespace_config
from duramen.core.rights.judgement import Rights
from duramen.core.rights.verbs import Verb
from duramen.errors import DuramenError
from duramen.runtime.admission.callers import call_of
from duramen.runtime.public.answers import (
    LogChangedAnswer,
    LogMadeAnswer,
    NamespaceAnswer,
    NamespaceChangedAnswer,
    NamespaceDeletedAnswer,
    RolledAnswer,
    read_answer,
    respond,
)
from duramen.runtime.rest import (
    add_route,
    announced_bytes,
    make_public_app,
    parse_object,
    read_body,
    read_query,
    unknown_field,
)
from duramen.texts import check_log_name, check_namespace
from duramen.units import KIB
from duramen_writeproxy.append_route import AppendRoute
from duramen_writeproxy.intake.stream_route import StreamRoute
from duramen_writeproxy.logs.catalog import CatalogQueries, Shows, parse_page, show_all
from duramen_writeproxy.logs.creation import Creator
from duramen_writeproxy.logs.fencing import FenceRoute
from duramen_writeproxy.logs.names import LOG_ID_FIELD, read_meant

CONFIG_BYTES_MAX: Final = 64 * KIB
"""A configuration has some thirty small fields."""

_VERSION_CHARACTERS_MAX: Final = 9

_NAMESPACE: Final = "/v1/namespaces/{ns}"
_LOGS: Final = "/v1/namespaces/{ns}/logs"
_LOG: Final = "/v1/namespaces/{ns}/logs/{log}"
_PAGE_FIELDS: Final = ("prefix", "start_after", "limit")


def make_app(
    append_route: AppendRoute,
    catalog: CatalogQueries,
    creator: Creator,
    fence_route: FenceRoute,
    stream_route: StreamRoute,
) -> FastAPI:
    """The application around its parts."""
    app = make_public_app("Duramen write proxy")
    # First in the table: FastAPI looks at one route after the other.
    add_route(app, "POST", _LOG + "/records", append_route.on_append)
    add_route(app, "POST", _LOG + "/records:stream", stream_route.on_stream)
    add_route(app, "POST", _LOG + ":fence", fence_route.on_fence)
    routes = _RestRoutes(append_route, catalog, creator)
    for method, path, endpoint in (
        ("PUT", _LOG, routes.put_log),
        ("PATCH", _LOG, routes.patch_log),
        ("POST", _LOG + ":roll", routes.roll_log),
        ("GET", _LOG, routes.get_log),
        ("GET", _LOGS, routes.list_logs),
        ("PUT", _NAMESPACE, routes.put_namespace),
        ("PATCH", _NAMESPACE, routes.patch_namespace),
        ("DELETE", _NAMESPACE, routes.delete_namespace),
        ("GET", _NAMESPACE, routes.get_namespace),
        ("GET", "/v1/namespaces", routes.list_namespaces),
    ):
        add_route(app, method, path, endpoint)
    return app


class _RestRoutes:
    """Everything but the append."""

    def __init__(
        self, append_route: AppendRoute, catalog: CatalogQueries, creator: Creator
    ) -> None:
        self._append_route = append_route
        self._catalog = catalog
        self._creator = creator

    async def put_namespace(self, request: Request) -> Response:
        """Ensure a namespace: 201 created, 200 the same was there, 409 another was."""
        namespace = check_namespace(request.path_params["ns"])
        document = await self._read_config(request)
        _check_limits(request, document)
        config = parse_namespace_config(document)
        made = await self._creator.create_namespace(namespace, config.to_stored())
        answer = read_answer(NamespaceAnswer, {**made, "namespace": namespace})
        return respond(answer, 201 if made["created"] else 200)

    async def patch_namespace(self, request: Request) -> Response:
        """Change the fields of the namespace's configuration that the body names."""
        namespace = check_namespace(request.path_params["ns"])
        patch = await self._read_config(request)
        _check_limits(request, patch)
        parse_namespace_config(patch)
        made = await self._creator.change_namespace(namespace, patch)
        return respond(read_answer(NamespaceChangedAnswer, {**made, "namespace": namespace}))

    async def delete_namespace(self, request: Request) -> Response:
        """Delete a namespace that has no logs; `changed` is false if it was not there."""
        namespace = check_namespace(request.path_params["ns"])
        for field in await self._read_config(request):
            raise unknown_field(field)
        made = await self._creator.delete_namespace(namespace)
        return respond(read_answer(NamespaceDeletedAnswer, {**made, "namespace": namespace}))

    async def put_log(self, request: Request) -> Response:
        """Ensure a log: 201 created, 200 the same was there, 409 another was."""
        namespace, log = _log_of(request)
        config = parse_log_config(await self._read_config(request))
        made = await self._creator.create_log(namespace, log, config.to_stored())
        answer = read_answer(LogMadeAnswer, {**made, "namespace": namespace, "name": log})
        return respond(answer, 201 if made["created"] else 200)

    async def patch_log(self, request: Request) -> Response:
        """Change the fields of the log's configuration that the body names."""
        namespace, log = _log_of(request)
        query = read_query(request, ("config_version", LOG_ID_FIELD))
        version, meant = _read_version(query.get("config_version")), read_meant(query)
        patch = _check_sendable(await self._read_body(request))
        log_id = await self._catalog.find_log_id(namespace, log, meant)
        key = f"{namespace}/{log}"
        made = await self._creator.reconfigure(key, log_id, patch, version)
        named = {"namespace": namespace, "name": log, "log_id": str(log_id)}
        return respond(read_answer(LogChangedAnswer, {**made, **named}))

    async def roll_log(self, request: Request) -> Response:
        """Close the log's open segment and open the next one, soon; `epoch` null: none is open."""
        meant = read_meant(read_query(request, (LOG_ID_FIELD,)))
        namespace, log = _log_of(request)
        log_id = await self._catalog.find_log_id(namespace, log, meant)
        made = await self._creator.roll(f"{namespace}/{log}", log_id)
        answer = read_answer(RolledAnswer, {**made, "namespace": namespace, "name": log})
        return respond(answer, 202)

    async def get_namespace(self, request: Request) -> Response:
        """A namespace with its configuration."""
        read_query(request, ())
        namespace = check_namespace(request.path_params["ns"])
        return respond(await self._catalog.get_namespace(namespace))

    async def get_log(self, request: Request) -> Response:
        """A log with its id and its configuration."""
        read_query(request, ())
        return respond(await self._catalog.get_log(*_log_of(request)))

    async def list_namespaces(self, request: Request) -> Response:
        """A page of the namespaces, by name."""
        page = parse_page(read_query(request, _PAGE_FIELDS))
        rights = _find_rights(request)
        return respond(await self._catalog.list_namespaces(page, _show_namespaces(rights)))

    async def list_logs(self, request: Request) -> Response:
        """A page of a namespace's logs, by name."""
        page = parse_page(read_query(request, _PAGE_FIELDS))
        namespace = check_namespace(request.path_params["ns"])
        shows = _show_logs(_find_rights(request), namespace)
        return respond(await self._catalog.list_logs(namespace, page, shows))

    async def _read_config(self, request: Request) -> dict[str, Any]:
        read_query(request, ())
        return await self._read_body(request)

    async def _read_body(self, request: Request) -> dict[str, Any]:
        if self._append_route.is_draining:
            raise DuramenError("server_draining", "this proxy is stopping: use another one")
        headers = dict(request.scope["headers"])
        body = await read_body(
            request,
            CONFIG_BYTES_MAX,
            announced=announced_bytes(headers.get(b"content-length")),
        )
        return parse_object(body) if body else {}


def _check_limits(request: Request, document: dict[str, Any]) -> None:
    """A namespace's limits are for whoever operates the cluster: they protect others from it.

    Raises:
        DuramenError: `forbidden`, `metadata_unavailable`.
    """
    call = call_of(request)
    if "limits" in document and call is not None:
        call.demand(Verb.OPERATE, None)


def _find_rights(request: Request) -> Rights | None:
    call = call_of(request)
    return None if call is None else call.find_rights()


def _show_namespaces(rights: Rights | None) -> Shows:
    if rights is None:
        return show_all
    return partial(rights.reaches, Verb.LIST)


def _show_logs(rights: Rights | None, namespace: str) -> Shows:
    if rights is None:
        return show_all
    return partial(rights.judge, Verb.LIST, namespace)


def _log_of(request: Request) -> tuple[str, str]:
    params = request.path_params
    return check_namespace(params["ns"]), check_log_name(params["log"])


def _check_sendable(patch: dict[str, Any]) -> dict[str, Any]:
    """Whose fields only the sequencer judges; what its JSON cannot express is no configuration."""
    try:
        orjson.dumps(patch)
    except orjson.JSONEncodeError as error:
        raise DuramenError("invalid_argument", f"no configuration: {error}") from None
    return patch


def _read_version(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _VERSION_CHARACTERS_MAX):
        raise DuramenError("invalid_argument", "a whole number ≥ 1", field="config_version")
    return int(text)
