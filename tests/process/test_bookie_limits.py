"""A bookie at the end of its means under load: its disk is full, or takes its time.

It refuses what it has no room for, goes on with the rest, holds no more memory than its classes of
service may, and is well again when the disk is. DURAMEN_SLOW_ROUNDS says how many rounds of some
seconds the slow disk lasts (1; the full run of ten minutes is 100), DURAMEN_IDLE_LEDGERS how many
ledgers lie idle (50,000; the full run has 100,000). A test that this machine cannot
run says why on the terminal.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from duramen.core.status import BookieStatus
from duramen.limits import BODIES_BYTES_MAX, FRAME_BYTES_MAX, RECORD_BYTES_MAX
from duramen.units import MIB
from duramen.wire.bookie_calls import ServiceClass
from duramen_bookie.admission import CLASS_LIMITS
from tests.crash.promises import ledger, make_addition
from tests.process.bookie import BookieClient, BookieProcess, Load
from tests.process.bookie_upkeep import finish, finish_round
from tests.process.cluster import run
from tests.process.disk_faults import (
    Volume,
    count_injected,
    injecting,
    reason_to_skip_injecting,
)
from tests.process.hasty_bookie import hasty
from tests.process.metadata_nodes import MetadataNodes, open_nodes
from tests.process.times import HANG_S
from tests.requirements import Need, leave_out_if
from tests.waiting import wait_in_thread
from tests.zookeeper_fixture import running_zookeeper

pytestmark = [pytest.mark.process, pytest.mark.zookeeper, pytest.mark.long]

SLOW_ROUND_COUNT = int(os.environ.get("DURAMEN_SLOW_ROUNDS", "1"))
IDLE_LEDGER_COUNT = int(os.environ.get("DURAMEN_IDLE_LEDGERS", "50000"))
LEDGER_BYTES_MAX: Final = 2_048
"""The target of docs/benchmarks.md "A bookie alone", for 100,000 of them."""

SLOW_ROUND_S: Final = 6.0
SYNC_DELAY_US: Final = 2_000_000
"""So long that what a client on any machine sends meanwhile passes its share of the class; one that
sends hundreds of MiB a second has the same at 100 ms."""

SLOW_WRITER_COUNT: Final = 128
"""Each has a frame of 1.2 MiB on average under way: several times what the class takes of one
client."""

HELD_BYTES_MAX: Final = (
    CLASS_LIMITS[ServiceClass.APPEND].add_bytes_max + BODIES_BYTES_MAX + 4 * FRAME_BYTES_MAX
)
"""What adds may cost at most beside an idle bookie: those that wait for the journal, the bodies
that arrive, and the window of the one connection, which the HTTP library holds."""


SMALL_DISK_BYTES: Final = 96 * MIB
READ_ONLY_FREE_BYTES: Final = 3 * MIB
"""More than 95 % of the small disk are used then, and less than 98 %."""

JOURNAL_FILES = ("--journal-file-size", "4MiB")


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server.address


def test_a_full_disk_costs_new_entries_and_nothing_else(
    tmp_path: Path, zookeeper: str, capsys: pytest.CaptureFixture[str]
) -> None:
    leave_out_if(Need.LOOP_DEVICES, Volume.reason_to_skip())
    load = Load(seed=4, first_log=201)

    async def scenario(bookie: BookieProcess, volume: Volume, nodes: MetadataNodes) -> None:
        bookie.start()
        suspend_settling(bookie, is_on=True)  # so that more is to be settled than will fit
        async with load.running(bookie):
            await load.wait_acknowledged(2_000)
            await asyncio.to_thread(fill, volume, bookie, READ_ONLY_FREE_BYTES, "read_only")
            await load.wait_code("READ_ONLY")
            await wait_state(nodes, bookie, "ro")
            await asyncio.to_thread(settle_in_vain, bookie)
            await require_service(bookie, load, epoch=1)
            filler = await asyncio.to_thread(fill, volume, bookie, 0, "full")
            await require_service(bookie, load, epoch=2, takes_recovery=False)
            assert bookie.is_running()
            filler.unlink()
            await wait_state(nodes, bookie, "rw")
            await load.wait_acknowledged(load.acknowledged_count + 300)
        await load.check(bookie)
        assert bookie.stop() == 0
        bookie.start()
        await load.check(bookie)
        assert bookie.stop() == 0
        found = bookie.check_files()
        assert found["status"] == "clean", found

    async def main(bookie: BookieProcess, volume: Volume) -> None:
        async with open_nodes(zookeeper) as nodes:
            await scenario(bookie, volume, nodes)

    with (
        Volume(tmp_path / "volume", SMALL_DISK_BYTES) as volume,
        BookieProcess(tmp_path, volume.path / "data", zookeeper, *JOURNAL_FILES) as bookie,
    ):
        run(main(bookie, volume), 2 * HANG_S)
    with capsys.disabled():
        print(f"\nfull disk: {len(load.promises.kept):,} entries are there")


def fill(volume: Volume, bookie: BookieProcess, leave_bytes: int, level: str) -> Path:
    """Fill it again while the bookie lets go of files, until the bookie says that it is so full."""
    filler: list[Path] = []

    def is_full() -> bool:
        filler[:] = [volume.fill(leave_bytes)]
        return bool(bookie.ask("/v1/disks")["level"] == level)

    wait_in_thread(is_full, HANG_S, f"the disk to be {level}")
    return filler[0]


def suspend_settling(bookie: BookieProcess, *, is_on: bool) -> None:
    """Suspend or resume it."""
    url = f"{bookie.admin_url}/v1/upkeep/settling/suspended"
    httpx.put(url, json={"is_on": is_on}, timeout=30).raise_for_status()


def settle_in_vain(bookie: BookieProcess) -> None:
    """There is no room for what is to be settled: it waits, and takes nothing of what is left."""

    def settling() -> dict[str, Any]:
        found: dict[str, Any] = bookie.ask("/v1/upkeep")["settling"]
        return found

    suspend_settling(bookie, is_on=False)
    before = settling()["postponed_count"]
    wait_in_thread(lambda: settling()["postponed_count"] > before + 1, HANG_S, "settling to wait")
    assert settling()["rounds"]["failed_round_count"] == 0


async def wait_state(nodes: MetadataNodes, bookie: BookieProcess, state: str) -> None:
    """Until its registration says so."""
    async with asyncio.timeout(HANG_S):
        while (await nodes.registration(bookie.node_id)).get("state") != state:
            pass


async def require_service(
    bookie: BookieProcess, load: Load, *, epoch: int, takes_recovery: bool = True
) -> None:
    """Reads, seals and, while there is room for them, recovery's adds; to a log of its own."""
    client = BookieClient(bookie)
    log_id = load.log_ids.stop
    adds = load.make_adds(ledger(log_id, epoch), 0, random.Random(epoch), is_recovery=True)
    try:
        await load.check_some(client, 30)
        await load.seal(client, log_id, epoch)
        assert await load.add(client, adds) is takes_recovery
    finally:
        await client.close()


