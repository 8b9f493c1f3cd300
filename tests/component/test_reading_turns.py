"""Streams that catch up at once: one step a pass of the loop, few that read ahead, each in turn.

The places are real, under a clock that stands still where time matters; the streams are those of a
read proxy over faked bookies, and their clients read nothing, or a piece when they are told.
Source: docs/protocol/read-answers.md "Turns of readers".
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final

import orjson
import pytest
from prometheus_client import CollectorRegistry
from starlette.types import Message

from duramen.core.reading.effects import Deliver
from duramen.core.rights.grants import parse_principal
from duramen.core.segment import Totals
from duramen.errors import DuramenError
from duramen.ids import EntryId, Epoch, ledger_of
from duramen.runtime.admission.callers import AdmittedCall, ShownCredentials
from duramen.runtime.credentials.principals import Bearer
from duramen.runtime.reading.log_reader import LogCursor
from duramen.runtime.reading.positioning.positions import Start
from duramen.texts import parse_position
from duramen.wire.entry import encode_entry
from duramen.wire.record_batch import encode_batch
from duramen.wire.record_json import encode_record
from duramen_readproxy import answers
from duramen_readproxy.answers import Bounds
from duramen_readproxy.following import stream_forms
from duramen_readproxy.following.encodings import PIECE_BYTES, SharedEncodings
from duramen_readproxy.following.places import (
    BLOCKED_US,
    PARTY_COUNT_MAX,
    PLACE_COUNT_MAX,
    TURN_BYTES,
    TURN_US,
    ReadingPlace,
    ReadingPlaces,
)
from duramen_readproxy.following.stream_forms import (
    CATCH_UP_STEP,
    TAIL_STEP,
    Step,
    StreamForm,
    make_form,
)
from duramen_readproxy.following.streams import ClientStream
from duramen_readproxy.following.turns import Turns
from duramen_readproxy.parameters import Form, ReadRequest
from duramen_readproxy.requests import OpenRequest, Requests
from duramen_readproxy.rest import answer_read
from tests.component.feed_world import LOG, deliver
from tests.component.own_sockets import copy_own_sockets
from tests.component.readproxy_world import World, run
from tests.pauses import stay
from tests.waiting import wait_for

STREAM_COUNT: Final = 40
RECORD_COUNT: Final = 500
ENTRY_COUNT: Final = 60
FAR_US: Final = 1 << 50
ANN, BOB = (parse_principal(f"user:company/{name}") for name in ("ann", "bob"))


def call_of(who: Any) -> AdmittedCall:
    rights: Any = None
    return AdmittedCall(Bearer(who, 2_000_000_000), ShownCredentials((), ()), None, 0.0, rights)


class Dropped:
    """A reader's side of a place."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


class HeldClock:
    """The time of places, which goes on as a test says."""

    def __init__(self) -> None:
        self.now_us = 1_000_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HeldClock:
    held = HeldClock()
    monkeypatch.setattr("duramen_readproxy.following.places.read_clock_us", lambda: held.now_us)
    return held


class WaitingReaders:
    """Places, and those that have one or wait."""

    def __init__(self) -> None:
        self.places = ReadingPlaces()
        self.dropped = Dropped()

    def begin(self, count: int, call: AdmittedCall | None = None) -> list[ReadingPlace]:
        """So many more want a place."""
        wanted = [ReadingPlace(self.places, call, self.dropped) for _ in range(count)]
        self.tasks = [asyncio.ensure_future(place.enter(FAR_US)) for place in wanted]
        return wanted

    @property
    def counts(self) -> tuple[int, int]:
        """Held, and waited for."""
        told = self.places.statistics()
        return told["held"], told["waiting"]


def play(scenario: Callable[[WaitingReaders], Any]) -> None:
    async def main() -> None:
        readers = WaitingReaders()
        await scenario(readers)
        readers.places.stop_waiting()
        await readers.places.stop()

    asyncio.run(main())


