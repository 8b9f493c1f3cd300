"""A reader at the tail gets what its log's owner has acknowledged, before any bookie tells of it.

In these logs a LAC waits an hour for an entry that carries it, so what bookies tell is always one
record behind. Source: docs/protocol/owner-lac.md.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests.component.event_stream import listen
from tests.process.cluster import LocalCluster, create_log, run
from tests.process.times import HANG_S

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]

COUNT = 5


@pytest.mark.parametrize("more", [{}, {"ack_mode": "out_of_order"}])
def test_each_record_comes_without_the_next_one(
    shared_cluster: LocalCluster, more: dict[str, Any]
) -> None:
    async def scenario() -> None:
        log = f"owner-lac-{more.get('ack_mode', 'ordered')}"
        await create_log(shared_cluster, log, {"commit_delay": "1h", **more})
        state = shared_cluster.state()
        path = f"/v1/namespaces/default/logs/{log}/records"
        headers = shared_cluster.read_headers()
        async with httpx.AsyncClient(timeout=HANG_S, headers=headers) as http:

            async def append(body: str) -> None:
                """The log has an owner from the first one on."""
                records = {"records": [{"body": body}]}
                answer = await http.post(f"{state['write_url']}{path}", json=records)
                assert answer.status_code == 200, answer.text

            await append("record 0")
            async with (
                asyncio.timeout(HANG_S),
                listen(http, f"{state['read_url']}{path}?from=head") as events,
            ):
                for number in range(COUNT):
                    while (event := await anext(events)).kind != "records":
                        pass
                    bodies = [record["body"] for record in event.data["records"]]
                    assert bodies == [f"record {number}"], "nothing tells bookies of it"
                    await append(f"record {number + 1}")

    run(scenario())
