"""The parts that processes play in gossip: production classes over the simulated network.

A sequencer is a member, a bookie a witness, a write proxy an observer, as their services make them.
Their frames are bytes, their randomness is the run's. Each has a clock that may stand still or
jump while the rest of its process goes on (`faults`): it is asked for nothing but gossip.

Used by `sequencers`, `processes` and `write_proxy`. Documented in docs/testing.md.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

from duramen.ids import BookieId
from duramen.runtime.http_client import NoAnswerError, PeerClient
from duramen.runtime.members.gossiping import Gossiping
from duramen.runtime.members.observing import Observing
from duramen.runtime.members.witnessing import Witnessing
from duramen.runtime.stores.metadata_store import MetadataStore
from tests.sim.metadata import PATHS, Store, StoreSession
from tests.sim.network import MEMBERS, Network
from tests.sim.peers import SimPeers
from tests.sim.world import Node, World

_SCHEME: Final = "http://"

Processes = Mapping[str, Node]
"""Whom a process may ask, by name."""


class MemberClock:
    """The monotonic clock of one life of a process, as gossip sees it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._behind_us = 0
        self._stopped_us: int | None = None

    def read_us(self) -> int:
        """What it shows."""
        if self._stopped_us is not None:
            return self._stopped_us
        return self._world.now_us - self._behind_us

    def stop(self) -> None:
        """It stands still from now on."""
        self._stopped_us = self.read_us()

    def go_on(self, *, does_jump: bool) -> None:
        """It goes on, from where it stood or from where it would be."""
        if self._stopped_us is not None and not does_jump:
            self._behind_us = self._world.now_us - self._stopped_us
        self._stopped_us = None


class MemberRoster:
    """The live sequencers, as `registry.Roster` gives them: in the form of urls."""

    def __init__(self, store: Store) -> None:
        self.nodes: dict[str, dict[str, Any]] = {}
        self.made: dict[str, int] = {}
        self._store = store

    def learn(self, names: Iterable[str]) -> None:
        """These are there now; a session stands for the registration."""
        sessions = self._store.sequencers
        self.nodes = {name: {"data_url": f"{_SCHEME}{name}"} for name in names}
        self.made = {name: sessions[name].session_id for name in self.nodes if name in sessions}

    async def start(self) -> None:
        """Whoever has it is told."""

    async def stop(self) -> None:
        """Nothing is under way."""


class MemberPeers:
    """As much of `PeerClient` as gossip asks for."""

    def __init__(self, network: Network, node: Node, processes: Processes) -> None:
        self._peers = SimPeers(network, node, processes)

    async def request_json(
        self, _method: str, url: str, body: bytes, timeout_us: int
    ) -> tuple[int, bytes]:
        """Ask the process that the url names; raises as the production client does."""
        name = url.removeprefix(_SCHEME).partition("/")[0]
        answer = await self._peers.ask(name, MEMBERS, body, timeout_us, is_stream=False)
        return cast(tuple[int, bytes], answer)

    async def call(self, url: str, body: bytes, timeout_us: int) -> bytes:
        """As `request_json`, where nothing but a success is an answer."""
        status, answer = await self.request_json("POST", url, body, timeout_us)
        if status != 200:
            raise NoAnswerError(url)
        return answer


class SimGossiping(Gossiping):
    """A sequencer among the members.

    Args:
        processes: sequencers and bookies.
    """

    def __init__(self, node: Node, network: Network, store: Store, processes: Processes) -> None:
        self.clock = MemberClock(node.world)
        self._roster = roster = MemberRoster(store)
        self._node = node
        self._processes = processes
        self._refuted_count = 0
        super().__init__(
            node.name,
            cast(PeerClient, MemberPeers(network, node, processes)),
            lambda: roster.nodes,
            lambda: roster.made,
            lambda: {BookieId(name): f"{_SCHEME}{name}" for name in store.bookies},
            now_us=self.clock.read_us,
            rng=_draw_rng(node),
        )

    def learn(self, sequencers: Iterable[str]) -> None:
        """The rosters changed, of sequencers or bookies."""
        self._roster.learn(sequencers)
        self.on_roster()
        self.on_bookies()

    async def answer(self, body: bytes) -> tuple[int, bytes]:
        """What the data port answers."""
        answer = await self.on_call(body)
        return answer[0], answer[2]

    def _tell(self) -> None:
        """Count what the production class tells people."""
        counts, statistics = self._node.world.counts, self.statistics()
        counts["suspicion refuted"] += statistics["refuted"] - self._refuted_count
        self._refuted_count = statistics["refuted"]
        away = frozenset(self.list_away())
        for name in sorted(away - self._known_away):
            other = self._processes[name]
            self._node.world.note(self._node.name, "takes for away", name)
            counts["member away"] += 1
            counts["member away that is awake"] += other.is_up and not other.is_paused
        counts["member away no more"] += len(self._known_away - away)
        self._known_away = away


class SimObserving(Observing):
    """A write proxy beside them."""

    def __init__(
        self,
        node: Node,
        network: Network,
        store: Store,
        sequencers: Processes,
        on_away: Callable[[], None],
    ) -> None:
        def count() -> None:
            node.world.counts["proxy passes a sequencer over"] += 1
            on_away()

        self._roster = roster = MemberRoster(store)
        super().__init__(
            node.name,
            cast(PeerClient, MemberPeers(network, node, sequencers)),
            lambda: roster.nodes,
            count,
            MemberClock(node.world).read_us,
            rng=_draw_rng(node),
        )

    def learn(self, sequencers: Iterable[str]) -> None:
        """The roster changed."""
        self._roster.learn(sequencers)
        self.on_roster()


class SimWitnessing(Witnessing):
    """A bookie as a relay; what its production class makes for itself is made here (`clock`)."""

    def __init__(
        self, node: Node, network: Network, session: StoreSession, sequencers: Processes
    ) -> None:
        self.clock = MemberClock(node.world)
        store = cast(MetadataStore, session)
        super().__init__(node.name, store, PATHS.sequencers, now_us=self.clock.read_us)
        self._roster: Any = MemberRoster(session.store)
        self._client: Any = MemberPeers(network, node, sequencers)
        self.learn(session.store.sequencers)

    def learn(self, sequencers: Iterable[str]) -> None:
        """The roster changed."""
        self._roster.learn(sequencers)
        self._on_roster()

    async def answer(self, body: bytes) -> tuple[int, bytes]:
        """What the data port answers."""
        return 200, await self.on_call(body, "")


def _draw_rng(node: Node) -> random.Random:
    return random.Random(node.world.rng.getrandbits(64))
