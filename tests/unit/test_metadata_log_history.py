"""The history of a log's epochs: what lives, what was given up, and what each was configured with.

Source: docs/protocol/metadata-logs.md "History".
"""

from __future__ import annotations

import random

from duramen.core.metadata_log.history import ToldEpoch, report_epochs
from duramen.core.metadata_log.listing import SegmentListing, Whereabouts, join
from duramen.core.metadata_log.record import MetadataKind, MetadataRecord
from duramen.ids import Epoch
from tests.unit.metadata_log_world import KeeperProcess, World

MOVED, STORED, GIVEN_UP = Whereabouts.MOVED, Whereabouts.STORED, Whereabouts.GIVEN_UP


def make_world() -> tuple[World, KeeperProcess]:
    """Epochs 1 and 2 have moved, 3 is closed and 4 is open; each was told when it was opened."""
    world = World(random.Random(1), hearing=1.0)
    process = KeeperProcess(world)
    for number in range(1, 5):
        world.open_epoch()
        node = world.nodes[Epoch(number)]
        process.keeper.tell(
            MetadataRecord(
                MetadataKind.TOLD, node.segment, node.version, node.made, number, {"of": number}
            )
        )
        _step(process)
        if number < 4:
            world.close_epoch()
    for epoch in (Epoch(1), Epoch(2)):
        world.archive_epoch(epoch)
        world.archive_epoch(epoch)
        world.release()
    _step(process)
    assert world.log.metadata.through == 2
    return world, process


def _step(process: KeeperProcess) -> None:
    for _ in range(60):
        process.step()


def list_all(world: World) -> SegmentListing:
    nodes = {epoch: node.segment for epoch, node in world.nodes.items()}
    listing = join(world.log, nodes, world.records)
    assert listing is not None
    return listing


def tell(world: World) -> list[ToldEpoch]:
    return report_epochs(list_all(world), world.records)


def test_each_epoch_is_told_with_its_configuration_and_where_it_is() -> None:
    world, _ = make_world()
    told = tell(world)
    assert [(one.epoch, one.where) for one in told] == [
        (1, MOVED), (2, MOVED), (3, STORED), (4, STORED),
    ]  # fmt: skip
    assert [one.config_version for one in told] == [1, 2, 3, 4]
    assert [dict(one.config or {}) for one in told] == [{"of": n} for n in (1, 2, 3, 4)]
    segments = [world.versions[Epoch(number)][-1] for number in (1, 2, 3, 4)]
    assert [one.segment for one in told] == segments, "as a listing shows them, not as told"


def test_what_was_given_up_is_told_until_the_metadata_log_is_rewritten() -> None:
    world, process = make_world()
    world.give_up()
    first = tell(world)[0]
    assert (first.epoch, first.where, first.config) == (1, GIVEN_UP, {"of": 1})
    assert first.segment is not None and first.segment.is_closed
    for number in range(20):
        node = world.nodes[Epoch(4)]
        process.keeper.tell(
            MetadataRecord(MetadataKind.TOLD, node.segment, number, node.made, 4, {"of": 4})
        )
        _step(process)
    assert world.counts["rewrites"] > 0
    world.drop_trimmed()
    assert [one.epoch for one in tell(world)] == [2, 3, 4]


def test_what_cannot_be_read_has_no_segment_and_is_not_left_out() -> None:
    world, _ = make_world()
    counting = [p for p in world.records if p.record.kind is MetadataKind.MOVED]
    listing = join(world.log, {e: n.segment for e, n in world.nodes.items()}, counting[1:])
    assert listing is not None and listing.unreadable == (1,)
    first = report_epochs(listing, ())[0]
    assert (first.epoch, first.segment, first.config_version) == (1, None, None)


def test_what_is_newer_than_the_log_node_is_not_told() -> None:
    """The listing is of one moment, the history of a later one."""
    world, _ = make_world()
    listing = list_all(world)
    world.close_epoch()
    world.open_epoch()
    node = world.nodes[Epoch(5)]
    record = MetadataRecord(MetadataKind.TOLD, node.segment, 0, node.made)
    later = [*world.records, world.records[-1]._replace(record=record)]
    assert [one.epoch for one in report_epochs(listing, later)] == [1, 2, 3, 4]
