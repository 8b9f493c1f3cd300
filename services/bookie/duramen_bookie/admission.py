"""Classes of service: what each may hold of this bookie, who is refused, whose read is next.

Append, tail read, catch-up read, recovery and repair each have their own room: requests, bytes that
wait for the journal, bytes of answers that are being prepared, and threads that read for them. A
class that is full refuses its own, with advice when to ask again, and never anybody else's; one
client may hold half of a class at most. A long poll holds nothing while it waits: only what wakes
it needs room.

A row of an add is verified here, too. Pure decisions: no event loop, thread or clock. Not here:
limits of bodies and connections (the data server), what is stored or read (`storage`). Called by
`handlers`.
Source: docs/protocol/wire.md "what an answer's status allows one to conclude" and "Overload".
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar

from duramen.core.bookie.bookie_state import AddRow
from duramen.limits import JOURNAL_QUEUE_BYTES_MAX, READ_QUEUE_WAIT_MAX_US
from duramen.units import MIB
from duramen.wire.bookie_calls import Add, ReadRange, ServiceClass
from duramen.wire.entry import EntryError, check_entry
from duramen.wire.flexible.envelope import EnvelopeError, parse_envelope

Job = TypeVar("Job")

QUEUE_BYTES_MAX: Final = 16 * MIB
"""What the reads of one class that wait for a thread may take of memory: places, not entries."""

PEER_SHARE: Final = 2
"""One client may hold one part in so many of a class: half leaves room for everybody else."""


class ClassLimits(NamedTuple):
    """What one class holds at most; 0 bytes or threads: it has no such work.

    A request or client that holds nothing yet is always let in by the byte bounds, so that a frame
    larger than a bound can pass; each may thus be passed by one frame or answer.
    """

    request_count_max: int
    add_bytes_max: int
    answer_bytes_max: int
    thread_count: int
    retry_after_ms: int


CLASS_LIMITS: Final[Mapping[ServiceClass, ClassLimits]] = {
    # A tenth of a second of a journal at 640 MB/s, and the frames of five busy sequencers.
    ServiceClass.APPEND: ClassLimits(4_096, 64 * MIB, 0, 0, 100),
    # Of the page cache and on the event loop, but for what is long: one thread.
    ServiceClass.TAIL_READ: ClassLimits(4_096, 0, 64 * MIB, 1, 50),
    # 32 ranges as a read proxy asks for them: a tenth of a second of a fast disk.
    ServiceClass.CATCH_UP_READ: ClassLimits(256, 0, 128 * MIB, 2, 250),
    # One sequencer that takes a thousand logs over asks for a seal and a read of each at once.
    ServiceClass.RECOVERY: ClassLimits(8_192, 24 * MIB, 32 * MIB, 1, 100),
    # In the background: a few streams, told to stay away longest.
    ServiceClass.REPAIR: ClassLimits(64, 24 * MIB, 32 * MIB, 1, 1_000),
}
assert sum(limits.add_bytes_max for limits in CLASS_LIMITS.values()) <= JOURNAL_QUEUE_BYTES_MAX, (
    "or the journal would refuse one class for another's adds"
)

_LEAST_FAVOURED_FIRST: Final = (
    ServiceClass.REPAIR, ServiceClass.CATCH_UP_READ, ServiceClass.TAIL_READ, ServiceClass.RECOVERY,
)  # fmt: skip


class OverloadError(Exception):
    """A class is full: nothing was done; ask again after `retry_after_ms`."""

    def __init__(self, service: ServiceClass, what: str, retry_after_ms: int) -> None:
        name = service.name.lower().replace("_", " ")
        super().__init__(f"{name}: {what}; nothing was done, ask again in {retry_after_ms} ms")
        self.service = service
        self.retry_after_ms = retry_after_ms


def class_of_add(add: Add) -> ServiceClass:
    """The class that a row counts to: what it says only as far as its recovery flag allows."""
    if not add.is_recovery:
        return ServiceClass.APPEND
    return ServiceClass.REPAIR if add.service is ServiceClass.REPAIR else ServiceClass.RECOVERY


def class_of_reads(reads: Iterable[ReadRange]) -> ServiceClass:
    """The class of a request: the least favoured one of its rows."""
    named = {read.service for read in reads}
    named.discard(ServiceClass.APPEND)
    return next((s for s in _LEAST_FAVOURED_FIRST if s in named), ServiceClass.CATCH_UP_READ)


def check_add(add: Add, entry: bytes) -> AddRow:
    """Verify an entry and its envelope before the core sees them (BK#1046)."""
    try:
        info = check_entry(entry)
        if add.envelope:
            parse_envelope(bytes(add.envelope), add.ledger_id, add.entry_id, info.crc)
    except (EntryError, EnvelopeError):
        return AddRow(add.ledger_id, add.entry_id, add.lac, 0, add.is_recovery, False)
    is_valid = info.ledger_id == add.ledger_id and info.entry_id == add.entry_id
    return AddRow(
        add.ledger_id, add.entry_id, add.lac, info.crc, add.is_recovery, is_valid,
        bool(add.envelope),
    )  # fmt: skip


class Permit:
    """What one request holds of its class."""

    __slots__ = ("add_bytes", "answer_bytes", "is_reading", "is_released", "peer", "service")

    def __init__(self, service: ServiceClass, peer: str | None, add_bytes: int) -> None:
        self.service = service
        self.peer = peer
        """None: a long poll, which is bounded elsewhere and holds nothing while it waits."""
        self.add_bytes = add_bytes
        self.answer_bytes = 0
        self.is_reading = False
        self.is_released = False


class ReadyRead(NamedTuple, Generic[Job]):
    """A read whose turn has come; one that waited too long is late: refused, without a thread."""

    permit: Permit
    job: Job
    waited_us: int
    is_late: bool


class _WaitingJob(NamedTuple, Generic[Job]):
    permit: Permit
    job: Job
    queue_bytes: int
    answer_bytes: int
    since_us: int


class _AdmissionClass(Generic[Job]):
    """One class: its bounds, and what is held of it."""

    def __init__(self, limits: ClassLimits) -> None:
        self.limits = limits
        self.request_count = 0
        self.add_bytes = 0
        self.answer_bytes = 0
        self.reading_count = 0
        self.refused_count = 0
        self.peer_requests: Counter[str] = Counter()
        self.peer_add_bytes: Counter[str] = Counter()
        self.waiting: deque[_WaitingJob[Job]] = deque()
        self.waiting_bytes = 0

    def find_obstacle(self, peer: str, add_bytes: int) -> str | None:
        """What one more request would pass; None if it fits."""
        limits = self.limits
        if self.request_count >= limits.request_count_max:
            return f"{self.request_count} requests wait or are under way"
        if self.peer_requests[peer] >= max(1, limits.request_count_max // PEER_SHARE):
            return f"{self.peer_requests[peer]} requests of this client are under way"
        if add_bytes and _is_passed(self.add_bytes, add_bytes, limits.add_bytes_max):
            return f"{self.add_bytes} bytes wait for the journal"
        held_bytes = self.peer_add_bytes[peer]
        if add_bytes and _is_passed(held_bytes, add_bytes, limits.add_bytes_max // PEER_SHARE):
            return f"{held_bytes} bytes of this client wait for the journal"
        return None

    def can_read(self) -> bool:
        """Whether the first read that waits has a thread, and room for what it brings."""
        if not self.waiting or self.reading_count >= self.limits.thread_count:
            return False
        first = self.waiting[0]
        return first.permit.is_released or not _is_passed(
            self.answer_bytes, first.answer_bytes, self.limits.answer_bytes_max
        )


class AdmissionControl(Generic[Job]):
    """The room of one bookie, by class. Jobs are whatever the caller wants to have back.

    Invariants (checked by `validate`):
     1 each class holds the sum of what its permits hold, and nobody who holds nothing is kept.
     2 no class reads in more threads than its own, which add up to `thread_count`.
     3 after `take_ready` no first read waits that has a thread and room for its answer.
    """

    def __init__(self, limits: Mapping[ServiceClass, ClassLimits] = CLASS_LIMITS) -> None:
        self._classes: dict[ServiceClass, _AdmissionClass[Job]] = {
            s: _AdmissionClass(limits[s]) for s in ServiceClass
        }

    @property
    def thread_count(self) -> int:
        """Threads of all classes: with so many none ever waits for another class's read."""
        return sum(one.limits.thread_count for one in self._classes.values())

    # --- Requests --------------------------------------------------------------------------------

    def take(self, service: ServiceClass, peer: str, *, add_bytes: int = 0) -> Permit:
        """Let a request in; `release` gives back what it holds.

        Args:
            peer: whose it is.
            add_bytes: what it will have waiting for the journal.

        Raises:
            OverloadError: the class, or this client's share of it, is used up.
        """
        one = self._classes[service]
        obstacle = one.find_obstacle(peer, add_bytes)
        if obstacle is not None:
            raise self.refuse(service, obstacle)
        one.request_count += 1
        one.peer_requests[peer] += 1
        one.add_bytes += add_bytes
        if add_bytes:
            one.peer_add_bytes[peer] += add_bytes
        return Permit(service, peer, add_bytes)

    def take_poll(self, service: ServiceClass) -> Permit:
        """Let a long poll in, which holds nothing until there is something to answer."""
        return Permit(service, None, 0)

    def release(self, permit: Permit) -> None:
        """Give everything back; what a thread still reads for it, as soon as it is done.

        A read may have waited for that: `take_ready` follows.
        """
        assert not permit.is_released, permit.service
        permit.is_released = True
        one = self._classes[permit.service]
        if permit.peer is not None:
            one.request_count -= 1
            one.add_bytes -= permit.add_bytes
            _give_back(one.peer_requests, permit.peer, 1)
            _give_back(one.peer_add_bytes, permit.peer, permit.add_bytes)
        if not permit.is_reading:
            one.answer_bytes -= permit.answer_bytes

    # --- Reads -----------------------------------------------------------------------------------

    def hold_answer(self, permit: Permit, size_bytes: int) -> None:
        """Reserve room for the entries of an answer that is read at once.

        Raises:
            OverloadError: as many bytes of answers as the class may hold are being prepared.
        """
        assert permit.answer_bytes == 0 and not permit.is_released, permit.service
        one = self._classes[permit.service]
        if size_bytes and _is_passed(one.answer_bytes, size_bytes, one.limits.answer_bytes_max):
            raise self.refuse(permit.service, f"{one.answer_bytes} bytes of answers are prepared")
        permit.answer_bytes = size_bytes
        one.answer_bytes += size_bytes

    def queue_read(
        self, permit: Permit, job: Job, *, queue_bytes: int, answer_bytes: int, now_us: int
    ) -> None:
        """Let a read wait for a thread of its class and for room; `take_ready` gives it back.

        Args:
            queue_bytes: what it takes while it waits.
            answer_bytes: what its entries will take, at most.

        Raises:
            OverloadError: too much of the class waits already.
        """
        one = self._classes[permit.service]
        assert one.limits.thread_count > 0 and permit.answer_bytes == 0, permit.service
        is_full = len(one.waiting) >= one.limits.request_count_max
        if is_full or _is_passed(one.waiting_bytes, queue_bytes, QUEUE_BYTES_MAX):
            raise self.refuse(permit.service, f"{len(one.waiting)} reads wait")
        one.waiting.append(_WaitingJob(permit, job, queue_bytes, answer_bytes, now_us))
        one.waiting_bytes += queue_bytes

    def take_ready(self, now_us: int) -> list[ReadyRead[Job]]:
        """Reads that a thread may begin now; each that is not late ends with `on_read_done`.

        Those whose request was given up meanwhile are dropped.
        """
        ready: list[ReadyRead[Job]] = []
        for service, one in self._classes.items():
            while one.can_read():
                permit, job, queue_bytes, answer_bytes, since_us = one.waiting.popleft()
                one.waiting_bytes -= queue_bytes
                if permit.is_released:
                    continue
                waited_us = now_us - since_us
                is_late = waited_us > READ_QUEUE_WAIT_MAX_US
                if is_late:
                    one.refused_count += 1
                else:
                    assert not permit.is_reading and permit.answer_bytes == 0, service
                    permit.is_reading = True
                    permit.answer_bytes = answer_bytes
                    one.answer_bytes += answer_bytes
                    one.reading_count += 1
                ready.append(ReadyRead(permit, job, waited_us, is_late))
        return ready

    def on_read_done(self, permit: Permit, answer_bytes: int) -> None:
        """A thread is free again, and what the entries take is known."""
        assert permit.is_reading, permit.service
        permit.is_reading = False
        one = self._classes[permit.service]
        one.reading_count -= 1
        one.answer_bytes -= permit.answer_bytes
        permit.answer_bytes = 0 if permit.is_released else answer_bytes
        one.answer_bytes += permit.answer_bytes

    # --- What is known ---------------------------------------------------------------------------

    def refuse(self, service: ServiceClass, obstacle: str) -> OverloadError:
        """The error for a request of the class that meets an obstacle; counted."""
        one = self._classes[service]
        one.refused_count += 1
        return OverloadError(service, obstacle, one.limits.retry_after_ms)

    def statistics(self) -> dict[str, dict[str, Any]]:
        """By class: what is held, the bounds, and what was refused since the start."""
        return {
            service.name.lower(): {
                "requests": one.request_count,
                "requests_max": one.limits.request_count_max,
                "add_bytes": one.add_bytes,
                "add_bytes_max": one.limits.add_bytes_max,
                "answer_bytes": one.answer_bytes,
                "answer_bytes_max": one.limits.answer_bytes_max,
                "reads_waiting": len(one.waiting),
                "waiting_bytes": one.waiting_bytes,
                "waiting_bytes_max": QUEUE_BYTES_MAX,
                "reads_running": one.reading_count,
                "threads": one.limits.thread_count,
                "clients": len(one.peer_requests),
                "refused": one.refused_count,
            }
            for service, one in self._classes.items()
        }

    def validate(self, permits: Iterable[Permit]) -> None:
        """Assert the invariants; `permits`: all that were taken and still hold something."""
        permits = list(permits)
        for service, one in self._classes.items():
            mine = [permit for permit in permits if permit.service is service]
            open_ones = [p for p in mine if not p.is_released and p.peer is not None]
            assert one.request_count == len(open_ones), f"1: {service}"
            assert one.add_bytes == sum(p.add_bytes for p in open_ones), f"1: {service}"
            assert one.answer_bytes == sum(
                p.answer_bytes for p in mine if p.is_reading or not p.is_released
            ), f"1: {service}"
            assert one.peer_requests == Counter(p.peer for p in open_ones), f"1: {service}"
            assert all(one.peer_requests.values()), f"1: {service}"
            assert all(one.peer_add_bytes.values()), f"1: {service}"
            assert one.reading_count == sum(p.is_reading for p in mine), f"2: {service}"
            assert one.reading_count <= one.limits.thread_count, f"2: {service}"
            waiting_bytes = sum(read.queue_bytes for read in one.waiting)
            assert one.waiting_bytes == waiting_bytes, f"1: {service}"
            assert not one.can_read(), f"3: {service}"


def _is_passed(held_bytes: int, more_bytes: int, bytes_max: int) -> bool:
    return held_bytes > 0 and held_bytes + more_bytes > bytes_max


def _give_back(held: Counter[str], peer: str, amount: int) -> None:
    held[peer] -= amount
    if held[peer] <= 0:
        del held[peer]
