"""Readers when their proxy is killed, when other readers stand still, and when there are many.

Real processes: readers by server-sent events, NDJSON and binary answers over one log with one
writer, so that a record's sequence number is its body. A reader that is cut off comes back with its
last event's id, or with the position behind its last record, and must have seen every record once,
in order. The figures are printed. The full numbers: DURAMEN_READERS=full.
Source: docs/protocol/reading.md, docs/protocol/read-answers.md.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from pyreqwest.client import ClientBuilder

from duramen.wire.read_answers import NEXT_HEADER, parse_batches
from tests.component.event_stream import listen
from tests.pauses import let_pass, look_again_soon
from tests.process.cluster import LocalCluster, create_log, run, running_plain_cluster
from tests.process.times import HANG_S
from tests.ticker import Ticker, running_ticker

pytestmark = [pytest.mark.process, pytest.mark.zookeeper, pytest.mark.quiet]

ROOT = Path(__file__).resolve().parents[2]
"""Where `tests` is found by a process of its own, whatever the tests' own path is."""

PROXY = "readproxy-0"
RECORDS = "/v1/namespaces/default/logs/{}/records"


class Numbers(NamedTuple):
    """How many of each."""

    tailing: int
    catching_up: int
    kills: int
    backlog: int
    stopped: int
    stopped_mb: int
    fan_out: int
    idle: tuple[int, int]


NUMBERS = (
    Numbers(50, 10, 5, 50_000, 100, 24, 100, (1_000, 5_000))
    if os.environ.get("DURAMEN_READERS") == "full"
    else Numbers(16, 4, 1, 4_000, 20, 6, 40, (200, 800))
)
IDLE_KIB_MAX = 16.0 if NUMBERS.idle[1] >= 5_000 else 20.0
"""Per long poll over HTTP/2, 6 of them the HTTP library's; few polls leave the noise of pages."""

IDLE_WARM_COUNT = 100
STREAM_COUNT = 500
"""Streams on one connection."""

_TORN = (httpx.TransportError,)
_RETRY_S = 0.1


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_plain_cluster(tmp_path_factory.mktemp("readers") / "c", "--no-restart") as started:
        yield started


class Site:
    """One log of the cluster, its writer and what is asked about the read proxy."""

    def __init__(self, cluster: LocalCluster, log: str) -> None:
        self.cluster = cluster
        self.path = RECORDS.format(log)
        self.http = httpx.AsyncClient(
            timeout=httpx.Timeout(30, connect=2), limits=httpx.Limits(max_connections=None)
        )
        state = cluster.state()
        self.write_url = state["write_url"] + self.path
        self.url = state["read_url"] + self.path
        self.count = 0

    async def append(self, count: int, size_bytes: int = 0) -> None:
        """One batch of records whose bodies begin with their sequence numbers."""
        bodies = [f"{n} ".ljust(size_bytes, "x") for n in range(self.count, self.count + count)]
        await self.write([{"body": body} for body in bodies])

    async def write(self, records: list[dict[str, str]]) -> None:
        answer = await self.http.post(self.write_url, json={"records": records})
        assert answer.status_code == 200, answer.text
        assert answer.json()["start"]["seq_num"] == self.count
        self.count += len(records)

    async def statistics(self) -> dict[str, Any]:
        admin_url = self.cluster.process(PROXY)["admin_url"]
        found: dict[str, Any] = (await self.http.get(f"{admin_url}/v1/statistics")).json()
        return found

    def resident_mb(self) -> float:
        """Memory of the read proxy, which was not revived yet."""
        pid = self.cluster.process(PROXY)["pid"]
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    async def wait_readers(self, count: int) -> None:
        """Until so many wait at the tail."""
        async with asyncio.timeout(HANG_S):
            while (await self.statistics())["feeds"]["readers"] < count:
                await look_again_soon()


class Seen:
    """What one reader saw: sequence numbers without a gap, each the number in its body."""

    def __init__(self, first: int) -> None:
        self.next = first
        self.breaks = 0

    def take(self, seq_num: int, body: str) -> None:
        assert seq_num == self.next, (seq_num, self.next)
        assert int(body.split(maxsplit=1)[0]) == seq_num
        self.next += 1


Read = Callable[[Site, Seen, int], Awaitable[None]]


