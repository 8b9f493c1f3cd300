"""Tombstones: written with a purge, confirmed by every bookie, gone when nobody has anything left.

The sequencer's retention and the bookies' rounds on one store in memory; what bookies hold is a
table of the test. A bookie that was away during all of it must still drop its ledgers later.
Source: docs/protocol/metadata.md "tombstones and tombstones/<sequence>", R4,
docs/protocol/retention.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from duramen.core.log_node import LogNode
from duramen.core.metadata_log.marks import MetadataMarks
from duramen.ids import (
    BookieId,
    EntryId,
    Epoch,
    Incarnation,
    LogId,
    Member,
    ledger_of,
    lsn_of,
    metadata_log_of,
)
from duramen.runtime.stores.memory_store import MemoryStore
from duramen.wire.metadata_json import (
    MetadataJsonError,
    encode_log,
    encode_node,
    encode_tombstone,
    read_log,
    read_node,
    read_tombstone,
)
from duramen_bookie.upkeep.deletion import Deletion
from duramen_bookie.upkeep.tombstones import Confirmation
from tests.component.holders import Holder
from tests.component.life_world import HOUR_MS, PATHS, World, run
from tests.golden import read_golden


class Bookie:
    """One bookie: its node, what it holds, its deletion and its confirmation."""

    def __init__(self, world: World, name: str) -> None:
        self.member = Member(BookieId(name), Incarnation(name.encode().hex() * 8))
        self.path = f"{PATHS.bookies}/{name}"
        self.holder = Holder()
        self.now_us = 0
        self._store: MemoryStore = world.store
        self.confirmation = Confirmation(world.store, PATHS, self.member, self.holder)

    async def join(self, **fields: Any) -> None:
        node = encode_node({"incarnation": self.member.incarnation, "weight": 1.0, **fields})
        await self._store.create(self.path, node, make_parents=True)

    async def fields(self) -> dict[str, Any]:
        stored = await self._store.get(self.path)
        assert stored is not None
        return read_node(stored.data)

    async def confirmed(self) -> int | None:
        return (await self.fields()).get("confirmed_tombstone")

    async def delete_and_confirm(self) -> None:
        """Rounds of both, until what is proved is proved again and dropped."""
        cluster = await self._store.get(PATHS.cluster)
        assert cluster is not None
        deletion = Deletion(
            self._store, PATHS, read_node(cluster.data)["uuid"], self.holder,
            now_us=lambda: self.now_us,
        )  # fmt: skip
        for _ in range(3):
            await deletion.run_round()
            self.now_us += 120_000_000
        await self.confirmation.run_round()


async def purge(world: World, *bookies: Bookie) -> LogId:
    """A log with two segments that every bookie holds, deleted and purged."""
    log_id = await world.create()
    await world.add_segments(log_id, 5, 3)
    for bookie in bookies:
        bookie.holder.hold(LogId(int(log_id)), 1, 2)
    await world.ask("delete", log_id=log_id)
    world.now_ms += HOUR_MS
    await world.run_rounds()
    assert (await world.log(log_id)).is_purged
    return LogId(int(log_id))


async def tombstones(world: World) -> tuple[str, ...]:
    return await world.store.children(PATHS.tombstones) or ()


async def has_node(world: World, log_id: LogId) -> bool:
    return await world.store.get(PATHS.log(log_id)) is not None


def test_a_log_node_stays_until_every_bookie_has_dropped_what_it_had() -> None:
    async def act(world: World) -> None:
        here, away = Bookie(world, "b1"), Bookie(world, "b2")
        await here.join()
        await away.join()
        log_id = await purge(world, here, away)
        assert await tombstones(world) == ("1",)
        await here.confirmation.run_round()
        assert await here.confirmed() is None, "its ledgers are here still"
        await here.delete_and_confirm()
        assert here.holder.dropped == [ledger_of(log_id, Epoch(1)), ledger_of(log_id, Epoch(2))]
        assert await here.confirmed() == 1
        await world.run_rounds(5)
        assert await has_node(world, log_id), "the proof for whoever was away"
        assert world.retention.statistics()["tombstones"]["waiting"] == 1
        # The other one is back after a long time, and finds the proof.
        await away.delete_and_confirm()
        assert len(away.holder.dropped) == 2 and await away.confirmed() == 1
        assert (await away.fields())["weight"] == 1.0, "the node's other fields are kept"
        await world.run_rounds(1)
        assert not await has_node(world, log_id) and await tombstones(world) == ()
        assert world.retention.statistics()["tombstones"]["removed"] == 1

    run(act)


def test_a_bookie_that_has_said_nothing_keeps_every_tombstone() -> None:
    async def act(world: World) -> None:
        one, new = Bookie(world, "b1"), Bookie(world, "b2")
        await one.join()
        log_id = await purge(world)
        await one.confirmation.run_round()
        await new.join()
        await world.run_rounds()
        assert await has_node(world, log_id)
        await new.confirmation.run_round()
        await world.run_rounds(1)
        assert not await has_node(world, log_id)

    run(act)


def test_a_number_is_never_given_twice() -> None:
    """What was confirmed before a purge must not cover it."""

    async def act(world: World) -> None:
        bookie = Bookie(world, "b1")
        await bookie.join()
        await purge(world, bookie)
        await bookie.delete_and_confirm()
        await world.run_rounds(1)
        assert await tombstones(world) == ()
        second = await purge(world, bookie)
        assert await tombstones(world) == ("2",)
        await world.run_rounds()
        assert await has_node(world, second)
        await bookie.confirmation.run_round()
        assert await bookie.confirmed() == 1

    run(act)


def test_the_first_ledger_that_is_left_holds_up_what_comes_after_it() -> None:
    async def act(world: World) -> None:
        bookie = Bookie(world, "b1")
        await bookie.join()
        logs = [await purge(world) for _ in range(3)]
        bookie.holder.hold(logs[1], 1)
        await bookie.confirmation.run_round()
        assert await bookie.confirmed() == 1
        await world.run_rounds(1)
        assert [await has_node(world, log_id) for log_id in logs] == [False, True, True]
        assert await tombstones(world) == ("2", "3")
        await bookie.delete_and_confirm()
        await world.run_rounds(1)
        assert await tombstones(world) == () and not await has_node(world, logs[2])

    run(act)


def test_logs_that_are_purged_in_one_round_have_a_tombstone_each() -> None:
    async def act(world: World) -> None:
        for name in ("one", "two", "three"):
            made = await world.ask("create_log", namespace="ns", log=name, config={})
            await world.ask("delete", log_id=made["log_id"])
        before = world.store.statistics()["conflicts"]
        world.now_ms += HOUR_MS
        await world.run_rounds(1)
        assert await tombstones(world) == ("1", "2", "3")
        assert world.store.statistics()["conflicts"] == before

    run(act)


def test_other_disks_under_the_same_name_are_not_spoken_for() -> None:
    async def act(world: World) -> None:
        bookie = Bookie(world, "b1")
        await bookie.join(incarnation="f" * 32)
        await purge(world)
        await bookie.confirmation.run_round()
        assert await bookie.confirmed() is None

    run(act)


# --- Metadata logs -------------------------------------------------------------------------------


async def make_metadata_log(world: World, log_id: LogId, *, is_open: bool = False) -> LogId:
    """The metadata log of a log, with an epoch; nobody makes one by a call yet."""
    log = await world.log(str(log_id))
    metadata_log = metadata_log_of(log_id)
    node = replace(log, log_id=metadata_log, is_deleted=False, deleted_unix_ms=None,
                   is_purged=False, next_epoch=Epoch(2), last_clean_epoch=0 if is_open else 1,
                   snapshot_lsn=None)  # fmt: skip
    path = PATHS.log(metadata_log)
    await world.store.create(path, encode_log(node.validated()), make_parents=True)
    await world.store.create(PATHS.segments(metadata_log), b"")
    return metadata_log


async def read_metadata_log(world: World, metadata_log: LogId) -> LogNode:
    stored = await world.store.get(PATHS.log(metadata_log))
    assert stored is not None
    return read_log(stored.data)


def test_a_metadata_log_is_purged_when_its_log_is_gone_and_not_before() -> None:
    async def act(world: World) -> None:
        bookie = Bookie(world, "b1")
        await bookie.join()
        log_id = await purge(world, bookie)
        metadata_log = await make_metadata_log(world, log_id)
        bookie.holder.hold(metadata_log, 1)
        await world.run_rounds()
        assert not (await read_metadata_log(world, metadata_log)).is_deleted
        await bookie.delete_and_confirm()
        assert bookie.holder.list_logs() == [metadata_log], "while its log is there it is kept"
        await world.run_rounds(1)
        assert not await has_node(world, log_id)
        assert (await read_metadata_log(world, metadata_log)).is_purged
        assert await tombstones(world) == ("2",)
        await bookie.delete_and_confirm()
        await world.run_rounds(1)
        assert bookie.holder.list_logs() == [] and await tombstones(world) == ()
        assert not await has_node(world, metadata_log)

    run(act)


def test_a_log_stays_until_its_metadata_log_is_closed() -> None:
    async def act(world: World) -> None:
        bookie = Bookie(world, "b1")
        await bookie.join()
        log_id = await purge(world)
        metadata_log = await make_metadata_log(world, log_id, is_open=True)
        await bookie.confirmation.run_round()
        await world.run_rounds()
        assert await has_node(world, log_id) and await tombstones(world) == ("1",)
        opened = await read_metadata_log(world, metadata_log)
        await world.change(replace(opened, last_clean_epoch=1))
        await world.run_rounds(1)
        assert not await has_node(world, log_id)
        assert (await read_metadata_log(world, metadata_log)).is_purged

    run(act)


def test_retention_concludes_nothing_from_nodes_that_have_moved() -> None:
    async def act(world: World) -> None:
        log_id = LogId(int(await world.create({"retention": {"age": "1h"}})))
        await world.add_segments(str(log_id), 5, 3)
        log = await world.log(str(log_id))
        marks = MetadataMarks(1, 1, None, lsn_of(Epoch(1), EntryId(0)))
        moved = replace(log, first_hot_epoch=Epoch(2), metadata=marks).validated()
        await world.change(moved)
        await world.store.delete(PATHS.segment(log_id, Epoch(1)), version=0)
        world.now_ms += 5 * HOUR_MS
        await world.run_rounds()
        assert await read_metadata_log(world, log_id) == moved, "nothing is truncated or given up"
        assert await world.segments(str(log_id)) == ("2",)

    run(act)


def test_a_log_whose_metadata_have_moved_is_purged_as_any() -> None:
    async def act(world: World) -> None:
        bookie = Bookie(world, "b1")
        await bookie.join()
        log_id = await purge(world, bookie)
        log = await world.log(str(log_id))
        await make_metadata_log(world, log_id)
        marks = MetadataMarks(1, 1, None, lsn_of(Epoch(1), EntryId(0)))
        await world.change(replace(log, first_hot_epoch=Epoch(2), metadata=marks).validated())
        await bookie.delete_and_confirm()
        await world.run_rounds(1)
        assert len(bookie.holder.dropped) == 2 and not await has_node(world, log_id)

    run(act)


@pytest.mark.parametrize("word", ["first", -1, True, None])
def test_a_confirmation_that_is_no_number_confirms_nothing(word: Any) -> None:
    async def act(world: World) -> None:
        await Bookie(world, "b1").join(confirmed_tombstone=word)
        log_id = await purge(world)
        await world.run_rounds()
        assert await has_node(world, log_id)

    run(act)


def test_without_any_bookie_in_sight_nothing_is_removed() -> None:
    async def act(world: World) -> None:
        log_id = await purge(world)
        await world.run_rounds()
        assert await has_node(world, log_id) and await tombstones(world) == ("1",)

    run(act)


def test_a_tombstone_never_takes_a_log_that_is_not_purged() -> None:
    async def act(world: World) -> None:
        bookie = Bookie(world, "b1")
        await bookie.join(confirmed_tombstone=9)
        log_id = LogId(int(await world.create()))
        await world.store.create(PATHS.tombstone(4), encode_tombstone([log_id]), make_parents=True)
        await world.run_rounds()
        assert await has_node(world, log_id)

    run(act)


def test_a_tombstone_of_a_log_that_is_gone_goes_too() -> None:
    async def act(world: World) -> None:
        await Bookie(world, "b1").join(confirmed_tombstone=9)
        await world.store.create(
            PATHS.tombstone(4), encode_tombstone([LogId(77)]), make_parents=True
        )
        await world.run_rounds(1)
        assert await tombstones(world) == ()

    run(act)


def test_golden_tombstone() -> None:
    log_ids = (LogId(5), LogId(2_147_483_647))
    assert (
        read_tombstone(read_golden("tombstone-node-v1.json", encode_tombstone(log_ids))) == log_ids
    )
    for wrong in (b'{"v":1}', b'{"log_ids":"5","v":1}', b'{"log_ids":[5],"v":1}'):
        with pytest.raises(MetadataJsonError):
            read_tombstone(wrong)
