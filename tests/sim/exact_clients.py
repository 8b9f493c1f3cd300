"""Clients that want more than an append: producers, conditions, fencing tokens, by one write proxy.

The proxy is made of production parts (`write_proxy`), and so is the route that sets tokens. Four
habits of clients matter: a producer sends a batch again until it is in the log, for as long as that
takes, and now and then one that is; whoever was refused by a condition tries at once with the
number that it was told; an append under a token is sometimes made under an old one; and a producer
that a log refuses for its `ack_mode` goes on, and asks an operator for order now and then.

Called by `run`. Documented in docs/testing.md.
"""

from __future__ import annotations

from typing import Final

from duramen.core.sequencer.exactly_once.stamps import Stamp
from duramen.errors import DuramenError
from duramen.ids import Dlsn, LogId, parse_dlsn
from duramen.units import MS, SECOND
from duramen.wire.record_batch import BatchProducer, encode_batch
from duramen.wire.sequencer_calls import (
    AlreadyStored,
    AppendedBatch,
    AppendedEarly,
    AppendOptions,
)
from duramen_writeproxy.logs.fencing import ask_token
from tests.sim.checkers import Checkers
from tests.sim.condition_record import Demand, Refusal
from tests.sim.frames import is_under_way
from tests.sim.metadata import Store
from tests.sim.network import Network
from tests.sim.options import Options
from tests.sim.sequencers import SequencerNode
from tests.sim.world import Node, World
from tests.sim.write_proxy import WriteProxy, key_of_log

_GRACE_US: Final = 500 * MS
_PIPELINE: Final = 3
_CHAIN_MAX: Final = 4
_REFUSALS: Final = ("condition_failed", "fencing_token_mismatch")
_MODE_REFUSALS: Final = ("needs_ordered", "mode_changing")
_ORDER_RATIO: Final = 0.003
"""Of a producer's batches that are refused for the log's mode: about one in three seconds asks."""
_ROLES: Final = ("produce", "produce", "produce", "match", "token", "token", "set", "plain")


class _Batch:
    """One batch of a producer, on its way."""

    def __init__(self, append_id: int, stamp: Stamp, data: bytes, count: int) -> None:
        self.append_id = append_id
        self.stamp = stamp
        self.data = data
        self.record_count = count
        self.is_abandoned = False
        self.is_landed = False
        self.was_uncertain = False
        self.try_count = 0


class _Producer:
    """An idempotent producer of one log."""

    def __init__(self, name: str, log_id: LogId) -> None:
        self.name = name
        self.log_id = log_id
        self.epoch = 0
        self.sequence = 0
        self.acknowledged_count = 0
        self.open: dict[int, _Batch] = {}
        self.done: list[_Batch] = []


