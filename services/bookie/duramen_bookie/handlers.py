"""The bookie's data plane: frames in, frames out, the core in between.

One request is one event for the core, one unit for the journal and one future: nothing here is done
per row but checking and encoding it. The outbox is drained after every event. Bytes that are no
frame are refused (400) and touch nothing; what finds its class of service full is refused with
advice when to ask again (`admission`): rows of adds and of reads as OVERLOADED, requests as 503.

    POST /b/add  /b/read  /b/seal  /b/lac      frames of `wire.bookie_calls`, reads of version 2 of
                                               `wire.flexible`, their answers of `reads`
    POST /b/inventory  /b/pull                 frames of `wire.repair_calls`, served by `repair`

Short tail reads are made on the event loop, all others in the threads of their class.
Called by the data server. Source: docs/protocol/wire.md "what an answer's status allows one to
conclude".
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, assert_never

from duramen.core.bookie import BookieCore
from duramen.core.bookie.bookie_state import (
    CheckSegment,
    Effect,
    MarksAnswer,
    Persist,
    ReadEntries,
    ReadRanges,
    ReplyMarks,
    ReplyStatuses,
    RequestId,
    StartTimer,
)
from duramen.core.status import BookieStatus
from duramen.errors import DuramenError
from duramen.ids import Epoch, Incarnation, LedgerId, LogId, is_log_id, log_of
from duramen.limits import SEAL_PROOF_TIMEOUT_US
from duramen.runtime.edge.gated import encode_refusal
from duramen.runtime.http_server import Answer, refuse_overloaded
from duramen.runtime.identity.names import Identity
from duramen.runtime.security.permitted_roles import LAC_WRITERS
from duramen.runtime.stores.metadata_store import MetadataError
from duramen.units import SECOND
from duramen.wire.bookie_calls import (
    Add,
    Marks,
    ReadRange,
    Seal,
    ServiceClass,
    pack_marks,
    pack_read_answers,
    pack_statuses,
    parse_any_adds,
    parse_lacs,
    parse_reads,
    parse_seals,
)
from duramen.wire.disk.journal_format import record_bytes
from duramen.wire.flexible.filtered_answers import pack_filtered_answers
from duramen.wire.flexible.filtered_reads import (
    READ_VERSION_FILTERED,
    FilteredRange,
    parse_filtered_reads,
)
from duramen.wire.frame import FrameError, frame_version
from duramen_bookie.admission import (
    CLASS_LIMITS,
    AdmissionControl,
    ClassLimits,
    OverloadError,
    Permit,
    check_add,
    class_of_add,
    class_of_reads,
)
from duramen_bookie.journal.writer import JournalPoisoned
from duramen_bookie.metrics import (
    APPEND_WAIT_SECONDS,
    CLASS_REFUSALS,
    READ_WAIT_SECONDS,
    show_classes,
    show_polls,
)
from duramen_bookie.reads.range_reads import RangeJob
from duramen_bookie.reads.read_jobs import PlainJob, ReadJob, ReadOutcome
from duramen_bookie.upkeep.formats import FirstEnvelope

if TYPE_CHECKING:
    from duramen_bookie.storage import Storage

_FRAME: Final = "application/octet-stream"
_TEXT: Final = "text/plain; charset=utf-8"
_LAC_PATH: Final = "/b/lac"
_PROOFS_RUNNING_MAX: Final = 64
"""Logs whose nodes may be read for seals at once."""


class StoppingError(Exception):
    """The bookie stops: the request's fate is open, its records may or may not become durable."""


class _Pending:
    """A request that the core has not answered yet, and what it holds meanwhile."""

    __slots__ = (
        "filtered", "future", "is_append", "is_early", "permit", "request", "since_us", "timer",
    )  # fmt: skip

    def __init__(self, request: RequestId, permit: Permit | None) -> None:
        self.request = request
        self.permit = permit
        self.filtered: Sequence[FilteredRange] = ()
        """What is asked of flexible segments."""
        self.since_us = _read_clock_us()
        self.is_append = False
        """Whether entries of a client wait for the journal."""
        self.is_early = False
        """Whether it has envelopes, and not all cookies say that there may be some."""
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.timer: asyncio.TimerHandle | None = None


class _WaitingRead(NamedTuple):
    """A read that waits for a thread of its class."""

    request: RequestId
    job: ReadJob


def _ignore_damage(_ledger_id: LedgerId) -> None:
    """No repair is attached: a report of damage goes nowhere."""


