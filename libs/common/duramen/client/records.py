"""Records as a reader uses them: whole batches, cut to what was asked for.

Nothing between edge and disk opens a batch, so the first batch of an answer may begin before the
position asked for and the last may pass the count. The reader opens and cuts them here, in bulk.

Pure. Called by `client.bulk_read` and the command line. The answer's form is `wire.read_answers`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from duramen.ids import Dlsn
from duramen.wire.read_answers import PlacedBatch
from duramen.wire.record_batch import Batch, BatchError


class Records(NamedTuple):
    """Consecutive records of one batch: those from `skip` up to, not including, `stop`."""

    placed: PlacedBatch
    batch: Batch
    skip: int
    stop: int

    @property
    def first(self) -> int:
        """Sequence number of the first record that is not cut off."""
        return self.placed.seq_num + self.skip

    @property
    def end(self) -> int:
        """Sequence number after the last record that is not cut off."""
        return self.placed.seq_num + self.stop

    @property
    def bodies(self) -> list[bytes]:
        """The bodies of the records that are not cut off."""
        return self.batch.bodies[self.skip : self.stop]

    def seq_num_of(self, index: int) -> int:
        """The sequence number of the batch's record `index`."""
        return self.placed.seq_num + index

    def dlsn_of(self, index: int) -> Dlsn:
        """The DLSN of the batch's record `index`."""
        return self.placed.dlsn._replace(slot=self.placed.dlsn.slot + index)


def open_batches(
    batches: Sequence[PlacedBatch],
    *,
    first: int | None = None,
    stop: int | None = None,
) -> Iterator[Records]:
    """Decode the batches and leave out the records that were not asked for.

    Args:
        first: sequence number to begin with; None begins with the first record.
        stop: sequence number to end before; None ends with the last record.

    Raises:
        BatchError: a batch is damaged, or holds another number of records than was said.
    """
    for placed in batches:
        start = placed.seq_num
        skip = 0 if first is None else max(0, first - start)
        last = placed.record_count if stop is None else min(placed.record_count, stop - start)
        if skip >= last:
            continue
        batch = placed.decode()
        if batch.info.record_count != placed.record_count:
            raise BatchError(f"{batch.info.record_count} records, not {placed.record_count}")
        yield Records(placed, batch, skip, last)
