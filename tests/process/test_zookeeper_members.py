"""Members of a bundled ZooKeeper as the operator starts them: real processes that lose volumes.

A member whose volume was lost is empty. Were it to vote, then with a member that lags it would be a
majority that never saw what another majority has acknowledged, and would throw it away.

Source: ADR 0022, `duramen.cluster.zookeeper_member`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.process.ensemble import make_ensemble
from tests.process.times import HANG_S
from tests.waiting import wait_in_thread

pytestmark = pytest.mark.process

ROUNDS_WITHOUT_OUTCOME: Final = 4
"""Of an election; each is twice as long as the one before it, from 200 ms on."""


def test_a_member_that_lost_its_volume_elects_nobody(tmp_path: Path) -> None:
    with make_ensemble(tmp_path, 3) as ensemble:
        full, lost, lagging = ensemble.members
        for member in ensemble.members:
            member.start(is_founding=True)
        ensemble.wait_serving(*ensemble.members)
        lagging.stop()
        with ensemble.client(full) as client:
            client.create("/acknowledged", b"by two of three")
        full.stop()
        lost.stop()
        lost.lose_volume()
        lost.start()
        lagging.start()

        def has_elected() -> bool:
            return any(map(ensemble.serves, (lost, lagging)))

        def has_tried() -> bool:
            return lagging.say().count("Notification time out") >= ROUNDS_WITHOUT_OUTCOME

        wait_in_thread(lambda: has_elected() or has_tried(), HANG_S, "an election")
        assert not has_elected()
        full.start()
        ensemble.wait_serving(full, lost, lagging)
        for member in ensemble.members:
            with ensemble.client(member) as client:
                assert client.exists("/acknowledged"), member.host
        # From the others it has a database of its own again, and with it a vote.
        full.stop()
        lost.stop()
        lost.start()
        ensemble.wait_serving(lost, lagging)


def test_a_member_that_comes_first_when_the_others_are_founded_gets_their_data(
    tmp_path: Path,
) -> None:
    """As a pod that had no node: the founding is over when two of three serve."""
    with make_ensemble(tmp_path, 3) as ensemble:
        *early, late = ensemble.members
        for member in early:
            member.start(is_founding=True)
        ensemble.wait_serving(*early)
        with ensemble.client(early[0]) as client:
            client.create("/founded")
        late.start()
        ensemble.wait_serving(late)
        with ensemble.client(late) as client:
            assert client.exists("/founded")


def test_one_that_stands_alone_refuses_to_start_without_its_data(tmp_path: Path) -> None:
    with make_ensemble(tmp_path, 1) as ensemble:
        (member,) = ensemble.members
        member.start(is_founding=True)
        ensemble.wait_serving(member)
        member.stop()
        member.start()
        ensemble.wait_serving(member)
        member.stop()
        member.lose_volume()
        member.start()
        assert member.wait_end() == 1
        assert "holds no database" in member.say()
        assert "--found" in member.say()


def test_what_was_allowed_at_a_start_that_was_cut_off_is_not_allowed_later(tmp_path: Path) -> None:
    with make_ensemble(tmp_path, 3) as ensemble:
        cut_off, *others = ensemble.members
        allowed = cut_off.folder / "data" / "initialize"
        allowed.parent.mkdir(parents=True)
        allowed.touch()
        cut_off.start()
        wait_in_thread(lambda: "has no vote" in cut_off.say(), HANG_S, "a word of its data")
        assert not allowed.exists()
        for member in others:
            member.start(is_founding=True)
        ensemble.wait_serving(*ensemble.members)
