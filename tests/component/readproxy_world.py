"""The world around a read proxy in a test: four fake bookies and a log that is being written.

The fakes speak the real wire (`wire.bookie_calls`) over dictionaries and fail when told to; the
metadata are written by `wire.metadata_json` into a store in memory. `World.fill` writes the log of
most tests: segment 1 CLOSED with two fragments and leftovers beyond its end, 2 CLOSED and striped
(E > Qw), 3 OPEN. `World.archive` and `release` move closed segments to a cold store in memory.
Used by `test_readproxy`, `test_read_positions` and others. Source: docs/protocol/reading.md.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import prometheus_client
import uvloop

from duramen.config import parse_log_config
from duramen.core.flexible.segment import AnySegment
from duramen.core.log_node import LogNode
from duramen.core.quorum import Quorum
from duramen.core.segment import Fragment, Segment, Totals
from duramen.core.sequencer.exactly_once.stamps import TokenRecord
from duramen.core.status import BookieStatus
from duramen.ids import (
    LAST_ENTRY_ID,
    NOTHING,
    BookieId,
    EntryId,
    Epoch,
    Incarnation,
    LedgerId,
    LogId,
    Member,
    ledger_of,
    lsn_of,
    parse_lsn,
)
from duramen.limits import METADATA_AGE_MAX_US
from duramen.runtime.cold import ColdStore
from duramen.runtime.cold.memory import MemoryColdStore
from duramen.runtime.http_server import Answer, DataServer, Reply
from duramen.runtime.reading.cold_reads import make_cold_reads
from duramen.runtime.role import ServiceOptions
from duramen.runtime.security.process_security import ProcessSecurity
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.wire.bookie_calls import (
    Marks,
    ReadAnswer,
    ReadRange,
    pack_marks,
    pack_read_answers,
    parse_lacs,
    parse_reads,
)
from duramen.wire.control_record import encode_control
from duramen.wire.entry import CONTROL, HEADER_BYTES, encode_entry, read_entry_info
from duramen.wire.flexible.filtered_answers import FilteredAnswer, pack_filtered_answers
from duramen.wire.flexible.filtered_reads import (
    READ_VERSION_FILTERED,
    FilteredRange,
    parse_filtered_reads,
)
from duramen.wire.frame import frame_version
from duramen.wire.metadata_json import (
    Paths,
    encode_log,
    encode_node,
    encode_segment,
    read_any_segment,
)
from duramen.wire.record_batch import encode_batch
from duramen_readproxy.service import ReadProxy
from tests.cold_writer import archive_segment

PATHS = Paths("c")
LOG = LogId(9)
CLUSTER = "c0" * 16
RECORDS = "/v1/namespaces/ns/logs/log/records"
BATCH = "application/vnd.duramen.batch"
NDJSON = "application/x-ndjson"
NAMES = "abcd"
A, B, C, D = (Member(BookieId(n), Incarnation(n.encode().hex() * 16)) for n in NAMES)
Scenario = Callable[["World"], Awaitable[None]]


class FakeBookie:
    """Entries by ledger; answers as scripted."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.entries: dict[tuple[LedgerId, EntryId], bytes] = {}
        self.lacs: dict[LedgerId, EntryId] = {}
        self.status: BookieStatus | None = None
        self.is_broken = False
        self.is_sealed = False
        self.refusals: dict[str, list[Reply]] = {"/b/read": [], "/b/lac": []}
        self.refused_count = 0
        self.reads: list[ReadRange] = []
        self.read_count = 0
        self.given_count = 0
        self.lost: dict[tuple[LedgerId, EntryId], BookieStatus] = {}
        self.dropped: set[LedgerId] = set()
        self.waiting_count = 0
        self.on_call: Callable[[str], Awaitable[None]] | None = None
        self._changed = asyncio.Condition()
        self.server = DataServer("127.0.0.1", 0, self._handle)

    async def change(self, ledger: LedgerId, lac: int, entry: tuple[int, bytes] | None) -> None:
        async with self._changed:
            self.lacs[ledger] = max(self.lacs.get(ledger, NOTHING), EntryId(lac))
            if entry is not None:
                self.entries[ledger, EntryId(entry[0])] = entry[1]
            self._changed.notify_all()

    async def _handle(self, path: str, body: bytes, _caller: object) -> Answer:
        if self.on_call is not None:
            await self.on_call(path)
        if self.is_broken:
            return 500, "text/plain", b""
        if self.refusals[path]:
            self.refused_count += 1
            return self.refusals[path].pop()
        if path == "/b/read":
            self.read_count += 1
            if frame_version(body) == READ_VERSION_FILTERED:
                _, asked = parse_filtered_reads(body)
                told = [await self._read_filtered(one) for one in asked]
                return 200, "application/octet-stream", pack_filtered_answers(told)
            incarnation, ranges = parse_reads(body)
            self.reads += ranges
            answers = [await self._read(incarnation, wanted) for wanted in ranges]
            self.given_count += sum(len(answer.entries) for answer in answers)
            return 200, "application/octet-stream", pack_read_answers(answers)
        assert path == "/b/lac", path
        _, (update,) = parse_lacs(body)
        assert not update.is_write
        marks = self._marks(update.ledger_id)
        return 200, "application/octet-stream", pack_marks(b"DLCR", [marks])

    def _marks(self, ledger: LedgerId) -> Marks:
        highest = max([NOTHING, *(e for key, e in self.entries if key == ledger)])
        return Marks(self.status or BookieStatus.OK, self.lacs.get(ledger, NOTHING), highest)

    async def _read(self, incarnation: Incarnation, wanted: ReadRange) -> ReadAnswer:
        if incarnation != self.member.incarnation or self.status is not None:
            status = self.status or BookieStatus.WRONG_INCARNATION
            return ReadAnswer(status, NOTHING, NOTHING, False, [])
        if wanted.ledger_id in self.dropped:
            return ReadAnswer(BookieStatus.GONE, NOTHING, NOTHING, False, [])
        if wanted.wait_ms and not self.is_sealed:
            await self._wait(wanted)
        run: list[tuple[EntryId, bytes]] = []
        for entry in range(wanted.first, wanted.last + 1):
            key = (wanted.ledger_id, EntryId(entry))
            body = None if key in self.lost else self.entries.get(key)
            size = sum(len(b) for _, b in run)
            if body is None or (run and size + len(body) > wanted.bytes_max):
                break
            run.append((EntryId(entry), body[:HEADER_BYTES] if wanted.headers_only else body))
        _, lac, highest = self._marks(wanted.ledger_id)
        lost = self.lost.get((wanted.ledger_id, wanted.first), BookieStatus.NO_ENTRY)
        status = BookieStatus.OK if run else lost
        return ReadAnswer(status, lac, highest, self.is_sealed, run)

    async def _read_filtered(self, asked: FilteredRange) -> FilteredAnswer:
        """Of a flexible segment: all that is here and may be shown, whatever others would send."""
        wanted, ledger = asked.wanted, asked.wanted.ledger_id
        if wanted.wait_ms and not self.is_sealed:
            await self._wait(wanted)
        _, lac, highest = self._marks(ledger)
        following = EntryId(min(wanted.last, max(lac, asked.bound)) + 1)
        status = BookieStatus.OK if wanted.first < following else BookieStatus.NOT_RELEASED
        held = [(e, b) for (of, e), b in self.entries.items() if of == ledger]
        here = sorted(one for one in held if wanted.first <= one[0] < following)
        size = HEADER_BYTES if wanted.headers_only else None
        return FilteredAnswer(
            status, lac, highest, self.is_sealed, asked.filter_number,
            max(following, wanted.first),
            entries=() if asked.is_digest else [(e, body[:size]) for e, body in here],
            digests=[(e, read_entry_info(b).crc) for e, b in here] if asked.is_digest else None,
        )  # fmt: skip

    async def _wait(self, wanted: ReadRange) -> None:
        def is_worth_answering() -> bool:
            lac = self.lacs.get(wanted.ledger_id, NOTHING)
            is_there = (wanted.ledger_id, wanted.first) in self.entries
            return is_there or lac >= wanted.wait_for or self.is_sealed

        self.waiting_count += 1
        try:
            async with asyncio.timeout(wanted.wait_ms / 1000), self._changed:
                await self._changed.wait_for(is_worth_answering)
        except TimeoutError:
            pass
        finally:
            self.waiting_count -= 1


