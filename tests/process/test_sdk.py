"""The SDK with a real cluster: the examples of docs/sdk.md, and faults that no fake can show.

Every block of Python of the page is run and checked with `mypy --strict`, as a user would. Then a
producer and a follower go on while the sequencers and the read proxy are killed under them.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from duramen.client import Client, DuramenError, RetryPolicy
from duramen.config import NamespaceConfig
from tests.process.cluster import LocalCluster, create_log, run, running_plain_cluster

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]

ROOT = Path(__file__).resolve().parents[2]

GIVEN_UP_S = 120.0
"""When the client says itself why it does not go on: two services that start at once on a machine
with something else to do were seen to take 20 s, of which nothing here tells anything."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("sdk") / "c"
    with running_plain_cluster(folder, "--sequencers", "2") as started:
        yield started


def read_examples() -> list[str]:
    page = (ROOT / "docs" / "sdk.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def find_url(cluster: LocalCluster) -> str:
    state = cluster.state()
    return f"{state['write_url']},{state['read_url']}"


def test_the_examples_of_the_page_run(cluster: LocalCluster, tmp_path: Path) -> None:
    url = cluster.state()["write_url"]  # one is enough: the proxy sends on what it does not serve
    names: dict[str, Any] = {"__name__": "sdk"}
    for example in read_examples():
        exec(example, names)
    orders = [b"order %d" % number for number in range(1_000)]

    async def scenario() -> None:
        assert await names["quick_start"](url) == [b"one order", *orders]
        found = await asyncio.to_thread(names["quick_start_sync"], url)
        assert found == [b"one order", *orders, b"one more", *orders]
        assert await names["append_if_next"](url, 7, b"late") is None
        assert await names["append_if_next"](url, 2_002, b"next") == 2_002
        assert await names["append_lines"](url, [b"a", b"b", b"c"]) == (2_003, 2_005)
        assert await names["watch"](url, 2_000, 5) == 2_005
        assert await names["append_and_tell"](url, b"tell") == "stored"
        clicks = [(f"customer-{number}", b"page %d" % (number % 3)) for number in range(300)]
        counted = await names["count_clicks"](url, clicks)
        assert counted == dict.fromkeys([b"page 0", b"page 1", b"page 2"], 100)
        async with names["connect_carefully"](url) as client:
            assert (await client.log("shop/orders").tail()).seq_num == 2_007
        (tmp_path / "token").write_text("asked for by nobody here", encoding="ascii")
        with pytest.raises(DuramenError, match="holds no token"):
            await names["count_namespaces"](url, tmp_path / "token")
        (tmp_path / "token").write_text("a-token", encoding="ascii")
        assert await names["count_namespaces"](url, tmp_path / "token") >= 1
        zookeeper = cluster.state()["zookeeper"]
        found = await names["write_strictly"](zookeeper, [b"a", b"b", b"c"])
        assert found == [b"b", b"c"]

    run(scenario())


def test_the_examples_of_the_page_are_well_typed(tmp_path: Path) -> None:
    paths = []
    for number, example in enumerate(read_examples()):
        paths.append(tmp_path / f"example_{number}.py")
        paths[-1].write_text(example, encoding="utf-8")
    wrong = tmp_path / "wrong.py"
    wrong.write_text("from duramen.client import Client\n\nClient(7301)\n", encoding="utf-8")
    config = tmp_path / "mypy.ini"
    # Who has Duramen installed sees no faults of its imports; here it is source.
    config.write_text("[mypy]\n[mypy-kazoo.*]\nignore_missing_imports = True\n", encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(config)]
    command += ["--cache-dir", str(tmp_path / "cache")]
    environment = os.environ | {"MYPYPATH": str(ROOT / "libs" / "common")}
    checked = subprocess.run(
        [*command, *map(str, [*paths, wrong])],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    faults = [line for line in checked.stdout.splitlines() if ": error:" in line]
    assert len(faults) == 1, checked.stdout + checked.stderr
    assert "wrong.py:3" in faults[0], faults


@pytest.mark.parametrize("face", ["async", "sync"])
def test_every_call_means_what_it_says(cluster: LocalCluster, face: str) -> None:
    from tests.component.sdk_faces import open_client

    async def scenario() -> None:
        async with open_client(face, find_url(cluster)) as client:
            await client["default"].ensure()
            log = client["default"][f"calls-{face}"]
            assert await log.ensure()
            assert not await log.ensure()
            assert (await log.append([b"0", b"1", b"2"], match_seq_num=0))[:2] == (0, 3)
            assert (await log.fence("mine")).seq_num == 3
            with pytest.raises(DuramenError, match="fencing_token_mismatch"):
                await log.append(b"x", fencing_token="yours")
            async with log.producer(fencing_token="mine", batch_records=2) as producer:
                tickets = [await producer.send(b"%d" % number) for number in range(3, 10)]
                assert [(await ticket).seq_num for ticket in tickets] == list(range(3, 10))
            assert await log.truncate(4) == 4
            (batch,) = [batch async for batch in log.read(4, count=3)]
            assert batch.bodies == [b"4", b"5", b"6"]
            assert batch.to_arrow()["seq_num"].to_pylist() == [4, 5, 6]
            assert (await log.tail()).seq_num == 10
            changed = await log.reconfigure({"retention": {"age": "1h"}})
            assert changed["changed"]
            assert await log.roll() is not None
            assert (await log.segments())[0]["epoch"] == 1
            assert f"calls-{face}" in [found.name async for found in client["default"].logs()]
            assert (await log.end()).seq_num == 10
            rest = [body async for b in log.read(8, follow=True) for body in b.bodies]
            assert rest == [b"8", b"9"]
            assert await log.delete()
            await log.undelete()
            assert (await log.show())["ended"]
            with pytest.raises(DuramenError, match="namespace_not_empty"):
                await client["default"].delete()
            fresh = client[f"fresh-{face}"]
            assert await fresh.ensure()
            assert (await fresh.reconfigure({"auto_create": True}))["changed"]
            wanted = NamespaceConfig(auto_create=True).to_json()
            assert (await fresh.show())["config"] == wanted
            await fresh["made"].append(b"by its first append")
            with pytest.raises(DuramenError, match="namespace_not_empty"):
                await fresh.delete()
            empty = client[f"empty-{face}"]
            assert await empty.ensure()
            assert await empty.delete()
            assert not await empty.delete()
            with pytest.raises(DuramenError, match="namespace_not_found"):
                await empty["log"].ensure()

    run(scenario())


def test_compressed_records_are_smaller_on_disk_and_read_in_every_form(
    cluster: LocalCluster,
) -> None:
    lines = [b'{"sensor": %d, "state": "nothing happens here"}' % number for number in range(5_000)]
    forms = ("application/json", "application/x-ndjson", "text/event-stream")

    async def scenario() -> None:
        stored_bytes = []
        async with Client(find_url(cluster)) as client, httpx.AsyncClient(timeout=30) as http:
            await client["default"].ensure()
            for compression in (None, "zstd"):
                log = client["default"][f"compressed-{compression}"]
                await log.ensure()
                async with log.producer(compression=compression) as producer:
                    await (await producer.append_many(lines))
                assert [body async for b in log.read() for body in b.bodies] == lines
                path = f"/v1/namespaces/default/logs/{log.name}/records?count=5000&bytes=16MiB"
                for form in forms:
                    answer = await http.get(
                        cluster.state()["read_url"] + path, headers={"accept": form}
                    )
                    found = re.findall(r'"sensor\\": (\d+)', answer.text)
                    assert found == [str(number) for number in range(5_000)], form
                await log.end()
                (segment,) = await log.segments()
                stored_bytes.append(segment["bytes"])
        assert stored_bytes[1] * 4 < stored_bytes[0], stored_bytes

    run(scenario())


def test_a_program_that_ends_right_after_its_last_record_ends_well(cluster: LocalCluster) -> None:
    """Two at a time: of such runs one in twenty aborted, with everything stored."""
    run(create_log(cluster, "brief", {}))
    program = (
        "from duramen.client import SyncClient\n"
        f"with SyncClient({find_url(cluster)!r}) as client:\n"
        "    with client['default']['brief'].producer() as producer:\n"
        "        for _ in range(10_000):\n"
        "            producer.append(b'x' * 40)\n"
    )

    def repeat() -> list[int]:
        command = [sys.executable, "-c", program]
        return [subprocess.run(command, timeout=60, check=False).returncode for _ in range(20)]

    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(repeat) for _ in range(2)]
    assert [one.result() for one in found] == [[0] * 20] * 2


@pytest.mark.timeout(6 * GIVEN_UP_S)
def test_producer_and_follower_go_on_while_their_servers_are_killed(cluster: LocalCluster) -> None:
    """The sequencers are killed one after the other, so the owner twice or once, then the proxy."""
    url = find_url(cluster)

    async def scenario() -> None:
        async with Client(url, retry=RetryPolicy(within_s=GIVEN_UP_S)) as client:
            log = client["default"]["killed"]
            await client["default"].ensure()
            await log.ensure()
            followed: list[bytes] = []
            tickets: list[Any] = []
            enough, arrived = asyncio.Event(), asyncio.Event()

            async def follow() -> None:
                async for batch in log.read(follow=True):
                    assert batch.missing_count == 0, batch
                    followed.extend(batch.bodies)
                    arrived.set()

            async def produce() -> None:
                async with log.producer(linger=0.001, batch_records=5) as producer:
                    while not enough.is_set():
                        tickets.append(await producer.send(b"%07d" % len(tickets)))
                        if len(tickets) % 5 == 0:
                            await tickets[-1]

            async def wait_more(victim: str) -> None:
                wanted = len(followed) + 50
                try:
                    async with asyncio.timeout(GIVEN_UP_S + 30):
                        while len(followed) < wanted:
                            arrived.clear()
                            await arrived.wait()
                except TimeoutError:
                    pytest.fail(f"{victim}: {len(followed)} followed, {client.statistics()}")

            # In a group, so that what ends one of them is told at once, and not a time-out for it.
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(follow())
                producing = tasks.create_task(produce())
                await wait_more("before all")
                for victim in [*cluster.ids("sequencer"), *cluster.ids("readproxy")]:
                    await asyncio.to_thread(cluster.kill, victim)
                    await wait_more(victim)
                enough.set()
                await producing
                receipts = [await ticket for ticket in tickets]
                assert [receipt.seq_num for receipt in receipts] == list(range(len(tickets)))
                assert (await log.end()).seq_num == len(tickets)
            assert followed == [b"%07d" % number for number in range(len(tickets))]
            assert [body async for b in log.read() for body in b.bodies] == followed

    run(scenario(), timeout_s=5 * GIVEN_UP_S)
