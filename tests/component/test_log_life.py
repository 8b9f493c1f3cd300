"""Truncate, end, delete, undelete and retention in a sequencer, on a store in memory.

The logs here have no open segment, or another's: what an owner does with its open one is in the
cores' tests and in the process tests. Entry headers come from the fake bookies of the read proxy's
world. Source: docs/protocol/retention.md "End of stream" and "Deletion", R3, R4.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from duramen.config import parse_log_config
from duramen.core.log_node import LogNode, TrimPoint
from duramen.core.placement.node_states import NodeStates
from duramen.errors import DuramenError
from duramen.ids import (
    BookieId,
    EntryId,
    Epoch,
    LogId,
    SequencerId,
    ledger_of,
    lsn_of,
)
from duramen.runtime.http_client import PeerClient
from duramen.runtime.metadata_log.entry_reads import open_segment_nodes
from duramen.runtime.sequencer.bookie_lanes import BookieLanes
from duramen.runtime.sequencer.metadata_link import MetadataLink
from duramen.runtime.sequencer.node_watch import NodeWatch
from duramen.runtime.stores.metadata_store import SessionState
from duramen.texts import parse_position
from duramen.units import MIB
from duramen.wire.metadata_json import encode_log, encode_node
from duramen_sequencer.life.boundaries import Boundaries, Extent
from tests.component import readproxy_world
from tests.component.life_world import HOUR_MS, PATHS, World, run
from tests.component.readproxy_world import NAMES
from tests.waiting import wait_for

Find = Callable[[str], Awaitable[TrimPoint]]
"""From a position to its boundary."""


# --- Positions -----------------------------------------------------------------------------------


@asynccontextmanager
async def finding(source: readproxy_world.World) -> AsyncIterator[Find]:
    """Finds boundaries in the log that `fill` has written, at the bookies of that world."""
    client = PeerClient()
    urls = {name: f"http://127.0.0.1:{source.bookies[BookieId(name)].server.port}"
            for name in NAMES}  # fmt: skip
    lanes = BookieLanes(client, lambda bookie: urls[bookie], NodeWatch(NodeStates()))
    boundaries = Boundaries(open_segment_nodes(source.store, PATHS, lanes), lanes)
    end = TrimPoint(lsn_of(Epoch(3), EntryId(3)), 0, 31)
    extent = Extent(source.log, 0, end, 5, source.segment)

    async def find(position: str) -> TrimPoint:
        return await boundaries.find(parse_position(position), extent, field="to")

    try:
        yield find
    finally:
        await client.close()


def test_every_position_of_a_record_is_found_as_its_boundary() -> None:
    """Two closed segments and an open one, with fragments, striping and leftovers."""

    async def scenario(source: readproxy_world.World) -> None:
        await source.fill()
        records = (await source.read())["records"]
        async with finding(source) as find:
            for record in records:
                expected = (record["dlsn"], record["seq_num"])
                for position in (f"seq:{record['seq_num']}", f"dlsn:{record['dlsn']}",
                                 f"tail-{31 - record['seq_num']}"):  # fmt: skip
                    point = await find(position)
                    assert (str(point.dlsn), point.seq_num) == expected, position
            end = TrimPoint(lsn_of(Epoch(3), EntryId(3)), 0, 31)
            assert await find("tail") == await find("seq:31") == await find("lsn:e3n3") == end
            assert await find("head") == await find("lsn:e1n0") == source.log.trim
            first_of_third = TrimPoint(lsn_of(Epoch(3), EntryId(0)), 0, 22)
            for behind in ("dlsn:e2n4s1", "lsn:e2n5", "dlsn:e2n9s9"):
                assert await find(behind) == first_of_third, behind
            assert str((await find("dlsn:e3n0s4")).dlsn) == "e3n1s0"
            for beyond in ("seq:32", "dlsn:e3n3s1", "lsn:e4n0"):
                with pytest.raises(DuramenError) as caught:
                    await find(beyond)
                assert caught.value.problem()["tail"]["seq_num"] == 31, beyond
            for other in ("txid:5", "ago:1h", "time:5"):
                with pytest.raises(DuramenError, match="invalid_position"):
                    await find(other)

    readproxy_world.run(scenario)


POSITIONS = {"seq:4": "e1n1s1", "seq:7": "e1n2s1", "seq:10": "e1n3s1", "seq:15": "e2n1s1",
             "seq:27": "e3n1s1", "dlsn:e1n1s3": "e1n2s0", "dlsn:e2n2s2": "e2n2s2"}  # fmt: skip


def test_a_replica_that_is_away_is_passed_over_while_one_is_left() -> None:
    """Two of three replicas, or one of two where the entries are striped, may be away."""

    async def scenario(source: readproxy_world.World) -> None:
        await source.fill()
        async with finding(source) as find:
            for away in ("a", "b", "c", "d"):
                source.bookies[BookieId(away)].is_broken = True
                for position, dlsn in POSITIONS.items():
                    assert str((await find(position)).dlsn) == dlsn, (away, position)
                source.bookies[BookieId(away)].is_broken = False
            for bookie in source.bookies.values():
                bookie.is_broken = True
            with pytest.raises(DuramenError, match="data_unavailable"):
                await find("seq:4")

    readproxy_world.run(scenario)


@pytest.mark.parametrize("other", [(1, 3), (2, 1)], ids=["another entry", "another segment"])
def test_what_a_replica_says_of_another_entry_does_not_decide_what_is_deleted(
    other: tuple[int, int],
) -> None:
    """A disk that mixes its entries up: the right one's replicas are asked, and else nobody."""

    async def scenario(source: readproxy_world.World) -> None:
        await source.fill()
        right = (ledger_of(source.log.log_id, Epoch(1)), EntryId(1))
        holders = [bookie for bookie in source.bookies.values() if right in bookie.entries]
        epoch, entry = other
        ledger_id = ledger_of(source.log.log_id, Epoch(epoch))
        (wrong, *_) = [
            bookie.entries[ledger_id, EntryId(entry)]
            for bookie in source.bookies.values()
            if (ledger_id, EntryId(entry)) in bookie.entries
        ]
        async with finding(source) as find:
            for bookie in holders:
                assert str((await find("seq:4")).dlsn) == "e1n1s1"
                bookie.entries[right] = wrong
            with pytest.raises(DuramenError, match="data_unavailable"):
                await find("seq:4")

    readproxy_world.run(scenario)


