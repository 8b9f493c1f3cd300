"""The logs of a simulated sequencer process: `log_host` and what it owns, in virtual time.

Whose a log is, is decided by the production `Claims`, in what order logs are taken over by the
production `TakeoverQueue`, and hand-overs are those of the production `HandOver`; only `LogHost`
itself, which lives in an event loop, is followed here line by line. A process that refuses
connections is found out by `SimProbes`.

Called by `sequencers`. Documented in docs/testing.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, cast

from duramen.core.log_node import LogNode
from duramen.core.ownership.takeover_queue import TakeoverQueue
from duramen.core.sequencer.log_sequencer import LogState
from duramen.core.sequencer.surroundings import Surroundings
from duramen.core.sequencer.transmit import QueuedAppend
from duramen.errors import DuramenError
from duramen.ids import LogId, SequencerId
from duramen.runtime.metadata_store import MetadataError, SessionState
from duramen.runtime.sequencer.loads import KnownRates
from duramen.runtime.sequencer.metadata_link import MetadataLink
from duramen.runtime.sequencer.story import Stories
from duramen.units import MS, SECOND
from duramen.wire.sequencer_calls import AppendResult, Redirect
from duramen_sequencer import log_host as production
from duramen_sequencer.ownership.claims import Claims
from tests.sim.log_drivers import Answer, SimDriver
from tests.sim.network import Network
from tests.sim.node_loop import Promise
from tests.sim.world import Node

_TAKEOVER_COUNT: Final = 2
"""Fewer than the logs of most seeds, so that some wait for their turn."""

_TAKEOVER_US: Final = 5 * SECOND
_STOP_US: Final = 8 * SECOND


class SimRoster:
    """The live sequencers, as `registry.Roster` gives them."""

    def __init__(self) -> None:
        self.nodes: dict[str, dict[str, Any]] = {}

    def learn(self, said: Mapping[str, Sequence[str]]) -> None:
        """These are live now, and say that they do not reach these bookies."""
        self.nodes = {
            name: {"data_url": name, "unreached": list(unreached)}
            for name, unreached in said.items()
        }


class SimProbes:
    """`ownership.probes` over the simulated network."""

    def __init__(self, network: Network, node: Node, peers: dict[str, Any]) -> None:
        self._network = network
        self._node = node
        self._peers = peers
        self.probe_count = 0
        self.refused_count = 0

    async def is_refused(self, url: str) -> bool:
        """Whether the process at `url` refuses connections; False also where nobody can tell."""
        refused: Promise[bool] = Promise()
        self.probe_count += 1
        self._network.connect(self._node, self._peers[url], refused.settle)
        is_refused = await refused
        self.refused_count += is_refused
        self._node.world.counts[f"owner probed: {'refused' if is_refused else 'there'}"] += 1
        return is_refused


class Process(Node, ABC):
    """What a host needs of its sequencer process."""

    sequencer_id: SequencerId
    around: Surroundings
    link: MetadataLink

    @abstractmethod
    def kick(self) -> None:
        """The end of an event: frames and answers leave."""

    @abstractmethod
    def make_driver(self, log_id: LogId) -> SimDriver:
        """A log's driver with an idle core."""

    @property
    @abstractmethod
    def has_session(self) -> bool:
        """Whether the metadata store is known to hold this process's session."""


