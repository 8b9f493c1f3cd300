"""A read proxy of the simulated cluster that asks for tails, and reads up to what it is told.

What is called sure must lie above all that was acknowledged before the question, early appends too,
and not beyond what was written (L1); now and then the log is read from its head up to there, and
all of that must come, once and in order (D1, G1).

Called by `run`. Documented in docs/testing.md.
"""

from __future__ import annotations

import asyncio
from typing import Final

from duramen.errors import DuramenError
from duramen.ids import Dlsn, EntryId, Epoch, LogId
from duramen.runtime.reading.log_reader import DataLost, Truncated
from duramen.runtime.reading.tail import Tail
from duramen.units import MS
from tests.sim.known_bytes import know_records
from tests.sim.log_record import TailQuestion
from tests.sim.reading.proxy import Cluster, ReadProxy
from tests.sim.world import World

_PAUSE_US: Final = 800 * MS
"""Mean time between two questions."""

_READ_RATIO: Final = 0.05
"""So many tails are read to from the head of the log."""

_READ_WAIT_S: Final = 8.0
"""A reader that is not there by then is given up: bookies may be down, or cut off."""

Where = tuple[Epoch, EntryId]


class TailNode(ReadProxy):
    """The read proxy; works until the run ends."""

    def __init__(self, world: World, region: str, cluster: Cluster) -> None:
        super().__init__(world, "tails", region, cluster)
        self._log_count = cluster.log_count
        self.after(_PAUSE_US, self._ask)

    def _ask(self) -> None:
        self.loop.run_task(self._find(LogId(1 + self.rng.randrange(self._log_count))))
        self.after(int(self.rng.uniform(0.1, 2) * _PAUSE_US), self._ask)

    async def _find(self, log_id: LogId) -> None:
        question = self.history.on_tail_asked(log_id)
        try:
            tail = await self.finder.find(self.follower_of(log_id))
        except DuramenError as error:
            self.world.counts[f"tail: {error.code}"] += 1
            return
        self.world.counts["tail: sure" if tail.is_sure else "tail: not sure"] += 1
        if not (tail.is_sure and tail.is_covered):
            return
        place = Dlsn(tail.epoch, tail.entry, 0)
        self.history.on_tail(self.world.now_us, question, place, tail.seq_num)
        if self.rng.random() < _READ_RATIO:
            await self._read_to(log_id, question, tail)

    async def _read_to(self, log_id: LogId, question: TailQuestion, tail: Tail) -> None:
        """Read the log from its head to a tail that was told."""
        epoch, entry, _ = self.read_log(log_id).trim.dlsn
        try:
            async with asyncio.timeout(_READ_WAIT_S):
                found = await self._read(log_id, (epoch, entry), tail)
        except (DuramenError, TimeoutError):
            self.world.counts["tail: given up"] += 1
            return
        self.world.counts["tail: read to"] += 1
        # What was truncated meanwhile may be passed over.
        self.history.on_read_to_tail(question, self.read_log(log_id).trim.dlsn, found)

    async def _read(self, log_id: LogId, head: Where, tail: Tail) -> list[Dlsn]:
        """The places of all records between the two."""
        found: list[Dlsn] = []
        wanted_seq_num = 0
        reader = self.history.new_reader()
        async with self.cursor_at(log_id, head) as cursor:
            await cursor.on_tail(tail)
            while True:
                try:
                    delivered = await cursor.take(wanted_seq_num)
                except Truncated as error:
                    wanted_seq_num = error.left_seq_num
                    self.history.on_reader_gap(reader, log_id)
                    continue
                except DataLost:
                    cursor.pass_loss()
                    self.history.on_reader_gap(reader, log_id)
                    continue
                if delivered is None:
                    assert cursor.position >= (tail.epoch, tail.entry), (cursor.position, tail)
                    return found
                self.note_delivered(reader, log_id, delivered.epoch)
                for _, body in delivered.entries:
                    rows = know_records(body, delivered.epoch, delivered.start_seq_num)
                    for dlsn, seq_num, record in rows:
                        found.append(dlsn)
                        self.history.on_read(
                            self.world.now_us, reader, log_id, dlsn, seq_num, record
                        )
                        wanted_seq_num = seq_num + 1
