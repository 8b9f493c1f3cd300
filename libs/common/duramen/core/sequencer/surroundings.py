"""What the cores of a sequencer are given: shared surroundings, and the ports of one log's parts.

Everything that a core must not fetch by itself comes through here: randomness, nonces, the spelling
of entries, which bookies there are. The driver keeps `Surroundings` current.

Called by `log_sequencer`, `ledger_writer`, `recovery` and their driver.
Source: 00-overview "Layering".
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from duramen.core.placement import Candidate
from duramen.core.segment import Totals
from duramen.core.sequencer.effects import Effect
from duramen.ids import EntryId, LedgerId, Member, SequencerId

EncodeEntry = Callable[[LedgerId, EntryId, Totals, Sequence[bytes], int, Totals], bytes]
"""Spells an entry: ledger, entry, totals before, batches, records, totals after."""


@dataclass(slots=True)
class Surroundings:
    """What all logs of one sequencer process share and see."""

    sequencer_id: SequencerId
    rng: random.Random
    encode_entry: EncodeEntry
    unix_offset_us: int = 0
    """Unix time = the driver's monotonic time + this; only ever shown, never compared."""
    candidates: Sequence[Candidate] = ()
    locations: Mapping[Member, Candidate] | None = None
    is_metadata_reachable: bool = True

    def new_nonce(self) -> str:
        """A nonce that nobody else will ever draw."""
        return f"{self.sequencer_id}.{self.rng.getrandbits(96):024x}"

    def unix_ms(self, now_us: int) -> int:
        """Wall-clock time for people."""
        return (now_us + self.unix_offset_us) // 1000


@dataclass(frozen=True, slots=True)
class Ports:
    """What the parts of one log's core are given."""

    put: Callable[[Effect], None]
    new_token: Callable[[], int]
    new_nonce: Callable[[], str]
    rng: random.Random
    locations: Callable[[], Mapping[Member, Candidate]]
    candidates: Callable[[], Sequence[Candidate]]
