"""What becomes of each request on a standing stream, wherever it is cut: the heart of its rules.

*Never begun* is never said of what the handler got; an answer is that of its own request, and
whole; nothing is handed over twice; and who waits always hears. Under a standing clock.
Source: docs/protocol/standing-streams.md "Rules" 1 to 7.
"""

from __future__ import annotations

import asyncio
import gc
import random
import ssl
import tracemalloc
from collections import Counter
from typing import Any, cast

import pytest

from duramen.runtime.edge.port_listener import ConnectionPlace
from duramen.runtime.standing.call_stream import OPEN_COUNT_MAX, OpenCall
from duramen.units import KIB
from duramen.wire.standing.messages import HEAD_BYTES, MessageKind, pack_message, pack_refusal
from tests.component.still_clock import StillLoop, run_still, wait_clock, wait_quiet
from tests.component.stream_pair import HalfWire, StreamPair, learn_fate

Fate = tuple[str, bytes]
ADD, APPEND = 1, 2


def _ask(pair: StreamPair, code: int, body: bytes, within_s: float = 50) -> asyncio.Task[Fate]:
    loop = asyncio.get_running_loop()
    return loop.create_task(learn_fate(pair.caller.ask(code, body), loop.time() + within_s))


async def _turn() -> None:
    """Let every task that can run do so."""
    for _ in range(4):
        await asyncio.sleep(0)


def _judge(fates: dict[bytes, Fate], begun: list[bytes]) -> None:
    assert len(set(begun)) == len(begun), "handed over twice"
    for body, (fate, whole) in fates.items():
        if fate == "never":
            assert body not in begun
            assert not whole
        if fate == "answered":
            assert whole in (b"answer to " + body, b"piece of " + body)
            assert body in begun
        assert fate in ("never", "answered", "lost", "late")


def test_a_stream_cut_at_every_byte_says_what_is_true() -> None:
    async def scenario(cut_there: int | None, cut_back: int | None) -> set[str]:
        pair = StreamPair()
        await pair.open()
        tasks = {body: _ask(pair, ADD, body) for body in (b"one", b"two")}
        tasks[b"three"] = _ask(pair, APPEND, b"three")
        await _turn()
        pair.there.carry(1 << 20 if cut_there is None else cut_there)
        await _turn()
        if cut_back is not None:
            pair.back.carry(cut_back)
            await _turn()
        pair.there.cut()
        await wait_quiet()
        fates = {body: await task for body, task in tasks.items()}
        _judge(fates, pair.begun)
        assert pair.is_over
        return {fate for fate, _ in fates.values()}

    seen: set[str] = set()

    async def all_cuts() -> None:
        for cut in range(100):
            seen.update(await scenario(cut, None))
        for cut in range(160):
            seen.update(await scenario(None, cut))

    run_still(all_cuts())
    assert seen == {"lost", "answered"}, "the writer had begun all of them"


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens_each_request_learns_its_fate(seed: int) -> None:
    rng = random.Random(seed)

    async def scenario() -> None:
        pair = StreamPair()
        pair.is_holding = rng.random() < 0.5
        await pair.open()
        tasks: dict[bytes, asyncio.Task[Fate]] = {}
        for step in range(rng.randrange(20, 200)):
            _take_a_step(pair, rng, tasks, step)
            await _turn()
        end = rng.choice(["cut", "leave", "finish", "silence"])
        if end == "cut":
            rng.choice([pair.there, pair.back]).cut()
        if end in ("leave", "finish"):
            pair.is_holding = False
            _release_all(pair, rng)
            if end == "leave":
                pair.server_stream.leave()
            for _ in range(50):
                pair.carry_all()
                _release_all(pair, rng)
                await _turn()
        fates = {body: await task for body, task in tasks.items()}
        _judge(fates, pair.begun)
        if end == "finish" and not pair.is_over:
            assert {fate for fate, _ in fates.values()} <= {"answered", "late"}

    run_still(scenario())


