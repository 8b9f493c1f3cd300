"""Frames between simulated processes: objects, and now and then the bytes that they stand for.

Drivers pack what they send and parse what they get, which would cost a quarter of a run. Here a
frame keeps its rows; one in so many goes through the production codec and back, so that what the
codec loses or turns round is missed like anything else. And what is read is now and then damaged on
the way, as no checksum of a connection would find.

`Frames` go to bookies, `ProxyFrames` from write proxies to sequencers. Bound by `clock` in the
place of `wire.bookie_calls` and `wire.sequencer_calls`; sent by `peers`. Documented in
docs/testing.md.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from duramen.errors import DuramenError
from duramen.ids import Incarnation, log_of
from duramen.wire import bookie_calls, sequencer_calls
from duramen.wire.entry import HEADER_BYTES
from duramen.wire.flexible import filtered_answers, filtered_reads
from duramen.wire.sequencer_calls import Append, AppendResult
from tests.sim.world import World

T = TypeVar("T")
A = TypeVar("A", bookie_calls.ReadAnswer, filtered_answers.FilteredAnswer)

SPELT_EVERY: Final = 13
"""Every so many frames of a kind are spelt: a prime, to meet all senders."""

_SAID: Final = "said_by_a_sequencer"
_NUMBER_BYTES: Final = 8
"""A number of an answer begins with 0, which no frame does."""


class SimFrame(NamedTuple):
    """A request to a bookie."""

    incarnation: Incarnation
    rows: list[Any]
    version: int = 1


class Frames:
    """`wire.bookie_calls` as far as drivers use it; everything else is the module's own.

    Args:
        damage_ratio: of the entries that are read, those with a flipped bit.
    """

    def __init__(self, world: World, rng: random.Random, *, damage_ratio: float = 0.0) -> None:
        self._world = world
        self._count = 0
        self._rng = rng
        self._damage_ratio = damage_ratio

    def __getattr__(self, name: str) -> Any:
        value = getattr(bookie_calls, name)
        setattr(self, name, value)  # a run asks for the same few names with every frame
        return value

    def pack_adds(self, incarnation: Incarnation, adds: Sequence[bookie_calls.Add]) -> SimFrame:
        """Adds; those of several logs are counted."""
        first = log_of(adds[0].ledger_id)
        if any(log_of(add.ledger_id) != first for add in adds):
            self._world.counts["shared frame"] += 1
        pack, parse = bookie_calls.pack_adds, bookie_calls.parse_any_adds
        return self._make_frame(incarnation, adds, pack, parse)

    def pack_seals(self, incarnation: Incarnation, seals: Sequence[bookie_calls.Seal]) -> SimFrame:
        """Seals."""
        pack, parse = bookie_calls.pack_seals, bookie_calls.parse_seals
        return self._make_frame(incarnation, seals, pack, parse)

    def pack_lacs(
        self, incarnation: Incarnation, updates: Sequence[bookie_calls.LacUpdate]
    ) -> SimFrame:
        """LACs, written or asked for."""
        pack, parse = bookie_calls.pack_lacs, bookie_calls.parse_lacs
        return self._make_frame(incarnation, updates, pack, parse)

    def pack_reads(
        self, incarnation: Incarnation, ranges: Sequence[bookie_calls.ReadRange]
    ) -> SimFrame:
        """Ranges to read."""
        pack, parse = bookie_calls.pack_reads, bookie_calls.parse_reads
        return self._make_frame(incarnation, ranges, pack, parse)

    def pack_filtered_reads(
        self, incarnation: Incarnation, ranges: Sequence[filtered_reads.FilteredRange]
    ) -> SimFrame:
        """Ranges of flexible segments to read."""
        pack, parse = filtered_reads.pack_filtered_reads, filtered_reads.parse_filtered_reads
        frame = self._make_frame(incarnation, ranges, pack, parse)
        return frame._replace(version=filtered_reads.READ_VERSION_FILTERED)

    def _make_frame(
        self,
        incarnation: Incarnation,
        rows: Sequence[T],
        pack: Callable[[Incarnation, Sequence[T]], bytes],
        parse: Callable[[bytes], tuple[Incarnation, list[T]]],
    ) -> SimFrame:
        if self._is_spelt():
            return SimFrame(*parse(pack(incarnation, rows)))
        return SimFrame(incarnation, list(rows))

    def parse_statuses(self, answer: Any) -> Any:
        """One status for each add."""
        if self._is_spelt():
            return bookie_calls.parse_statuses(bookie_calls.pack_statuses(answer))
        return answer

    def parse_marks(self, answer: Any, magic: bytes) -> Any:
        """What a bookie says of ledgers."""
        if self._is_spelt():
            return bookie_calls.parse_marks(bookie_calls.pack_marks(magic, answer), magic)
        return answer

    def parse_read_answers(self, answer: Any) -> Any:
        """What a bookie has of ranges."""
        if self._is_spelt():
            answer = bookie_calls.parse_read_answers(bookie_calls.pack_read_answers(answer))
        return [self._damage(found) if found.entries else found for found in answer]

    def parse_filtered_answers(self, answer: Any) -> Any:
        """What a bookie sends of ranges of flexible segments."""
        if self._is_spelt():
            packed = filtered_answers.pack_filtered_answers(answer)
            answer = filtered_answers.parse_filtered_answers(packed)
        return [self._damage(found) if found.entries else found for found in answer]

    def _damage(self, found: A) -> A:
        if self._rng.random() >= self._damage_ratio or len(found.entries[-1][1]) <= HEADER_BYTES:
            return found  # a header alone has no checksum of its own
        self._world.counts["entry damaged on the way"] += 1
        entries = list(found.entries)
        entry_id, entry = entries[-1]
        flipped = bytearray(entry)
        flipped[self._rng.randrange(len(flipped))] ^= 1 << self._rng.randrange(8)
        entries[-1] = (entry_id, bytes(flipped))
        return found._replace(entries=entries)

    def _is_spelt(self) -> bool:
        self._count += 1
        return self._count % SPELT_EVERY == 0


class ProxyFrames:
    """What lanes send and sequencers answer; an uncertain answer says whose it is.

    An answer that is kept as rows travels as a number, since lanes collect bytes: one in so many is
    the production frame, from the one end to the other.
    """

    def __init__(self) -> None:
        self._count = 0
        self._answers: dict[bytes, Sequence[tuple[int, AppendResult]]] = {}
        """Rows on their way; those of an answer that is lost stay."""

    def pack_appends(self, appends: Sequence[Append]) -> bytes | list[Append]:
        """A request."""
        return sequencer_calls.pack_appends(appends) if self._is_spelt() else list(appends)

    def parse_appends(self, body: bytes | list[Append]) -> list[Append]:
        """A request that has come."""
        return sequencer_calls.parse_appends(body) if isinstance(body, bytes) else body

    def pack_results(self, results: Sequence[tuple[int, AppendResult]]) -> bytes:
        """A piece of an answer."""
        if self._is_spelt():
            return sequencer_calls.pack_results(results)
        number = self._count.to_bytes(_NUMBER_BYTES, "big")
        self._answers[number] = results
        return number

    def take_frame(self, buffer: bytearray) -> bytes | None:
        """The first whole piece that was received."""
        if not buffer or buffer[0]:
            return sequencer_calls.take_frame(buffer)
        number = bytes(buffer[:_NUMBER_BYTES])
        del buffer[:_NUMBER_BYTES]
        return number

    def parse_results(self, data: bytes) -> Sequence[tuple[int, AppendResult]]:
        """A piece of an answer that was taken."""
        rows = sequencer_calls.parse_results(data) if data[0] else self._answers.pop(data)
        for _, result in rows:
            if isinstance(result, DuramenError) and result.uncertain:
                result.facts[_SAID] = True
        return rows

    def _is_spelt(self) -> bool:
        self._count += 1
        return self._count % SPELT_EVERY == 0


def is_under_way(facts: Mapping[str, Any]) -> bool:
    """Whether a sequencer may still take an append of unknown fate: none has said so.

    Args:
        facts: of the error that told the client.
    """
    return _SAID not in facts
