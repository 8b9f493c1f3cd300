"""What an account may not do, by a fake API server and a real one: the same cases on both.

The rights are those that the operator lists; the rules are a Role's.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from duramen_operator.rights import RIGHTS
from duramen_operator.typed.reviews import MissingRight, find_missing_rights
from tests.kubernetes.typed.worlds import (
    EVENTS,
    FakeWorld,
    OpenWorld,
    World,
    connected,
    fake_world,
    list_rules,
)


async def find_missing(world: World) -> tuple[MissingRight, ...]:
    async with connected(world) as (client, _):
        return await find_missing_rights(client, world.namespace, RIGHTS)


def test_an_account_with_every_right_misses_none(open_world: OpenWorld) -> None:
    with open_world(list_rules()) as world:
        assert asyncio.run(find_missing(world)) == ()


def test_an_account_that_may_do_everything_misses_none(open_world: OpenWorld) -> None:
    everything = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
    rules = [*EVENTS, everything]
    with open_world(rules) as world:
        assert asyncio.run(find_missing(world)) == ()


def test_what_is_missing_is_named_by_kind_and_verb(open_world: OpenWorld) -> None:
    rules = [rule for rule in list_rules() if rule["apiGroups"] != ["policy"]]
    for rule in rules:
        if "logs/status" in rule["resources"]:
            rule["resources"].remove("logs/status")
        if rule["apiGroups"] == ["batch"]:
            rule["verbs"].remove("delete")
    with open_world(rules) as world:
        missing = asyncio.run(find_missing(world))
    assert [(one.resource, one.verbs) for one in missing] == [
        ("logs/status", ("get", "patch")),
        ("poddisruptionbudgets", ("get", "list", "watch", "create", "patch", "delete")),
        ("cronjobs", ("delete",)),
        ("jobs", ("delete",)),
    ]
    assert str(missing[2]) == "delete cronjobs.batch (archive runs)"


def test_a_right_to_objects_of_some_names_is_none(open_world: OpenWorld) -> None:
    rules = list_rules()
    for rule in rules:
        if rule["resources"] == ["pods"]:
            rule["resourceNames"] = ["main-zookeeper-0"]
    with open_world(rules) as world:
        missing = asyncio.run(find_missing(world))
    assert [(one.resource, one.verbs) for one in missing] == [("pods", ("get", "list", "watch"))]


def test_rights_that_are_listed_are_not_asked_for_singly(tmp_path: Path) -> None:
    async def run(world: FakeWorld) -> int:
        async with connected(world) as (client, _):
            assert await find_missing_rights(client, "here", RIGHTS) == ()
        return len(world.api.requests)

    with fake_world(list_rules(), tmp_path) as world:
        assert asyncio.run(run(world)) == 1
        world.api.requests.clear()
        world.api.hides_rules = True
        right_count = sum(len(right.resources) * len(right.verbs) for right in RIGHTS)
        assert asyncio.run(run(world)) == 1 + right_count
