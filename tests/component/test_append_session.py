"""Pipelined append sessions over real HTTP/1.1 and HTTP/2, before scripted sequencers.

Every session keeps its body open while it reads answers. Source: docs/protocol/rest.md "Append
sessions".
"""

import asyncio
import json
from typing import Any

import pytest
from pyreqwest.client import ClientBuilder

from duramen.errors import DuramenError
from duramen.ids import Dlsn, EntryId, Epoch
from duramen.units import MIB
from duramen.wire.edge.batch_stream import MEDIA_TYPE, StreamedBatch, pack_streamed
from duramen.wire.record_batch import BatchProducer, decode_batch, encode_batch
from duramen.wire.sequencer_calls import Append, AppendedBatch, AppendResult, LogMark
from duramen_writeproxy.intake import session as session_module
from tests.component.raw_http import Call, open_call
from tests.component.writeproxy_world import Scenario, World, owner, run
from tests.waiting import wait_for

STREAM = "/v1/namespaces/a/logs/l/records:stream"
NDJSON = "application/x-ndjson"

both_protocols = pytest.mark.parametrize("protocol", ["h1", "h2"])


def line(*bodies: str, **options: Any) -> bytes:
    """One NDJSON batch."""
    document = {"records": [{"body": body} for body in bodies], **options}
    return json.dumps(document).encode() + b"\n"


def frame(*bodies: bytes, producer: BatchProducer | None = None, **options: Any) -> bytes:
    """One framed batch."""
    return pack_streamed(StreamedBatch(encode_batch(bodies, 9, producer=producer), **options))


_open: list[Call] = []


async def open_session(
    world: World, protocol: str = "h1", media: str = NDJSON, **more: str
) -> Call:
    call = await open_call(protocol, world.proxy.port, STREAM, content_type=media, **more)
    _open.append(call)
    return call


def play(scenario: Scenario, sequencer_count: int = 1) -> None:
    """Run a scenario and hang up: a server that stops waits for connections that are open."""

    async def play_and_close(world: World) -> None:
        try:
            await scenario(world)
        finally:
            while _open:
                _open.pop().close()

    run(play_and_close, sequencer_count)


async def read_answer(call: Call) -> dict[str, Any] | None:
    """The next answer; None: the session has ended."""
    found = await call.read_line()
    answer: dict[str, Any] | None = json.loads(found) if found.strip() else None
    return answer


async def read_rest(call: Call) -> list[dict[str, Any]]:
    found = []
    while (answer := await read_answer(call)) is not None:
        found.append(answer)
    return found


def sent_bodies(world: World) -> list[bytes]:
    return [body for row in world.rows for body in decode_batch(bytes(row.batch)).bodies]


def sessions_of(world: World) -> dict[str, int]:
    found: dict[str, int] = world.proxy.statistics()["sessions"]
    return found


def test_one_connection_carries_any_number_of_sessions() -> None:
    """HTTP/2 clients take a hundred empty frames in a connection's life for an attack."""

    async def scenario(world: World) -> None:
        async with ClientBuilder().http2_prior_knowledge().no_proxy().build() as client:
            for number in range(1, 151):
                request = client.post(f"http://127.0.0.1:{world.proxy.port}{STREAM}")
                request = request.header("content-type", NDJSON).body_bytes(line("a"))
                answer = await request.build().send()
                assert (await answer.json())["start"]["seq_num"] == number

    play(scenario)


# --- Full duplex ---


@both_protocols
@pytest.mark.parametrize("media", [NDJSON, MEDIA_TYPE])
def test_answers_come_while_the_body_is_open(protocol: str, media: str) -> None:
    async def scenario(world: World) -> None:
        call = await open_session(world, protocol, media)
        for number in range(1, 4):
            text = f"b{number}"
            await call.send(line(text) if media == NDJSON else frame(text.encode()))
            answer = await read_answer(call)
            assert answer is not None and answer["start"]["seq_num"] == number
            assert len(world.rows) == number, "the next batch is not there yet"
        await call.end()
        assert await read_answer(call) is None
        assert sent_bodies(world) == [b"b1", b"b2", b"b3"]
        await wait_for(lambda: not sessions_of(world)["open"])
        assert world.proxy.statistics()["in_flight_bytes"] == 0
        assert world.proxy.statistics()["arriving_bytes"] == 0

    play(scenario)


