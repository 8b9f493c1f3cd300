"""Namespaces are changed and deleted: the sequencer's part on a store in memory, and the routes.

A namespace goes only while it has no names of logs, and ZooKeeper itself sees to that; over real
HTTP and a real ZooKeeper it is in tests/process/test_sdk.py and test_error_codes.py.
Source: docs/protocol/rest.md "Write proxy", docs/protocol/metadata.md "The changes".
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from duramen.config import parse_namespace_config
from duramen.errors import DuramenError
from duramen.runtime.cluster_node import ensure_cluster
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.runtime.stores.metadata_store import DeleteNode, Op, OutcomeUnknown, Set
from duramen.wire.metadata_json import Paths, encode_node, read_node
from duramen_sequencer.control import Control
from tests.component import writeproxy_world
from tests.component.life_world import HOUR_MS
from tests.component.life_world import World as LifeWorld
from tests.component.life_world import run as run_life
from tests.component.writeproxy_world import World

PATHS = Paths("test")
NAMESPACE = "/v1/namespaces/a"


class Doubtful(MemoryStore):
    """Writes whose outcome nobody is told, as many as `doubts`; applied, or lost on their way."""

    doubts = 0
    is_applied = True

    async def commit(self, ops: Sequence[Op]) -> tuple[int, ...]:
        if not self.doubts or not any(isinstance(op, Set | DeleteNode) for op in ops):
            return await super().commit(ops)
        self.doubts -= 1
        if self.is_applied:
            await super().commit(ops)
        raise OutcomeUnknown("the connection broke")


class Cluster:
    """A sequencer's control calls."""

    def __init__(self) -> None:
        self.store = Doubtful(MemoryTree())
        self.control = Control(self.store, PATHS, {})

    async def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        return await self.control.handle(json.dumps({"op": op, **fields}).encode())

    async def change(self, patch: dict[str, Any]) -> dict[str, Any]:
        return await self.ask("change_namespace", namespace="ns", config=patch)

    async def delete(self) -> bool:
        return bool((await self.ask("delete_namespace", namespace="ns"))["changed"])

    async def stored(self) -> Any:
        node = await self.store.get(PATHS.namespace("ns"))
        return None if node is None else read_node(node.data)["config"]


def run(scenario: Callable[[Cluster], Awaitable[None]]) -> None:
    async def play() -> None:
        cluster = Cluster()
        await cluster.store.start()
        await ensure_cluster(cluster.store, PATHS)
        await cluster.ask("create_namespace", namespace="ns", config={})
        async with asyncio.timeout(30):
            await scenario(cluster)

    asyncio.run(play())


def whole(config: dict[str, Any]) -> dict[str, Any]:
    """As answers have it: with every field, whatever is stored."""
    return parse_namespace_config(config).to_json()


async def refuse(work: Awaitable[Any]) -> DuramenError:
    with pytest.raises(DuramenError) as caught:
        await work
    return caught.value


def test_a_change_is_made_once_and_told() -> None:
    async def scenario(cluster: Cluster) -> None:
        on, off = {"auto_create": True}, {"auto_create": False}
        assert await cluster.change(on) == {"config": whole(on), "changed": True}
        assert await cluster.change(on) == {"config": whole(on), "changed": False}
        assert await cluster.change({}) == {"config": whole(on), "changed": False}
        assert await cluster.stored() == on
        # What is there counts for a PUT from now on.
        made = await cluster.ask("create_namespace", namespace="ns", config=on)
        assert made["created"] is False
        other = cluster.ask("create_namespace", namespace="ns", config=off)
        assert (await refuse(other)).code == "log_exists_with_other_config"

    run(scenario)


def test_a_change_keeps_the_fields_of_a_newer_version() -> None:
    async def scenario(cluster: Cluster) -> None:
        path = PATHS.namespace("ns")
        found = await cluster.store.get(path)
        assert found is not None
        newer = encode_node({**read_node(found.data), "quota": 7})
        await cluster.store.set(path, newer, version=found.version)
        await cluster.change({"auto_create": True})
        found = await cluster.store.get(path)
        assert found is not None and read_node(found.data)["quota"] == 7

    run(scenario)


