"""A flexible log is truncated, and its old segments are given up, as those of striped logs are.

Any node of a segment may have an entry, so each is asked until one has it. The other cases are in
`test_log_life`. Source: docs/protocol/retention.md.
"""

from __future__ import annotations

from duramen.core.flexible.nodeset import ServingBookie
from duramen.core.flexible.property import ReplicationProperty
from duramen.core.flexible.segment import FlexibleSegment
from duramen.core.log_node import TrimPoint
from duramen.core.placement.node_states import NodeStates
from duramen.core.segment import Totals
from duramen.ids import BookieId, EntryId, Epoch, LogId, lsn_of
from duramen.runtime.http_client import PeerClient
from duramen.runtime.metadata_log.entry_reads import open_segment_nodes
from duramen.runtime.sequencer.bookie_lanes import BookieLanes
from duramen.runtime.sequencer.node_watch import NodeWatch
from duramen.texts import parse_position
from duramen.wire.metadata_json import encode_segment, read_segment
from duramen_sequencer.life.boundaries import Boundaries, Extent
from tests.component import life_world, readproxy_world
from tests.component.life_world import HOUR_MS, PATHS
from tests.component.readproxy_world import NAMES, A, B, C, D
from tests.unit.flexible_segments import node

FLEXIBLE = {
    "copysets": "flexible",
    "replication": {"node": 1, "rack": 1},
    "nodeset": {"tolerate": 0},
}


async def make_flexible(source: readproxy_world.World, epoch: int) -> None:
    """The closed segment, as if its entries had been sent to any of the four bookies."""
    path = PATHS.segment(source.log.log_id, Epoch(epoch))
    found = await source.store.get(path)
    assert found is not None
    striped = read_segment(found.data)
    assert striped.totals is not None and striped.last_entry is not None
    assert striped.start_seq_num is not None
    nodes = [ServingBookie(one.bookie, "eu", one.bookie, one.incarnation) for one in (D, C, B, A)]
    opened = FlexibleSegment.opened(
        striped.log_id, striped.epoch, ReplicationProperty(2), nodes,
        ack_mode="ordered", placement="strict", created_unix_ms=0, nonce="n",
    )  # fmt: skip
    closed = opened.closed_by_owner(
        last_entry=striped.last_entry, totals=striped.totals,
        start_seq_num=striped.start_seq_num, completed_unix_ms=0, nonce="n",
    )  # fmt: skip
    await source.store.set(path, encode_segment(closed), version=found.version)


def test_a_position_in_a_flexible_segment_is_found_at_whoever_has_the_entry() -> None:
    async def scenario(source: readproxy_world.World) -> None:
        await source.fill()
        records = (await source.read())["records"]
        for epoch in (1, 2):
            await make_flexible(source, epoch)
        client = PeerClient()
        urls = {
            name: f"http://127.0.0.1:{source.bookies[BookieId(name)].server.port}" for name in NAMES
        }
        lanes = BookieLanes(client, lambda bookie: urls[bookie], NodeWatch(NodeStates()))
        segments = open_segment_nodes(source.store, PATHS, lanes)
        end = TrimPoint(lsn_of(Epoch(3), EntryId(3)), 0, 31)
        extent = Extent(source.log, 0, end, 5, source.segment)
        try:
            for record in records:
                for position in (f"seq:{record['seq_num']}", f"dlsn:{record['dlsn']}"):
                    point = await Boundaries(segments, lanes).find(
                        parse_position(position), extent, field="to"
                    )
                    assert (str(point.dlsn), point.seq_num) == (record["dlsn"], record["seq_num"])
        finally:
            await client.close()

    readproxy_world.run(scenario)


def test_old_flexible_segments_are_given_up() -> None:
    async def act(world: life_world.World) -> None:
        log_id = await world.create({**FLEXIBLE, "retention": {"age": "1h", "truncated": "0s"}})
        log = await world.log(log_id)
        for count in (3, 2):
            epoch = log.next_epoch
            opened = FlexibleSegment.opened(
                LogId(int(log_id)), epoch, ReplicationProperty(1), [node("b0")],
                ack_mode="ordered", placement="strict", created_unix_ms=0, nonce="n",
            )  # fmt: skip
            closed = opened.closed_by_owner(
                last_entry=EntryId(count - 1), totals=Totals(count, 10 * count),
                start_seq_num=log.totals.record_count, completed_unix_ms=world.now_ms, nonce="n",
            )  # fmt: skip
            log = log.with_new_epoch("n").with_clean(closed, "n").with_stateless()
            await world.store.create(PATHS.segment(log.log_id, epoch), encode_segment(closed))
        await world.change(log)
        await world.run_rounds()
        assert len(await world.segments(log_id)) == 2
        world.now_ms += 2 * HOUR_MS
        await world.run_rounds(4)
        log = await world.log(log_id)
        assert log.trim_seq_num == 5 and log.first_live_epoch == 3
        assert await world.segments(log_id) == ()

    life_world.run(act)
