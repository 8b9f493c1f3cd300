"""Cookies of format 3 come before the first envelope, at every crash, and an older version stops.

Source: docs/protocol/envelopes.md "Versions", V5.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest

from duramen.core.status import BookieStatus
from duramen.runtime.role import StartRefusedError
from duramen.runtime.stores.memory_store import MemoryTree
from duramen.wire.disk.journal_format import RecordKind
from duramen.wire.metadata_json import read_node
from duramen.wire.nodes.formats import PROCESS_FORMATS
from duramen_bookie import cookie as cookie_module
from duramen_bookie.cookie import StaleDisk
from duramen_bookie.offline.stopped_bookie import CannotTell, open_stopped
from tests.component.bookie_world import (
    LEDGER,
    OK,
    PATHS,
    SEAL,
    Bookie,
    add,
    bodies,
    expected,
    run,
    running,
    span,
    store,
)
from tests.component.identity_world import PLACES, Disks, refused
from tests.component.identity_world import run as run_identity
from tests.waiting import wait_for

OVERLOADED = BookieStatus.OVERLOADED


class Crash(Exception):
    """The process ends here."""


def crash_at_cookie(patch: pytest.MonkeyPatch, step_count: int, *, is_after: bool) -> None:
    """So many cookies are put in place; the next is not, or is and nothing follows."""
    left = [step_count]
    replace = os.replace

    def counting_replace(source: Any, target: Any) -> None:
        left[0] -= 1
        if left[0] < 0 and not is_after:
            raise Crash
        replace(source, target)
        if left[0] < 0:
            raise Crash

    patch.setattr("duramen_bookie.cookie.os.replace", counting_replace)


def forget_envelopes(patch: pytest.MonkeyPatch) -> None:
    """The version before, which knows cookies up to 2."""
    patch.setattr(cookie_module, "NEWEST_FORMAT", 2)


@pytest.fixture
def disks(tmp_path: Path) -> Disks:
    """A bookie that was at work and has stopped."""
    disks = Disks(tmp_path / "b1", MemoryTree())
    run_identity(disks.start())
    disks.fill()
    return disks


def formats(disks: Disks) -> list[int]:
    return [disks.cookie(place).format for place in PLACES]


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("crash_at", range(len(PLACES)))
def test_a_crash_between_two_cookies_is_finished_by_a_start(
    disks: Disks, monkeypatch: pytest.MonkeyPatch, crash_at: int, is_after: bool
) -> None:
    directories = disks.open()
    with monkeypatch.context() as patch, contextlib.suppress(Crash):
        crash_at_cookie(patch, crash_at, is_after=is_after)
        directories.secure_newest_format()
        pytest.fail("no crash")
    directories.release()
    raised = crash_at + is_after
    assert formats(disks) == [3] * raised + [2] * (len(PLACES) - raised)
    with monkeypatch.context() as patch:
        forget_envelopes(patch)
        if raised:
            assert "newer than 2: start the newer version" in refused(disks, StaleDisk)
        else:
            assert run_identity(disks.start()).format == 2
    found = run_identity(disks.start())
    assert formats(disks) == [3 if raised else 2] * len(PLACES) and found == disks.cookie("data")
    assert run_identity(disks.start()) == found


@pytest.mark.parametrize("place", PLACES)
def test_one_cookie_of_format_3_makes_all_of_them_so(disks: Disks, place: str) -> None:
    disks.edit_cookie(place, format=3)
    assert run_identity(disks.start()).format == 3 and formats(disks) == [3] * len(PLACES)


def test_each_cookie_is_on_the_disk_before_the_next(
    disks: Disks, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    fsync, replace = os.fsync, os.replace

    def name_of(descriptor: int) -> str:
        return Path(os.readlink(f"/proc/self/fd/{descriptor}")).name

    def noting_fsync(descriptor: int) -> None:
        seen.append(f"sync {name_of(descriptor)}")
        fsync(descriptor)

    def noting_replace(source: Any, target: Any) -> None:
        seen.append("rename")
        replace(source, target)

    monkeypatch.setattr("duramen_bookie.cookie.os.fsync", noting_fsync)
    monkeypatch.setattr("duramen_bookie.cookie.os.replace", noting_replace)
    directories = disks.open()
    directories.secure_newest_format()
    directories.release()
    steps = "|".join(seen)
    for place in PLACES:
        one = f"sync cookie.json.new|sync {place}|rename|sync {place}"
        assert one in steps, steps


# --- A bookie that runs --------------------------------------------------------------------------


def cookie_formats(folder: Path) -> list[int]:
    paths = sorted(folder.rglob("cookie.json"))
    return [cookie_module.parse_cookie(path.read_bytes()).format for path in paths]


def is_in_journal(folder: Path, text: bytes) -> bool:
    return any(text in path.read_bytes() for path in folder.rglob("*.dj"))


async def store_when_ready(bookie: Bookie, *stores: Any) -> None:
    """As an owner: OVERLOADED is asked again."""

    async def ask() -> bool:
        statuses = await bookie.add(*stores)
        assert set(statuses) <= {OK, OVERLOADED}, statuses
        return statuses == [OK] * len(stores)

    await wait_for(ask)


def test_the_first_envelope_waits_for_the_cookies_and_others_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            assert await bookie.add(add(0), add(1)) == [OK, OK]
            assert set(cookie_formats(tmp_path)) == {2}
            with monkeypatch.context() as patch:
                crash_at_cookie(patch, 0, is_after=True)
                statuses = await bookie.add(store(2, 4, 0), add(3))
                assert statuses == [OVERLOADED, OK], "a row without an envelope needs no cookie"
                await wait_for(lambda: 3 in cookie_formats(tmp_path))
                again = await bookie.add(store(2, 4, 0))
                assert again == [OVERLOADED], "not all cookies say so"
            assert not is_in_journal(tmp_path, bytes(store(2, 4, 0).envelope)), "V5"
            await store_when_ready(bookie, store(2, 4, 0))
            assert set(cookie_formats(tmp_path)) == {3}
            assert is_in_journal(tmp_path, bytes(store(2, 4, 0).envelope))
            [answer] = await bookie.read(span(0, 3))
            assert bodies(answer) == expected([0, 1, 2, 3])

    run(scenario)


def test_what_nobody_could_store_changes_no_cookie(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            good = store(2, 4, 0)
            bad = good._replace(envelope=store(3, 4, 0).envelope)
            cut = good._replace(envelope=good.envelope[:-1])
            invalid = [BookieStatus.INVALID] * 2
            assert await bookie.add(bad, cut) == invalid, "V11: another entry's"
            other = [BookieStatus.WRONG_INCARNATION]
            assert await bookie.add(good, life="f" * 32) == other  # type: ignore[arg-type]
            await bookie.seal(SEAL)
            assert await bookie.add(good) == [BookieStatus.SEALED]
        assert set(cookie_formats(tmp_path)) == {2}

    run(scenario)


def test_what_is_here_waits_for_no_cookie_unless_its_lac_needs_a_record(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            assert await bookie.add(add(2)) == [OK]
            assert await bookie.add(store(2, 4, 0)) == [OK], "it is here, and has no LAC to take"
            assert await bookie.add(store(2, 4, 0, lac=1)) in ([OVERLOADED], [OK])

    run(scenario)


def test_the_older_version_refuses_the_disks_and_the_newer_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        tree = MemoryTree()
        async with running(tmp_path, tree) as bookie:
            await store_when_ready(bookie, store(2, 4, 0), store(3, 4, 0))
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        with monkeypatch.context() as patch:
            forget_envelopes(patch)
            with pytest.raises(StartRefusedError, match="start the newer version"):
                async with running(tmp_path, tree, failures=[]):
                    pytest.fail("it started")
            with (
                pytest.raises(CannotTell, match="start the newer version"),
                open_stopped(tmp_path, None, ()),
            ):
                pytest.fail("its tools opened it")
        after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        assert before == after, "nothing was written"
        async with running(tmp_path, tree) as bookie:
            [answer] = await bookie.read(span(2, 3))
            assert bodies(answer) == expected([2, 3])
            storage = bookie.service._storage
            assert storage is not None and storage.keeps_envelopes
            [one] = storage.hot_contents(LEDGER, *span(2, 3)[1:3])
            assert (one.first, one.last) == (2, 3)

    run(scenario)


def test_cookies_that_a_person_put_back_are_raised_before_the_start_is_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        tree = MemoryTree()
        async with running(tmp_path, tree) as bookie:
            await store_when_ready(bookie, store(2, 4, 0))
        for path in tmp_path.rglob("cookie.json"):
            path.write_bytes(path.read_bytes().replace(b'"format": 3', b'"format": 2'))
        async with running(tmp_path, tree):
            assert set(cookie_formats(tmp_path)) == {3}

    run(scenario)


def test_without_an_envelope_the_disks_stay_what_they_were(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            assert await bookie.add(*[add(number) for number in range(5)]) == [OK] * 5
        assert set(cookie_formats(tmp_path)) == {2}
        kinds = {data[at + 5] for data, at in _list_records(tmp_path)}
        assert RecordKind.STORE not in kinds and RecordKind.ADD in kinds

    run(scenario)


def test_the_bookie_says_that_it_keeps_envelopes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bookie:
            found = bookie.tree.get(f"{PATHS.available}/b1")
            assert found is not None
            assert read_node(found.data)["formats"] == PROCESS_FORMATS

    run(scenario)


def _list_records(folder: Path) -> list[tuple[bytes, int]]:
    found = []
    for path in folder.rglob("*.dj"):
        data = path.read_bytes()
        at = data.find(b"DJR1")
        while at >= 0:
            found.append((data, at))
            at = data.find(b"DJR1", at + 8)
    return found
