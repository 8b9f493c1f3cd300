"""The write proxy over real HTTP: names of logs, and namespaces and logs that are made and listed.

Before fake sequencers and a metadata store in memory, as in `test_writeproxy`, whose appends are
not here. The neighbours are `writeproxy_world`'s. Source: docs/protocol/rest.md.
"""

import asyncio

import pytest

from duramen.config import NamespaceConfig, parse_log_config
from duramen.core.hashing import rank_nodes
from duramen.errors import DuramenError
from duramen.wire.metadata_json import encode_node
from tests.component.writeproxy_world import (
    PATHS,
    RECORDS,
    World,
    run,
)

# --- Names ---


def test_a_missing_name_is_not_remembered_and_a_changed_one_is_seen() -> None:
    async def scenario(world: World) -> None:
        path = RECORDS.replace("/l/", "/new/")
        assert (await world.append(path=path))[0] == 404
        await world.put_log("new", 7)
        assert (await world.append(path=path))[0] == 200
        await world.setup.set(PATHS.name("a", "new"), encode_node({"log_id": "8"}), version=0)
        assert (await world.append(path=path))[0] == 200
        assert [row.log_id for row in world.rows] == [7, 8]

    run(scenario)


def test_known_logs_are_served_without_zookeeper() -> None:
    async def scenario(world: World) -> None:
        assert (await world.append())[0] == 200
        world.store.disconnect()
        assert (await world.append())[0] == 200
        status, problem = await world.append(path=RECORDS.replace("/l/", "/m/"))
        assert (status, problem["code"]) == (503, "metadata_unavailable")
        assert (await world.call("GET", "/v1/namespaces"))[0] == 503
        world.store.reconnect()
        assert (await world.append(path=RECORDS.replace("/l/", "/m/")))[0] == 200

    run(scenario)


def test_many_appends_to_one_log_read_its_name_once() -> None:
    async def scenario(world: World) -> None:
        await asyncio.gather(*(world.append() for _ in range(20)))
        assert world.proxy.statistics()["names"] == {"names": 1, "lookups": 0, "reads": 1}

    run(scenario)


# --- Namespaces and logs ---


def test_creation_is_forwarded_as_it_is_stored_so_that_older_sequencers_read_it() -> None:
    async def scenario(world: World) -> None:
        wanted = parse_log_config({"roll": {"size": "1MiB"}})
        config, stored = wanted.to_json(), wanted.to_stored()
        made = {"created": True, "log_id": "9", "config": config}
        world.first.control_answers = [(200, made), (200, {**made, "created": False})]
        for expected in (201, 200):
            status, answer = await world.call(
                "PUT", "/v1/namespaces/a/logs/n", b'{"roll":{"size":"1MiB"}}'
            )
            assert status == expected
            assert answer == {"namespace": "a", "name": "n", "log_id": "9", "config": config}
        message = {"op": "create_log", "namespace": "a", "log": "n", "config": stored}
        assert world.first.controls == [message, message]
        world.first.control_answers = [(200, {"created": True, "config": {"auto_create": False}})]
        status, answer = await world.call("PUT", "/v1/namespaces/b")
        assert (status, answer) == (201, {"namespace": "b", "config": {"auto_create": False}})

    run(scenario)


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "field"),
    [
        ("a/logs/n", b'{"rol":{}}', 400, "unknown_field", "rol"),
        ("a/logs/n", b'{"roll":{"size":1}}', 400, "invalid_argument", "roll.size"),
        ("a/logs/n", b"[]", 400, "invalid_argument", None),
        ("a/logs/n", b'{"roll":{},"roll":{}}', 400, "invalid_argument", "roll"),
        ("a/logs/n", b" " * 70_000, 413, "batch_too_large", None),
        ("a/logs/_n", b"{}", 400, "invalid_name", "log"),
        ("A", b"{}", 400, "invalid_name", "namespace"),
        ("b", b'{"auto_create":"yes"}', 400, "invalid_argument", "auto_create"),
        ("b?x=1", b"{}", 400, "unknown_field", "x"),
    ],
)
def test_a_bad_creation_is_not_forwarded(
    path: str, body: bytes, status: int, code: str, field: str | None
) -> None:
    async def scenario(world: World) -> None:
        got, problem = await world.call("PUT", f"/v1/namespaces/{path}", body)
        assert (got, problem["code"], problem.get("field")) == (status, code, field)
        assert not world.first.controls

    run(scenario)


def test_a_creations_refusal_is_passed_on_and_a_dead_sequencer_is_not_asked_twice() -> None:
    async def scenario(world: World) -> None:
        by_key = {s.name: s for s in world.sequencers}
        names = rank_nodes("a/n", dict.fromkeys(by_key, 1.0))
        await by_key[names[0]].stop()
        conflict = DuramenError("log_exists_with_other_config", "other", field="roll").problem()
        by_key[names[1]].control_answers = [(409, conflict)]
        status, problem = await world.call("PUT", "/v1/namespaces/a/logs/n", b"{}")
        assert (status, problem) == (409, conflict)

    run(scenario, 2)


def test_what_exists_can_be_read_and_listed() -> None:
    async def scenario(world: World) -> None:
        assert await world.call("GET", "/v1/namespaces/a") == (
            200, {"namespace": "a", "config": NamespaceConfig().to_json()},
        )  # fmt: skip
        status, log = await world.call("GET", "/v1/namespaces/a/logs/l")
        assert (status, log["name"], log["log_id"]) == (200, "l", "5")
        assert log["config"] == parse_log_config({}).to_json()
        for path, code in (("b", "namespace_not_found"), ("a/logs/x", "log_not_found")):
            status, problem = await world.call("GET", f"/v1/namespaces/{path}")
            assert (status, problem["code"]) == (404, code)
        assert (await world.call("GET", "/v1/namespaces/b/logs"))[0] == 404

    run(scenario)


def test_listings_have_pages() -> None:
    async def scenario(world: World) -> None:
        for number in range(3):
            await world.put_log(f"p{number}", 10 + number)

        async def names(query: str) -> tuple[list[str], bool]:
            status, page = await world.call("GET", f"/v1/namespaces/a/logs{query}")
            assert status == 200
            return [log["name"] for log in page["logs"]], page["has_more"]

        assert await names("") == (["l", "m", "p0", "p1", "p2"], False)
        assert await names("?prefix=p&limit=2") == (["p0", "p1"], True)
        assert await names("?prefix=p&limit=2&start_after=p1") == (["p2"], False)
        assert await names("?start_after=z") == ([], False)
        assert await world.call("GET", "/v1/namespaces?limit=1") == (
            200, {"namespaces": [{"namespace": "a"}], "has_more": False},
        )  # fmt: skip
        for query in ("limit=0", "limit=1001", "limit=x", "limit=-1", "limit=1&limit=2"):
            status, problem = await world.call("GET", f"/v1/namespaces?{query}")
            assert (status, problem["code"], problem["field"]) == (400, "invalid_argument", "limit")

    run(scenario)
