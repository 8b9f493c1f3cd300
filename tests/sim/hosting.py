"""The logs of a simulated sequencer process: the production `LogHost`, counted.

Drivers and lanes are the production ones, too (`watched_driver`, `frames`); a process that refuses
connections is found out by `SimProbes`, since there are no sockets here.

Called by `sequencers`. Documented in docs/testing.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol, cast

from duramen.core.sequencer.context import SequencerContext
from duramen.core.sequencer.effects import CommitOutcome, Owner
from duramen.core.sequencer.transmit import QueuedAppend
from duramen.ids import LogId, SequencerId
from duramen.runtime.sequencer.bookie_lanes import BookieLanes
from duramen.runtime.sequencer.log_driver import Answer, LogDriver
from duramen.runtime.sequencer.metadata_link import MetadataLink
from duramen_sequencer.log_host import LogHost
from duramen_sequencer.ownership.claims import Claims
from tests.sim.members.hints import HintMarks
from tests.sim.network import Network
from tests.sim.node_loop import Promise
from tests.sim.watched_driver import InjectedFault, Watcher
from tests.sim.world import Node, World


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

    def __init__(self, network: Network, node: Node, peers: Mapping[str, Node]) -> None:
        self._network = network
        self._node = node
        self._peers = peers
        self.probe_count = 0
        self.refused_count = 0
        self.was_refused = False
        """What the last one found that ended."""

    async def is_refused(self, url: str) -> bool:
        """Whether the process at `url` refuses connections; False also where nobody can tell."""
        refused: Promise[bool] = Promise()
        self.probe_count += 1
        self._network.connect(self._node, self._peers[url], refused.settle)
        is_refused = False
        try:
            is_refused = await refused
        finally:
            self.was_refused = is_refused
        self.refused_count += is_refused
        self._node.world.counts[f"owner probed: {'refused' if is_refused else 'there'}"] += 1
        return is_refused


class MarkedClaims(Claims):
    """The production claims; where they follow a hint, that is noted."""

    def __init__(self, node: Process, *args: Any, probes: SimProbes, **options: Any) -> None:
        super().__init__(*args, probes=cast(Any, probes), **options)
        self._marks = node.marks
        self._counts = node.world.counts
        self._seen = probes

    async def _is_gone(self, log_id: LogId, owner: Owner, away: Collection[str]) -> bool:
        is_gone = await super()._is_gone(log_id, owner, away)
        if is_gone and not self._seen.was_refused:
            self._marks.note(log_id)
        elif not is_gone and owner.by_hint and owner.sequencer_id in away:
            self._counts["owner by a hint is left to its session"] += 1
        return is_gone


class CountedLink(MetadataLink):
    """The production link; outcomes of commits are counted."""

    def __init__(self, node: Process, *args: Any) -> None:
        super().__init__(*args)
        self._node = node

    async def commit(self, log_id: LogId, writes: Any) -> CommitOutcome:
        """As the link."""
        self._node.marks.on_commit(log_id, writes)
        outcome = await super().commit(log_id, writes)
        self._node.world.note(self._node.name, f"commit {outcome.value}", log_id)
        self._node.world.counts[f"outcome {outcome.value}"] += 1
        return outcome


class Process(Protocol):
    """What a host needs of its sequencer process."""

    name: str
    world: World
    sequencer_id: SequencerId
    context: SequencerContext
    link: CountedLink
    marks: HintMarks
    watcher: Watcher

    def list_away(self) -> Collection[str]:
        """The sequencers that answer nobody, as its gossip says."""


class SimHost(LogHost):
    """The logs of one life of a process."""

    def __init__(
        self, node: Process, lanes: BookieLanes, roster: SimRoster, probes: SimProbes
    ) -> None:
        sequencers = cast(Any, roster)
        super().__init__(node.sequencer_id, node.context, lanes, node.link, sequencers)
        self.claims = MarkedClaims(
            node, node.context, node.link, sequencers, probes=probes, away=node.list_away,
            now_us=lambda: node.world.now_us,
        )  # fmt: skip
        self.node = node
        self._counts = node.world.counts

    def submit(self, log_id: LogId, append: QueuedAppend, answer: Answer) -> LogDriver | None:
        """As the host."""
        driver = self.drivers.get(log_id)
        if self.is_leaving(log_id) and not (driver is not None and driver.core.is_owner):
            self._counts["append held while its log leaves"] += 1
        return super().submit(log_id, append, answer)

    def _begin_takeover(self, log_id: LogId, *, is_wanted: bool) -> LogDriver:
        self._counts["takeover asked" if is_wanted else "orphan found"] += 1
        return super()._begin_takeover(log_id, is_wanted=is_wanted)

    async def _begin_late(self, log_id: LogId) -> None:
        self._counts["takeover that waited"] += 1
        await super()._begin_late(log_id)

    def on_idle(self, driver: LogDriver) -> None:
        """As the host."""
        self._counts["log lost"] += driver.core.loss_count > driver._losses_taken
        super().on_idle(driver)

    def on_broken(self, driver: LogDriver) -> None:
        """As the host; a fault that nobody injected ends the run besides (`clock`)."""
        node = self.node
        node.world.note(node.name, f"log {driver.log_id} stopped", repr(driver.fault))
        self._counts["log stopped by a broken invariant"] += isinstance(driver.fault, InjectedFault)
        super().on_broken(driver)

    async def leave(self, log_id: LogId, reason: str) -> bool:
        """As the host."""
        self.node.world.note(self.node.name, "leaves", log_id, reason)
        return await super().leave(log_id, reason)

    async def give_up(self, log_id: LogId, pending_owner: str) -> None:
        """As the host."""
        self._counts["log given up for want of bookies"] += 1
        await super().give_up(log_id, pending_owner)
