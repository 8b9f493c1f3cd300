"""Both proxies with identities, behind real ports: who may, who may not, and what is forwarded.

Source: docs/protocol/rights.md "How a call is judged", docs/protocol/identity.md "The caller's
header".
"""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from duramen.core.rights.system_namespace import SYSTEM_NAMESPACE
from duramen.runtime.identity.header import NamedClient
from duramen.runtime.identity.names import make_identity
from duramen.wire.metadata_json import encode_node
from tests.component.admission_world import (
    LOG,
    PATHS,
    READ,
    RECORDS,
    WRITE,
    AdmissionWorld,
    Headers,
    as_user,
    bear,
    play,
    until,
)
from tests.unit.identities import DOMAIN
from tests.waiting import wait_for

RECORD = {"records": [{"body": "x"}]}
ANN, BOB = as_user("ann"), as_user("bob")


def test_who_may_is_served_by_either_proxy_and_nobody_else(tmp_path: Path) -> None:
    async def scenario(world: AdmissionWorld) -> None:
        await world.callers.give("ann writer ns", "bob reader ns/lo*")
        await world.open_segment()
        await world.append(2)
        for client in (world.write, world.http):
            await until(partial(client.post, RECORDS, json=RECORD, headers=ANN), 200)
            await until(partial(client.get, RECORDS, headers=BOB), 200)
            refused = await client.post(RECORDS, json=RECORD, headers=BOB)
            assert refused.status_code == 403
            assert refused.json()["detail"] == "append to ns/log: you may not"
            unknown = await client.post(RECORDS, json=RECORD)
            assert unknown.status_code == 401
            assert unknown.headers["www-authenticate"] == 'Bearer realm="duramen"'
            assert (await client.get("/v1/openapi.json")).status_code == 200
        assert len(world.sequencer.rows) == 2, "one through each proxy, none of the refused"
        for proxy in (world.proxy, world.write_proxy):
            counts = proxy.statistics()["forwarding"]
            assert counts["forwarded"] >= 1, "what the other one refuses is not sent on"
            assert counts["not_known_there"] == counts["refused"] == 0

    play(tmp_path, scenario)


def test_a_forwarded_call_names_its_client_and_carries_no_credential(tmp_path: Path) -> None:
    async def scenario(world: AdmissionWorld) -> None:
        await world.callers.give("group:corp/team writer ns")
        seen: list[Any] = []
        door = _find_door(world)
        admit = door._admit

        async def watch(scope: Any) -> Any:
            seen.append(dict(scope["headers"]))
            return await admit(scope)

        door._admit = watch
        shown = as_user("dan", groups=["team"]) | {"for": "user:corp/root"}
        await until(lambda: world.http.post(RECORDS, json=RECORD, headers=shown), 200)
        forwarded = [one for one in seen if b"duramen-forwarded" in one]
        assert forwarded and all(b"authorization" not in one for one in forwarded)
        assert all(b"duramen-identity" in one for one in forwarded)
        text, token_id = await world.callers.make_token("append ns")
        await until(lambda: world.http.post(RECORDS, json=RECORD, headers=bear(text)), 200)
        await world.callers.revoke(token_id)
        await until(lambda: world.http.post(RECORDS, json=RECORD, headers=bear(text)), 401)

    play(tmp_path, scenario)


def _find_door(world: AdmissionWorld) -> Any:
    """The door of the write proxy, beneath the gate and the framing."""
    found: Any = world.write_proxy._server._embedded
    while type(found).__name__ != "PublicDoor":
        found = next(
            getattr(found, name)
            for name in ("_app", "_target", "_application", "_handler")
            if hasattr(found, name)
        )
    return found


def test_a_peer_that_verifies_no_more_now_does_not_blame_the_client(tmp_path: Path) -> None:
    async def scenario(world: AdmissionWorld) -> None:
        await world.callers.give("ann writer ns", "bob writer ns")
        await until(lambda: world.http.post(RECORDS, json=RECORD, headers=ANN), 200)
        security = world.write_proxy._security
        assert security is not None
        (leaf,) = security.clients._leaves.values()
        leaf.left, leaf.bounds = 0.0, leaf.bounds._replace(gained_per_s=0.0)
        refused = await world.http.post(RECORDS, json=RECORD, headers=BOB)
        assert (refused.status_code, refused.json()["code"]) == (503, "overloaded")
        assert world.proxy.statistics()["forwarding"]["too_many_there"] == 1
        assert (await world.http.post(RECORDS, json=RECORD, headers=ANN)).status_code == 200
        # More than one: the audit trail of the same process calls meanwhile, and costs one too.
        leaf.left = float(leaf.bounds.first_count)
        assert (await world.http.post(RECORDS, json=RECORD, headers=BOB)).status_code == 200

    play(tmp_path, scenario)


