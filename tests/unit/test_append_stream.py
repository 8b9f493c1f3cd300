"""What an append stream of the SDK says of each append is true, however its session ends.

A scripted proxy takes frames, appends some of them and answers some of those; then the session ends
as it should, with a last line, or breaks. Seeds choose all of it, who gives up waiting too.
Source: docs/protocol/rest.md "Append sessions".
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any

import orjson
import pytest

from duramen.client.rest_client import Appended, RestClient
from duramen.client.sharing import append_stream, append_streams
from duramen.client.sharing.append_session import parse_line
from duramen.client.sharing.append_stream import (
    OPEN_BYTES_MAX,
    OPEN_COUNT_MAX,
    AppendStream,
    NotTakenError,
)
from duramen.client.sharing.append_streams import BATCH_BYTES_MAX, SHARED_COUNT_MIN, AppendStreams
from duramen.errors import DuramenError
from duramen.runtime.http_client import NoAnswerError, PeerError
from duramen.wire.edge.batch_stream import Frames, StreamedBatch, parse_streamed
from tests.waiting import wait_for

LOG = ("ns", "log")
PROXY = RestClient("http://127.0.0.1:9")
ENDED = {"code": "server_draining", "detail": "bye", "status": 503, "session_ended": True}


def line_of(position: int) -> bytes:
    mark = {"seq_num": position, "dlsn": f"e1n{position}s0"}
    return orjson.dumps({"start": mark, "end": {"seq_num": position + 1}})


def problem(code: str, **more: Any) -> bytes:
    return orjson.dumps({"code": code, "detail": "no", "status": 400, **more})


class Proxy:
    """Serves sessions as a test says; keeps what was appended."""

    def __init__(self) -> None:
        self.log: list[bytes] = []
        self.session_count = 0
        self.play: Callable[[Session], Awaitable[None]] = serve
        self.before_open: Callable[[], Awaitable[None]] = _nothing
        self.released = asyncio.Event()
        """Ends the sessions that are silent."""

    async def run(
        self,
        _proxy: object,
        _log: object,
        frames: AsyncIterator[bytes],
        *,
        open_s: float,
        group_s: float,
    ) -> AsyncGenerator[bytes]:
        assert open_s > 0 and group_s > 0
        self.session_count += 1
        await self.before_open()
        session = Session(self, frames)
        yield b""
        playing = asyncio.create_task(self._play(session))
        try:
            while (line := await session.lines.get()) is not None:
                if isinstance(line, Exception):
                    raise line
                yield line
        finally:
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)

    async def _play(self, session: Session) -> None:
        await self.play(session)
        session.lines.put_nowait(None)


class Session:
    """One session, from the proxy's side."""

    def __init__(self, proxy: Proxy, frames: AsyncIterator[bytes]) -> None:
        self.proxy = proxy
        self.lines: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self._frames = frames
        self._units = Frames()

    async def take(self) -> bytes | None:
        """The next batch; None: the client sends no more."""
        while (unit := self._units.take()) is None:
            try:
                self._units.feed(await anext(self._frames))
            except StopAsyncIteration:
                return None
        return parse_streamed(unit[0]).batch

    def append(self, batch: bytes) -> bytes:
        """Store it; its answer."""
        self.proxy.log.append(batch)
        return line_of(len(self.proxy.log) - 1)


async def _nothing() -> None:
    pass


async def serve(session: Session) -> None:
    """Append and answer everything."""
    while (batch := await session.take()) is not None:
        session.lines.put_nowait(session.append(batch))


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Proxy:
    made = Proxy()
    monkeypatch.setattr(append_stream, "run_session", made.run)
    return made


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 60))


async def open_stream(timeout_s: float = 30.0) -> AppendStream:
    stream = AppendStream(PROXY, LOG, timeout_s)
    await wait_for(stream.has_room)
    return stream


async def fate_of(stream: AppendStream, batch: bytes) -> Appended | Exception:
    try:
        return await stream.append(StreamedBatch(batch))
    except (DuramenError, NotTakenError) as error:
        return error


# --- Whatever happens, what is said is true ------------------------------------------------------