async def read_events(site: Site, seen: Seen, end: int) -> None:
    """One connection's worth of events; where to go on is the last id, as in a browser."""
    last_id = f"seq:{seen.next}"
    async with listen(site.http, site.url, last_id) as events:
        async for event in events:
            if event.kind == "records":
                for record in event.data["records"]:
                    seen.take(record["seq_num"], record["body"])
            assert event.kind != "gap", event
            assert event.id.partition(";")[0] == f"seq:{seen.next}"
            if seen.next >= end:
                return


async def read_lines(site: Site, seen: Seen, end: int) -> None:
    query = f"?from=seq:{seen.next}&wait=60s"
    async with site.http.stream(
        "GET", site.url + query, headers={"accept": "application/x-ndjson"}
    ) as response:
        if response.status_code != 200:
            await response.aread()
        assert response.status_code == 200, response.text
        async for line in response.aiter_lines():
            record = json.loads(line)
            seen.take(record["seq_num"], record["body"])
            if seen.next >= end:
                return


async def read_batches(site: Site, seen: Seen, end: int) -> None:
    while seen.next < end:
        query = f"?from=seq:{seen.next}&wait=20s&bytes=64KiB"
        answer = await site.http.get(
            site.url + query, headers={"accept": "application/vnd.duramen.batch"}
        )
        if answer.status_code != 200:
            return
        for placed in parse_batches(answer.content):
            for index, body in enumerate(placed.decode().bodies):
                if placed.seq_num + index >= seen.next:
                    seen.take(placed.seq_num + index, body.decode())
        assert answer.headers[NEXT_HEADER] == f"seq:{seen.next}"


async def persist(read: Read, site: Site, first: int, end: int) -> Seen:
    """Read to the end, through any number of broken connections."""
    seen = Seen(first)
    while seen.next < end:
        try:
            await read(site, seen, end)
        except _TORN:
            pass
        except AssertionError as error:
            if "server_draining" not in str(error) and "_unavailable" not in str(error):
                raise
        if seen.next < end:
            seen.breaks += 1
            await let_pass(_RETRY_S, what="before a client comes back")
    return seen


# --- Many ----------------------------------------------------------------------------------------


def test_reads_at_bookies_do_not_grow_with_readers(cluster: LocalCluster) -> None:
    async def scenario() -> None:
        await create_log(cluster, "many", {})
        site = Site(cluster, "many")
        await site.append(1)
        calls, made = [], []
        for count in (1, NUMBERS.fan_out):
            end = site.count + 60
            readers = [
                asyncio.create_task(persist(read_events, site, site.count, end))
                for _ in range(count)
            ]
            await site.wait_readers(count)
            before = await site.statistics()
            while site.count < end:
                await site.append(1)
            assert all(seen.breaks == 0 for seen in await asyncio.gather(*readers))
            after = await site.statistics()
            calls.append(after["bookies"]["read_calls"] - before["bookies"]["read_calls"])
            made.append(after["encodings"]["made"] - before["encodings"]["made"])
        print(f"1 and {NUMBERS.fan_out} readers of 60 records: {calls} reads, {made} encodings")
        assert calls[1] <= 1.5 * calls[0] + 20, "reads at bookies grow with the readers"
        assert max(made) <= 60
        await site.http.aclose()

    run(scenario())


@pytest.mark.timeout(300)
def test_idle_long_polls_cost_little_memory(cluster: LocalCluster) -> None:
    async def scenario() -> None:
        await create_log(cluster, "idle", {})
        site = Site(cluster, "idle")
        await site.append(1)
        polls: list[asyncio.Task[Any]] = []
        clients = []
        resident_mb = []
        for count in (IDLE_WARM_COUNT, *NUMBERS.idle):
            while len(polls) < count:
                if len(polls) % STREAM_COUNT == 0:
                    builder = ClientBuilder().http2_prior_knowledge()
                    clients.append(builder.timeout(timedelta(seconds=90)).build())
                request = clients[-1].get(f"{site.url}?from=tail&wait=60s").build()
                polls.append(asyncio.ensure_future(request.send()))
                if len(polls) % 50 == 0:
                    await site.wait_readers(len(polls))
            await site.wait_readers(count)
            resident_mb.append(site.resident_mb())
        few, many = NUMBERS.idle
        each_kib = (resident_mb[2] - resident_mb[1]) * 1e6 / (1 << 10) / (many - few)
        print(f"idle long polls, {few} to {many}: {each_kib:.1f} KiB each")
        assert each_kib <= IDLE_KIB_MAX
        await site.append(1)  # and every one of them is woken
        for answer in await asyncio.gather(*polls):
            assert [r["seq_num"] for r in (await answer.json())["records"]] == [1]
        await site.http.aclose()

    run(scenario(), 280)


