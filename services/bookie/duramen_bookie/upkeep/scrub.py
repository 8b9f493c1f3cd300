"""The scrub: every stored byte is read again at a bounded rate and compared with its checksum.

One pass over everything, then a rest. What the pass reads and how it is verified is the storage's
(`ScrubSource`); here is the order of things: wait for the pace, verify in a thread, tell the core
what is damaged (UNKNOWN from then on) and the repair queue which ledgers. A pass begins by
reporting again what is known to be damaged, so that no report is lost for good. When the queue is
full the scrub waits: what it finds it can always tell.

Not here: files and checksums. Called by `rounds` and the admin routes. Source: docs/bookie.md
"Upkeep".
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

from duramen.ids import EntryId, LedgerId
from duramen.limits import SCRUB_REST_US
from duramen_bookie.upkeep.pacing import Pace, PaceState, Periodic, run_in_thread
from duramen_bookie.upkeep.repair_queue import RepairQueue, RepairReason

_LOG = logging.getLogger(__name__)

_SHOWN_DAMAGE_COUNT: Final = 100
"""Damaged entries that the admin API lists; the repair queue has every ledger."""


class ScrubUnit(Protocol):
    """A piece of storage that is verified at once: some MiB, so that a stop waits for little."""

    @property
    def size_bytes(self) -> int:
        """What verifying it reads."""

    def verify(self) -> Sequence[tuple[LedgerId, EntryId]]:
        """Read it past the page cache and return the entries that are damaged; blocks, in a thread.

        Sectors that cannot be read are damage. A unit whose file went meanwhile has none.
        """

    def is_in_force(self, ledger_id: LedgerId, entry_id: EntryId) -> bool:
        """Whether the damaged copy is the one that is read: a mended entry has a newer one."""


class ScrubSource(Protocol):
    """What there is to be verified."""

    def scrub_units(self) -> Iterator[ScrubUnit]:
        """Everything that is stored, once; advanced on the event loop, so it must not block."""

    def damaged_ledgers(self) -> Iterable[LedgerId]:
        """Ledgers of which something is known to be unreadable."""


class PassRecord(NamedTuple):
    """What one pass did."""

    began_unix_us: int
    ended_unix_us: int | None = None
    """None: under way."""
    unit_count: int = 0
    failed_unit_count: int = 0
    """Units that could not be verified at all."""
    verified_bytes: int = 0
    damaged_entry_count: int = 0

    def describe(self) -> dict[str, Any]:
        """For the admin API."""
        fields = self._asdict()
        began_us, ended_us = fields.pop("began_unix_us"), fields.pop("ended_unix_us")
        return {
            "began_unix_ms": began_us // 1_000,
            "ended_unix_ms": None if ended_us is None else ended_us // 1_000,
            **fields,
        }


class ScrubLog:
    """What the passes did: the one under way, the last whole one, and recent damage."""

    def __init__(self) -> None:
        self.running: PassRecord | None = None
        self.last: PassRecord | None = None
        self.damaged_entry_count = 0
        self.recent: deque[tuple[LedgerId, EntryId]] = deque(maxlen=_SHOWN_DAMAGE_COUNT)

    def begin(self, now_unix_us: int) -> None:
        """A pass begins."""
        self.running = PassRecord(now_unix_us)

    def on_verified(self, size_bytes: int, damaged: Sequence[tuple[LedgerId, EntryId]]) -> None:
        """A unit was verified."""
        assert self.running is not None
        self.running = self.running._replace(
            unit_count=self.running.unit_count + 1,
            verified_bytes=self.running.verified_bytes + size_bytes,
            damaged_entry_count=self.running.damaged_entry_count + len(damaged),
        )
        self.damaged_entry_count += len(damaged)
        self.recent.extend(damaged)

    def on_failed(self) -> None:
        """A unit could not be verified."""
        assert self.running is not None
        count = self.running.failed_unit_count + 1
        self.running = self.running._replace(failed_unit_count=count)

    def end(self, now_unix_us: int) -> PassRecord:
        """The pass came to its end."""
        assert self.running is not None
        self.last = self.running._replace(ended_unix_us=now_unix_us)
        self.running = None
        return self.last

    def break_off(self) -> None:
        """The pass did not come to its end, or did already; the next one begins from the start."""
        self.running = None

    def describe(self) -> dict[str, Any]:
        """For the admin API."""
        return {
            "running_pass": None if self.running is None else self.running.describe(),
            "last_pass": None if self.last is None else self.last.describe(),
            "damaged_entry_count": self.damaged_entry_count,
            "recent_damage": [
                {"ledger_id": str(ledger_id), "entry_id": entry_id}
                for ledger_id, entry_id in self.recent
            ],
        }


class Scrub:
    """Verifies everything, again and again, for as long as the bookie runs.

    Args:
        source: the storage.
        pace: of the scrub alone; suspended and resumed by the operator.
        on_damage: the core's `on_unreadable`.
        queue: started and stopped by its owner.
        rest_us: between two passes.
    """

    def __init__(
        self,
        source: ScrubSource,
        pace: Pace,
        *,
        on_damage: Callable[[LedgerId, EntryId], None],
        queue: RepairQueue,
        rest_us: int = SCRUB_REST_US,
        now_unix_us: Callable[[], int] = lambda: time.time_ns() // 1_000,
    ) -> None:
        self._source = source
        self._pace = pace
        self._on_damage = on_damage
        self._queue = queue
        self._now_unix_us = now_unix_us
        self._log = ScrubLog()
        self._passes = Periodic("the scrub", self.run_pass, rest_us=rest_us)

    def start(self) -> None:
        """Begin with a pass at once."""
        self._passes.start()

    async def stop(self) -> None:
        """Stop, after the unit that is being verified; no thread of the scrub reads any more."""
        self._pace.stop()
        await self._passes.stop()

    def suspend(self) -> None:
        """Verify nothing until `resume`."""
        self._pace.suspend()

    def resume(self) -> None:
        """Go on where the pass was suspended."""
        self._pace.resume()

    def begin_soon(self) -> None:
        """End the rest; if a pass is under way, another one follows it."""
        self._passes.hurry()

    async def run_pass(self) -> None:
        """Verify everything once, or as much as there is until `stop`."""
        self._log.begin(self._now_unix_us())
        try:
            for ledger_id in self._source.damaged_ledgers():
                await self._report(ledger_id)
            for unit in self._source.scrub_units():
                if not await self._pace.admit(unit.size_bytes):
                    return
                await self._verify(unit)
            _LOG.info("the scrub came round: %s", self._log.end(self._now_unix_us()).describe())
        finally:
            self._log.break_off()

    def describe(self) -> dict[str, Any]:
        """State, progress, the last pass and what is damaged, for the admin API."""
        if self._pace.state is not PaceState.RUNNING:
            state = self._pace.state.value
        else:
            state = "resting" if self._log.running is None else "running"
        return {"state": state, "bytes_per_s": self._pace.bytes_per_s, **self._log.describe()}

    def statistics(self) -> dict[str, Any]:
        """As `describe`, with the pace and the passes."""
        return {
            **self.describe(),
            "pace": self._pace.statistics(),
            "passes": self._passes.statistics(),
        }

    async def _verify(self, unit: ScrubUnit) -> None:
        try:
            damaged = await run_in_thread(unit.verify)
        except OSError as error:
            self._log.on_failed()
            _LOG.error("the scrub cannot verify %s: %s", unit, error)
            return
        damaged = [entry for entry in damaged if unit.is_in_force(*entry)]
        self._log.on_verified(unit.size_bytes, damaged)
        for ledger_id, entry_id in damaged:
            self._on_damage(ledger_id, entry_id)
        # Only now: the core knows all of it before anything here waits.
        for ledger_id, count in Counter(ledger_id for ledger_id, _ in damaged).items():
            _LOG.error("the scrub found %d damaged entries of ledger %d", count, ledger_id)
            await self._report(ledger_id)

    async def _report(self, ledger_id: LedgerId) -> None:
        while not self._queue.put(ledger_id, RepairReason.SCRUB):
            await self._queue.wait_room()
