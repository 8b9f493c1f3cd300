"""The audit trail of a proxy: records get their place in its chain, wait in bounds, and go on.

Noting a call costs microseconds and waits for nobody. Two tasks do the rest: one writes what is new
to the file, the other brings what is written to the log, one append at a time and each until it is
stored, so nothing overtakes. Each minute what was counted becomes records.

Called by the wiring of both proxies; calls are noted by `recorded_calls`.
Source: docs/protocol/audit.md "Where records wait".
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from prometheus_client import Counter

from duramen.backoff import Backoff
from duramen.core.audit.chain import AuditChain, ChainHead
from duramen.core.audit.counts import ROW_COUNT_MAX, CallCounts, CountKey
from duramen.errors import DuramenError
from duramen.runtime.audit.spool import WAITING_BYTES_MAX, AuditSpool
from duramen.runtime.http_client import PeerError
from duramen.runtime.role import ServiceOptions
from duramen.texts import format_time
from duramen.units import KIB, MS, SECOND
from duramen.wire.edge.audit_records import (
    CALL,
    COUNTS,
    COUNTS_BYTES_MAX,
    END,
    LOST,
    RECORD_BYTES_MAX,
    START,
    seal_record,
)

_LOG: Final = logging.getLogger(__name__)
_LOST: Final = Counter("duramen_audit_lost", "Audit records that found no room")

REFUSALS_BYTES_MAX: Final = WAITING_BYTES_MAX // 2
COUNTS_WAITING_BYTES_MAX: Final = WAITING_BYTES_MAX * 3 // 4
RESERVED_COUNT_MAX: Final = 64
"""Changes that one principal has under way: slow bodies of one would keep all others out."""

REFUSAL_COUNT_PER_S: Final = 50.0
REFUSAL_COUNT_AT_ONCE: Final = 500.0
_GATHER_S: Final = 0.2
_COUNTED_S: Final = 60.0
_FLUSH_S: Final = 3.0
_LINE_COUNT_MAX: Final = 256
_BATCH_BYTES_MAX: Final = 512 * KIB
_ROWS_PER_RECORD: Final = 16
"""A row has a principal, of 560 bytes where all of it has to be escaped, a namespace and words."""

_BACKOFF: Final = Backoff(500 * MS, 30 * SECOND)
_EXPECTED: Final = (DuramenError, PeerError, OSError)
_RETRY_AFTER_MS: Final = 5_000
_RETRY_SOON_MS: Final = 1_000


class AuditSink(Protocol):
    """What brings records to the log."""

    async def append(self, lines: Sequence[bytes]) -> None:
        """Store these records, in this order; again if their fate is unknown.

        Raises:
            DuramenError, PeerError: they may not be stored.
        """


class _Waiting(NamedTuple):
    line: bytes
    head: ChainHead | None
    """None: of another process's chain."""