def test_units_may_be_cut_anywhere_and_the_last_line_needs_no_end() -> None:
    async def scenario(world: World) -> None:
        for media, body in (
            (NDJSON, b"\n" + line("a") + b" \n" + line("b", "c").rstrip()),
            (MEDIA_TYPE, frame(b"a", fencing_token="t") + frame(b"b", b"c")),
        ):
            call = await open_session(world, media=media)
            for index in range(len(body)):
                await call.send(body[index : index + 1])
            await call.end()
            assert len(await read_rest(call)) == 2
        assert sent_bodies(world) == [b"a", b"b", b"c"] * 2
        assert world.rows[2].options.fencing_token == "t"

    play(scenario)


# --- Order ---


@both_protocols
def test_a_burst_goes_in_groups_and_in_order(protocol: str) -> None:
    async def scenario(world: World) -> None:
        gate = asyncio.Event()

        async def decide(append: Append) -> AppendResult:
            await gate.wait()
            return await world.first.accept(append)

        world.first.decide = decide
        call = await open_session(world, protocol)
        texts = [f"b{number}" for number in range(600)]
        await call.send(line(texts[0]))
        await wait_for(lambda: len(world.rows) == 1)
        for text in texts[1:]:
            await call.send(line(text))
        await wait_for(lambda: sessions_of(world)["batches"] == session_module.WAITING_COUNT_MAX)
        assert len(world.first.frames) == 1, "one group is under way at a time"
        gate.set()
        await call.end()
        answers = await read_rest(call)
        assert [answer["start"]["seq_num"] for answer in answers] == list(range(1, 601))
        assert sent_bodies(world) == [text.encode() for text in texts]
        sizes = [len(rows) for rows in world.first.frames[:4]]
        assert sizes == [1, *[session_module.GROUP_COUNT_MAX] * 3]

    play(scenario)


def test_a_refused_batch_stands_alone() -> None:
    async def scenario(world: World) -> None:
        async def decide(append: Append) -> AppendResult:
            if append.options.match_seq_num == 99:
                return DuramenError("condition_failed", "no", facts={"expected_seq_num": 3})
            return await world.first.accept(append)

        world.first.decide = decide
        call = await open_session(world)
        body = line("a") + line("b", match_seq_num=99) + line("c", unknown=1) + b"{\n" + line("d")
        await call.send(body)
        await call.end()
        answers = await read_rest(call)
        found = [answer.get("code", "ok") for answer in answers]
        assert found == ["ok", "condition_failed", "unknown_field", "invalid_argument", "ok"]
        assert answers[1]["expected_seq_num"] == 3
        assert [row for row in sent_bodies(world) if row != b"b"] == [b"a", b"d"]

    play(scenario)


def test_what_was_refused_for_a_while_is_sent_again_with_all_behind_it() -> None:
    async def scenario(world: World) -> None:
        refused: list[bytes] = []

        async def decide(append: Append) -> AppendResult:
            [body] = decode_batch(bytes(append.batch)).bodies
            if body in (b"b", b"c") and len(refused) < 2:
                refused.append(body)
                # The second is refused for good, because the first is not there.
                code = "log_unavailable" if body == b"b" else "condition_failed"
                return DuramenError(code, "later")
            return await world.first.accept(append)

        world.first.decide = decide
        call = await open_session(world)
        await call.send(line("a") + line("b") + line("c", match_seq_num=2))
        await call.end()
        assert [answer["start"]["seq_num"] for answer in await read_rest(call)] == [1, 2, 3]
        assert sent_bodies(world) == [b"a", b"b", b"c", b"b", b"c"]

    play(scenario)


def test_nothing_is_sent_again_before_what_is_in_the_log() -> None:
    async def scenario(world: World) -> None:
        async def decide(append: Append) -> AppendResult:
            [body] = decode_batch(bytes(append.batch)).bodies
            if body == b"b":
                return DuramenError("log_unavailable", "later")
            return await world.first.accept(append)

        world.first.decide = decide
        call = await open_session(world)
        await call.send(line("a") + line("b") + line("c"))
        await call.end()
        found = [answer.get("code", "ok") for answer in await read_rest(call)]
        assert found == ["ok", "log_unavailable", "ok"]
        assert sent_bodies(world) == [b"a", b"b", b"c"]

    play(scenario)