@pytest.mark.parametrize("is_applied", [True, False])
def test_a_change_of_unknown_outcome_is_looked_up(is_applied: bool) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.store.is_applied = is_applied
        cluster.store.doubts = 3
        on = {"auto_create": True}
        assert await cluster.change(on) == {"config": whole(on), "changed": True}
        assert cluster.store.doubts == (2 if is_applied else 0)
        assert await cluster.stored() == on

    run(scenario)


def test_changes_at_once_are_all_made() -> None:
    async def scenario(cluster: Cluster) -> None:
        wanted = [{"auto_create": number % 2 == 0} for number in range(8)]
        answers = await asyncio.gather(*(cluster.change(patch) for patch in wanted))
        assert [answer["config"] for answer in answers] == [*map(whole, wanted)]
        assert any(answer["changed"] for answer in answers)

    run(scenario)


def test_a_namespace_without_logs_goes_and_may_come_again() -> None:
    async def scenario(cluster: Cluster) -> None:
        assert await cluster.delete()
        assert await cluster.stored() is None
        assert await cluster.store.get(PATHS.names_of("ns")) is None
        assert not await cluster.delete(), "it is gone already"
        for work in (
            cluster.change({}),
            cluster.ask("create_log", namespace="ns", log="l", config={}),
        ):
            assert (await refuse(work)).code == "namespace_not_found"
        assert (await cluster.ask("create_namespace", namespace="ns", config={}))["created"]
        assert (await cluster.ask("create_log", namespace="ns", log="l", config={}))["created"]

    run(scenario)


def test_a_namespace_has_as_many_logs_as_it_may() -> None:
    async def scenario(cluster: Cluster) -> None:
        def create(log: str) -> Awaitable[dict[str, Any]]:
            return cluster.ask("create_log", namespace="ns", log=log, config={})

        assert (await create("a"))["created"]
        await cluster.change({"limits": {"logs": 2}})
        assert (await create("b"))["created"]
        refusal = await refuse(create("c"))
        assert (refusal.code, refusal.kind.status, refusal.field) == (
            "too_many_logs", 429, "limits.logs"
        )  # fmt: skip
        assert refusal.problem()["retryable"] is False
        assert (await create("b"))["created"] is False, "what is there is no further log"
        await cluster.change({"limits": {"logs": "none"}})
        assert (await create("c"))["created"]

    run(scenario)


def test_a_namespace_of_a_newer_version_has_logs_made_within_the_default() -> None:
    async def scenario(cluster: Cluster) -> None:
        path = PATHS.namespace("ns")
        found = await cluster.store.get(path)
        assert found is not None
        newer = {"of_a_newer_version": 3, "limits": {"logs": 1}}
        await cluster.store.set(path, encode_node({"config": newer}), version=found.version)
        for log in ("a", "b"):
            assert (await cluster.ask("create_log", namespace="ns", log=log, config={}))["created"]

    run(scenario)


def test_what_older_processes_do_not_know_is_stored_only_where_it_is_used() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.change({"limits": {"calls_per_s": 5}})
        assert (await cluster.stored())["limits"]["calls_per_s"] == 5
        await cluster.change({"limits": whole({})["limits"]})
        assert await cluster.stored() == {"auto_create": False}
        error = await refuse(cluster.change({"encryption_version": 1}))
        assert (error.code, error.field) == ("invalid_argument", "encryption_version")

    run(scenario)


def test_a_namespace_with_logs_stays_until_the_last_one_is_purged() -> None:
    async def act(world: LifeWorld) -> None:
        async def try_it() -> str:
            return (await world.refused("delete_namespace", namespace="ns")).code

        log_id = await world.create()
        assert await try_it() == "namespace_not_empty"
        await world.ask("delete", log_id=log_id)
        assert await try_it() == "namespace_not_empty", "it may be had back"
        await world.ask("undelete", namespace="ns", log="log")
        await world.ask("delete", log_id=log_id)
        world.now_ms = 2 * HOUR_MS
        await world.run_rounds()
        assert await world.ask("delete_namespace", namespace="ns") == {"changed": True}

    run_life(act)


@pytest.mark.parametrize("is_applied", [True, False])
def test_a_deletion_of_unknown_outcome_is_looked_up(is_applied: bool) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.store.is_applied = is_applied
        cluster.store.doubts = 1
        assert await cluster.delete()
        assert await cluster.stored() is None

    run(scenario)


