"""A sequencer process that reaches ZooKeeper and no bookie: its logs go to the other one.

Its calls to bookies are cut within the process (`planted/sitecustomize.py`), as long as a file
names it, so that everything else of it goes on. Which log goes when is decided in the core and
tested there; that nothing is lost is checked on the whole log.
Source: docs/protocol/ownership.md "Cut off from bookies", ADR 0023.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pauses import look_again_soon
from tests.process.cluster import create_log, run, running_plain_cluster
from tests.process.history import History
from tests.process.owners import give_all
from tests.process.takeovers import append_while, check, owner_of, statistics

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]

PLANTED = Path(__file__).parent / "planted"


def test_logs_leave_a_sequencer_that_no_bookie_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(PLANTED))
    monkeypatch.setenv("DURAMEN_PLANTED", str(tmp_path))
    with running_plain_cluster(tmp_path / "c", "--sequencers", "2") as cluster:

        async def scenario() -> None:
            histories = [History(f"cut-{i}") for i in range(3)]
            for history in histories:
                await create_log(cluster, history.log, {})

            async def fault() -> None:
                cut_off, other = cluster.ids("sequencer")
                await give_all(cluster, cut_off)
                marks = [len(history.acknowledged) for history in histories]
                (tmp_path / "cut").write_text(cut_off)
                for history, mark in zip(histories, marks, strict=True):
                    # A few may have been on their way; the cut stands all the while.
                    await history.wait_acknowledged(mark + 20)
                    assert await owner_of(cluster, history.log) == other
                found = await statistics(cluster, cut_off)
                assert found["logs_given_up"] == len(histories)
                assert len(found["unreached_bookies"]) == len(cluster.ids("bookie"))
                (tmp_path / "cut").unlink()
                while (await statistics(cluster, cut_off))["unreached_bookies"]:
                    await look_again_soon()
                for history in histories:
                    assert await owner_of(cluster, history.log) == other, "it is not taken back"

            await append_while(cluster, histories, fault())
            for history in histories:
                await check(cluster, history)

        run(scenario())


def test_who_cannot_recover_a_log_learns_that_another_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes its dead neighbour's logs, reaches no bookie, and sees them closed by the neighbour
    that came back: it was their owner for ever, and let appends wait.
    """
    monkeypatch.setenv("PYTHONPATH", str(PLANTED))
    monkeypatch.setenv("DURAMEN_PLANTED", str(tmp_path))
    with running_plain_cluster(tmp_path / "c", "--sequencers", "2", "--no-restart") as cluster:

        async def scenario() -> None:
            histories = [History(f"stuck-{i}") for i in range(3)]
            for history in histories:
                await create_log(cluster, history.log, {})

            async def fault() -> None:
                cut_off, other = cluster.ids("sequencer")
                await give_all(cluster, other)
                (tmp_path / "cut").write_text(cut_off)
                cluster.kill(other)
                while (await statistics(cluster, cut_off))["recoveries"] < len(histories):
                    await look_again_soon()
                marks = [len(history.acknowledged) for history in histories]
                cluster.revive(other)
                for history, mark in zip(histories, marks, strict=True):
                    await history.wait_acknowledged(mark + 20)
                    assert await owner_of(cluster, history.log) == other
                assert not (await statistics(cluster, cut_off))["logs"]["recovering"]

            await append_while(cluster, histories, fault())
            for history in histories:
                await check(cluster, history)

        run(scenario())
