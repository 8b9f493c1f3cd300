"""All logs of one sequencer process: whose is a log, take it over, close what dead owners left.

An append for a log that is not ours yet is routed once, however many wait for it, by
`ownership.claims`. Takeovers go through one queue, hottest first and some at once. Orphans (an
unclosed segment and no owner) are closed without waiting for an append, so that what was
acknowledged can be read. A log that leaves is closed in peace while its appends wait here, and then
they are sent to its next owner. A log that is idle costs nothing: its driver is dropped.

Ownership here is routing only; safety comes from seals and compare-and-set.
Called by `append_frames`, `control`, `ownership.hand_over` and `service`.
Source: docs/protocol/ownership.md "Without a session", docs/protocol/recovery.md "Orphans" and
"Takeover".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection
from typing import Any

import prometheus_client

from duramen.config import Window
from duramen.core.log_node import LogNode
from duramen.core.ownership.takeover_queue import TakeoverQueue
from duramen.core.placement.node_states import ListChange
from duramen.core.sequencer.context import SequencerContext
from duramen.core.sequencer.log_state import LogState
from duramen.core.sequencer.transmit import QueuedAppend
from duramen.errors import DuramenError
from duramen.ids import LogId, SequencerId, is_metadata_log
from duramen.runtime.registry import Roster
from duramen.runtime.sequencer.bookie_lanes import BookieLanes
from duramen.runtime.sequencer.loads import KnownRates
from duramen.runtime.sequencer.log_driver import Answer, Home, LogDriver, now_us
from duramen.runtime.sequencer.metadata_link import MetadataLink
from duramen.runtime.sequencer.story import Stories
from duramen.runtime.stores.metadata_store import MetadataError, SessionState
from duramen.wire.metadata_json import MetadataJsonError
from duramen.wire.sequencer_calls import AppendResult, Redirect
from duramen_sequencer.life.workers import for_each
from duramen_sequencer.ownership.claims import Claims

_LOG = logging.getLogger(__name__)
BROKEN_INVARIANTS = prometheus_client.Counter(
    "duramen_sequencer_broken_invariants_total", "Logs that were let go because of a fault of ours."
)
_SCAN_INTERVAL_S = 10.0
_SCAN_AFTER_CHANGE_S = 0.2
_TOLD_AT_ONCE = 32
"""Logs that are told of a silent bookie before others have their turn: 0.1 ms each."""

_SCAN_CONCURRENCY = 16
_STOP_S = 8.0

_TAKEOVER_COUNT = 32
"""Takeovers under way: each is a dozen calls one after the other, so this many keep ZooKeeper and
the bookies busy, and none waits long enough in their queues to be called late."""

_TAKEOVER_S = 5.0
"""A takeover that lasts longer waits for something: it goes on, and another one may begin."""

_LEAVE_COUNT = 64
"""Logs that a stopping process closes at one time; the others take appends until their turn."""

_HELD = Window()
"""What may wait for one log that is on its way to or from this process, as in any log's window."""


class _Held:
    """Appends of one log that wait for its owner to be known."""

    __slots__ = ("appends", "size_bytes")

    def __init__(self) -> None:
        self.appends: list[tuple[QueuedAppend, Answer]] = []
        self.size_bytes = 0

    def put(self, append: QueuedAppend, answer: Answer) -> None:
        """Keep one, or refuse it when too many wait."""
        size_bytes = self.size_bytes + len(append.batch)
        is_full = self.appends and size_bytes > _HELD.bytes
        if is_full or len(self.appends) >= _HELD.entries:
            answer(DuramenError("window_full", "too many appends wait for the log's owner"))
            return
        self.size_bytes = size_bytes
        self.appends.append((append, answer))

    def tried(self) -> frozenset[str]:
        """Every sequencer that one of the appends has been to in vain."""
        return frozenset(name for append, _ in self.appends for name in append.tried)


