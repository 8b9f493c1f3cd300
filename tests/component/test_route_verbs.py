"""Every public call and every admin route has a verb, else the process does not start.

The applications are those of the four services, built as their processes build them; nothing is
started. The tables of the page are made from what is found, as `make docs` does.
Source: docs/protocol/rights.md "Verbs", docs/protocol/rights.md "Roles".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.routing import Mount, Route

from duramen.core.rights.grants import Grant, GrantScope, parse_principal, parse_scope
from duramen.core.rights.judgement import GrantTable
from duramen.core.rights.verbs import GrantedRole, Verb
from duramen.runtime import service as frame
from duramen.runtime.admin import make_admin_app
from duramen.runtime.audit.by_admin_ports import RECORDS_PATH
from duramen.runtime.public.calls import CALLS, LOG_PATH, NAMESPACE_PATH, On, PublicCall
from duramen.runtime.public.openapi import make_document
from duramen.runtime.public.serving import complete_app
from duramen.runtime.rest import add_route, make_public_app
from duramen.runtime.rights.route_verbs import FIELD, OF_ANYBODY, list_verbs, needs
from duramen.runtime.role import StartRefusedError
from tests.component.admin_world import ROLES, make_options, make_service
from tests.unit.document_sections import check_section

ANN = parse_principal("user:corp/ann")
Routes = dict[tuple[str, str], Verb | None]


@pytest.fixture(scope="module")
def admin_routes() -> dict[str, Routes]:
    """The routes of the admin port of every role; those that all have are under ``."""

    async def build() -> dict[str, Routes]:
        return {
            role: list_verbs(make_admin_app(make_service(role), make_options(role), lambda: None))
            for role in ROLES
        }

    found = asyncio.run(build())
    shared = {key: verb for key, verb in found["bookie"].items()
              if all(key in routes for routes in found.values())}  # fmt: skip
    own = {role: {key: verb for key, verb in routes.items() if key not in shared}
           for role, routes in found.items()}  # fmt: skip
    return {"": shared, **own}


def target_of(call: PublicCall) -> GrantScope:
    """What the path of a call of `shop/orders` names, or else what the call says."""
    if call.judged is On.CALL:
        return GrantScope("shop")
    if call.path.startswith(LOG_PATH):
        return GrantScope("shop", "orders")
    return GrantScope("shop" if call.path.startswith(NAMESPACE_PATH) else None)


def list_placed(scope: str, target: GrantScope) -> bool:
    """Whether a grant on the scope is about the target, by the page's own examples."""
    covered = {
        "*": ("*", "shop", "shop/orders"),
        "shop": ("shop", "shop/orders"),
        "shop/ord*": ("shop/orders",),
        "shop/orders": ("shop/orders",),
        "shop/order": (), "shop/ordersx*": (), "shop2": (), "shop2/ord*": (), "missing": (),
    }  # fmt: skip
    return str(target) in covered[scope]


SCOPES = ("*", "shop", "shop/ord*", "shop/orders", "shop/order", "shop/ordersx*", "shop2",
          "shop2/ord*", "missing")  # fmt: skip


@pytest.mark.parametrize("call", CALLS, ids=[call.name for call in CALLS])
def test_each_role_may_make_those_calls_that_are_its_verbs_where_it_was_granted(
    call: PublicCall,
) -> None:
    target = target_of(call)
    for role in GrantedRole:
        for scope in SCOPES:
            found = GrantTable((Grant(parse_scope(scope), ANN, role),)).rights_of(ANN)
            said = found.judge(call.verb, target.namespace, target.log)
            assert said == (call.verb in role.verbs and list_placed(scope, target)), (role, scope)
    nobody = GrantTable(()).rights_of(ANN)
    assert not nobody.judge(call.verb, target.namespace, target.log)


