"""What all logs that one process owns share: identity, randomness, clocks, the encoding of entries.

The cores are given it as `SequencerContext`; `surveyor` keeps current which bookies there are, and
whoever runs the process says whether ZooKeeper is there. A process is a sequencer, or any other
that writes logs by itself (`duramen.client.core`).

Called by the sequencer's service and by `duramen.client.core`. Source: ARCHITECTURE.md "Three
layers".
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Sequence
from typing import Final

import prometheus_client

from duramen.core.segment import Totals
from duramen.core.sequencer.context import SequencerContext
from duramen.ids import EntryId, LedgerId, SequencerId
from duramen.runtime.sequencer.log_driver import now_us
from duramen.wire.control_record import encode_control
from duramen.wire.entry import CONTROL, HEADER_BYTES, STATE, encode_entry

COMPRESSION_IN: Final = prometheus_client.Counter(
    "duramen_sequencer_compression_in_bytes",
    "Bytes of record batches in entries of logs with compression",
)
COMPRESSION_OUT: Final = prometheus_client.Counter(
    "duramen_sequencer_compression_out_bytes",
    "Bytes that these record batches have in their entries",
)
COMPRESSION_SECONDS: Final = prometheus_client.Counter(
    "duramen_sequencer_compression_seconds",
    "Time that encoding these entries took, while nothing else of the process ran",
)


def make_context(sequencer_id: str) -> SequencerContext:
    """The context of a process that has just started; no bookie is known yet."""
    return SequencerContext(
        sequencer_id=SequencerId(sequencer_id),
        rng=random.Random(secrets.randbits(64)),
        encode_entry=_encode,
        unix_offset_us=time.time_ns() // 1000 - now_us(),
        encode_control=encode_control,
    )


def _encode(  # noqa: PLR0917 - the shape of `EncodeEntry`
    ledger_id: LedgerId,
    entry: EntryId,
    before: Totals,
    batches: Sequence[bytes],
    record_count: int,
    after: Totals,
    *,
    is_control: bool = False,
    has_state: bool = False,
    is_compressing: bool = False,
) -> bytes:
    begun_ns = time.perf_counter_ns()
    encoded = encode_entry(
        ledger_id=ledger_id,
        entry_id=entry,
        before=before,
        batches=batches,
        record_count=record_count,
        after=after,
        flags=CONTROL * is_control | STATE * has_state,
        is_compressing=is_compressing,
    )
    if is_compressing:
        COMPRESSION_IN.inc(after.length_bytes - before.length_bytes)
        COMPRESSION_OUT.inc(len(encoded) - HEADER_BYTES)
        COMPRESSION_SECONDS.inc((time.perf_counter_ns() - begun_ns) / 1e9)
    return encoded