class ExactClient(Node):
    """A write proxy and its clients.

    Args:
        history: told of everything that they experience.
    """

    def __init__(
        self,
        world: World,
        index: int,
        *,
        options: Options,
        network: Network,
        store: Store,
        sequencers: dict[str, SequencerNode],
        history: Checkers,
    ) -> None:
        super().__init__(world, f"c{index}", options.places[0][0])
        self.index = index
        self.is_over = False
        self.slow_factor = 1.0
        self.open: dict[int, LogId] = {}
        self._options = options
        self._history = history
        self._sequencers = sequencers
        self._log_ids = [LogId(i + 1) for i, use in enumerate(options.log_uses) if use.has_demands]
        self.producers = [
            _Producer(f"p{number}", world.rng.choice(self._log_ids))
            for number in range(options.producer_count if self._log_ids else 0)
        ]
        self.proxy = WriteProxy(self, network, store, sequencers, has_gossip=options.has_gossip)
        self._append_count = 0
        self._token_count = 0
        self._ends: dict[LogId, int] = {}
        self._tokens: dict[LogId, list[str]] = {log_id: [""] for log_id in self._log_ids}
        self._setting: dict[LogId, bool] = {}
        self.begin_life()
        self.proxy.start()
        if self.producers:
            self.after(world.between(0, 200 * MS), self._act)

    @property
    def is_setting(self) -> bool:
        """A token is on its way: it may still open an epoch."""
        return any(self._setting.values())

    @property
    def acknowledged_count(self) -> int:
        """Batches of the producer that has fewest in the log."""
        return min((producer.acknowledged_count for producer in self.producers), default=1 << 60)

    def finish(self) -> None:
        """Begin nothing any more."""
        self.is_over = True

    # --- what they do ----------------------------------------------------------------------------

    def _act(self) -> None:
        if self.is_over:
            return
        rng = self.world.rng
        log_id = rng.choice(self._log_ids)
        match rng.choice(_ROLES):
            case "produce":
                self._produce(rng.choice(self.producers))
            case "match":
                self.append_at_end(log_id)
            case "token":
                self._append_under_token(log_id)
            case "set":
                self._set_token(log_id)
            case _:
                self.append_plain(log_id)
        # Half of a client's share: each of theirs is worth many events, in retries and in checks.
        share = 2 * (self._options.client_count + 1)
        rate = self._options.appends_per_s / share / self.slow_factor
        self.after(self.world.between(0, int(2 * SECOND / rate)), self._act)

    def _make(
        self, log_id: LogId, demand: Demand, producer: BatchProducer | None = None
    ) -> tuple[int, bytes, int]:
        """Invoke an append; gives its id, its batch, its records."""
        self._append_count += 1
        append_id = self._append_count
        rng = self.world.rng
        name = b"c%d a%d " % (self.index, append_id)
        count = 1 + (rng.random() < 0.3)
        bodies = tuple(name + b"r%d" % number + b"." * rng.randrange(60) for number in range(count))
        now_us = self.world.now_us
        self.open[append_id] = log_id
        self._history.on_invoke(now_us, self.index, log_id, append_id, bodies)
        if demand != Demand():
            self._history.on_demand(self.index, log_id, append_id, demand, bodies)
        self.world.counts["append invoked"] += 1
        return append_id, encode_batch(bodies, now_us // MS, producer=producer), count

    # --- appends that are tried once -------------------------------------------------------------

    def _append(self, log_id: LogId, demand: Demand, chain: int = 0) -> None:
        append_id, batch, count = self._make(log_id, demand)
        self.loop.run_task(self._bring(log_id, append_id, batch, count, demand, chain))

    def append_plain(self, log_id: LogId) -> None:
        """Append without a demand."""
        self._append(log_id, Demand())

    def append_at_end(self, log_id: LogId, chain: int = 0) -> None:
        """Append where one believes that the log ends."""
        self._append(log_id, Demand(match_seq_num=self._ends.get(log_id, 0)), chain)

    def _append_under_token(self, log_id: LogId) -> None:
        tokens = self._tokens[log_id]
        is_old = self.world.chance(0.2)
        self._append(log_id, Demand(token=self.world.rng.choice(tokens) if is_old else tokens[-1]))

    async def _bring(  # noqa: PLR0917 - one append
        self, log_id: LogId, append_id: int, batch: bytes, count: int, demand: Demand, chain: int
    ) -> None:
        options = AppendOptions(demand.match_seq_num, demand.token)
        try:
            result = await self.proxy.append(log_id, batch, options)
        except DuramenError as error:
            self._end(log_id, append_id, error)
            seq_num = error.facts.get("expected_seq_num")
            if error.code == "condition_failed" and seq_num is not None:
                self._ends[log_id] = seq_num
                if chain < _CHAIN_MAX and not self.is_over:
                    self.append_at_end(log_id, chain + 1)
            return
        assert not isinstance(result, AlreadyStored) and result.record_count == count, result
        self.world.counts[f"append accepted: {_format(demand)}"] += 1
        if isinstance(result, AppendedEarly):
            self._acknowledge(log_id, append_id, result.dlsn, None)
            return
        assert not result.is_duplicate, result
        self._acknowledge(log_id, append_id, result.start.dlsn, result.start.seq_num)
        self._ends[log_id] = result.start.seq_num + count

    def _acknowledge(self, log_id: LogId, append_id: int, dlsn: Dlsn, seq_num: int | None) -> None:
        self.open.pop(append_id, None)
        self.world.counts["append acknowledged"] += 1
        self._history.on_acknowledge(
            self.world.now_us, self.index, log_id, append_id, dlsn, seq_num
        )

    def _end(self, log_id: LogId, append_id: int, error: DuramenError) -> None:
        """An append that is not tried again was not acknowledged."""
        del self.open[append_id]
        now_us, history = self.world.now_us, self._history
        self.world.counts[f"exact append: {error.code}"] += 1
        if error.code in _MODE_REFUSALS:
            history.conditions(log_id).on_mode_refused(error.code)
        if error.uncertain:
            history.on_uncertain(
                now_us, self.index, log_id, append_id, is_under_way=is_under_way(error.facts)
            )
        elif error.code in _REFUSALS:
            history.on_refused(now_us, self.index, log_id, append_id, _read_refusal(error))
        else:
            history.on_fail(now_us, self.index, log_id, append_id)

    # --- producers -------------------------------------------------------------------------------

    def _produce(self, producer: _Producer) -> None:
        """Send the next batch; sometimes as a new instance, sometimes one that is in the log."""
        if self.world.chance(0.02):
            self._begin_anew(producer)
        if producer.done and self.world.chance(0.1):
            self.loop.run_task(self._repeat(producer, self.world.rng.choice(producer.done)))
        if len(producer.open) >= _PIPELINE:
            return
        stamp = Stamp(producer.name, producer.epoch, producer.sequence)
        producer.sequence += 1
        append_id, data, count = self._make(
            producer.log_id, Demand(stamp=stamp), BatchProducer(*stamp)
        )  # fmt: skip
        batch = producer.open[append_id] = _Batch(append_id, stamp, data, count)
        self.loop.run_task(self._carry(producer, batch))
        if self.world.chance(0.05):
            # Whoever retries too early meets what is under way.
            self.after(self.world.between(0, 20 * MS), self._repeat_later, producer, batch)

    def _repeat_later(self, producer: _Producer, batch: _Batch) -> None:
        if batch.append_id in producer.open:
            self.loop.run_task(self._repeat(producer, batch))

    def _begin_anew(self, producer: _Producer) -> None:
        """Another instance takes over; what the one before has under way is not waited for."""
        self.world.counts["producer began anew"] += 1
        for batch in producer.open.values():
            self._abandon(producer, batch)
        producer.open.clear()
        producer.done.clear()
        producer.epoch += 1
        producer.sequence = 0

    def _abandon(self, producer: _Producer, batch: _Batch) -> None:
        batch.is_abandoned = True
        del self.open[batch.append_id]
        self._history.on_uncertain(self.world.now_us, self.index, producer.log_id, batch.append_id)

    async def _carry(self, producer: _Producer, batch: _Batch) -> None:
        """Until the batch is in the log, or nobody wants it any more."""
        log_id, append_id = producer.log_id, batch.append_id
        conditions = self._history.conditions(log_id)
        while True:
            conditions.on_attempt(self.index, append_id)
            try:
                result = await self._try(producer, batch)
            except DuramenError as error:
                self.world.counts[f"producer: {error.code}"] += 1
                if batch.is_landed:
                    return
                batch.was_uncertain = batch.was_uncertain or error.uncertain
                expected_seq = error.facts.get("expected_producer_seq")
                conditions.on_attempt_refused(self.index, append_id, error.code, expected_seq)
                if error.code in _MODE_REFUSALS:
                    conditions.on_mode_refused(error.code)
                    self._ask_for_order(log_id)
                if batch.is_abandoned:
                    self._end_abandoned(producer, batch, error)
                    return
                if self.is_over:
                    self._abandon(producer, batch)
                    return
                await self.pass_time(20 * MS)
                continue
            self._land(producer, batch, result)
            return

    def _ask_for_order(self, log_id: LogId) -> None:
        """Through whichever sequencer: one that does not own the log tells its owner nothing."""
        names = [name for name, each in self._sequencers.items() if each.is_up]
        if names and self.world.chance(_ORDER_RATIO):
            sequencer = self._sequencers[self.world.rng.choice(names)]
            self.world.counts["order asked for"] += 1
            sequencer.run(sequencer.life, sequencer.reconfigure, log_id, "ordered")

    async def _try(self, producer: _Producer, batch: _Batch) -> AppendedBatch | AlreadyStored:
        batch.try_count += 1
        try:
            result = await self.proxy.append(producer.log_id, batch.data, is_repeatable=True)
            assert not isinstance(result, AppendedEarly), "a producer's batch waits"
            return result
        finally:
            batch.try_count -= 1

    def _land(
        self, producer: _Producer, batch: _Batch, result: AppendedBatch | AlreadyStored
    ) -> None:
        """The batch is in the log: the first answer says where, all others say the same."""
        log_id, append_id = producer.log_id, batch.append_id
        if batch.is_landed or isinstance(result, AlreadyStored):
            self._repeat_landed(producer, batch, result)
        else:
            assert result.record_count == batch.record_count, (batch.stamp, result)
            self._acknowledge(log_id, append_id, result.start.dlsn, result.start.seq_num)
            batch.is_landed = True
        if append_id in producer.open:
            del producer.open[append_id]
            producer.acknowledged_count += 1
            if batch.is_landed:
                producer.done = [*producer.done[-7:], batch]

    def _repeat_landed(
        self, producer: _Producer, batch: _Batch, result: AppendedBatch | AlreadyStored
    ) -> None:
        log_id, append_id = producer.log_id, batch.append_id
        if isinstance(result, AppendedBatch):
            start = result.start
            self._history.on_repeated(self.index, log_id, append_id, start.dlsn, start.seq_num)
            return
        if append_id in self.open:
            # In the log, as an uncertain append may be, and certainly so.
            del self.open[append_id]
            self._history.on_uncertain(self.world.now_us, self.index, log_id, append_id)
        self._history.conditions(log_id).on_stored(self.index, append_id)

    def _end_abandoned(self, producer: _Producer, batch: _Batch, error: DuramenError) -> None:
        """Nobody tries it again: it is not in the log if no try of it had an open fate."""
        self.world.counts["batch fenced for good"] += error.code == "producer_fenced"
        if not batch.was_uncertain and not batch.try_count:
            now_us = self.world.now_us
            self._history.on_fail(now_us, self.index, producer.log_id, batch.append_id)

    async def _repeat(self, producer: _Producer, batch: _Batch) -> None:
        try:
            result = await self._try(producer, batch)
        except DuramenError as error:
            self.world.counts[f"repetition: {error.code}"] += 1
            batch.was_uncertain = batch.was_uncertain or error.uncertain
            return
        self.world.counts["repetition answered"] += 1
        self._land(producer, batch, result)

    # --- tokens ----------------------------------------------------------------------------------

    def _set_token(self, log_id: LogId) -> None:
        if self._setting.get(log_id) or not self.world.chance(0.2):
            return
        self._setting[log_id] = True
        self._token_count += 1
        number, token = self._token_count, f"t{self._token_count}"
        expected = self._tokens[log_id][-1] if self.world.chance(0.3) else None
        conditions = self._history.conditions(log_id)
        conditions.on_set_token(self.index, number, token, expected)
        self.loop.run_task(self._set(log_id, number, token, expected))

    async def _set(self, log_id: LogId, number: int, token: str, expected: str | None) -> None:
        conditions = self._history.conditions(log_id)
        try:
            answer = await ask_token(
                self.proxy.creator, key_of_log(log_id), log_id, token, expected
            )
            conditions.on_token_set(self.index, number, parse_dlsn(answer["tail"]["dlsn"]))
            self._tokens[log_id].append(token)
            self.world.counts["token set"] += 1
        except DuramenError as error:
            self.world.counts[f"token: {error.code}"] += 1
            if error.code in _MODE_REFUSALS:
                conditions.on_mode_refused(error.code)
            if error.code in _REFUSALS:
                conditions.on_token_refused(self.index, number, _read_refusal(error))
            elif error.uncertain:
                self._tokens[log_id].append(token)
            else:
                conditions.on_token_failed(self.index, number)
        self._setting[log_id] = False


def _format(demand: Demand) -> str:
    if demand.match_seq_num is not None:
        return "match"
    return "plain" if demand.token is None else "token"


def _read_refusal(error: DuramenError) -> Refusal:
    tail = error.facts["tail"]
    dlsn: Dlsn = parse_dlsn(tail["dlsn"])
    return Refusal(error.code, dlsn, tail["seq_num"], error.facts.get("expected_producer_seq"))
