"""Who waits at the tail of a log where nothing happens waits in peace, and is told what comes.

Sixty-five seconds of silence in an idle log, in one whose segment was closed, and in one that was
just created; all forms wait at once: long polls by both proxies, NDJSON, server-sent events, the
SDK, and the page of docs/quickstart-browser.md. Then one record is appended to each log, and every
reader gets it. A wait whose bound is wrong by being counted from its beginning fails here, whatever
part counts it. Source: docs/protocol/reading.md "The tail", docs/protocol/read-answers.md.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from duramen.client import Client
from duramen.wire.read_answers import parse_batches
from tests.component.event_stream import listen
from tests.pauses import let_pass, look_again_soon
from tests.process.browser import Browser, serving, write_page
from tests.process.cluster import LocalCluster, create_log, run, running_plain_cluster
from tests.process.times import HANG_S
from tests.requirements import Need, leave_out

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]

SILENCE_S: Final = 65.0
POLL_S: Final = 60
"""The longest wait that a read may ask for."""

NEWS: Final = "news"
RECORDS: Final = "/v1/namespaces/{}/records"
LOGS: Final = {"board/logs/prices": 1, "default/logs/closed": 1, "default/logs/created": 0}
"""Their paths, and how many records are in them before the silence."""


class Quiet:
    """One log, and the answers that came while nothing was appended."""

    def __init__(self, http: httpx.AsyncClient, state: dict[str, Any], log: str) -> None:
        self.http = http
        self.log = log
        self.count = LOGS[log]
        self.urls = {kind: state[f"{kind}_url"] + RECORDS.format(log) for kind in ("read", "write")}

    async def poll(self, kind: str, form: str) -> None:
        """A long poll that ends with nothing, and one that ends with the news."""
        for found in ([], [NEWS]):
            answer = await self.http.get(
                self.urls[kind],
                params={"from": f"seq:{self.count}", "wait": f"{POLL_S}s"},
                headers={"accept": form},
            )
            assert answer.status_code == 200, (self.log, kind, form, answer.text)
            if form == "application/json":
                assert [record["body"] for record in answer.json()["records"]] == found
            else:
                bodies = [body for b in parse_batches(answer.content) for body in b.decode().bodies]
                assert bodies == [text.encode() for text in found]

    async def read_lines(self, kind: str) -> None:
        """A stream of lines that is complete with nothing in it, and one that has the news."""
        for found in ([], [NEWS]):
            async with self.http.stream(
                "GET",
                self.urls[kind],
                params={"from": f"seq:{self.count}", "wait": f"{POLL_S}s", "count": "1"},
                headers={"accept": "application/x-ndjson"},
            ) as answer:
                lines = [json.loads(line) async for line in answer.aiter_lines() if line]
            assert answer.status_code == 200, (self.log, kind, lines)
            assert [line["body"] for line in lines] == found, (self.log, kind, lines)

    async def hear(self, kind: str) -> None:
        """One stream of events for all the time."""
        async with listen(self.http, self.urls[kind], f"seq:{self.count}") as events:
            async for event in events:
                assert event.kind in ("tail", "heartbeat", "records"), (self.log, kind, event)
                if event.kind == "records":
                    assert [record["body"] for record in event.data["records"]] == [NEWS]
                    return

    async def follow(self, client: Client) -> None:
        """The SDK, which would come again where it is told to: it counts how often it was."""
        namespace, _, name = self.log.partition("/logs/")
        async for batch in client[namespace][name].read(f"seq:{self.count}", follow=True):
            assert batch.bodies == [NEWS.encode()]
            return

    async def append(self, body: str) -> None:
        answer = await self.http.post(self.urls["write"], json={"records": [{"body": body}]})
        assert answer.status_code == 200, answer.text


@pytest.mark.timeout(3 * HANG_S)
def test_readers_wait_out_a_silence_and_get_what_comes_then(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        leave_out(Need.NODE, "nothing here can play a page")
    site = tmp_path / "site"
    site.mkdir()
    with (
        serving(site) as origin,
        running_plain_cluster(tmp_path / "c", "--cors-origin", origin) as cluster,
    ):
        state = cluster.state()
        write_page(site, write_url=state["write_url"], read_url=state["read_url"])
        run(wait_out(cluster, node, f"{origin}/live.html"), timeout_s=2 * HANG_S)


async def wait_out(cluster: LocalCluster, node: str, page_url: str) -> None:
    state = cluster.state()
    limits = httpx.Limits(max_connections=None)
    async with (
        httpx.AsyncClient(timeout=HANG_S, limits=limits) as http,
        Client(f"{state['write_url']},{state['read_url']}") as client,
    ):
        (await http.put(f"{state['write_url']}/v1/namespaces/board")).raise_for_status()
        created = await http.put(f"{state['write_url']}/v1/namespaces/board/logs/prices")
        created.raise_for_status()
        await create_log(cluster, "closed", {"roll": {"idle_close": "1s"}})
        await create_log(cluster, "created", {})
        logs = [Quiet(http, state, log) for log in LOGS]
        for log in logs:
            for _ in range(log.count):
                await log.append("before")
        await wait_closed(http, state)
        page = Browser(node, page_url)
        try:
            page.paste_token("nobody asks")
            page.wait("records", "0: before")
            async with asyncio.TaskGroup() as readers:
                for log in logs:
                    for kind in ("read", "write"):
                        readers.create_task(log.poll(kind, "application/json"))
                        readers.create_task(log.poll(kind, "application/vnd.duramen.batch"))
                        readers.create_task(log.read_lines(kind))
                        readers.create_task(log.hear(kind))
                    readers.create_task(log.follow(client))
                await let_pass(SILENCE_S, what="nothing is appended, and readers wait")
                for log in logs:
                    await log.append(NEWS)
            await asyncio.to_thread(page.wait, "records", f"1: {NEWS}")
        finally:
            page.close()
        assert page.connections == [200, 200], "the page's stream lasts for its minute of silence"
        budget = client.statistics()["retries"]
        assert budget["taken"] == 0, f"the SDK had to come again: {budget}"


async def wait_closed(http: httpx.AsyncClient, state: dict[str, Any]) -> None:
    """Until the segment of the log that closes when it is idle is closed."""
    async with asyncio.timeout(HANG_S):
        while True:
            answer = await http.get(
                state["read_url"] + "/v1/namespaces/default/logs/closed/segments"
            )
            if [one["state"] for one in answer.json()["segments"]] == ["CLOSED"]:
                return
            await look_again_soon()
