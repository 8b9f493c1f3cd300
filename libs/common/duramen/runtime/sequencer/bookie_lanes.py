"""Lanes to bookies, by incarnation and errand: frames that carry the entries of many logs.

The next frame is what arrived while the previous ones were under way, so frames grow with load and
there is no timer; the logs that wait take turns, so that one with much to send (to a member that
catches up, above all) delays the others by one add each (`store_lane`). Library failures become
statuses here: a core never sees an exception, only UNREACHABLE (not processed) or TIMEOUT (perhaps
processed). Seals, recovery reads, digests and LAC writes are rare and go as calls of their own.

Called by `log_driver`; reports to `Sink`. Source: docs/protocol/write.md "Window and flush", R1.
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from duramen.core.flexible.recovery import Digest
from duramen.core.sequencer.effects import (
    SendAdd,
    SendDigest,
    SendLac,
    SendRecoveryRead,
    SendSeal,
    SendWave,
    StoredEntry,
)
from duramen.core.status import BookieStatus
from duramen.ids import (
    NOTHING,
    BookieId,
    EntryId,
    Epoch,
    Member,
    NodeNumber,
    epoch_of,
    ledger_of,
)
from duramen.limits import (
    ENTRY_BYTES_MAX,
    READ_TIMEOUT_US,
    SEAL_TIMEOUT_US,
    STORE_TIMEOUT_US,
)
from duramen.runtime.http_client import (
    NoAnswerError,
    OverloadedError,
    PeerClient,
    UnreachableError,
)
from duramen.runtime.sequencer.node_watch import NodeWatch
from duramen.runtime.sequencer.store_lane import AddSink, StoreLane, WaitingAdd, status_of
from duramen.units import SECOND
from duramen.wire import bookie_calls as calls
from duramen.wire.entry import EntryError, check_entry, read_entry_info
from duramen.wire.flexible.envelope import Envelope, encode_envelope
from duramen.wire.flexible.filtered_answers import (
    FilteredAnswer,
    parse_filtered_answers,
    verify_filtered,
)
from duramen.wire.flexible.filtered_reads import FilteredRange, pack_filtered_reads
from duramen.wire.frame import FrameError


class Sink(AddSink, Protocol):
    """Who asked: one log's driver. Every method is one event; `flush` ends a batch of them."""

    def on_lac(self, member: Member, epoch: Epoch, status: BookieStatus, round_id: int) -> None:
        """A LAC write was answered."""

    def on_seal(self, member: Member, epoch: Epoch, marks: calls.Marks) -> None:
        """A seal was answered."""

    def on_read(
        self,
        member: Member,
        epoch: Epoch,
        entry: EntryId,
        status: BookieStatus,
        stored: StoredEntry | None,
    ) -> None:
        """A recovery read was answered."""

    def on_digest(
        self, member: Member, epoch: Epoch, status: BookieStatus, digest: Digest | None
    ) -> None:
        """A node told what it has, or did not answer."""


class _Errand(enum.Enum):
    """What a lane carries: each has its own, so that none waits behind another's trouble."""

    APPEND = "append"
    RECOVERY = "recovery"
    """A bookie that is full of appends must not hold it up."""
    WAVE = "wave"
    """Appends of flexible logs, which have other bookies."""


