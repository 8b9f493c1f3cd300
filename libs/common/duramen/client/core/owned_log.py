"""One log that this process owns: appends in the order of the calls, acknowledged in that order.

The log is claimed as a sequencer claims it (R2, R12 to R16): a new epoch, older ones sealed,
recovered and closed. Then each append is queued at the log's core, and its ticket is settled when
the entry is acknowledged. An `OwnedLog` has one life: the first append that is not stored ends it,
and nothing behind that one is ever sent. So what is in the log is always what was appended up to
some call, without a gap. It also ends when another owner seals the log, which is told at once.

Made by `CoreClient.open_log`; it is the `Home` of its driver (`runtime.sequencer.log_driver`).
Source: docs/sdk.md, ADR 0013, docs/protocol/ownership.md.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Generator
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from duramen.client.core.parts import Owning, ReadParts
from duramen.client.core.read_log import ReadLog
from duramen.client.rest_client import Appended
from duramen.client.sdk.batches import Records, encode_records, list_records
from duramen.client.sdk.faults import classify, raise_again
from duramen.core.placement.node_states import ListChange
from duramen.core.sequencer.log_state import LogState
from duramen.core.sequencer.transmit import QueuedAppend
from duramen.errors import DuramenError
from duramen.ids import LogId
from duramen.runtime.sequencer.appends import make_append
from duramen.runtime.sequencer.log_driver import Answer, LogDriver, now_us
from duramen.runtime.stores.metadata_store import MetadataError
from duramen.units import SECOND
from duramen.wire import sequencer_calls as calls
from duramen.wire.edge.batch_codec import Codec

OPEN_TIMEOUT_S: Final = 30.0
"""A takeover is a dozen calls; recovery of a long tail behind a slow bookie takes seconds."""

APPEND_TIMEOUT_S: Final = 10.0
"""As an append of a proxy's client; longer than any replacement of a bookie takes."""

_CLOSE_S: Final = 8.0
"""As a sequencer that stops: what is left after it is recovered by the next owner."""

_RETRY_S: Final = 0.3

_NEVER_US: Final = 1 << 62
"""The core never drops an append by itself: one behind it could be sent then."""


class NotOwner(DuramenError):
    """Another writer has the log: nothing of this append has happened, and this one is over.

    Code `log_held`. Whoever means to have the log opens it again, which takes it over.
    """


class AppendTicket:
    """Stands for one append; `await ticket` gives where its records are once it is acknowledged."""

    __slots__ = ("_fate", "_future")

    def __init__(self) -> None:
        self._future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._fate: Appended | DuramenError | None = None

    def __await__(self) -> Generator[object, None, Appended]:
        """Where the records are, once they are acknowledged.

        Returns:
            An `Appended`: the sequence numbers `start` up to, not including, `end`, and the `dlsn`.

        Raises:
            Uncertain: they may be in the log. Open it again and read its end before a retry.
            NotOwner: they are not in the log; another writer has it.
            DuramenError: they are not in the log, because of an append before them. A retry is safe
                once the log is open again.
        """
        return self._wait().__await__()

    def is_done(self) -> bool:
        """Whether awaiting it would give an answer at once.

        Returns:
            True once the records are stored or have failed.

        Raises:
            Nothing.
        """
        return self._fate is not None

    def settle(self, fate: Appended | DuramenError) -> None:
        """Called once, by the log that made it."""
        self._fate = fate
        if not self._future.done():
            self._future.set_result(None)

    async def _wait(self) -> Appended:
        await asyncio.shield(self._future)
        assert self._fate is not None
        if isinstance(self._fate, DuramenError):
            raise_again(self._fate)
        return self._fate


