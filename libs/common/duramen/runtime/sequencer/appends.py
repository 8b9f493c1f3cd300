"""An append as the cores are given it: made of a record batch whose bytes are checked once, here.

Header and CRC are checked, never the records. Who asks for the append, and what becomes of its
answer, is the caller's.

Called by the sequencer's `append_frames` and by `duramen.client.core`.
Source: docs/benchmarks.md "What shaped the design", docs/protocol/wire.md "Record batch".
"""

from __future__ import annotations

from duramen.core.sequencer.exactly_once.stamps import Stamp
from duramen.core.sequencer.transmit import QueuedAppend
from duramen.wire.record_batch import check_batch
from duramen.wire.sequencer_calls import NO_OPTIONS, AppendOptions


def make_append(
    append_id: int, batch: bytes, deadline_us: int, options: AppendOptions = NO_OPTIONS
) -> QueuedAppend:
    """The append of a batch.

    Args:
        append_id: unique among the appends of its log that are not answered.
        deadline_us: of the monotonic clock; when it may be refused for waiting.

    Raises:
        BatchError: no batch, beyond the limits, or damaged.
    """
    info = check_batch(batch)
    return QueuedAppend(
        append_id,
        batch,
        info.record_count,
        info.max_txid,
        info.max_timestamp_ms,
        deadline_us,
        info.min_txid,
        None if info.producer is None else Stamp(*info.producer),
        options.match_seq_num,
        options.fencing_token,
        tried=options.tried,
        decoded_bytes=info.decoded_bytes,
        region=options.region,
    )