def test_a_list_shows_what_the_caller_may_list_and_is_refused_where_that_is_nothing() -> None:
    (verb,) = {call.verb for call in CALLS if call.judged is On.SHOWN}
    names = {"shop": ("ord", "orders", "other"), "shop2": ("ord",)}
    shown = {
        "*": names, "shop": {"shop": names["shop"]}, "shop/ord*": {"shop": ("ord", "orders")},
        "shop/orders": {"shop": ("orders",)}, "shop2/ord*": {"shop2": ("ord",)},
        "shop/ordersx*": {"shop": ()}, "missing": {},
    }  # fmt: skip
    for scope, expected in shown.items():
        found = GrantTable((Grant(parse_scope(scope), ANN, GrantedRole.READER),)).rights_of(ANN)
        assert expected == {
            space: tuple(log for log in logs if found.judge(verb, space, log))
            for space, logs in names.items()
            if found.reaches(verb, space)
        }


def test_each_role_may_use_those_admin_routes_that_are_its_verbs_and_only_of_the_cluster(
    admin_routes: dict[str, Routes],
) -> None:
    for key, verb in walk(admin_routes):
        if verb is None:
            continue
        for role in GrantedRole:
            for scope in SCOPES:
                found = GrantTable((Grant(parse_scope(scope), ANN, role),)).rights_of(ANN)
                assert found.judge(verb) == (verb in role.verbs and scope == "*"), (key, role)


def test_only_probes_are_of_anybody_and_what_changes_is_no_observation(
    admin_routes: dict[str, Routes],
) -> None:
    routes = walk(admin_routes)
    assert {key for key, verb in routes if verb is None} == {
        ("GET", "/healthz"), ("GET", "/readyz"),
    }  # fmt: skip
    for (method, path), verb in routes:
        expected = Verb.APPEND if path == RECORDS_PATH else Verb.OPERATE
        assert (method == "GET") or verb is expected, path
    # These show records, and a token that lets who knows it append.
    told = dict(routes)
    assert told["GET", "/v1/ledgers/{ledger_id}/entries/{entry_id}"] is Verb.READ
    assert told["GET", "/v1/logs/{log_id}"] is Verb.OPERATE


def test_every_verb_but_those_of_no_call_is_some_calls(admin_routes: dict[str, Routes]) -> None:
    used = {call.verb for call in CALLS} | {verb for _, verb in walk(admin_routes)}
    assert set(Verb) - used == {Verb.ARCHIVE}, "of this the page says where it is"


def test_a_change_is_never_the_verb_of_a_reader() -> None:
    for call in CALLS:
        is_reading = call.method == "GET" and call.verb is not Verb.GRANT
        assert is_reading == (call.verb in GrantedRole.READER.verbs), call.name


def test_documents_tell_the_verb_of_each_call() -> None:
    paths = make_document()["paths"]
    for call in CALLS:
        assert paths[call.path][call.method.lower()][FIELD] == call.verb.value

    async def build() -> dict[str, Any]:
        app = make_admin_app(make_service("bookie"), make_options("bookie"), lambda: None)
        return app.openapi()

    paths = asyncio.run(build())["paths"]
    assert paths["/v1/read-only"]["put"][FIELD] == "operate"
    assert paths["/healthz"]["get"][FIELD] == "anybody"


def walk(admin_routes: dict[str, Routes]) -> list[tuple[tuple[str, str], Verb | None]]:
    found = [each for routes in admin_routes.values() for each in routes.items()]
    assert len(found) > 50, "the routes of four services are there"
    return found


# --- A route without a verb ----------------------------------------------------------------------


class _Planted:
    """A service with one more route."""

    def __init__(self, plant: Callable[[FastAPI], Any]) -> None:
        self._plant = plant

    def add_admin_routes(self, app: FastAPI) -> None:
        self._plant(app)

    async def start(self) -> None:
        raise StartRefusedError("nobody minds the route")

    async def stop(self) -> None: ...

    def is_ready(self) -> bool:
        return True

    def statistics(self) -> dict[str, Any]:
        return {}


async def answer() -> None: ...