def test_a_redirect_moves_the_whole_group() -> None:
    async def scenario(world: World) -> None:
        second = world.sequencers[1]

        async def redirect(_append: Append) -> AppendResult:
            return owner(second)

        world.first.decide = redirect
        call = await open_session(world)
        await call.send(line("a") + line("b"))
        await call.end()
        assert [answer["start"]["seq_num"] for answer in await read_rest(call)] == [1, 2]
        assert len(second.rows) == 2
        assert second.rows[0].options.tried == (world.first.name,)

    play(scenario, sequencer_count=2)


# --- Early ends ---


def test_nothing_follows_a_batch_that_is_uncertain() -> None:
    async def scenario(world: World) -> None:
        async def decide(append: Append) -> AppendResult | None:
            [body] = decode_batch(bytes(append.batch)).bodies
            return None if body == b"b" else await world.first.accept(append)

        world.first.decide = decide
        call = await open_session(world)
        await call.send(line("a"))
        assert (await read_answer(call) or {})["start"]["seq_num"] == 1
        await call.send(line("b"))
        answer = await read_answer(call)
        assert answer is not None and (answer["code"], answer["uncertain"]) == (
            "append_uncertain",
            True,
        )
        [last] = [await read_answer(call)]
        assert last is not None and last["session_ended"] and not last["uncertain"]
        assert last["code"] == "log_unavailable"
        await call.send(line("c"))
        await call.end()
        assert await read_answer(call) is None
        assert sent_bodies(world) == [b"a", b"b"]

    play(scenario)


def test_a_producers_uncertain_batches_are_settled_by_sending_them_again() -> None:
    async def scenario(world: World) -> None:
        lost: list[bytes] = []

        async def decide(append: Append) -> AppendResult | None:
            if len(lost) < 2:
                lost.append(bytes(append.batch))
                return None
            return await world.first.accept(append)

        world.first.decide = decide
        call = await open_session(world, media=MEDIA_TYPE)
        producers = [BatchProducer("p", 0, number) for number in range(2)]
        await call.send(b"".join(frame(b"%d" % p[2], producer=p) for p in producers))
        await call.end()
        assert [answer["start"]["seq_num"] for answer in await read_rest(call)] == [1, 2]
        assert sent_bodies(world) == [b"0", b"1", b"0", b"1"]

    play(scenario)


BAD_UNITS = [
    (MEDIA_TYPE, b"DAS2" + b"\0" * 40, "invalid_argument"),
    (MEDIA_TYPE, frame(b"x")[:-3], "invalid_argument"),
    (
        MEDIA_TYPE,
        bytes([*frame(b"x")[:16], 0xFF, 0xFF, 0xFF, 0x7F]) + b"\0" * 99,
        "batch_too_large",
    ),
    (MEDIA_TYPE, bytes([*frame(b"x")[:20], 1, 2, 3, 4]) + b"\0" * 99, "invalid_argument"),
    (NDJSON, b"{" * 11_000_000, "batch_too_large"),
]


@pytest.mark.parametrize(("media", "body", "code"), BAD_UNITS)
def test_a_body_that_cannot_be_cut_ends_the_session(media: str, body: bytes, code: str) -> None:
    async def scenario(world: World) -> None:
        call = await open_session(world, media=media)
        await call.send((line("a") if media == NDJSON else frame(b"a")) + body)
        await call.end()
        first, last = await read_rest(call)
        assert first["start"]["seq_num"] == 1
        assert (last["code"], last["session_ended"]) == (code, True)
        assert sent_bodies(world) == [b"a"]

    play(scenario)


def test_a_batch_that_drips_in_ends_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "BODY_TIMEOUT_S", 0.3)

    async def scenario(world: World) -> None:
        call = await open_session(world)
        dripping = asyncio.create_task(drip(call))
        last = await read_answer(call)
        assert last is not None and last["session_ended"]
        assert (last["code"], last["detail"]) == (
            "invalid_argument",
            "the batch did not arrive in time",
        )
        dripping.cancel()
        call.close()
        assert not world.rows
        await wait_for(lambda: world.proxy.statistics()["in_flight_bytes"] == 0)

    async def drip(call: Call) -> None:
        while True:
            await call.send(b"{")
            await asyncio.sleep(0)

    play(scenario)


def test_a_session_in_which_nothing_happens_ends_cleanly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "IDLE_S", 0.1)

    async def scenario(world: World) -> None:
        call = await open_session(world)
        assert await read_answer(call) is None
        await wait_for(lambda: not sessions_of(world)["open"])

    play(scenario)


