"""Logs that nobody writes to cost their sequencer next to nothing, and a takeover nothing at all.

One sequencer creates and appends to many logs, whose segments close when they are idle. What each
of them then costs is read from the process (resident memory, beyond what it had with a first lot of
logs), and the successor of the killed sequencer has nothing to recover but the one log that was in
use. The figures are printed. Longer runs: DURAMEN_IDLE_LOGS=10000.
Source: docs/protocol/ownership.md "Idle logs".
"""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from duramen.client.rest_client import RestClient
from duramen.wire.record_batch import encode_batch
from tests.process.answers import COME_AGAINS_AFTER_A_FAULT_MAX, repeat_safely
from tests.process.cluster import LocalCluster, run, running_plain_cluster
from tests.process.takeovers import statistics
from tests.process.times import HANG_S
from tests.waiting import wait_in_thread

pytestmark = [pytest.mark.process, pytest.mark.zookeeper, pytest.mark.night]

LOG_COUNT = int(os.environ.get("DURAMEN_IDLE_LOGS", "250"))
WARM_COUNT = max(150, LOG_COUNT // 5)
"""Logs that come and go before anything is measured: the process grows to what its work needs."""

IDLE_BYTES_MAX = 2 << 10
NOISE_BYTES = 8 << 20
"""What an allocator keeps or gives back whatever happens. It hides what few logs cost: then only
the sequencer's own word, that it drives none of them, tells; ten thousand are judged without it."""

CONCURRENCY = 48
LOT_COUNT = 500
"""Logs that are open at one time at most: what active logs take is not what is measured."""

COME_AGAINS_MAX = COME_AGAINS_AFTER_A_FAULT_MAX + LOG_COUNT // 10
"""Of thousands of calls, for logs whose owner was killed."""

_TIMEOUT_S = 250 + LOG_COUNT // 10
_CONFIG = {"roll": {"idle_close": "1s"}}


@pytest.mark.timeout(_TIMEOUT_S + 120)
def test_idle_logs_cost_little_memory_and_no_recovery(tmp_path: Path) -> None:
    with running_plain_cluster(tmp_path / "c", "--sequencers", "2", "--no-restart") as cluster:
        owner, other = cluster.ids("sequencer")
        cluster.kill(other)

        async def scenario() -> None:
            client = RestClient(cluster.state()["write_url"])
            fresh = resident_bytes(cluster, owner)
            await fill(client, cluster, owner, [f"warm-{i}" for i in range(WARM_COUNT)])
            before = resident_bytes(cluster, owner)
            names = [f"idle-{i}" for i in range(LOG_COUNT)]
            seconds = await fill(client, cluster, owner, names)
            grown = resident_bytes(cluster, owner) - before
            print(
                f"{LOG_COUNT} logs created ({LOG_COUNT / seconds[0]:.0f}/s) and appended to "
                f"({LOG_COUNT / seconds[1]:.0f}/s); idle they take {grown / LOG_COUNT:.0f} bytes "
                f"each ({fresh >> 20} MiB fresh, {before >> 20} MiB after {WARM_COUNT} logs, and "
                f"{grown >> 10} KiB more)"
            )
            noise = NOISE_BYTES if LOG_COUNT < 10_000 else 0
            assert grown <= LOG_COUNT * IDLE_BYTES_MAX + noise
            await check_takeover(cluster, client, owner, other)
            await client.close()

        run(scenario(), timeout_s=_TIMEOUT_S)


async def fill(
    client: RestClient, cluster: LocalCluster, owner: str, names: list[str]
) -> tuple[float, float]:
    """Create logs, append a record to each and wait until they are idle, LOT_COUNT at a time.

    Returns:
        Seconds of all creations, and of all appends.
    """
    batch = encode_batch([b"once"], timestamp_ms=1)
    create_s = append_s = 0.0
    for start in range(0, len(names), LOT_COUNT):
        lot = names[start : start + LOT_COUNT]
        create_s += await for_all(lot, lambda log: client.ensure_log("default", log, _CONFIG))
        append_s += await for_all(lot, lambda log: client.append("default", log, batch))
        await wait_idle(cluster, owner)
    return create_s, append_s


async def for_all(names: list[str], work: Callable[[str], Awaitable[object]]) -> float:
    """Carry something out for every log, CONCURRENCY at once; gives the seconds that it took."""
    left = iter(names)

    async def carry_out() -> None:
        for name in left:
            # Whether it is appended once or twice is not what is looked at here.
            await repeat_safely(partial(work, name), COME_AGAINS_MAX, has_producer=True)

    began = time.monotonic()
    await asyncio.gather(*(carry_out() for _ in range(CONCURRENCY)))
    return time.monotonic() - began


async def wait_idle(cluster: LocalCluster, node_id: str) -> None:
    """Until the sequencer has no log any more: every segment is closed."""
    async with asyncio.timeout(HANG_S):
        while any((await statistics(cluster, node_id))["logs"].values()):
            pass


def resident_bytes(cluster: LocalCluster, node_id: str) -> int:
    pid = cluster.process(node_id)["pid"]
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


async def check_takeover(cluster: LocalCluster, client: RestClient, owner: str, other: str) -> None:
    """Kill the owner while one log, made last and thus looked at last, is in use."""
    await client.ensure_log("default", "in-use", {})
    batch = encode_batch([b"twice"], timestamp_ms=1)
    assert (await client.append("default", "in-use", batch)).start == 0
    cluster.revive(other)
    await asyncio.to_thread(
        wait_in_thread, lambda: is_registered(cluster, other), HANG_S, "the pending owner"
    )
    await asyncio.to_thread(cluster.kill, owner)
    async with asyncio.timeout(HANG_S):
        while (await statistics(cluster, other))["recoveries"] < 1:
            pass
    found = await statistics(cluster, other)
    assert (found["recoveries"], found["takeovers"]) == (1, 1), "only what was in use"
    some = [f"idle-{i}" for i in range(0, LOG_COUNT, max(LOG_COUNT // 20, 1))]
    for name in some:
        append = partial(client.append, "default", name, batch)
        done = await repeat_safely(append, COME_AGAINS_MAX, is_read=False)
        assert done.start is not None and done.start >= 1 and not done.dlsn.startswith("e1n"), name
    found = await statistics(cluster, other)
    assert found["recoveries"] == 1, "an idle log is opened, not recovered"
    assert found["takeovers"] == 1 + len(some)
    print(f"{LOG_COUNT + WARM_COUNT} idle logs taken over without a recovery")


def is_registered(cluster: LocalCluster, node_id: str) -> bool:
    """Whether a process that was started anew takes part."""

    async def ask() -> bool:
        client = RestClient(cluster.state()["admin_url"])
        try:
            answer = await client.get_json("/v1/cluster/owners")
            return node_id in {each["id"] for each in answer["sequencers"]} - set(answer["silent"])
        finally:
            await client.close()

    return run(ask())