class Whims:
    """What one seed's proxy does with a session."""

    def __init__(self, rng: random.Random, count: int) -> None:
        self.taken = rng.randint(0, count)
        self.appended = rng.randint(0, self.taken)
        self.answered = rng.randint(0, self.appended)
        self.refused = {n for n in range(self.answered) if rng.random() < 0.2}
        self.end = rng.choice(("whole", "line", "break", "garbage", "silence"))
        self.rng = rng

    async def play(self, session: Session) -> None:
        batches = []
        for _ in range(self.taken):
            batch = await session.take()
            if batch is None:
                break
            batches.append(batch)
        # A session that ends as it should has appended what it answered, and nothing behind it.
        is_true_end = self.end in ("whole", "line")
        appended = self.answered if is_true_end else self.appended
        for number, batch in enumerate(batches[:appended]):
            if number in self.refused:
                line = problem("condition_failed")
            else:
                line = session.append(batch)
            if number < self.answered:
                session.lines.put_nowait(line)
            if self.rng.random() < 0.3:
                await asyncio.sleep(0)
        match self.end:
            case "line":
                session.lines.put_nowait(orjson.dumps(ENDED))
            case "break":
                session.lines.put_nowait(NoAnswerError("broken"))
            case "garbage":
                session.lines.put_nowait(b"[]")
            case "silence":
                await session.proxy.released.wait()
            case "whole":
                pass