# --- Operations ----------------------------------------------------------------------------------


def test_a_truncation_is_one_change_and_repeating_it_is_none() -> None:
    async def act(world: World) -> None:
        log_id = await world.create()
        await world.add_segments(log_id, 5, 3)
        answer = await world.ask("truncate", log_id=log_id, to="lsn:e2n0")
        assert answer["changed"] is True
        assert answer["head"] == {"seq_num": 5, "lsn": "e2n0", "dlsn": "e2n0s0"}
        assert answer["tail"]["seq_num"] == 8
        for lower in ("lsn:e2n0", "head", "seq:0", "dlsn:e1n3s0"):
            again = await world.ask("truncate", log_id=log_id, to=lower)
            assert (again["changed"], again["head"]) == (False, answer["head"]), lower
        beyond = await world.refused("truncate", log_id=log_id, to="seq:9")
        assert beyond.problem()["tail"]["seq_num"] == 8 and beyond.field == "to"
        assert (await world.ask("truncate", log_id=log_id, to="tail"))["head"]["seq_num"] == 8
        assert (await world.log(log_id)).trim_seq_num == 8

    run(act)


def test_a_change_between_read_and_write_is_not_written_over() -> None:
    async def act(world: World) -> None:
        log_id = await world.create()
        await world.add_segments(log_id, 5, 3)
        store_set, other = world.store.set, list[LogNode]()

        async def interfere(path: str, data: bytes, *, version: int) -> int:
            if not other:
                other.append(await world.log(log_id))
                await store_set(path, encode_log(replace(other[0], config_version=7)),
                                version=version)  # fmt: skip
            return await store_set(path, data, version=version)

        world.store.set = interfere  # type: ignore[method-assign]
        await world.ask("truncate", log_id=log_id, to="lsn:e2n0")
        log = await world.log(log_id)
        assert (log.config_version, log.trim_seq_num) == (7, 5)

    run(act)