def _raise(error: Exception) -> None:
    raise error


def _ignore_wait(_waited_us: int) -> None:
    """No repair is attached that would yield to a client's wait."""


async def _pass_at_once(_size_bytes: int) -> None:
    """No pace is attached: an answer to a pull's read leaves at once."""


async def _show_nothing(_log_id: LogId) -> Epoch | None:
    """Nobody can be asked what metadata says of a log."""
    return None


class DataPlane:
    """Carries requests to the core and its effects out.

    Args:
        core: of this incarnation, already replayed.
        storage: journal and index, started; tells `drain` when something became durable.
        check_segment: read a segment node for the core (R10), report to `on_segment_checked`.
        read_next_epoch: the first epoch of a log that does not exist yet, by its node after a sync;
            None: the log has none, so that nothing is shown. Raises MetadataError.
        limits: what each class of service may hold.
        on_damage: a read met an entry of this ledger that is damaged.
        on_broken: core or storage raised what no request may make them raise.
    """

    def __init__(
        self,
        core: BookieCore,
        storage: Storage,
        check_segment: Callable[[LedgerId], None],
        *,
        read_next_epoch: Callable[[LogId], Awaitable[Epoch | None]] = _show_nothing,
        limits: Mapping[ServiceClass, ClassLimits] = CLASS_LIMITS,
        on_damage: Callable[[LedgerId], None] = _ignore_damage,
        on_broken: Callable[[Exception], None] = _raise,
    ) -> None:
        self.on_damage = on_damage
        self._on_broken = on_broken
        self._core = core
        self._storage = storage
        self._check_segment = check_segment
        self._read_next_epoch = read_next_epoch
        self._proof_count = 0
        self._proofs_running = 0
        self._admission: AdmissionControl[_WaitingRead] = AdmissionControl(limits)
        self._readers = ThreadPoolExecutor(self._admission.thread_count, "reader")
        self._numbers = itertools.count(1)
        self._pending: dict[RequestId, _Pending] = {}
        self._stopped: str | None = None
        self._first_envelope = FirstEnvelope(storage.secure_format)
        self._calls: dict[str, Callable[[bytes, str], Awaitable[bytes]]] = {
            "/b/add": self._begin_add,
            "/b/read": self._begin_read,
            "/b/seal": self._begin_seal,
            _LAC_PATH: self._begin_lac,
        }
        self._on_client_waited: Callable[[int], None] = _ignore_wait
        self._hold_back: Callable[[int], Awaitable[None]] = _pass_at_once
        self._request_counts = dict.fromkeys(self._calls, 0)
        self._refused_count = 0
        show_classes(self._admission.statistics)
        show_polls(lambda: int(self._core.statistics()["waiters"]))

    def serve(self, path: str, call: Callable[[bytes, str], Awaitable[bytes]]) -> None:
        """Answer one more call: its body and its client in, a frame out; errors as those here."""
        self._calls[path] = call
        self._request_counts[path] = 0

    def watch(
        self, on_client_waited: Callable[[int], None], hold_back: Callable[[int], Awaitable[None]]
    ) -> None:
        """Have repair yield to clients.

        Args:
            on_client_waited: told how many microseconds a client's adds took to become durable.
            hold_back: passes when so many bytes may be answered to a read of class `REPAIR`.
        """
        self._on_client_waited = on_client_waited
        self._hold_back = hold_back

    def refuse(self, service: ServiceClass, obstacle: str) -> OverloadError:
        """The error for a request of a class that meets an obstacle; counted."""
        return self._admission.refuse(service, obstacle)

    async def store_copies(self, adds: Sequence[Add], peer: str) -> list[BookieStatus]:
        """Add what repair fetched as anybody's adds of its class are; answered when durable.

        Args:
            adds: with recovery flag, of the class `REPAIR`.

        Raises:
            StoppingError: as a client's request would be told.
        """
        if self._stopped is not None:
            raise StoppingError(self._stopped)
        pending = self._begin_adds_of(ServiceClass.REPAIR, self._core.incarnation, adds, peer)
        statuses: list[BookieStatus] = await self._wait(pending, list)
        return statuses

    async def handle(
        self, path: str, body: bytes, peer: str, caller: Identity | None = None
    ) -> Answer:
        """Answer one POST of a client, which is known by its address and port.

        Args:
            caller: who it is, of a role that may call the path; None: nobody is asked.
        """
        call = self._calls.get(path)
        if call is None:
            return 404, _TEXT, b"no such call"
        if self._stopped is not None:
            return 503, _TEXT, self._stopped.encode()
        self._request_counts[path] += 1
        try:
            if path == _LAC_PATH and _writes_lac_unpermitted(body, caller):
                return encode_refusal(DuramenError("forbidden", "this role may not write a LAC"))
            answering = call(body, peer)
            del body  # the journal has what is worth keeping; a long poll keeps nothing
            return 200, _FRAME, await answering
        except FrameError as error:
            self._refused_count += 1
            return 400, _TEXT, str(error).encode()
        except OverloadError as error:
            _count_refusal(error.service)
            return refuse_overloaded(str(error), error.retry_after_ms)
        except StoppingError as error:
            return 503, _TEXT, str(error).encode()
        except Exception as error:
            # What the core did in part nobody knows: nothing more is said by it (fail-stop).
            self._on_broken(error)
            return 503, _TEXT, b"the bookie stops: a broken invariant"

    def ask_if_newer(self, ledger_id: LedgerId) -> None:
        """A ledger was asked about outside of the core: have its doubt settled, if it has one."""
        self._core.ask_if_newer(ledger_id)
        self.drain()

    def on_segment_checked(self, ledger_id: LedgerId, *, is_open: bool, made: int = 0) -> None:
        """A segment node was read for the core."""
        self._core.on_segment_checked(ledger_id, is_open=is_open, made=made)
        self.drain()

    def stop(self, sentence: str) -> None:
        """Refuse everything from now on, and end what waits; its fate is open."""
        self._stopped = self._stopped or sentence
        for pending in list(self._pending.values()):
            if not pending.future.done():
                pending.future.set_exception(StoppingError(self._stopped))
            if pending.timer is not None:
                pending.timer.cancel()

    async def close(self) -> None:
        """After `stop`: wait until no thread reads any more."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._readers.shutdown)
        await self._first_envelope.close()

    def drain(self) -> None:
        """Carry out what the core has left in its outbox."""
        self._drain((), ())

    def statistics(self) -> dict[str, Any]:
        """Requests by call, what waits, and the classes of service."""
        return {
            "requests": dict(self._request_counts),
            "requests_waiting": len(self._pending),
            "frames_refused": self._refused_count,
            "seal_proofs": self._proof_count,
            "seal_proofs_running": self._proofs_running,
            "seal_proofs_running_max": _PROOFS_RUNNING_MAX,
            "classes": self._admission.statistics(),
        }

    # --- Calls -----------------------------------------------------------------------------------
    # Each `_begin_…` takes a body to the core at once and gives what is to be waited for.

    def _begin_add(self, body: bytes, peer: str) -> Awaitable[bytes]:
        incarnation, adds = parse_any_adds(body)
        rows_of: dict[tuple[ServiceClass, bool], list[int]] = {}
        for row, add in enumerate(adds):
            is_early = bool(add.envelope) and not self._storage.keeps_envelopes
            rows_of.setdefault((class_of_add(add), is_early), []).append(row)
        parts = [
            (rows, self._begin_adds_of(service, incarnation, [adds[row] for row in rows], peer))
            for (service, _), rows in rows_of.items()
        ]
        return self._finish_adds(len(adds), parts)

    def _begin_adds_of(
        self, service: ServiceClass, incarnation: Incarnation, adds: Sequence[Add], peer: str
    ) -> _Pending:
        """The rows of one class. Without room for them the core still says what it knows."""
        size = sum([record_bytes(len(add.entry) + len(add.envelope)) for add in adds])
        is_early = not self._storage.keeps_envelopes and any(add.envelope for add in adds)
        permit = None if is_early else self._take_for_adds(service, peer, size)
        if permit is not None:
            entries = [bytes(add.entry) for add in adds]
            rows = list(map(check_add, adds, entries))
        else:
            entries = []
            rows = [check_add(add, bytes(add.entry)) for add in adds]
        pending = self._open_request(permit)
        pending.is_early = is_early
        pending.is_append = service is ServiceClass.APPEND and permit is not None
        self._core.on_adds(pending.request, incarnation, rows, has_room=permit is not None)
        self._drain(adds, entries)
        return pending

    def _take_for_adds(self, service: ServiceClass, peer: str, size_bytes: int) -> Permit | None:
        """Room in the class and in the journal, or None."""
        is_urgent = service is ServiceClass.RECOVERY
        try:
            if not self._storage.has_room(size_bytes, is_urgent=is_urgent):
                raise self._admission.refuse(service, "the journal has no room")
            return self._admission.take(service, peer, add_bytes=size_bytes)
        except OverloadError:
            _count_refusal(service)
            return None

    async def _finish_adds(self, count: int, parts: Sequence[tuple[list[int], _Pending]]) -> bytes:
        if len(parts) == 1:
            packed: bytes = await self._wait(parts[0][1], pack_statuses)
            return packed
        statuses = [BookieStatus.INVALID] * count
        answers = await asyncio.gather(*[self._wait(pending, list) for _, pending in parts])
        for (rows, _), answer in zip(parts, answers, strict=True):
            for row, status in zip(rows, answer, strict=True):
                statuses[row] = status
        return pack_statuses(statuses)

    def _begin_read(self, body: bytes, peer: str) -> Awaitable[bytes]:
        if frame_version(body) == READ_VERSION_FILTERED:
            incarnation, filtered = parse_filtered_reads(body)
            reads = [one.wanted for one in filtered]
            begin = partial(self._begin_reads, incarnation, reads, peer, filtered)
        else:
            incarnation, reads = parse_reads(body)
            begin = partial(self._begin_reads, incarnation, reads, peer, None)
        seals = [(log_of(r.ledger_id), r.seal_epoch) for r in reads if r.seal_epoch > 0]
        return self._begin_proved(class_of_reads(reads), incarnation, seals, begin)

    def _begin_reads(
        self,
        incarnation: Incarnation,
        reads: Sequence[ReadRange],
        peer: str,
        filtered: Sequence[FilteredRange] | None,
    ) -> Awaitable[bytes]:
        service = class_of_reads(reads)
        self._require_room(service, sum([read.seal_epoch > 0 for read in reads]), is_urgent=True)
        is_poll = len(reads) == 1 and reads[0].wait_ms > 0
        permit = (
            self._admission.take_poll(service) if is_poll else self._admission.take(service, peer)
        )
        pending = self._open_request(permit)
        if filtered is None:
            self._core.on_reads(pending.request, incarnation, reads)
        else:
            pending.filtered = filtered
            self._core.on_filtered_reads(pending.request, incarnation, filtered)
        self.drain()
        pack = pack_read_answers if filtered is None else pack_filtered_answers
        if service is ServiceClass.REPAIR:
            return self._wait_held_back(pending, pack)
        return self._wait(pending, pack)

    def _begin_seal(self, body: bytes, peer: str) -> Awaitable[bytes]:
        incarnation, seals = parse_seals(body)
        named = [(seal.log_id, seal.epoch) for seal in seals]
        begin = partial(self._begin_seals, incarnation, seals, peer)
        return self._begin_proved(ServiceClass.RECOVERY, incarnation, named, begin)

    def _begin_seals(
        self, incarnation: Incarnation, seals: Sequence[Seal], peer: str
    ) -> Awaitable[bytes]:
        self._require_room(ServiceClass.RECOVERY, len(seals), is_urgent=True)
        pending = self._open_request(self._admission.take(ServiceClass.RECOVERY, peer))
        self._core.on_seals(pending.request, incarnation, seals)
        self.drain()
        return self._wait(pending, partial(_pack_marks, b"DSLR"))

    def _begin_lac(self, body: bytes, peer: str) -> Awaitable[bytes]:
        incarnation, updates = parse_lacs(body)
        write_count = sum([update.is_write for update in updates])
        service = ServiceClass.APPEND if write_count else ServiceClass.TAIL_READ
        self._require_room(service, write_count, is_urgent=False)
        size = write_count * record_bytes(0)
        pending = self._open_request(self._admission.take(service, peer, add_bytes=size))
        self._core.on_lacs(pending.request, incarnation, updates)
        self.drain()
        return self._wait(pending, partial(_pack_marks, b"DLCR"))

    def _begin_proved(
        self,
        service: ServiceClass,
        incarnation: Incarnation,
        seals: Sequence[tuple[LogId, int]],
        begin: Callable[[], Awaitable[bytes]],
    ) -> Awaitable[bytes]:
        """Begin at once, or when metadata was asked about the logs whose seals need a proof."""
        unproved = {
            log_id: None
            for log_id, epoch in seals
            if is_log_id(log_id) and self._core.needs_proof(log_id, epoch)
        }
        if not unproved or incarnation != self._core.incarnation:
            return begin()
        return self._begin_after_proofs(service, list(unproved), begin)

    async def _begin_after_proofs(
        self,
        service: ServiceClass,
        unproved: Sequence[LogId],
        begin: Callable[[], Awaitable[bytes]],
    ) -> bytes:
        """What metadata does not show the core refuses; where it does not answer, nothing is done.

        Raises:
            OverloadError: ask again.
        """
        if self._proofs_running + len(unproved) > _PROOFS_RUNNING_MAX:
            raise self._admission.refuse(service, "many seals wait for the metadata store")
        self._proofs_running += len(unproved)
        try:
            async with asyncio.timeout(SEAL_PROOF_TIMEOUT_US / SECOND):
                for log_id in unproved:
                    next_epoch = await self._read_next_epoch(log_id)
                    self._proof_count += 1
                    if next_epoch is not None:
                        self._core.on_epochs_shown(log_id, next_epoch)
        except (MetadataError, TimeoutError):
            raise self._admission.refuse(
                service, "metadata_unavailable: a seal far above what is known here needs a proof"
            ) from None
        finally:
            self._proofs_running -= len(unproved)
        if self._stopped is not None:
            raise StoppingError(self._stopped)
        return await begin()

    def _require_room(self, service: ServiceClass, record_count: int, *, is_urgent: bool) -> None:
        """Raises OverloadError before the core sees what the journal could not take."""
        size = record_count * record_bytes(0)
        if size and not self._storage.has_room(size, is_urgent=is_urgent):
            raise self._admission.refuse(service, "the journal has no room")

    def _open_request(self, permit: Permit | None) -> _Pending:
        pending = _Pending(RequestId(next(self._numbers)), permit)
        self._pending[pending.request] = pending
        return pending

    async def _wait(self, pending: _Pending, pack: Callable[[Any], Any]) -> Any:
        """The core's answer, packed while the request still holds its room."""
        try:
            return pack(await pending.future)
        finally:
            self._end_request(pending)

    async def _wait_held_back(self, pending: _Pending, pack: Callable[[Any], bytes]) -> bytes:
        """As `_wait`, of a read of repair; its room stays taken until repair may go on."""
        try:
            answer = pack(await pending.future)
            await self._hold_back(len(answer))
            return answer
        finally:
            self._end_request(pending)

    def _end_request(self, pending: _Pending) -> None:
        del self._pending[pending.request]
        if pending.timer is not None:
            pending.timer.cancel()
            self._core.on_abandoned(pending.request)  # nothing, unless it was not answered
        if pending.permit is not None:
            self._admission.release(pending.permit)
            if pending.permit.answer_bytes:
                self._begin_ready_reads()

    # --- Effects ---------------------------------------------------------------------------------

    def _drain(self, adds: Sequence[Add], entries: Sequence[bytes]) -> None:
        """`adds` and `entries`: of the request that was just given to the core, if it is an add."""
        while self._core.outbox:
            effects, self._core.outbox = self._core.outbox, []
            for effect in effects:
                self._carry_out(effect, adds, entries)

    def _carry_out(self, effect: Effect, adds: Sequence[Add], entries: Sequence[bytes]) -> None:
        match effect:
            case Persist():
                self._persist(effect, adds, entries)
            case ReplyStatuses(request=request, statuses=statuses):
                self._reply_statuses(request, statuses)
            case ReplyMarks(request=request, marks=marks):
                self._reply(request, marks)
            case ReadEntries():
                self._read_entries(effect)
            case ReadRanges():
                self._read_ranges(effect)
            case StartTimer(request=request, wait_ms=wait_ms):
                loop = asyncio.get_running_loop()
                pending = self._pending.get(request)
                if pending is None:
                    self._core.on_abandoned(request)
                else:
                    pending.timer = loop.call_later(wait_ms / 1e3, self._on_timer, request)
            case CheckSegment(ledger_id=ledger_id):
                self._check_segment(ledger_id)
            case _:
                assert_never(effect)

    def _persist(self, persist: Persist, adds: Sequence[Add], entries: Sequence[bytes]) -> None:
        try:
            is_queued = self._storage.append_nowait(persist, adds, entries)
        except JournalPoisoned as error:
            self.stop(f"the journal has failed: {error}")
            return
        if not is_queued:
            self.stop("the bookie is stopping")

    def _reply_statuses(self, request: RequestId, statuses: Sequence[BookieStatus]) -> None:
        pending = self._pending.get(request)
        if pending is not None and pending.is_early and BookieStatus.OVERLOADED in statuses:
            self._first_envelope.begin()
        self._reply(request, statuses)

    def _reply(self, request: RequestId, answer: object) -> None:
        pending = self._pending.get(request)
        if pending is not None and not pending.future.done():
            pending.future.set_result(answer)
            if pending.is_append:
                waited_us = _read_clock_us() - pending.since_us
                APPEND_WAIT_SECONDS.observe(waited_us / 1e6)
                self._on_client_waited(waited_us)

    # --- Reads -----------------------------------------------------------------------------------

    def _read_entries(self, effect: ReadEntries) -> None:
        pending = self._find_reader(effect.request)
        if pending is not None:
            self._begin_job(pending, PlainJob(self._storage, effect.plans))

    def _read_ranges(self, effect: ReadRanges) -> None:
        pending = self._find_reader(effect.request)
        if pending is not None:
            self._begin_job(pending, RangeJob(self._storage, effect.plans, pending.filtered))

    def _find_reader(self, request: RequestId) -> _Pending | None:
        """Who waits for a read; None: it was given up, or the bookie stops."""
        pending = self._pending.get(request)
        return None if pending is None or pending.future.done() else pending

    def _begin_job(self, pending: _Pending, job: ReadJob) -> None:
        """Read at once what is short and recent or nothing; the rest waits for its class."""
        permit = pending.permit
        assert permit is not None, "every read was admitted"
        is_tail_read = job.is_short and permit.service is ServiceClass.TAIL_READ
        is_inline = is_tail_read or job.is_empty
        waiting = _WaitingRead(pending.request, job)
        try:
            if is_inline:
                self._admission.hold_answer(permit, job.answer_bytes)
            else:
                self._admission.queue_read(
                    permit,
                    waiting,
                    queue_bytes=job.queue_bytes,
                    answer_bytes=job.answer_bytes,
                    now_us=_read_clock_us(),
                )
        except OverloadError as error:
            self._refuse_read(error.service, waiting)
            return
        if is_inline:
            self._on_read(pending.request, job.read())
        else:
            self._begin_ready_reads()

    def _begin_ready_reads(self) -> None:
        """Give every class's free threads to the reads that wait for them."""
        if self._stopped is not None:
            return
        loop = asyncio.get_running_loop()
        for permit, waiting, waited_us, is_late in self._admission.take_ready(_read_clock_us()):
            READ_WAIT_SECONDS.labels(permit.service.name.lower()).observe(waited_us / 1e6)
            if is_late:
                self._refuse_read(permit.service, waiting)
                continue
            reading = loop.run_in_executor(self._readers, waiting.job.read)
            reading.add_done_callback(partial(self._on_read_done, waiting.request, permit))

    def _on_read_done(
        self, request: RequestId, permit: Permit, reading: asyncio.Future[ReadOutcome]
    ) -> None:
        if reading.cancelled():
            return  # the event loop ends
        error = reading.exception()
        if error is None:
            result = reading.result()
            self._admission.on_read_done(permit, _count_bytes(result))
            self._on_read(request, result)
        else:
            self._admission.on_read_done(permit, 0)
            pending = self._pending.get(request)
            if pending is not None and not pending.future.done():
                pending.future.set_exception(error)
        self._begin_ready_reads()

    def _on_read(self, request: RequestId, result: ReadOutcome) -> None:
        for ledger_id, entry_id in result.unreadable:
            self._core.on_unreadable(ledger_id, entry_id)
            self.on_damage(ledger_id)
        self._reply(request, result.answers)

    def _refuse_read(self, service: ServiceClass, waiting: _WaitingRead) -> None:
        """OVERLOADED instead of entries; what the core knows of the ledgers is told."""
        _count_refusal(service)
        self._reply(waiting.request, waiting.job.refuse())

    def _on_timer(self, request: RequestId) -> None:
        self._core.on_wait_over(request)
        self.drain()


def _count_bytes(result: ReadOutcome) -> int:
    return sum([len(entry) for answer in result.answers for _, entry in answer.entries])


def _writes_lac_unpermitted(body: bytes, caller: Identity | None) -> bool:
    """Whether a reader says what is acknowledged: it would show what a recovery may leave out."""
    if caller is None or caller.role in LAC_WRITERS:
        return False
    return any(update.is_write for update in parse_lacs(body)[1])


def _pack_marks(magic: bytes, marks: Sequence[MarksAnswer]) -> bytes:
    return pack_marks(magic, [Marks(*mark) for mark in marks])


def _count_refusal(service: ServiceClass) -> None:
    CLASS_REFUSALS.labels(service.name.lower()).inc()


def _read_clock_us() -> int:
    return time.monotonic_ns() // 1_000