def _take_a_step(
    pair: StreamPair, rng: random.Random, tasks: dict[bytes, asyncio.Task[Fate]], step: int
) -> None:
    choice = rng.random()
    if choice < 0.4 and pair.caller.has_room:
        size = rng.choice([0, 10, 1_000, 70_000, 700_000])
        body = f"{step}-".encode() + bytes(size)
        tasks[body] = _ask(pair, rng.choice([ADD, APPEND]), body, rng.choice([0.001, 5, 50]))
    elif choice < 0.6:
        pair.there.carry(rng.choice([1, 7, 100, 5_000, 1 << 20]))
    elif choice < 0.8:
        pair.back.carry(rng.choice([1, 7, 100, 5_000, 1 << 20]))
    elif choice < 0.9:
        _release_all(pair, rng)
    elif choice > 0.995:
        pair.there.cut()


def _release_all(pair: StreamPair, rng: random.Random) -> None:
    bodies = list(pair.holds)
    rng.shuffle(bodies)
    for body in bodies:
        pair.release(body)


def test_what_waits_behind_a_full_socket_was_never_begun() -> None:
    async def scenario() -> None:
        pair = StreamPair()
        await pair.open()
        tasks = {
            bytes([number]) * 40_000: _ask(pair, ADD, bytes([number]) * 40_000)
            for number in range(10)
        }
        await _turn()
        written_bytes = pair.there.written_bytes
        assert pair.there.is_paused
        pair.there.cut()
        fates = {body: await task for body, task in tasks.items()}
        _judge(fates, pair.begun)
        begun_count = sum(fate == "lost" for fate, _ in fates.values())
        assert begun_count * 40_000 < written_bytes < (begun_count + 1) * 40_000
        assert sum(fate == "never" for fate, _ in fates.values()) == 10 - begun_count > 5

    run_still(scenario())


def test_a_call_that_was_given_up_in_the_queue_is_not_begun() -> None:
    async def scenario() -> None:
        pair = StreamPair()
        await pair.open()
        first = _ask(pair, ADD, b"a" * 200_000)
        late = _ask(pair, ADD, b"late", within_s=0.1)
        kept = _ask(pair, ADD, b"kept")
        assert (await late)[0] == "late"
        pair.carry_all()
        await _turn()
        pair.carry_all()
        assert [(await task)[0] for task in (first, kept)] == ["answered", "answered"]
        assert b"late" not in pair.begun

    run_still(scenario())


def test_a_call_that_was_given_up_behind_it_keeps_its_place() -> None:
    async def scenario() -> None:
        pair = StreamPair()
        pair.is_holding = True
        await pair.open()
        late = _ask(pair, ADD, b"late", within_s=1)
        pair.carry_all()
        assert (await late)[0] == "late"
        assert pair.caller.open_count == 1
        pair.release(b"late")
        await _turn()
        pair.carry_all()
        assert pair.caller.open_count == 0
        assert not pair.is_over

    run_still(scenario())


def test_last_names_what_was_not_begun() -> None:
    async def scenario() -> None:
        pair = StreamPair()
        pair.is_holding = True
        await pair.open()
        before = [_ask(pair, ADD, b"before")]
        pair.carry_all()
        await _turn()
        behind = [_ask(pair, ADD, b"behind"), _ask(pair, APPEND, b"far behind")]
        pair.server_stream.leave()
        pair.carry_all()
        assert [(await task)[0] for task in behind] == ["never", "never"]
        assert pair.is_over
        assert not pair.caller.has_room
        pair.release(b"before")
        await _turn()
        pair.carry_all()
        assert [await task for task in before] == [("answered", b"answer to before")]
        assert pair.begun == [b"before"]
        await wait_quiet()
        assert pair.caller.is_over
        assert pair.there.is_lost

    run_still(scenario())


def test_the_last_word_is_not_lost_to_a_shut_window() -> None:
    async def scenario() -> None:
        pair = StreamPair()
        await pair.open()
        opened: list[int] = []
        caller: Any = pair.caller
        caller.open_window = opened.append
        tasks = [_ask(pair, APPEND, b"%d-" % n + bytes(60_000)) for n in range(76)]
        for _ in range(20):
            pair.carry_all()
            await _turn()
        counts = pair.server.statistics()
        assert (counts["unsent_bytes"] > 0, counts["requests_open"]) == (True, 0)
        pair.server_stream.leave()
        late = _ask(pair, ADD, b"late")
        del caller.open_window
        caller.open_window(sum(opened))
        for _ in range(50):
            pair.carry_all()
            await _turn()
        fates = [(await task)[0] for task in tasks]
        assert fates.count("answered") == len(pair.begun)
        assert set(fates) == {"answered"}
        assert (await late)[0] == "never"
        await wait_quiet()
        assert pair.caller.is_over
        assert pair.back.is_lost

    run_still(scenario())