class SimHost:
    """The logs of one life of a process, as `log_host.LogHost`."""

    def __init__(self, node: Process, roster: SimRoster, probes: SimProbes) -> None:
        self.drivers: dict[LogId, SimDriver] = {}
        self.claims = Claims(
            node.around, node.link, cast(Any, roster), probes=cast(Any, probes),
            now_us=lambda: node.world.now_us,
        )  # fmt: skip
        self.stories = Stories()
        self.rates = KnownRates()
        self.sequencer_id = node.sequencer_id
        self.is_stopping = False
        self._node = node
        self._world = node.world
        self._routing: dict[LogId, production._Held] = {}
        self._leaving: dict[LogId, production._Held] = {}
        self._takeovers = TakeoverQueue(_TAKEOVER_COUNT)

    # --- appends ---------------------------------------------------------------------------------

    def submit(self, log_id: LogId, append: QueuedAppend, answer: Answer) -> SimDriver | None:
        """Give an append to its log; returns the driver to flush if it is here already."""
        driver = self.drivers.get(log_id)
        if driver is not None and driver.core.is_owner:
            driver.append(append, answer)
            return driver
        leaving = self._leaving.get(log_id)
        if leaving is not None:
            self._world.counts["append held while its log leaves"] += 1
            leaving.put(append, answer)
        elif driver is not None and self._takeovers.is_wanted(log_id):
            self._takeovers.want(log_id, demand=1)
            driver.append(append, answer)
            return driver
        else:
            held = self._routing.get(log_id)
            if held is None:
                held = self._routing[log_id] = production._Held()
                # In a loop's next turn, so that everything that comes in this one is seen.
                self._node.after(0, self._begin_routing, log_id)
            held.put(append, answer)
        return None

    def resubmit(self, log_id: LogId, append: QueuedAppend, answer: Answer) -> None:
        """Route anew what a log gave back unsent, unless its time is over."""
        if append.deadline_us <= self._world.now_us:
            answer(DuramenError("log_unavailable", "the log changed its owner"))
            return
        driver = self.submit(log_id, append, answer)
        if driver is not None:
            driver.flush()

    def _begin_routing(self, log_id: LogId) -> None:
        self._node.spawn(self._route(log_id))

    async def _route(self, log_id: LogId) -> None:
        fate: AppendResult | None
        tried = self._routing[log_id].tried()
        try:
            fate = await self.claims.find_owner(log_id, tried, is_leaving=self.is_stopping)
            if fate is None and self.is_stopping:
                fate = DuramenError("server_draining", "this sequencer is stopping")
        except DuramenError as error:
            fate = error
        held = self._routing.pop(log_id)
        if fate is not None:
            for append, answer in held.appends:
                answer(production._spare_tried(fate, append))
            self._node.kick()
            return
        driver = self.drive(log_id)
        for append, answer in held.appends:
            driver.append(append, answer)
        self.take_over(log_id, demand=len(held.appends))
        driver.flush()
        self._node.kick()

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
            driver.take_over(close_only=not demand)
            driver.flush()
        self._node.kick()

    def _begin_takeovers(self, asked: LogId | None = None) -> None:
        for log_id, is_wanted in self._takeovers.start():
            if log_id == asked or not is_wanted:
                driver = self._begin_takeover(log_id, is_wanted=is_wanted)
                self._node.spawn(self._follow_takeover(driver))
            else:
                self._world.counts["takeover that waited"] += 1
                self._node.spawn(self._begin_late(log_id))

    def _begin_takeover(self, log_id: LogId, *, is_wanted: bool) -> SimDriver:
        driver = self.drive(log_id)
        self._world.counts["takeover asked" if is_wanted else "orphan found"] += 1
        driver.take_over(close_only=not is_wanted)
        driver.flush()
        return driver

    async def _begin_late(self, log_id: LogId) -> None:
        driver = self.drive(log_id)
        try:
            is_ours = await self.claims.find_owner(log_id, driver.tried()) is None
        except DuramenError:
            is_ours = False
        if is_ours and not self.is_stopping:
            await self._follow_takeover(self._begin_takeover(log_id, is_wanted=True))
            return
        self._takeovers.end(log_id)
        if driver.core.state is LogState.IDLE:
            driver.core.release()
            driver.flush()
            self._drop_if_idle(driver)
        self._begin_takeovers()
        self._node.kick()

    async def _follow_takeover(self, driver: SimDriver) -> None:
        self._node.kick()
        await driver.until_settled(_TAKEOVER_US)
        self._takeovers.end(driver.log_id)
        self._begin_takeovers()
        self._node.kick()

    def drive(self, log_id: LogId) -> SimDriver:
        """The log's driver, made if need be."""
        driver = self.drivers.get(log_id)
        if driver is None:
            driver = self.drivers[log_id] = self._node.make_driver(log_id)
        return driver

    def on_idle(self, driver: SimDriver) -> None:
        """The log is nobody's here any more: an idle log costs nothing, so its driver goes."""
        if driver.take_loss():
            self._world.counts["log lost"] += 1
            self.claims.pauses.note_loss(driver.log_id, self._world.now_us)
        self._node.after(0, self._drop_if_idle, driver)

    def on_broken(self, driver: SimDriver) -> None:
        """Whoever takes the log next recovers it; another sequencer may, and before this one."""
        self.claims.pauses.note_loss(driver.log_id, self._world.now_us)
        self.drivers.pop(driver.log_id, None)
        self._node.spawn(self._node.link.drop_owner(driver.log_id))

    async def find_owner(self, log_id: LogId, tried: Collection[str] = ()) -> Redirect | None:
        """As `Claims.find_owner`, of a control call."""
        return await self.claims.find_owner(log_id, tried)

    def looks_after(self, log: LogNode, owner_id: str | None) -> bool:
        """Whether background work on a log is this process's: its owner's, else the hash's."""
        heir = self.claims.first_of(log) if owner_id is None else owner_id
        return heir == self.sequencer_id

    def _drop_if_idle(self, driver: SimDriver) -> None:
        if self.drivers.get(driver.log_id) is driver and driver.is_done:
            del self.drivers[driver.log_id]

    # --- orphans ---------------------------------------------------------------------------------

    def has_session(self) -> bool:
        """Whether the metadata store is known to hold this process's session."""
        return self._node.has_session

    def may_work(self) -> bool:
        """A process without a session stops background work at once."""
        return self.has_session() and not self.is_stopping

    async def close_if_orphan(self, log_id: LogId) -> None:
        """Close what a dead owner left, if that is this process's business."""
        driver = self.drivers.get(log_id)
        if not self.may_work() or (driver is not None and driver.core.state is not LogState.IDLE):
            return
        try:
            log = await self.claims.read_log(log_id)
            if log is None or not log.unclosed_epochs:
                return
            owner = await self._node.link.read_owner(log_id)
        except MetadataError:
            return
        heir = self.claims.first_of(log) if owner is None else owner.sequencer_id
        left_us = self.claims.pauses.left_us(log_id, self._world.now_us)
        if heir == self.sequencer_id and not left_us and self.may_work():
            self.take_over(log_id, demand=0, size=log.totals.length_bytes)

    def on_session(self, state: SessionState) -> None:
        """The metadata session changed."""
        if state is not SessionState.CONNECTED:
            self._takeovers.drop_unwanted()

    # --- leaving ---------------------------------------------------------------------------------

    async def leave(self, log_id: LogId, reason: str) -> bool:
        """Close the log's segment in peace and let it go; False: its next owner must recover it."""
        driver = self.drivers[log_id]
        self._leaving.setdefault(log_id, production._Held())
        self._world.note(self._node.name, "leaves", log_id, reason)
        driver.core.stop(self._world.now_us)
        driver.flush()
        self._node.kick()
        await driver.until_idle(_STOP_US)
        if not driver.is_done:
            driver.core.release()
            driver.flush()
        self._node.kick()
        return driver.is_done and not driver.core.reason

    def is_leaving(self, log_id: LogId) -> bool:
        """Whether the log is on its way to another sequencer."""
        return log_id in self._leaving

    def release_held(self, log_id: LogId) -> None:
        """Send what waited for a log that left to its next owner; nothing if nothing waits."""
        held = self._leaving.pop(log_id, None)
        for append, answer in () if held is None else held.appends:
            self.resubmit(log_id, append, answer)
        self._node.kick()

    async def give_up(self, log_id: LogId, heir: str) -> None:
        """Let a log go as a dead owner would, because bookies do not let it go on here."""
        self._world.counts["log given up for want of bookies"] += 1
        self._leaving.setdefault(log_id, production._Held())
        driver = self.drivers[log_id]
        driver.core.release(f"{heir} reaches the log's bookies, we do not", loss=1)
        driver.flush()
        self._node.kick()
        await self._node.link.drop_owner(log_id)
        self.claims.note_heir(log_id, heir)
        self.release_held(log_id)

    async def stop(self) -> None:
        """Close every open segment in peace, bounded in time; what is left is recovered later."""
        self.is_stopping = True
        self._takeovers.clear()
        busy = [driver for driver in self.drivers.values() if not driver.is_done]
        for driver in busy:
            if driver.log_id not in self._leaving:
                self._node.spawn(self._leave_for_good(driver.log_id))
        for is_idle in [driver.until_idle(_STOP_US) for driver in busy]:
            await is_idle
        is_peaceful = all(driver.is_done for driver in busy)
        for driver in busy:
            if not driver.is_done:
                driver.core.release()
                driver.flush()
        for log_id in list(self._leaving):
            self.release_held(log_id)
        self._world.counts["stopped in peace"] += is_peaceful
        # What was held is routed before the process ends.
        await self._node.pass_time(100 * MS)

    async def _leave_for_good(self, log_id: LogId) -> None:
        await self.leave(log_id, "the sequencer stops")
        self.release_held(log_id)
