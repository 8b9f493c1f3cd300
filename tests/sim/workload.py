"""Workload of a run: clients that append, readers that follow, and the final complete read.

Clients send frames of appends, as the write proxy's lanes do, follow redirects, and say of each
append what they know: acknowledged, failed for certain, or uncertain. Client 0 waits for each
answer before it goes on, the others do not. Readers drive the production reader core from a random
position through lag, rolls and takeovers, and begin anew now and then.

Called by `run`. Documented in docs/testing.md.
"""

from __future__ import annotations

import random
from typing import Any, Final, Protocol

from duramen.core import reader as rd
from duramen.core.log_node import LogNode
from duramen.core.reading import effects as rx
from duramen.core.replica_order import Place, ReplicaOrder
from duramen.core.segment import Segment
from duramen.core.sequencer.exactly_once.stamps import SnapshotPart, TokenRecord
from duramen.core.status import BookieStatus
from duramen.errors import DuramenError
from duramen.ids import NOTHING, BookieId, Dlsn, EntryId, Epoch, LedgerId, LogId, Member, ledger_of
from duramen.runtime.metadata_store import MetadataError, SessionState
from duramen.units import MS, SECOND
from duramen.wire.bookie_calls import ReadRange, Service
from duramen.wire.entry import EntryError
from duramen.wire.exactly_once.history import read_history
from duramen.wire.metadata_json import read_log, read_segment
from duramen.wire.record_batch import encode_batch
from duramen.wire.sequencer_calls import Appended, AppendedEarly, AppendResult, Redirect
from tests.sim.archive.shelf import ColdShelf
from tests.sim.known_bytes import know_entry, know_records
from tests.sim.metadata import PATHS, Store, StoreSession
from tests.sim.network import Call, Network
from tests.sim.options import Options
from tests.sim.processes import BookieNode
from tests.sim.sequencers import AppendRow, SequencerNode
from tests.sim.world import Node, World

_HOPS_MAX: Final = 4
_DEADLINE_US: Final = 6 * SECOND
_CLIENT_TIMEOUT_US: Final = 8 * SECOND
_METADATA_RETRY_US: Final = 300 * MS


class History(Protocol):
    """What is told of appends and reads."""

    def on_invoke(
        self, now_us: int, client: int, log_id: LogId, append_id: int, bodies: tuple[bytes, ...]
    ) -> None: ...

    def on_acknowledge(  # noqa: PLR0917 - one event of the history
        self, now_us: int, client: int, log_id: LogId, append_id: int, dlsn: Dlsn,
        seq_num: int | None,
    ) -> None: ...  # fmt: skip

    def on_fail(self, now_us: int, client: int, log_id: LogId, append_id: int) -> None: ...

    def on_uncertain(
        self,
        now_us: int,
        client: int,
        log_id: LogId,
        append_id: int,
        *,
        is_under_way: bool = True,
    ) -> None: ...

    def on_read(  # noqa: PLR0917 - one event of the history
        self, now_us: int, reader: int, log_id: LogId, dlsn: Dlsn, seq_num: int, body: bytes
    ) -> None: ...

    def on_control_entry(
        self, log_id: LogId, epoch: Epoch, entry_id: EntryId, token: str | None = None
    ) -> None: ...

    def on_skip(self, reader: int, log_id: LogId, epoch: Epoch, entry_id: EntryId) -> None: ...

    def on_reader_gap(self, reader: int, log_id: LogId) -> None: ...

    def on_reader_lac(self, reader: int, ledger_id: LedgerId, lac: EntryId) -> None: ...

    def on_bookie_lac(
        self, reader: int, member: Member, ledger_id: LedgerId, lac: EntryId
    ) -> None: ...


# --- Clients -------------------------------------------------------------------------------------


class _Open:
    """An append that has no answer yet."""

    __slots__ = ("append_id", "batch", "hops", "log_id", "record_count")

    def __init__(self, append_id: int, log_id: LogId, batch: bytes, record_count: int) -> None:
        self.append_id = append_id
        self.log_id = log_id
        self.batch = batch
        self.record_count = record_count
        self.hops = 0