async def pass_loop(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_one_step_is_done_in_a_pass_and_parties_have_theirs_one_after_the_other() -> None:
    async def main() -> None:
        turns = Turns()
        loop = asyncio.get_running_loop()
        steps: list[Any] = []
        passes: Counter[int] = Counter()
        number = 0

        def tick() -> None:
            nonlocal number
            number += 1
            loop.call_soon(tick)

        async def step(party: Any) -> None:
            for _ in range(4):
                await turns.rest(party)
                steps.append(party)
                passes[number] += 1

        loop.call_soon(tick)
        await asyncio.gather(*(step(ANN) for _ in range(10)), step(BOB))
        assert turns.statistics() == {"resting": 0, "parties": 0, "steps": 44}
        assert max(passes.values()) == 1
        assert steps[:8].count(BOB) == 4

    asyncio.run(main())


def test_who_goes_while_it_rests_holds_up_nobody() -> None:
    async def main() -> None:
        turns = Turns()
        going, staying = (asyncio.ensure_future(turns.rest(ANN)) for _ in range(2))
        await asyncio.sleep(0)
        going.cancel()
        await staying
        assert turns.statistics()["resting"] == 0

    asyncio.run(main())


def test_places_are_few_and_one_party_has_not_all_of_them() -> None:
    async def scenario(readers: WaitingReaders) -> None:
        of_ann = readers.begin(100, call_of(ANN))
        await pass_loop()
        assert readers.counts == (PARTY_COUNT_MAX, 100 - PARTY_COUNT_MAX)
        readers.begin(100, call_of(BOB))
        await pass_loop()
        assert readers.counts == (PLACE_COUNT_MAX, 200 - PLACE_COUNT_MAX)
        for place in of_ann[:4]:
            place.leave()
        await pass_loop()
        assert readers.counts == (PLACE_COUNT_MAX, 196 - PLACE_COUNT_MAX)

    play(scenario)


def test_a_turn_is_over_by_its_bytes_or_its_time_and_only_where_somebody_waits(
    clock: HeldClock,
) -> None:
    async def scenario(readers: WaitingReaders) -> None:
        alone, *others = readers.begin(PARTY_COUNT_MAX)
        await pass_loop()
        alone.note_taken(TURN_BYTES)
        assert not alone.is_due
        readers.begin(1)
        await pass_loop()
        assert alone.is_due and not others[0].is_due
        clock.now_us += TURN_US
        assert others[0].is_due

    play(scenario)


def test_a_client_that_takes_nothing_loses_its_place_once_somebody_waits(
    clock: HeldClock,
) -> None:
    async def scenario(readers: WaitingReaders) -> None:
        deaf, reading, *_ = readers.begin(PARTY_COUNT_MAX)
        await pass_loop()
        deaf.lend()
        reading.lend()
        reading.take_back()
        clock.now_us += BLOCKED_US
        readers.places._look()  # nobody waits: the look that is due then is not armed
        assert readers.dropped.count == 0
        readers.begin(2)
        await pass_loop()
        readers.places._look()
        await pass_loop()
        assert readers.dropped.count == 1
        assert readers.counts == (PARTY_COUNT_MAX, 1)
        assert readers.places.statistics()["taken_away"] == 1

    play(scenario)


def test_places_are_not_taken_from_others_for_a_party_that_has_all_it_may_have(
    clock: HeldClock,
) -> None:
    async def scenario(readers: WaitingReaders) -> None:
        of_ann = readers.begin(PARTY_COUNT_MAX + 1, call_of(ANN))
        [of_bob] = readers.begin(1, call_of(BOB))
        await pass_loop()
        assert readers.counts == (PARTY_COUNT_MAX + 1, 1)
        of_bob.note_taken(TURN_BYTES)
        of_ann[0].note_taken(TURN_BYTES)
        assert of_ann[0].is_due and not of_bob.is_due
        of_bob.lend()
        clock.now_us += BLOCKED_US
        readers.places._look()
        assert readers.dropped.count == 0
        readers.begin(PLACE_COUNT_MAX - PARTY_COUNT_MAX, call_of(BOB))
        await pass_loop()
        assert of_bob.is_due  # for others of its own

    play(scenario)


def test_who_waits_may_say_that_it_is_alive_and_stays_where_it_is_in_the_row(
    clock: HeldClock,
) -> None:
    async def scenario(readers: WaitingReaders) -> None:
        held = readers.begin(PARTY_COUNT_MAX)
        await pass_loop()
        early = ReadingPlace(readers.places, None, readers.dropped)
        assert not await early.enter(clock.now_us)
        readers.begin(1)
        [late] = readers.tasks
        await pass_loop()
        assert early.is_entering and readers.counts[1] == 2
        held[0].leave()
        await pass_loop()
        assert readers.counts == (PARTY_COUNT_MAX, 1) and not late.done()
        assert await early.enter(clock.now_us) and not early.is_entering

    play(scenario)


def test_what_could_not_be_given_up_does_not_keep_the_process_from_its_end(
    clock: HeldClock,
) -> None:
    async def fail() -> None:
        raise OSError("the disk is gone")

    async def scenario(readers: WaitingReaders) -> None:
        deaf = [ReadingPlace(readers.places, None, fail) for _ in range(PARTY_COUNT_MAX)]
        for place in deaf:
            assert await place.enter(FAR_US)
            place.lend()
        clock.now_us += BLOCKED_US
        readers.begin(1)
        await pass_loop(1)
        readers.places._look()
        await readers.places.stop()
        assert readers.places.statistics()["taken_away"] == 1

    play(scenario)


def test_who_may_read_no_more_or_is_to_leave_waits_no_longer() -> None:
    async def scenario(readers: WaitingReaders) -> None:
        readers.begin(PARTY_COUNT_MAX, call_of(ANN))
        refused, leaving = call_of(ANN), call_of(ANN)
        readers.begin(1, refused)
        [task] = readers.tasks
        readers.begin(1, leaving)
        [other] = readers.tasks
        await pass_loop()
        assert not task.done() and not other.done()
        refused.end(DuramenError("forbidden", "no more"))
        leaving.leave()
        await pass_loop()
        assert isinstance(task.exception(), DuramenError)
        assert other.result() is False  # it has none: its stream ends where it is
        assert readers.counts[1] == 0

    play(scenario)


def test_nobody_waits_while_the_process_stops_and_who_goes_leaves_its_place() -> None:
    async def scenario(readers: WaitingReaders) -> None:
        held, *_ = readers.begin(PARTY_COUNT_MAX + 2)
        gone, waiting = readers.tasks[-2:]
        await pass_loop()
        gone.cancel()
        await pass_loop()
        assert readers.counts == (PARTY_COUNT_MAX, 1)
        readers.places.stop_waiting()
        held.leave()
        assert not await waiting
        assert readers.counts == (PARTY_COUNT_MAX - 1, 0)  # nobody begins anything now
        readers.begin(1)
        [late] = readers.tasks
        assert not await late

    play(scenario)


@contextmanager
def counted_cursors(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How many cursors are open, and were at most."""
    counts: Counter[str] = Counter()
    enter, leave = LogCursor.__aenter__, LogCursor.__aexit__

    async def count_enter(self: LogCursor) -> LogCursor:
        counts["open"] += 1
        counts["most"] = max(counts["most"], counts["open"])
        return await enter(self)

    async def count_leave(self: LogCursor, *told: object) -> None:
        counts["open"] -= 1
        await leave(self, *told)

    monkeypatch.setattr(LogCursor, "__aenter__", count_enter)
    monkeypatch.setattr(LogCursor, "__aexit__", count_leave)
    yield counts


@contextmanager
def counted_records(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How many records are encoded, in all and between two passes of the loop at most."""
    counts: Counter[str] = Counter()

    def count_record(*told: Any, **named: Any) -> dict[str, Any]:
        counts["all"] += 1
        counts["now"] += 1
        counts["most"] = max(counts["most"], counts["now"])
        return encode_record(*told, **named)

    monkeypatch.setattr(f"{stream_forms.__name__}.encode_record", count_record)
    yield counts


class Client:
    """Takes so many pieces, and then nothing more."""

    def __init__(self, piece_count: int) -> None:
        self.left_count = piece_count
        self.taken: list[bytes] = []
        self.wanted_count = 1

    async def send(self, message: Message) -> None:
        if message.get("body"):
            if self.left_count == 0:
                await stay()
            self.left_count -= 1
            self.taken.append(message["body"])

    @property
    def has_all(self) -> bool:
        """Whether it has the lines that it is to have."""
        return sum(piece.count(b"\n") for piece in self.taken) == self.wanted_count

    async def read(
        self,
        world: World,
        *,
        wait_us: int = 0,
        form: Form = Form.NDJSON,
        has_notes: bool = False,
        begin: str = "head",
    ) -> None:
        """The log to its tail, and on while something comes for so long."""
        wanted = ReadRequest(
            parse_position(begin), None, Bounds(None, None, None), wait_us, clamp=False,
            form=form, is_base64=False, has_notes=has_notes,
        )  # fmt: skip
        follower = await world.proxy.catalog.find("ns", "log")
        opened = OpenRequest(Requests(CollectorRegistry()), "records")
        stream = await answer_read(world.proxy, follower, wanted, opened)
        assert isinstance(stream, ClientStream)
        try:
            await stream.stream_response(self.send)
        finally:
            await stream.pieces.aclose()


def read_metric(world: World, name: str) -> float:
    value: float | None = world.registry.get_sample_value(f"duramen_readproxy_{name}")
    assert value is not None
    return value


async def fill_log(world: World) -> None:
    await world.open_segment()
    for _ in range(ENTRY_COUNT):
        await world.append(RECORD_COUNT)


def test_deaf_readers_hold_few_cursors_and_nobody_who_reads_is_kept_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        await fill_log(world)
        loop = asyncio.get_running_loop()
        with counted_cursors(monkeypatch) as cursors, counted_records(monkeypatch) as records:

            def tick() -> None:
                records["now"] = 0
                loop.call_soon(tick)

            loop.call_soon(tick)
            deaf = [Client(1) for _ in range(STREAM_COUNT)]
            reading = Client(10_000)
            tasks = [asyncio.ensure_future(one.read(world)) for one in deaf]
            await wait_for(lambda: all(one.taken for one in deaf))
            await reading.read(world)
            lines = b"".join(reading.taken).splitlines()
            assert len(lines) == RECORD_COUNT * ENTRY_COUNT
            assert cursors["most"] <= PARTY_COUNT_MAX + 1  # and the feed's
            assert records["most"] <= CATCH_UP_STEP.record_count
            assert read_metric(world, "taken_away_places_total") >= STREAM_COUNT - PARTY_COUNT_MAX
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert cursors["open"] == 0
            assert world.proxy.statistics()["places"]["held"] == 0

    run(scenario)


def test_many_who_read_take_turns_and_each_has_every_record_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        await fill_log(world)
        readers = [Client(10_000) for _ in range(STREAM_COUNT)]
        with counted_cursors(monkeypatch) as cursors, counted_records(monkeypatch) as records:
            await asyncio.gather(*(one.read(world) for one in readers))
        wanted = b"".join(readers[0].taken)
        assert wanted.count(b"\n") == RECORD_COUNT * ENTRY_COUNT
        assert all(b"".join(one.taken) == wanted for one in readers)
        assert cursors["most"] <= PARTY_COUNT_MAX + 1
        assert world.proxy.statistics()["places"]["turns"] > STREAM_COUNT
        assert records["all"] == RECORD_COUNT * ENTRY_COUNT  # encoded once for all

    run(scenario)


LARGE, SMALL = 20 * TAIL_STEP.record_count, TAIL_STEP.record_count
START: Final = Start(Epoch(1), EntryId(0), 0)
UNBOUNDED: Final = Bounds(None, None, None)


def form_of(
    form: Form, shared: SharedEncodings, bounds: Bounds = UNBOUNDED, start: Start = START
) -> StreamForm:
    wanted = ReadRequest(
        parse_position("head"), None, bounds, wait_us=0, clamp=False, form=form,
        is_base64=False, has_notes=False,
    )  # fmt: skip
    return make_form(LOG, start, wanted, shared, lambda _epoch, _entry: None)


class CountedSteps:
    """Records, and bytes of JSON, that were made since others could go on, and at most."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.records = self.size_bytes = 0
        self.most_records = self.most_bytes = 0

        def count_record(*told: Any, **named: Any) -> dict[str, Any]:
            self.records += 1
            self.most_records = max(self.most_records, self.records)
            return encode_record(*told, **named)

        def count_bytes(document: Any, *told: Any, **named: Any) -> bytes:
            made = orjson.dumps(document, *told, **named)
            self.size_bytes += len(made)
            self.most_bytes = max(self.most_bytes, self.size_bytes)
            return made

        for module in (stream_forms, answers):
            monkeypatch.setattr(module, "encode_record", count_record)
        counted = SimpleNamespace(dumps=count_bytes, OPT_APPEND_NEWLINE=orjson.OPT_APPEND_NEWLINE)
        monkeypatch.setattr(stream_forms, "orjson", counted)

    def read(self, form: StreamForm, delivered: Deliver, step: Step) -> bytes:
        """All that it says, and how much of it at once."""
        said = b""
        for piece in form.add(delivered, step):
            assert isinstance(piece, bytes)
            assert len(piece) <= PIECE_BYTES
            self.records = self.size_bytes = 0
            said += piece
        return said


@pytest.mark.parametrize("form", [Form.NDJSON, Form.EVENTS])
@pytest.mark.parametrize(
    ("bounds", "begin"), [(UNBOUNDED, 0), (Bounds(10**9, None, None), 0), (UNBOUNDED, 9)]
)
def test_a_large_entry_is_encoded_in_steps_whoever_wants_it(
    monkeypatch: pytest.MonkeyPatch, form: Form, bounds: Bounds, begin: int
) -> None:
    steps = CountedSteps(monkeypatch)
    start = START._replace(seq_num=begin)
    said = steps.read(
        form_of(form, SharedEncodings(), bounds, start), deliver(1, 0, size=LARGE), CATCH_UP_STEP
    )
    assert said.count(b'"dlsn"') == LARGE - begin
    assert steps.most_records <= CATCH_UP_STEP.record_count
    assert steps.most_bytes <= 100 * CATCH_UP_STEP.record_count
    if form is Form.EVENTS:
        head, data, *_ = said.partition(b"data: ")[::2]
        assert head.startswith(b"event: records\nid: ")
        assert data.endswith(b"\n\n")
        document = json.loads(data)
        assert [one["seq_num"] for one in document["records"]] == list(range(begin, LARGE))
        assert document["next"] == f"seq:{LARGE}"
    else:
        numbers = [json.loads(line)["seq_num"] for line in said.splitlines()]
        assert numbers == list(range(begin, LARGE))


def test_large_records_are_few_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    size_bytes = CATCH_UP_STEP.size_bytes // 2
    batch = encode_batch([b"x" * size_bytes] * 20, 7)
    after = Totals(0, 0, None, 7).plus(Totals(20, len(batch), None, 7))
    body = encode_entry(
        ledger_id=ledger_of(LOG, Epoch(1)), entry_id=EntryId(0), before=Totals(0, 0, None, 7),
        batches=[batch], record_count=20, after=after,
    )  # fmt: skip
    for bounds in (UNBOUNDED, Bounds(10**9, None, None)):
        steps = CountedSteps(monkeypatch)
        form = form_of(Form.NDJSON, SharedEncodings(), bounds)
        steps.read(form, Deliver(Epoch(1), 0, ((EntryId(0), body),)), CATCH_UP_STEP)
        assert steps.most_records == 2


def test_who_wants_what_is_being_made_waits_for_its_maker_alone() -> None:
    shared, delivered = SharedEncodings(), deliver(1, 0, size=LARGE)
    making, waiting, third = (
        form_of(Form.NDJSON, shared).add(delivered, CATCH_UP_STEP) for _ in range(3)
    )
    assert next(making) == b""
    [made] = {next(waiting), next(third)}
    assert isinstance(made, asyncio.Event) and not made.is_set()
    assert isinstance(making, Generator)
    making.close()  # its client goes
    assert made.is_set()
    assert next(waiting) == b""
    again = next(third)
    assert isinstance(again, asyncio.Event)
    assert b"".join(piece for piece in waiting if isinstance(piece, bytes)).count(b"\n") == LARGE
    assert again.is_set() and shared.statistics()["made"] == 1
    assert all(third)  # it rests no more
    at_tail = form_of(Form.EVENTS, shared).add(delivered, TAIL_STEP)
    catching_up = form_of(Form.EVENTS, shared).add(delivered, CATCH_UP_STEP)
    assert next(catching_up) == b"" == next(at_tail)  # who follows waits for no turns of others


def test_who_follows_takes_no_turn_and_has_a_small_entry_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        await world.open_segment()
        await world.append(1)
        readers = [Client(10_000) for _ in range(STREAM_COUNT)]
        tasks = [asyncio.ensure_future(one.read(world, wait_us=FAR_US)) for one in readers]
        await wait_for(lambda: world.proxy.feeds.statistics()["waiting"] == STREAM_COUNT)
        steps = world.proxy.statistics()["places"]["steps"]
        with counted_records(monkeypatch) as records:
            for count in (SMALL, LARGE):
                await world.append(count)
                for one in readers:
                    one.wanted_count += count
                await wait_for(lambda: all(one.has_all for one in readers))
                records["now"] = 0
            assert records["all"] == SMALL + LARGE  # once for all
        assert world.proxy.statistics()["places"]["steps"] == steps
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    run(scenario)


def test_who_waits_for_a_place_hears_that_it_is_alive_and_where_to_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("duramen_readproxy.following.streams.HEARTBEAT_US", 1_000)

    async def scenario(world: World) -> None:
        await world.open_segment()
        await world.append(1)
        held = [ReadingPlace(world.proxy.places, None, Dropped()) for _ in range(PARTY_COUNT_MAX)]
        for place in held:
            assert await place.enter(FAR_US)
        told, refused = Client(10_000), Client(10_000)
        with counted_cursors(monkeypatch) as cursors:
            telling = asyncio.ensure_future(told.read(world, form=Form.EVENTS, has_notes=True))
            refusing = asyncio.ensure_future(refused.read(world))
            await wait_for(lambda: len(told.taken) >= 3)
            assert b"event: heartbeat" in told.taken[2] and b'"seq:0"' in told.taken[2]
            assert read_metric(world, "held_places") == PARTY_COUNT_MAX
            assert read_metric(world, "waiting_streams") == 2
            world.proxy.feeds.stop_following()
            world.proxy.places.stop_waiting()
            await telling
            assert b"event: end" in told.taken[-1]
            assert b'"reason":"stopping"' in told.taken[-1] and b'"seq:0"' in told.taken[-1]
            with pytest.raises(DuramenError, match="stopping"):
                await refusing  # it would be taken for the whole log
            assert not refused.taken
            assert cursors["most"] == 0
            assert world.proxy.statistics()["places"]["waiting"] == 0
        for place in held:
            place.leave()

    run(scenario)


def test_who_begins_at_the_tail_waits_for_no_place() -> None:
    async def scenario(world: World) -> None:
        await world.open_segment()
        await world.append(1)
        held = [ReadingPlace(world.proxy.places, None, Dropped()) for _ in range(PARTY_COUNT_MAX)]
        for place in held:
            assert await place.enter(FAR_US)
        one = Client(10_000)
        reading = asyncio.ensure_future(
            one.read(world, form=Form.EVENTS, has_notes=True, wait_us=FAR_US, begin="tail")
        )
        await wait_for(lambda: world.proxy.feeds.statistics()["waiting"] == 1)
        assert b"event: tail" in one.taken[0] and b'"next":"seq:1"' in one.taken[0]
        await world.append(1)
        await wait_for(lambda: any(b"event: records" in piece for piece in one.taken))
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        for place in held:
            place.leave()

    run(scenario)


def test_the_kernel_takes_little_of_what_a_client_does_not_read() -> None:
    async def scenario(world: World) -> None:
        await world.open_segment()
        await world.read("?from=head")  # its connection stays open
        found = []
        for one in copy_own_sockets():
            is_stream = (one.family, one.type) == (socket.AF_INET, socket.SOCK_STREAM)
            if is_stream and one.getsockname()[1] == world.proxy.port:
                found.append(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT))
        assert len(found) >= 2  # one listens, one was accepted
        assert set(found) == {256 << 10}

    run(scenario)