@pytest.mark.parametrize("seed", range(100))
def test_what_is_said_of_an_append_is_true(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(append_stream, "OPEN_S", 0.05)  # of the end of one that is silent
    rng = random.Random(seed)
    batches = [b"%d" % number for number in range(rng.randint(1, 30))]
    whims = Whims(rng, len(batches))
    proxy.play = whims.play
    given_up = {n for n in range(len(batches)) if rng.random() < 0.1}

    async def scenario() -> None:
        stream = await open_stream(timeout_s=0.05)
        tasks: list[asyncio.Task[Appended | Exception]] = []
        for number, batch in enumerate(batches):
            tasks.append(asyncio.create_task(fate_of(stream, batch)))
            if rng.random() < 0.5:
                await asyncio.sleep(0)
            if number in given_up:
                tasks[rng.randrange(len(tasks))].cancel()
        fates = await asyncio.gather(*tasks, return_exceptions=True)
        await stream.wait_closed()
        proxy.released.set()
        stored = Counter(proxy.log)
        assert all(count == 1 for count in stored.values())
        for batch, fate in zip(batches, fates, strict=True):
            match fate:
                case Appended():
                    assert fate.start is not None
                    assert proxy.log[fate.start] == batch
                case NotTakenError():
                    assert batch not in stored
                case DuramenError():
                    assert fate.uncertain or batch not in stored
                case _:
                    assert isinstance(fate, asyncio.CancelledError)

    run(scenario)


def test_what_was_given_up_before_it_was_sent_is_never_sent(proxy: Proxy) -> None:
    async def scenario() -> None:
        may_read = asyncio.Event()

        async def read_late(session: Session) -> None:
            await may_read.wait()
            await serve(session)

        proxy.play = read_late
        stream = await open_stream()
        given_up = asyncio.create_task(fate_of(stream, b"late"))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        may_read.set()
        assert isinstance(await fate_of(stream, b"next"), Appended)
        assert proxy.log == [b"next"]
        await stream.wait_closed()

    run(scenario)


# --- Lines ---------------------------------------------------------------------------------------


def test_a_line_is_an_answer_a_problem_or_the_end() -> None:
    assert parse_line(line_of(4)) == Appended(4, 5, "e1n4s0")
    refused = parse_line(problem("condition_failed", expected_seq_num=3))
    assert isinstance(refused, DuramenError)
    assert (refused.code, refused.uncertain, refused.facts) == (
        "condition_failed", False, {"expected_seq_num": 3},
    )  # fmt: skip
    open_one = parse_line(problem("append_uncertain", uncertain=True))
    assert isinstance(open_one, DuramenError) and open_one.uncertain
    assert parse_line(orjson.dumps(ENDED)) is None
    for damaged in (b"{", b"[]", b"{}", b'{"start": 3}', b'"start"'):
        with pytest.raises(PeerError, match="no answer"):
            parse_line(damaged)


# --- When a session is used ----------------------------------------------------------------------


class Calls:
    """Appends by calls of their own, as long as a test wants."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.may_go = asyncio.Event()

    def of(self, batch: bytes) -> Callable[[], Awaitable[Appended]]:
        async def call() -> Appended:
            self.batches.append(batch)
            await asyncio.sleep(0)
            await self.may_go.wait()
            return Appended(0, 1)

        return call


def append_all(
    streams: AppendStreams, calls: Calls, batches: list[bytes]
) -> list[asyncio.Task[Appended]]:
    return [
        asyncio.create_task(streams.append(LOG, StreamedBatch(batch), calls.of(batch)))
        for batch in batches
    ]


def test_few_appends_go_by_calls_and_more_share_a_session(proxy: Proxy) -> None:
    async def scenario() -> None:
        streams, calls = AppendStreams(PROXY, 30.0), Calls()
        first = append_all(streams, calls, [b"a"] * (SHARED_COUNT_MIN - 1))
        await wait_for(lambda: len(calls.batches) == SHARED_COUNT_MIN - 1)
        assert not proxy.session_count
        # The next one opens a session, and does not wait for it; one that comes later is in it.
        first += append_all(streams, calls, [b"b"])
        await wait_for(lambda: len(calls.batches) == SHARED_COUNT_MIN)
        await wait_for(lambda: proxy.session_count == 1)
        (shared,) = append_all(streams, calls, [b"c"])
        assert (await shared).start == 0 and proxy.log == [b"c"]
        # A large one, and one beyond the bound of a session, go by calls all the same.
        large = b"d" * (BATCH_BYTES_MAX + 1)
        first += append_all(streams, calls, [large])
        await wait_for(lambda: calls.batches[-1] == large)
        calls.may_go.set()
        await asyncio.gather(*first)
        await streams.close()
        assert streams.statistics() == {
            "open": 0, "opened": 1, "failed": 0, "appended": 1, "not_taken": 0,
        }  # fmt: skip

    run(scenario)


def test_a_session_takes_so_many_and_no_more(proxy: Proxy) -> None:
    async def hold(session: Session) -> None:
        await session.proxy.released.wait()

    proxy.play = hold

    async def scenario() -> None:
        streams, calls = AppendStreams(PROXY, 30.0), Calls()
        tasks = append_all(streams, calls, [b"a"] * SHARED_COUNT_MIN)
        await wait_for(lambda: streams.statistics()["open"] == 1)
        await wait_for(lambda: proxy.session_count == 1)
        await asyncio.sleep(0)
        tasks += append_all(streams, calls, [b"b"] * (OPEN_COUNT_MAX + 7))
        await wait_for(lambda: len(calls.batches) == SHARED_COUNT_MIN + 7)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        proxy.released.set()
        await streams.close()

    run(scenario)


@pytest.mark.parametrize(("rest_s", "session_count"), [(30.0, 1), (0.0, 2)])
def test_a_log_whose_session_failed_has_calls_alone_for_a_while(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, rest_s: float, session_count: int
) -> None:
    async def refuse() -> None:
        raise DuramenError("overloaded", "too many append sessions are open in this proxy")

    proxy.before_open = refuse
    monkeypatch.setattr(append_streams, "REST_S", rest_s)

    async def scenario() -> None:
        streams, calls = AppendStreams(PROXY, 30.0), Calls()
        calls.may_go.set()
        await asyncio.gather(*append_all(streams, calls, [b"a"] * 8))
        await wait_for(lambda: streams.statistics()["failed"] == 1)
        await asyncio.gather(*append_all(streams, calls, [b"a"] * 8))
        await wait_for(lambda: streams.statistics()["failed"] == session_count)
        assert proxy.session_count == session_count
        assert calls.batches == [b"a"] * 16
        await streams.close()

    run(scenario)


def test_what_a_session_did_not_take_is_appended_by_a_call(proxy: Proxy) -> None:
    async def end_at_once(session: Session) -> None:
        await session.take()
        session.lines.put_nowait(orjson.dumps(ENDED))

    proxy.play = end_at_once

    async def scenario() -> None:
        streams, calls = AppendStreams(PROXY, 30.0), Calls()
        first = append_all(streams, calls, [b"a"] * SHARED_COUNT_MIN)
        await wait_for(lambda: proxy.session_count == 1)
        await asyncio.sleep(0)
        calls.may_go.set()
        await asyncio.gather(*first, *append_all(streams, calls, [b"b"] * 5))
        assert not proxy.log and calls.batches.count(b"b") == 5
        assert streams.statistics()["not_taken"] > 0
        await streams.close()

    run(scenario)


@pytest.mark.parametrize("is_used", [True, False])
def test_a_session_that_nobody_uses_ends(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, *, is_used: bool
) -> None:
    monkeypatch.setattr(append_stream, "IDLE_S", 0.01)

    async def scenario() -> None:
        stream = AppendStream(PROXY, LOG, 30.0)
        if is_used:
            monkeypatch.setattr(append_stream, "IDLE_S", 30.0)
            await wait_for(stream.has_room)
            monkeypatch.setattr(append_stream, "IDLE_S", 0.01)
            assert (await stream.append(StreamedBatch(b"a"))).start == 0
        await asyncio.wait_for(stream.task, 10)
        assert not stream.has_failed and not stream.has_room()

    run(scenario)


def test_a_session_that_does_not_answer_is_used_no_more_and_ends(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_stream, "OPEN_S", 0.01)

    async def take_and_hold(session: Session) -> None:
        await session.take()
        await session.proxy.released.wait()

    proxy.play = take_and_hold

    async def scenario() -> None:
        stream = await open_stream(timeout_s=0.1)
        fate = await fate_of(stream, b"a")
        assert isinstance(fate, DuramenError) and fate.uncertain
        assert stream.has_failed and not stream.has_room()
        with pytest.raises(asyncio.CancelledError):
            await stream.task
        proxy.released.set()

    run(scenario)


def test_what_the_connection_does_not_take_goes_by_a_call_soon(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_stream, "UNSENT_S", 0.01)
    monkeypatch.setattr(append_stream, "OPEN_S", 0.01)

    async def hold(session: Session) -> None:
        await session.proxy.released.wait()
        await serve(session)

    proxy.play = hold

    async def scenario() -> None:
        stream = await open_stream(timeout_s=300.0)
        fates = await asyncio.gather(*(fate_of(stream, b"a") for _ in range(5)))
        assert all(isinstance(fate, NotTakenError) for fate in fates)
        proxy.released.set()
        await stream.wait_closed()
        assert not proxy.log

    run(scenario)


def test_what_was_given_up_counts_until_it_is_answered(proxy: Proxy) -> None:
    taken: list[bytes | None] = []

    async def take_and_hold(session: Session) -> None:
        batches = [await session.take() for _ in range(OPEN_COUNT_MAX)]
        taken.extend(batches)
        await session.proxy.released.wait()
        for batch in batches:
            session.lines.put_nowait(session.append(batch or b""))
        await serve(session)

    proxy.play = take_and_hold

    async def scenario() -> None:
        stream = await open_stream()
        tasks = [asyncio.create_task(fate_of(stream, b"a")) for _ in range(OPEN_COUNT_MAX)]
        await wait_for(lambda: len(taken) == OPEN_COUNT_MAX)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not stream.has_room()
        proxy.released.set()
        await wait_for(stream.has_room)
        await stream.wait_closed()

    run(scenario)


def test_bytes_that_are_open_are_bounded(proxy: Proxy) -> None:
    async def hold(session: Session) -> None:
        await session.proxy.released.wait()
        await serve(session)

    proxy.play = hold

    async def scenario() -> None:
        stream = await open_stream()
        tasks = []
        while stream.has_room():
            tasks.append(asyncio.create_task(fate_of(stream, bytes(BATCH_BYTES_MAX))))
            await asyncio.sleep(0)
        assert len(tasks) * BATCH_BYTES_MAX <= OPEN_BYTES_MAX + BATCH_BYTES_MAX
        proxy.released.set()
        assert all(isinstance(fate, Appended) for fate in await asyncio.gather(*tasks))
        assert stream.has_room()
        await stream.wait_closed()

    run(scenario)


def test_a_log_that_refuses_for_now_has_calls_alone_for_a_while(proxy: Proxy) -> None:
    async def refuse(session: Session) -> None:
        while await session.take() is not None:
            session.lines.put_nowait(problem("window_full"))

    proxy.play = refuse

    async def scenario() -> None:
        stream = await open_stream()
        fate = await fate_of(stream, b"a")
        assert isinstance(fate, DuramenError) and fate.code == "window_full"
        assert stream.has_failed and not stream.has_room()
        await asyncio.wait_for(stream.task, 10)

    run(scenario)


def test_a_client_that_closes_opens_no_session(proxy: Proxy) -> None:
    async def scenario() -> None:
        streams, calls = AppendStreams(PROXY, 30.0), Calls()
        await streams.close()
        calls.may_go.set()
        await asyncio.gather(*append_all(streams, calls, [b"a"] * 20))
        assert not proxy.session_count and len(calls.batches) == 20

    run(scenario)


def test_a_mistake_of_ours_leaves_nobody_waiting(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_stream, "parse_line", lambda _: 1 / 0)

    async def scenario() -> None:
        stream = await open_stream()
        fate = await fate_of(stream, b"a")
        assert isinstance(fate, DuramenError) and fate.uncertain
        assert stream.has_failed

    run(scenario)


def test_an_answer_that_ends_early_leaves_what_was_sent_in_doubt(proxy: Proxy) -> None:
    async def end_at_once(session: Session) -> None:
        await session.take()

    proxy.play = end_at_once

    async def scenario() -> None:
        fate = await fate_of(await open_stream(), b"a")
        assert isinstance(fate, DuramenError) and fate.uncertain

    run(scenario)
