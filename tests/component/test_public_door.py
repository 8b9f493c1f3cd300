"""The door of a public port: every call of the table × callers of every kind, of both proxies.

The application behind it says who came through. What each caller may do is restated here from the
roles of the page, by hand. Source: docs/protocol/rights.md "How a call is judged".
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from duramen.core.rights.verbs import ROLE_VERBS, GrantedRole, Verb
from duramen.errors import DuramenError
from duramen.runtime.admission.admission import open_admission
from duramen.runtime.admission.callers import REQUEST_KEY, caller_of
from duramen.runtime.identity.callers import FIRST_COUNT_PER_LEAF
from duramen.runtime.identity.header import NamedClient
from duramen.runtime.identity.names import Identity
from duramen.runtime.public.calls import CALLS, On, PublicCall
from duramen.runtime.role import ServiceOptions, StartRefusedError
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from tests.component.admission_world import (
    READ,
    WRITE,
    Callers,
    Headers,
    as_user,
    bear,
    secure,
)
from tests.component.credential_world import write_issuers
from tests.component.door_world import (
    DOCUMENTS,
    FAR_S,
    GRANTS,
    TOKEN,
    Port,
    World,
    list_known,
    play,
)
from tests.component.issuing_world import IssuingWorld, read_time
from tests.unit.web_token_forge import NOW_S, STRANGER, forge
from tests.waiting import wait_for

TARGETS: Final = (
    ("shop", "orders"), ("shop", "ord"), ("shop", "or"), ("shop", "Orders"), ("shop", "missing"),
    ("stock", "orders"), ("sho", "orders"),
)  # fmt: skip


def list_calls() -> Iterator[tuple[PublicCall, str, str | None, str | None]]:
    """Every row, on every target."""
    for row in CALLS:
        has_log, has_namespace = "{log}" in row.path, "{namespace}" in row.path
        for namespace, log in TARGETS if has_log else TARGETS[::5]:
            path = row.path.format(namespace=namespace, log=log, id="abcdefgh234567ab")
            yield row, path, namespace if has_namespace else None, log if has_log else None


def is_on(scope: str, row: PublicCall, namespace: str | None, log: str | None) -> bool:
    """Whether a scope covers the target; of a list, anything that it may show."""
    of, slash, rest = scope.partition("/")
    is_list = row.name in ("listLogs", "listNamespaces")
    if scope == "*" or (is_list and namespace in (None, of)):
        return True
    if of != namespace:
        return False
    if not slash:
        return True
    return log is not None and (log.startswith(rest[:-1]) if rest.endswith("*") else log == rest)


def may(who: str, row: PublicCall, namespace: str | None, log: str | None) -> bool:
    """By the grants above and the roles of the page."""
    if row.name == "listNamespaces" or row.judged is On.CALL:
        return True
    held = [
        (ROLE_VERBS[GrantedRole(role)], scope)
        for name, role, scope in map(str.split, GRANTS)
        if name in who.split()
    ]
    if "token" in who.split():
        held += [
            (frozenset(map(Verb, verbs.split(","))), on) for verbs, on in map(str.split, TOKEN)
        ]
    if "operator" in who.split():
        return True
    return any(row.verb in verbs and is_on(scope, row, namespace, log) for verbs, scope in held)


def test_every_call_of_every_caller_is_judged_as_the_page_says(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.callers.give(*GRANTS)
        count = 0
        for port, other in zip(world.ports, (READ, WRITE), strict=True):
            for who, (shown, client) in (await list_known(world, port)).items():
                by_proxy = world.callers.identify(
                    other.role.value, other.name, port.receiver, client
                )
                for row, path, namespace, log in list_calls():
                    expected = 200 if may(who, row, namespace, log) else 403
                    for headers in (shown, by_proxy):
                        answer = await port.call(row.method, path, headers)
                        assert answer.status == expected, (who, row.name, path)
                        count += 1
                    if expected == 200:
                        bearer = caller_of(_Asked(port.reached[-1]))
                        assert bearer is not None and str(bearer.principal) == client.principal
        assert count > 2 * 2 * 11 * len(CALLS)

    play(tmp_path, scenario)


class _Asked(NamedTuple):
    scope: dict[str, Any]


def list_unknown(world: World, port: Port) -> dict[str, list[Headers]]:
    """Callers who are not known, whatever they ask for."""
    callers, receiver = world.callers, port.receiver
    other = WRITE if receiver == READ else READ
    good, client = as_user("own"), NamedClient("user:corp/own", (), FAR_S)
    speaks, own_name = (receiver, client), "bm9ib2R5"
    own = callers.identify("client", "till", receiver)
    in_time = callers.identify(other.role.value, other.name, receiver, client)
    found: dict[str, list[Headers]] = {
        "nobody": [],
        "expired": [as_user("own", iat=NOW_S - 7_200, exp=NOW_S - 3_600)],
        "of another audience": [as_user("own", aud="duramen/others")],
        "of another issuer": [as_user("own", iss="https://evil.example")],
        "of another scheme": [{"authorization": f"Basic {own_name}"}],
        "without an algorithm": [bear(forge({"alg": "none"}))],
        "with another's algorithm": [bear(forge({"alg": "HS256"}))],
        "with a key in it": [bear(forge({"jwk": {}}))],
        "with an unknown key": [bear(forge({"kid": "../ec-1"}))],
        "with what is critical": [bear(forge({"crit": ["exp"]}))],
        "for a year": [as_user("own", exp=NOW_S + 366 * 86_400)],
        "by a stranger": [bear(forge(None, {"sub": "own"}, key=STRANGER))],
        "cut": [bear(forge(None, {"sub": "own"})[:-1])],
        "of 9,000 characters": [bear("a" * 9_000)],
        "an unknown API token": [bear(f"dur1_{'a' * 16}_{'a' * 52}")],
        "two kinds": [good, own],
        "two identities": [own, in_time],
        "for another proxy": [callers.identify("client", "till", other)],
        "for another proxy, in a client's name": [
            callers.identify(other.role.value, other.name, other, client)
        ],
        "of another cluster": [Callers(world.strangers, world.tree).identify(
            "operator", "op", receiver
        )],
        "an old header": [
            callers.identify("client", "till", receiver, at=read_time() - dt.timedelta(hours=1))
        ],
        **{
            f"{role} that speaks for a client": [callers.identify(role, f"{role}-9", *speaks)]
            for role in ("client", "operator", "monitor", "archive", "bookie", "sequencer",
                         receiver.role.value)
        },
        "for as a header of its own": [{"for": "user:corp/own"}],
        "forwarded, and nothing else": [{"duramen-forwarded": "wp-0"}],
    }  # fmt: skip
    for name, named in {
        "ended": ("user:corp/own", (), NOW_S - 10),
        "a group": ("group:corp/team", (), FAR_S),
        "nobody": ("user:corp", (), FAR_S),
        "nothing": ("", (), FAR_S),
        "groups of a token": (f"token:{'a' * 16}", ("team",), FAR_S),
        "groups of a service": ("service:client/till", ("team",), FAR_S),
        "groups of an account": ("serviceaccount:corp/shop/till", ("team",), FAR_S),
        "a group with a space": ("user:corp/own", (" team",), FAR_S),
        "a token that is not there": (f"token:{'a' * 16}", (), FAR_S),
    }.items():
        made = callers.identify(other.role.value, other.name, receiver, NamedClient(*named))
        found[f"a proxy that speaks for {name}"] = [made]
    return found


def test_whoever_is_not_known_gets_one_and_the_same_answer(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.callers.give("own owner *")
        port_answers = set()
        for port in world.ports:
            unknown = list_unknown(world, port)
            for who, shown in unknown.items():
                for path in ("/v1/namespaces/shop/logs/orders/records", "/v1/namespaces", "/x"):
                    answer = await port.call("GET", path, *shown)
                    assert answer.status == 401, (who, path)
                    assert answer.headers.pop(REQUEST_KEY)
                    port_answers.add((str(sorted(answer.headers.items())), answer.body))
            assert (await port.call("GET", "/v1/namespaces", as_user("own"), twice=True))[0] == 401
            assert not port.reached
        assert len(port_answers) == 1
        told = port_answers.pop()
        assert "('www-authenticate', 'Bearer realm=\"duramen\"')" in told[0]
        assert "no-store" in told[0]

    play(tmp_path, scenario)


def test_a_revoked_token_counts_no_more_whoever_vouches_for_it(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        port = world.ports[0]
        text, token_id = await world.callers.make_token("append *")
        client = NamedClient(f"token:{token_id}", (), FAR_S)
        by_proxy = world.callers.identify(READ.role.value, READ.name, WRITE, client)
        path = "/v1/namespaces/shop/logs/orders/records"

        async def find(headers: Headers) -> int:
            return (await port.call("POST", path, headers)).status

        async def is_known() -> bool:
            return [await find(bear(text)), await find(by_proxy)] == [200, 200]

        async def is_unknown() -> bool:
            return [await find(bear(text)), await find(by_proxy)] == [401, 401]

        await wait_for(is_known)
        await world.callers.revoke(token_id)
        await wait_for(is_unknown, 5.0)

    play(tmp_path, scenario)


def test_a_refusal_is_the_same_whatever_is_there_and_names_what_was_asked(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        port = world.ports[0]
        expected = {
            ("POST", "/v1/namespaces/shop/logs/orders/records"): b"append to shop/orders",
            ("GET", "/v1/namespaces/shop/logs/orders/records"): b"read on shop/orders",
            ("PATCH", "/v1/namespaces/shop"): b"configure on shop",
            ("GET", "/v1/namespaces/shop/logs"): b"list on shop",
        }
        for (method, path), words in expected.items():
            answer = await port.call(method, path, as_user("nobody"))
            assert answer.status == 403 and b'"' + words + b': you may not"' in answer.body
            missing = await port.call(method, path.replace("shop", "nope"), as_user("nobody"))
            assert missing.body.replace(b"nope", b"shop") == answer.body
            assert answer.headers.keys() == missing.headers.keys()

    play(tmp_path, scenario)


def test_what_is_no_name_is_refused_to_anybody_and_documents_are_given_to_anybody(
    tmp_path: Path,
) -> None:
    async def scenario(world: World) -> None:
        port = world.ports[1]
        for path in ("/v1/namespaces/No_Name", "/v1/namespaces/a/logs/-x/records"):
            assert (await port.call("GET", path)).status == 400
        for path in DOCUMENTS:
            assert (await port.call("GET", path)).status == 200
        for method, path in (("GET", "/v2"), ("OPTIONS", "/v1/namespaces"), ("POST", "/docs/x")):
            assert (await port.call(method, path)).status == 401
            assert (await port.call(method, path, as_user("nobody"))).status == 200, "the app's"
        assert (await port.call("HEAD", "/v1/namespaces/a")).body == b""

    play(tmp_path, scenario)


def test_while_nothing_is_known_nobody_is_refused_as_unknown_or_forbidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(world: World) -> None:
        await world.callers.give("own owner *")
        port, admission = world.ports[0], world.admissions[0]
        refusal = DuramenError("metadata_unavailable", "grants: not read yet")

        def fail() -> None:
            raise refusal

        monkeypatch.setattr(admission._rights._grants, "get_table", fail)
        answer = await port.call("GET", "/v1/namespaces/shop", as_user("own"))
        assert (answer.status, b"metadata_unavailable" in answer.body) == (503, True)
        monkeypatch.setattr(admission._tokens, "_is_blind", lambda: True)
        answer = await port.call("GET", "/x", bear(f"dur1_{'a' * 16}_{'a' * 52}"))
        assert (answer.status, b"metadata_unavailable" in answer.body) == (503, True)

    play(tmp_path, scenario)


def test_who_makes_header_after_header_is_told_to_wait(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        def make(second: int, receiver: Identity = WRITE) -> Headers:
            at = read_time() - dt.timedelta(seconds=second)
            return world.callers.identify("client", "till", receiver, at=at)

        answers = [await world.ports[0].call("GET", "/x", make(second)) for second in range(34)]
        statuses = [answer.status for answer in answers]
        assert statuses[:FIRST_COUNT_PER_LEAF] == [200] * FIRST_COUNT_PER_LEAF
        assert statuses[-1] == 429 and answers[-1].headers["retry-after"] == "1"

    play(tmp_path, scenario)


def test_a_proxy_has_room_for_a_header_of_each_of_its_clients(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        port = world.ports[0]
        for number in range(3 * FIRST_COUNT_PER_LEAF):
            client = NamedClient(f"user:corp/u{number}", (), FAR_S)
            shown = world.callers.identify(READ.role.value, READ.name, WRITE, client)
            assert (await port.call("GET", "/x", shown)).status == 200
        counts = world.securities[0].clients.statistics()
        assert (counts["callers"], counts["headers"]) == (1, 3 * FIRST_COUNT_PER_LEAF)

    play(tmp_path, scenario)


OPTIONS: Final = ServiceOptions(
    "writeproxy", "c", "wp-0", "127.0.0.1", 0, 0, "", "r", "r", "on", 4.0, None
)


@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3", "::", "proxy.example.com", ""])
def test_a_port_that_others_reach_does_not_take_credentials_in_plain_text(
    tmp_path: Path, host: str
) -> None:
    security = secure(IssuingWorld(tmp_path).issue("writeproxy", "wp-0"))
    store = MemoryStore(MemoryTree())
    options = _replace(host=host)
    with pytest.raises(StartRefusedError, match="in plain text"):
        open_admission(options, store, security)
    assert open_admission(options, store, None) is None, "nobody is asked"


def _replace(**changed: Any) -> ServiceOptions:
    return dataclasses.replace(OPTIONS, **changed)


def test_a_file_of_issuers_is_refused_with_all_its_faults(tmp_path: Path) -> None:
    security = secure(IssuingWorld(tmp_path / "ca").issue("writeproxy", "wp-0"))
    rows: list[Mapping[str, Any]] = [{"name": "Corp", "kind": "ldap"}, {"name": "k8s"}]
    options = _replace(issuers=write_issuers(tmp_path, rows), host="localhost")
    with pytest.raises(StartRefusedError) as caught:
        open_admission(options, MemoryStore(MemoryTree()), security)
    text = str(caught.value)
    for fault in ("issuers[0].name", "issuers[0].kind", "issuers[1].kind", "issuers[1].keys"):
        assert fault in text
