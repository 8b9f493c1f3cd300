"""Settling: sealed journal files become ledger-sorted entry log files, in the background.

A round begins when enough journal files are sealed, or is asked for: what is alive in them is
copied (`transfer`) at a bounded rate, a checkpoint that names the new files and covers the journal
files is made durable, and then the journal gets its files back. `carry_out` is what compaction does
with its own sources, too: one at a time, so that checkpoints follow one another.

Not here: bytes and files. Called by `rounds`. Source: docs/bookie.md "Upkeep",
docs/protocol/entry-log.md "Checkpoint".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from duramen.ids import EntryId, LedgerId
from duramen.limits import SETTLE_BYTES_PER_S, SETTLE_BYTES_PER_S_FIRST, SETTLE_FILE_COUNT
from duramen.wire.disk.journal_format import record_bytes
from duramen_bookie.checkpoint import write_checkpoint
from duramen_bookie.storage import Storage
from duramen_bookie.upkeep.checkpointing import (
    add_files,
    begin_settling,
    break_off,
    has_room,
    next_checkpoint,
    switch,
)
from duramen_bookie.upkeep.pacing import Pace, PaceState, monotonic_us
from duramen_bookie.upkeep.transfer import PIECE_BYTES, Transfer

_LOG: Final = logging.getLogger(__name__)

OnDamaged = Callable[[Sequence[tuple[LedgerId, EntryId]]], None]


class Carrier:
    """Carries transfers out, one at a time.

    Args:
        on_damaged: told of entries that could not be copied.
    """

    def __init__(self, storage: Storage, on_damaged: OnDamaged) -> None:
        self._storage = storage
        self._on_damaged = on_damaged
        self._turn = asyncio.Lock()
        self._is_stopped = False
        self._has_leftovers = False
        self._carried_count = 0
        self._recycle_count = 0
        self._copied_bytes = 0
        self._copied_entry_count = 0
        self._damaged_entry_count = 0

    async def carry_out(self, begin: Callable[[], Transfer | None], pace: Pace) -> bool:
        """Copy, make the checkpoint durable, switch.

        Returns:
            False if it was stopped or suspended, or if there was nothing to do.

        Raises:
            OSError: the disk is full or failed; nothing is lost, and the next transfer begins anew.
        """
        async with self._turn:
            is_running = pace.state is PaceState.RUNNING and not self._is_stopped
            transfer = begin() if is_running else None
            if transfer is None:
                return False
            is_durable = False
            try:
                if await self._copy(transfer, pace):
                    await self._make_durable(transfer)
                    is_durable = True
            finally:
                if not is_durable:
                    break_off(self._storage, transfer)
                    self._has_leftovers = True
                    with contextlib.suppress(OSError):
                        await _in_thread(transfer.abandon)
            if is_durable:
                await self._put_in_force(transfer)
            return is_durable

    async def work_alone(self, work: Callable[[], None]) -> None:
        """Run something in a thread while no transfer is under way."""
        async with self._turn:
            if not self._is_stopped:
                await _in_thread(work)

    async def stop(self) -> None:
        """Begin nothing more, and wait until what is under way has come to its end.

        Its pace is stopped already. Nobody may cancel a round before: its thread would go on.
        """
        self._is_stopped = True
        async with self._turn:
            pass

    async def _copy(self, transfer: Transfer, pace: Pace) -> bool:
        """Copy everything; False: stopped, or suspended, which begins anew and keeps no turn."""
        pieces = transfer.pieces()
        while (size := await _in_thread(partial(next, pieces, None))) is not None:
            if pace.state is PaceState.SUSPENDED or not await pace.admit(size):
                return False
        return True

    async def _make_durable(self, transfer: Transfer) -> None:
        """Write the checkpoint that names the new files."""
        storage = self._storage
        checkpoint = next_checkpoint(storage, transfer)
        # Whatever comes of the checkpoint: the core has forgotten them by now.
        self._damaged_entry_count += len(transfer.damaged)
        self._on_damaged(transfer.damaged)
        try:
            await _in_thread(partial(write_checkpoint, storage.fs, storage.layout.data, checkpoint))
        except OSError:
            # Either checkpoint may be found by the next start: what the new one names stays.
            transfer.keep()
            raise
        storage.checkpoint = checkpoint._replace(state=storage.checkpoint.state)

    async def _put_in_force(self, transfer: Transfer) -> None:
        """Read from the new files, and let go of the old ones.

        If the new ones cannot be opened, the old ones serve on until the next start; the same is
        copied again by the next round.
        """
        storage = self._storage
        await _in_thread(partial(add_files, storage, transfer))
        switch(storage, transfer, self._on_recycled)
        self._carried_count += 1
        self._copied_bytes += transfer.copied_bytes
        self._copied_entry_count += sum(map(len, transfer.moved.values()))
        try:
            await _in_thread(partial(storage.entry_log.retire, transfer.replaced))
        except OSError:
            self._has_leftovers = True
            raise
        if self._has_leftovers:
            self._has_leftovers = False
            refs = storage.checkpoint.entry_log_files
            await _in_thread(partial(storage.entry_log.remove_leftovers, refs))

    def _on_recycled(self) -> None:
        self._recycle_count += 1

    def statistics(self) -> dict[str, Any]:
        """What was carried since the start."""
        return {
            "is_busy": self._turn.locked(),
            "carried_count": self._carried_count,
            "recycle_count": self._recycle_count,
            "copied_bytes": self._copied_bytes,
            "copied_entry_count": self._copied_entry_count,
            "damaged_entry_count": self._damaged_entry_count,
        }


class SettlingPace(Pace):
    """As slow as the journal allows: faster with each file that waits, so that it cannot grow on.

    Args:
        count_sealed: how many journal files wait to be settled.
        now_us: a monotonic clock.
    """

    def __init__(
        self, count_sealed: Callable[[], int], *, now_us: Callable[[], int] = monotonic_us
    ) -> None:
        super().__init__(SETTLE_BYTES_PER_S_FIRST, burst_bytes=PIECE_BYTES, now_us=now_us)
        self._count_sealed = count_sealed

    async def admit(self, size_bytes: int, *, patience_us: int | None = None) -> bool:
        """As `Pace.admit`, at the rate that the backlog asks for now."""
        excess_count = max(0, self._count_sealed() - SETTLE_FILE_COUNT)
        rate = min(SETTLE_BYTES_PER_S_FIRST << min(excess_count, 16), SETTLE_BYTES_PER_S)
        self.change_rate(rate, burst_bytes=PIECE_BYTES)
        return await super().admit(size_bytes, patience_us=patience_us)


class Settling:
    """Decides when to settle; `run_round` is for a `Periodic`."""

    def __init__(self, storage: Storage, carrier: Carrier, pace: Pace) -> None:
        self._storage = storage
        self._carrier = carrier
        self._pace = pace
        self._is_wanted = False
        self._postponed_count = 0

    def request(self) -> None:
        """Settle everything in the next round, the file that is being written too."""
        self._is_wanted = True

    async def run_round(self) -> None:
        """Settle if there is enough of it, or if it was asked for."""
        if self._is_wanted:
            self._is_wanted = False
            await self.settle_all()
        elif len(self._storage.writer.sealed_file_ids) >= SETTLE_FILE_COUNT:
            await self._carrier.carry_out(self._begin, self._pace)

    async def settle_all(self) -> bool:
        """Seal the active journal file and settle all of the journal up to it."""
        sealed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if not self._storage.roll(sealed.set_result):
            return False
        await sealed
        return await self._carrier.carry_out(self._begin, self._pace)

    def _begin(self) -> Transfer | None:
        sealed = self._storage.writer.sealed_file_ids
        if not sealed:
            return None
        hot = self._storage.index.statistics()
        size_bytes = hot["entry_bytes"] + hot["entries"] * record_bytes(0)
        size_bytes += self._storage.index.envelope_bytes_max()
        if not has_room(self._storage, hot["entries"], size_bytes):
            self._postponed_count += 1
            return None
        return begin_settling(self._storage, sealed[-1])

    def statistics(self) -> dict[str, int]:
        """What was not done since the start."""
        return {"postponed_count": self._postponed_count}


async def _in_thread(work: Callable[[], Any]) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, work)