def test_an_ended_log_takes_truncations_and_no_epoch() -> None:
    async def act(world: World) -> None:
        log_id = await world.create()
        await world.add_segments(log_id, 5)
        for _ in range(2):
            answer = await world.ask("end", log_id=log_id)
            assert answer["ended"] is True and answer["tail"]["seq_num"] == 5
        assert (await world.log(log_id)).is_ended
        assert (await world.ask("truncate", log_id=log_id, to="tail"))["changed"] is True
        await world.ask("delete", log_id=log_id)
        assert (await world.refused("end", log_id=log_id)).code == "log_deleted"
        assert (await world.refused("truncate", log_id=log_id, to="head")).code == "log_deleted"

    run(act)


def test_an_open_segment_is_its_owners_business() -> None:
    async def act(world: World) -> None:
        log_id = await world.create()
        log = await world.log(log_id)
        await world.change(log.with_new_epoch("n"))
        await world.store.create(f"{PATHS.sequencers}/s1", encode_node({"data_url": "http://s1"}))
        await asyncio.wait_for(_see(world, "s1"), 30)
        other = MetadataLink(world.store, PATHS, SequencerId("s1"), "http://s1")
        await other.keep_owner(log.log_id, Epoch(1))
        for op in ("end", "delete", "truncate"):
            answer = await world.ask(op, log_id=log_id, to="head")
            assert answer == {"redirect": {"sequencer_id": "s1", "url": "http://s1"}}

    run(act)


async def _see(world: World, name: str) -> None:
    while name not in world.sequencers.nodes:  # noqa: ASYNC110 - a roster has no event
        await asyncio.sleep(0)


def test_a_deleted_log_comes_back_within_its_window() -> None:
    async def act(world: World) -> None:
        log_id = await world.create()
        await world.add_segments(log_id, 5)
        before = await world.log(log_id)
        for _ in range(2):
            answer = await world.ask("delete", log_id=log_id)
            assert answer == {"log_id": log_id, "undelete_until": "1970-01-01T01:00:00.000Z"}
        assert await world.name() == {"log_id": log_id, "deleted": True}
        for _ in range(2):
            back = await world.ask("undelete", namespace="ns", log="log")
            assert back["log_id"] == log_id
        assert replace(await world.log(log_id), nonce="") == replace(before, nonce="")
        assert await world.name() == {"log_id": log_id}

    run(act)


def test_a_name_may_be_created_anew_at_once_and_then_the_old_log_stays_away() -> None:
    async def act(world: World) -> None:
        old = await world.create({"roll": {"size": "1MiB"}})
        await world.ask("delete", log_id=old)
        new = await world.create()
        assert int(new) > int(old)
        refused = await world.refused("undelete", namespace="ns", log="log")
        assert refused.code == "log_deleted" and new in refused.detail
        await world.ask("delete", log_id=new)
        assert (await world.ask("undelete", namespace="ns", log="log"))["log_id"] == new
        assert (await world.log(old)).is_deleted and not (await world.log(new)).is_deleted

    run(act)


def test_a_name_that_was_taken_meanwhile_is_not_taken_away() -> None:
    """Creations that all saw the name free, or its log deleted: one of them makes the log."""

    async def act(world: World) -> None:
        for _ in range(2):
            asking = [
                world.ask("create_log", namespace="ns", log="log", config={}) for _ in range(8)
            ]
            made = await asyncio.gather(*asking)
            log_ids = {answer["log_id"] for answer in made}
            assert len(log_ids) == 1 and [answer["created"] for answer in made].count(True) == 1
            await world.ask("delete", log_id=log_ids.pop())

    run(act)


def test_a_log_that_is_there_is_not_created_with_another_configuration() -> None:
    async def act(world: World) -> None:
        small, large = ({"roll": {"size": size}} for size in ("1MiB", "2MiB"))
        asking = {"op": "create_log", "namespace": "ns", "log": "log"}
        # All see the name free: who comes second finds the log as who comes later.
        both = [world.ask(**asking, config=config) for config in (small, large) * 3]
        made = await asyncio.gather(*both, return_exceptions=True)
        answers = [answer for answer in made if isinstance(answer, dict)]
        refusals = [error.code for error in made if isinstance(error, DuramenError)]
        assert sorted(answer["created"] for answer in answers) == [False, False, True]
        assert refusals == ["log_exists_with_other_config"] * 3
        log = await world.log(answers[0]["log_id"])
        kept, other = (small, large) if log.config.roll.size == MIB else (large, small)
        again = await world.ask(**asking, config=kept)
        assert (again["created"], again["log_id"]) == (False, str(log.log_id))
        refused = await world.refused(**asking, config=other)
        assert refused.code == "log_exists_with_other_config"
        assert await world.log(str(log.log_id)) == log

    run(act)


