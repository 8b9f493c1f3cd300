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
import itertools
import logging
import random
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from duramen.ids import Incarnation
from duramen.runtime.members import gossiping, witnessing
from duramen.runtime.metadata_log import entry_reads
from duramen.runtime.reading import bookies, cold_reads, log_reader, tail
from duramen.runtime.sequencer import (
    bookie_lanes,
    history,
    log_driver,
    node_watch,
    store_lane,
)
from duramen.units import SECOND
from duramen.wire import bookie_calls
from duramen_bookie import admission, handlers, identity, storage
from duramen_bookie.repair import inventory, pulling
from duramen_bookie.upkeep import repair_queue
from duramen_readproxy.following import feed, places, record_reader, streams
from duramen_sequencer import append_frames, fencing, log_host
from duramen_sequencer.life import boundaries, keeping, metadata_epochs, metadata_logs
from duramen_sequencer.ownership import reaching
from duramen_sequencer.repair import (
    auditor,
    commits,
    operations,
    readings,
    rebalancing,
    rounds,
    worker,
)
from duramen_writeproxy import lanes
from duramen_writeproxy.intake import session, stream_route
from tests.sim import known_bytes
from tests.sim.frames import Frames, ProxyFrames, SimFrame
from tests.sim.keeping import CountedClaimLink, short_lived_config
from tests.sim.reading.watched import WatchedCursor
from tests.sim.watched_driver import InjectedFault, WatchedDriver
from tests.sim.world import World

T = TypeVar("T")

_METRICS: Final = ("ADD_BYTES", "ADD_ENTRIES", "JOURNAL_QUEUE_BYTES", "JOURNAL_SYNC_SECONDS")
_READ_CODEC: Final = (
    "pack_lacs", "pack_reads", "parse_marks", "parse_read_answers", "pack_filtered_reads",
    "parse_filtered_answers",
)  # fmt: skip
_LANE_CODEC: Final = ("pack_appends", "parse_results", "take_frame")
_PLANE_METRICS: Final = ("APPEND_WAIT_SECONDS", "READ_WAIT_SECONDS", "CLASS_REFUSALS")
_LOGGERS: Final = (
    "duramen_sequencer", "duramen_bookie", "duramen.runtime.registry", "duramen.runtime.sequencer",
    "duramen.runtime.reading", "duramen_readproxy", "duramen_writeproxy",
)  # fmt: skip

_DAMAGE_RATIO: Final = 0.05
"""Of the entries that recoveries read, of which a seed has some thirty."""

_READER_DAMAGE_RATIO: Final = 0.002
"""Of what readers are given, thousands of answers in a seed."""

_LINGER_S: Final = 0.3
"""How long a feed waits for another reader: there are few here, and each poll costs time."""

_MEMBER_LOOK_S: Final = 0.1
"""How often a member looks: a quarter as often, which costs a quarter."""

_TAKEOVER_COUNT: Final = 2
"""Takeovers at once: fewer than the logs of most seeds, so that some wait for their turn."""


class _Clock:
    """As much of `time` as is asked for."""

    def __init__(self, world: World) -> None:
        self._world = world

    def monotonic_ns(self) -> int:
        return self._world.now_us * 1_000

    def monotonic(self) -> float:
        return self._world.now_us / SECOND

    def perf_counter(self) -> float:
        return self._world.now_us / SECOND

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

    def labels(self, *_: str) -> _Silence:
        return self

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
        error = None if record.exc_info is None else record.exc_info[1]
        if error is not None and not isinstance(error, InjectedFault):
            self._world.at(0, _raise, error)


def _keep(value: T) -> T:
    return value


def _take_rows(frame: SimFrame) -> tuple[Incarnation, list[Any]]:
    return frame.incarnation, frame.rows


def _keep_rows(_magic: bytes, rows: T) -> T:
    return rows


def _read_version(frame: SimFrame) -> int:
    return frame.version


def _make_nothing(*_given: object, **_named: object) -> None:
    """No thread, no metric."""


def _list_timed() -> list[ModuleType]:
    """Who has the clock of the drivers by name."""
    return [
        module
        for name, module in sorted(sys.modules.items())
        if name.startswith("duramen") and vars(module).get("now_us") is log_driver.now_us
    ]


async def _run_at_once(work: Callable[[], T]) -> T:
    return work()


@contextlib.contextmanager
def virtual_time(world: World, seed: int) -> Iterator[None]:
    """Bind the names for the length of the block."""
    known_bytes.forget()
    bindings = _list_bindings(world, seed)
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


