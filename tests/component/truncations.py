"""Logs that are truncated, or lose a segment, while readers stand in them.

Used by `test_truncated_reads`, `test_core_reads` and `test_growing_log`.
Source: docs/protocol/reading.md.
"""

from __future__ import annotations

from duramen.core.log_node import Ending, TrimPoint
from duramen.ids import EntryId, Epoch, ledger_of, lsn_of
from duramen.wire.metadata_json import encode_log
from tests.component.readproxy_world import LOG, PATHS, World
from tests.waiting import wait_for


async def truncate(world: World, epoch: int, entry: int, slot: int, seq_num: int) -> None:
    """As the sequencer does it; the release pointer is the end of the third segment."""
    point = TrimPoint(lsn_of(Epoch(epoch), EntryId(entry)), slot, seq_num)
    release = TrimPoint(lsn_of(Epoch(3), EntryId(3)), 0, 31)
    world.log = world.log.with_trim(point, release=release, unix_ms=0, nonce="t")
    await put_log(world)


async def put_log(world: World) -> None:
    await world.put(PATHS.log(LOG), encode_log(world.log))


async def finish(world: World, ending: Ending) -> None:
    await world.close_segment()
    world.log = world.log.with_ending(ending, unix_ms=5, nonce="f")
    await put_log(world)


def lose_segment(world: World, epoch: int) -> None:
    """No bookie gives an entry of that segment now: a read of it waits."""
    ledger = ledger_of(LOG, Epoch(epoch))
    for bookie in world.bookies.values():
        for key in [key for key in bookie.entries if key[0] == ledger]:
            del bookie.entries[key]


async def wait_stuck(world: World, epoch: int) -> None:
    """Until the reader itself asks: a look ahead asks each of the two replicas once."""
    ledger = ledger_of(LOG, Epoch(epoch))

    def is_asked() -> bool:
        reads = [read for b in world.bookies.values() for read in b.reads]
        return sum(read.ledger_id == ledger for read in reads) > 2

    await wait_for(is_asked)


async def give_up_below_e3n1s1(world: World) -> None:
    """Record 27 is slot 1 of e3n1."""
    await truncate(world, 3, 1, 1, 27)
    world.log = world.log.with_first_live_epoch(Epoch(3), unix_ms=0, nonce="g")
    await put_log(world)
