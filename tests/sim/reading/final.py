"""The reading at the end: a fresh reader of each log, from its head to behind its last segment.

Called by `run`. Documented in docs/testing.md.
"""

from __future__ import annotations

from typing import Final

from duramen.core.reading.effects import Deliver
from duramen.errors import DuramenError
from duramen.ids import Dlsn, EntryId, Epoch, LogId
from duramen.runtime.reading.log_reader import DataLost, LogCursor, Truncated
from duramen.units import MS
from tests.sim.known_bytes import know_records
from tests.sim.reading.proxy import Cluster, ReadProxy
from tests.sim.world import World

Where = tuple[Epoch, EntryId]

_RETRY_US: Final = 100 * MS


class WholeReader(ReadProxy):
    """A process of its own; reads one log.

    Args:
        first: where to begin.
        end: the epoch that must be reached.
    """

    def __init__(  # noqa: PLR0917 - one reading
        self, world: World, log_id: LogId, region: str, cluster: Cluster, first: Where, end: Epoch
    ) -> None:
        super().__init__(world, f"r{500 + log_id}", region, cluster)
        self.records: list[tuple[Dlsn, int, bytes]] = []
        self.tokens: list[tuple[Dlsn, str]] = []
        self.is_done = False
        self.position = first
        self._log_id = log_id
        self._end = end
        self._number = self.history.new_reader()
        self._wanted_seq_num = 0
        self.loop.run_task(self._read())

    async def _read(self) -> None:
        while self.position[0] < self._end:
            try:
                async with self.cursor_at(self._log_id, self.position) as cursor:
                    await self._take_all(cursor)
                    self.position = cursor.position
            except DuramenError as error:
                self.world.counts[f"final reading: {error.code}"] += 1
                await self.pass_time(_RETRY_US)
        self.is_done = True

    async def _take_all(self, cursor: LogCursor) -> None:
        while True:
            try:
                delivered = await cursor.take(self._wanted_seq_num)
            except Truncated as error:
                self._wanted_seq_num = error.left_seq_num
                self.history.on_reader_gap(self._number, self._log_id)
                continue
            except DataLost:
                cursor.pass_loss()
                self.history.on_reader_gap(self._number, self._log_id)
                continue
            if delivered is None:
                return
            self._note(delivered)
            self.position = (delivered.epoch, EntryId(delivered.entries[-1][0] + 1))

    def _note(self, delivered: Deliver) -> None:
        log_id, epoch, now_us = self._log_id, delivered.epoch, self.world.now_us
        self.note_delivered(self._number, log_id, epoch)
        for entry_id, body in delivered.entries:
            token = self.note_control(log_id, epoch, entry_id, body)
            if token is not None:
                self.tokens.append((Dlsn(epoch, entry_id, 0), token))
            rows = know_records(body, epoch, delivered.start_seq_num)
            self.records += rows
            for dlsn, seq_num, record in rows:
                self.history.on_read(now_us, self._number, log_id, dlsn, seq_num, record)
                self._wanted_seq_num = seq_num + 1