@both_protocols
def test_a_stopping_proxy_ends_its_sessions(protocol: str) -> None:
    async def scenario(world: World) -> None:
        gate = asyncio.Event()

        async def decide(append: Append) -> AppendResult:
            await gate.wait()
            return await world.first.accept(append)

        world.first.decide = decide
        call = await open_session(world, protocol)
        await call.send(line("a"))
        await wait_for(lambda: len(world.rows) == 1)
        await call.send(line("b"))
        await wait_for(lambda: sessions_of(world)["batches"] == 2)
        stopping = asyncio.create_task(world.proxy.stop())
        await asyncio.sleep(0)
        gate.set()
        first, last = await read_answer(call), await read_answer(call)
        assert first is not None and first["start"]["seq_num"] == 1
        assert last is not None and (last["code"], last["session_ended"]) == (
            "server_draining",
            True,
        )
        await call.end()
        await stopping
        assert sent_bodies(world) == [b"a"], "what was not taken was not sent"
        world.proxy.stop = _stopped  # type: ignore[method-assign]  # the world stops it again

    play(scenario)


async def _stopped() -> None:
    return None


def test_a_client_that_goes_away_leaves_nothing_behind() -> None:
    async def scenario(world: World) -> None:
        gate = asyncio.Event()

        async def decide(append: Append) -> AppendResult:
            await gate.wait()
            return await world.first.accept(append)

        world.first.decide = decide
        call = await open_session(world)
        await call.send(line("a"))
        await wait_for(lambda: len(world.rows) == 1)
        await call.send(line("b") + line("c")[:-5])
        await wait_for(lambda: sessions_of(world)["partial_bytes"] > 0)
        call.close()
        gate.set()
        await wait_for(lambda: not sessions_of(world)["open"])
        assert world.proxy.statistics()["in_flight_bytes"] == 0
        assert b"c" not in sent_bodies(world)

    play(scenario)


# --- Flow control ---


@both_protocols
def test_the_body_is_read_no_faster_than_batches_are_appended(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    most_bytes = 2 * MIB
    monkeypatch.setattr(session_module, "WAITING_BYTES_MAX", most_bytes)

    async def scenario(world: World) -> None:
        gate = asyncio.Event()

        async def decide(_append: Append) -> AppendResult:
            await gate.wait()
            start = LogMark(Dlsn(Epoch(1), EntryId(1), 0), 1, 5)
            return AppendedBatch(start, 1, start)

        world.first.decide = decide
        call = await open_session(world, protocol, duramen_timeout="30s")
        unit = line("x" * 64_000)
        sending = asyncio.create_task(send_all(call, unit, 400))
        await wait_for(lambda: sessions_of(world)["batch_bytes"] > most_bytes - len(unit))
        held = world.proxy.statistics()["in_flight_bytes"]
        assert held <= most_bytes + 2 * MIB, "the queue, and the piece that was read last"
        assert not sending.done(), "26 MB fit into no buffer on the way"
        gate.set()
        reading = asyncio.create_task(read_rest(call))
        await sending
        assert len(await reading) == 400

    async def send_all(call: Call, unit: bytes, count: int) -> None:
        for _ in range(count):
            await call.send(unit)
        await call.end()

    play(scenario)


def test_a_log_without_room_holds_its_sessions_back() -> None:
    async def scenario(world: World) -> None:
        refusals = [DuramenError(code, "later") for code in ("window_full", "not_enough_bookies")]

        async def decide(append: Append) -> AppendResult:
            return refusals.pop() if refusals else await world.first.accept(append)

        world.first.decide = decide
        call = await open_session(world)
        await call.send(line("a"))
        await call.end()
        assert [answer["start"]["seq_num"] for answer in await read_rest(call)] == [1]
        assert len(world.rows) == 3

    play(scenario)


def test_sessions_are_refused_by_their_head() -> None:
    async def scenario(world: World) -> None:
        for path, headers, status, field in (
            (STREAM, {"content_type": "application/json"}, 415, "Content-Type"),
            (STREAM, {"duramen_producer": "p;0;0"}, 400, "Duramen-Producer"),
            (STREAM, {"duramen_match_seq_num": "1"}, 400, "Duramen-Match-Seq-Num"),
            (STREAM + "?x=1", {}, 400, "x"),
            (STREAM.replace("/l/", "/no/"), {}, 404, "log"),
        ):
            sent = {"content_type": NDJSON, **headers}
            got, problem = await world.call("POST", path, line("a"), **sent)
            assert (got, problem["field"]) == (status, field)
        assert not world.rows

    play(scenario)