def test_who_does_not_hear_the_last_word_is_left() -> None:
    async def scenario() -> None:
        pair = StreamPair()
        await pair.open()
        pair.server_stream.leave()
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        while not pair.back.is_lost:
            await wait_clock(loop.time() + 1)
            assert loop.time() - begin_s < 8
        assert loop.time() - begin_s > 2

    run_still(scenario())


def test_a_stream_that_is_to_end_waits_for_no_answer_for_ever() -> None:
    async def scenario() -> None:
        pair = StreamPair()
        await pair.open()
        pair.is_holding = True
        task = _ask(pair, ADD, b"held", within_s=1_000)
        pair.carry_all()
        await _turn()
        pair.server_stream.leave()
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        while not pair.back.is_lost:
            pair.carry_all()
            await wait_clock(loop.time() + 1)
            assert loop.time() - begin_s < 70
        assert loop.time() - begin_s > 50
        assert (await task)[0] == "lost"

    run_still(scenario())


def test_a_handshake_that_a_renewal_met_is_not_kept() -> None:
    async def scenario() -> None:
        server = StreamPair().server
        server.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        stream = server.make_stream(ConnectionPlace("10.0.0.1", Counter()))
        before = HalfWire(stream)  # it shows another context than the server's
        stream.connection_made(cast(asyncio.Transport, before))
        assert before.is_lost
        assert stream not in server.list_streams()

    run_still(scenario())


def test_what_waits_for_long_goes_as_a_call() -> None:
    async def scenario() -> None:
        pair = StreamPair()
        await pair.open()
        tasks = [_ask(pair, ADD, bytes([n]) * 200_000) for n in range(3)]
        assert pair.there.is_paused
        assert pair.caller.has_room
        begin_s = asyncio.get_running_loop().time()
        await wait_clock(begin_s + 0.3)
        assert not pair.caller.has_room, "nothing more is put behind what stands"
        assert [(await task)[0] for task in tasks[1:]] == ["never", "never"]
        assert asyncio.get_running_loop().time() - begin_s < 2
        pair.carry_all()
        await _turn()
        pair.carry_all()
        assert (await tasks[0])[0] == "answered"
        assert pair.caller.has_room

    run_still(scenario())


def test_a_call_of_a_later_release_is_no_fault() -> None:
    async def scenario() -> None:
        pair = StreamPair()
        await pair.open()
        later, known = _ask(pair, 9, b"later"), _ask(pair, ADD, b"known")
        await _turn()
        pair.carry_all()
        await _turn()
        pair.carry_all()
        assert (await later)[0] == "status 404"
        assert (await known)[0] == "answered"
        assert pair.begun == [b"known"]

    run_still(scenario())


def test_a_peer_that_opens_no_window_is_not_kept() -> None:
    async def scenario() -> None:
        pair = StreamPair()
        await pair.open()
        opened: list[int] = []
        caller: Any = pair.caller
        caller.open_window = opened.append
        tasks = [_ask(pair, ADD, b"%d-" % n + bytes(60_000), within_s=1) for n in range(90)]
        for _ in range(20):
            pair.carry_all()
            await _turn()
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        while not pair.back.is_lost:
            caller._pipe.ping()  # it lives, and says so
            caller.flush()
            await wait_clock(loop.time() + 1)
            pair.carry_all()
            assert loop.time() - begin_s < 30
        assert loop.time() - begin_s > 15
        assert "late" in {(await task)[0] for task in tasks}

    run_still(scenario())


def test_no_more_calls_are_open_than_may_be() -> None:
    async def scenario() -> None:
        pair = StreamPair()
        pair.is_holding = True
        await pair.open()
        tasks = [_ask(pair, ADD, b"%d" % number) for number in range(OPEN_COUNT_MAX)]
        assert not pair.caller.has_room
        pair.carry_all()
        await _turn()
        for body in list(pair.holds)[:1]:
            pair.release(body)
        await _turn()
        pair.carry_all()
        assert pair.caller.has_room
        more = pack_message(MessageKind.REQUEST, OPEN_COUNT_MAX + 1, ADD, b"more")
        beyond = pack_message(MessageKind.REQUEST, OPEN_COUNT_MAX + 2, ADD, b"beyond")
        pair.caller.write(more + beyond)
        pair.carry_all()
        await wait_quiet()
        assert {(await task)[0] for task in tasks} == {"answered", "lost"}
        assert b"beyond" not in pair.begun

    run_still(scenario())