class OwnedLog(ReadLog):
    """A log that is open for appends, and can be read as any other; `async with` opens and closes.

    Args:
        open_timeout_s: seconds to try to own it.
        append_timeout_s: seconds; an append that is not acknowledged by then ends the life of this
            object.
        open_logs: those of this process, by id; this one is among them while it is open.
    """

    def __init__(
        self,
        owning: Owning,
        reading: ReadParts,
        namespace: str,
        name: str,
        *,
        open_timeout_s: float,
        append_timeout_s: float,
        open_logs: dict[LogId, OwnedLog],
    ) -> None:
        super().__init__(reading, namespace, name)
        self.stories = owning.stories
        self._owning = owning
        self._open_timeout_s = open_timeout_s
        self._append_timeout_s = append_timeout_s
        self._open_logs = open_logs
        self._driver: LogDriver | None = None
        self._tickets: dict[int, tuple[AppendTicket, int]] = {}
        """Unsettled, by append id in the order of the calls; with the time of the call."""
        self._append_ids = itertools.count(1)
        self._max_txid: int | None = None
        self._failure: DuramenError | None = None
        self._ended = asyncio.Event()
        self._settled = asyncio.Event()
        self._turn = asyncio.Lock()
        self._is_kicked = self._is_closing = False
        self._timer: asyncio.TimerHandle | None = None
        self._owner_changed = asyncio.Event()
        self._watcher: asyncio.Task[None] | None = None

    # --- open and close --------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Take the log over, whoever has it.

        Raises:
            DuramenError: `namespace_not_found`, `log_not_found`, `log_ended`, `log_deleted`,
                `invalid_argument` (it is open in this process already): a retry is refused again.
                `not_enough_bookies`, `log_unavailable`, `metadata_unavailable`: a retry is safe.
            NotOwner: another writer claimed it at the same time; a retry takes it over again.
        """
        follower = await self._find()
        log = await follower.current_log()
        if log.log_id in self._open_logs:
            detail = f"{self!r} is open in this process: one writer has one order"
            raise DuramenError("invalid_argument", detail, field="log")
        self._open_logs[log.log_id] = self
        self._driver = driver = LogDriver(
            log.log_id, self._owning.context, self._owning.lanes, self._owning.link, self
        )
        try:
            driver.take_over()
            driver.flush()
            await self._wait_active(driver)
        except BaseException:
            await self._leave(driver)
            raise
        assert driver.core.view is not None
        self._max_txid = driver.core.view.log.totals.max_txid
        self._watcher = asyncio.create_task(self._watch_owner(driver))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Wait for what is unsettled, unless an exception ends the block, and close the segment.

        Raises:
            DuramenError: as `flush`, only where the block ended without an exception.
        """
        assert self._driver is not None
        try:
            if kind is None:
                await self.flush()
        finally:
            await self._leave(self._driver)

    @property
    def epoch(self) -> int | None:
        """The epoch that appends go to; None once it is over, or while the segment is rolled."""
        writer = None if self._driver is None else self._driver.core.writer
        return None if writer is None else writer.segment.epoch

    @property
    def is_changing(self) -> bool:
        """Whether appends wait for ZooKeeper: a roll, or another ensemble."""
        return self._driver is not None and self._driver.core.is_changing

    async def wait_ended(self) -> DuramenError:
        """Wait until no append is taken any more.

        Returns:
            Why that is: `NotOwner` if another writer has the log.

        Raises:
            Nothing.
        """
        await self._ended.wait()
        assert self._failure is not None
        return self._failure

    async def abandon(self) -> None:
        """Leave the log open behind, and wait for nothing; the next owner recovers it.

        Tickets of what was sent raise `Uncertain`; those of the rest are refused.

        Raises:
            Nothing.
        """
        if self._driver is not None:
            self._end(DuramenError("log_unavailable", f"{self!r}: its client was closed"))
            await self._leave(self._driver)

    # --- append ----------------------------------------------------------------------------------

    def append(self, records: Records) -> AppendTicket:
        """Queue records: they follow each other in the log, behind those of every earlier call.

        Args:
            records: `bytes`, a `Record` or a list of them: one batch, atomic; 1 to 10,000 records,
                at most 1 MiB each and 4 MiB together.

        Returns:
            An `AppendTicket`: awaiting it says where the records are.

        Raises:
            DuramenError: nothing was taken, for certain. `window_full`: too much waits; a retry is
                safe, or use `send`. `record_too_large`, `batch_too_large`, `too_many_records`,
                `invalid_argument`, `condition_failed` (a txid falls): a retry is refused again.
                These leave the log as it is; any other means that it is over, and must be opened
                again.
        """
        items = list_records(records)
        batch = encode_records(items, None, Codec.NONE)
        txids = [item.txid for item in items if item.txid is not None]
        self._check_txids(txids)
        if self._turn.locked():
            raise DuramenError("window_full", "a `send` that was called before waits for room")
        return self._take(batch, txids)

    async def send(self, records: Records) -> AppendTicket:
        """Queue records as `append`, but wait while there is no room; who waits keeps its order.

        Args:
            records: as in `append`.

        Returns:
            An `AppendTicket`, as `append`.

        Raises:
            DuramenError: as `append`, never `window_full`.
        """
        items = list_records(records)
        batch = encode_records(items, None, Codec.NONE)
        txids = [item.txid for item in items if item.txid is not None]
        async with self._turn:
            self._check_txids(txids)
            while True:
                try:
                    return self._take(batch, txids)
                except DuramenError as error:
                    if error.code != "window_full":
                        raise
                self._settled.clear()
                await self._settled.wait()

    async def flush(self) -> None:
        """Wait until everything that was taken is settled.

        Raises:
            DuramenError: why the log is over, if it is; the tickets say what is stored. A retry is
                refused again.
        """
        while self._tickets:
            self._settled.clear()
            await self._settled.wait()
        if self._failure is not None:
            raise_again(self._failure)

    def statistics(self) -> dict[str, Any]:
        """Count what waits and what was done.

        Returns:
            The counts of the log's driver; none before it is open.

        Raises:
            Nothing.
        """
        return {} if self._driver is None else self._driver.statistics()

    def _check_txids(self, txids: list[int]) -> None:
        """A refusal by the core would come after later appends were taken."""
        last = self._max_txid
        if txids and last is not None and min(txids) < last:
            detail = f"txid {min(txids)} is below {last}, the greatest of the log"
            raise DuramenError("condition_failed", detail, field="txid")

    def _take(self, batch: bytes, txids: list[int]) -> AppendTicket:
        if self._failure is not None:
            raise_again(self._failure)
        driver = self._driver
        if driver is None or self._is_closing:
            raise DuramenError("invalid_argument", f"{self!r} is not open")
        append = make_append(next(self._append_ids), batch, _NEVER_US)
        core = driver.core
        fault = core.find_fault(append)
        if fault is not None:
            raise DuramenError("window_full", fault)
        ticket = AppendTicket()
        self._tickets[append.append_id] = (ticket, now_us())
        if txids:
            self._max_txid = max(txids)
        driver.append(append, partial(self._on_answer, append.append_id))
        loop = asyncio.get_running_loop()
        if not self._is_kicked:
            # Appends of one round of the loop share an entry.
            self._is_kicked = True
            loop.call_soon(self._kick, driver)
        if self._timer is None:
            self._timer = loop.call_later(self._append_timeout_s, self._look_at_oldest)
        return ticket

    def _kick(self, driver: LogDriver) -> None:
        self._is_kicked = False
        driver.flush()

    def _on_answer(self, append_id: int, result: calls.AppendResult) -> None:
        ticket, _ = self._tickets.pop(append_id)
        match result:
            case calls.AppendedBatch(start, record_count):
                end = start.seq_num + record_count
                ticket.settle(Appended(start.seq_num, end, str(start.dlsn)))
            case DuramenError():
                ticket.settle(self._on_refusal(result))
            case _:
                raise AssertionError(f"no fate of an append without a producer: {result}")
        self._settled.set()

    def _on_refusal(self, error: DuramenError) -> DuramenError:
        """The first one ends it: whatever was called behind it is never sent."""
        self._end(self._find_reason() if error.uncertain else error)
        return classify(error)

    def _look_at_oldest(self) -> None:
        """End it when the oldest append waits too long: an unsent one must not be passed."""
        self._timer = None
        if not self._tickets or self._failure is not None:
            return
        _, at_us = next(iter(self._tickets.values()))
        left_s = self._append_timeout_s - (now_us() - at_us) / SECOND
        if left_s > 0:
            self._timer = asyncio.get_running_loop().call_later(left_s, self._look_at_oldest)
            return
        assert self._driver is not None
        code, why = self._driver.core.format_delay()
        self._end(DuramenError(code, f"not stored within {self._append_timeout_s} s: {why}"))

    # --- Home of the driver ----------------------------------------------------------------------

    def resubmit(self, _log_id: LogId, _append: QueuedAppend, answer: Answer) -> None:
        """An append was never sent and never will be."""
        self._end(self._find_reason())
        assert self._failure is not None
        answer(self._failure)

    def on_fenced(self, _driver: LogDriver) -> None:
        """Somebody sealed the log: it is not claimed back, others may have appended meanwhile.

        Or its owner would take it over itself, since too few bookies of a flexible epoch answer
        (R28). What was sent may not be there afterwards, so nothing behind it may be sent.
        """
        self._end(self._find_reason())

    def on_idle(self, _driver: LogDriver) -> None:
        """The log is not this process's any more."""
        if not self._is_closing and self._watcher is not None:
            self._end(self._find_reason())

    def on_broken(self, driver: LogDriver) -> None:
        """A fault of this library: the log is let go, and its next owner recovers it."""
        self._end(DuramenError("internal", f"{self!r} stops: {driver.fault!r}"))

    def on_session(self) -> None:
        """There is a session with ZooKeeper again: the owner node may be gone, or another's."""
        self._owner_changed.set()

    def on_identity_ended(self, why: str) -> None:
        """The certificate of this process has ended, or is trusted no more: it is nobody."""
        self._end(DuramenError("unauthenticated", f"{self!r}: {why}"))

    def on_bookies_changed(self, leaving: frozenset[str]) -> None:
        """Bookies came or went; of those that are `leaving` the open segment is rolled off."""
        if self._driver is None:
            return
        writer = self._driver.core.writer
        if writer is not None:
            names = {member.bookie for member in writer.segment.members}
            if names & leaving:
                self._driver.core.request_roll()
        self._driver.on_bookies_changed()

    def on_lists_changed(self, change: ListChange) -> None:
        """Other logs of the process found bookies silent, slow or full."""
        writer = None if self._driver is None else self._driver.core.writer
        if self._driver is not None and writer is not None and writer.heeds(change):
            self._driver.on_lists_changed()

    # --- the end ---------------------------------------------------------------------------------

    def _find_reason(self) -> DuramenError:
        assert self._driver is not None
        core = self._driver.core
        if self._is_closing and not core.loss_count:
            return DuramenError("log_unavailable", f"{self!r} was closed before it was sent")
        if not core.reason:
            detail = f"{self!r}: its segment was closed, and no other can be opened"
            return DuramenError("log_unavailable", detail)
        if core.stall_count:
            return DuramenError("not_enough_bookies", f"{self!r}: {core.reason}")
        return NotOwner("log_held", f"{self!r}: {core.reason}")

    def _end(self, error: DuramenError) -> None:
        """No append is taken any more, and none that waits is sent."""
        if self._failure is None:
            self._failure = error
            self._ended.set()
            # Not in the midst of the driver's own work; until then nothing is read or claimed.
            asyncio.get_running_loop().call_soon(self._let_go)

    def _let_go(self) -> None:
        driver = self._driver
        if driver is not None and not driver.is_done:
            driver.release(driver.core.reason or str(self._failure))
        self._settled.set()

    async def _wait_active(self, driver: LogDriver) -> None:
        waits = [asyncio.create_task(event.wait()) for event in (driver.active, driver.idle)]
        try:
            await asyncio.wait(
                waits, timeout=self._open_timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for wait in waits:
                wait.cancel()
        if driver.active.is_set() and self._failure is None:
            return
        core = driver.core
        log = None if core.view is None else core.view.log
        if log is not None and (log.is_deleted or log.is_ended):
            code = "log_deleted" if log.is_deleted else "log_ended"
            raise DuramenError(code, f"{self!r} takes no appends any more")
        if core.state is LogState.IDLE or self._failure is not None:
            raise NotOwner("log_held", f"{self!r}: {core.reason or 'another writer was faster'}")
        code, why = core.refusal
        raise DuramenError(code, f"not opened within {self._open_timeout_s} s: {why}")

    async def _watch_owner(self, driver: LogDriver) -> None:
        """Learn of another owner also while nothing is appended; put a lost node back."""
        link, log_id = self._owning.link, driver.log_id
        while True:
            self._owner_changed.clear()
            try:
                await link.store.get(link.paths.owner(log_id), self._owner_changed.set)
            except MetadataError:
                await asyncio.sleep(_RETRY_S)
                continue
            writer = driver.core.writer
            if writer is not None and driver.core.state is LogState.ACTIVE:
                await driver.keep(writer.segment.epoch)
            await self._owner_changed.wait()

    async def _leave(self, driver: LogDriver) -> None:
        """Close in peace where that is possible; what is left is recovered by the next owner."""
        self._is_closing = True
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
        try:
            if self._failure is None:
                await driver.leave(_CLOSE_S)
        finally:
            self._end(self._find_reason())
            self._let_go()
            await self._owning.link.drop_owner(driver.log_id)
            if self._open_logs.get(driver.log_id) is self:
                del self._open_logs[driver.log_id]
