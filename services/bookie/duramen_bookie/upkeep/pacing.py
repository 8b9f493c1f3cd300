"""When upkeep may work: so many bytes a second, in rounds with a rest between them.

`ByteBucket` decides how long a piece of work has to wait; `Pace` is what settling, compaction and
scrub each ask before a piece, and what an operator suspends and resumes; `Periodic` runs rounds
and keeps running them when one fails. Everything belongs to one event loop; work that blocks goes
to threads of its owner, a piece at a time, so that a stop or a suspension takes effect between
two pieces.

Not here: what the pieces are. Called by the other modules of `upkeep`. Source: docs/bookie.md
"Upkeep".
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from duramen.runtime.shared_tasks import take_failure
from duramen.units import MINUTE, SECOND

_LOG = logging.getLogger(__name__)

T = TypeVar("T")


def monotonic_us() -> int:
    """The clock that paces are measured by: microseconds from an arbitrary beginning."""
    return time.monotonic_ns() // 1_000


async def run_in_thread(work: Callable[[], T]) -> T:
    """Do work that blocks; a cancellation waits for its end: its files may be closed afterwards."""
    loop = asyncio.get_running_loop()
    working = loop.run_in_executor(None, work)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait([working])
        take_failure(working)
        raise


class ByteBucket:
    """A token bucket of bytes; integers only, so that nothing is lost by rounding.

    Args:
        bytes_per_s: > 0; what flows in.
        burst_bytes: ≥ 0; what may be saved up while nothing is asked for.
        now_us: a monotonic clock.

    Invariants:
     1 the credit never exceeds the burst.
    """

    def __init__(self, bytes_per_s: int, *, burst_bytes: int, now_us: Callable[[], int]) -> None:
        assert bytes_per_s > 0 and burst_bytes >= 0, (bytes_per_s, burst_bytes)
        self.bytes_per_s = bytes_per_s
        self._now_us = now_us
        # Bytes × microseconds a second: one microsecond brings exactly `bytes_per_s` of them.
        self._credit_max = burst_bytes * SECOND
        self._credit = self._credit_max
        self._filled_us = now_us()

    def change(self, bytes_per_s: int, *, burst_bytes: int) -> None:
        """Another rate from now on; a debt stays, what was saved up beyond the burst does not."""
        assert bytes_per_s > 0 and burst_bytes >= 0, (bytes_per_s, burst_bytes)
        self._fill()
        self.bytes_per_s = bytes_per_s
        self._credit_max = burst_bytes * SECOND
        self._credit = min(self._credit, self._credit_max)

    def delay_s(self, size_bytes: int) -> float:
        """Take `size_bytes` and say how long to wait before using them; 0.0: not at all.

        The bucket may be overdrawn, so that a piece larger than the burst is possible at all;
        whoever comes next waits for it as well.
        """
        assert size_bytes >= 0, size_bytes
        self._fill()
        self._credit -= size_bytes * SECOND
        return max(0, -self._credit) / self.bytes_per_s / SECOND

    def _fill(self) -> None:
        now_us = self._now_us()
        income = (now_us - self._filled_us) * self.bytes_per_s
        self._credit = min(self._credit + income, self._credit_max)
        self._filled_us = now_us


class PaceState(enum.Enum):
    """RUNNING ⇄ SUSPENDED; either → STOPPED, which is final."""

    RUNNING = "running"
    SUSPENDED = "suspended"
    STOPPED = "stopped"


class Pace:
    """The gate in front of every piece of one kind of upkeep.

    Args:
        bytes_per_s: > 0.
        burst_bytes: None: what flows in within a second.
        now_us: a monotonic clock.
    """

    def __init__(
        self,
        bytes_per_s: int,
        *,
        burst_bytes: int | None = None,
        now_us: Callable[[], int] = monotonic_us,
    ) -> None:
        burst_bytes = bytes_per_s if burst_bytes is None else burst_bytes
        self._bucket = ByteBucket(bytes_per_s, burst_bytes=burst_bytes, now_us=now_us)
        self._now_us = now_us
        self._state = PaceState.RUNNING
        self._changed = asyncio.Event()
        self._waiting_count = 0
        self._admitted_count = 0
        self._admitted_bytes = 0
        self._waited_us = 0

    @property
    def bytes_per_s(self) -> int:
        """The rate."""
        return self._bucket.bytes_per_s

    @property
    def state(self) -> PaceState:
        """Whether pieces are let through."""
        return self._state

    def change_rate(self, bytes_per_s: int, *, burst_bytes: int) -> None:
        """Another rate for whoever comes from now on; who waits already waits as was computed."""
        self._bucket.change(bytes_per_s, burst_bytes=burst_bytes)

    async def admit(self, size_bytes: int, *, patience_us: int | None = None) -> bool:
        """Wait until a piece of that size may be worked on; False: stopped, do nothing more.

        A piece is charged once, when the work runs; a suspension adds to its wait, no bytes.

        Args:
            patience_us: ≥ 0; whoever asked waits no longer than that, though all is charged. None:
                as long as it takes.
        """
        began_us = self._now_us()
        self._waiting_count += 1
        try:
            is_admitted = await self._wait_turn(size_bytes, patience_us)
        finally:
            self._waiting_count -= 1
            self._waited_us += self._now_us() - began_us
        if is_admitted:
            self._admitted_count += 1
            self._admitted_bytes += size_bytes
        return is_admitted

    def suspend(self) -> None:
        """Let nothing through until `resume`; what was let through before goes on."""
        if self._state is PaceState.RUNNING:
            self._move_to(PaceState.SUSPENDED)

    def resume(self) -> None:
        """Go on after `suspend`."""
        if self._state is PaceState.SUSPENDED:
            self._move_to(PaceState.RUNNING)

    def stop(self) -> None:
        """Turn away whoever waits and whoever comes, for ever."""
        self._move_to(PaceState.STOPPED)

    def statistics(self) -> dict[str, Any]:
        """The rate, the state, and what was let through since construction."""
        return {
            "state": self._state.value,
            "bytes_per_s": self.bytes_per_s,
            "admitted_count": self._admitted_count,
            "admitted_bytes": self._admitted_bytes,
            "waiting_count": self._waiting_count,
            "waited_us": self._waited_us,
        }

    async def _wait_turn(self, size_bytes: int, patience_us: int | None) -> bool:
        due_us: int | None = None
        while self._state is not PaceState.STOPPED:
            if self._state is PaceState.SUSPENDED:
                await self._changed.wait()
                continue
            now_us = self._now_us()
            if due_us is None:
                delay_us = round(self._bucket.delay_s(size_bytes) * SECOND)
                due_us = now_us + (delay_us if patience_us is None else min(delay_us, patience_us))
            if due_us <= now_us:
                return True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout((due_us - now_us) / SECOND):
                    await self._changed.wait()
        return False

    def _move_to(self, state: PaceState) -> None:
        self._state = state
        # Whoever waits has seen the old state: wake them, and let later ones wait anew.
        self._changed.set()
        self._changed = asyncio.Event()


class Periodic:
    """Runs a round, rests, runs the next one, until stopped; never two at once.

    A round that raises is logged and counted, and the next one comes after a minute at most: upkeep
    that fails must neither take the bookie with it nor end without anybody noticing.

    Args:
        name: for the log.
        run_round: one round; cancelled by `stop`.
        rest_us: between the end of one round and the begin of the next.
    """

    def __init__(
        self, name: str, run_round: Callable[[], Awaitable[None]], *, rest_us: int
    ) -> None:
        self._name = name
        self._run_round = run_round
        self._rest_us = rest_us
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_resting = False
        self._round_count = 0
        self._failed_count = 0

    def start(self) -> None:
        """Begin with a round at once."""
        assert self._task is None, "started twice"
        self._task = asyncio.create_task(self._run_rounds())

    async def stop(self) -> None:
        """Cancel what runs and wait for its end; safe without `start`."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def hurry(self) -> None:
        """End the rest; during a round: run another one directly after it."""
        self._wanted.set()

    def statistics(self) -> dict[str, Any]:
        """What runs and what ran."""
        return {
            "is_resting": self._is_resting,
            "round_count": self._round_count,
            "failed_round_count": self._failed_count,
            "rest_us": self._rest_us,
        }

    async def _run_rounds(self) -> None:
        while True:
            self._wanted.clear()
            rest_us = self._rest_us
            try:
                await self._run_round()
                self._round_count += 1
            except Exception:
                self._failed_count += 1
                rest_us = min(rest_us, MINUTE)
                _LOG.exception("a round of %s failed, the next one comes", self._name)
            self._is_resting = True
            with contextlib.suppress(TimeoutError):
                # Not `wait_for`: it may take a cancellation for the event that came with it.
                async with asyncio.timeout(rest_us / SECOND):
                    await self._wanted.wait()
            self._is_resting = False