class LogHost:
    """The logs of this process."""

    def __init__(
        self,
        sequencer_id: SequencerId,
        context: SequencerContext,
        lanes: BookieLanes,
        link: MetadataLink,
        sequencers: Roster,
        *,
        away: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self.drivers: dict[LogId, LogDriver] = {}
        """Of logs that people made."""
        self._metadata_drivers: dict[LogId, LogDriver] = {}
        self.claims = Claims(context, link, sequencers, away=away)
        self.stories = Stories()
        self.rates = KnownRates()
        self.hot: dict[LogId, str] = {}
        """Logs that are too hot for this process, and why; kept by `ownership.hot_logs`."""
        self.sequencer_id = sequencer_id
        self._context = context
        self._lanes = lanes
        lanes.watch.on_lists_changed = self._on_lists_changed
        self.link = link
        self._routing: dict[LogId, _Held] = {}
        self._leaving: dict[LogId, _Held] = {}
        self._takeovers = TakeoverQueue(_TAKEOVER_COUNT)
        self._scan_wanted = asyncio.Event()
        self._scanner: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._past = dict.fromkeys(("takeovers", "recoveries", "rolls"), 0)
        self.scan_count = 0
        self.broken_count = 0

    # --- appends ---------------------------------------------------------------------------------

    def submit(self, log_id: LogId, append: QueuedAppend, answer: Answer) -> LogDriver | None:
        """Give an append to its log; returns the driver to `flush` if it is here already."""
        driver = self.drivers.get(log_id)
        if driver is not None and driver.core.is_owner:
            driver.append(append, answer)
            return driver
        leaving = self._leaving.get(log_id)
        if leaving is not None:
            leaving.put(append, answer)
        elif driver is not None and self._takeovers.is_wanted(log_id):
            self._takeovers.want(log_id, demand=1)
            driver.append(append, answer)
            return driver
        else:
            held = self._routing.get(log_id)
            if held is None:
                held = self._routing[log_id] = _Held()
                self._lanes.spawn(self._route(log_id))
            held.put(append, answer)
        return None

    def resubmit(self, log_id: LogId, append: QueuedAppend, answer: Answer) -> None:
        """Route anew what a log gave back unsent, unless its time is over."""
        if append.deadline_us <= now_us():
            answer(DuramenError("log_unavailable", "the log changed its owner"))
            return
        driver = self.submit(log_id, append, answer)
        if driver is not None:
            driver.flush()

    async def _route(self, log_id: LogId) -> None:
        fate: AppendResult | None
        tried = self._routing[log_id].tried()
        try:
            fate = await self.claims.find_owner(log_id, tried, is_leaving=self._is_stopping)
            if fate is None and self._is_stopping:
                fate = DuramenError("server_draining", "this sequencer is stopping")
        except DuramenError as error:
            fate = error
        held = self._routing.pop(log_id)
        if fate is not None:
            for append, answer in held.appends:
                answer(_spare_tried(fate, append))
            return
        driver = self.drive(log_id)
        for append, answer in held.appends:
            driver.append(append, answer)
        self.take_over(log_id, demand=len(held.appends))
        driver.flush()

    # --- takeovers -------------------------------------------------------------------------------

    def take_over(self, log_id: LogId, *, demand: int, size: int = 0) -> None:
        """Begin to own the log when its turn comes; `demand` 0: only to close it."""
        driver = self.drivers.get(log_id)
        if log_id in self._leaving:
            return
        if driver is None or driver.core.state is LogState.IDLE:
            self._takeovers.want(log_id, demand=demand, rate=self.rates.get(log_id), size=size)
            self._begin_takeovers(log_id)
        else:
            # It is being closed, or has just been claimed: whoever asks now is served by that.
            driver.take_over(close_only=not demand)
            driver.flush()

    def _begin_takeovers(self, asked: LogId | None = None) -> None:
        """Begin as many as there is room for; only `asked` is known to be ours at this moment."""
        for log_id, is_wanted in self._takeovers.start():
            if log_id in self._metadata_drivers:
                self._takeovers.end(log_id)  # its keeper has come, and closes what was left
            elif log_id == asked or not is_wanted:
                driver = self._begin_takeover(log_id, is_wanted=is_wanted)
                self._lanes.spawn(self._follow_takeover(driver))
            else:
                self._lanes.spawn(self._begin_late(log_id))

    def _begin_takeover(self, log_id: LogId, *, is_wanted: bool) -> LogDriver:
        driver = self.drive(log_id)
        if driver.core.state is LogState.IDLE:
            by_hint = self._context.hints.has(log_id, now_us())
            append = "an append came, and its owner is away" if by_hint else "an append came"
            reason = append if is_wanted else "it is orphaned"
            self.stories.note(log_id, "takeover", reason=reason)
        driver.take_over(close_only=not is_wanted)
        driver.flush()
        return driver

    async def _begin_late(self, log_id: LogId) -> None:
        """Its turn came after a while: somebody else may have the log by now."""
        driver = self.drive(log_id)
        try:
            is_ours = await self.claims.find_owner(log_id, driver.tried()) is None
        except DuramenError:
            is_ours = False
        if is_ours and not self._is_stopping:
            await self._follow_takeover(self._begin_takeover(log_id, is_wanted=True))
            return
        self._takeovers.end(log_id)
        if driver.core.state is LogState.IDLE:
            # What waits is routed anew, and gets the answer that is true now.
            driver.release()
            self._drop_if_idle(driver)
        self._begin_takeovers()

    async def _follow_takeover(self, driver: LogDriver) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TAKEOVER_S):
                await driver.settled.wait()
        self._takeovers.end(driver.log_id)
        self._begin_takeovers()

    def drive(self, log_id: LogId) -> LogDriver:
        """The log's driver, made if need be."""
        driver = self.drivers.get(log_id)
        if driver is None:
            driver = LogDriver(log_id, self._context, self._lanes, self.link, self)
            self.drivers[log_id] = driver
        return driver

    def adopt(self, log_id: LogId, link: MetadataLink, home: Home) -> LogDriver:
        """A driver of a metadata log, which its keeper leads; what changes around it is told."""
        assert is_metadata_log(log_id) and not self.drives(log_id), log_id
        driver = LogDriver(log_id, self._context, self._lanes, link, home)
        self._metadata_drivers[log_id] = driver
        return driver

    def drives(self, log_id: LogId) -> bool:
        """Whether something is under way with the log here."""
        driver = self.drivers.get(log_id) or self._metadata_drivers.get(log_id)
        return driver is not None and not driver.is_done

    def dismiss(self, driver: LogDriver) -> None:
        """A metadata log's keeper is done with it."""
        if self._metadata_drivers.get(driver.log_id) is driver:
            del self._metadata_drivers[driver.log_id]

    def list_drivers(self) -> list[LogDriver]:
        """All that are here, of metadata logs too."""
        return [*self.drivers.values(), *self._metadata_drivers.values()]

    def on_fenced(self, driver: LogDriver) -> None:
        """The log's core finds out by itself whose the log is, and what waits is routed by that."""

    def on_idle(self, driver: LogDriver) -> None:
        """The log is nobody's here any more: an idle log costs nothing, so its driver goes."""
        if driver.take_loss():
            self.claims.pauses.note_loss(driver.log_id, now_us())
        # After the events that are being worked off: they may still answer appends.
        asyncio.get_running_loop().call_soon(self._drop_if_idle, driver)

    def on_broken(self, driver: LogDriver) -> None:
        """Whoever takes the log next recovers it; another sequencer may, and before this one.

        The same appends may break it here again, and another version of this program may not.
        """
        self.broken_count += 1
        BROKEN_INVARIANTS.inc()
        self.claims.pauses.note_loss(driver.log_id, now_us())
        self._drop_if_idle(driver)
        self._lanes.spawn(self.link.drop_owner(driver.log_id))

    async def find_owner(self, log_id: LogId, tried: Collection[str] = ()) -> Redirect | None:
        """As `Claims.find_owner`, of a control call."""
        return await self.claims.find_owner(log_id, tried)

    @property
    def is_stopping(self) -> bool:
        """Whether this process takes no logs any more."""
        return self._is_stopping

    def looks_after(self, log: LogNode, owner_id: str | None) -> bool:
        """Whether background work on a log is this process's: its owner's, else the hash's."""
        responsible = self.claims.first_of(log) if owner_id is None else owner_id
        return responsible == self.sequencer_id

    def _drop_if_idle(self, driver: LogDriver) -> None:
        log_id = driver.log_id
        if self.drivers.get(log_id) is not driver or not driver.is_done:
            return
        for name, count in driver.counts().items():
            self._past[name] += count
        self.rates.note(log_id, driver.load.rates(now_us())[0])
        del self.drivers[log_id]

    # --- orphans ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Look for orphans now, on every change of the sequencers, and every while."""
        self._scanner = asyncio.create_task(self._scan_for_ever())
        self._scan_wanted.set()

    def want_scan(self) -> None:
        """A sequencer came or went: its logs may be orphans."""
        self._scan_wanted.set()

    async def _scan_for_ever(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SCAN_INTERVAL_S):
                    await self._scan_wanted.wait()
                # Several changes come together; let them all be seen.
                await asyncio.sleep(_SCAN_AFTER_CHANGE_S)
            self._scan_wanted.clear()
            if self._may_work():
                try:
                    await self._scan()
                except (MetadataError, MetadataJsonError) as error:
                    _LOG.info("scan for orphans: %s", error)

    def has_session(self) -> bool:
        """Whether ZooKeeper is known to hold this process's session."""
        return self.link.store.session is SessionState.CONNECTED

    def _may_work(self) -> bool:
        """A process without a session stops background work at once (docs/protocol/ownership.md
        "Without a session")."""
        return self.has_session() and not self._is_stopping

    async def _scan(self) -> None:
        store, paths = self.link.store, self.link.paths

        async def look(log_id: LogId) -> None:
            if self._may_work():
                await self._close_if_orphan(log_id)

        for upper in await store.children(paths.logs) or ():
            lowers = await store.children(f"{paths.logs}/{upper}") or ()
            log_ids = [LogId(int(upper + lower, 16)) for lower in lowers]
            await for_each(log_ids, look, _SCAN_CONCURRENCY)
        self.scan_count += 1

    async def _close_if_orphan(self, log_id: LogId) -> None:
        driver = self.drivers.get(log_id)
        if log_id in self._metadata_drivers or not (
            driver is None or driver.core.state is LogState.IDLE
        ):
            return
        log = await self.claims.read_log(log_id)
        if log is None or not log.unclosed_epochs:
            return
        owner = await self.link.read_owner(log_id)
        # What carries our name and is not driven here was left by us, whomever the hash names.
        responsible = self.claims.first_of(log) if owner is None else owner.sequencer_id
        left_us = self.claims.pauses.left_us(log_id, now_us())
        if responsible == self.sequencer_id and not left_us and self._may_work():
            _LOG.info("log %d (%s/%s) is orphaned", log_id, log.namespace, log.name)
            self.take_over(log_id, demand=0, size=log.totals.length_bytes)

    # --- changes around --------------------------------------------------------------------------

    def on_bookies_changed(self) -> None:
        """Tell every log that bookies came, went or came back."""
        for driver in self.list_drivers():
            driver.on_bookies_changed()

    def _on_lists_changed(self, change: ListChange) -> None:
        self._lanes.spawn(self._report_lists(change))

    async def _report_lists(self, change: ListChange) -> None:
        """Tell the logs that write to them, some at a time: there may be thousands."""
        told_count = 0
        for driver in self.list_drivers():
            writer = driver.core.writer
            if writer is None or not writer.heeds(change):
                continue
            driver.on_lists_changed()
            told_count += 1
            if told_count % _TOLD_AT_ONCE == 0:
                await asyncio.sleep(0)

    def on_session(self, state: SessionState) -> None:
        """The metadata session changed: put owner nodes back when there is a new one."""
        self._context.is_metadata_reachable = state is SessionState.CONNECTED
        if state is not SessionState.CONNECTED:
            # Orphans that wait for their turn are found again by a later scan.
            self._takeovers.drop_unwanted()
            return
        for driver in self.list_drivers():
            writer = driver.core.writer
            if writer is not None:
                self._lanes.spawn(driver.keep(writer.segment.epoch))
        self._scan_wanted.set()

    # --- leaving ---------------------------------------------------------------------------------

    async def leave(self, log_id: LogId, reason: str) -> bool:
        """Close the log's segment in peace and let it go; False: its next owner must recover it.

        What comes for the log meanwhile waits until `release_held`.
        """
        driver = self.drivers[log_id]
        self._leaving.setdefault(log_id, _Held())
        self.stories.note(log_id, "leaves", reason=reason)
        return await driver.leave(_STOP_S)

    def is_leaving(self, log_id: LogId) -> bool:
        """Whether the log is on its way to another sequencer."""
        return log_id in self._leaving

    def release_held(self, log_id: LogId) -> None:
        """Send what waited for a log that left to its next owner; nothing if nothing waits."""
        held = self._leaving.pop(log_id, None)
        for append, answer in () if held is None else held.appends:
            self.resubmit(log_id, append, answer)

    async def give_up(self, log_id: LogId, pending_owner: str) -> None:
        """Let a log go as a dead owner would, because bookies do not let it go on here.

        What was sent is uncertain. What was not waits until nobody owns the log, and goes to the
        pending owner.
        """
        self._leaving.setdefault(log_id, _Held())
        try:
            self.drivers[log_id].release(
                f"{pending_owner} reaches the log's bookies, we do not", loss=1
            )
            await self.link.drop_owner(log_id)
            self.claims.note_pending_owner(log_id, pending_owner)
        finally:
            self.release_held(log_id)

    async def stop(self) -> None:
        """Close every open segment in peace, bounded in time; what is left is recovered later."""
        self._is_stopping = True
        if self._scanner is not None:
            self._scanner.cancel()
        self._takeovers.clear()
        limit = asyncio.Semaphore(_LEAVE_COUNT)

        async def leave(log_id: LogId) -> None:
            async with limit:
                if log_id in self.drivers and log_id not in self._leaving:
                    await self.leave(log_id, "the sequencer stops")
                    self.release_held(log_id)

        hottest = sorted(self.drivers.values(), key=lambda d: -d.load.rates(now_us())[0])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S):
                await asyncio.gather(*(leave(driver.log_id) for driver in hottest))
        for driver in self.list_drivers():
            if not driver.is_done:
                driver.release()
        for log_id in list(self._leaving):
            self.release_held(log_id)

    def statistics(self) -> dict[str, Any]:
        """Logs by state, takeovers, and the lanes."""
        states = [driver.core.state.value for driver in self.drivers.values()]
        totals = dict(self._past)
        for driver in self.drivers.values():
            for name, count in driver.counts().items():
                totals[name] += count
        return {
            "logs": {state.value: states.count(state.value) for state in LogState},
            "routing_count": sum(len(held.appends) for held in self._routing.values()),
            "leaving_count": len(self._leaving),
            "owed_bytes": self._context.owed_bytes,
            "takeovers_waiting": self._takeovers.waiting_count,
            "takeovers_running": self._takeovers.running_count,
            "stories": len(self.stories),
            "orphan_scans": self.scan_count,
            "broken_invariants": self.broken_count,
            "lanes": self._lanes.statistics(),
            **totals,
            **self.claims.statistics(),
        }


def _spare_tried(fate: AppendResult, append: QueuedAppend) -> AppendResult:
    """The fate, unless it names a sequencer that the append has been to: appends share a look."""
    if isinstance(fate, Redirect) and fate.sequencer_id in append.tried:
        return DuramenError("log_unavailable", "the log's owner did not take the append before")
    return fate
