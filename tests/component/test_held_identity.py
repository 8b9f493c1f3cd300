"""A running process and its folder: what counts at once, what is refused, and when it ends.

Looks are made by hand, so nothing here waits for one. Source: docs/protocol/identity.md "The
folder".
"""

from __future__ import annotations

import asyncio
import datetime as dt
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import prometheus_client
import pytest

from duramen.runtime.identity import generations
from duramen.runtime.identity.certificates import LEAF_LIFE, list_anchors
from duramen.runtime.identity.folder import read_folder
from duramen.runtime.identity.names import IdentityError, Role
from duramen.runtime.security.held_identity import (
    ExpectedNode,
    WatchedIdentity,
    notify_all,
    read_expected,
)
from tests.component.issuing_world import IssuingWorld, read_time
from tests.waiting import wait_for

NODE: Final = ExpectedNode(Role.BOOKIE, "bookie-0")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No copy is under way here."""
    monkeypatch.setattr(generations, "_SETTLING_S", 0.0)


class Watching:
    """A process that looks when it is told to."""

    def __init__(self, folder: Path) -> None:
        self.changes = 0
        self.ends: list[str] = []
        held = read_folder(folder, read_time())
        self.watched = WatchedIdentity(folder, held, self._on_change, self.ends.append)

    def _on_change(self) -> None:
        self.changes += 1

    def look(self) -> tuple[int, int]:
        """Changes and refusals since the start."""
        asyncio.run(self.watched.look())
        statistics = self.watched.statistics()
        assert statistics["changes"] == self.changes
        return self.changes, statistics["refused"]


def copy(source: Path, target: Path, name: str) -> None:
    (target / name).unlink()
    shutil.copyfile(source / name, target / name)
    (target / name).chmod(0o600)


def make_plain(folder: Path, source: Path) -> Path:
    """A folder as a person makes it by copying."""
    folder.mkdir()
    for name in ("tls.crt", "tls.key", "ca.crt", "ca.crl"):
        shutil.copyfile(source / name, folder / name)
        (folder / name).chmod(0o600)
    return folder


def test_a_new_certificate_counts_and_the_same_one_is_no_news(tmp_path: Path) -> None:
    world = IssuingWorld(tmp_path)
    watching = Watching(world.server)
    before = watching.watched.held
    assert watching.look() == (0, 0)
    world.issue("bookie", "bookie-0")
    assert watching.look() == (1, 0)
    assert watching.watched.held.leaf != before.leaf
    assert watching.watched.held.key.public_key() == watching.watched.held.leaf.public_key()
    assert watching.look() == (1, 0)
    ((metric, left_s),) = [
        (sample.labels, sample.value)
        for family in prometheus_client.REGISTRY.collect()
        for sample in family.samples
        if sample.name == "duramen_identity_expires_seconds"
    ]
    assert [metric["issuer"]] == list_anchors(before.bundle)
    assert 0 < left_s <= LEAF_LIFE.total_seconds()


def test_what_is_revoked_counts_at_once_and_who_is_revoked_itself_ends(tmp_path: Path) -> None:
    world = IssuingWorld(tmp_path)
    watching = Watching(world.server)
    world.revoke("sequencer-0", world.server)
    assert watching.look() == (1, 0)
    assert not watching.ends
    with pytest.raises(IdentityError, match="is revoked"):
        world.revoke("bookie-0", world.server)
    watching.look()
    assert len(watching.watched.held.bundle.lists[0]) == 2, "it counts, whatever the leaf is"
    assert "is revoked" in watching.ends[0]


def test_a_list_that_goes_back_or_goes_away_is_refused(tmp_path: Path) -> None:
    world = IssuingWorld(tmp_path / "a")
    folder = make_plain(tmp_path / "node", world.server)
    older = tmp_path / "older"
    older.mkdir()
    shutil.copyfile(world.server / "ca.crl", older / "ca.crl")
    world.revoke("sequencer-0", world.server)
    copy(world.server, folder, "ca.crl")
    watching = Watching(folder)
    copy(older, folder, "ca.crl")
    assert watching.look() == (0, 1)
    (folder / "ca.crl").unlink()
    assert watching.look() == (0, 2)
    assert watching.look() == (0, 2), "a finding is told once"
    assert len(watching.watched.held.bundle.lists[0]) == 1
    assert not watching.ends


@pytest.mark.parametrize("name", ["tls.crt", "tls.key", "ca.crt"])
def test_what_cannot_be_read_changes_nothing(tmp_path: Path, name: str) -> None:
    world = IssuingWorld(tmp_path / "a")
    folder = make_plain(tmp_path / "node", world.server)
    watching = Watching(folder)
    before = watching.watched.held
    (folder / name).write_text("nothing")
    assert watching.look() == (0, 1)
    assert watching.watched.held == before
    assert not watching.ends


def test_another_ones_certificate_is_refused(tmp_path: Path) -> None:
    world = IssuingWorld(tmp_path / "a")
    folder = make_plain(tmp_path / "node", world.server)
    watching = Watching(folder)
    for name in ("tls.crt", "tls.key"):
        copy(world.caller, folder, name)
    assert watching.look() == (0, 1)
    assert watching.watched.held.identity.name == "bookie-0"


def test_a_process_ends_with_its_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = IssuingWorld(tmp_path)
    world.issue("bookie", "bookie-0", life=dt.timedelta(hours=1))
    watching = Watching(world.server)
    watching.look()
    assert not watching.ends

    later = read_time() + dt.timedelta(hours=2)
    monkeypatch.setattr("duramen.runtime.security.held_identity._read_clock", lambda: later)
    watching.look()
    assert "has expired" in watching.ends[0]


def test_a_ca_that_leaves_takes_with_it_whom_it_issued(tmp_path: Path) -> None:
    world, other = IssuingWorld(tmp_path / "a"), IssuingWorld(tmp_path / "b")
    folder = make_plain(tmp_path / "node", world.server)
    watching = Watching(folder)
    for name in ("ca.crt", "ca.crl"):
        copy(other.server, folder, name)
    assert watching.look()[0] == 1, "the bundle counts, though the leaf is none of its"
    assert "is issued by no CA" in watching.ends[0]


def test_the_folder_of_another_node_is_no_start(tmp_path: Path) -> None:
    world = IssuingWorld(tmp_path)
    assert read_expected(world.server, NODE).identity.name == "bookie-0"
    for folder in (world.caller, world.issue("bookie", "bookie-1"), tmp_path / "nowhere"):
        with pytest.raises(IdentityError):
            read_expected(folder, NODE)


def test_what_fails_at_a_change_is_tried_again(tmp_path: Path) -> None:
    world = IssuingWorld(tmp_path)
    watching = Watching(world.server)
    failing: Any = watching.watched
    told, failing._on_change = failing._on_change, lambda: 1 / 0
    world.issue("bookie", "bookie-0")
    with pytest.raises(ZeroDivisionError):
        asyncio.run(watching.watched.look())
    failing._on_change = told
    assert watching.look() == (1, 0)
    assert watching.look() == (1, 0), "once it was told"


def test_looks_come_by_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duramen.runtime.identity.folder_watch.LOOK_S", 0.01)
    world = IssuingWorld(tmp_path)
    watching = Watching(world.server)

    async def main() -> None:
        watching.watched.start()
        world.issue("bookie", "bookie-0")
        await wait_for(lambda: watching.changes == 1)
        await watching.watched.stop()

    run(main)


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await scenario()

    asyncio.run(bounded())


def test_who_cannot_take_another_certificate_keeps_nobody_else_from_it() -> None:
    told: list[str] = []

    def fail() -> None:
        told.append("first")
        raise OSError(28, "No space left on device")

    with pytest.raises(ExceptionGroup) as raised:
        notify_all([fail, lambda: told.append("second")])
    assert told == ["first", "second"] and len(raised.value.exceptions) == 1
    notify_all([lambda: told.append("again")])
    assert told[-1] == "again"
