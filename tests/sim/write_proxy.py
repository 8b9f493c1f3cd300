"""The write proxy of a simulated client: production parts, over the simulated network.

`Router`, `Lanes`, `Appender`, `Creator` and `Observing` run here as they ship, in the event loop of
the client's node. The session with the metadata store, the roster, frames (`frames`) and
connections (`peers`) are played.

Made by `workload` and `exact_clients`. Documented in docs/testing.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, cast

from duramen.ids import LogId
from duramen.runtime.stores.metadata_store import SessionState
from duramen.units import SECOND
from duramen.wire.sequencer_calls import NO_OPTIONS, AppendOptions, Stored
from duramen_writeproxy.appends import Appender
from duramen_writeproxy.lanes import Lanes
from duramen_writeproxy.logs.creation import Creator
from duramen_writeproxy.routing import Router
from tests.sim.hosting import SimRoster
from tests.sim.members.seats import SimObserving
from tests.sim.metadata import Store, StoreSession
from tests.sim.network import Network
from tests.sim.peers import SimPeers
from tests.sim.world import Node

DEADLINE_S: Final = 6.0
"""How long a client waits for its append."""


class WriteProxy:
    """A write proxy of one node, to be started with the node's life.

    Args:
        peers: the sequencer processes, by name.
        has_gossip: it observes them.
    """

    def __init__(
        self,
        node: Node,
        network: Network,
        store: Store,
        peers: Mapping[str, Node],
        *,
        has_gossip: bool,
    ) -> None:
        self._node = node
        self._store = store
        self._roster = SimRoster()
        self._known: tuple[str, ...] = ()
        self._session = StoreSession(store, node, _ignore_state, self._on_rosters)
        self._observing: SimObserving | None = None
        if has_gossip:
            self._observing = SimObserving(node, network, store, peers, self._on_away)
        self._router = Router(lambda: self._roster.nodes, self._list_away)
        calls = cast(Any, SimPeers(network, node, peers))
        self.appender = Appender(self._router, Lanes(calls))
        self.creator = Creator(self._router, calls)

    def start(self) -> None:
        """Open the session, and learn who is there."""
        self._session.open()
        self._on_rosters()
        if self._observing is not None:
            self._node.loop.enter(self._observing.start)

    def know_only(self, sequencer: str) -> None:
        """The roster is an old one from now on, and tells of nobody else."""
        self._known = (sequencer,)
        self._on_rosters()

    async def append(
        self,
        log_id: LogId,
        batch: bytes,
        options: AppendOptions = NO_OPTIONS,
        *,
        is_repeatable: bool = False,
    ) -> Stored:
        """As the appender, within the time that clients give it."""
        deadline = self._node.world.now_us / SECOND + DEADLINE_S
        return await self.appender.append(
            key_of_log(log_id), log_id, batch, deadline, options, is_repeatable=is_repeatable
        )

    def _on_rosters(self) -> None:
        names = self._known or tuple(sorted(self._store.sequencers))
        if names != tuple(self._roster.nodes):
            self._roster.learn(dict.fromkeys(names, ()))
            self._router.on_roster()
            if self._observing is not None:
                self._observing.learn(names)

    def _list_away(self) -> Collection[str]:
        # In order: a set of names has another one in each process.
        return () if self._observing is None else sorted(self._observing.list_away())

    def _on_away(self) -> None:
        self.appender.end_tries()


def key_of_log(log_id: LogId) -> str:
    """By what a log is routed: its namespace and name."""
    return f"ns/log-{log_id - 1}"


def _ignore_state(_: SessionState) -> None:
    """A proxy holds nothing that a session keeps."""