def test_of_a_deletion_and_a_creation_at_once_no_log_is_left_without_a_namespace() -> None:
    """Whatever their order: the log is there with its namespace, or neither is."""

    async def outcome(work: Awaitable[Any], pause_count: int = 0) -> str:
        for _ in range(pause_count):
            await asyncio.sleep(0)
        try:
            await work
        except DuramenError as error:
            return error.code
        return "done"

    async def scenario(cluster: Cluster) -> None:
        outcomes = set()
        for number in range(40):
            await cluster.ask("create_namespace", namespace="ns", config={})
            name = f"log-{number}"
            creation = cluster.ask("create_log", namespace="ns", log=name, config={})
            made, deleted = await asyncio.gather(
                outcome(creation), outcome(cluster.delete(), number)
            )
            outcomes.add((made, deleted))
            found = await cluster.store.get(PATHS.name("ns", name))
            assert (found is not None) is (made == "done")
            assert (await cluster.stored() is not None) is (made == "done")
            if found is not None:
                await cluster.store.delete(PATHS.name("ns", name), version=found.version)
        assert outcomes > {("done", "namespace_not_empty")}, "one order"
        others = outcomes - {("done", "namespace_not_empty")}
        assert others <= {("namespace_not_found", "done"), ("metadata_unavailable", "done")}

    run(scenario)


# --- The write proxy's routes --------------------------------------------------------------------


def test_calls_are_passed_to_a_sequencer() -> None:
    async def scenario(world: World) -> None:
        config = {"auto_create": True}
        world.first.control_answers = [
            (200, {"config": config, "changed": True}),
            (200, {"changed": True}),
        ]
        answer = await world.call("PATCH", NAMESPACE, b'{"auto_create": true}')
        assert answer == (200, {"namespace": "a", "config": config, "changed": True})
        answer = await world.call("DELETE", NAMESPACE)
        assert answer == (200, {"namespace": "a", "changed": True})
        assert world.first.controls == [
            {"op": "change_namespace", "namespace": "a", "config": config},
            {"op": "delete_namespace", "namespace": "a"},
        ]
        for code in ("namespace_not_found", "namespace_not_empty", "metadata_unavailable"):
            refusal = DuramenError(code, "as scripted", field="namespace")
            world.first.control_answers = [(refusal.kind.status, refusal.problem())]
            method = "PATCH" if code == "namespace_not_found" else "DELETE"
            answer = await world.call(method, NAMESPACE)
            assert answer == (refusal.kind.status, refusal.problem())

    writeproxy_world.run(scenario)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "field"),
    [
        ("PATCH", NAMESPACE, b"[]", 400, "invalid_argument", None),
        ("PATCH", NAMESPACE, b'{"auto_create": 1}', 400, "invalid_argument", "auto_create"),
        ("PATCH", NAMESPACE, b'{"retention": {}}', 400, "unknown_field", "retention"),
        ("PATCH", NAMESPACE + "?config_version=1", b"{}", 400, "unknown_field", "config_version"),
        ("PATCH", NAMESPACE, b" " * (1 << 17), 413, "batch_too_large", None),
        ("PATCH", "/v1/namespaces/A", b"{}", 400, "invalid_name", "namespace"),
        ("DELETE", NAMESPACE, b'{"force": true}', 400, "unknown_field", "force"),
        ("DELETE", NAMESPACE + "?force=1", None, 400, "unknown_field", "force"),
        ("DELETE", "/v1/namespaces/-", None, 400, "invalid_name", "namespace"),
    ],
)
def test_a_bad_call_is_refused_here(  # noqa: PLR0917 - one call and its answer
    method: str, path: str, body: bytes | None, status: int, code: str, field: str | None
) -> None:
    async def scenario(world: World) -> None:
        got, problem = await world.call(method, path, body)
        assert (got, problem["code"]) == (status, code) and problem.get("field") == field
        assert not world.first.controls

    writeproxy_world.run(scenario)


def test_other_media_and_a_proxy_that_stops_are_refused() -> None:
    async def scenario(world: World) -> None:
        for method in ("PATCH", "DELETE"):
            got, problem = await world.call(method, NAMESPACE, b"{}", content_type="text/plain")
            assert (got, problem["code"]) == (415, "unsupported_media")
        await world.first.stop()
        world.proxy._append_route.is_draining = True
        for method in ("PATCH", "DELETE"):
            got, problem = await world.call(method, NAMESPACE)
            assert (got, problem["code"]) == (503, "server_draining")

    writeproxy_world.run(scenario)
