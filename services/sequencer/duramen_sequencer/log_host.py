"""All logs of one sequencer process: whose is a log, take it over, close what dead owners left.

An append for a log that is not ours yet is routed once, however many wait for it: to the owner's
sequencer if it lives, otherwise to the one that the hash names. Orphans (an unclosed segment and
no owner) are closed without waiting for an append, so that what was acknowledged can be read.

Ownership here is routing only; safety comes from seals and compare-and-set.
Called by `append_frames`, `control` and `service`. Source: 01-protocol sections 2, 4 (end), 5.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

from duramen.core.hashing import rank_nodes
from duramen.core.log_node import LogNode
from duramen.core.sequencer.log_sequencer import LogState
from duramen.core.sequencer.surroundings import Surroundings
from duramen.core.sequencer.transmit import QueuedAppend
from duramen.errors import DuramenError
from duramen.ids import LogId, SequencerId
from duramen.runtime.metadata_store import MetadataError, SessionState
from duramen.runtime.registry import Roster
from duramen.wire.metadata_json import MetadataJsonError, read_log
from duramen.wire.sequencer_calls import AppendResult, Redirect
from duramen_sequencer.bookie_lanes import BookieLanes
from duramen_sequencer.log_driver import Answer, LogDriver, now_us
from duramen_sequencer.metadata_link import MetadataLink

_LOG = logging.getLogger(__name__)
_SCAN_INTERVAL_S = 10.0
_SCAN_AFTER_CHANGE_S = 0.2
_SCAN_CONCURRENCY = 16
_STOP_S = 8.0


class LogHost:
    """The logs of this process."""

    def __init__(
        self,
        sequencer_id: SequencerId,
        around: Surroundings,
        lanes: BookieLanes,
        link: MetadataLink,
        sequencers: Roster,
    ) -> None:
        self.drivers: dict[LogId, LogDriver] = {}
        self._id = sequencer_id
        self._around = around
        self._lanes = lanes
        self._link = link
        self._sequencers = sequencers
        self._routing: dict[LogId, list[tuple[QueuedAppend, Answer]]] = {}
        self._scan_wanted = asyncio.Event()
        self._scanner: asyncio.Task[None] | None = None
        self._is_stopping = False
        self.scan_count = 0

    # --- appends ---------------------------------------------------------------------------------

    def submit(self, log_id: LogId, append: QueuedAppend, answer: Answer) -> LogDriver | None:
        """Give an append to its log; returns the driver to `flush` if it is here already."""
        driver = self.drivers.get(log_id)
        if driver is not None and driver.core.is_owner:
            driver.append(append, answer)
            return driver
        if self._is_stopping:
            answer(DuramenError("server_draining", "this sequencer is stopping"))
            return None
        waiting = self._routing.get(log_id)
        if waiting is not None:
            waiting.append((append, answer))
        else:
            self._routing[log_id] = [(append, answer)]
            self._lanes.spawn(self._route(log_id))
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
        try:
            fate = await self.find_owner(log_id)
        except DuramenError as error:
            fate = error
        waiting = self._routing.pop(log_id)
        if fate is not None:
            for _, answer in waiting:
                answer(fate)
            return
        driver = self.drive(log_id)
        driver.take_over()
        for append, answer in waiting:
            driver.append(append, answer)
        driver.flush()

    async def find_owner(self, log_id: LogId) -> Redirect | None:
        """Who should get the log's appends: None if it is this process.

        Raises:
            DuramenError: `log_not_found`, `metadata_unavailable`.
        """
        try:
            owner = await self._link.read_owner(log_id)
            if owner is not None and owner.sequencer_id != self._id:
                node = self._sequencers.nodes.get(owner.sequencer_id)
                if node is not None:
                    return Redirect(owner.sequencer_id, node["data_url"])
            if owner is not None and owner.sequencer_id == self._id:
                return None
            log = await self._read_log(log_id)
        except (MetadataError, MetadataJsonError) as error:
            raise DuramenError(
                "metadata_unavailable", f"ownership is not known: {error}"
            ) from error
        if log is None:
            raise DuramenError("log_not_found", f"there is no log with id {log_id}", field="log")
        first = self._rank(log)
        if first == self._id:
            return None
        return Redirect(SequencerId(first), self._sequencers.nodes[first]["data_url"])

    def drive(self, log_id: LogId) -> LogDriver:
        """The log's driver, made if need be."""
        driver = self.drivers.get(log_id)
        if driver is None:
            driver = LogDriver(log_id, self._around, self._lanes, self._link, self.resubmit)
            self.drivers[log_id] = driver
        return driver

    def _rank(self, log: LogNode) -> str:
        """The sequencer that the hash names; this one if none is known."""
        weights = dict.fromkeys(self._sequencers.nodes, 1.0)
        ranked = rank_nodes(f"{log.namespace}/{log.name}", weights)
        return ranked[0] if ranked else self._id

    def looks_after(self, log: LogNode, owner_id: str | None) -> bool:
        """Whether background work on a log is this process's: its owner's, else the hash's."""
        return self._rank(log) == self._id if owner_id is None else owner_id == self._id

    async def _read_log(self, log_id: LogId) -> LogNode | None:
        stored = await self._link.store.get(self._link.paths.log(log_id))
        return None if stored is None else read_log(stored.data)

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
            # A process without a session stops background work at once (01-protocol section 2).
            if self._link.store.session is SessionState.CONNECTED:
                try:
                    await self._scan()
                except (MetadataError, MetadataJsonError) as error:
                    _LOG.info("scan for orphans: %s", error)

    async def _scan(self) -> None:
        store, paths = self._link.store, self._link.paths
        limit = asyncio.Semaphore(_SCAN_CONCURRENCY)

        async def look(log_id: LogId) -> None:
            async with limit:
                await self._close_if_orphan(log_id)

        for upper in await store.children(paths.logs) or ():
            lowers = await store.children(f"{paths.logs}/{upper}") or ()
            await asyncio.gather(*(look(LogId(int(upper + lower, 16))) for lower in lowers))
        self.scan_count += 1

    async def _close_if_orphan(self, log_id: LogId) -> None:
        driver = self.drivers.get(log_id)
        if driver is not None and driver.core.state is not LogState.IDLE:
            return
        log = await self._read_log(log_id)
        if log is None or not log.unclosed_epochs:
            return
        owner = await self._link.read_owner(log_id)
        # What carries our name and is not driven here was left by us, whomever the hash names.
        is_ours = self._rank(log) == self._id if owner is None else owner.sequencer_id == self._id
        if is_ours and not self._is_stopping:
            _LOG.info("log %d (%s/%s) is orphaned", log_id, log.namespace, log.name)
            driver = self.drive(log_id)
            driver.take_over(close_only=True)
            driver.flush()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SCAN_INTERVAL_S):
                    await driver.idle.wait()

    # --- changes around --------------------------------------------------------------------------

    def on_bookies_changed(self) -> None:
        """Tell every log that bookies came, went or came back."""
        for driver in list(self.drivers.values()):
            driver.on_bookies_changed()

    def on_session(self, state: SessionState) -> None:
        """The metadata session changed: put owner nodes back when there is a new one."""
        self._around.is_metadata_reachable = state is SessionState.CONNECTED
        if state is not SessionState.CONNECTED:
            return
        for driver in self.drivers.values():
            writer = driver.core.writer
            if writer is not None:
                self._lanes.spawn(self._link.keep_owner(driver.log_id, writer.segment.epoch))
        self._scan_wanted.set()

    # --- the end ---------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Close every open segment in peace, bounded in time; what is left is recovered later."""
        self._is_stopping = True
        if self._scanner is not None:
            self._scanner.cancel()
        drivers = list(self.drivers.values())
        for driver in drivers:
            driver.core.stop(now_us())
            driver.flush()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S):
                await asyncio.gather(*(driver.idle.wait() for driver in drivers))
        for driver in drivers:
            if driver.core.state is not LogState.IDLE:
                driver.core.release()
                driver.flush()

    def statistics(self) -> dict[str, Any]:
        """Logs by state, and the lanes."""
        states = [driver.core.state.value for driver in self.drivers.values()]
        return {
            "logs": {state.value: states.count(state.value) for state in LogState},
            "routing_count": sum(len(waiting) for waiting in self._routing.values()),
            "orphan_scans": self.scan_count,
            "lanes": self._lanes.statistics(),
        }