@pytest.mark.parametrize(
    "answer",
    [
        pack_message(MessageKind.ANSWER, 2, 200, b"to nobody"),
        pack_message(MessageKind.ANSWER, 1, 200, b"") * 2,
        pack_message(MessageKind.REFUSAL, 1, 503, b"?"),
        pack_message(MessageKind.ANSWER, 1, 200, b"part", has_more=True)
        + pack_message(MessageKind.REFUSAL, 1, 503, pack_refusal(5, "no room")),
        pack_message(MessageKind.ANSWER, 1, 200, b"part", has_more=True)
        + pack_message(MessageKind.LAST, 0, 0, b""),
        pack_message(MessageKind.LAST, 2, 0, b""),
        b"\0" * 12,
    ],
    ids=[
        "to nobody",
        "twice",
        "a refusal that says nothing",
        "a refusal behind a part",
        "not begun, and answered in part",
        "a last call that was never asked",
        "no message",
    ],
)
def test_an_answer_that_cannot_be_breaks_the_stream(answer: bytes) -> None:
    async def scenario() -> None:
        pair = StreamPair()
        pair.is_holding = True
        await pair.open()
        asked = _ask(pair, ADD, b"asked")
        pair.carry_all()
        pair.server_stream.write(answer)
        pair.carry_all()
        await wait_quiet()
        assert (await asked)[0] in ("lost", "answered")
        assert pair.caller.is_over
        assert pair.there.is_lost

    run_still(scenario())


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_request_out_of_turn_breaks_the_stream(number: int) -> None:
    async def scenario() -> None:
        pair = StreamPair()
        await pair.open()
        task = _ask(pair, ADD, b"first")
        pair.carry_all()
        await _turn()
        pair.carry_all()
        assert (await task)[0] == "answered"
        message = bytearray(pack_message(MessageKind.REQUEST, 9, ADD, b"odd"))
        message[4] = number
        pair.caller.write(bytes(message))
        pair.carry_all()
        await wait_quiet()
        assert pair.caller.is_over
        assert pair.begun == [b"first"]

    run_still(scenario())


# --- Signs of life -------------------------------------------------------------------------------


def test_an_idle_stream_lives_by_its_pings() -> None:
    async def scenario() -> None:
        pair = StreamPair()
        await pair.open()
        loop = asyncio.get_running_loop()
        begin_s, before_bytes = loop.time(), pair.there.written_bytes
        for second in range(1, 61):
            await wait_clock(begin_s + second)
            pair.carry_all()
        assert not pair.caller.is_over
        pinged_bytes = pair.there.written_bytes - before_bytes
        assert 3 * 17 <= pinged_bytes <= 2 * 6 * 17, "some pings, and answers to the peer's"

    run_still(scenario())


def test_a_peer_that_is_silent_is_dead() -> None:
    async def scenario() -> None:
        pair = StreamPair()
        await pair.open()
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        pair.is_holding = True  # so that nothing waits to be sent there, either
        task = _ask(pair, ADD, b"asked", within_s=100)
        while not pair.is_over:
            pair.there.carry(1 << 20)
            await wait_clock(loop.time() + 1)
        assert (await task)[0] == "lost"
        assert 3 <= loop.time() - begin_s <= 6
        assert pair.is_over

    run_still(scenario())


def test_a_slow_answer_is_no_silence() -> None:
    async def scenario() -> None:
        pair = StreamPair()
        await pair.open()
        pair.is_holding = True
        loop = asyncio.get_running_loop()
        for _ in range(8):  # it rests, and nobody has a reason to ping yet
            await wait_clock(loop.time() + 1)
        task = _ask(pair, ADD, b"slow", within_s=100)
        for _ in range(60):
            pair.carry_all()
            await wait_clock(loop.time() + 1)
        pair.release(b"slow")
        await _turn()
        pair.carry_all()
        assert (await task)[0] == "answered"

    run_still(scenario())


