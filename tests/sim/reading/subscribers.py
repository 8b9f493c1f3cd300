"""Clients of read proxies: each follows a log from a position, and comes again until it has it all.

A subscriber reads by streams (`stream_records`) and by long polls (`fill`), as the routes of the
read proxy do; what comes is told to the checkers instead of being spelled. Whatever ends a request
(a bookie that is away, a proxy that dies, a quiet stream), the next one begins with the record that
is due, so that the subscriber gets every record once and in order.

Called by `run`. Documented in docs/testing.md.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final, cast

from duramen.core.reading.effects import Deliver
from duramen.errors import DuramenError
from duramen.ids import Dlsn, EntryId, Epoch, LogId
from duramen.runtime.reading.log_reader import DataLost
from duramen.runtime.reading.positioning.positions import Start
from duramen.runtime.reading.tail import Tail
from duramen.texts import Position, PositionKind
from duramen.units import KIB, MS, SECOND
from duramen.wire.metadata_json import read_any_segment
from duramen_readproxy.answers import BatchPick, Bounds
from duramen_readproxy.following.record_reader import RecordReader, fill
from duramen_readproxy.following.stream_forms import Step, StreamForm
from duramen_readproxy.following.streams import stream_records
from duramen_readproxy.parameters import Form, ReadRequest
from duramen_readproxy.requests import OpenRequest
from tests.sim.delivery_record import Delivery
from tests.sim.known_bytes import know_records
from tests.sim.log_record import TailQuestion
from tests.sim.metadata import PATHS
from tests.sim.reading.proxy import LIMITS, Cluster, ReadProxy
from tests.sim.world import World

_RETRY_US: Final = 200 * MS
_POLL_COUNT: Final = 40
"""Records of one long poll."""

_TIME_COUNT: Final = 500
"""A time is that of one of so many appends, the last ones."""

_POLL_RATIO: Final = 0.3
_QUIET_US: Final = (300 * MS, 6 * SECOND)
_DEATH_RATIO: Final = 0.1
_SECOND_RATIO: Final = 0.25
_PASSED: Final = (
    "data_unavailable", "metadata_unavailable", "cold_store_unavailable", "overloaded",
)  # fmt: skip
"""What a client is told to try again after. Anything else is a finding."""

_KINDS: Final = tuple(
    kind
    for kind, share in (
        (PositionKind.TIME, 3), (PositionKind.DLSN, 3), (PositionKind.SEQ, 2),
        (PositionKind.LSN, 2), (PositionKind.TAIL, 1), (PositionKind.HEAD, 1),
    )
    for _ in range(share)
)  # fmt: skip
"""Where people begin; what is `ago` is a time."""

_NO_BOUNDS: Final = Bounds(None, None, None)


class SubscriberNode(ReadProxy):
    """A read proxy with one subscriber or two of one log."""

    def __init__(self, world: World, index: int, regions: list[str], cluster: Cluster) -> None:
        self.subscribers: list[Subscriber] = []
        super().__init__(world, f"r{index}", regions[index % len(regions)], cluster)

    def move(self) -> None:
        """Another subscriber comes, in the place of the others or of none; or the proxy dies."""
        if self.subscribers and self.rng.random() < _DEATH_RATIO:
            self.world.counts["read proxy died"] += 1
            self.begin()
            for subscriber in self.subscribers:
                subscriber.begin()
            return
        log_id = LogId(1 + self.rng.randrange(self.cluster.log_count))
        if len(self.subscribers) == 1 and self.rng.random() < _SECOND_RATIO:
            log_id = self.subscribers[0].log_id
        else:
            for subscriber in self.subscribers:
                subscriber.leave()
            self.subscribers.clear()
        self.subscribers.append(Subscriber(self, log_id, self._pick_position(log_id)))

    def _pick_position(self, log_id: LogId) -> Position:
        """Where somebody may want to begin."""
        rng, log = self.rng, self.read_log(log_id)
        epoch = Epoch(1 + rng.randrange(max(1, log.next_epoch)))
        if rng.random() < 0.75:
            epoch = Epoch(max(1, log.next_epoch - rng.randrange(3)))
        kind = rng.choice(_KINDS)
        match kind:
            case PositionKind.TAIL:
                return Position(kind, rng.choice((0, 1, 30)))
            case PositionKind.TIME:
                return Position(kind, self.history.pick_ms(log_id, rng, _TIME_COUNT))
            case PositionKind.SEQ:
                end = log.totals.record_count + 20
                return Position(kind, max(0, end - rng.randrange(200)))
            case PositionKind.DLSN:
                dlsn = Dlsn(epoch, self._pick_entry(log_id, epoch), rng.randrange(2))
                return Position(kind, dlsn=dlsn)
            case PositionKind.LSN:
                return Position(kind, epoch << 32 | self._pick_entry(log_id, epoch))
            case _:
                return Position(PositionKind.HEAD)

    def _pick_entry(self, log_id: LogId, epoch: Epoch) -> EntryId:
        stored = self.cluster.store.find(PATHS.segment(log_id, epoch))
        if stored is None or self.rng.random() < 0.3:
            return EntryId(0)
        last = read_any_segment(stored.data).last_entry
        return EntryId(0) if last is None else EntryId(self.rng.randrange(last + 2))


class Subscriber:
    """One client; its state outlives the proxy's process."""

    def __init__(self, proxy: SubscriberNode, log_id: LogId, position: Position) -> None:
        self.log_id = log_id
        self._proxy = proxy
        self._world = proxy.world
        self._history = proxy.history
        self._number = self._history.new_reader()
        self._position = position
        self._found: list[Dlsn] = []
        self._head: Dlsn | None = None
        """The first record that came."""
        self._next_seq_num = 0
        self._delivery: Delivery | None = None
        self._task: asyncio.Task[Any]
        self.begin()

    def begin(self) -> None:
        """Its proxy is up, for the first time or again."""
        self._history.on_reader_restarted(self._number)
        self._task = self._proxy.loop.begin_task(self._run())

    def leave(self) -> None:
        """It wants no more."""
        _ = self._task.cancel()
        if self._delivery is not None:
            self._delivery.leave()

    def is_behind(self, end_seq_num: int) -> bool:
        """Whether there are records before this one that it did not get."""
        return self._delivery is None or self._delivery.next_seq_num < end_seq_num

    def __repr__(self) -> str:
        return f"<subscriber {self._number} of log {self.log_id} at {self._position}>"

    async def _run(self) -> None:
        while True:
            is_poll = self._proxy.rng.random() < _POLL_RATIO
            try:
                await (self._poll() if is_poll else self._stream())
            except DataLost as error:
                self._position = Position(PositionKind.DLSN, dlsn=error.next_dlsn)
                self._pass_gap()
            except DuramenError as error:
                if error.code not in _PASSED:
                    raise
                self._world.counts[f"subscriber: {error.code}"] += 1
                await self._proxy.pass_time(_RETRY_US)

    # --- Requests, as the routes of the read proxy make them -------------------------------------

    async def _start(self) -> tuple[Start, RecordReader]:
        proxy, position = self._proxy, self._position
        question = self._history.on_tail_asked(self.log_id)
        start = await proxy.positions.find(proxy.view_of(self.log_id), position, clamp=True)
        self._world.counts[f"position: {position.kind.value}"] += 1
        self._begin_at(question, start)
        reader = RecordReader(
            proxy.feeds, proxy.fetcher, proxy.follower_of(self.log_id),
            (start.epoch, start.entry), LIMITS,
        )  # fmt: skip
        return start, reader

    def _begin_at(self, question: TailQuestion, start: Start) -> None:
        position = self._position
        if self._delivery is None:
            head = self._proxy.read_log(self.log_id).trim_seq_num
            self._delivery = self._history.on_start(question, position, start, head)
        elif start.is_moved:
            self._world.counts["subscriber moved"] += 1
            self._pass_gap(start.seq_num)
        if position.kind is PositionKind.TAIL and start.tail is not None and start.tail.is_sure:
            self._history.on_tail(
                self._world.now_us, question, Dlsn(start.tail.epoch, start.tail.entry, 0),
                start.tail.seq_num,
            )  # fmt: skip
        self._go_to(start.seq_num)

    async def _stream(self) -> None:
        """Until it is quiet for a while."""
        proxy, question = self._proxy, self._history.on_tail_asked(self.log_id)
        start, reader = await self._start()
        wait_us = int(proxy.rng.uniform(*_QUIET_US))
        wanted = ReadRequest(
            self._position, None, _NO_BOUNDS, wait_us, clamp=True, form=Form.NDJSON,
            is_base64=False, has_notes=True,
        )  # fmt: skip
        reader.catch_up_in(proxy.places, start.find_end())
        follower, finder = proxy.follower_of(self.log_id), proxy.finder
        pieces = stream_records(
            reader, cast(StreamForm, _Sink(self, question, start)), wanted,
            lambda: finder.find_reach(follower), lambda: proxy.feeds.is_stopping,
            request=cast(OpenRequest, _Request()),
        )  # fmt: skip
        async with contextlib.aclosing(pieces):
            async for _ in pieces:
                pass
        if reader.is_at_end_of_stream:
            await proxy.pass_time(SECOND)  # there is nothing to come again for

    async def _poll(self) -> None:
        """One bounded answer, which waits at the tail if it would be empty."""
        proxy, question = self._proxy, self._history.on_tail_asked(self.log_id)
        start, reader = await self._start()
        pick = BatchPick(start, Bounds(_POLL_COUNT, 8 * KIB, None))
        view = proxy.view_of(self.log_id)
        tail = await fill(reader, pick, int(proxy.rng.uniform(*_QUIET_US)), view.find_reach)
        proxy.positions.note(reader.find_touched())
        for placed in pick._batches:
            proxy.note_delivered(self._number, self.log_id, placed.dlsn.epoch)
            for at, body in enumerate(placed.decode().bodies):
                dlsn = placed.dlsn._replace(slot=placed.dlsn.slot + at)
                self._take(dlsn, placed.seq_num + at, body)
        if pick.next_seq_num is not None:
            self._go_to(pick.next_seq_num)
        if tail is not None:
            self._world.counts["poll to the tail"] += 1
            self.note_tail(question, tail)
        await proxy.pass_time(proxy.rng.randrange(50 * MS))

    # --- What comes ------------------------------------------------------------------------------

    def deliver(self, delivered: Deliver) -> None:
        """Entries of a stream."""
        proxy, epoch = self._proxy, delivered.epoch
        proxy.note_delivered(self._number, self.log_id, epoch)
        for entry_id, body in delivered.entries:
            proxy.note_control(self.log_id, epoch, entry_id, body)
            for row in know_records(body, epoch, delivered.start_seq_num):
                self._take(*row)

    def _take(self, dlsn: Dlsn, seq_num: int, body: bytes) -> None:
        if seq_num < self._next_seq_num:
            return  # the beginning of what holds the record that is due
        assert self._delivery is not None
        self._world.counts["record read"] += 1
        self._history.on_read(self._world.now_us, self._number, self.log_id, dlsn, seq_num, body)
        self._delivery.take(seq_num)
        self._head = self._head or dlsn
        self._found.append(dlsn)
        self._go_to(seq_num + 1)

    def _go_to(self, seq_num: int) -> None:
        self._next_seq_num = seq_num
        self._position = Position(PositionKind.SEQ, seq_num)

    @property
    def next_seq_num(self) -> int:
        """Of the record that is due."""
        return self._next_seq_num

    def pass_truncated(self, left_seq_num: int) -> None:
        """It is told that what is due was given up."""
        self._world.counts["subscriber moved"] += 1
        self._pass_gap(left_seq_num)
        self._go_to(left_seq_num)

    def pass_lost(self) -> None:
        """It is told that what is due is lost."""
        self._pass_gap()

    def _pass_gap(self, seq_num: int | None = None) -> None:
        self._history.on_reader_gap(self._number, self.log_id)
        if self._delivery is not None:
            self._delivery.pass_gap(seq_num)

    def note_tail(self, question: TailQuestion, tail: Tail) -> None:
        """It is told that this is the end, for sure, and that it has all up to there."""
        assert tail.is_sure, tail
        dlsn = Dlsn(tail.epoch, tail.entry, 0)
        self._history.on_tail(self._world.now_us, question, dlsn, tail.seq_num)
        self._world.counts["read to the tail"] += 1
        if self._head is not None:
            head = max(self._head, self._proxy.read_log(self.log_id).trim.dlsn)
            self._history.on_read_to_tail(question, head, self._found)


class _Sink:
    """A `StreamForm` that spells nothing."""

    opening = b""
    is_full = False

    def __init__(self, subscriber: Subscriber, question: TailQuestion, start: Start) -> None:
        self._subscriber = subscriber
        self._question = question

    @property
    def wanted_seq_num(self) -> int:
        return self._subscriber.next_seq_num

    def add(self, delivered: Deliver, _step: Step) -> list[bytes]:
        self._subscriber.deliver(delivered)
        return []

    def note_moved(self) -> bytes:
        return b""

    def pass_truncated(self, left_seq_num: int) -> bytes:
        self._subscriber.pass_truncated(left_seq_num)
        return b""

    def pass_lost(self, lost: DataLost) -> bytes:
        self._subscriber.pass_lost()
        return b""

    def note_tail(self, tail: Tail) -> bytes:
        self._subscriber.note_tail(self._question, tail)
        return b""

    def note_nothing(self) -> bytes:
        return b""

    def note_end(self, reason: str, *, is_final: bool) -> bytes:
        return b""


class _Request:
    """A `requests.OpenRequest` that counts nothing."""

    waited_us = 0

    def note_answer(self) -> None:
        pass

    def fail(self, error: BaseException) -> None:
        pass
