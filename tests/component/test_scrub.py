"""The scrub and the repair queue: everything is read, damage is told to the core and queued.

Storage is a list of units that the test makes, metadata is in memory with its faults: a store that
is cut off, and writes whose replies are lost. Not here: files and their checksums.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest

from duramen.ids import BookieId, EntryId, Incarnation, LedgerId, Member
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree, WriteFate
from duramen.runtime.stores.metadata_store import Rejected, Stored, Unavailable
from duramen.units import DAY, MIB
from duramen.wire.metadata_json import MetadataJsonError, Paths, encode_node, read_node
from duramen_bookie.upkeep.pacing import Pace
from duramen_bookie.upkeep.repair_queue import RepairQueue, RepairReason, encode_report
from duramen_bookie.upkeep.scrub import Scrub
from tests.component import upkeep_world
from tests.golden import read_golden
from tests.waiting import wait_for

PATHS = Paths("test")
ME = Member(BookieId("b1"), Incarnation("1" * 32))
OTHER = Member(BookieId("b2"), Incarnation("2" * 32))
LEDGER = LedgerId(9 << 32 | 1)
SCRUB = RepairReason.SCRUB


class Unit:
    """A piece of storage."""

    def __init__(
        self, name: str, *damaged: tuple[int, int], failure: OSError | None = None
    ) -> None:
        self.name = name
        self.size_bytes = MIB
        self.damaged = [(LedgerId(ledger), EntryId(entry)) for ledger, entry in damaged]
        self.failure = failure
        self.is_begun = threading.Event()
        self.may_end = threading.Event()
        self.may_end.set()
        self.is_ended = False
        self.is_mended = False

    def verify(self) -> Sequence[tuple[LedgerId, EntryId]]:
        self.is_begun.set()
        assert self.may_end.wait(upkeep_world.DEADLINE_S)
        self.is_ended = True
        if self.failure is not None:
            raise self.failure
        return self.damaged

    def is_in_force(self, _ledger_id: LedgerId, _entry_id: EntryId) -> bool:
        return not self.is_mended


class World:
    """Units, a metadata store, the queue to it, and the scrub."""

    def __init__(self) -> None:
        self.tree = MemoryTree()
        self.store = MemoryStore(self.tree)
        self.units: list[Unit] = []
        self.known_damage: list[LedgerId] = []
        self.unreadable: list[tuple[LedgerId, EntryId]] = []
        self.queue = RepairQueue(self.store, PATHS, ME)
        self.pace = Pace(1_000 * MIB)
        self.scrub = self.make_scrub(DAY)

    def make_scrub(self, rest_us: int) -> Scrub:
        return Scrub(
            self,
            self.pace,
            on_damage=lambda ledger_id, entry_id: self.unreadable.append((ledger_id, entry_id)),
            queue=self.queue,
            rest_us=rest_us,
            now_unix_us=lambda: 1_700_000_000_000_000,
        )

    def scrub_units(self) -> Iterator[Unit]:
        yield from self.units

    def damaged_ledgers(self) -> Iterable[LedgerId]:
        return self.known_damage

    def queued(self) -> dict[int, Any]:
        """What stands in the repair queue: the reports by ledger."""
        ledgers = self.tree.children(PATHS.repair_queue) or ()
        return {int(ledger): self.reports_of(int(ledger)) for ledger in ledgers}

    def reports_of(self, ledger_id: int) -> Any:
        found = self.tree.get(PATHS.queued(ledger_id))
        assert found is not None
        return read_node(found.data)["reports"]

    async def wait_reported(self, count: int) -> None:
        await wait_for(lambda: self.queue.statistics()["reported"] == count)


def run(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def in_world() -> None:
        world = World()
        await world.store.start()
        await scenario(world)

    upkeep_world.run(in_world)


# --- The scrub -----------------------------------------------------------------------------------


def test_a_pass_over_sound_storage_finds_nothing_and_says_what_it_read() -> None:
    async def scenario(world: World) -> None:
        world.units = [Unit("a"), Unit("b")]
        await world.scrub.run_pass()
        assert all(unit.is_ended for unit in world.units)
        assert world.unreadable == []
        assert world.scrub.describe() == {
            "state": "resting",
            "bytes_per_s": 1_000 * MIB,
            "running_pass": None,
            "last_pass": {
                "began_unix_ms": 1_700_000_000_000,
                "ended_unix_ms": 1_700_000_000_000,
                "unit_count": 2,
                "failed_unit_count": 0,
                "verified_bytes": 2 * MIB,
                "damaged_entry_count": 0,
            },
            "damaged_entry_count": 0,
            "recent_damage": [],
        }

    run(scenario)


def test_damage_is_told_to_the_core_and_its_ledgers_are_queued() -> None:
    async def scenario(world: World) -> None:
        world.units = [Unit("a", (5, 1), (5, 2), (6, 0)), Unit("b"), Unit("c", (5, 9))]
        await world.scrub.run_pass()
        assert world.unreadable == [(5, 1), (5, 2), (6, 0), (5, 9)]
        world.queue.start()
        await world.wait_reported(2)
        await world.queue.stop()
        mine = {f"b1.{'1' * 32}": "scrub"}
        assert world.queued() == {5: mine, 6: mine}
        described = world.scrub.describe()
        assert described["damaged_entry_count"] == 4
        assert described["recent_damage"][0] == {"ledger_id": "5", "entry_id": 1}

    run(scenario)


def test_damage_of_a_copy_that_is_not_read_any_more_is_no_damage() -> None:
    async def scenario(world: World) -> None:
        unit = Unit("a", (5, 1))
        unit.is_mended = True
        world.units = [unit]
        await world.scrub.run_pass()
        assert world.unreadable == [] and world.scrub.describe()["damaged_entry_count"] == 0

    run(scenario)


def test_a_unit_that_cannot_be_verified_does_not_end_the_pass() -> None:
    async def scenario(world: World) -> None:
        world.units = [Unit("a", failure=OSError(5, "no such luck")), Unit("b", (5, 1))]
        await world.scrub.run_pass()
        assert world.unreadable == [(5, 1)]
        last = world.scrub.describe()["last_pass"]
        assert (last["unit_count"], last["failed_unit_count"]) == (1, 1)

    run(scenario)


def test_known_damage_is_reported_again_by_every_pass() -> None:
    async def scenario(world: World) -> None:
        world.known_damage = [LEDGER]
        world.queue.start()
        await world.scrub.run_pass()
        await world.wait_reported(1)
        await world.store.delete(PATHS.queued(LEDGER), version=0)
        await world.scrub.run_pass()
        await world.wait_reported(2)
        await world.queue.stop()
        assert list(world.queued()) == [LEDGER]

    run(scenario)


def test_while_suspended_nothing_is_verified() -> None:
    async def scenario(world: World) -> None:
        world.units = [Unit("a"), Unit("b")]
        world.units[0].may_end.clear()
        world.scrub.start()
        await wait_for(world.units[0].is_begun.is_set)
        world.scrub.suspend()
        world.units[0].may_end.set()
        await wait_for(lambda: world.pace.statistics()["waiting_count"] == 1)
        described = world.scrub.describe()
        assert described["state"] == "suspended"
        assert described["running_pass"]["unit_count"] == 1
        assert not world.units[1].is_begun.is_set()
        world.scrub.resume()
        await wait_for(lambda: world.scrub.describe()["last_pass"] is not None)
        await world.scrub.stop()
        assert world.units[1].is_ended

    run(scenario)


def test_a_stop_waits_for_the_unit_that_is_being_verified_and_begins_no_other() -> None:
    async def scenario(world: World) -> None:
        world.units = [Unit("a"), Unit("b")]
        world.units[0].may_end.clear()
        world.scrub.start()
        await wait_for(world.units[0].is_begun.is_set)
        stopping = asyncio.create_task(world.scrub.stop())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not stopping.done()
        world.units[0].may_end.set()
        await stopping
        assert world.units[0].is_ended
        assert not world.units[1].is_begun.is_set()
        assert world.scrub.describe()["state"] == "stopped"
        assert world.scrub.describe()["last_pass"] is None

    run(scenario)


def test_passes_follow_each_other_and_one_can_be_asked_for() -> None:
    async def scenario(world: World) -> None:
        def ended_count() -> int:
            count = world.scrub.statistics()["passes"]["round_count"]
            assert isinstance(count, int)
            return count

        world.scrub.start()
        await wait_for(lambda: ended_count() == 1)
        world.scrub.begin_soon()
        await wait_for(lambda: ended_count() == 2)
        await world.scrub.stop()

    run(scenario)


def test_a_scrub_that_finds_the_queue_full_waits_and_loses_no_report() -> None:
    async def scenario(world: World) -> None:
        world.queue = RepairQueue(world.store, PATHS, ME, count_max=2)
        world.scrub = world.make_scrub(DAY)
        world.units = [Unit("a", *[(ledger, 0) for ledger in range(1, 8)])]
        world.scrub.start()
        await wait_for(lambda: world.queue.statistics()["refused"] > 0)
        assert len(world.unreadable) == 7
        assert world.queue.statistics()["waiting"] == 2
        world.queue.start()
        await world.wait_reported(7)
        await world.scrub.stop()
        await world.queue.stop()
        assert sorted(world.queued()) == list(range(1, 8))

    run(scenario)


# --- The queue -----------------------------------------------------------------------------------


def test_a_ledger_waits_once_with_its_first_reason() -> None:
    async def scenario(world: World) -> None:
        assert world.queue.put(LEDGER, RepairReason.READ)
        assert world.queue.put(LEDGER, SCRUB)
        assert world.queue.statistics()["waiting"] == 1
        world.queue.start()
        await world.wait_reported(1)
        await world.queue.stop()
        assert list(world.reports_of(LEDGER).values()) == ["read"]

    run(scenario)


def test_a_full_queue_refuses_others_and_takes_them_later() -> None:
    async def scenario(world: World) -> None:
        queue = RepairQueue(world.store, PATHS, ME, count_max=1)
        assert queue.put(LedgerId(1), SCRUB)
        assert not queue.put(LedgerId(2), SCRUB)
        assert queue.put(LedgerId(1), SCRUB)
        queue.start()
        await queue.wait_room()
        assert queue.put(LedgerId(2), SCRUB)
        await wait_for(lambda: queue.statistics()["reported"] == 2)
        await queue.stop()

    run(scenario)


def test_reports_of_other_bookies_are_kept() -> None:
    async def scenario(world: World) -> None:
        other = encode_report(None, LEDGER, OTHER, RepairReason.READ, "n")
        assert other is not None
        await world.store.create(PATHS.queued(LEDGER), other, make_parents=True)
        world.queue.put(LEDGER, SCRUB)
        world.queue.start()
        await world.wait_reported(1)
        await world.queue.stop()
        assert world.reports_of(LEDGER) == {f"b1.{'1' * 32}": "scrub", f"b2.{'2' * 32}": "read"}

    run(scenario)


@pytest.mark.parametrize("fate", list(WriteFate))
@pytest.mark.parametrize("is_there", [False, True])
def test_a_write_whose_reply_is_lost_leaves_one_report(fate: WriteFate, is_there: bool) -> None:
    async def scenario(world: World) -> None:
        if is_there:
            other = encode_report(None, LEDGER, OTHER, RepairReason.READ, "n")
            assert other is not None
            await world.store.create(PATHS.queued(LEDGER), other, make_parents=True)
        world.queue.put(LEDGER, SCRUB)
        world.store.doom_next_write(fate)
        world.queue.start()
        await world.wait_reported(1)
        world.store.deliver_late_writes()
        await world.queue.stop()
        assert world.queued()[LEDGER][f"b1.{'1' * 32}"] == "scrub"
        assert len(world.queued()[LEDGER]) == 1 + is_there

    run(scenario)


def test_a_store_that_is_cut_off_is_tried_until_it_answers() -> None:
    async def scenario(world: World) -> None:
        world.store.disconnect()
        world.queue.put(LedgerId(1), SCRUB)
        world.queue.put(LedgerId(2), SCRUB)
        world.queue.start()
        await wait_for(lambda: world.queue.statistics()["retried"] >= 2)
        assert world.queue.statistics()["waiting"] == 2
        world.store.reconnect()
        await world.wait_reported(2)
        await world.queue.stop()
        assert sorted(world.queued()) == [1, 2]

    run(scenario)


def test_a_foreign_node_is_left_alone_and_does_not_hold_up_the_others() -> None:
    async def scenario(world: World) -> None:
        await world.store.create(PATHS.queued(1), b"what is this", make_parents=True)
        world.queue.put(LedgerId(1), SCRUB)
        world.queue.put(LedgerId(2), SCRUB)
        world.queue.start()
        await world.wait_reported(1)
        await world.queue.stop()
        found = world.tree.get(PATHS.queued(1))
        assert found is not None
        assert found.data == b"what is this"
        assert world.queue.statistics()["given_up"] == 1
        assert world.queue.statistics()["waiting"] == 0

    run(scenario)


def test_a_ledger_that_cannot_be_reported_now_does_not_hold_up_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        get = world.store.get

        async def fail_for_one(path: str) -> Stored | None:
            if path == PATHS.queued(LedgerId(1)):
                raise Unavailable("not this one")
            return await get(path)

        monkeypatch.setattr(world.store, "get", fail_for_one)
        world.queue.put(LedgerId(1), SCRUB)
        world.queue.put(LedgerId(2), SCRUB)
        world.queue.start()
        await world.wait_reported(1)
        await world.queue.stop()
        assert sorted(world.queued()) == [2]
        assert world.queue.statistics()["waiting"] == 1

    run(scenario)


def test_a_store_that_will_never_take_it_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        monkeypatch.setattr(world.store, "create", refuse)
        world.queue.put(LEDGER, SCRUB)
        world.queue.start()
        await wait_for(lambda: world.queue.statistics()["given_up"] == 1)
        await world.queue.stop()

    async def refuse(*_args: object, **_options: object) -> int:
        raise Rejected("no access")

    run(scenario)


# --- The node ------------------------------------------------------------------------------------


def test_a_report_that_is_there_needs_no_write() -> None:
    once = encode_report(None, LEDGER, ME, SCRUB, "n1")
    assert once is not None
    assert encode_report(once, LEDGER, ME, RepairReason.READ, "n2") is None


def test_unknown_fields_of_a_node_travel_through_a_report() -> None:
    found = encode_node({"ledger_id": str(LEDGER), "reports": {}, "priority": 7})
    written = encode_report(found, LEDGER, ME, SCRUB, "n")
    assert written is not None
    assert json.loads(written)["priority"] == 7


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        encode_node({}),
        encode_node({"ledger_id": "1", "reports": {}}),
        encode_node({"ledger_id": str(LEDGER), "reports": []}),
    ],
)
def test_what_is_no_report_about_the_ledger_is_refused(data: bytes) -> None:
    with pytest.raises(MetadataJsonError):
        encode_report(data, LEDGER, ME, SCRUB, "n")


def test_the_node_is_spelled_as_its_golden_file() -> None:
    first = encode_report(None, LEDGER, ME, RepairReason.REPLAY, "0" * 32)
    both = encode_report(first, LEDGER, OTHER, SCRUB, "f" * 32)
    assert both is not None
    golden = read_golden("repair-queue-node-v1.json", both)
    assert encode_report(golden, LEDGER, ME, SCRUB, "n") is None


def test_the_queue_is_where_the_interface_page_says() -> None:
    assert PATHS.queued(5) == "/duramen/test/repair/queue/5"