def test_after_the_window_a_log_is_purged_for_ever_and_its_name_is_free() -> None:
    async def act(world: World) -> None:
        log_id = await world.create()
        await world.add_segments(log_id, 5, 3)
        await world.ask("delete", log_id=log_id)
        world.now_ms = HOUR_MS - 1
        await world.run_rounds()
        assert not (await world.log(log_id)).is_purged
        world.now_ms += 1
        refused = await world.refused("undelete", namespace="ns", log="log")
        assert refused.code == "log_deleted" and "over" in refused.detail
        await world.run_rounds()
        assert (await world.log(log_id)).is_purged and await world.name() is None
        assert await world.segments(log_id) == ()
        gone = await world.refused("undelete", namespace="ns", log="log")
        assert gone.code == "log_not_found"
        assert await world.create() != log_id

    run(act)


def test_creating_a_log_meets_no_conflict_but_for_the_first_of_its_parent() -> None:
    """A counter of conflicts that rises with every log hides those that mean something."""

    async def act(world: World) -> None:
        await world.create()
        before = world.store.statistics()["conflicts"]
        for number in range(20):
            await world.ask("create_log", namespace="ns", log=f"log-{number}", config={})
        assert world.store.statistics()["conflicts"] == before

    run(act)


def test_what_is_asked_of_a_log_by_its_id_leaves_the_log_alone_that_has_its_name_now() -> None:
    async def act(world: World) -> None:
        old = await world.create()
        deleted = await world.ask("delete", log_id=old)
        new = await world.create()
        before, name = await world.log(new), await world.name()
        assert (await world.refused("truncate", log_id=old, to="tail")).code == "log_deleted"
        assert (await world.refused("end", log_id=old)).code == "log_deleted"
        assert await world.ask("delete", log_id=old) == deleted
        assert (await world.log(new), await world.name()) == (before, name)

    run(act)


def test_a_purge_leaves_the_name_to_the_log_that_has_it_now() -> None:
    async def act(world: World) -> None:
        old = await world.create()
        await world.ask("delete", log_id=old)
        new = await world.create()
        world.now_ms = HOUR_MS
        await world.run_rounds()
        assert (await world.log(old)).is_purged
        assert await world.name() == {"log_id": new, "replaces": old}

    run(act)


def test_a_log_that_took_a_deleted_ones_name_is_hidden_when_it_is_deleted_too() -> None:
    async def act(world: World) -> None:
        old = await world.create()
        await world.ask("delete", log_id=old)
        new = await world.create()
        await world.ask("delete", log_id=new)
        assert await world.name() == {"log_id": new, "replaces": old, "deleted": True}
        await world.ask("undelete", namespace="ns", log="log")
        assert await world.name() == {"log_id": new}

    run(act)


def test_a_name_keeps_the_fields_of_a_newer_version() -> None:
    async def act(world: World) -> None:
        old = await world.create()
        await world.change_name(since=7)
        await world.ask("delete", log_id=old)
        assert await world.name() == {"log_id": old, "deleted": True, "since": 7}
        await world.ask("undelete", namespace="ns", log="log")
        assert await world.name() == {"log_id": old, "since": 7}
        await world.ask("delete", log_id=old)
        new = await world.create()
        assert await world.name() == {"log_id": new, "replaces": old, "since": 7}

    run(act)


# --- Retention -----------------------------------------------------------------------------------


def test_what_expired_is_truncated_then_given_up_and_its_nodes_go() -> None:
    async def act(world: World) -> None:
        log_id = await world.create({"retention": {"age": "2h", "truncated": "1h"}})
        await world.add_segments(log_id, 5, 3)
        world.now_ms = 2 * HOUR_MS
        await world.add_segments(log_id, 4)
        await world.run_rounds()
        log = await world.log(log_id)
        assert (log.trim_seq_num, log.first_live_epoch) == (8, 1)
        assert await world.segments(log_id) == ("1", "2", "3")
        world.now_ms += HOUR_MS
        await world.run_rounds()
        assert (await world.log(log_id)).first_live_epoch == 3
        assert await world.segments(log_id) == ("3",)
        assert (await world.ask("truncate", log_id=log_id, to="head"))["head"]["seq_num"] == 8

    run(act)


