"""The lock of the machine: shared by tests, whole for quiet ones.

A lock belongs to a descriptor, so two in one process stand for two processes.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from threading import Thread

import pytest

from tests.machine import MachineLock
from tests.process.times import HANG_S
from tests.waiting import wait_in_thread


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "machine.lock"


def can_hold(path: Path, how: int) -> bool:
    """Whether somebody who comes now gets it at once."""
    with path.open("r+") as file:
        try:
            fcntl.flock(file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_many_share_it_and_one_has_the_whole(path: Path) -> None:
    one, other = MachineLock(path), MachineLock(path)
    one.share()
    other.share()
    assert can_hold(path, fcntl.LOCK_SH)
    assert not can_hold(path, fcntl.LOCK_EX)
    other.release()
    one.take_whole()
    assert not can_hold(path, fcntl.LOCK_SH)
    one.share()
    assert can_hold(path, fcntl.LOCK_SH)
    one.release()
    assert can_hold(path, fcntl.LOCK_EX)


def test_what_is_given_back_is_free_though_a_copy_of_the_descriptor_is_left(path: Path) -> None:
    lock = MachineLock(path)
    lock.share()
    copy = os.dup(lock._descriptor)
    lock.release()
    assert can_hold(path, fcntl.LOCK_EX)
    os.close(copy)


def test_who_wants_the_whole_waits_for_those_who_share(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = MachineLock(path), MachineLock(path)
    one.share()
    other.share()
    waiting = Thread(target=other.take_whole, daemon=True)
    waiting.start()
    wait_in_thread(lambda: "waiting for other" in capsys.readouterr().err, HANG_S, "it to say so")
    assert waiting.is_alive()
    one.release()
    waiting.join(HANG_S)
    assert not waiting.is_alive()
    assert not can_hold(path, fcntl.LOCK_SH)
    other.release()


def test_two_that_want_the_whole_have_it_one_after_the_other(path: Path) -> None:
    locks = [MachineLock(path), MachineLock(path)]
    for lock in locks:
        lock.share()

    def use(lock: MachineLock) -> None:
        lock.take_whole()
        assert not can_hold(path, fcntl.LOCK_SH)
        lock.release()

    threads = [Thread(target=use, args=(lock,), daemon=True) for lock in locks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
        assert not thread.is_alive()
