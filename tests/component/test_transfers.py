"""What a transfer to the entry log takes, leaves and gives up: nothing replaced, nothing mixed up.

`test_carrying` fails every operation of the disk once and looks at what is served afterwards; here
one thing is wrong at a time, and it is looked at what lies on the disk.
"""

from pathlib import Path

import pytest

from duramen.ids import EntryId, Epoch, epoch_of, log_of
from duramen.limits import SETTLE_BYTES_PER_S_FIRST, SETTLE_FILE_COUNT
from duramen.runtime.stores.memory_store import MemoryTree
from duramen.wire.disk.journal_format import record_bytes
from duramen.wire.metadata_json import read_node
from duramen_bookie.upkeep import settling
from duramen_bookie.upkeep.rounds import CoreHoldings
from duramen_bookie.upkeep.settling import SettlingPace
from duramen_bookie.upkeep.transfer import read_entry_log_file
from tests.component.bookie_world import LEDGER, PATHS, add, damage, running
from tests.component.bookie_world import run as run_bookie
from tests.component.carrying_world import ENTRY_COUNT, OTHER, World, make_world
from tests.component.entry_log_world import LEDGER as ENTRY_LOG_LEDGER
from tests.component.entry_log_world import make_world as make_entry_log
from tests.component.entry_log_world import record
from tests.component.upkeep_world import run
from tests.waiting import wait_for


def list_entry_log(world: World) -> set[str]:
    return {path for path in world.disk.list_files() if path.endswith((".de", ".idx"))}


def test_what_a_newer_file_has_is_not_copied_from_an_older_one() -> None:
    world, _ = make_entry_log()
    world.write(1, [record(ENTRY_LOG_LEDGER, 0), record(ENTRY_LOG_LEDGER, 1)])
    world.write(2, [record(ENTRY_LOG_LEDGER, 0)])
    older, _ = world.entry_log.list_files()
    copied = [entry_id for _, entry_id, _ in read_entry_log_file(older, world.entry_log)]
    assert copied == [1]


def test_an_entry_whose_place_is_wrong_is_damaged_and_no_other_takes_its_place() -> None:
    world = make_world()
    index = world.engine.storage.index
    first = EntryId(ENTRY_COUNT)
    (following,) = index.select(OTHER, EntryId(first + 1), 1, 10_000)
    index.put(OTHER, first, following.location)
    assert world.carry_out(world.begin_settling)
    assert world.reported == [(OTHER, first)]


@pytest.mark.parametrize("is_kept", [False, True])
def test_what_was_given_up_is_removed_unless_it_is_kept(is_kept: bool) -> None:
    world = make_world()
    before = list_entry_log(world)
    transfer = world.begin_settling()
    assert sum(transfer.pieces()) > 0
    assert len(list_entry_log(world) - before) == 2, "a file and its index"
    if is_kept:
        transfer.keep()
    transfer.abandon()
    assert len(list_entry_log(world) - before) == (2 if is_kept else 0)


def test_files_stay_that_a_checkpoint_may_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error tells nothing of what reached the disk."""
    world = make_world()
    before = list_entry_log(world)

    def fail(*_: object) -> None:
        raise OSError("the answer was lost")

    monkeypatch.setattr(settling, "write_checkpoint", fail)
    with pytest.raises(OSError, match="the answer was lost"):
        world.carry_out(world.begin_settling)
    assert len(list_entry_log(world) - before) == 2


def test_settling_hurries_with_each_file_that_waits() -> None:
    async def scenario() -> None:
        pace = SettlingPace(lambda: SETTLE_FILE_COUNT + 2)
        assert await pace.admit(1)
        assert pace.bytes_per_s == 4 * SETTLE_BYTES_PER_S_FIRST

    run(scenario)


def test_a_drop_waits_for_room_for_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a full disk's last file some bytes are left: fewer than a record takes."""

    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            await bookie.add(add(0))
            service = bookie.service
            storage, plane = service._storage, service._plane
            assert storage is not None and plane is not None
            holdings = CoreHoldings(storage, plane.drain)
            with monkeypatch.context() as patched:
                patched.setattr(
                    storage, "has_room", lambda size, *, is_urgent: size < record_bytes(0)
                )
                holdings.drop(log_of(LEDGER), Epoch(epoch_of(LEDGER) + 1), is_all_below=True)
            await bookie.add(add(1))
            assert holdings.list_logs() == [log_of(LEDGER)]
            holdings.drop(log_of(LEDGER), Epoch(epoch_of(LEDGER) + 1), is_all_below=True)
            await wait_for(lambda: not holdings.list_logs())

    run_bookie(scenario)


def test_purged_entries_are_forgotten_by_the_index(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            await bookie.add(*[add(number) for number in range(4)])
            storage = bookie.service._storage
            assert storage is not None
            CoreHoldings(storage, lambda: None).purge_beyond(LEDGER, EntryId(1))
            found = storage.index.select(LEDGER, EntryId(0), 9, 10_000)
            assert [place.entry_id for place in found] == [0, 1]

    run_bookie(scenario)


def test_damage_that_replay_found_is_reported_with_that_reason(tmp_path: Path) -> None:
    tree = MemoryTree()

    def find_report() -> object:
        found = tree.get(PATHS.queued(LEDGER))
        return None if found is None else list(read_node(found.data)["reports"].values())

    async def scenario() -> None:
        async with running(tmp_path, tree) as bookie:
            await bookie.add(*[add(number) for number in range(3)])
        damage(tmp_path, 1, pattern="*.dj")
        async with running(tmp_path, tree):
            await wait_for(lambda: find_report() is not None)
        assert find_report() == ["replay"]

    run_bookie(scenario)
