"""One batch of a producer that is sent on three times and whose last owner dies before it answers.

The write proxy believes that the first of four sequencers owns the log. While its request is on the
way to each next one, the log is handed over again; the wires of the chaos runs hold the request for
as long as that takes. The fourth owner writes the batch, a reader sees it, and then its answer is
cut off and it is killed. The proxy asks the others, one of which takes the log over: the client
gets the position at which the one copy stands, now and whenever it asks again.
Source: docs/protocol/metadata.md "Rules for every change", docs/protocol/write.md "Exactly once",
docs/protocol/ownership.md.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from duramen.client.rest_client import RestClient
from duramen.cluster.layout import ClusterSize
from tests.chaos.cluster import ChaosCluster
from tests.chaos.layout import FLAT
from tests.chaos.links import Cut, Mode
from tests.pauses import let_pass, look_again_soon
from tests.process.answers import COME_AGAINS_AFTER_A_FAULT_MAX, note_come_again
from tests.process.cluster import run
from tests.process.history import read_log
from tests.process.times import HANG_S
from tests.waiting import comes_true

pytestmark = [pytest.mark.process, pytest.mark.zookeeper, pytest.mark.timeout(600)]

LAYOUT = replace(FLAT, size=ClusterSize(bookies=3, sequencers=4, write_proxies=1, read_proxies=1))
PROXY = "writeproxy-0"
LOG = "journey"
REDIRECT_COUNT = 3
JOURNEY_COUNT_MAX = 5
"""On a machine that stands still for seconds a try may be over before its redirect comes."""


def test_three_redirects_and_a_takeover_leave_one_copy_at_one_position(tmp_path: Path) -> None:
    run(scenario(tmp_path))


async def scenario(folder: Path) -> None:
    cluster = ChaosCluster(folder / "cluster", LAYOUT, lambda _text: None)
    try:
        await cluster.start()
        async with httpx.AsyncClient(timeout=30) as http:
            await play(Travels(cluster, http))
    finally:
        await cluster.stop()


async def play(travels: Travels) -> None:
    await travels.create_log()
    places = [await travels.send(0)]
    for _ in range(JOURNEY_COUNT_MAX):
        places += await travels.visit_all(len(places))
        redirects, place = await travels.make_journey(len(places))
        assert place["duplicate"] is True, "its first copy was not what was answered"
        places.append(place)
        if redirects == REDIRECT_COUNT:
            break
    else:
        raise AssertionError("no journey had three redirects")
    for seq, place in enumerate(places):
        assert place["start"]["seq_num"] == seq
        again = await travels.send(seq)
        assert again["duplicate"] is True
        assert (again["start"], again["end"]) == (place["start"], place["end"])
    expected = [travels.body(seq).encode() for seq in range(len(places))]
    url = travels.cluster.url("readproxy-0")
    assert await read_log(url, LOG, expect_count=len(expected)) == expected


class Travels:
    """A client of one proxy, and what happens to its log meanwhile."""

    def __init__(self, cluster: ChaosCluster, http: httpx.AsyncClient) -> None:
        self.cluster = cluster
        self._http = http
        self._log_id = ""

    async def create_log(self) -> None:
        client = RestClient(self.cluster.url(PROXY))
        try:
            await client.ensure_namespace("default", {})
            await client.ensure_log("default", LOG, {})
            self._log_id = (await client.show_log("default", LOG))["log_id"]
        finally:
            await client.close()

    @staticmethod
    def body(seq: int) -> str:
        return f"batch {seq}"

    async def send(self, seq: int) -> dict[str, Any]:
        """One request of the client, and its answer."""
        document = {
            "records": [{"body": self.body(seq)}],
            "producer": {"id": "p", "epoch": 0, "seq": seq},
        }
        url = f"{self.cluster.url(PROXY)}/v1/namespaces/default/logs/{LOG}/records"
        answer = await self._http.post(url, json=document, headers={"Duramen-Timeout": "30s"})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def visit_all(self, seq: int) -> list[dict[str, Any]]:
        """Append at every sequencer: the proxy is connected to all of them. The last one owns it.

        A wire whose answers are held lets no new connection through.
        """
        places: list[dict[str, Any]] = []
        owner = await self.find_owner()
        others = [name for name in self.cluster.ids("sequencer") if name != owner]
        for here, following in itertools.pairwise((owner, *others)):
            await self.hand_over(here, following)
            places.append(await self.send(seq + len(places)))
        return places

    async def make_journey(self, seq: int) -> tuple[int, dict[str, Any]]:
        """Send a batch while the log moves on and on; redirects that it met, and its answer."""
        links = self.cluster.links
        owner = await self.find_owner()
        stops = [name for name in self.cluster.ids("sequencer") if name != owner]
        last = stops[-1]
        before = await self.counts()
        await self.hand_over(owner, stops[0])
        ways = {name: self.cut(PROXY, name) for name in stops}
        sent = asyncio.create_task(self.send(seq))
        for here, following in itertools.pairwise(stops):
            await self.wait_held(ways[here])
            await self.hand_over(here, following)
            links.heal(ways[here])
        await self.wait_held(ways[last])
        answer = self.cut(last, PROXY)
        links.heal(ways[last])
        await self.wait_readable(seq)
        assert not sent.done(), "the client has its answer"
        self.cluster.kill(last)
        broken = self.cut(PROXY, last, "reset")
        links.heal(answer)
        links.heal(broken)
        place = await sent
        after = await self.counts()
        counts = {name: after[name] - before[name] for name in ("redirects", "repeats")}
        names = ", ".join((owner, *stops))
        print(f"batch {seq}: {counts}, owned by {names}; stands at {place['start']['dlsn']}")
        assert counts["repeats"] >= 1
        self.cluster.release(last)
        assert await self.cluster.wait_ready(HANG_S) == []
        return counts["redirects"], place

    def cut(self, sender: str, receiver: str, mode: Mode = "silent") -> Cut:
        """Hold what one process sends to another."""
        cut = Cut(frozenset({sender}), frozenset({receiver}), is_one_way=True, mode=mode)
        self.cluster.links.cut(cut)
        return cut

    async def wait_held(self, cut: Cut) -> None:
        """Until something waits on the way."""
        assert await comes_true(lambda: self.cluster.links.is_holding(cut), HANG_S), cut

    async def hand_over(self, owner: str, target: str) -> None:
        """Told to the owner itself, once it has the log; nobody else learns of it."""
        url = self.cluster.url(owner, "admin_url")
        while True:
            path = f"{url}/v1/logs/default/{LOG}/hand-over"
            answer = await self._http.post(path, params={"to": target})
            if answer.status_code == 200:
                return
            code = answer.json()["code"]
            assert code in ("log_unavailable", "metadata_unavailable"), answer.text
            pause_s = note_come_again(code, COME_AGAINS_AFTER_A_FAULT_MAX)
            await let_pass(pause_s, what="before a client comes back")

    async def find_owner(self) -> str:
        async with asyncio.timeout(HANG_S):
            while True:
                for node_id in self.cluster.ids("sequencer"):
                    for log in await self.ask(node_id, "/v1/logs"):
                        if (log["log_id"], log["state"]) == (self._log_id, "active"):
                            return node_id
                await look_again_soon()

    async def counts(self) -> dict[str, int]:
        """What the proxy counts of appends that did not go straight."""
        found: dict[str, int] = (await self.ask(PROXY, "/v1/statistics"))["appends"]
        return found

    async def ask(self, node_id: str, path: str) -> Any:
        """An answer of an admin port; who is busy is asked again."""
        async with asyncio.timeout(HANG_S):
            while (answer := await self.cluster.ask(node_id, path)) is None:
                await look_again_soon()
        return answer

    async def wait_readable(self, seq: int) -> None:
        """Until a reader sees the batch: it is written."""
        url = f"{self.cluster.url('readproxy-0')}/v1/namespaces/default/logs/{LOG}/records"
        async with asyncio.timeout(HANG_S):
            while True:
                answer = await self._http.get(f"{url}?from=seq:{seq}&count=1&wait=1s")
                records = answer.json().get("records")
                if records:
                    assert records[0]["body"] == self.body(seq)
                    return