def test_what_is_truncated_is_kept_from_the_change_on_and_not_from_the_look_before_it() -> None:
    """A store that is slow, or many segments to read, lie between the two."""

    async def act(world: World) -> None:
        log_id = await world.create({"retention": {"age": "2h", "truncated": "1h"}})
        await world.add_segments(log_id, 5, 3)
        world.now_ms = 2 * HOUR_MS
        world.clock_pace_ms = HOUR_MS // 2
        await world.run_rounds(1)
        world.clock_pace_ms = 0
        log = await world.log(log_id)
        assert log.trim_seq_num == 8 and log.truncated_unix_ms == 2 * HOUR_MS + HOUR_MS // 2
        world.now_ms = log.truncated_unix_ms + HOUR_MS - 1
        await world.run_rounds()
        assert (await world.log(log_id)).first_live_epoch == 1
        world.now_ms += 1
        await world.run_rounds()
        assert (await world.log(log_id)).first_live_epoch == 3

    run(act)


def test_a_quiet_log_costs_one_read_a_round() -> None:
    async def act(world: World) -> None:
        log_id = await world.create()
        await world.add_segments(log_id, 5, 3)
        await world.run_rounds(1)
        get, paths = world.store.get, []

        async def count(path: str, watch: Any = None) -> Any:
            paths.append(path)
            return await get(path, watch)

        world.store.get = count  # type: ignore[method-assign]
        await world.run_rounds(5)
        assert paths == [PATHS.log(LogId(int(log_id)))] * 5
        assert world.retention.statistics()["quiet_logs"] == 1

    run(act)


def test_anothers_log_is_left_alone() -> None:
    async def act(world: World) -> None:
        log_id = await world.create({"retention": {"age": "1h"}})
        await world.add_segments(log_id, 5)
        other = MetadataLink(world.store, PATHS, SequencerId("s1"), "http://s1")
        await other.keep_owner(LogId(int(log_id)), Epoch(1))
        world.now_ms = 9 * HOUR_MS
        await world.run_rounds()
        assert (await world.log(log_id)).trim_seq_num == 0

    run(act)


def test_the_log_of_an_embedded_writer_is_looked_after_by_the_sequencer_that_the_hash_names() -> (
    None
):
    async def act(world: World) -> None:
        log_id = await world.create({"retention": {"age": "1h"}})
        await world.add_segments(log_id, 5)
        writer = MetadataLink(world.store, PATHS, SequencerId("core-app"), "")
        await writer.keep_owner(LogId(int(log_id)), Epoch(1))
        world.now_ms = 9 * HOUR_MS
        await world.run_rounds()
        assert (await world.log(log_id)).trim_seq_num > 0

    run(act)


def test_a_lost_session_ends_a_round_at_once() -> None:
    async def act(world: World) -> None:
        log_id = await world.create({"retention": {"age": "1h"}})
        await world.add_segments(log_id, 5)
        world.now_ms = 9 * HOUR_MS
        reached, go_on = asyncio.Event(), asyncio.Event()
        read_owner = world.link.read_owner

        async def dawdle(wanted: LogId) -> Any:
            reached.set()
            await go_on.wait()
            return await read_owner(wanted)

        world.link.read_owner = dawdle  # type: ignore[method-assign, assignment]
        world.retention.start()
        world.retention.want_round()
        await reached.wait()
        world.retention.on_session(SessionState.SUSPENDED)
        go_on.set()
        await wait_for(lambda: bool(world.retention.statistics()["rounds_cut"]))
        assert (await world.log(log_id)).trim_seq_num == 0
        world.retention.want_round()
        await wait_for(lambda: bool(world.retention.statistics()["trims"]))
        await world.retention.stop()

    run(act)


def test_a_log_that_waits_for_its_cold_copy_is_shown() -> None:
    async def act(world: World) -> None:
        config = parse_log_config({"retention": {"age": "1h", "require_cold_copy": True}})
        log_id = await world.create(config.to_json())
        await world.add_segments(log_id, 5)
        world.now_ms = 9 * HOUR_MS
        await world.run_rounds()
        assert (await world.log(log_id)).trim_seq_num == 0
        assert world.retention.statistics()["held_for_cold_copy"] == {log_id: 1}

    run(act)
