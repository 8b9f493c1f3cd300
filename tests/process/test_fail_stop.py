"""Broken invariants in processes that serve: the log is let go, the bookie ends, nothing is lost.

The faults are planted from outside (`planted/sitecustomize.py`) and set off by files. The class of
the fault, a core that raises wherever it is entered, is `tests/component/test_fail_stop.py`'s.
Source: docs/protocol/ownership.md "Fail-stop".
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from duramen.client.rest_client import RestClient
from tests.pauses import look_again_soon
from tests.process.cluster import LocalCluster, create_log, run, running_plain_cluster
from tests.process.history import History, read_log
from tests.process.times import HANG_S

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]

PLANTED = Path(__file__).parent / "planted"


def test_a_broken_invariant_stops_what_it_is_in_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(PLANTED))
    monkeypatch.setenv("DURAMEN_PLANTED", str(tmp_path))
    with running_plain_cluster(tmp_path / "c", "--bookies", "4") as cluster:

        async def scenario() -> None:
            for log in ("broken", "beside"):
                await create_log(cluster, log, {})
            client = RestClient(cluster.state()["write_url"])
            histories = [History(log) for log in ("broken", "beside")]
            stop = asyncio.Event()
            writers = [asyncio.create_task(h.append_until(client, stop)) for h in histories]
            broken, beside = histories
            for history in histories:
                await history.wait_acknowledged(10)
            (tmp_path / "log").write_text("broken")
            await _wait_count(cluster, "broken_invariants", 1)
            (tmp_path / "log").unlink()
            await broken.wait_acknowledged(len(broken.acknowledged) + 10)
            before = {node: cluster.process(node)["pid"] for node in cluster.ids("bookie")}
            (tmp_path / "bookie").touch()
            async with asyncio.timeout(HANG_S):
                while before.items() == _pids(cluster).items():
                    await look_again_soon()
            for history in histories:
                await history.wait_acknowledged(len(history.acknowledged) + 10)
            stop.set()
            await asyncio.gather(*writers)
            await client.close()
            assert not beside.uncertain and not beside.refused, "a log beside it goes on"
            for history in histories:
                end = max(end for _, end in history.acknowledged.values())
                history.check(
                    await read_log(cluster.state()["read_url"], history.log, expect_count=end)
                )

        run(scenario())
        (dead,) = [node for node in cluster.ids("bookie") if "planted" in _log_of(cluster, node)]
        assert "a broken invariant, nothing more is acknowledged" in _log_of(cluster, dead)


def _pids(cluster: LocalCluster) -> dict[str, int | None]:
    return {node: cluster.process(node)["pid"] for node in cluster.ids("bookie")}


def _log_of(cluster: LocalCluster, node: str) -> str:
    return (cluster.folder / "logs" / f"{node}.log").read_text(errors="replace")


async def _wait_count(cluster: LocalCluster, name: str, count: int) -> None:
    """Until the sequencer has counted so many."""
    url = f"{cluster.process('sequencer-0')['admin_url']}/v1/statistics"
    async with httpx.AsyncClient(trust_env=False) as http, asyncio.timeout(HANG_S):
        while (await http.get(url)).json()[name] < count:
            await look_again_soon()
