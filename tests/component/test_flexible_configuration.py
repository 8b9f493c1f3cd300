"""Flexible logs at a sequencer, on a store in memory: what is refused, explained, and made ready.

Which nodeset is chosen, and what it lacks, is in the unit tests. Source: docs/protocol/flexible.md
"Who may meet it" and "Choosing the nodeset".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from duramen.config import parse_log_config
from duramen.core.flexible.nodeset import ServingBookie, list_serving
from duramen.core.flexible.nodeset_plan import NodesetPlan, plan_nodeset
from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment
from duramen.errors import DuramenError
from duramen.ids import BookieId, EntryId, Epoch, Incarnation
from duramen.runtime.cluster_node import ensure_cluster
from duramen.runtime.stores.memory_store import MemoryStore
from duramen.wire.metadata_json import (
    MetadataJsonError,
    encode_log,
    encode_node,
    encode_segment,
    read_node,
)
from duramen.wire.nodes.formats import PROCESS_FORMATS, understands
from duramen_sequencer.flexible.explanation import describe_nodeset
from duramen_sequencer.flexible.tree_format import METADATA_LOGS, TreeFormat
from duramen_sequencer.log_changes import LogChanges
from tests.component.placement_world import PATHS, Doubtful, World, member, with_world
from tests.unit.core_fakes import LOG_ID
from tests.unit.nodes import make_log
from tests.waiting import wait_for

FORMATS = {"formats": {"envelope": 1}}
KINDS = ("segment", "envelope")
WIDE = {"copysets": "flexible", "replication": {"node": 3, "rack": 3}}


async def create(world: World, config: dict[str, Any]) -> dict[str, Any]:
    whole = parse_log_config(config).to_json()
    return await world.ask("create_log", namespace="ns", log="log", config=whole)


async def prepare(world: World, count: int = 6) -> None:
    """So many bookies that keep envelopes, and a cluster node as a sequencer makes it."""
    for index in range(count):
        await world.add_bookie(index, **FORMATS)
    await wait_for(lambda: len(world.context.serving) == count)
    await world.ask("create_namespace", namespace="ns", config={})


async def read_format(world: World) -> object:
    stored = await world.store.get(PATHS.cluster)
    assert stored is not None
    return read_node(stored.data).get("format")


async def register(world: World, path: str, **fields: Any) -> None:
    await MemoryStore.create(world.store, path, encode_node(fields), make_parents=True)


# --- Format of the tree --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [MemoryStore, Doubtful])
def test_the_first_flexible_log_raises_the_format_and_no_other_does(
    kind: type[MemoryStore],
) -> None:
    async def scenario(world: World) -> None:
        await prepare(world)
        for parent in (PATHS.sequencers, PATHS.write_proxies, PATHS.read_proxies):
            await register(world, f"{parent}/one", formats=dict(PROCESS_FORMATS), later=1)
        await MemoryStore.set(
            world.store, PATHS.cluster,
            encode_node({"uuid": "0" * 32, "format": 1, "last_log_id": 64, "later": 5}),
            version=0,
        )  # fmt: skip
        too_wide = {"copysets": "flexible", "replication": {"node": 9}}
        with pytest.raises(DuramenError, match="node 9"):
            await world.placement.check_config(parse_log_config(too_wide), LOG_ID)
        assert await read_format(world) == 1, "a log that is refused raises nothing"
        await world.placement.check_config(parse_log_config({}), LOG_ID)
        assert await read_format(world) == 1
        await world.placement.check_config(parse_log_config(WIDE), LOG_ID)
        stored = await world.store.get(PATHS.cluster)
        assert stored is not None
        node = {"uuid": "0" * 32, "format": 2, "last_log_id": 64, "later": 5}
        assert read_node(stored.data) == node, "the rest of the node stays"
        await world.placement.check_config(parse_log_config(WIDE), LOG_ID)
        again = await world.store.get(PATHS.cluster)
        assert again is not None and again.version == stored.version

    with_world(scenario, kind=kind, bookies=0)


@pytest.mark.parametrize(
    ("path", "fields", "said"),
    [
        (f"{PATHS.sequencers}/s9", {}, "sequencer s9"),
        (f"{PATHS.write_proxies}/w9", {"formats": {"segment": 1, "envelope": 1}}, "write proxy w9"),
        (f"{PATHS.read_proxies}/r9", {"formats": {"segment": 2}}, "read proxy r9"),
        (f"{PATHS.read_proxies}/r9", {"formats": 7}, "read proxy r9"),
        (f"{PATHS.available}/b9", {"incarnation": "f" * 32}, "bookie b9"),
        (f"{PATHS.bookies}/b9", {"incarnation": "f" * 32, **FORMATS}, "bookie b9; start it"),
    ],
)
def test_who_does_not_understand_flexible_logs_is_named(
    path: str, fields: dict[str, Any], said: str
) -> None:
    async def scenario(world: World) -> None:
        await prepare(world)
        await register(world, path, **fields)
        with pytest.raises(DuramenError) as caught:
            await create(world, WIDE)
        assert (caught.value.code, caught.value.field) == ("placement_impossible", "copysets")
        assert said in caught.value.detail
        assert await read_format(world) is None
        stored = await world.store.get(path)
        assert stored is not None
        await world.store.delete(path, version=stored.version)
        assert (await create(world, WIDE))["created"], "once it is gone"
        assert await read_format(world) == 2

    with_world(scenario, bookies=0)


def test_the_first_log_out_of_order_raises_the_format_too() -> None:
    """A sequencer of before would open such an epoch for a log with producers (R29)."""

    async def scenario(world: World) -> None:
        await prepare(world)
        await register(world, f"{PATHS.available}/old", incarnation="f" * 32)
        with pytest.raises(DuramenError, match=r"no logs with ack_mode out_of_order") as caught:
            await create(world, {"ack_mode": "out_of_order"})
        assert (caught.value.code, caught.value.field) == ("placement_impossible", "ack_mode")
        assert await read_format(world) is None
        await world.store.delete(f"{PATHS.available}/old", version=0)
        assert (await create(world, {"ack_mode": "out_of_order"}))["created"]
        assert await read_format(world) == 2

    with_world(scenario, bookies=0)


@pytest.mark.parametrize("parent", [PATHS.sequencers, PATHS.write_proxies, PATHS.read_proxies])
def test_who_does_not_know_out_of_order_is_named_whatever_the_format_is(parent: str) -> None:
    async def scenario(world: World) -> None:
        await prepare(world)
        await create(world, WIDE)
        assert await read_format(world) == 2
        known = {kind: n for kind, n in PROCESS_FORMATS.items() if kind != "ack_mode"}
        await register(world, f"{parent}/p9", formats=known)
        late = parse_log_config({**WIDE, "ack_mode": "out_of_order"})
        with pytest.raises(DuramenError, match="out_of_order is not known by p9: upgrade first"):
            await world.placement.check_config(late, LOG_ID)
        await world.store.delete(f"{parent}/p9", version=0)
        await world.placement.check_config(late, LOG_ID)

    with_world(scenario, bookies=0)


def test_many_that_do_not_understand_are_counted() -> None:
    async def scenario(world: World) -> None:
        await prepare(world)
        for index in range(23):
            await register(world, f"{PATHS.read_proxies}/r{index:02}")
        with pytest.raises(DuramenError, match=r"read proxy r19 and 3 others; upgrade"):
            await create(world, WIDE)

    with_world(scenario, bookies=0)


def test_a_process_of_this_version_knows_format_3_and_makes_1() -> None:
    async def scenario(world: World) -> None:
        stored = await world.store.get(PATHS.cluster)
        assert stored is not None
        await world.store.delete(PATHS.cluster, version=stored.version)
        uuid = await ensure_cluster(world.store, PATHS)
        assert await read_format(world) == 1
        for version, known in ((2, True), (3, True), (4, False)):
            stored = await world.store.get(PATHS.cluster)
            assert stored is not None
            data = encode_node({**read_node(stored.data), "format": version})
            await world.store.set(PATHS.cluster, data, version=stored.version)
            if known:
                assert await ensure_cluster(world.store, PATHS) == uuid
            else:
                with pytest.raises(MetadataJsonError, match="format 4 is newer than 3"):
                    await ensure_cluster(world.store, PATHS)

    with_world(scenario, bookies=0)


@pytest.mark.parametrize(
    "parent", [PATHS.sequencers, PATHS.write_proxies, PATHS.read_proxies, PATHS.available]
)
def test_the_first_metadata_log_raises_the_format_once_everybody_knows_them(parent: str) -> None:
    async def scenario(world: World) -> None:
        formats = {"formats": dict(PROCESS_FORMATS)}
        for index in range(3):
            await world.add_bookie(index, **formats)
        await wait_for(lambda: len(world.context.serving) == 3)
        before = {kind: n for kind, n in PROCESS_FORMATS.items() if kind != "log"}
        await register(world, f"{parent}/old", incarnation="f" * 32, formats=before)
        tree = TreeFormat(world.store, PATHS)
        with pytest.raises(DuramenError, match=r"no metadata logs yet: .* old; upgrade"):
            await tree.ensure(METADATA_LOGS)
        await tree.ensure("copysets")
        assert await read_format(world) == 2, "who knows flexible logs may not know these"
        await world.store.delete(f"{parent}/old", version=0)
        await tree.ensure(METADATA_LOGS)
        assert await read_format(world) == 3
        await TreeFormat(world.store, PATHS).ensure("ack_mode")
        assert await read_format(world) == 3, "it is never lowered"

    with_world(scenario, bookies=0)


def test_a_version_is_a_number() -> None:
    assert understands({"formats": {"segment": 3, "envelope": 1, "later": "x"}}, KINDS)
    assert not understands({"formats": {"segment": True, "envelope": 1}}, KINDS)


# --- What is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (WIDE, None),
        ({"copysets": "flexible", "replication": {"node": 3, "region": 3, "rack": 3}}, None),
        (
            {"copysets": "flexible", "replication": {"node": 6}},
            "replication.node 5 or nodeset.tolerate 0 would work",
        ),
        (
            {"copysets": "flexible", "replication": {"node": 6, "placement": "prefer"}},
            None,
        ),
        (
            {"copysets": "flexible", "replication": {"node": 7, "placement": "prefer"}},
            "6 bookies are less than replication.node 7",
        ),
    ],
)
def test_a_nodeset_that_is_not_sound_is_refused_with_what_would_work(
    config: dict[str, Any], said: str | None
) -> None:
    async def scenario(world: World) -> None:
        await prepare(world)
        if said is None:
            made = await create(world, config)
            assert made["created"] and made["log_id"] == "1"
            return
        with pytest.raises(DuramenError) as caught:
            await create(world, config)
        assert (caught.value.code, caught.value.field) == ("placement_impossible", "replication")
        assert said in caught.value.detail, caught.value.detail
        assert (await create(world, WIDE))["log_id"] == "1", "the id of what was refused is given"

    with_world(scenario, bookies=0)


def test_who_is_away_now_is_counted_on() -> None:
    """All bookies but two are away once the format is raised: they come back."""

    async def scenario(world: World) -> None:
        await prepare(world)
        await world.placement.check_config(parse_log_config(WIDE), LOG_ID)
        for index in (0, 1, 2, 3):
            stored = await world.store.get(f"{PATHS.available}/b{index}")
            assert stored is not None
            await world.store.delete(f"{PATHS.available}/b{index}", version=stored.version)
        await wait_for(lambda: sum(bookie.is_absent for bookie in world.context.serving) == 4)
        assert (await create(world, WIDE))["created"]

    with_world(scenario, bookies=0)


@pytest.mark.parametrize(
    "patch",
    [
        {"copysets": "flexible", "replication": {"node": 9}},
        {"copysets": "flexible", "nodeset": {"tolerate": 2, "size": 4}},
    ],
)
def test_a_change_of_copysets_is_judged_as_a_creation(patch: dict[str, Any]) -> None:
    async def scenario(world: World) -> None:
        await prepare(world)
        changes = make_changes(world)
        path = PATHS.log(LOG_ID)
        await MemoryStore.create(world.store, path, encode_log(make_log()), make_parents=True)
        with pytest.raises(DuramenError):
            await changes.reconfigure({"log_id": str(LOG_ID), "config": patch})
        stored = await world.store.get(path)
        assert stored is not None and stored.version == 0 and await read_format(world) is None
        changed = await changes.reconfigure({"log_id": str(LOG_ID), "config": WIDE})
        assert changed["config"]["replication"]["rack"] == 3 and await read_format(world) == 2
        with pytest.raises(DuramenError, match="are less than"):
            # The property alone, then the nodeset alone.
            await changes.reconfigure(
                {"log_id": str(LOG_ID), "config": {"replication": {"node": 6}}}
            )
        with pytest.raises(DuramenError, match="tolerate"):
            await changes.reconfigure(
                {"log_id": str(LOG_ID), "config": {"nodeset": {"tolerate": 3}}}
            )
        back = await changes.reconfigure({"log_id": str(LOG_ID), "config": {"copysets": "striped"}})
        assert back["config"]["replication"]["ensemble_size"] == 3
        assert "nodeset" not in back["config"] and await read_format(world) == 2

    with_world(scenario, bookies=0)


class _Hosting:
    """A host without logs."""

    def __init__(self) -> None:
        self.drivers: dict[Any, Any] = {}

    async def find_owner(self, *_args: Any) -> None:
        return None


def make_changes(world: World) -> LogChanges:
    host: Any = _Hosting()
    nobody: Any = None
    return LogChanges(world.store, PATHS, host, nobody, world.placement.check_config)


# --- What is explained ---------------------------------------------------------------------------


def test_the_check_of_a_flexible_log_explains_its_nodeset() -> None:
    async def scenario(world: World) -> None:
        await prepare(world)
        config = parse_log_config(WIDE)
        log = replace(make_log(), config=config, next_epoch=Epoch(1), last_clean_epoch=Epoch(0))
        plan = plan_nodeset(log, list_serving(world.surveyor.list_bookies()))
        assert isinstance(plan, NodesetPlan)
        segment = plan.make_segment(log, ack_mode="ordered", nonce="n", created_unix_ms=0)
        opened = log.with_new_epoch("n")
        for path, data in (
            (PATHS.log(LOG_ID), encode_log(opened)),
            (PATHS.segment(LOG_ID, Epoch(1)), encode_segment(segment)),
        ):
            await MemoryStore.create(world.store, path, data, make_parents=True)
        answer = await world.ask("check_placement", log_id=str(LOG_ID))
        assert (answer["segments"], answer["fragments"], answer["violations"]) == (1, 0, 0)
        told = answer["nodeset"]
        assert [row["bookie"] for row in told["nodes"]] == [f"b{index}" for index in range(6)]
        assert told["nodes"][0]["region"] == "x" and told["nodes"][0]["absent"] is False
        assert told["may_be_away"] == ["any 1 node", "any one rack", "any one region"]
        places = [(row["kind"], row["place"], row["nodes"]) for row in told["places"]]
        racks = [("rack", f"{region}/{rack}", 1) for region in "xyz" for rack in "ab"]
        assert places == [*racks, *(("region", region, 2) for region in "xyz")]
        assert all(row["appendable"] and row["recoverable"] for row in told["places"])
        assert (told["waived"], told["reopens"], told["refusal"]) == ([], [], None)

        await world.ask("locate", id="b5", weight=0)
        await wait_for(lambda: len(world.context.serving) == 5)
        told = (await world.ask("check_placement", log_id=str(LOG_ID)))["nodeset"]
        assert "b5 is not in service" in told["reopens"]

        # Everybody in one rack: no entry could be stored, and the segment is too narrow today.
        for index in range(6):
            await world.ask("locate", id=f"b{index}", region="x", rack="a", weight=1)
        await wait_for(lambda: len({b.place for b in world.context.serving}) == 1)
        answer = await world.ask("check_placement", log_id=str(LOG_ID))
        assert answer["nodeset"]["nodes"] == [] and "rack" in answer["nodeset"]["refusal"]
        (shown,) = answer["shown"]
        assert (shown["kind"], shown["found"], shown["limit"]) == ("racks", 1, 3)
        assert shown["detail"] == "the segment spans 1 rack, and each entry wants 3"

    with_world(scenario, bookies=0)


@pytest.mark.parametrize(
    ("node", "told"),
    [
        (2, [("x/a", 3, True, False), ("x/b", 2, True, False)]),
        (3, [("x/a", 3, False, False), ("x/b", 2, True, True)]),
        (4, [("x/a", 3, False, True), ("x/b", 2, False, True)]),
    ],
)
def test_each_rack_says_what_works_without_it(
    node: int, told: list[tuple[str, int, bool, bool]]
) -> None:
    """Appends want `node` of those that are left, recovery fewer than that in the rack."""
    replication = {"node": node, "rack": 1, "placement": "prefer"}
    config = parse_log_config({"copysets": "flexible", "replication": replication})
    serving = [
        ServingBookie(BookieId(f"b{n}"), "x", rack, Incarnation(f"{n:032x}"), 1.0)
        for n, rack in enumerate("aaabb")
    ]
    answer = describe_nodeset(replace(make_log(), config=config), None, serving)
    found = [(row.place, row.nodes, row.appendable, row.recoverable) for row in answer.places]
    assert found == told, "and no region: it is the only one"


def test_a_striped_segment_is_not_judged_by_the_property_that_came_after_it() -> None:
    """Two copies of each entry never lie in three racks, and were not to."""

    async def scenario(world: World) -> None:
        await prepare(world)
        log = replace(make_log(), config=parse_log_config(WIDE), next_epoch=Epoch(2))
        fragments = (Fragment(EntryId(0), (member(0), member(1), member(2))),)
        segment = Segment(LOG_ID, Epoch(1), Quorum(3, 3, 2), fragments)
        for path, data in (
            (PATHS.log(LOG_ID), encode_log(log)),
            (PATHS.segment(LOG_ID, Epoch(1)), encode_segment(segment)),
        ):
            await MemoryStore.create(world.store, path, data, make_parents=True)
        answer = await world.ask("check_placement", log_id=str(LOG_ID))
        assert (answer["segments"], answer["fragments"], answer["violations"]) == (1, 1, 0)

    with_world(scenario, bookies=0)


def test_what_prefer_waives_is_told() -> None:
    async def scenario(world: World) -> None:
        await prepare(world, 3)
        replication = {"node": 3, "rack": 2, "placement": "prefer"}
        config = parse_log_config({"copysets": "flexible", "replication": replication})
        log = replace(make_log(), config=config)
        path = PATHS.log(LOG_ID)
        await MemoryStore.create(world.store, path, encode_log(log), make_parents=True)
        told = (await world.ask("check_placement", log_id=str(LOG_ID)))["nodeset"]
        assert len(told["nodes"]) == 3 and told["may_be_away"] == []
        assert "3 bookies are less than" in told["waived"][0]

    with_world(scenario, bookies=0)


def test_a_striped_logs_check_says_nothing_of_nodesets() -> None:
    async def scenario(world: World) -> None:
        path = PATHS.log(LOG_ID)
        await MemoryStore.create(world.store, path, encode_log(make_log()), make_parents=True)
        answer = await world.ask("check_placement", log_id=str(LOG_ID))
        assert set(answer) == {"log_id", "segments", "fragments", "violations", "shown"}

    with_world(scenario, bookies=0)
