"""A listing that is rebuilt from a metadata log alone, and what is found when ZooKeeper lost nodes.

Source: docs/protocol/metadata-logs.md "When something fails".
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from duramen.core.log_node import LogNode
from duramen.core.metadata_log.listing import PlacedRecord
from duramen.core.metadata_log.moving import StoredNode
from duramen.core.metadata_log.rebuilding import EpochFinding, examine, rebuild
from duramen.core.metadata_log.record import MetadataKind, MetadataRecord
from duramen.ids import Epoch, Lsn
from tests.unit.metadata_log_world import KeeperProcess, World, play

GOOD = EpochFinding.GOOD
CONFIG = {"copysets": "striped"}


def stored(world: World) -> dict[Epoch, StoredNode]:
    return {e: StoredNode(n.segment, n.version, n.made, 700) for e, n in world.nodes.items()}


def findings(
    log: LogNode | None, nodes: dict[Epoch, StoredNode], records: list[PlacedRecord]
) -> dict[int, EpochFinding]:
    return {report.epoch: report.finding for report in examine(log, nodes, records)}


def tell(process: KeeperProcess, epoch: Epoch) -> None:
    """As an owner does when it has opened or closed an epoch."""
    node = process.world.nodes[epoch]
    record = MetadataRecord(
        MetadataKind.TOLD, node.segment, node.version, node.made, config_version=1, config=CONFIG
    )
    process.keeper.tell(record)
    for _ in range(40):
        process.step()


def live(*, epoch_count: int = 5, moved_count: int = 3) -> World:
    """Every epoch is told when it opens and when it closes; the first ones have moved."""
    world = World(random.Random(3), hearing=1.0)
    process = KeeperProcess(world)
    for _ in range(epoch_count):
        world.open_epoch()
        tell(process, Epoch(world.log.next_epoch - 1))
        world.close_epoch()
        tell(process, Epoch(world.log.last_clean_epoch))
    for _ in range(400):
        if world.log.first_hot_epoch > moved_count:
            break
        world.archive()
        world.release()
    for _ in range(40):
        process.step()
    assert world.log.metadata.through == moved_count
    return world


def test_everything_is_rebuilt_from_the_metadata_log_alone() -> None:
    world = live()
    rebuilt = rebuild(world.records)
    assert sorted(rebuilt) == [1, 2, 3, 4, 5]
    for epoch, record in rebuilt.items():
        assert record.segment.is_closed and record.config == CONFIG
        versions = world.versions[epoch]
        assert record.segment == versions[record.node_version]
        assert epoch > 3 or record.segment == versions[-1], "what has moved, as it was at the end"


@pytest.mark.parametrize("seed", range(5))
def test_no_fault_is_found_in_a_store_that_lost_nothing(seed: int) -> None:
    world = play(seed, 1_500)
    found = findings(world.log, stored(world), world.records)
    assert set(found) == set(range(world.log.first_live_epoch, world.log.next_epoch))
    assert set(found.values()) <= {GOOD}


def test_nodes_that_are_lost_are_named_with_what_they_were() -> None:
    world = live()
    nodes = stored(world)
    del nodes[Epoch(5)]
    reports = {report.epoch: report for report in examine(world.log, nodes, world.records)}
    assert reports[Epoch(5)].finding is EpochFinding.MISSING_NODE
    segment = reports[Epoch(5)].segment
    assert segment is not None and segment.last_entry == world.versions[Epoch(5)][-1].last_entry
    assert [reports[Epoch(epoch)].finding for epoch in (1, 2, 3, 4)] == [GOOD] * 4


def test_without_the_log_node_all_that_was_told_is_shown() -> None:
    world = live()
    found = findings(None, {}, world.records)
    assert found == dict.fromkeys(range(1, 6), EpochFinding.UNKNOWN_EPOCH)


def test_a_record_that_is_lost_is_no_segment_that_never_was() -> None:
    world = live()
    kept = [placed for placed in world.records if placed.record.epoch != 2]
    (report,) = (one for one in examine(world.log, stored(world), kept) if one.epoch == 2)
    assert report.finding is EpochFinding.MISSING_RECORD and report.segment is None
    told = [p for p in world.records if p.record.kind is MetadataKind.TOLD]
    (report,) = (one for one in examine(world.log, stored(world), told) if one.epoch == 2)
    assert report.finding is EpochFinding.MISSING_RECORD and report.segment is not None


def test_a_restored_store_shows_by_its_older_nodes() -> None:
    world = live()
    older = replace(world.log, next_epoch=Epoch(5), last_clean_epoch=4, first_hot_epoch=Epoch(1))
    log = replace(older, metadata=older.metadata._replace(through=0, lsn=None))
    nodes = {
        epoch: StoredNode(world.versions[epoch][1], 1, 1, 700) for epoch in map(Epoch, range(1, 5))
    }
    found = findings(log, nodes, world.records)
    assert [found[epoch] for epoch in (1, 2, 3)] == [EpochFinding.OLDER_NODE] * 3
    assert found[5] is EpochFinding.UNKNOWN_EPOCH


def test_a_node_that_came_back_is_named() -> None:
    world = live()
    record = rebuild(world.records)[Epoch(1)]
    nodes = stored(world)
    nodes[Epoch(1)] = StoredNode(world.versions[Epoch(1)][-1], record.node_version, 1, 700)
    assert findings(world.log, nodes, world.records)[1] is EpochFinding.LEFT_NODE


def test_of_equal_versions_the_last_is_taken_and_a_configuration_from_any() -> None:
    world = live()
    first = world.records[0].record
    other = replace(first, segment=replace(first.segment, nonce="again"), config=None,
                    config_version=None)  # fmt: skip
    placed = [PlacedRecord(Lsn(1), first), PlacedRecord(Lsn(2), other)]
    best = rebuild(placed)[first.epoch]
    assert best.segment == other.segment and best.config == CONFIG
    older = [PlacedRecord(Lsn(1), replace(other, node_version=9)), placed[0]]
    assert rebuild(older)[first.epoch].node_version == 9
    assert rebuild(older)[first.epoch].config == CONFIG


def test_a_node_that_was_put_back_is_newer_than_what_was_told_before() -> None:
    world = live()
    nodes = stored(world)
    epoch = Epoch(4)
    told = rebuild(world.records)[epoch]
    assert told.node_version > 0
    lost = {e: node for e, node in nodes.items() if e != epoch}
    assert findings(world.log, lost, world.records)[epoch] is EpochFinding.MISSING_NODE
    put_back = nodes[epoch]._replace(segment=told.segment, version=0, made=told.made + 1)
    assert findings(world.log, {**lost, epoch: put_back}, world.records)[epoch] is GOOD
    older = nodes[epoch]._replace(version=told.node_version - 1)
    found = findings(world.log, {**lost, epoch: older}, world.records)[epoch]
    assert found is EpochFinding.OLDER_NODE