class World:
    """A proxy, four bookies, and the log that is being written."""

    def __init__(
        self,
        cors_origins: tuple[str, ...] = (),
        *,
        metadata_age_max_us: int = METADATA_AGE_MAX_US,
        security: ProcessSecurity | None = None,
        issuers: Path | None = None,
        public_tls_dir: Path | None = None,
        data_dir: Path | None = None,
    ) -> None:
        self.uuid = CLUSTER if security is None else security.identity.domain
        self.tree = MemoryTree()
        self.store = MemoryStore(self.tree)
        self.bookies = {m.bookie: FakeBookie(m) for m in (A, B, C, D)}
        self.bodies: list[str] = []
        self.log = LogNode(LOG, "ns", "log", parse_log_config({}))
        self.segment: AnySegment | None = None
        self.totals = Totals()
        self.entry_count = 0
        self.lac_max: int = LAST_ENTRY_ID
        """Of an open segment; below what is incomplete."""
        options = ServiceOptions(
            "readproxy", "c", "rp-0", "127.0.0.1", 0, 0, "", "eu", "ra", "none", 4.0, data_dir,
            cors_origins=cors_origins, metadata_age_max_us=metadata_age_max_us, issuers=issuers,
            public_tls_dir=public_tls_dir,
        )  # fmt: skip
        self.cold_store = MemoryColdStore()
        self.cold = make_cold_reads(self.cold_store, self.store, PATHS)
        self.proxy_store = MemoryStore(self.tree)
        self.registry = prometheus_client.CollectorRegistry()
        self.proxy = ReadProxy(
            options, self.proxy_store, cold=self.cold, registry=self.registry, security=security
        )
        self.http = httpx.AsyncClient(timeout=30, trust_env=False, verify=False)

    async def start(self) -> None:
        await self.store.start()
        for name, bookie in self.bookies.items():
            await bookie.server.start()
            await self.store.create(
                f"{PATHS.available}/{name}",
                encode_node(
                    {
                        "data_url": f"http://127.0.0.1:{bookie.server.port}",
                        "incarnation": bookie.member.incarnation,
                        "region": "eu",
                        "rack": f"r{name}",
                    }
                ),
                ephemeral=True,
                make_parents=True,
            )
        await self.put(
            PATHS.cluster, encode_node({"uuid": self.uuid, "format": 1, "last_log_id": 9})
        )
        await self.put(PATHS.namespace("ns"), encode_node({"config": {}}))
        await self.put(PATHS.name("ns", "log"), encode_node({"log_id": str(LOG)}))
        await self.put(PATHS.log(LOG), encode_log(self.log))
        await self.proxy.start()
        self.http.base_url = httpx.URL(f"http://127.0.0.1:{self.proxy.port}")

    async def stop(self) -> None:
        await self.http.aclose()
        await self.proxy.stop()
        for bookie in self.bookies.values():
            await bookie.server.stop()
        await self.store.close()

    async def put(self, path: str, data: bytes) -> None:
        found = await self.store.get(path)
        if found is None:
            await self.store.create(path, data, make_parents=True)
        else:
            await self.store.set(path, data, version=found.version)

    # --- The log ---

    async def open_segment(
        self, ensemble: tuple[Member, ...] = (A, B, C), *, write_quorum: int | None = None
    ) -> None:
        epoch = self.log.next_epoch
        self.log = self.log.with_new_epoch("n")
        quorum = Quorum(len(ensemble), write_quorum or len(ensemble), 2)
        self.segment = Segment(LOG, epoch, quorum, (Fragment(EntryId(0), ensemble),))
        self.totals, self.entry_count = Totals(), 0
        await self._put_segment()
        await self.put(PATHS.log(LOG), encode_log(self.log))

    async def change_ensemble(self, ensemble: tuple[Member, ...]) -> None:
        assert isinstance(self.segment, Segment)
        first = EntryId(self.entry_count)
        self.segment = self.segment.with_ensemble(first, ensemble, self.totals, "n")
        await self._put_segment()

    async def close_segment(self) -> None:
        assert isinstance(self.segment, Segment)
        self.segment = self.segment.closed(
            last_entry=EntryId(self.entry_count - 1), totals=self.totals,
            start_seq_num=self.log.totals.record_count, completed_unix_ms=5_000, nonce="n",
        )  # fmt: skip
        self.log = self.log.with_clean(self.segment, "n")
        await self._put_segment()
        await self.put(PATHS.log(LOG), encode_log(self.log))

    async def append(
        self,
        *counts: int,
        is_confirmed: bool = True,
        txids: Sequence[int] | None = None,
        at_ms: int | None = None,
    ) -> None:
        """One entry with a batch of each count; its bodies are `r<sequence number>`."""
        entry = self.make_entry(*counts, txids=txids, at_ms=at_ms)
        await self.store_entry(entry, is_confirmed=is_confirmed)

    async def append_control(self, *, is_confirmed: bool = True) -> None:
        """An entry without records."""
        assert self.segment is not None
        before, control = self.totals, encode_control(TokenRecord("token"))
        self.totals = before.plus(Totals(0, len(control)))
        entry = encode_entry(
            ledger_id=self.segment.ledger_id, entry_id=EntryId(self.entry_count),
            before=before, batches=[control], record_count=0, after=self.totals, flags=CONTROL,
        )  # fmt: skip
        await self.store_entry(entry, is_confirmed=is_confirmed)

    async def truncate(self, seq_num: int, lsn: str, first_live: int = 1) -> None:
        """Move the trim point, as the log's owner does; returns when the proxy has seen it."""
        await self.put_truncated(seq_num, lsn, first_live)
        follower = await self.proxy.catalog.find("ns", "log")
        async with asyncio.timeout(20):
            while (await follower.current_log()).trim_seq_num < seq_num:  # noqa: ASYNC110
                await asyncio.sleep(0)

    async def put_truncated(self, seq_num: int, lsn: str, first_live: int = 1) -> None:
        """The same, whether or not the proxy can see it."""
        self.log = replace(
            self.log,
            trim_lsn=parse_lsn(lsn),
            trim_seq_num=seq_num,
            first_live_epoch=Epoch(first_live),
        )
        await self.put(PATHS.log(LOG), encode_log(self.log))
        for epoch in range(1, first_live):
            await self.delete_segment(Epoch(epoch))

    async def archive(
        self,
        epoch: int,
        *,
        part_count: int = 1,
        row_group_bytes: int = 4096,
        store: ColdStore | None = None,
    ) -> None:
        """Put a CLOSED segment into the cold store, as its rechecked copy."""
        path = PATHS.segment(LOG, Epoch(epoch))
        found = await self.store.get(path)
        assert found is not None, path
        segment = read_any_segment(found.data)
        assert segment.last_entry is not None, segment
        entries = [EntryId(n) for n in range(segment.last_entry + 1)]
        copy = archive_segment(
            store or self.cold_store, CLUSTER, self.log, segment,
            [self.find_entry(segment, n) for n in entries if segment.absence_at(n) is None],
            part_count=part_count, row_group_bytes=row_group_bytes,
        )  # fmt: skip
        await self.put(path, encode_segment(segment.with_cold_copy(copy, "n")))

    async def release(self, first_hot: int, *, is_dropped: bool = True) -> None:
        """Move `first_hot_epoch`; bookies drop what lies below."""
        snapshot = lsn_of(self.log.next_epoch, EntryId(0)) - 1
        self.log = replace(self.log, snapshot_lsn=snapshot)
        self.log = self.log.with_first_hot_epoch(Epoch(first_hot), "n")
        await self.put(PATHS.log(LOG), encode_log(self.log))
        for bookie in self.bookies.values() if is_dropped else ():
            bookie.dropped |= {ledger_of(LOG, Epoch(epoch)) for epoch in range(1, first_hot)}

    def forget(self) -> None:
        """Empty the proxy's cache of entries, and what it has learnt of positions."""
        self.proxy.fetcher._cache.__init__()  # type: ignore[misc]
        self.proxy.positions.__init__()  # type: ignore[misc]

    def find_entry(self, segment: AnySegment, entry: EntryId) -> bytes:
        """An entry of any bookie's."""
        for member in segment.list_holders(entry):
            body = self.bookies[member.bookie].entries.get((segment.ledger_id, entry))
            if body is not None:
                return body
        raise AssertionError(f"nobody has e{segment.epoch}n{entry}")

    async def delete_segment(self, epoch: Epoch) -> None:
        found = await self.store.get(PATHS.segment(LOG, epoch))
        if found is not None:
            await self.store.delete(PATHS.segment(LOG, epoch), version=found.version)

    async def store_entry(self, body: bytes, *, is_confirmed: bool = True) -> None:
        """Put an encoded entry at the end of the open segment."""
        assert self.segment is not None
        entry_id = self.entry_count
        for member in self.segment.list_holders(EntryId(entry_id)):
            bookie = self.bookies[member.bookie]
            lac = min(entry_id - 1, self.lac_max)
            await bookie.change(self.segment.ledger_id, lac, (entry_id, body))
        self.entry_count += 1
        if is_confirmed:
            await self.confirm()

    async def confirm(self) -> None:
        """The explicit LAC of the writer, to the whole last fragment."""
        assert self.segment is not None
        for member in self.segment.members:
            bookie = self.bookies[member.bookie]
            await bookie.change(self.segment.ledger_id, self.entry_count - 1, None)

    def make_entry(
        self, *counts: int, txids: Sequence[int] | None = None, at_ms: int | None = None
    ) -> bytes:
        assert self.segment is not None
        batches = []
        for count in counts:
            texts = [f"r{len(self.bodies) + i}" for i in range(count)]
            self.bodies += texts
            time_ms = at_ms or 1_000 + len(self.bodies)
            batches.append(encode_batch([t.encode() for t in texts], time_ms, txids=txids))
        before = self.totals
        size = sum(map(len, batches))
        max_txid = None if txids is None else max(txids)
        last_ms = at_ms or 1_000 + len(self.bodies)
        self.totals = before.plus(Totals(sum(counts), size, max_txid, last_ms))
        return encode_entry(
            ledger_id=self.segment.ledger_id, entry_id=EntryId(self.entry_count), before=before,
            batches=batches, record_count=sum(counts), after=self.totals,
        )  # fmt: skip

    async def _put_segment(self) -> None:
        assert self.segment is not None
        await self.put(PATHS.segment(LOG, self.segment.epoch), encode_segment(self.segment))

    async def fill(self) -> None:
        """The log of most tests: 3 segments, 31 records in 12 entries."""
        await self.open_segment()
        await self.append(2, 1)
        await self.append(3)
        await self.change_ensemble((A, B, D))
        await self.append(1, 1, 1)
        await self.append(4)
        await self.close_segment()
        leftover = self.make_entry(5)
        del self.bodies[13:]
        for member in (A, B, D):
            key = (ledger_of(LOG, Epoch(1)), EntryId(4))
            self.bookies[member.bookie].entries[key] = leftover
        await self.open_segment((A, B, C, D), write_quorum=2)
        for count in (1, 2, 3, 2, 1):
            await self.append(count)
        await self.close_segment()
        await self.open_segment()
        for count in (4, 3, 2):
            await self.append(count)
        assert len(self.bodies) == 31

    # --- Requests ---

    async def get(self, query: str = "", **headers: str) -> httpx.Response:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.get(f"{RECORDS}{query}", headers=names)

    async def read(self, query: str = "") -> dict[str, Any]:
        response = await self.get(query)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    async def problem(
        self, status: int, code: str, field: str | None, query: str, **headers: str
    ) -> dict[str, Any]:
        response = await self.get(query, **headers)
        assert response.headers["content-type"] == "application/problem+json"
        problem: dict[str, Any] = response.json()
        found = (response.status_code, problem["status"], problem["code"], problem.get("field"))
        assert found == (status, status, code, field), problem
        return problem


def run(
    scenario: Scenario,
    *,
    cors_origins: tuple[str, ...] = (),
    metadata_age_max_us: int = METADATA_AGE_MAX_US,
    within_s: float = 60,
) -> None:
    async def in_world() -> None:
        async with AsyncExitStack() as stack:
            world = World(cors_origins, metadata_age_max_us=metadata_age_max_us)
            stack.push_async_callback(world.stop)
            await world.start()
            await asyncio.wait_for(scenario(world), within_s)

    uvloop.run(in_world())


def seq_nums(answer: dict[str, Any]) -> list[int]:
    return [record["seq_num"] for record in answer["records"]]


def check(world: World, answer: dict[str, Any], first: int, end: int) -> None:
    assert seq_nums(answer) == list(range(first, end))
    assert [r["body"] for r in answer["records"]] == world.bodies[first:end]
    assert answer["next"] == f"seq:{end}"