class ClientNode(Node):
    """One client with its write proxy: appends to every log."""

    def __init__(
        self,
        world: World,
        index: int,
        *,
        options: Options,
        network: Network,
        sequencers: dict[str, SequencerNode],
        history: History,
    ) -> None:
        regions = sorted({region for region, _ in options.places})
        super().__init__(world, f"c{index}", regions[index % len(regions)])
        self.index = index
        self.is_sequential = index == 0
        self.acknowledged_count = 0
        self.is_over = False
        self.open: dict[int, _Open] = {}
        self.slow_factor = 1
        self._options = options
        self._network = network
        self._sequencers = sequencers
        self._names = sorted(sequencers)
        self._history = history
        self._owners: dict[LogId, str] = {}
        self._append_count = 0
        self.begin_life()
        self.after(world.between(0, 200 * MS), self._append)

    def _append(self) -> None:
        """Send the next frame, and plan the one after it."""
        if self.is_over:
            return
        world, options = self.world, self._options
        rng = world.rng
        count = 1 if self.is_sequential else 1 + rng.randrange(2 * options.appends_per_frame - 1)
        if not (self.is_sequential and self.open):
            log_id = LogId(1 + rng.randrange(len(options.logs)))
            self._send([self._make(log_id) for _ in range(count)], self._guess(log_id))
        rate = options.appends_per_s / (options.client_count + 1) / self.slow_factor
        gap_us = int(SECOND * (1 if self.is_sequential else options.appends_per_frame) / rate)
        self.after(world.between(0, 2 * gap_us), self._append)

    def _make(self, log_id: LogId) -> _Open:
        self._append_count += 1
        append_id = self._append_count
        rng = self.world.rng
        name = b"c%d a%d " % (self.index, append_id)
        bodies = tuple(
            name + b"r%d" % number + b"." * rng.randrange(60)
            for number in range(1 + (rng.random() < 0.3))
        )
        append = _Open(
            append_id, log_id, encode_batch(bodies, self.world.now_us // MS), len(bodies)
        )
        self.open[append_id] = append
        self._history.on_invoke(self.world.now_us, self.index, log_id, append_id, bodies)
        self.world.counts["append invoked"] += 1
        return append

    def _guess(self, log_id: LogId) -> str:
        owner = self._owners.get(log_id)
        return self._names[self.world.rng.randrange(len(self._names))] if owner is None else owner

    def _send(self, appends: list[_Open], target: str) -> None:
        rows = [AppendRow(a.append_id, a.log_id, a.batch, _DEADLINE_US) for a in appends]
        waiting = {append.append_id: append for append in appends}
        calls: list[Call] = []

        def on_answer(status: BookieStatus, value: Any) -> None:
            self._on_answer(waiting, target, status, value)
            if not waiting:
                calls[0].is_done = True

        calls.append(
            self._network.call(
                self, self._sequencers[target], "append", rows, _CLIENT_TIMEOUT_US, on_answer,
                is_stream=True,
            )
        )  # fmt: skip

    def _on_answer(
        self, waiting: dict[int, _Open], target: str, status: BookieStatus, value: Any
    ) -> None:
        if status is BookieStatus.OK:
            again: dict[str, list[_Open]] = {}
            for append_id, result in value:
                append = waiting.pop(append_id, None)
                if append is not None:
                    self._on_result(append, target, result, again)
            for name, appends in again.items():
                self._send(appends, name)
            return
        appends = list(waiting.values())
        waiting.clear()
        if status is BookieStatus.UNREACHABLE:
            self._retry(appends, target)
        else:
            for append in appends:
                self._forget_owner(append.log_id, target)
                self._end_uncertain(append, is_under_way=True)

    def _on_result(
        self, append: _Open, target: str, result: AppendResult, again: dict[str, list[_Open]]
    ) -> None:
        now_us = self.world.now_us
        match result:
            case Appended() | AppendedEarly():
                dlsn, seq_num = _place_of(result)
                record_count = result.record_count
                assert record_count == append.record_count
                self._owners[append.log_id] = target
                del self.open[append.append_id]
                self.acknowledged_count += 1
                self.world.counts["append acknowledged"] += 1
                self._history.on_acknowledge(
                    now_us, self.index, append.log_id, append.append_id, dlsn, seq_num
                )
            case Redirect(sequencer_id):
                append.hops += 1
                self.world.counts["append redirected"] += 1
                if append.hops > _HOPS_MAX or sequencer_id not in self._sequencers:
                    self._end_failed(append)
                else:
                    self._owners[append.log_id] = sequencer_id
                    again.setdefault(sequencer_id, []).append(append)
            case DuramenError():
                self._forget_owner(append.log_id, target)
                if result.uncertain:
                    self._end_uncertain(append, is_under_way=False)
                else:
                    self._end_failed(append)

    def _retry(self, appends: list[_Open], target: str) -> None:
        """Nobody was there: nothing was processed, another may be asked."""
        others = [name for name in self._names if name != target]
        again = []
        for append in appends:
            self._forget_owner(append.log_id, target)
            append.hops += 1
            if append.hops > _HOPS_MAX or not others:
                self._end_failed(append)
            else:
                again.append(append)
        if again:
            self.after(20 * MS, self._send, again, self.world.rng.choice(others))

    def _forget_owner(self, log_id: LogId, target: str) -> None:
        if self._owners.get(log_id) == target:
            del self._owners[log_id]

    def _end_failed(self, append: _Open) -> None:
        del self.open[append.append_id]
        self.world.counts["append failed"] += 1
        now_us = self.world.now_us
        self._history.on_fail(now_us, self.index, append.log_id, append.append_id)

    def _end_uncertain(self, append: _Open, *, is_under_way: bool) -> None:
        del self.open[append.append_id]
        self.world.counts["append uncertain"] += 1
        self._history.on_uncertain(
            self.world.now_us, self.index, append.log_id, append.append_id,
            is_under_way=is_under_way,
        )  # fmt: skip


def _place_of(result: Appended | AppendedEarly) -> tuple[Dlsn, int | None]:
    if isinstance(result, AppendedEarly):
        return result.dlsn, None
    return result.start.dlsn, result.start.seq_num


# --- Readers -------------------------------------------------------------------------------------


class ReaderNode(Node):
    """One read proxy with one cursor; `follow` begins at a position.

    Args:
        on_record: told of every record that was delivered: log, dlsn, sequence number, body.
    """

    def __init__(
        self,
        world: World,
        index: int,
        *,
        options: Options,
        network: Network,
        store: Store,
        bookies: dict[str, BookieNode],
        history: History,
        shelf: ColdShelf | None = None,
    ) -> None:
        regions = sorted({region for region, _ in options.places})
        super().__init__(world, f"r{index}", regions[index % len(regions)])
        self.number = index
        self.log_id = LogId(0)
        self.records: list[tuple[Dlsn, int, bytes]] | None = None
        self.tokens: list[tuple[Dlsn, str]] = []
        self.core: rd.Reader
        self._network = network
        self._store = store
        self._bookies = bookies
        self._history = history
        self._session = StoreSession(store, self, _ignore_state, self._on_rosters)
        self._rng = random.Random(world.rng.getrandbits(64))
        self._order = ReplicaOrder(Place(self.region, "k0"), self._rng)
        self._generation = 0
        self._timer_at_us: int | None = None
        self._shelf = shelf
        self._reads: dict[int, Call | None] = {}
        """None: of the cold store."""
        self._watched: dict[LogId, bool] = {}
        self.begin_life()
        self._session.open()

    def follow(
        self, log_id: LogId, position: tuple[Epoch, EntryId], *, is_following: bool = True
    ) -> None:
        """Begin anew."""
        self._generation += 1
        # Each beginning is a client of its own: nobody promised it the LAC of the one before.
        self.number += 1000
        self.log_id = log_id
        self._reads.clear()
        self._timer_at_us = None
        self._on_rosters()
        limits = rd.ReaderLimits(range_bytes=16_000, buffer_bytes=32_000, poll_bytes=8_000)
        self.core = rd.Reader(position, self._order, is_following=is_following, limits=limits)
        if log_id not in self._watched:
            self._watched[log_id] = True
            path = PATHS.log(log_id)
            self._store.watch(log_id, path, self._session, lambda: self._on_watch(log_id))
        self._pump()

    @property
    def is_at_end(self) -> bool:
        """A reader that does not follow has got everything that there is."""
        return self.core.is_at_tail

    def _on_rosters(self) -> None:
        places = {
            BookieId(name): Place(fields["region"], fields["rack"])
            for name, fields in self._store.bookies.items()
        }
        self._order.on_places(places)

    def _on_watch(self, log_id: LogId) -> None:
        if log_id == self.log_id:
            self._read_metadata(self.core.epoch, is_watch=True)

    # --- Effects ---------------------------------------------------------------------------------

    def _pump(self) -> None:
        while effects := self.core.take_effects():
            for effect in effects:
                match effect:
                    case rx.SendRead():
                        self._send(effect)
                    case rx.CancelRead(read_id):
                        self.world.counts["read cancelled"] += 1
                        self._reads.pop(read_id, None)
                    case rx.ReadMetadata(epoch):
                        self._read_metadata(epoch, is_watch=False)
                    case rx.SetTimer(at_us):
                        self._timer_at_us = at_us
                        delay_us = max(0, at_us - self.world.now_us)
                        self.after(delay_us, self._on_timer, self._generation, at_us)
                    case rx.Deliver():
                        self._deliver(effect)
                    case rx.Gap():
                        self.world.counts["gap reported"] += 1
                        self._history.on_reader_gap(self.number, self.log_id)
                    case rx.Skip(epoch, entry_id):
                        self.world.counts["reader skips what is gone"] += 1
                        self._history.on_skip(self.number, self.log_id, epoch, entry_id)
        bound = self.core.bound
        if bound > NOTHING:
            ledger_id = ledger_of(self.log_id, self.core.epoch)
            self._history.on_reader_lac(self.number, ledger_id, bound)

    def _on_timer(self, generation: int, at_us: int) -> None:
        if generation == self._generation and at_us == self._timer_at_us:
            self._timer_at_us = None
            self.core.on_timer(self.world.now_us)
            self._pump()

    def _deliver(self, delivered: rx.Deliver) -> None:
        ledger_id = ledger_of(self.log_id, delivered.epoch)
        if self.core.epoch == delivered.epoch:
            self._history.on_reader_lac(self.number, ledger_id, self.core.bound)
        now_us, size, on_read = self.world.now_us, 0, self._history.on_read
        for entry_id, body in delivered.entries:
            size += len(body)
            if know_entry(body).is_control:
                self._note_control(delivered.epoch, entry_id, body)
            records = know_records(body, delivered.epoch, delivered.start_seq_num)
            self.world.counts["record read"] += len(records)
            if self.records is not None:
                self.records += records
            for dlsn, seq_num, record in records:
                on_read(now_us, self.number, self.log_id, dlsn, seq_num, record)
        delay_us = 0 if self.records is not None else self.world.between(0, 20 * MS)
        self.after(delay_us, self._consume, self._generation, size)

    def _note_control(self, epoch: Epoch, entry_id: EntryId, body: bytes) -> None:
        self.world.counts["control entry read"] += 1
        found = read_history(body, is_header_only=False).control
        token = found.token if isinstance(found, TokenRecord) else None
        self.world.counts["snapshot read"] += isinstance(found, SnapshotPart)
        self._history.on_control_entry(self.log_id, epoch, entry_id, token)
        if token is not None and self.records is not None:
            self.tokens.append((Dlsn(epoch, entry_id, 0), token))

    def _consume(self, generation: int, size: int) -> None:
        if generation == self._generation:
            self.core.on_consumed(size, self.world.now_us)
            self._pump()

    def _send(self, read: rx.SendRead) -> None:
        if read.is_cold:
            self._read_cold(read)
            return
        bookie = self._bookies[read.member.bookie]
        wanted = ReadRange(
            read.ledger_id, read.first, read.last, read.bytes_max,
            wait_ms=read.wait_us // MS, wait_for=read.wait_for, service=Service.TAIL_READ,
        )  # fmt: skip
        generation = self._generation

        def on_answer(status: BookieStatus, value: Any) -> None:
            if generation == self._generation and self._reads.pop(read.read_id, None) is not None:
                self._on_answer(read, status, value)

        body = (read.member.incarnation, [wanted])
        self._reads[read.read_id] = self._network.call(
            self, bookie, "read", body, read.timeout_us, on_answer
        )

    def _read_cold(self, read: rx.SendRead) -> None:
        generation = self._generation

        def on_answer(status: BookieStatus, entries: list[rx.Entry]) -> None:
            if generation != self._generation or read.read_id not in self._reads:
                return
            del self._reads[read.read_id]
            self.core.on_read_answer(
                read.read_id, status=status, lac=NOTHING, highest=NOTHING, is_sealed=False,
                entries=entries, now_us=self.world.now_us,
            )  # fmt: skip
            self._pump()

        self._reads[read.read_id] = None
        stored = self._store.find(PATHS.segment(self.log_id, self.core.epoch))
        segment = None if stored is None else read_segment(stored.data)
        assert self._shelf is not None, "nobody archives in this seed"
        self._shelf.read(segment, read.first, read.bytes_max, on_answer)

    def _on_answer(self, read: rx.SendRead, status: BookieStatus, value: Any) -> None:
        lac = highest = NOTHING
        is_sealed = False
        entries: list[rx.Entry] = []
        if status is BookieStatus.OK:
            status, lac, highest, is_sealed, found = value[0]
            bookie = self._bookies[read.member.bookie]
            is_sound = bookie.member == read.member and not bookie.disk.is_rotten
            if is_sound and status in (BookieStatus.OK, BookieStatus.NO_ENTRY):
                self._history.on_bookie_lac(self.number, read.member, read.ledger_id, lac)
            entries = check_entries(read.ledger_id, found)
            if len(entries) < len(found) and not entries:
                status = BookieStatus.UNKNOWN
        if read.wait_us:
            self.world.counts[f"poll {status.name.lower()}"] += 1
        elif status is not BookieStatus.OK:
            self.world.counts[f"read {status.name.lower()}"] += 1
        self.core.on_read_answer(
            read.read_id, status=status, lac=lac, highest=highest, is_sealed=is_sealed,
            entries=entries, now_us=self.world.now_us,
        )  # fmt: skip
        self._pump()

    # --- Metadata --------------------------------------------------------------------------------

    def _read_metadata(self, epoch: Epoch, *, is_watch: bool) -> None:
        generation = self._generation

        def on_done(found: tuple[LogNode, Segment | None] | None) -> None:
            if generation != self._generation:
                return
            if found is None:
                if not is_watch:
                    self.after(_METADATA_RETRY_US, self._read_again, generation, epoch)
            elif epoch == self.core.epoch:
                self.core.on_metadata(*found, self.world.now_us)
                self._pump()

        self.spawn(self._fetch(self.log_id, epoch), on_done)

    def _read_again(self, generation: int, epoch: Epoch) -> None:
        if generation == self._generation:
            self._read_metadata(epoch, is_watch=False)

    async def _fetch(self, log_id: LogId, epoch: Epoch) -> tuple[LogNode, Segment | None] | None:
        """Log node, then the segment node, unsynced: they may be behind."""
        try:
            stored = await self._session.get(PATHS.log(log_id))
            assert stored is not None
            node = await self._session.get(PATHS.segment(log_id, epoch))
        except MetadataError:
            return None
        return read_log(stored.data), None if node is None else read_segment(node.data)

    def validate(self) -> None:
        pass


def check_entries(ledger_id: LedgerId, found: Any) -> list[rx.Entry]:
    """As the read proxy: entries up to the first that does not verify."""
    entries: list[rx.Entry] = []
    for entry_id, view in found:
        body = bytes(view)
        try:
            info = know_entry(body)
        except EntryError:
            break
        if (info.ledger_id, info.entry_id) != (ledger_id, entry_id):
            break
        entries.append((entry_id, body))
    return entries


def _ignore_state(_: SessionState) -> None:
    """A reader holds nothing that a session keeps."""
