"""One epoch of a metadata log: claimed in a change of its log's node, appended to once, closed.

The claim, seals, recovery and appends are those of any log, by the same driver; what is different
is that its claim sets the node of the log whose metadata it holds, in the same `multi()`, and that
there is only one. Where the claim conflicts, or an owner of another log would claim its next epoch
(it was fenced, or is full), this one lets go: its keeper looks again in its next round.

Called by `keeping`. Source: docs/protocol/metadata-logs.md "Changes", R2, R12 to R16.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from duramen.core.sequencer.effects import CommitOutcome, CreateSegment, Write
from duramen.core.sequencer.transmit import QueuedAppend
from duramen.errors import DuramenError
from duramen.ids import Epoch, LogId, Lsn, lsn_of, metadata_log_of
from duramen.runtime.sequencer.appends import make_append
from duramen.runtime.sequencer.log_driver import Answer, LogDriver, now_us
from duramen.runtime.sequencer.metadata_link import MetadataLink
from duramen.runtime.stores.metadata_store import Op
from duramen.units import SECOND
from duramen.wire.sequencer_calls import AppendedBatch, AppendResult
from duramen_sequencer.log_host import LogHost

OPEN_S: Final = 30.0
"""As of an embedded writer: recovery of what a dead keeper left may wait for slow bookies."""

_APPEND_US: Final = 30 * SECOND
_CLOSE_S: Final = 8.0
_APPEND_COUNT: Final = 16
"""Appends of up to 1 MiB that are under way at one time, well within a log's window."""


class ClaimLink(MetadataLink):
    """The link of one driver, whose claim changes another log's node as well, and is the only one.

    Args:
        link: of the process.
        bind: what the claim of an epoch changes besides.
        on_refused: told when another claim was wanted, or the one was not applied.
    """

    def __init__(
        self, link: MetadataLink, bind: Callable[[Epoch], Op], on_refused: Callable[[], None]
    ) -> None:
        super().__init__(link.store, link.paths, link.sequencer_id, link.data_url)
        self._bind = bind
        self._on_refused = on_refused
        self._is_spent = False

    async def commit(self, log_id: LogId, writes: Sequence[Write]) -> CommitOutcome:
        """Apply all writes at once or none; with an epoch that they open, what is bound to it."""
        opened = [write.segment.epoch for write in writes if isinstance(write, CreateSegment)]
        if not opened:
            return await super().commit(log_id, writes)
        if self._is_spent:
            self._on_refused()
            return CommitOutcome.CONFLICT
        self._is_spent = True
        outcome = await self.commit_with(log_id, writes, [self._bind(opened[0])])
        if outcome in (CommitOutcome.CONFLICT, CommitOutcome.UNAVAILABLE):
            self._on_refused()
        return outcome


class MetadataEpoch:
    """An epoch that a keeper opens; it is the `Home` of its driver.

    Args:
        bind: what the claim of an epoch changes in the log's own node.
    """

    def __init__(self, host: LogHost, log_id: LogId, bind: Callable[[Epoch], Op]) -> None:
        self.stories = host.stories
        self._host = host
        self._ended = asyncio.Event()
        self._append_ids = itertools.count(1)
        link = ClaimLink(host.link, bind, self._let_go)
        self._driver = host.adopt(metadata_log_of(log_id), link, self)
        self.epoch: Epoch | None = None

    async def open(self) -> Epoch | None:
        """Claim it, and close every older one; None: it did not come to that."""
        self._driver.take_over()
        self._driver.flush()
        writer = None
        if await self._wait(self._driver.active, OPEN_S):
            writer = self._driver.core.writer
        self.epoch = None if writer is None else writer.segment.epoch
        return self.epoch

    async def append(self, batches: Sequence[bytes]) -> tuple[Lsn, Lsn] | None:
        """Append all of them and close the epoch: where the first and the last lie.

        Returns:
            None: the fate of some is not known, or the epoch is not known to be closed.
        """
        assert self.epoch is not None and batches
        lsns: list[Lsn] = []
        for begin in range(0, len(batches), _APPEND_COUNT):
            if self._ended.is_set():
                break  # it was fenced, and nothing would take an append any more
            results = await self._append_some(batches[begin : begin + _APPEND_COUNT])
            places = [_place(result, self.epoch) for result in results]
            lsns += [lsn for lsn in places if lsn is not None]
            if None in places:
                break
        is_closed = await self.close()
        return (lsns[0], lsns[-1]) if is_closed and len(lsns) == len(batches) else None

    async def _append_some(self, batches: Sequence[bytes]) -> list[AppendResult]:
        loop = asyncio.get_running_loop()
        answers: list[asyncio.Future[AppendResult]] = []
        for batch in batches:
            append = make_append(next(self._append_ids), batch, now_us() + _APPEND_US)
            answers.append(loop.create_future())
            self._driver.append(append, partial(_give, answers[-1]))
        self._driver.flush()
        return await asyncio.gather(*answers)

    async def close(self) -> bool:
        """Close what is open, in peace; False: whoever comes next recovers it."""
        return await self._driver.leave(_CLOSE_S)

    def end(self) -> None:
        """Leave nothing under way; what is open becomes an orphan."""
        if not self._driver.is_done:
            self._driver.release("its keeper is done")
        self._host.dismiss(self._driver)

    async def _wait(self, event: asyncio.Event, timeout_s: float) -> bool:
        """Whether the event came before the driver's end, and in time."""
        waits = [asyncio.create_task(one.wait()) for one in (event, self._ended)]
        try:
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
        return event.is_set() and not self._ended.is_set()

    def _let_go(self) -> None:
        """Not from within a commit of the driver, whose core waits for its outcome."""
        asyncio.get_running_loop().call_soon(self._release)

    def _release(self) -> None:
        self._ended.set()
        self._driver.release("a keeper claims a metadata log, and nobody else")

    # --- Home ------------------------------------------------------------------------------------

    def resubmit(self, log_id: LogId, append: QueuedAppend, answer: Answer) -> None:
        """Nothing is sent anywhere else."""
        answer(DuramenError("log_unavailable", f"the epoch of log {log_id} is over"))

    def on_fenced(self, driver: LogDriver) -> None:
        """Another keeper has come."""
        self._let_go()

    def on_idle(self, driver: LogDriver) -> None:
        """Closed, or let go."""
        self._ended.set()

    def on_broken(self, driver: LogDriver) -> None:
        """As any log's."""
        self._ended.set()
        self._host.on_broken(driver)


def _give(answer: asyncio.Future[AppendResult], result: AppendResult) -> None:
    """Whoever waited may have been cancelled meanwhile."""
    if not answer.done():
        answer.set_result(result)


def _place(result: AppendResult, epoch: Epoch) -> Lsn | None:
    """Where an append lies, if it is known to be in that epoch."""
    if not isinstance(result, AppendedBatch) or result.start.dlsn.epoch != epoch:
        return None
    return lsn_of(epoch, result.start.dlsn.entry)
