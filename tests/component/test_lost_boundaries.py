"""Where a truncation to a position begins that lies in entries that are lost for ever (R15).

The world of `test_lost_reads`: entries 0 to 3 of segment 1 hold the records 0-2, 3-5, 6-8 and 9-12.
Source: R15, docs/protocol/retention.md.
"""

from __future__ import annotations

from typing import Any

import pytest

from duramen.core.log_node import TrimPoint
from duramen.core.placement.node_states import NodeStates
from duramen.ids import BookieId, EntryId, Epoch, lsn_of
from duramen.runtime.http_client import PeerClient
from duramen.runtime.metadata_log.entry_reads import open_segment_nodes
from duramen.runtime.sequencer.bookie_lanes import BookieLanes
from duramen.runtime.sequencer.node_watch import NodeWatch
from duramen.texts import parse_position
from duramen_sequencer.life.boundaries import Boundaries, Extent
from tests.component.losses import lose
from tests.component.readproxy_world import NAMES, PATHS, World, run


@pytest.mark.parametrize(
    ("lost", "found"),
    [
        ((1, 2), {"seq:2": "e1n0s2", "seq:3": "e1n3s0", "seq:7": "e1n3s0", "seq:9": "e1n3s0",
                  "seq:10": "e1n3s1", "dlsn:e1n1s0": "e1n3s0", "lsn:e1n2": "e1n3s0",
                  "dlsn:e1n0s3": "e1n3s0", "dlsn:e1n0s2": "e1n0s2", "tail-26": "e1n3s0"}),
        ((0, 0), {"seq:1": "e1n1s0", "dlsn:e1n0s1": "e1n1s0", "seq:4": "e1n1s1",
                  "seq:3": "e1n1s0"}),
        ((3, 3), {"seq:8": "e1n2s2", "seq:9": "e2n0s0", "seq:12": "e2n0s0", "dlsn:e1n3s2": "e2n0s0",
                  "dlsn:e1n2s3": "e2n0s0", "dlsn:e1n9s0": "e2n0s0", "seq:13": "e2n0s0"}),
        ((0, 3), {"seq:1": "e2n0s0", "seq:12": "e2n0s0", "lsn:e1n2": "e2n0s0", "seq:13": "e2n0s0"}),
    ],
    ids=["in the middle", "at the beginning", "up to the end", "all"],
)  # fmt: skip
def test_a_position_in_a_loss_is_the_first_record_behind_it(
    lost: tuple[int, int], found: dict[str, str]
) -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        records: list[dict[str, Any]] = (await world.read())["records"]
        seq_nums = {record["dlsn"]: record["seq_num"] for record in records}
        await lose(world, *lost)
        client = PeerClient()
        urls = {name: f"http://127.0.0.1:{world.bookies[BookieId(name)].server.port}"
                for name in NAMES}  # fmt: skip
        lanes = BookieLanes(client, lambda bookie: urls[bookie], NodeWatch(NodeStates()))
        boundaries = Boundaries(open_segment_nodes(world.store, PATHS, lanes), lanes)
        end = TrimPoint(lsn_of(Epoch(3), EntryId(3)), 0, 31)
        extent = Extent(world.log, 0, end, 5, world.segment)
        try:
            for position, dlsn in found.items():
                point = await boundaries.find(parse_position(position), extent, field="to")
                expected = (dlsn, seq_nums[dlsn])
                assert (str(point.dlsn), point.seq_num) == expected, position
        finally:
            await client.close()

    run(scenario)
