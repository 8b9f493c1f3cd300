"""Identity at the worst moments: formats that are cut off, unknown outcomes, two starts at once.

As `test_identity`, which has the states.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Any

import pytest

from duramen.ids import BookieId, Incarnation
from duramen.runtime.cluster_node import ensure_cluster
from duramen.runtime.role import StartRefusedError
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree, WriteFate
from duramen.runtime.stores.metadata_store import MetadataError, OutcomeUnknown
from duramen_bookie.cookie import Cookie, Directory, DiskLost, StaleDisk
from duramen_bookie.identity import establish_identity
from tests.component.identity_world import PATHS, PLACES, Disks, refused, run


@pytest.fixture
def disks(tmp_path: Path) -> Disks:
    """A bookie that was at work and has stopped."""
    disks = Disks(tmp_path / "b1", MemoryTree())
    run(disks.start())
    disks.fill()
    return disks


# --- Formats that were cut off -------------------------------------------------------------------


class Crash(Exception):
    """The process ends here."""


@pytest.mark.parametrize("is_replacement", [False, True])
def test_a_format_that_was_cut_off_anywhere_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_replacement: bool
) -> None:
    """A crash before and after each thing that is made durable, until none is met any more."""
    for crash_at in range(100):
        disks = Disks(tmp_path / str(crash_at), MemoryTree())
        lost: tuple[Incarnation, ...] = ()
        if is_replacement:
            lost = (run(disks.start()).incarnation,)
            disks.lose_all()
        with monkeypatch.context() as patch:
            crash_after(patch, crash_at)
            is_over = False
            with contextlib.suppress(Crash):
                run(disks.start(accepts_new_incarnation=is_replacement))
                is_over = True
        file = disks.paths["data"] / "cookie.json"
        pending = disks.cookie("data") if file.exists() else None
        cookie = run(disks.start(accepts_new_incarnation=is_replacement))
        assert pending is None or cookie.incarnation == pending.incarnation, crash_at
        assert run(disks.start()) == cookie
        assert disks.node()["incarnation"] == cookie.incarnation
        assert (disks.tree.children(PATHS.repair_lost) or ()) == lost
        if is_over:
            assert crash_at > 20, "cookies twice, and the nodes"
            return
    pytest.fail("the format never ended")


def crash_after(patch: pytest.MonkeyPatch, step_count: int) -> None:
    """So many cookies and nodes are begun or made, then nothing more happens."""
    left = [step_count]
    replace, write_through = os.replace, MemoryStore.commit

    def count() -> None:
        left[0] -= 1
        if left[0] == -1:
            raise Crash

    def counting_replace(source: Any, target: Any) -> None:
        count()
        replace(source, target)
        count()

    async def counting_commit(store: MemoryStore, ops: Any) -> tuple[int, ...]:
        count()
        versions = await write_through(store, ops)
        count()
        return versions

    patch.setattr("duramen_bookie.cookie.os.replace", counting_replace)
    patch.setattr(MemoryStore, "commit", counting_commit)


def test_a_format_that_was_cut_off_leaves_nothing_in_the_way_of_another(tmp_path: Path) -> None:
    disks = Disks(tmp_path, MemoryTree())
    cookie = run(disks.start())
    for place in PLACES:
        disks.edit_cookie(place, is_formatting=True)
    other = Disks(tmp_path, MemoryTree(), "b2")
    found = run(other.start())
    assert found.bookie_id == "b2" and found.incarnation != cookie.incarnation


@pytest.mark.parametrize("fate", list(WriteFate))
@pytest.mark.parametrize("is_replacement", [False, True])
def test_a_write_of_unknown_outcome_is_settled_by_the_next_try(
    tmp_path: Path, fate: WriteFate, is_replacement: bool
) -> None:
    """R3: the own incarnation in the node tells that it was oneself."""

    async def scenario() -> None:
        tree = MemoryTree()
        disks = Disks(tmp_path / fate.value, tree)
        founder = MemoryStore(tree)
        await founder.start()
        await ensure_cluster(founder, PATHS)
        for parent in (PATHS.bookies, f"{PATHS.root}/repair", PATHS.repair_lost):
            await founder.create(parent, b"")
        if is_replacement:
            await disks.start()
            disks.lose_all()
        store = MemoryStore(tree)
        await store.start()
        directories = disks.open()

        async def establish() -> Cookie:
            return await establish_identity(
                directories,
                store,
                PATHS,
                BookieId("b1"),
                region="x",
                rack="y",
                accepts_new_incarnation=is_replacement,
            )

        if is_replacement:  # its parent's creation is refused; that one is known
            commit = store.commit

            async def doom(ops: Any) -> tuple[int, ...]:
                if len(ops) == 2:
                    store.doom_next_write(fate)
                    store.commit = commit  # type: ignore[method-assign]
                return await commit(ops)

            store.commit = doom  # type: ignore[method-assign]
        else:
            store.doom_next_write(fate)
        with pytest.raises(OutcomeUnknown):
            await establish()
        begun = disks.cookie("data")
        assert begun.is_formatting
        trying = asyncio.create_task(establish())
        await asyncio.sleep(0)
        store.deliver_late_writes()
        assert (await trying).incarnation == begun.incarnation == disks.node()["incarnation"]
        directories.release()

    run(scenario())


# --- Two at once ---------------------------------------------------------------------------------


def test_directories_are_held_by_one_process_each(disks: Disks, tmp_path: Path) -> None:
    held = disks.open()
    assert "held by another process" in refused(disks, StartRefusedError)
    other = Disks(tmp_path / "b2", disks.tree, "b2")
    other.paths["ledgers-1"] = disks.paths["ledgers-0"]
    assert "give this one its own --ledger-dir" in refused(other, StartRefusedError)
    held.release()
    assert run(disks.start()) == disks.cookie("data")


def test_two_that_make_the_same_directories_are_one(tmp_path: Path) -> None:
    first, second = Directory(tmp_path / "x", "data"), Directory(tmp_path / "x", "data")
    first.make()
    with pytest.raises(StartRefusedError, match="held by another process"):
        second.make()
    first.release()
    second.make()
    second.release()


@pytest.mark.parametrize("is_replacement", [False, True])
def test_of_two_first_starts_with_one_id_one_wins(tmp_path: Path, is_replacement: bool) -> None:
    async def scenario() -> None:
        tree = MemoryTree()
        if is_replacement:
            await Disks(tmp_path / "old", tree).start()
        both = [Disks(tmp_path / name, tree) for name in ("x", "y")]
        starts = [disks.start(accepts_new_incarnation=is_replacement) for disks in both]
        results = await asyncio.gather(*starts, return_exceptions=True)
        ((winner, cookie),) = [
            (disks, result)
            for disks, result in zip(both, results, strict=True)
            if isinstance(result, Cookie)
        ]
        (error,) = [result for result in results if not isinstance(result, Cookie)]
        assert isinstance(error, StaleDisk) and "give each its own --id" in str(error)
        assert winner.node()["incarnation"] == cookie.incarnation
        assert await winner.start() == cookie
        (loser,) = [disks for disks in both if disks is not winner]
        with pytest.raises(DiskLost):
            await loser.start()
        loser.bookie_id = "b2"
        assert (await loser.start()).incarnation != cookie.incarnation

    run(scenario())


def test_many_starters_make_one_cluster() -> None:
    async def scenario() -> None:
        tree = MemoryTree()
        stores = [MemoryStore(tree) for _ in range(5)]
        for store in stores:
            await store.start()
        uuids = await asyncio.gather(*[ensure_cluster(store, PATHS) for store in stores])
        assert len(set(uuids)) == 1

    run(scenario())


def test_no_answer_from_zookeeper_is_no_state_of_the_disk(disks: Disks) -> None:
    async def scenario() -> None:
        store = MemoryStore(disks.tree)
        await store.start()
        store.disconnect()
        directories = disks.open()
        with pytest.raises(MetadataError):
            await establish_identity(
                directories, store, PATHS, BookieId("b1"), region="local", rack="r1"
            )
        directories.release()

    run(scenario())
