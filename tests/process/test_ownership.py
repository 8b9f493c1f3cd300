"""Logs that change hands between real processes: in peace, at once, and many together.

What must not happen is checked on the whole log (`history`); that a hand-over was in peace is seen
in the statistics of who took it. How long takeovers take is bounded by what an append may wait;
`takeover_times` measures them.
Source: docs/protocol/ownership.md "Whose is a log", docs/protocol/recovery.md "Takeover".
"""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import pytest

from duramen.client.rest_client import RestClient
from duramen.limits import APPEND_TIMEOUT_US
from duramen.units import SECOND
from tests.process.cluster import create_log, run, running_plain_cluster
from tests.process.history import History
from tests.process.takeovers import PAIR, append_while, check, owner_of, statistics
from tests.process.times import HANG_S, STILL_S
from tests.ticker import running_ticker
from tests.waiting import wait_in_thread

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]

UNCERTAIN = "append_uncertain"


def test_a_sequencer_that_is_told_to_stop_hands_its_logs_over_in_peace(tmp_path: Path) -> None:
    with running_plain_cluster(tmp_path / "c", *PAIR) as cluster:

        async def scenario() -> None:
            histories = [History(f"peace-{i}") for i in range(6)]
            for history in histories:
                await create_log(cluster, history.log, {})

            async def fault() -> None:
                leaver = await owner_of(cluster, "peace-0")
                (stayer,) = set(cluster.ids("sequencer")) - {leaver}
                before = await statistics(cluster, stayer)
                pid = cluster.send(leaver, signal.SIGTERM)
                await asyncio.to_thread(
                    wait_in_thread, lambda: not _is_running(pid), HANG_S, "its end"
                )
                for history in histories:
                    await history.wait_acknowledged(len(history.acknowledged) + 5)
                after = await statistics(cluster, stayer)
                assert after["recoveries"] == before["recoveries"] == 0
                assert after["takeovers"] > before["takeovers"], "no log moved"

            await append_while(cluster, histories, fault())
            for history in histories:
                assert not history.codes, history.codes
                await check(cluster, history)

        run(scenario())


def test_one_log_is_handed_over_and_back_under_load(tmp_path: Path) -> None:
    with running_plain_cluster(tmp_path / "c", *PAIR, "--write-proxies", "2") as cluster:

        async def scenario() -> None:
            await create_log(cluster, "moved", {})
            history = History("moved")
            client = RestClient(cluster.state()["admin_url"])
            path = "/v1/cluster/logs/default/moved"

            async def fault() -> None:
                for _ in range(4):
                    source = await owner_of(cluster, "moved")
                    (target,) = set(cluster.ids("sequencer")) - {source}
                    moved = await client.post_json(f"{path}/hand-over", {"to": target})
                    assert (moved["from"], moved["to"]) == (source, target) and moved["closed"]
                    await history.wait_acknowledged(len(history.acknowledged) + 10)
                    assert await owner_of(cluster, "moved") == target

            await append_while(cluster, [history], fault())
            assert not history.codes, history.codes
            await check(cluster, history)
            for node_id in cluster.ids("sequencer"):
                assert (await statistics(cluster, node_id))["recoveries"] == 0
            story = await client.get_json(f"{path}/story")
            await client.close()
            events = [event["event"] for event in story["events"]]
            assert events.count("leaves") == events.count("taken") == 4
            # The other proxy believes what the hash says, and is led to the owner.
            other = RestClient(cluster.process("writeproxy-1")["data_url"])
            assert await history.append(other), history.codes
            await other.close()

        run(scenario())


@pytest.mark.quiet
def test_every_log_of_a_killed_sequencer_takes_appends_again(tmp_path: Path) -> None:
    with (
        running_plain_cluster(tmp_path / "c", *PAIR) as cluster,
        running_ticker(tmp_path) as ticker,
    ):

        async def scenario() -> None:
            histories = [History(f"many-{i}") for i in range(60)]
            for history in histories:
                await create_log(cluster, history.log, {})

            async def fault() -> None:
                victim = await owner_of(cluster, "many-0")
                (pending_owner,) = set(cluster.ids("sequencer")) - {victim}
                await asyncio.to_thread(cluster.kill, victim)
                killed_s = time.monotonic()
                marks = [len(history.acknowledged) for history in histories]
                for history, mark in zip(histories, marks, strict=True):
                    await history.wait_acknowledged(mark + 2)
                pairs = zip(histories, marks, strict=True)
                taken_s = max(history.acked_s[mark] for history, mark in pairs)
                took_s = ticker.product_s(killed_s, taken_s)
                print(f"{len(histories)} logs taken over in {took_s:.2f} s")
                assert took_s < APPEND_TIMEOUT_US / SECOND
                found = await statistics(cluster, pending_owner)
                assert found["hinted_takeovers"] > 0, "every log waited for the session"
                assert found["recoveries"] > 0, "the fault had no effect"

            await append_while(cluster, histories, fault())
            # Who waits for its log is served: sixty takeovers fit into an append's time-out.
            late = [each for h in histories for each in h.failed if each.code != UNCERTAIN]
            given_s = [ticker.stalled_s(each.began_s, each.ended_s) for each in late]
            assert all(stalled_s >= STILL_S for stalled_s in given_s), (late, given_s)
            for history in histories:
                await check(cluster, history)

        run(scenario())


def test_appends_of_several_proxies_create_their_log_once(tmp_path: Path) -> None:
    with running_plain_cluster(tmp_path / "c", "--write-proxies", "2") as cluster:

        async def scenario() -> None:
            urls = [cluster.process(node_id)["data_url"] for node_id in cluster.ids("writeproxy")]
            clients = [RestClient(url) for url in urls for _ in range(8)]
            await clients[0].ensure_namespace("free", {"auto_create": True})
            histories = [History(f"made-{i % 3}", namespace="free") for i in range(len(clients))]
            pairs = zip(histories, clients, strict=True)
            await asyncio.gather(*(h.append(client) for h, client in pairs))
            assert not [failure for h in histories for failure in h.failed]
            listed = await clients[0].list_logs("free")
            assert [log["name"] for log in listed["logs"]] == ["made-0", "made-1", "made-2"]
            for client in clients:
                await client.close()

        run(scenario())


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
