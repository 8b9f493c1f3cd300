"""Placement at a sequencer, on a store in memory: what it sees, what it changes, what it refuses.

The surveyor and the control calls are the product's; bookies are nodes that the test writes. What a
changed choice does to ensembles is in the unit tests, scenarios and tests/process/test_regions.py.
Source: docs/protocol/placement.md "Places and regions, live".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from duramen.config import parse_log_config
from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment
from duramen.errors import DuramenError
from duramen.ids import BookieId, EntryId, Epoch, Incarnation, Member
from duramen.limits import STEADY_AFTER_US
from duramen.runtime.sequencer.surveyor import Surveyor
from duramen.runtime.stores.memory_store import MemoryStore
from duramen.runtime.stores.metadata_store import Create, DeleteNode
from duramen.units import MS, SECOND
from duramen.wire.metadata_json import encode_log, encode_node, encode_segment, read_node
from duramen_sequencer import placement_operations as operations
from tests.component.placement_world import PATHS, Doubtful, World, member, with_world
from tests.unit.core_fakes import LOG_ID
from tests.unit.nodes import make_log
from tests.waiting import wait_for


def test_flexible_epochs_may_use_who_keeps_envelopes_also_while_it_is_away() -> None:
    async def scenario(world: World) -> None:
        for index in (0, 1, 2):
            for path in (f"{PATHS.bookies}/b{index}", f"{PATHS.available}/b{index}"):
                stored = await world.store.get(path)
                assert stored is not None
                formats = {"formats": {"envelope": 1}} if index else {}
                fields = {**read_node(stored.data), **formats}
                await world.store.set(path, encode_node(fields), version=stored.version)
        await wait_for(lambda: len(world.context.serving) == 2)
        assert [bookie.bookie for bookie in world.context.serving] == ["b1", "b2"]
        roster = world.context.roster
        assert {member.bookie for member in roster} == {f"b{index}" for index in range(6)}
        stored = await world.store.get(f"{PATHS.available}/b1")
        assert stored is not None
        await world.store.delete(f"{PATHS.available}/b1", version=stored.version)
        await wait_for(lambda: len(world.context.roster) == 5)
        assert [b.is_absent for b in world.context.serving] == [True, False]
        roster = world.context.roster
        world.surveyor._refresh()
        assert world.context.roster is roster, "writers look anew when it is another object"

    with_world(scenario)


def test_a_bookie_that_came_back_is_the_last_choice_until_it_has_stayed() -> None:
    async def scenario(world: World) -> None:
        seen: list[bool] = []

        def note() -> None:
            seen.extend(c.is_steady for c in world.context.candidates if c.member.bookie == "b1")

        surveyor = Surveyor(world.store, PATHS, world.context, note, steady_after_us=100 * MS)
        await surveyor.start()
        try:
            assert all(candidate.is_steady for candidate in world.context.candidates)
            path, seen[:] = f"{PATHS.available}/b1", []
            stored = await world.store.get(path)
            assert stored is not None
            await world.store.delete(path, version=stored.version)
            await wait_for(lambda: "b1" not in world.takers)
            await world.store.create(path, stored.data)
            await wait_for(lambda: len(seen) >= 2)
        finally:
            await surveyor.stop()
        assert (seen[0], seen[-1]) == (False, True), "time alone makes it steady"

    with_world(scenario, bookies=3)


def test_a_registration_of_the_same_fields_made_anew_is_seen_and_told() -> None:
    """The session ended and nobody looked meanwhile: the node says the same, and is another."""

    async def scenario(world: World) -> None:
        rows = {row["id"]: row["steady_in_s"] for row in (await world.ask("bookies"))["bookies"]}
        assert rows == {"b0": 0, "b1": 0, "b2": 0}
        path = f"{PATHS.available}/b1"
        stored = await world.store.get(path)
        assert stored is not None
        await world.store.commit([DeleteNode(path, stored.version), Create(path, stored.data)])
        await wait_for(lambda: not all(one.is_steady for one in world.context.candidates))
        rows = {row["id"]: row["steady_in_s"] for row in (await world.ask("bookies"))["bookies"]}
        assert rows["b0"] == rows["b2"] == 0 and 0 < rows["b1"] <= STEADY_AFTER_US // SECOND
        assert world.takers == ["b0", "b1", "b2"], "it is taken where it is needed"
        assert world.surveyor.statistics()["bookies_unsteady"] == 1

    with_world(scenario, bookies=3)


@pytest.mark.parametrize("kind", [MemoryStore, Doubtful])
def test_a_place_is_changed_live_and_the_nodes_other_fields_are_kept(
    kind: type[MemoryStore],
) -> None:
    async def scenario(world: World) -> None:
        answer = await world.ask("locate", id="b0", region="w", weight=2)
        place = {"id": "b0", "region": "w", "rack": "a", "weight": 2.0}
        assert answer == {**place, "from_flags": False}
        stored = await world.store.get(f"{PATHS.bookies}/b0")
        assert stored is not None and read_node(stored.data)["later"] == 5
        assert read_node(stored.data)["placed_by"] == "admin"
        await wait_for(lambda: world.surveyor.list_bookies()[0].region == "w")
        (here,) = [c for c in world.context.candidates if c.member.bookie == "b0"]
        assert (here.region, here.weight) == ("w", 2.0)
        assert (world.context.locations or {})[here.member].region == "w"
        await world.ask("locate", id="b0", storage_capacity=0)
        await wait_for(lambda: "b0" not in world.takers)
        answer = await world.ask("locate", id="b0", from_flags=True)
        assert answer == {**place, "weight": 0.0, "from_flags": True}, "from its next start on"

    with_world(scenario, kind=kind)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"id": "b0"}, "region"),
        ({"id": "b0", "rack": ""}, "rack"),
        ({"id": "b0", "region": "a b"}, "region"),
        ({"id": "b0", "weight": -1}, "weight"),
        ({"id": "b0", "weight": True}, "weight"),
        ({"id": "b0", "storage_capacity": 1001}, "storage_capacity"),
        ({"id": "b0", "storage_capacity": 1, "weight": 1}, "weight"),
        ({"id": "b0", "rack": "a", "from_flags": True}, "from_flags"),
        ({"id": "b0", "from_flags": "yes"}, "from_flags"),
        ({"id": "nobody", "rack": "a"}, "id"),
        ({"id": "../cluster", "rack": "a"}, "id"),
    ],
)
def test_a_place_that_makes_no_sense_is_refused(fields: dict[str, Any], field: str) -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(DuramenError) as refused:
            await world.ask("locate", **fields)
        assert (refused.value.code, refused.value.field) == ("invalid_argument", field)

    with_world(scenario, bookies=1)


def test_a_closed_region_takes_no_new_data_until_it_is_open_again() -> None:
    async def scenario(world: World) -> None:
        assert world.takers == [f"b{i}" for i in range(6)]
        answer = await world.ask("close_regions", closed=["y", "y"])
        assert answer["closed"] == ["y"]
        assert [row["takes_new_data"] for row in answer["regions"]] == [2, 0, 2]
        await wait_for(lambda: world.takers == ["b0", "b1", "b4", "b5"])
        assert len(world.context.locations or {}) == 6, "what lies there is still known and read"
        await world.ask("close_regions", closed=[])
        await wait_for(lambda: len(world.takers) == 6)
        with pytest.raises(DuramenError, match="closed: a list"):
            await world.ask("close_regions", closed="y")

    with_world(scenario)


def test_a_bookie_that_comes_later_is_seen_and_one_that_goes_is_still_somewhere() -> None:
    async def scenario(world: World) -> None:
        await world.add_bookie(2)
        await wait_for(lambda: world.takers == ["b0", "b1", "b2"])
        found = await world.store.get(f"{PATHS.available}/b2")
        assert found is not None
        await world.store.delete(f"{PATHS.available}/b2", version=found.version)
        await wait_for(lambda: world.takers == ["b0", "b1"])
        former = Member(BookieId("b2"), Incarnation("f" * 32))
        places = world.surveyor.locate({member(2), former})
        assert {place.region for place in places.values()} == {"y"}
        rows = (await world.ask("bookies"))["bookies"]
        assert [(row["id"], row["state"]) for row in rows][2] == ("b2", "absent")

    with_world(scenario, bookies=2)


@pytest.mark.parametrize(
    ("replication", "code", "field", "said"),
    [
        ({}, None, None, ""),
        ({"min_regions": 2, "regions_that_must_suffice": 3}, None, None, ""),
        (
            {"min_regions": 2}, "invalid_argument", "replication.regions_that_must_suffice",
            "regions_that_must_suffice 3",
        ),
        (
            {"ensemble_size": 7, "write_quorum": 7, "ack_quorum": 5}, "placement_impossible",
            "replication", "an ensemble has 7 bookies, and 6 are available",
        ),
        (
            {"ensemble_size": 4, "write_quorum": 4, "ack_quorum": 4, "min_regions": 4},
            "placement_impossible", "replication", "of 4 members have room in 3 regions",
        ),
        (
            {"ensemble_size": 7, "write_quorum": 7, "ack_quorum": 5, "placement": "prefer"},
            None, None, "",
        ),
    ],
)  # fmt: skip
def test_r20_a_log_that_cannot_be_placed_is_refused_at_its_creation(
    replication: dict[str, Any], code: str | None, field: str | None, said: str
) -> None:
    async def scenario(world: World) -> None:
        await world.ask("create_namespace", namespace="ns", config={})
        if code is None:
            assert (await world.create(**replication))["created"]
            return
        with pytest.raises(DuramenError) as refused:
            await world.create(**replication)
        assert (refused.value.code, refused.value.field) == (code, field)
        assert said in refused.value.detail, refused.value.detail

    with_world(scenario)


def test_r20_a_log_that_fits_into_a_closed_region_alone_is_refused_at_its_creation() -> None:
    async def scenario(world: World) -> None:
        await world.ask("create_namespace", namespace="ns", config={})
        wide = {"min_regions": 2, "regions_that_must_suffice": 3}
        await world.ask("close_regions", closed=["z"])
        await wait_for(lambda: len(world.takers) == 4)
        with pytest.raises(DuramenError) as refused:
            await world.create(**wide)
        assert (refused.value.code, refused.value.field) == ("placement_impossible", "replication")
        await world.ask("close_regions", closed=[])
        await wait_for(lambda: len(world.takers) == 6)
        assert (await world.create(**wide))["created"]

    with_world(scenario)


def test_nothing_is_said_about_a_cluster_of_which_no_bookie_is_known() -> None:
    async def scenario(world: World) -> None:
        await world.ask("create_namespace", namespace="ns", config={})
        assert (await world.create())["created"]

    with_world(scenario, bookies=0)


def test_r20_a_log_is_checked_write_set_by_write_set() -> None:
    """b0 and b1 lie in one region: of four write sets of two, the first one breaks the rule."""

    async def scenario(world: World) -> None:
        ensemble = tuple(member(index) for index in (0, 1, 2, 4))
        config = parse_log_config(
            {"replication": {
                "ensemble_size": 4, "write_quorum": 2, "ack_quorum": 2, "min_regions": 2,
            }}
        )  # fmt: skip
        log = replace(make_log(), config=config, next_epoch=Epoch(2), last_clean_epoch=Epoch(0))
        fragments = (Fragment(EntryId(0), ensemble),)
        segment = Segment(LOG_ID, Epoch(1), Quorum(4, 2, 2), fragments)
        await world.store.create(PATHS.log(LOG_ID), encode_log(log), make_parents=True)
        path = PATHS.segment(LOG_ID, Epoch(1))
        await world.store.create(path, encode_segment(segment), make_parents=True)
        answer = await world.ask("check_placement", log_id=str(LOG_ID))
        assert (answer["segments"], answer["fragments"], answer["violations"]) == (1, 1, 1)
        (shown,) = answer["shown"]
        assert [one["bookie"] for one in shown["write_set"]] == ["b0", "b1"]
        assert (shown["kind"], shown["found"], shown["limit"]) == ("regions", 2, 2)

        # What a member is owed is no copy: two more write sets have one only.
        owed = PATHS.owed(segment.ledger_id, member(2))
        await world.store.create(owed, encode_node({"ranges": [[0, 1]]}), make_parents=True)
        answer = await world.ask("check_placement", log_id=str(LOG_ID))
        kinds = [(one["kind"], one["write_set"][0]["bookie"]) for one in answer["shown"]]
        assert ("copies", "b1") in kinds and ("copies", "b2") in kinds

    with_world(scenario)


def test_of_a_log_that_is_misplaced_everywhere_so_much_is_shown_and_all_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three segments, and in each of them four fragments in one region where two are wanted."""

    async def scenario(world: World) -> None:
        monkeypatch.setattr(operations, "VIOLATIONS_SHOWN_MAX", 6)
        config = parse_log_config(
            {"replication": {
                "ensemble_size": 2, "write_quorum": 2, "ack_quorum": 2, "min_regions": 2,
            }}
        )  # fmt: skip
        log = replace(make_log(), config=config, next_epoch=Epoch(4), last_clean_epoch=Epoch(0))
        await world.store.create(PATHS.log(LOG_ID), encode_log(log), make_parents=True)
        ensembles = [(member(0), member(1)), (member(1), member(0))] * 2
        fragments = tuple(Fragment(EntryId(n), one) for n, one in enumerate(ensembles))
        for epoch in (Epoch(1), Epoch(2), Epoch(3)):
            segment = Segment(LOG_ID, epoch, Quorum(2, 2, 2), fragments)
            path = PATHS.segment(LOG_ID, epoch)
            await world.store.create(path, encode_segment(segment), make_parents=True)
        answer = await world.ask("check_placement", log_id=str(LOG_ID))
        assert (answer["segments"], answer["violations"]) == (3, 12)
        assert [one["epoch"] for one in answer["shown"]] == [1, 1, 1, 1, 2, 2]

    with_world(scenario)
