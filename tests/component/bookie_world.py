"""A bookie with its disk in a folder and a store in memory, and the calls that a test makes to it.

`running` starts one and stops it; `Bookie` speaks its wire. Entries are named by small numbers.
Used by the tests of the bookie's service. Source: docs/bookie.md, docs/protocol/wire.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from duramen.core.segment import Totals
from duramen.core.status import BookieStatus
from duramen.ids import (
    NOTHING,
    EntryId,
    Epoch,
    Incarnation,
    LedgerId,
    LogId,
    NodeNumber,
    ledger_of,
)
from duramen.runtime.http_client import PeerClient
from duramen.runtime.role import ServiceOptions
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.units import MIB, SECOND
from duramen.wire.bookie_calls import (
    Add,
    LacUpdate,
    Marks,
    ReadAnswer,
    ReadRange,
    Seal,
    pack_adds,
    pack_lacs,
    pack_reads,
    pack_seals,
    parse_marks,
    parse_read_answers,
    parse_statuses,
)
from duramen.wire.entry import check_entry, encode_entry
from duramen.wire.flexible.envelope import Envelope, encode_envelope
from duramen.wire.metadata_json import Paths
from duramen_bookie.service import BookieService
from tests.waiting import wait_for

LOG = LogId(9)
LEDGER = ledger_of(LOG, Epoch(1))
OK = BookieStatus.OK
CLUSTER = "test"
PATHS = Paths(CLUSTER)


class Bookie:
    """A running service and a client of it."""

    def __init__(self, service: BookieService, client: PeerClient, tree: MemoryTree) -> None:
        self.service = service
        self.incarnation = Incarnation(service.describe()["incarnation"])
        self.tree = tree
        self._client = client

    async def add(self, *adds: Add, life: Incarnation | None = None) -> list[BookieStatus]:
        return parse_statuses(await self.post("/b/add", pack_adds(life or self.incarnation, adds)))

    async def read(self, *ranges: ReadRange, life: Incarnation | None = None) -> list[ReadAnswer]:
        body = pack_reads(life or self.incarnation, ranges)
        return parse_read_answers(await self.post("/b/read", body))

    async def seal(self, *seals: Seal, life: Incarnation | None = None) -> list[Marks]:
        body = pack_seals(life or self.incarnation, seals)
        return parse_marks(await self.post("/b/seal", body), b"DSLR")

    async def lac(self, *updates: LacUpdate, life: Incarnation | None = None) -> list[Marks]:
        body = pack_lacs(life or self.incarnation, updates)
        return parse_marks(await self.post("/b/lac", body), b"DLCR")

    async def post(self, path: str, body: bytes) -> bytes:
        return await self._client.call(self.service.data_url + path, body, 20 * SECOND)

    async def wait_waiters(self, count: int) -> None:
        """Until so many long polls wait inside the bookie; a core has no events to wait for."""
        await wait_for(lambda: self.service.statistics()["core"]["waiters"] == count)


def options(data_dir: Path, node_id: str = "b1") -> ServiceOptions:
    return ServiceOptions(
        role="bookie",
        cluster=CLUSTER,
        node_id=node_id,
        host="127.0.0.1",
        data_port=0,
        admin_port=0,
        zookeeper="memory",
        region="local",
        rack="r1",
        security="none",
        session_timeout_s=4.0,
        data_dir=data_dir,
        journal_file_bytes=8 * MIB,
    )


@asynccontextmanager
async def running(
    data_dir: Path,
    tree: MemoryTree | None = None,
    node_id: str = "b1",
    failures: list[str] | None = None,
) -> AsyncIterator[Bookie]:
    """A bookie; `failures` gets what would end its process (without it: nothing may)."""
    tree = tree or MemoryTree()
    expects_none = failures is None
    failures = [] if failures is None else failures
    service = BookieService(options(data_dir, node_id), failures.append, MemoryStore(tree))
    client = PeerClient()
    try:
        await service.start()
        yield Bookie(service, client, tree)
    finally:
        await client.close()
        await service.stop()
    assert not (expects_none and failures)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(bounded())


def entry(number: int, size: int = 100, ledger: LedgerId = LEDGER) -> bytes:
    batch = bytes([number % 251]) * size
    return encode_entry(
        ledger_id=ledger,
        entry_id=EntryId(number),
        before=Totals(number, number * size),
        batches=[batch],
        record_count=1,
        after=Totals(number + 1, (number + 1) * size),
    )


def add(number: int, *, lac: int = -1, size: int = 100, recovery: bool = False) -> Add:
    return Add(LEDGER, EntryId(number), EntryId(lac), entry(number, size), recovery)


def store(
    number: int, *members: int, block: int | None = None, lac: int = -1, recovery: bool = False
) -> Add:
    """An entry with an envelope that names these nodes."""
    body = entry(number)
    named = Envelope(
        tuple(NodeNumber(member) for member in members), None if block is None else EntryId(block)
    )
    envelope = encode_envelope(named, LEDGER, EntryId(number), check_entry(body).crc)
    return add(number, lac=lac, recovery=recovery)._replace(envelope=envelope)


async def keep(bookie: Bookie, *adds: Add) -> None:
    """Store rows as owners do: the first envelope is OVERLOADED until the cookies say so."""

    async def ask() -> bool:
        return await bookie.add(*adds) == [OK] * len(adds)

    await wait_for(ask)


def span(first: int, last: int | None = None, bytes_max: int = 1 << 20) -> ReadRange:
    return ReadRange(LEDGER, EntryId(first), EntryId(first if last is None else last), bytes_max)


def bodies(answer: ReadAnswer) -> list[tuple[int, bytes]]:
    return [(entry_id, bytes(body)) for entry_id, body in answer.entries]


def expected(numbers: Sequence[int], size: int = 100) -> list[tuple[int, bytes]]:
    return [(number, entry(number, size)) for number in numbers]


READ_LAC = LacUpdate(LEDGER, NOTHING, False)
SEAL = Seal(LOG, Epoch(1), LEDGER)


def damage(folder: Path, number: int, *, pattern: str) -> None:
    """Change a byte of an entry in the files of a bookie."""
    hits = 0
    for path in sorted(folder.rglob(pattern)):
        data = bytearray(path.read_bytes())
        at = data.find(entry(number))
        if at >= 0:
            with path.open("r+b") as file:
                file.seek(at + 100)
                file.write(bytes([data[at + 100] ^ 1]))
            hits += 1
    assert hits, f"entry {number} is nowhere in {folder}"
