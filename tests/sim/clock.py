"""The clock, the nonces and the threads of production code that has them by name, for one run.

Cores are given time and randomness; what drives them looks at a clock. Where such a driver is
production code that runs here (repair, identity, registration, tails), its names are bound to this
world's for the length of a run: virtual time, seeded nonces, and work that would go to a thread is
done at once. Metrics that are moved with every add go nowhere, and what the same bytes of a node
say is read once (`known_bytes`).

Called by `run`. Documented in docs/testing.md.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from duramen.runtime.reading import tail
from duramen_bookie import identity, storage
from duramen_bookie.repair import inventory, pulling
from duramen_bookie.upkeep import repair_queue
from duramen_sequencer.repair import (
    auditor,
    commits,
    operations,
    readings,
    rebalancing,
    rounds,
    worker,
)
from tests.sim import known_bytes
from tests.sim.world import World

T = TypeVar("T")

_METRICS: Final = ("ADD_BYTES", "ADD_ENTRIES", "JOURNAL_QUEUE_BYTES", "JOURNAL_SYNC_SECONDS")
_LOGGERS: Final = ("duramen_sequencer.repair", "duramen_bookie", "duramen.runtime.registry")


class _Clock:
    """As much of `time` as is asked for."""

    def __init__(self, world: World) -> None:
        self._world = world

    def monotonic_ns(self) -> int:
        return self._world.now_us * 1_000

    def time_ns(self) -> int:
        return self._world.now_us * 1_000


class _Nonces:
    """As much of `secrets` as is asked for."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def token_hex(self, byte_count: int) -> str:
        return self._rng.randbytes(byte_count).hex()


class _Silence:
    """As much of a metric as is asked for."""

    def inc(self, amount: float = 1) -> None:
        pass

    def set(self, value: float) -> None:
        pass

    def observe(self, amount: float) -> None:
        pass


class _Binding(NamedTuple):
    owner: Any
    name: str
    value: Any


class _ErrorsEnd(logging.Handler):
    """An error that production code logs and survives ends the run: it is a finding."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info is not None and record.exc_info[1] is not None:
            self._world.at(0, _raise, record.exc_info[1])


async def _run_at_once(work: Callable[[], T]) -> T:
    return work()


@contextlib.contextmanager
def virtual_time(world: World, seed: int) -> Iterator[None]:
    """Bind the names for the length of the block."""
    known_bytes.forget()
    bindings = _list_bindings(world, random.Random(f"nonces {seed}"))
    kept = [vars(owner)[name] for owner, name, _ in bindings]
    handler = _ErrorsEnd(world)
    loggers = [(logger := logging.getLogger(name), logger.propagate) for name in _LOGGERS]
    for owner, name, value in bindings:
        setattr(owner, name, value)
    for logger, _ in loggers:
        logger.addHandler(handler)
        logger.propagate = False
    try:
        yield
    finally:
        for (owner, name, _), value in zip(bindings, kept, strict=True):
            setattr(owner, name, value)
        for logger, does_propagate in loggers:
            logger.removeHandler(handler)
            logger.propagate = does_propagate


def _list_bindings(world: World, rng: random.Random) -> list[_Binding]:
    clock = _Clock(world)

    def now_us() -> int:
        return world.now_us

    def uuid4() -> UUID:
        return UUID(int=rng.getrandbits(128))

    return [
        *(_Binding(m, "now_us", now_us) for m in (auditor, worker, readings, operations)),
        _Binding(tail, "read_clock_us", now_us),
        *(_Binding(m, "time", clock) for m in (rounds, rebalancing, operations)),
        *(_Binding(m, "time", clock) for m in (inventory, pulling)),
        _Binding(commits, "secrets", _Nonces(rng)),
        *(_Binding(module, "uuid4", uuid4) for module in (identity, repair_queue)),
        _Binding(inventory, "run_in_thread", _run_at_once),
        *(_Binding(storage, name, _Silence()) for name in _METRICS),
        *(_Binding(*row) for row in known_bytes.list_node_readers()),
    ]


def _raise(error: BaseException) -> None:
    raise error