def _list_bindings(world: World, seed: int) -> list[_Binding]:
    rng = random.Random(f"nonces {seed}")
    clock = _Clock(world)

    def now_us() -> int:
        return world.now_us

    def uuid4() -> UUID:
        return UUID(int=rng.getrandbits(128))

    chance = random.Random(f"damage {seed}")
    frames, damaging = Frames(world, chance), Frames(world, chance, damage_ratio=_DAMAGE_RATIO)
    readers = Frames(
        world, random.Random(f"reader damage {seed}"), damage_ratio=_READER_DAMAGE_RATIO
    )
    proxies = ProxyFrames()
    question = SimFrame(Incarnation("0" * 32), [])
    return [
        *(_Binding(m, "now_us", now_us) for m in (auditor, worker, readings, operations)),
        *(_Binding(m, "now_us", now_us) for m in _list_timed()),
        *(_Binding(m, "_read_clock_us", now_us) for m in (bookie_lanes, node_watch, store_lane)),
        _Binding(node_watch, "LISTED", _Silence()),
        *(_Binding(m, "calls", damaging) for m in (bookie_lanes, store_lane)),
        *(_Binding(m, "calls", frames) for m in (history, boundaries, entry_reads)),
        *(
            _Binding(bookie_lanes, name, getattr(damaging, name))
            for name in ("pack_filtered_reads", "parse_filtered_answers")
        ),
        _Binding(reaching, "_QUESTION", question),
        *_list_plane_bindings(now_us),
        _Binding(gossiping, "LOOK_INTERVAL_S", _MEMBER_LOOK_S),
        *(_Binding(witnessing, name, _make_nothing) for name in ("PeerClient", "Roster")),
        *(
            _Binding(append_frames, n, getattr(proxies, n))
            for n in ("parse_appends", "pack_results")
        ),
        *(_Binding(lanes, name, getattr(proxies, name)) for name in _LANE_CODEC),
        _Binding(lanes, "FRAMES", _Silence()),
        *(_Binding(session, name, _Silence()) for name in ("APPEND_SECONDS", "APPENDS")),
        *(_Binding(m, "time", clock) for m in (session, stream_route)),
        _Binding(append_frames, "_SECONDS", _Silence()),
        _Binding(append_frames, "_APPENDS", _Silence()),
        _Binding(append_frames, "_BYTES", _Silence()),
        _Binding(fencing, "_COMMAND_IDS", itertools.count(-1, -1)),
        _Binding(log_host, "LogDriver", WatchedDriver),
        _Binding(log_host, "_TAKEOVER_COUNT", _TAKEOVER_COUNT),
        *(_Binding(m, "read_clock_us", now_us) for m in (bookies, log_reader, tail)),
        *(_Binding(m, "read_clock_us", now_us) for m in (feed, places, record_reader, streams)),
        *(_Binding(m, "LogCursor", WatchedCursor) for m in (feed, record_reader)),
        _Binding(feed, "LINGER_S", _LINGER_S),
        _Binding(cold_reads, "ThreadPoolExecutor", _make_nothing),
        _Binding(bookie_calls, "check_entry", known_bytes.know_entry),
        *(_Binding(bookies, name, getattr(readers, name)) for name in _READ_CODEC),
        *(_Binding(m, "time", clock) for m in (rounds, rebalancing, operations)),
        *(_Binding(m, "time", clock) for m in (inventory, pulling)),
        *(_Binding(m, "secrets", _Nonces(rng)) for m in (commits, keeping)),
        _Binding(keeping, "time", clock),
        _Binding(metadata_epochs, "ClaimLink", CountedClaimLink),
        _Binding(metadata_logs, "metadata_log_config", short_lived_config),
        *(_Binding(module, "uuid4", uuid4) for module in (identity, repair_queue)),
        _Binding(inventory, "run_in_thread", _run_at_once),
        *(_Binding(storage, name, _Silence()) for name in _METRICS),
        *(_Binding(*row) for row in known_bytes.list_node_readers()),
    ]


def _list_plane_bindings(now_us: Callable[[], int]) -> list[_Binding]:
    """Of a bookie's data plane."""
    return [
        *(
            _Binding(handlers, f"parse_{rows}", _take_rows)
            for rows in ("any_adds", "reads", "filtered_reads", "seals", "lacs")
        ),
        *(
            _Binding(handlers, f"pack_{rows}", _keep)
            for rows in ("statuses", "read_answers", "filtered_answers")
        ),
        _Binding(handlers, "pack_marks", _keep_rows),
        _Binding(handlers, "frame_version", _read_version),
        _Binding(admission, "check_entry", known_bytes.know_entry),
        _Binding(handlers, "_read_clock_us", now_us),
        _Binding(handlers, "ThreadPoolExecutor", _make_nothing),
        *(_Binding(handlers, name, _make_nothing) for name in ("show_classes", "show_polls")),
        *(_Binding(handlers, name, _Silence()) for name in _PLANE_METRICS),
    ]


def _raise(error: BaseException) -> None:
    raise error