@pytest.mark.night
@pytest.mark.timeout(2 * HANG_S + IDLE_LEDGER_COUNT // 500)
def test_idle_ledgers_cost_little_memory(
    tmp_path: Path, zookeeper: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Against the same process without them; both right after a start."""
    keys = [ledger(1 + number // 10, 1 + number % 10) for number in range(IDLE_LEDGER_COUNT)]

    async def fill_ledgers(bookie: BookieProcess) -> None:
        client = BookieClient(bookie)
        for first in range(0, len(keys), 1_000):
            adds = [make_addition(ledger_id, 0, 100) for ledger_id in keys[first : first + 1_000]]
            assert set(await client.add(adds)) == {BookieStatus.OK}
        await client.close()

    with BookieProcess(tmp_path, tmp_path / "data", zookeeper) as bookie:
        bookie.start()
        empty_bytes = bookie.resident_bytes()
        run(fill_ledgers(bookie), HANG_S + IDLE_LEDGER_COUNT // 500)
        finish_round(bookie, "settling")
        assert bookie.stop() == 0
        bookie.start()
        used_bytes = bookie.resident_bytes() - empty_bytes
        assert len(bookie.list_ledgers()) == IDLE_LEDGER_COUNT
        assert bookie.stop() == 0
    figure = f"{used_bytes / IDLE_LEDGER_COUNT:,.0f} bytes for each of {IDLE_LEDGER_COUNT:,}"
    with capsys.disabled():
        print(f"\nidle ledgers: {figure}")
    assert used_bytes <= IDLE_LEDGER_COUNT * LEDGER_BYTES_MAX, figure


@pytest.mark.timeout(2 * HANG_S + SLOW_ROUND_COUNT * 30)
def test_a_slow_disk_costs_refusals_and_not_memory(
    tmp_path: Path, zookeeper: str, capsys: pytest.CaptureFixture[str]
) -> None:
    leave_out_if(Need.STRACE, reason_to_skip_injecting())
    load = Load(seed=5, first_log=301, writers=SLOW_WRITER_COUNT, entry_bytes_max=RECORD_BYTES_MAX)
    log = tmp_path / "strace.log"
    figures: dict[str, int] = {}

    def slowed(command: list[str]) -> list[str]:
        return injecting(hasty(command), "fdatasync", f"delay_exit={SYNC_DELAY_US}", log)

    async def scenario(bookie: BookieProcess, nodes: MetadataNodes) -> None:
        bookie.start(slowed)
        idle_bytes = bookie.peak_resident_bytes()
        for _ in range(SLOW_ROUND_COUNT):
            if load.life > 0:  # a long run needs no more disk than a short one
                await finish(bookie, load, nodes, load.log_ids)
            async with load.running(bookie):
                await hold(load, SLOW_ROUND_S)
            figures["entries"] = figures.get("entries", 0) + load.acknowledged_count
            assert load.codes == {"OVERLOADED"}, load.codes
            figures["MiB at most"] = bookie.peak_resident_bytes() // MIB
            assert bookie.peak_resident_bytes() <= idle_bytes + HELD_BYTES_MAX, figures
            await load.check(bookie, lives=2)
        append = bookie.ask("/v1/statistics")["data_plane"]["classes"]["append"]
        figures["refusals"] = append["refused"]
        figures["slow syncs"] = count_injected(log)
        figures["MiB idle"] = idle_bytes // MIB
        assert append["refused"] > 0 and figures["slow syncs"] >= 2 * SLOW_ROUND_COUNT, figures
        assert bookie.stop() == 0
        bookie.start()
        await load.check(bookie)
        assert bookie.stop() == 0

    async def main(bookie: BookieProcess) -> None:
        async with open_nodes(zookeeper) as nodes:
            await scenario(bookie, nodes)

    with BookieProcess(tmp_path, tmp_path / "data", zookeeper) as bookie:
        run(main(bookie), HANG_S + SLOW_ROUND_COUNT * 30)
    with capsys.disabled():
        print(f"\nslow disk: {', '.join(f'{count:,} {what}' for what, count in figures.items())}")


async def hold(load: Load, duration_s: float) -> None:
    """Full load for so long, in which something is stored again and again."""
    end_s = time.monotonic() + duration_s
    while time.monotonic() < end_s:
        await load.wait_acknowledged(load.acknowledged_count + 1)