def test_a_peer_that_knows_less_does_not_cost_a_good_credential(tmp_path: Path) -> None:
    """Its 401 is no word about the client, which has just been judged here."""

    async def scenario(world: AdmissionWorld) -> None:
        await world.callers.give("ann writer ns")
        await until(lambda: world.http.post(RECORDS, json=RECORD, headers=ANN), 200)
        security = world.write_proxy._security
        assert security is not None
        other = make_identity(DOMAIN, "writeproxy", "wp-1")
        security.clients._receiver = other
        security.clients._rows.clear()
        refused = await world.http.post(RECORDS, json=RECORD, headers=ANN)
        assert (refused.status_code, refused.json()["code"]) == (503, "overloaded")
        counts = world.proxy.statistics()["forwarding"]
        assert counts["not_known_there"] == 2, "it is asked once more with another header"
        security.clients._receiver = WRITE
        assert (await world.http.post(RECORDS, json=RECORD, headers=ANN)).status_code == 200

    play(tmp_path, scenario)


def test_a_header_is_good_for_one_proxy_alone(tmp_path: Path) -> None:
    async def scenario(world: AdmissionWorld) -> None:
        till = world.callers.identify("client", "till", WRITE)
        by_proxy = world.callers.identify(
            "writeproxy", "wp-0", READ, NamedClient("user:corp/ann", (), 2**31)
        )
        await world.callers.give("service:client/till writer ns", "ann writer ns")
        assert (await until(lambda: world.write.get(LOG, headers=till), 200)).status_code == 200
        assert (await world.http.get(LOG, headers=till)).status_code == 401
        assert (await until(lambda: world.http.get(LOG, headers=by_proxy), 200)).status_code == 200
        assert (await world.write.get(LOG, headers=by_proxy)).status_code == 401

    play(tmp_path, scenario)


@pytest.mark.parametrize("shown", [{}, BOB], ids=["unknown", "forbidden"])
def test_a_refused_call_is_answered_before_its_body_comes(tmp_path: Path, shown: Headers) -> None:
    async def scenario(world: AdmissionWorld) -> None:
        before = world.tree.get(PATHS.grants)
        for port in (world.proxy.port, world.write_proxy.port):
            named = "".join(f"{name}: {value}\r\n" for name, value in shown.items())
            head = (
                f"POST {RECORDS} HTTP/1.1\r\nhost: localhost\r\n{named}"
                "content-type: application/octet-stream\r\ncontent-length: 16777216\r\n\r\n"
            )
            status = await asyncio.to_thread(_ask, port, head.encode())
            assert status == (b"403" if shown else b"401")
        assert world.sequencer.rows == [] and _list_controls(world) == []
        assert world.tree.get(PATHS.grants) == before

    play(tmp_path, scenario)


def _list_controls(world: AdmissionWorld) -> list[dict[str, Any]]:
    """What calls made of the sequencer; a trail that finds no audit log asks for one whenever its
    time comes, which on a slow machine is in the midst of a test.
    """
    return [one for one in world.sequencer.controls if one["namespace"] != SYSTEM_NAMESPACE]


