"""An API server of a few calls: events, Leases, and what an account may do.

It judges requests as the real one does where a client can get them wrong: tokens, rights, times
with six digits, names that are taken. Faults are explicit: `fault` answers everything, `silence`
answers nothing until it is lifted. The contract of test_contract.py holds for it and the real one.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import urlsplit

Json = dict[str, Any]

_EVENTS: Final = re.compile(r"/apis/events\.k8s\.io/v1/namespaces/([^/]+)/events")
_LEASES: Final = re.compile(r"/apis/coordination\.k8s\.io/v1/namespaces/([^/]+)/leases(?:/(.+))?")
_VERSION: Final = "/version"
_REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubject"
_MICRO_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")
_END_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Fault:
    """An answer to whatever is asked."""

    status: int
    content_type: str
    body: bytes


class FakeApi:
    """What it holds, what it was asked, and its faults."""

    def __init__(self, rules: list[Json], token: str = "first") -> None:
        self.rules = rules
        self.token = token
        self.events: dict[str, Json] = {}
        self.leases: dict[str, Json] = {}
        self._version = 0
        self.requests: list[str] = []
        self.fault: Fault | None = None
        self.login_fault: Fault | None = None
        """The answer to the first question of a login, which `fault` leaves alone."""
        self.find_rules: Callable[[], list[Json]] | None = None
        """Gives the rules that hold from the next listing of them on."""
        self.hides_rules = False
        """Whether it lists no rules, as an API server with other authorizers than RBAC."""
        self.may_review = True
        self.silence = threading.Event()
        self.silence.set()
        self.url = ""

    def answer(self, method: str, path: str, token: str, body: Json) -> tuple[int, Json]:
        """Status and document of an answer."""
        if path == _VERSION:
            return 200, {"major": "1", "minor": "34", "gitVersion": "v1.34.0"}
        self.requests.append(f"{method} {path}")
        if token != self.token:
            return _refuse(401, "Unauthorized", "Unauthorized")
        if found := _EVENTS.fullmatch(path):
            return self._answer_event(found[1], body)
        if found := _LEASES.fullmatch(path):
            return self._answer_lease(method, found[2], body)
        if not self.may_review:
            return _refuse(403, "Forbidden", "no reviews here")
        assert path.startswith(_REVIEWS), path
        if path.endswith("rulesreviews"):
            self.rules = self.find_rules() if self.find_rules is not None else self.rules
            rules = [] if self.hides_rules else self.rules
            status = {"resourceRules": rules, "nonResourceRules": [], "incomplete": False}
            return 201, {**body, "status": status}
        return 201, {**body, "status": {"allowed": self._may(**_read_wanted(body))}}

    def _answer_event(self, namespace: str, body: Json) -> tuple[int, Json]:
        name = body["metadata"]["name"]
        if not self._may("events.k8s.io", "events", "create"):
            return _refuse(403, "Forbidden", f"events {name} is forbidden in {namespace}")
        if not _MICRO_TIME.fullmatch(body["eventTime"]):
            return _refuse(400, "BadRequest", f"cannot parse {body['eventTime']}")
        if name in self.events:
            return _refuse(409, "AlreadyExists", f"{name} already exists")
        self.events[name] = body
        return 201, body

    def _answer_lease(self, method: str, name: str | None, body: Json) -> tuple[int, Json]:
        verb = {"GET": "get", "POST": "create", "PUT": "update", "DELETE": "delete"}[method]
        if not self._may("coordination.k8s.io", "leases", verb):
            return _refuse(403, "Forbidden", "leases are forbidden")
        wanted = body.get("preconditions") if method == "DELETE" else body.get("metadata")
        name = name or body["metadata"]["name"]
        there = self.leases.get(name)
        if method == "POST":
            if there is not None:
                return _refuse(409, "AlreadyExists", f"{name} already exists")
            return 201, self._store_lease(name, body, f"uid-{self._version}")
        if there is None:
            return _refuse(404, "NotFound", f"{name} not found")
        if method == "GET":
            return 200, there
        assert wanted is not None, "a write without a state of what it changes"
        state = ("uid", "resourceVersion")
        if any(wanted[key] != there["metadata"][key] for key in state):
            return _refuse(409, "Conflict", f"{name} has changed")
        if method == "DELETE":
            del self.leases[name]
            return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        return 200, self._store_lease(name, body, there["metadata"]["uid"])

    def _store_lease(self, name: str, body: Json, uid: str) -> Json:
        assert _MICRO_TIME.fullmatch(body["spec"]["renewTime"]), body
        self._version += 1
        state = {"uid": uid, "resourceVersion": str(self._version)}
        self.leases[name] = {**body, "metadata": {**body["metadata"], **state}}
        return self.leases[name]

    def _may(self, group: str, resource: str, verb: str) -> bool:
        return any(
            not rule.get("resourceNames")
            and not {group, "*"}.isdisjoint(rule["apiGroups"])
            and not {resource, "*"}.isdisjoint(rule["resources"])
            and not {verb, "*"}.isdisjoint(rule["verbs"])
            for rule in self.rules
        )


def _read_wanted(body: Json) -> dict[str, str]:
    wanted = body["spec"]["resourceAttributes"]
    below = wanted.get("subresource")
    resource = wanted["resource"] + (f"/{below}" if below else "")
    return {"group": wanted["group"], "resource": resource, "verb": wanted["verb"]}


def _refuse(status: int, reason: str, message: str) -> tuple[int, Json]:
    head = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status}
    return status, {**head, "reason": reason, "message": message}


@contextmanager
def running_api(rules: list[Json]) -> Iterator[FakeApi]:
    """A fake API server on a free port of this machine, in threads of its own."""
    api = FakeApi(rules)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def do_PUT(self) -> None:
            self._answer()

        def do_DELETE(self) -> None:
            self._answer()

        def log_message(self, format: str, *args: object) -> None:
            """Nothing to the terminal."""

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            path = urlsplit(self.path).path.rstrip("/")
            assert api.silence.wait(_END_S)
            fault = api.login_fault if path == _VERSION else api.fault
            if fault is None:
                status, document = api.answer(self.command, path, token, json.loads(body or b"{}"))
                fault = Fault(status, "application/json", json.dumps(document).encode())
            self.send_response(fault.status)
            self.send_header("Content-Type", fault.content_type)
            self.send_header("Content-Length", str(len(fault.body)))
            self.end_headers()
            self.wfile.write(fault.body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    api.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield api
    finally:
        api.silence.set()
        server.shutdown()
        thread.join(_END_S)
        server.server_close()