class AuditTrail:
    """What one process records.

    Args:
        node: its role and name, as `writeproxy/wp-0`.
        spool: None: records wait in memory alone.
        is_required: changes are refused while there is no room for their records.
    """

    def __init__(
        self, node: str, sink: AuditSink, spool: AuditSpool | None, *, is_required: bool
    ) -> None:
        self._chain = AuditChain(f"{node}/{_now_ms():x}-{secrets.token_hex(2)}")
        self._sink = sink
        self._spool = spool
        self._is_required = is_required
        self._counts = CallCounts()
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._unfiled_count = 0
        self._is_file_whole = True
        self._reserved: dict[str, int] = {}
        self._reserved_count = 0
        self._untold_lost_count = 0
        self._lost_count = 0
        self._stored_count = 0
        self._last_stored: ChainHead | None = None
        self._refusals_left = REFUSAL_COUNT_AT_ONCE
        self._refusals_seen_s = time.monotonic()
        self._file_fault: str | None = None
        self._log_fault: str | None = None
        self._has_new = asyncio.Event()
        self._has_filed = asyncio.Event()
        self._file_use = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._has_ended = False
        self._is_asked_to_end = asyncio.Event()
        self._has_failed_at_end = False

    # --- Life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take over what lies in the folder, and begin the chain.

        Raises:
            StartRefusedError: the folder cannot be used.
        """
        former: ChainHead | None = None
        if self._spool is not None:
            found = await asyncio.to_thread(self._spool.open)
            former = found.head
            for line in found.lines:
                self._wait(_Waiting(line, None))
            self._unfiled_count = 0
            self._has_filed.set()
        self._seal(START, {"former": former})
        self._tasks = [
            asyncio.create_task(work())
            for work in (self._file_all, self._send_all, self._report_all)
        ]

    async def stop(self) -> None:
        """End the chain; what the log has not taken within 3 s stays in the file.

        Without a file a log that is away is tried once more, and then not waited for.
        """
        if not self._tasks:
            return
        self._report_counts()
        self._seal(END, {})
        self._has_ended = True
        if self._spool is None:
            self._is_asked_to_end.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_S):
                while self._waiting and not self._may_stay():  # noqa: ASYNC110 - tasks empty it
                    await asyncio.sleep(_GATHER_S / 4)
        async with self._file_use:
            # Nobody writes to the file now, and nobody is to begin.
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if self._spool is not None:
            if self._unfiled_count or not self._is_file_whole:
                await self._file_new()
            await self._empty_file()
            self._spool.close()

    @property
    def has_begun(self) -> bool:
        """Whether the chain has its first record, and not its last one."""
        return bool(self._tasks) and not self._has_ended

    def statistics(self) -> dict[str, Any]:
        """What waits, within which bounds, what was lost, and what stands in the way."""
        return {
            "chain": self._chain.name,
            "waiting": len(self._waiting),
            "waiting_bytes": self._waiting_bytes,
            "waiting_bytes_max": WAITING_BYTES_MAX,
            "reserved": self._reserved_count,
            "reserved_max_each": RESERVED_COUNT_MAX,
            "counted_rows": len(self._counts),
            "counted_rows_max": ROW_COUNT_MAX,
            "stored": self._stored_count,
            "lost": self._lost_count,
            "required": self._is_required,
            "log_fault": self._log_fault,
            "file_fault": self._file_fault,
        }

    # --- Noting ----------------------------------------------------------------------------------

    def reserve(self, who: str) -> bool:
        """Keep room for the record of a change; whether any was kept, to be given to `release`.

        Args:
            who: the principal; each has room for 64.

        Raises:
            DuramenError: `audit_unavailable`: there is none, and the change must not be made;
                `rate_limited`: there is, and this principal has as much of it as it may.
        """
        if not self._is_required:
            return False
        is_stuck = self._file_fault is not None and self._log_fault is not None
        needed_bytes = (self._reserved_count + 1) * RECORD_BYTES_MAX
        if is_stuck or self._waiting_bytes + needed_bytes > WAITING_BYTES_MAX:
            raise DuramenError(
                "audit_unavailable",
                "what this would change could not be recorded now: the audit log is away",
                retry_after_ms=_RETRY_AFTER_MS,
            )
        if self._reserved.get(who, 0) >= RESERVED_COUNT_MAX:
            raise DuramenError(
                "rate_limited",
                f"{RESERVED_COUNT_MAX} changes of yours are under way: wait until one is answered",
                retry_after_ms=_RETRY_SOON_MS,
            )
        self._reserved[who] = self._reserved.get(who, 0) + 1
        self._reserved_count += 1
        return True

    def release(self, who: str) -> None:
        """Give back what was kept; nobody else takes it before the next await."""
        self._reserved_count -= 1
        self._reserved[who] -= 1
        if not self._reserved[who]:
            del self._reserved[who]

    def note(self, members: Mapping[str, Any]) -> None:
        """Record one call; what finds no room, or comes behind the end, is counted as lost."""
        if not self._add(CALL, members, WAITING_BYTES_MAX):
            self._untold_lost_count += 1
            self._lost_count += 1
            _LOST.inc()

    def note_refusal(self, members: Mapping[str, Any]) -> bool:
        """Record a refusal; whether there was room, else it is to be counted."""
        now_s = time.monotonic()
        gained = (now_s - self._refusals_seen_s) * REFUSAL_COUNT_PER_S
        self._refusals_left = min(self._refusals_left + gained, REFUSAL_COUNT_AT_ONCE)
        self._refusals_seen_s = now_s
        if self._refusals_left < 1.0 or not self._add(CALL, members, REFUSALS_BYTES_MAX):
            return False
        self._refusals_left -= 1.0
        return True

    def count(self, key: CountKey) -> None:
        """Count one call."""
        self._counts.add(key, _now_ms())

    # --- Waiting ---------------------------------------------------------------------------------

    def _add(self, kind: str, members: Mapping[str, Any], most_bytes: int) -> bool:
        if self._has_ended:
            # A call that outlives the stop: behind `end` a check takes a record for a forgery.
            return False
        if self._waiting_bytes + RECORD_BYTES_MAX > most_bytes:
            return False
        if self._untold_lost_count:
            lost, self._untold_lost_count = self._untold_lost_count, 0
            self._seal(LOST, {"lost": lost})
        self._seal(kind, members)
        return True

    def _seal(self, kind: str, members: Mapping[str, Any]) -> None:
        told = {"at": format_time(_now_ms()), **members}
        record = seal_record(self._chain.find_next(), kind, told)
        self._wait(_Waiting(record.line, self._chain.advance(record.digest)))
        self._has_new.set()

    def _may_stay(self) -> bool:
        """Whether what waits is in the file, or has none, and waits for nothing that comes soon."""
        if self._spool is None:
            return self._has_failed_at_end
        return self._log_fault is not None and not self._unfiled_count

    def _wait(self, one: _Waiting) -> None:
        self._waiting.append(one)
        self._waiting_bytes += len(one.line)
        self._unfiled_count += 1

    async def _report_all(self) -> None:
        while True:
            await asyncio.sleep(_COUNTED_S)
            try:
                self._report_counts()
            except Exception:
                # Later counts have to be told still.
                _LOG.exception("what was counted for the audit log cannot be told")

    def _report_counts(self) -> None:
        """Records of what was counted; while there is no room for them the table goes on."""
        if self._has_ended:
            return
        rows_bytes = (len(self._counts) // _ROWS_PER_RECORD + 1) * COUNTS_BYTES_MAX
        if self._waiting_bytes + rows_bytes > COUNTS_WAITING_BYTES_MAX:
            return
        taken = self._counts.take()
        if taken is None:
            return
        since_ms, rows = taken
        for first in range(0, len(rows), _ROWS_PER_RECORD):
            counts = [[*key, calls] for key, calls in rows[first : first + _ROWS_PER_RECORD]]
            self._seal(COUNTS, {"since": format_time(since_ms), "counts": counts})

    # --- The file --------------------------------------------------------------------------------

    async def _file_all(self) -> None:
        while True:
            await self._has_new.wait()
            await asyncio.sleep(_GATHER_S)
            self._has_new.clear()
            if self._spool is None:
                self._unfiled_count = 0
            else:
                await self._file_new()
            self._has_filed.set()

    async def _file_new(self) -> None:
        """Write what is new to the file; if that fails, all that waits with the next ones."""
        assert self._spool is not None, "records wait in memory"
        async with self._file_use:
            new = self._unfiled_count
            fresh = [one.line for one in itertools.islice(reversed(self._waiting), new)][::-1]
            try:
                if self._is_file_whole and self._spool.has_room(sum(map(len, fresh)) + new):
                    await asyncio.to_thread(self._spool.add, fresh)
                else:
                    await asyncio.to_thread(self._spool.rewrite, [w.line for w in self._waiting])
            except Exception as error:
                self._is_file_whole = False
                self._file_fault = self._complain("file", error, self._file_fault)
            else:
                self._is_file_whole, self._file_fault = True, None
            self._unfiled_count -= new

    async def _empty_file(self) -> None:
        """The log has everything: the file need not."""
        async with self._file_use:
            if self._waiting or self._last_stored is None or self._spool is None:
                return
            try:
                await asyncio.to_thread(self._spool.empty, self._last_stored)
            except Exception as error:
                self._is_file_whole = False
                self._file_fault = self._complain("file", error, self._file_fault)

    # --- The log ---------------------------------------------------------------------------------

    async def _send_all(self) -> None:
        failure_count = 0
        while True:
            try:
                has_sent = await self._send_batch()
            except Exception as error:
                # Records that come later have to be stored still, whatever this was.
                was_away = self._log_fault is not None
                self._log_fault = self._complain("log", error, self._log_fault)
                self._has_failed_at_end = was_away and self._is_asked_to_end.is_set()
                await self._rest(_BACKOFF.pause_us(failure_count) / SECOND)
                failure_count += 1
                continue
            failure_count, self._log_fault = 0, None
            if not has_sent:
                self._has_filed.clear()
                await self._has_filed.wait()

    async def _rest(self, pause_s: float) -> None:
        """Leave a log alone that is away; a stop without a file ends that, once."""
        if self._is_asked_to_end.is_set():
            await asyncio.sleep(pause_s)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._is_asked_to_end.wait()

    async def _send_batch(self) -> bool:
        """Have the log take the oldest records; whether there were any."""
        batch = self._take_batch()
        if not batch:
            return False
        await self._sink.append([one.line for one in batch])
        self._let_go(batch)
        await self._empty_file()
        return True

    def _let_go(self, stored: Sequence[_Waiting]) -> None:
        """The log has the oldest ones."""
        for one in stored:
            self._waiting.popleft()
            self._waiting_bytes -= len(one.line)
            self._last_stored = one.head or self._last_stored
        self._stored_count += len(stored)

    def _take_batch(self) -> list[_Waiting]:
        """The oldest records that are in the file, as many as one append carries."""
        batch: list[_Waiting] = []
        size_bytes = 0
        filed_count = len(self._waiting) - self._unfiled_count
        for one in itertools.islice(self._waiting, min(filed_count, _LINE_COUNT_MAX)):
            size_bytes += len(one.line)
            if batch and size_bytes > _BATCH_BYTES_MAX:
                break
            batch.append(one)
        return batch

    def _complain(self, what: str, error: Exception, before: str | None) -> str:
        """Tell what stands in the way, once; what nobody expects with where it came from."""
        why = str(error) or repr(error)
        if before is None:
            origin = None if isinstance(error, _EXPECTED) else error
            _LOG.warning("the audit %s does not take records: %s", what, why, exc_info=origin)
        return why


def open_trail(options: ServiceOptions, sink: AuditSink) -> AuditTrail:
    """The trail that a proxy is started with; where it has a folder, its records wait there."""
    spool = None if options.data_dir is None else AuditSpool(options.data_dir)
    node = f"{options.role}/{options.node_id}"
    return AuditTrail(node, sink, spool, is_required=options.is_audit_required)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