class BookieLanes:
    """All lanes of a process that owns logs.

    Args:
        client: shared by all lanes.
        find_url: where a bookie was last seen, or None.
        watch: told what stores meet.
    """

    def __init__(
        self, client: PeerClient, find_url: Callable[[BookieId], str | None], watch: NodeWatch
    ) -> None:
        self.watch = watch
        self._client = client
        self._find_url = find_url
        self._lanes: dict[tuple[Member, _Errand], StoreLane] = {}
        self._last_envelope: tuple[object, bytes] = (None, b"")
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopped = False
        self._overloaded_count = 0

    def add(self, effect: SendAdd | SendWave, sink: Sink) -> None:
        """Queue an entry for its bookie."""
        is_wave = isinstance(effect, SendWave)
        if effect.is_recovery:
            errand, service = _Errand.RECOVERY, calls.ServiceClass.RECOVERY
        else:
            errand = _Errand.WAVE if is_wave else _Errand.APPEND
            service = calls.ServiceClass.APPEND
        lane = self._lanes.get((effect.member, errand))
        if lane is None:
            lane = StoreLane(effect.member, self, is_patient=errand is not _Errand.WAVE)
            self._lanes[effect.member, errand] = lane
        add = calls.Add(
            effect.ledger_id,
            effect.entry,
            effect.lac,
            effect.payload,
            effect.is_recovery,
            service,
            envelope=self._seal_up(effect) if isinstance(effect, SendWave) else b"",
        )
        lane.push(WaitingAdd(add, sink, _read_clock_us()))

    def _seal_up(self, wave: SendWave) -> bytes:
        """The envelope of an entry, which is the same for all nodes of a wave."""
        key = (wave.ledger_id, wave.entry, wave.copyset, wave.block)
        if key != self._last_envelope[0]:
            envelope = Envelope(wave.copyset, wave.block)
            identity = read_entry_info(wave.payload).crc
            sealed = encode_envelope(envelope, wave.ledger_id, wave.entry, identity)
            self._last_envelope = key, sealed
        return self._last_envelope[1]

    def seal(self, effect: SendSeal, sink: Sink) -> None:
        """Seal, and report the marks."""
        self.spawn(self._seal(effect, sink))

    def read(self, effect: SendRecoveryRead, sink: Sink) -> None:
        """Read an entry for recovery, sealing on the way."""
        self.spawn(self._read(effect, sink))

    def ask_digest(self, effect: SendDigest, sink: Sink) -> None:
        """Ask what a node of a flexible segment has, sealing on the way."""
        self.spawn(self._ask_digest(effect, sink))

    def send_lac(self, effect: SendLac, sink: Sink) -> None:
        """Write a LAC."""
        self.spawn(self._send_lac(effect, sink))

    def statistics(self) -> dict[str, Any]:
        """What waits and is under way per bookie and class, and calls that met an overload."""
        return {
            "calls_overloaded": self._overloaded_count,
            **self.watch.statistics(),
            "by_bookie": {
                f"{member.bookie} {errand.value}": lane.statistics()
                for (member, errand), lane in self._lanes.items()
            },
        }

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a call beside the loop, kept until it ends; nothing after `stop`."""
        if self._is_stopped:
            work.close()
            return
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """End what is under way: nobody is told of it, and nothing begins any more."""
        self._is_stopped = True
        self.watch.stop()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def post(self, member: Member, path: str, body: bytes, timeout_us: int) -> bytes:
        """One call to a bookie; raises as PeerClient.call, also if its address is not known."""
        url = self._find_url(member.bookie)
        if url is None:
            raise UnreachableError(f"{member.bookie} has never been seen")
        return await self._client.call(url + path, body, timeout_us)

    async def insist(self, member: Member, path: str, body: bytes, timeout_us: int) -> bytes:
        """As `post`, but asks an overloaded bookie again, when it says and while there is time."""
        deadline_us = _read_clock_us() + timeout_us
        while True:
            try:
                return await self.post(member, path, body, deadline_us - _read_clock_us())
            except OverloadedError as error:
                self._overloaded_count += 1
                if _read_clock_us() + error.retry_after_us >= deadline_us:
                    raise
                await asyncio.sleep(error.retry_after_us / SECOND)

    async def _seal(self, effect: SendSeal, sink: Sink) -> None:
        ledger_id = ledger_of(effect.log_id, effect.epoch)
        body = calls.pack_seals(
            effect.member.incarnation, [calls.Seal(effect.log_id, effect.epoch, ledger_id)]
        )
        try:
            answer = await self.insist(effect.member, "/b/seal", body, SEAL_TIMEOUT_US)
            (marks,) = calls.parse_marks(answer, b"DSLR")
        except (UnreachableError, NoAnswerError, FrameError, ValueError) as error:
            marks = calls.Marks(status_of(error), NOTHING, NOTHING)
        sink.on_seal(effect.member, effect.epoch, marks)
        sink.flush()

    async def _send_lac(self, effect: SendLac, sink: Sink) -> None:
        # A read proves no round: a member that is sealed answers it.
        is_write = effect.lac > NOTHING or effect.round_id > 0
        update = calls.LacUpdate(effect.ledger_id, effect.lac, is_write=is_write)
        body = calls.pack_lacs(effect.member.incarnation, [update])
        try:
            answer = await self.insist(effect.member, "/b/lac", body, STORE_TIMEOUT_US)
            (marks,) = calls.parse_marks(answer, b"DLCR")
            status = marks.status
        except (UnreachableError, NoAnswerError, FrameError, ValueError) as error:
            status = status_of(error)
        sink.on_lac(effect.member, epoch_of(effect.ledger_id), status, effect.round_id)
        sink.flush()

    async def _read(self, effect: SendRecoveryRead, sink: Sink) -> None:
        epoch = epoch_of(effect.ledger_id)
        wanted = calls.ReadRange(
            effect.ledger_id,
            effect.entry,
            effect.entry,
            ENTRY_BYTES_MAX,
            seal_epoch=epoch,
            service=calls.ServiceClass.RECOVERY,
        )
        stored = None
        try:
            if effect.is_flexible:
                status, payload, copyset = await self._read_flexible(effect.member, wanted)
            else:
                status, payload = await self._read_striped(effect.member, wanted)
                copyset = ()
            if status is BookieStatus.OK:
                info = check_entry(payload)
                if (info.entry_id, info.ledger_id) != (effect.entry, effect.ledger_id):
                    raise EntryError("another entry was returned")
                stored = StoredEntry(
                    payload, info.totals, info.has_state, record_count=info.record_count,
                    identity=info.crc, copyset=copyset,
                )  # fmt: skip
        except (UnreachableError, NoAnswerError) as error:
            status = status_of(error)
        except (FrameError, EntryError, ValueError):
            status = BookieStatus.UNKNOWN
        sink.on_read(effect.member, epoch, effect.entry, status, stored)
        sink.flush()

    async def _read_striped(
        self, member: Member, wanted: calls.ReadRange
    ) -> tuple[BookieStatus, bytes]:
        body = calls.pack_reads(member.incarnation, [wanted])
        answer = await self.post(member, "/b/read", body, READ_TIMEOUT_US)
        (found,) = calls.parse_read_answers(answer)
        if found.status is not BookieStatus.OK:
            return found.status, b""
        ((entry, view),) = found.entries
        if entry != wanted.first:
            raise EntryError("another entry was returned")
        return found.status, bytes(view)

    async def _read_flexible(
        self, member: Member, wanted: calls.ReadRange
    ) -> tuple[BookieStatus, bytes, tuple[NodeNumber, ...]]:
        """As version 1 would have it, with who is named in the envelope."""
        found = await self._ask_filtered(member, FilteredRange(wanted, with_envelopes=True))
        if found.status is not BookieStatus.OK:
            return found.status, b"", ()
        if not found.entries:
            if found.next <= wanted.first:
                raise FrameError("a read told of nothing")
            is_doubted = bool(found.unvouched)
            return (BookieStatus.UNKNOWN if is_doubted else BookieStatus.NO_ENTRY), b"", ()
        ((_, body),) = found.entries
        return found.status, bytes(body), found.runs[0].envelope.copyset if found.runs else ()

    async def _ask_digest(self, effect: SendDigest, sink: Sink) -> None:
        epoch = epoch_of(effect.ledger_id)
        entries: dict[EntryId, int] = {}
        unvouched: set[EntryId] = set()
        first, digest = effect.first, None
        status = BookieStatus.OK
        try:
            while first <= effect.last and status is BookieStatus.OK:
                wanted = calls.ReadRange(
                    effect.ledger_id, first, effect.last, ENTRY_BYTES_MAX, seal_epoch=epoch,
                    service=calls.ServiceClass.RECOVERY,
                )  # fmt: skip
                found = await self._ask_filtered(
                    effect.member, FilteredRange(wanted, is_digest=True)
                )
                status = found.status
                if status is BookieStatus.OK and found.next <= first:
                    raise FrameError("a digest told of nothing")
                entries.update(found.digests or ())
                unvouched.update(EntryId(e) for a, b in found.unvouched for e in range(a, b + 1))
                first = EntryId(found.next)
        except (UnreachableError, NoAnswerError) as error:
            status = status_of(error)
        except (FrameError, ValueError):
            status = BookieStatus.UNKNOWN
        if status is BookieStatus.OK:
            digest = Digest(entries, frozenset(unvouched))
        sink.on_digest(effect.member, epoch, status, digest)
        sink.flush()

    async def _ask_filtered(self, member: Member, asked: FilteredRange) -> FilteredAnswer:
        """One range of a flexible segment; raises as `post`, and FrameError."""
        body = pack_filtered_reads(member.incarnation, [asked])
        answer = await self.post(member, "/b/read", body, READ_TIMEOUT_US)
        (found,) = parse_filtered_answers(answer)
        return verify_filtered(found, asked)


def _read_clock_us() -> int:
    return time.monotonic_ns() // 1_000