PLANTS: list[tuple[str, Callable[[FastAPI], Any], str]] = [
    ("no verb", lambda app: app.get("/v1/secret")(answer), "GET /v1/secret"),
    (
        "no word of ours",
        lambda app: app.post("/v1/secret", openapi_extra={FIELD: "peek"})(answer),
        "POST /v1/secret",
    ),
    (
        "no verb in another route of the path",
        lambda app: (
            app.get("/v1/both", **needs(Verb.OBSERVE))(answer),
            app.put("/v1/both")(answer),
        ),
        "PUT /v1/both",
    ),
    ("an application", lambda app: app.router.routes.append(Mount("/sub", app=FastAPI())), "/sub"),
    ("a bare route", lambda app: app.router.routes.append(Route("/bare", answer)), "/bare"),
    (
        "hidden from the document",
        lambda app: app.get("/v1/secret", include_in_schema=False)(answer),
        "GET /v1/secret",
    ),
]


@pytest.mark.parametrize(("_what", "plant", "route"), PLANTS, ids=[row[0] for row in PLANTS])
def test_a_process_with_an_admin_route_without_a_verb_does_not_start(
    _what: str,
    plant: Callable[[FastAPI], Any],
    route: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(frame, "_keep_freed_memory", lambda: None)
    assert frame.run_service(make_options("bookie"), lambda *_: _Planted(plant)) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"n-0 cannot start: the route {route} says of no verb that it is needed")


def test_a_route_with_a_verb_or_of_anybody_is_found() -> None:
    app = FastAPI(openapi_url=None)
    app.get("/v1/a", **needs(Verb.OBSERVE))(answer)
    app.get("/v1/b", **OF_ANYBODY)(answer)
    assert list_verbs(app) == {("GET", "/v1/a"): Verb.OBSERVE, ("GET", "/v1/b"): None}


def plant_public() -> Iterator[tuple[str, Callable[[FastAPI], Any]]]:
    async def on_request(_request: Any) -> Any: ...

    yield "GET /v1/secret", lambda app: add_route(app, "GET", "/v1/secret", on_request)
    yield f"TRACE {LOG_PATH}", lambda app: add_route(app, "TRACE", LOG_PATH, on_request)
    yield "any method /sub", lambda app: app.router.routes.append(Mount("/sub", app=FastAPI()))


@pytest.mark.parametrize(("route", "plant"), list(plant_public()))
def test_a_proxy_with_a_public_route_that_is_no_call_does_not_start(
    route: str, plant: Callable[[FastAPI], Any]
) -> None:
    app = make_public_app("Duramen write proxy")
    plant(app)
    with pytest.raises(StartRefusedError, match=f"the route {route} is no public call"):
        complete_app(app, None)


# --- The page ------------------------------------------------------------------------------------


def test_the_tables_of_the_page_are_those_of_the_code(admin_routes: dict[str, Routes]) -> None:
    check_section("rights.md", "calls", "".join(format_calls()))
    check_section("rights.md", "admin routes", "".join(format_admin(admin_routes)))
    check_section("rights.md", "roles", "".join(format_roles()))


def format_calls() -> Iterator[str]:
    yield "| call | verb | on |\n|---|---|---|\n"
    for call in CALLS:
        on = {2: "log", 1: "namespace", 0: "cluster"}[call.path.count("{")]
        on = on if call.judged is On.PATH else call.judged.value
        yield f"| `{call.method} {call.path}` | `{call.verb}` | {on} |\n"


def format_admin(admin_routes: dict[str, Routes]) -> Iterator[str]:
    yield "| port | verb | routes |\n|---|---|---|\n"
    for role, routes in admin_routes.items():
        for verb in (None, *Verb):
            of_verb = [key for key, said in routes.items() if said is verb]
            if of_verb:
                named = ", ".join(f"`{method} {path}`" for method, path in of_verb)
                word = "of anybody" if verb is None else f"`{verb}`"
                yield f"| {role or 'every'} | {word} | {named} |\n"


def format_roles() -> Iterator[str]:
    yield f"| verb | {' | '.join(GrantedRole)} |\n|{'---|' * (1 + len(GrantedRole))}\n"
    for verb in Verb:
        held = " | ".join("✓" if verb in role.verbs else " " for role in GrantedRole)
        yield f"| `{verb}` | {held} |\n"