# --- Faults --------------------------------------------------------------------------------------


@pytest.mark.timeout(300)
def test_readers_that_stand_still_slow_nobody_and_hold_little(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    async def scenario(ticker: Ticker) -> None:
        await create_log(cluster, "stopped", {})
        site = Site(cluster, "stopped")
        await site.append(1)
        alone_s = await pump(site)
        url = httpx.URL(site.url)
        path = f"{site.path}?from=tail"
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.process.event_clients",
            url.host, str(url.port), path, str(NUMBERS.stopped), stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert child.stdout is not None
        try:
            assert await child.stdout.readline() == b"open\n"
            await site.wait_readers(NUMBERS.stopped)
            first, before_mb = site.count, site.resident_mb()
            child.send_signal(signal.SIGSTOP)
            began_s = time.monotonic()
            await pump(site)
            beside_s = ticker.product_s(began_s, time.monotonic())
            grown_mb = site.resident_mb() - before_mb
            held = (await site.statistics())["feeds"]["lagged"]
            child.send_signal(signal.SIGCONT)
            await site.write([{"body": "last"}])
            runs = json.loads(await asyncio.wait_for(child.stdout.readline(), 120))
            await child.wait()
        finally:
            if child.returncode is None:
                child.kill()
        print(
            f"{NUMBERS.stopped} stopped: {NUMBERS.stopped_mb} MB to others in {beside_s:.2f} s, "
            f"{alone_s:.2f} s without them; memory grew by {grown_mb:.0f} MB; {held} lagged"
        )
        assert runs == [[[first, site.count]]] * NUMBERS.stopped, "they lost nothing"
        # The cache has what was appended, and each stopped reader some pieces.
        assert grown_mb <= 3 * NUMBERS.stopped_mb + 1.5 * NUMBERS.stopped + 20
        assert beside_s <= 3 * alone_s + 2
        await site.http.aclose()

    with running_ticker(tmp_path) as ticker:
        run(scenario(ticker), 280)


async def pump(site: Site) -> float:
    """Append so many MB while three readers tail; seconds until they have all of it."""
    end = site.count + NUMBERS.stopped_mb * 16
    readers = [asyncio.create_task(persist(read_events, site, site.count, end)) for _ in range(3)]
    begun = time.monotonic()
    while site.count < end:
        await site.append(8, 1_000_000 // 16)
    assert all(seen.breaks == 0 for seen in await asyncio.gather(*readers))
    return time.monotonic() - begun


@pytest.mark.timeout(600)
def test_a_killed_proxy_costs_no_reader_a_record(cluster: LocalCluster) -> None:
    async def scenario() -> None:
        await create_log(cluster, "killed", {})
        site = Site(cluster, "killed")
        for _ in range(NUMBERS.backlog // 500):
            await site.append(500)
        tail, end = site.count, site.count + 150 * NUMBERS.kills
        reads: list[Read] = [read_events, read_lines, read_batches]
        readers = [
            asyncio.create_task(persist(reads[i % 2], site, tail, end))
            for i in range(NUMBERS.tailing)
        ]
        readers += [
            asyncio.create_task(persist(reads[i % 3], site, 0, end))
            for i in range(NUMBERS.catching_up)
        ]
        killed_at = {tail + 150 * k + 75 for k in range(NUMBERS.kills)}
        while site.count < end:
            await site.append(1)
            await let_pass(0.005, what="the pace of the load")
            if site.count in killed_at:
                await asyncio.to_thread(cluster.kill, PROXY)
                cluster.revive(PROXY)
        seen = await asyncio.gather(*readers)
        assert all(s.next == end for s in seen)
        assert sum(s.breaks for s in seen[: NUMBERS.tailing]) >= NUMBERS.tailing
        print(f"{len(seen)} readers, {NUMBERS.kills} kills: {sum(s.breaks for s in seen)} breaks")
        await site.http.aclose()

    run(scenario(), 580)