def _ask(port: int, head: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(head)
        return connection.recv(12)[9:]


def test_a_large_body_does_not_hide_the_refusal(tmp_path: Path) -> None:
    """Else a client whose credential has ended takes its append for one of unknown fate."""

    async def scenario(world: AdmissionWorld) -> None:
        for client in (world.http, world.write):
            for _ in range(5):
                refused = await client.post(
                    RECORDS, content=bytes(4 << 20),
                    headers={"content-type": "application/octet-stream"},
                )  # fmt: skip
                assert refused.status_code == 401

    play(tmp_path, scenario)


def test_what_a_router_reads_more_kindly_is_no_way_around_the_door(tmp_path: Path) -> None:
    async def scenario(world: AdmissionWorld) -> None:
        await world.callers.give("ann writer ns")
        for shown in (ANN, BOB):
            strange = await world.write.post(f"{RECORDS}%0A", json=RECORD, headers=shown)
            assert strange.status_code == 404
            assert (await world.http.get(f"{RECORDS}%0A", headers=shown)).status_code == 404
        assert (await world.write.post(f"{RECORDS}%0A", json=RECORD)).status_code == 401
        assert world.sequencer.rows == []

    play(tmp_path, scenario)


def test_auto_create_makes_a_log_only_for_who_may_create(tmp_path: Path) -> None:
    async def scenario(world: AdmissionWorld) -> None:
        allowing = encode_node({"config": {"auto_create": True}})
        await world.put(PATHS.namespace("ns"), allowing)
        await world.callers.give("ann writer ns", "bob producer ns")
        path = "/v1/namespaces/ns/logs/fresh/records"
        refused = await until(lambda: world.write.post(path, json=RECORD, headers=BOB), 403, 404)
        assert refused.json()["detail"] == "create on ns/fresh: you may not"
        assert _list_controls(world) == []
        stream = await world.write.post(
            f"{path}:stream", content=b"", headers={**BOB, "content-type": "application/x-ndjson"}
        )
        assert (stream.status_code, stream.json()["code"]) == (403, "forbidden")
        await world.put(PATHS.namespace("ns"), encode_node({"config": {}}))
        honest = await world.write.post(path, json=RECORD, headers=BOB)
        assert honest.json()["code"] == "log_not_found", "who may append may know"
        await world.put(PATHS.namespace("ns"), allowing)

        async def is_asked() -> bool:
            return any(one["op"] == "create_log" for one in world.sequencer.controls)

        asking = asyncio.create_task(world.write.post(path, json=RECORD, headers=ANN))
        await wait_for(is_asked)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    play(tmp_path, scenario)


def test_lists_show_what_the_caller_may_list_and_count_nothing_else(tmp_path: Path) -> None:
    async def scenario(world: AdmissionWorld) -> None:
        for namespace in ("aa", "bb", "cc"):
            await world.put(PATHS.namespace(namespace), encode_node({"config": {}}))
        for number, log in enumerate(("a1", "b1", "b2", "b3", "c1"), 20):
            await world.put(PATHS.name("ns", log), encode_node({"log_id": str(number)}))
        await world.callers.give("ann reader ns/b*", "ann producer cc/x")
        listed = "/v1/namespaces"
        both = await until(lambda: world.http.get(f"{listed}/ns/logs?limit=2", headers=ANN), 200)
        assert _names(both) == (["b1", "b2"], True)
        rest = await world.write.get(f"{listed}/ns/logs?limit=2&start_after=b1", headers=ANN)
        assert _names(rest) == (["b2", "b3"], False), "c1 does not count"
        spaces = (await world.write.get(listed, headers=ANN)).json()
        assert spaces == {"namespaces": [{"namespace": "cc"}, {"namespace": "ns"}],
                          "has_more": False}  # fmt: skip
        assert (await world.write.get(f"{listed}/aa/logs", headers=ANN)).status_code == 403
        assert (await world.write.get(f"{listed}/nope/logs", headers=ANN)).status_code == 403
        assert (await world.write.get(listed, headers=BOB)).json()["namespaces"] == []
        text, _ = await world.callers.make_token("list bb", "list ns/c*")
        mine = await until(lambda: world.write.get(listed, headers=bear(text)), 200)
        assert [one["namespace"] for one in mine.json()["namespaces"]] == ["bb", "ns"]

    play(tmp_path, scenario)


def _names(answer: httpx.Response) -> tuple[list[str], bool]:
    document = answer.json()
    return [one["name"] for one in document["logs"]], document["has_more"]


def test_what_may_be_kept_is_kept_by_nobody_else(tmp_path: Path) -> None:
    async def scenario(world: AdmissionWorld) -> None:
        await world.callers.give("ann reader ns")
        await world.open_segment()
        await world.append(3)
        await world.close_segment()
        found = await until(lambda: world.http.get(f"{RECORDS}?from=0&count=2", headers=ANN), 200)
        assert found.headers["cache-control"].startswith("private, max-age=")
        assert "Authorization" in found.headers["vary"]
        known = {**ANN, "if-none-match": found.headers["etag"]}
        again = await world.http.get(f"{RECORDS}?from=0&count=2", headers=known)
        assert again.status_code == 304 and again.headers["cache-control"].startswith("private")
        stranger = {**BOB, "if-none-match": found.headers["etag"]}
        refused = await world.http.get(f"{RECORDS}?from=0&count=2", headers=stranger)
        assert refused.status_code == 403

    play(tmp_path, scenario)
