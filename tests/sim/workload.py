"""Workload of a run: clients that append.

Clients send frames of appends, as the write proxy's lanes do, follow redirects, and say of each
append what they know: acknowledged, failed for certain, or uncertain. Client 0 waits for each
answer before it goes on, the others do not.

Called by `run`. Documented in docs/testing.md.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from duramen.core.status import BookieStatus
from duramen.errors import DuramenError
from duramen.ids import Dlsn, LogId
from duramen.units import MS, SECOND
from duramen.wire.record_batch import encode_batch
from duramen.wire.sequencer_calls import AppendedBatch, AppendedEarly, AppendResult, Redirect
from tests.sim.network import Call, Network
from tests.sim.options import Options
from tests.sim.sequencers import AppendRow, SequencerNode
from tests.sim.world import Node, World

_HOPS_MAX: Final = 4
_DEADLINE_US: Final = 6 * SECOND
_CLIENT_TIMEOUT_US: Final = 8 * SECOND
_METADATA_RETRY_US: Final = 300 * MS


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


# --- Clients -------------------------------------------------------------------------------------


class _Open:
    """An append that has no answer yet."""

    __slots__ = ("append_id", "batch", "hops", "log_id", "record_count")

    def __init__(self, append_id: int, log_id: LogId, batch: bytes, record_count: int) -> None:
        self.append_id = append_id
        self.log_id = log_id
        self.batch = batch
        self.record_count = record_count
        self.hops = 0


class ClientNode(Node):
    """One client with its write proxy: appends to every log."""

    def __init__(
        self,
        world: World,
        index: int,
        *,
        options: Options,
        network: Network,
        sequencers: dict[str, SequencerNode],
        history: History,
    ) -> None:
        regions = sorted({region for region, _ in options.places})
        super().__init__(world, f"c{index}", regions[index % len(regions)])
        self.index = index
        self.is_sequential = index == 0
        self.acknowledged_count = 0
        self.is_over = False
        self.open: dict[int, _Open] = {}
        self.slow_factor = 1
        self._options = options
        self._network = network
        self._sequencers = sequencers
        self._names = sorted(sequencers)
        self._history = history
        self._owners: dict[LogId, str] = {}
        self._append_count = 0
        self.begin_life()
        self.after(world.between(0, 200 * MS), self._append)

    def _append(self) -> None:
        """Send the next frame, and plan the one after it."""
        if self.is_over:
            return
        world, options = self.world, self._options
        rng = world.rng
        count = 1 if self.is_sequential else 1 + rng.randrange(2 * options.appends_per_frame - 1)
        if not (self.is_sequential and self.open):
            log_id = LogId(1 + rng.randrange(len(options.logs)))
            self._send([self._make(log_id) for _ in range(count)], self._guess(log_id))
        rate = options.appends_per_s / (options.client_count + 1) / self.slow_factor
        gap_us = int(SECOND * (1 if self.is_sequential else options.appends_per_frame) / rate)
        self.after(world.between(0, 2 * gap_us), self._append)

    def _make(self, log_id: LogId) -> _Open:
        self._append_count += 1
        append_id = self._append_count
        rng = self.world.rng
        name = b"c%d a%d " % (self.index, append_id)
        bodies = tuple(
            name + b"r%d" % number + b"." * rng.randrange(60)
            for number in range(1 + (rng.random() < 0.3))
        )
        append = _Open(
            append_id, log_id, encode_batch(bodies, self.world.now_us // MS), len(bodies)
        )
        self.open[append_id] = append
        self._history.on_invoke(self.world.now_us, self.index, log_id, append_id, bodies)
        self.world.counts["append invoked"] += 1
        return append

    def _guess(self, log_id: LogId) -> str:
        owner = self._owners.get(log_id)
        return self._names[self.world.rng.randrange(len(self._names))] if owner is None else owner

    def _send(self, appends: list[_Open], target: str) -> None:
        rows = [AppendRow(a.append_id, a.log_id, a.batch, _DEADLINE_US) for a in appends]
        waiting = {append.append_id: append for append in appends}
        calls: list[Call] = []

        def on_answer(status: BookieStatus, value: Any) -> None:
            self._on_answer(waiting, target, status, value)
            if not waiting:
                calls[0].is_done = True

        calls.append(
            self._network.call(
                self, self._sequencers[target], "append", rows, _CLIENT_TIMEOUT_US, on_answer,
                is_stream=True,
            )
        )  # fmt: skip

    def _on_answer(
        self, waiting: dict[int, _Open], target: str, status: BookieStatus, value: Any
    ) -> None:
        if status is BookieStatus.OK:
            again: dict[str, list[_Open]] = {}
            for append_id, result in value:
                append = waiting.pop(append_id, None)
                if append is not None:
                    self._on_result(append, target, result, again)
            for name, appends in again.items():
                self._send(appends, name)
            return
        appends = list(waiting.values())
        waiting.clear()
        if status is BookieStatus.UNREACHABLE:
            self._retry(appends, target)
        else:
            for append in appends:
                self._forget_owner(append.log_id, target)
                self._end_uncertain(append, is_under_way=True)

    def _on_result(
        self, append: _Open, target: str, result: AppendResult, again: dict[str, list[_Open]]
    ) -> None:
        now_us = self.world.now_us
        match result:
            case AppendedBatch() | AppendedEarly():
                dlsn, seq_num = _place_of(result)
                record_count = result.record_count
                assert record_count == append.record_count
                self._owners[append.log_id] = target
                del self.open[append.append_id]
                self.acknowledged_count += 1
                self.world.counts["append acknowledged"] += 1
                self._history.on_acknowledge(
                    now_us, self.index, append.log_id, append.append_id, dlsn, seq_num
                )
            case Redirect(sequencer_id):
                append.hops += 1
                self.world.counts["append redirected"] += 1
                if append.hops > _HOPS_MAX or sequencer_id not in self._sequencers:
                    self._end_failed(append)
                else:
                    self._owners[append.log_id] = sequencer_id
                    again.setdefault(sequencer_id, []).append(append)
            case DuramenError():
                self._forget_owner(append.log_id, target)
                if result.uncertain:
                    self._end_uncertain(append, is_under_way=False)
                else:
                    self._end_failed(append)

    def _retry(self, appends: list[_Open], target: str) -> None:
        """Nobody was there: nothing was processed, another may be asked."""
        others = [name for name in self._names if name != target]
        again = []
        for append in appends:
            self._forget_owner(append.log_id, target)
            append.hops += 1
            if append.hops > _HOPS_MAX or not others:
                self._end_failed(append)
            else:
                again.append(append)
        if again:
            self.after(20 * MS, self._send, again, self.world.rng.choice(others))

    def _forget_owner(self, log_id: LogId, target: str) -> None:
        if self._owners.get(log_id) == target:
            del self._owners[log_id]

    def _end_failed(self, append: _Open) -> None:
        del self.open[append.append_id]
        self.world.counts["append failed"] += 1
        now_us = self.world.now_us
        self._history.on_fail(now_us, self.index, append.log_id, append.append_id)

    def _end_uncertain(self, append: _Open, *, is_under_way: bool) -> None:
        del self.open[append.append_id]
        self.world.counts["append uncertain"] += 1
        self._history.on_uncertain(
            self.world.now_us, self.index, append.log_id, append.append_id,
            is_under_way=is_under_way,
        )  # fmt: skip


def _place_of(result: AppendedBatch | AppendedEarly) -> tuple[Dlsn, int | None]:
    if isinstance(result, AppendedEarly):
        return result.dlsn, None
    return result.start.dlsn, result.start.seq_num
