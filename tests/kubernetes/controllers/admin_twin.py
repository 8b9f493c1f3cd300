"""The twin of a cluster's write proxy for tier kwok, where pods are fake and answer nothing.

One HTTP port serves both what the real proxy serves on its public and on its admin port, from a
`TwinState` behind a lock. Changes are kept, so that a test can say what was asked how often. Faults
are explicit: `is_down` (503 to everything), `fail_next` (done, and not answered), `is_silent` (says
which reads are not answered while it says so).

Used by the tests of this folder, and run by hand as `python -m …admin_twin PORT`.
Source: docs/protocol/rest.md; docs/testing.md.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import orjson
import uvicorn
from fastapi import FastAPI, Request, Response

from duramen.errors import DuramenError
from duramen.runtime.rest import (
    add_route,
    announced_bytes,
    make_public_app,
    parse_object,
    read_body,
    read_query,
)
from duramen.texts import check_log_name, check_namespace, parse_log_id
from tests.kubernetes.controllers.twin_state import Answer, TwinState
from tests.pauses import look_again_soon

_NAMESPACE: Final = "/v1/namespaces/{ns}"
_LOG: Final = "/v1/namespaces/{ns}/logs/{log}"
_DISRUPTIONS: Final = "/v1/cluster/disruptions"
_DISRUPTION: Final = _DISRUPTIONS + "/{token}"
_BOOKIE: Final = "/v1/cluster/bookies/{bookie}"
_BODY_BYTES_MAX: Final = 1 << 16
_PAGE: Final = ("prefix", "start_after", "limit")


@dataclass(frozen=True, slots=True)
class TwinCall:
    """A call that changed something, or was to."""

    method: str
    path: str
    body: Answer
    status: int


class AdminTwin:
    """State, what was asked, and faults."""

    def __init__(self, state: TwinState | None = None) -> None:
        self.state = state or TwinState()
        self.lock = threading.Lock()
        self.changes: list[TwinCall] = []
        """Calls other than GET, with the status of their answer."""
        self.call_count = 0
        self.is_down = False
        self.fail_next = 0
        """So many changes take effect, and are answered with 503."""
        self.on_change: Callable[[str], bool] | None = None
        """Is told "before" and "after" each change; True: its caller is dead, nothing is done."""
        self.is_silent: Callable[[str], bool] | None = None
        """Is told the path of each read."""
        self.url = ""

    def asked(self, method: str, path: str) -> list[TwinCall]:
        """The changes of one kind."""
        with self.lock:
            return [call for call in self.changes if (call.method, call.path) == (method, path)]


def make_twin_app(twin: AdminTwin) -> FastAPI:
    """The application; its paths are those of the real ports."""
    app = make_public_app("Duramen twin")
    state = twin.state
    for method, path, work in _changes(state):
        add_route(app, method, path, _change_route(twin, work))
    for path, read in _reads(twin):
        add_route(app, "GET", path, _read_route(twin, read))
    return app


Work = Callable[[Request, Answer], tuple[int, Answer]]
Read = Callable[[Request], Answer]


def _changes(state: TwinState) -> list[tuple[str, str, Work]]:
    def made(result: tuple[bool, Answer]) -> tuple[int, Answer]:
        return (201 if result[0] else 200), result[1]

    def nothing(body: Answer) -> None:
        for name in body:
            raise DuramenError("unknown_field", f"{name}: not a known field", field=name)

    def meant(request: Request, *others: str) -> tuple[str, str]:
        known = ("log_id", *others) if state.knows_meant_logs else others
        query, names = read_query(request, known), _log_of(request)
        if "log_id" in query:
            state.check_meant(*names, parse_log_id(query["log_id"]))
        return names

    def plain(request: Request) -> tuple[str, str]:
        read_query(request, ())
        return _log_of(request)

    def truncate(request: Request, body: Answer) -> tuple[int, Answer]:
        nothing({name: value for name, value in body.items() if name != "to"})
        return 200, state.truncate_log(*meant(request), body)

    def end(request: Request, body: Answer) -> tuple[int, Answer]:
        nothing(body)
        return 200, state.end_log(*meant(request))

    def delete_log(request: Request, body: Answer) -> tuple[int, Answer]:
        nothing(body)
        return 200, state.delete_log(*meant(request))

    def append(request: Request, body: Answer) -> tuple[int, Answer]:
        log = state.find_log(*_log_of(request))
        start = log.encode_tail()
        records = body.get("records", [])
        log.append(len(records), sum(len(str(record.get("body"))) for record in records))
        return 200, {"start": start, "end": log.encode_tail(), "tail": log.encode_tail()}

    def delete_namespace(request: Request, body: Answer) -> tuple[int, Answer]:
        nothing(body)
        return 200, state.delete_namespace(_namespace_of(request))

    def change_log(request: Request, body: Answer) -> tuple[int, Answer]:
        names = meant(request, "config_version")
        text = request.query_params.get("config_version")
        return 200, state.change_log(*names, body, None if text is None else int(text))

    def replace_grants(request: Request, body: Answer) -> tuple[int, Answer]:
        query = read_query(request, ("scope", "version"))
        return 200, state.replace_grants(query["scope"], int(query["version"]), body)

    return [
        *_disruption_changes(state),
        ("POST", _BOOKIE + "/drain", lambda r, _: (200, state.drain_bookie(_bookie_of(r)))),
        ("POST", _BOOKIE + "/cancel-drain", lambda r, _: (200, state.cancel_drain(_bookie_of(r)))),
        ("PUT", "/v1/grants", replace_grants),
        ("POST", _LOG + "/records", append),
        ("POST", _LOG + ":truncate", truncate),
        ("POST", _LOG + ":end", end),
        ("POST", _LOG + ":roll", lambda r, _: (202, state.roll_log(*meant(r)))),
        ("POST", _LOG + ":undelete", lambda r, _: (200, state.undelete_log(*plain(r)))),
        ("PUT", _LOG, lambda r, b: made(state.ensure_log(*plain(r), b))),
        ("PATCH", _LOG, change_log),
        ("DELETE", _LOG, delete_log),
        ("PUT", _NAMESPACE, lambda r, b: made(state.ensure_namespace(_namespace_of(r), b))),
        ("PATCH", _NAMESPACE, lambda r, b: (200, state.change_namespace(_namespace_of(r), b))),
        ("DELETE", _NAMESPACE, delete_namespace),
    ]


def _disruption_changes(state: TwinState) -> list[tuple[str, str, Work]]:
    def token_of(request: Request) -> str:
        return str(request.path_params["token"])

    return [
        ("POST", _DISRUPTIONS, lambda _, body: (200, state.take_disruption(body))),
        ("POST", _DISRUPTION + "/renew", lambda r, _: (200, state.renew_disruption(token_of(r)))),
        ("DELETE", _DISRUPTION, lambda r, _: (200, state.end_disruption(token_of(r)))),
    ]


def _reads(twin: AdminTwin) -> list[tuple[str, Read]]:
    state = twin.state

    def list_logs(request: Request) -> Answer:
        query = read_query(request, _PAGE)
        limit = int(query.get("limit", "100"))
        return state.list_logs(_namespace_of(request), query.get("start_after", ""), limit)

    def list_namespaces(request: Request) -> Answer:
        query = read_query(request, _PAGE)
        return state.list_namespaces(query.get("start_after", ""), int(query.get("limit", "100")))

    def owners(_request: Request) -> Answer:
        rows = [
            {"log_id": str(log.log_id), "name": f"{log.namespace}/{log.name}",
             "sequencer": "sequencer-0", "state": "active"}
            for log in state.logs.values()
            if log.deleted_ms is None and log.segments and log.segments[-1].completed_ms is None
        ]  # fmt: skip
        sequencers = [{"id": "sequencer-0", "weight": 1.0}]
        return {"logs": rows, "sequencers": sequencers, "silent": []}

    def placement(request: Request) -> Answer:
        log = state.find_log(*_log_of(request))
        count = len(log.segments)
        return {
            "log_id": str(log.log_id), "segments": count, "fragments": count, "violations": 0,
            "shown": [],
        }  # fmt: skip

    def regions(_request: Request) -> Answer:
        names = sorted({row["region"] for row in state.bookies})
        return {"closed": [], "regions": [{"region": name, "closed": False} for name in names]}

    return [
        ("/v1/namespaces/{ns}/logs/{log}/records/tail",
         lambda r: dict.fromkeys(
             ("tail", "released", "acknowledged"), state.find_log(*_log_of(r)).encode_tail())),
        ("/v1/namespaces/{ns}/logs/{log}/segments", lambda r: state.list_segments(*_log_of(r))),
        (_LOG, lambda r: state.show_log(*_log_of(r))),
        (_NAMESPACE, lambda r: state.show_namespace(_namespace_of(r))),
        (_NAMESPACE + "/logs", list_logs),
        ("/v1/namespaces", list_namespaces),
        ("/v1/cluster/owners", owners),
        ("/v1/cluster/bookies", lambda _: state.list_bookies()),
        ("/v1/cluster/repair/bookies", lambda _: state.list_held()),
        (_DISRUPTIONS, lambda _: {"grants": state.disruptions}),
        ("/v1/cluster/disruptions/standing", lambda _: state.show_standing()),
        ("/v1/cluster/regions", regions),
        ("/v1/cluster/logs/{ns}/{log}/placement", placement),
        ("/v1/grants", lambda r: state.show_grants(read_query(r, ("scope",))["scope"])),
        ("/v1/config", lambda _: {"security": state.security}),
        ("/readyz", lambda _: {"ready": True}),
        ("/healthz", lambda _: {"status": "ok"}),
    ]  # fmt: skip


def _change_route(twin: AdminTwin, work: Work) -> Callable[[Request], Any]:
    async def answer(request: Request) -> Response:
        length = dict(request.scope["headers"]).get(b"content-length")
        data = await read_body(request, _BODY_BYTES_MAX, announced=announced_bytes(length))
        body = parse_object(data) if data else {}
        if await _strikes(twin, "before"):
            return Response(status_code=503)
        with twin.lock:
            twin.call_count += 1
            status = 503
            try:
                _check_up(twin)
                status, document = work(request, body)
                if twin.fail_next:
                    twin.fail_next -= 1
                    status = 503
                    raise DuramenError("log_unavailable", "it may have been done: ask again")
            except DuramenError as error:
                status = error.kind.status
                raise
            finally:
                call = TwinCall(request.method, request.url.path, body, status)
                twin.changes.append(call)
        await _strikes(twin, "after")
        return _answer(document, status)

    return answer


async def _strikes(twin: AdminTwin, moment: str) -> bool:
    return twin.on_change is not None and await asyncio.to_thread(twin.on_change, moment)


def _read_route(twin: AdminTwin, read: Read) -> Callable[[Request], Any]:
    async def answer(request: Request) -> Response:
        while twin.is_silent is not None and twin.is_silent(request.url.path):
            await look_again_soon()
        with twin.lock:
            twin.call_count += 1
            _check_up(twin)
            return _answer(read(request), 200)

    return answer


def _check_up(twin: AdminTwin) -> None:
    if twin.is_down:
        raise DuramenError("metadata_unavailable", "ZooKeeper: no answer")


def _answer(document: Answer, status: int) -> Response:
    return Response(orjson.dumps(document), status_code=status, media_type="application/json")


def _bookie_of(request: Request) -> str:
    return str(request.path_params["bookie"])


def _namespace_of(request: Request) -> str:
    return check_namespace(request.path_params["ns"])


def _log_of(request: Request) -> tuple[str, str]:
    return _namespace_of(request), check_log_name(request.path_params["log"])


@contextmanager
def running_twin(twin: AdminTwin | None = None) -> Iterator[AdminTwin]:
    """A twin on a free port of this machine, in a thread of its own."""
    served = twin or AdminTwin()
    listener = socket.create_server(("127.0.0.1", 0))
    served.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    config = uvicorn.Config(make_twin_app(served), log_level="warning", access_log=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(
        target=lambda: asyncio.run(server.serve([listener])), name="admin-twin", daemon=True
    )
    thread.start()
    try:
        yield served
    finally:
        served.is_silent = None
        server.should_exit = True
        thread.join(10)
        listener.close()


if __name__ == "__main__":
    uvicorn.run(make_twin_app(AdminTwin()), host="127.0.0.1", port=int(sys.argv[1]))
