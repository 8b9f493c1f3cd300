"""Workload of a run: clients that append.

Each appends through a write proxy of its own (`write_proxy`), and says of each append what it
knows: acknowledged, failed for certain, or uncertain. Client 0 waits for each answer before it goes
on, the others do not; client 1 sends all of its appends in sessions (`session_clients`).

Called by `run`. Documented in docs/testing.md.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from duramen.errors import DuramenError
from duramen.ids import Dlsn, LogId
from duramen.units import MS, SECOND
from duramen.wire.record_batch import encode_batch
from duramen.wire.sequencer_calls import AlreadyStored, AppendedEarly, Stored
from tests.sim.frames import is_under_way
from tests.sim.metadata import Store
from tests.sim.network import Network
from tests.sim.options import Options
from tests.sim.sequencers import SequencerNode
from tests.sim.world import Node, World
from tests.sim.write_proxy import WriteProxy


class History(Protocol):
    """What is told of appends and reads."""

    def on_invoke(
        self, now_us: int, client: int, log_id: LogId, append_id: int, bodies: tuple[bytes, ...]
    ) -> None: ...

    def on_acknowledge(  # noqa: PLR0917 - one event of the history
        self, now_us: int, client: int, log_id: LogId, append_id: int, dlsn: Dlsn,
        seq_num: int | None,
    ) -> None: ...  # fmt: skip

    def on_fail(self, now_us: int, client: int, log_id: LogId, append_id: int) -> None: ...

    def on_uncertain(
        self,
        now_us: int,
        client: int,
        log_id: LogId,
        append_id: int,
        *,
        is_under_way: bool = True,
    ) -> None: ...

    def on_sent_in_order(
        self, client: int, log_id: LogId, append_id: int, session: int
    ) -> None: ...


class Made(NamedTuple):
    """An append that was invoked."""

    append_id: int
    batch: bytes
    record_count: int


class ClientNode(Node):
    """One client with its write proxy: appends to every log."""

    def __init__(
        self,
        world: World,
        index: int,
        *,
        options: Options,
        network: Network,
        store: Store,
        sequencers: dict[str, SequencerNode],
        history: History,
    ) -> None:
        regions = sorted({region for region, _ in options.places})
        super().__init__(world, f"c{index}", regions[index % len(regions)])
        self.index = index
        self.is_sequential = index == 0
        self.acknowledged_count = 0
        self.is_over = False
        self.open: dict[int, LogId] = {}
        self.slow_factor = 1.0
        self.history = history
        self.proxy = WriteProxy(self, network, store, sequencers, has_gossip=options.has_gossip)
        self._options = options
        self._append_count = 0
        self.begin_life()
        self.proxy.start()
        self.after(world.between(0, 200 * MS), self._append)

    def _append(self) -> None:
        """Begin the next appends, which share a frame if they may, and plan those after them."""
        if self.is_over:
            return
        world, options = self.world, self._options
        rng = world.rng
        count = 1 if self.is_sequential else 1 + rng.randrange(2 * options.appends_per_frame - 1)
        log_id = LogId(1 + rng.randrange(len(options.logs)))
        if self.has_room(log_id):
            self.send(log_id, [self._make(log_id) for _ in range(count)])
        rate = options.appends_per_s / (options.client_count + 1) / self.slow_factor
        gap_us = int(SECOND * (1 if self.is_sequential else options.appends_per_frame) / rate)
        self.after(world.between(0, 2 * gap_us), self._append)

    def has_room(self, log_id: LogId) -> bool:
        """Whether appends to this log may begin now."""
        return not (self.is_sequential and self.open)

    def send(self, log_id: LogId, appends: list[Made]) -> None:
        """Send appends, each by itself."""
        for made in appends:
            self.loop.run_task(self._bring(log_id, made))

    def finish(self) -> None:
        """Begin no append any more."""
        self.is_over = True

    def _make(self, log_id: LogId) -> Made:
        """Invoke an append."""
        self._append_count += 1
        append_id = self._append_count
        rng = self.world.rng
        name = b"c%d a%d " % (self.index, append_id)
        bodies = tuple(
            name + b"r%d" % number + b"." * rng.randrange(60)
            for number in range(1 + (rng.random() < 0.3))
        )
        self.open[append_id] = log_id
        self.history.on_invoke(self.world.now_us, self.index, log_id, append_id, bodies)
        self.world.counts["append invoked"] += 1
        return Made(append_id, encode_batch(bodies, self.world.now_us // MS), len(bodies))

    async def _bring(self, log_id: LogId, made: Made) -> None:
        try:
            result = await self.proxy.append(log_id, made.batch)
        except DuramenError as error:
            self.end(
                log_id, made.append_id, is_uncertain=error.uncertain,
                is_under_way=is_under_way(error.facts),
            )  # fmt: skip
            return
        self.acknowledge(log_id, made.append_id, *_place_of(result, made.record_count))

    # --- What clients know -----------------------------------------------------------------------

    def acknowledge(self, log_id: LogId, append_id: int, dlsn: Dlsn, seq_num: int | None) -> None:
        """An append has its place."""
        del self.open[append_id]
        self.acknowledged_count += 1
        self.world.counts["append acknowledged"] += 1
        self.history.on_acknowledge(self.world.now_us, self.index, log_id, append_id, dlsn, seq_num)

    def end(
        self, log_id: LogId, append_id: int, *, is_uncertain: bool, is_under_way: bool = True
    ) -> None:
        """An append was not acknowledged, and nobody tries it again."""
        del self.open[append_id]
        now_us, history = self.world.now_us, self.history
        if not is_uncertain:
            self.world.counts["append failed"] += 1
            history.on_fail(now_us, self.index, log_id, append_id)
            return
        self.world.counts["append uncertain"] += 1
        history.on_uncertain(now_us, self.index, log_id, append_id, is_under_way=is_under_way)


def _place_of(result: Stored, record_count: int) -> tuple[Dlsn, int | None]:
    assert not isinstance(result, AlreadyStored) and result.record_count == record_count, result
    if isinstance(result, AppendedEarly):
        return result.dlsn, None
    assert not result.is_duplicate, result
    return result.start.dlsn, result.start.seq_num
