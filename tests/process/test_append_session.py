"""Append sessions against real processes: their sequencer dies, and the log has their order.

One session has a producer and one has none; both keep sending while the owner of their logs is
killed. What each was told must be what a complete read finds. Source: docs/protocol/rest.md "Append
sessions", docs/protocol/write.md "Uncertain".
"""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.component.raw_http import open_call
from tests.process.cluster import LocalCluster, create_log, run, running_plain_cluster
from tests.process.history import read_log
from tests.process.takeovers import owner_of

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]

BATCH_COUNT = 400
KILLED_AFTER = 100


async def _run_session(
    cluster: LocalCluster, log: str, killing: asyncio.Event, *, has_producer: bool
) -> list[dict[str, Any]]:
    """Send all batches with answers on the way; every answer."""
    port = httpx.URL(cluster.state()["write_url"]).port
    assert port is not None
    path = f"/v1/namespaces/default/logs/{log}/records:stream"
    headers = {"content_type": "application/x-ndjson", "duramen_timeout": "40s"}
    call = await open_call("h2", port, path, **headers)
    room = asyncio.Semaphore(150)

    async def send() -> None:
        for number in range(BATCH_COUNT):
            await room.acquire()
            document: dict[str, Any] = {"records": [{"body": str(number)}]}
            if has_producer:
                document["producer"] = {"id": "p", "epoch": 0, "seq": number}
            await call.send(json.dumps(document).encode() + b"\n")
        await call.end()

    sending = asyncio.create_task(send())
    answers: list[dict[str, Any]] = []
    while found := await call.read_line(within_s=60):
        answers.append(json.loads(found))
        room.release()
        if len(answers) == KILLED_AFTER:
            killing.set()
    sending.cancel()
    call.close()
    return answers


def test_a_killed_sequencer_leaves_the_order_of_every_session(tmp_path: Path) -> None:
    with running_plain_cluster(tmp_path / "c", "--sequencers", "2") as cluster:

        async def scenario() -> None:
            for log in ("safe", "plain"):
                await create_log(cluster, log, {})
            killing = asyncio.Event()
            sessions = [
                asyncio.create_task(_run_session(cluster, log, killing, has_producer=log == "safe"))
                for log in ("safe", "plain")
            ]
            await killing.wait()
            cluster.send(await owner_of(cluster, "safe"), signal.SIGKILL)
            safe, plain = await asyncio.gather(*sessions)
            assert [answer.get("code") for answer in safe] == [None] * BATCH_COUNT
            assert [a["start"]["seq_num"] for a in safe if a["start"]] == list(range(BATCH_COUNT))
            url = cluster.state()["read_url"]
            expected = [str(number).encode() for number in range(BATCH_COUNT)]
            assert await read_log(url, "safe", expect_count=BATCH_COUNT) == expected
            _check_plain(plain, await read_log(url, "plain", expect_count=1))

        run(scenario())


def _check_plain(answers: list[dict[str, Any]], bodies: list[bytes]) -> None:
    numbers = [int(body) for body in bodies]
    assert numbers == sorted(set(numbers)), "in the order of the session, each once"
    if answers[-1].get("session_ended"):
        answers = answers[:-1]
    for number, answer in enumerate(answers):
        if "start" in answer:
            assert numbers[answer["start"]["seq_num"]] == number
        elif not answer["uncertain"]:
            assert number not in numbers
    assert set(numbers) <= set(range(len(answers))), "what has no answer is not there"