@pytest.mark.parametrize("has_call", [False, True])
def test_a_held_loop_does_not_count_against_the_peer(has_call: bool) -> None:
    async def scenario() -> None:
        pair = StreamPair()
        await pair.open()
        pair.is_holding = True
        task = _ask(pair, ADD, b"held", within_s=1_000) if has_call else None
        pair.carry_all()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, StillLoop)
        loop.now_s += 300
        await wait_quiet()
        assert not pair.caller.is_over
        for _ in range(12):
            await wait_clock(loop.time() + 1)
            pair.carry_all()
        assert not pair.caller.is_over
        if task is not None:
            pair.release(b"held")
            await _turn()
            pair.carry_all()
            assert (await task)[0] == "answered"

    run_still(scenario())


def test_half_a_message_is_not_waited_for() -> None:
    async def scenario() -> None:
        pair = StreamPair()
        await pair.open()
        pair.caller.write(pack_message(MessageKind.REQUEST, 1, ADD, b"whole")[:-1])
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        while not pair.caller.is_over:
            pair.carry_all()
            await wait_clock(loop.time() + 1)
            assert loop.time() - begin_s < 40
        assert loop.time() - begin_s > 25
        assert pair.begun == []

    run_still(scenario())


def test_who_asks_for_nothing_is_sent_away() -> None:
    async def scenario() -> None:
        pair = StreamPair()
        loop = asyncio.get_running_loop()
        pair.there.carry(30)
        begin_s = loop.time()
        while not pair.back.is_lost:
            await wait_clock(loop.time() + 1)
            assert loop.time() - begin_s < 15
        assert loop.time() - begin_s > 8

    run_still(scenario())


# --- Windows -------------------------------------------------------------------------------------


def test_large_requests_never_stall() -> None:
    async def scenario() -> None:
        pair = StreamPair()
        await pair.open()
        body = bytes(1 << 20)
        tasks = [_ask(pair, ADD, bytes([n]) + body[1:]) for n in range(40)]
        for _ in range(200):
            pair.carry_all()
            await _turn()
        assert {(await task)[0] for task in tasks} == {"answered"}

    run_still(scenario())


def test_who_takes_no_answers_is_read_no_further() -> None:
    async def scenario() -> None:
        pair = StreamPair()
        await pair.open()
        opened: list[int] = []
        caller: Any = pair.caller
        caller.open_window = opened.append
        tasks = []
        for wave in range(40):
            tasks += [_ask(pair, ADD, b"%d-" % (10 * wave + n) + bytes(60_000)) for n in range(10)]
            pair.carry_all()
            await _turn()
        assert len(pair.begun) < 300, "its answers wait, and so do its requests"
        assert pair.server.statistics()["unsent_bytes"] < 8 << 20
        del caller.open_window
        caller.open_window(sum(opened))
        for _ in range(300):
            pair.carry_all()
            await _turn()
        assert {(await task)[0] for task in tasks} == {"answered"}

    run_still(scenario())


def test_an_answer_is_given_part_by_part() -> None:
    async def scenario() -> None:
        pair = StreamPair()
        await pair.open()
        call: OpenCall = pair.caller.ask(APPEND, b"x")
        pair.carry_all()
        await _turn()
        pair.carry_all()
        assert call.answer_bytes == len(b"piece of x") + 3 * HEAD_BYTES
        deadline_s = asyncio.get_running_loop().time() + 1
        assert [await call.take(deadline_s) for _ in range(3)] == [
            (None, b"piece of "), (None, b"x"), (200, b""),
        ]  # fmt: skip

    run_still(scenario())


def test_an_idle_stream_is_small() -> None:
    async def scenario() -> None:
        async def make() -> StreamPair:
            pair = StreamPair()
            await pair.open()
            return pair

        kept = [await make()]  # what is made once is not counted
        gc.collect()
        tracemalloc.start()
        try:
            before_bytes, _ = tracemalloc.get_traced_memory()
            kept += [await make() for _ in range(50)]
            gc.collect()
            after_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert (after_bytes - before_bytes) / 50 < 12 * KIB, "both ends, and the test's own"

    run_still(scenario())
