"""The write proxy over real HTTP, before fake sequencers and a metadata store in memory.

What matters most is counted, not timed: how often a batch was sent, and in how many frames. The
neighbours are `writeproxy_world`'s. Source: docs/protocol/rest.md, docs/protocol/errors.md.
"""

import asyncio
import contextlib

import prometheus_client
import pytest

from duramen.errors import DuramenError
from duramen.ids import Dlsn, EntryId, Epoch
from duramen.limits import RECORD_BYTES_MAX
from duramen.runtime.http_server import refuse_overloaded
from duramen.wire.metadata_json import read_node
from duramen.wire.nodes.formats import PROCESS_FORMATS, understands
from duramen.wire.record_batch import decode_batch, encode_batch
from duramen.wire.record_json import encode_mark
from duramen.wire.sequencer_calls import AlreadyStored, Append, AppendedBatch, AppendResult, LogMark
from duramen_writeproxy import lanes
from duramen_writeproxy.intake.budget import Budget
from tests.component.writeproxy_world import (
    PATHS,
    RAW,
    RECORDS,
    FakeSequencer,
    World,
    always,
    lane_of,
    owner,
    run,
    wait_requests,
)
from tests.waiting import wait_for

# --- Append: bodies and answers ---


@pytest.mark.parametrize(
    ("media", "body", "bodies"),
    [
        (RAW, b"\x00raw", [b"\x00raw"]),
        ("text/plain; charset=utf-8", b"text", [b"text"]),
        ("application/json", b'{"records":[{"body":"a"},{"body":"b"}]}', [b"a", b"b"]),
        ("application/x-ndjson", b'{"body":"a"}\n{"body":"b"}\n', [b"a", b"b"]),
        ("application/vnd.duramen.batch", encode_batch([b"a", b"b"], 9), [b"a", b"b"]),
    ],
)
def test_every_content_type_arrives_as_one_batch(
    media: str, body: bytes, bodies: list[bytes]
) -> None:
    async def scenario(world: World) -> None:
        status, answer = await world.append(body, content_type=media)
        assert status == 200
        assert answer == {
            "start": {
                "seq_num": 1,
                "timestamp": "1970-01-01T00:00:00.005Z",
                "lsn": "e1n1",
                "dlsn": "e1n1s0",
            },
            "end": {
                "seq_num": 2,
                "timestamp": "1970-01-01T00:00:00.005Z",
                "lsn": "e1n1",
                "dlsn": "e1n1s1",
            },
            "tail": {
                "seq_num": 1,
                "timestamp": "1970-01-01T00:00:00.005Z",
                "lsn": "e1n1",
                "dlsn": "e1n1s0",
            },
        }
        [row] = world.first.rows
        assert row.log_id == 5 and 9_000 < row.deadline_ms <= 10_000
        assert decode_batch(bytes(row.batch)).bodies == bodies

    run(scenario)


JSON_TYPE = {"content_type": "application/json"}
BAD_APPENDS: list[tuple[dict[str, str], bytes, str, int, str, str | None]] = [
    ({"content_type": "image/png"}, b"x", RECORDS, 415, "unsupported_media", "Content-Type"),
    ({"content_encoding": "br"}, b"x", RECORDS, 415, "unsupported_media", "Content-Encoding"),
    (
        {"duramen_match_seq_num": "one"}, b"x", RECORDS,
        400, "invalid_argument", "Duramen-Match-Seq-Num",
    ),
    (
        {"duramen_fencing_token": "t" * 65}, b"x", RECORDS,
        400, "invalid_argument", "Duramen-Fencing-Token",
    ),
    ({"duramen_producer": "p;1"}, b"x", RECORDS, 400, "invalid_argument", "Duramen-Producer"),
    ({"duramen_format": "hex"}, b"x", RECORDS, 400, "invalid_argument", "Duramen-Format"),
    ({"duramen_timeout": "5"}, b"x", RECORDS, 400, "invalid_argument", "Duramen-Timeout"),
    ({"duramen_timeout": "0s"}, b"x", RECORDS, 400, "invalid_argument", "Duramen-Timeout"),
    ({"duramen_timeout": "61s"}, b"x", RECORDS, 400, "invalid_argument", "Duramen-Timeout"),
    ({}, b"x", RECORDS + "?match=1", 400, "unknown_field", "match"),
    ({}, b"x" * (RECORD_BYTES_MAX + 1), RECORDS, 413, "record_too_large", None),
    (
        {"content_type": "application/json"}, b" " * (20 << 20), RECORDS,
        413, "batch_too_large", None,
    ),
    ({"content_type": "application/json"}, b"{", RECORDS, 400, "invalid_argument", None),
    (
        {"content_type": "application/json"}, b'{"records":[{"body":"x","b":1}]}', RECORDS,
        400, "unknown_field", "records[0].b",
    ),
    ({"content_type": "application/x-ndjson"}, b"{", RECORDS, 400, "invalid_argument", "line 1"),
    (
        {"content_type": "application/vnd.duramen.batch"}, b"x" * 99, RECORDS,
        400, "invalid_argument", "records",
    ),
    ({}, b"x", "/v1/namespaces/A/logs/l/records", 400, "invalid_name", "namespace"),
    ({}, b"x", "/v1/namespaces/a/logs/.l/records", 400, "invalid_name", "log"),
    ({}, b"x", "/v1/namespaces/a/logs/%ff/records", 400, "invalid_name", "log"),
    ({}, b"x", "/v1/namespaces/b/logs/l/records", 404, "namespace_not_found", "namespace"),
    ({}, b"x", "/v1/namespaces/a/logs/none/records", 404, "log_not_found", "log"),
    ({}, b"x", "/v1/nothing", 415, "unsupported_media", "Content-Type"),
    (JSON_TYPE, b"x", "/v1/nothing", 404, "invalid_argument", "path"),
    (JSON_TYPE, b"x", "/v1/namespaces", 405, "invalid_argument", "method"),
]  # fmt: skip


def test_bad_appends_are_refused_and_nothing_is_sent() -> None:
    async def scenario(world: World) -> None:
        for headers, body, path, status, code, field in BAD_APPENDS:
            got, problem = await world.append(body, path, **headers)
            found = (got, problem["status"], problem["code"], problem.get("field"))
            assert found == (status, status, code, field), (headers, path, problem)
            assert not problem["retryable"] and not problem["uncertain"]
        missing, problem = await world.call("POST", RECORDS, b"x", content_type="")
        assert (missing, problem["code"]) == (415, "unsupported_media")
        assert not world.rows

    run(scenario)


@pytest.mark.parametrize(
    "head", [b"content-length: 100", b"transfer-encoding: chunked"], ids=["length", "chunked"]
)
def test_a_body_that_is_cut_short_is_not_appended(head: bytes) -> None:
    async def scenario(world: World) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.proxy.port)
        writer.write(
            b"POST %b HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: text/plain\r\n%b\r\n\r\n"
            % (RECORDS.encode(), head)
        )
        writer.write(b"2\r\nxx\r\n")
        await writer.drain()
        await wait_requests(world, 1)
        writer.write_eof()
        with contextlib.suppress(ConnectionError):
            assert b" 200 " not in await reader.read()
        writer.close()
        await wait_requests(world, 0)
        assert not world.rows

    run(scenario)


# --- Append: sequencers' answers ---


@pytest.mark.parametrize(
    "code", ["window_full", "overloaded", "not_enough_bookies", "append_uncertain", "log_ended"]
)
def test_a_sequencers_refusal_is_the_clients_and_not_tried_again(code: str) -> None:
    async def scenario(world: World) -> None:
        world.first.decide = always(DuramenError(code, "why", field="f", retry_after_ms=70))
        status, problem = await world.append()
        kind = DuramenError(code, "").kind
        assert (status, problem["code"], problem["detail"]) == (kind.status, code, "why")
        assert problem["uncertain"] is kind.uncertain
        assert problem.get("retry_after_ms") == (70 if problem["retryable"] else None)
        assert len(world.rows) == 1

    run(scenario, 2)


def test_a_frame_refused_for_lack_of_room_is_not_uncertain() -> None:
    async def scenario(world: World) -> None:
        world.first.refusal = refuse_overloaded("too many frames arrive", 70)
        status, problem = await world.append()
        assert (status, problem["code"], problem["retry_after_ms"]) == (503, "overloaded", 70)
        assert problem["retryable"] and not problem["uncertain"]
        world.first.refusal = None
        assert (await world.append())[0] == 200

    run(scenario)


def test_a_takeover_is_waited_for() -> None:
    async def scenario(world: World) -> None:
        codes = ["log_unavailable", "server_draining", "log_unavailable"]

        async def decide(append: Append) -> AppendResult:
            return DuramenError(codes.pop(), "") if codes else await world.first.accept(append)

        world.first.decide = decide
        assert (await world.append())[0] == 200
        assert len(world.rows) == 4

    run(scenario)


def test_a_takeover_that_lasts_is_told_with_advice() -> None:
    async def scenario(world: World) -> None:
        world.first.decide = always(DuramenError("server_draining", "going"))
        status, problem = await world.append(duramen_timeout="2s")
        assert (status, problem["code"]) == (503, "log_unavailable")
        assert problem["retryable"] and not problem["uncertain"] and problem["retry_after_ms"]

    run(scenario)


def test_redirects_are_followed_and_remembered() -> None:
    async def scenario(world: World) -> None:
        first, second, third = world.sequencers
        first.decide = always(owner(second))
        second.decide = always(owner(third))
        for _ in range(3):
            assert (await world.append())[0] == 200
        assert [len(s.rows) for s in world.sequencers] == [1, 1, 3]

    run(scenario, 3)


def test_redirects_in_a_circle_are_bounded() -> None:
    async def scenario(world: World) -> None:
        first, second = world.sequencers
        first.decide, second.decide = always(owner(second)), always(owner(first))
        status, problem = await world.append(duramen_timeout="2s")
        assert (status, problem["code"]) == (503, "log_unavailable")
        # Pauses of 100, 200, 400 and 800 ms fit into the time, another does not: five rounds.
        assert 2 <= len(world.rows) <= 10

    run(scenario, 2)


def test_a_sequencer_that_is_not_there_is_passed_over() -> None:
    async def scenario(world: World) -> None:
        first, second = world.sequencers
        await first.stop()
        assert (await world.append())[0] == 200
        assert (await world.append())[0] == 200
        assert len(second.rows) == 2
        assert world.proxy.statistics()["appends"]["unreachable"] == 1
        # The survivor names the dead one until it has taken over.
        answers: list[AppendResult] = [owner(first), owner(first)]

        async def decide(append: Append) -> AppendResult:
            return answers.pop() if answers else await second.accept(append)

        second.decide = decide
        assert (await world.append())[0] == 200
        assert len(second.rows) == 5

    run(scenario, 2)


def test_without_a_sequencer_a_log_is_unavailable() -> None:
    async def scenario(world: World) -> None:
        status, problem = await world.append(duramen_timeout="150ms")
        assert (status, problem["code"], problem["retryable"]) == (503, "log_unavailable", True)

    run(scenario, 0)


def test_a_sequencer_that_comes_is_found_while_an_append_waits() -> None:
    async def scenario(world: World) -> None:
        append = asyncio.create_task(world.append())
        await wait_for(lambda: world.proxy.statistics()["appends"]["pauses"] > 0)
        world.sequencers.append(FakeSequencer("new"))
        await world.first.start()
        await world.register("new", world.first.url)
        assert (await append)[0] == 200

    run(scenario, 0)


# --- Append: uncertain, and never twice ---


@pytest.mark.parametrize("garbage", [None, b"garbage" * 20, b"\x00" * 36])
def test_a_broken_answer_is_uncertain_and_not_sent_again(garbage: bytes | None) -> None:
    async def scenario(world: World) -> None:
        world.first.decide, world.first.garbage = always(None), garbage
        status, problem = await world.append()
        assert (status, problem["code"]) == (503, "append_uncertain")
        assert problem["uncertain"] and not problem["retryable"]
        assert len(world.rows) == 1

    run(scenario, 2)


def test_only_the_rows_without_an_answer_are_uncertain() -> None:
    async def scenario(world: World) -> None:
        async def decide(append: Append) -> AppendResult | None:
            return await world.first.accept(append) if append.log_id == 5 else None

        world.first.decide = decide
        other = RECORDS.replace("/l/", "/m/")
        answers = await asyncio.gather(world.append(), world.append(path=other), world.append())
        assert [status for status, _ in answers] == [200, 503, 200]
        assert len(world.rows) == 3

    run(scenario)


def test_an_answer_that_does_not_come_in_time_is_uncertain() -> None:
    async def scenario(world: World) -> None:
        gate = asyncio.Event()

        async def decide(append: Append) -> AppendResult:
            await gate.wait()
            return await world.first.accept(append)

        world.first.decide = decide
        status, problem = await world.append(duramen_timeout="50ms")
        assert (status, problem["code"]) == (503, "append_uncertain")
        gate.set()
        assert len(world.rows) == 1

    run(scenario, 2)


# --- Append: exactly once ---


PRODUCER = "p;0;0"
PLACE = Dlsn(Epoch(1), EntryId(0), 0)
OLD = AppendedBatch(
    LogMark(PLACE, 7, 5), 1, LogMark(PLACE._replace(slot=1), 8, 5), is_duplicate=True
)


@pytest.mark.parametrize("refusals", [(), ("producer_gap", "window_full", "log_unavailable")])
def test_an_uncertain_append_of_a_producer_is_repeated_until_its_fate_is_known(
    refusals: tuple[str, ...],
) -> None:
    async def scenario(world: World) -> None:
        answers: list[AppendResult | None] = [None, *(DuramenError(c, "") for c in refusals), OLD]

        async def decide(_append: Append) -> AppendResult | None:
            return answers.pop(0)

        for sequencer in world.sequencers:
            sequencer.decide = decide
        status, answer = await world.append(duramen_producer=PRODUCER)
        assert status == 200 and answer["duplicate"] is True
        assert answer["start"]["seq_num"] == 7
        assert len({bytes(row.batch) for row in world.rows}) == 1
        assert len(world.rows) == len(refusals) + 2

    run(scenario, 2)


def test_once_uncertain_a_refusal_settles_nothing() -> None:
    async def scenario(world: World) -> None:
        answers: list[AppendResult | None] = [None, DuramenError("producer_fenced", "newer")]

        async def decide(_append: Append) -> AppendResult | None:
            return answers.pop(0)

        world.first.decide = decide
        status, problem = await world.append(duramen_producer=PRODUCER)
        assert (status, problem["code"], problem["uncertain"]) == (503, "append_uncertain", True)
        assert "producer_fenced" in problem["detail"]

    run(scenario)


def test_a_duplicate_that_is_not_kept_any_more_has_no_positions() -> None:
    async def scenario(world: World) -> None:
        world.first.decide = always(AlreadyStored())
        status, answer = await world.append(duramen_producer=PRODUCER)
        assert status == 200
        assert answer == {"start": None, "end": None, "tail": None, "duplicate": True}

    run(scenario)


def test_conditions_travel_and_a_refusal_brings_what_was_expected() -> None:
    async def scenario(world: World) -> None:
        tail = encode_mark(9, 5, PLACE)
        facts = {"expected_seq_num": 9, "tail": tail}
        refused = DuramenError("condition_failed", "no", field="match_seq_num", facts=facts)
        world.first.decide = always(refused)
        status, problem = await world.append(
            duramen_match_seq_num="8", duramen_fencing_token="mine"
        )  # fmt: skip
        (row,) = world.rows
        assert (row.options.match_seq_num, row.options.fencing_token) == (8, "mine")
        assert (status, problem["code"], problem["field"]) == (
            412, "condition_failed", "match_seq_num",
        )  # fmt: skip
        assert (problem["expected_seq_num"], problem["tail"]) == (9, tail)

    run(scenario)


# --- Lanes ---


def test_appends_that_wait_share_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        monkeypatch.setattr(lanes, "SLOW_S", 60.0)
        gate = asyncio.Event()

        async def decide(append: Append) -> AppendResult:
            await gate.wait()
            return await world.first.accept(append)

        world.first.decide = decide
        appends = [asyncio.create_task(world.append()) for _ in range(200)]
        await wait_for(lambda: lane_of(world)["held"] == 200)
        assert len(world.first.frames) <= 4
        gate.set()
        assert {status for status, _ in await asyncio.gather(*appends)} == {200}
        assert len(world.rows) == 200
        assert len(world.first.frames) <= 12

    run(scenario)


def test_a_slow_log_does_not_delay_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        # Whatever is open at the next look is slow: the test need not wait for the clock.
        monkeypatch.setattr(lanes, "SLOW_S", 0.0)
        gate = asyncio.Event()

        async def decide(append: Append) -> AppendResult:
            if append.log_id == 6:
                await gate.wait()
            return await world.first.accept(append)

        world.first.decide = decide
        slow = []
        for round_number in range(100):
            # More rounds than a lane has frames: without lanes of its own the slow log would
            # hold one more frame in each.
            path = RECORDS.replace("/l/", "/m/")
            slow.append(asyncio.create_task(world.append(path=path, duramen_timeout="60s")))
            await wait_requests(world, round_number + 1)
            assert (await world.append())[0] == 200
        assert not any(task.done() for task in slow)
        lane = lane_of(world)
        assert lane["slow_logs"] == 1 and lane["open_frames"] <= 64
        gate.set()
        assert {status for status, _ in await asyncio.gather(*slow)} == {200}
        await wait_for(lambda: not lane_of(world)["open_frames"])
        assert lane_of(world)["slow_logs"] == lane_of(world)["held_bytes"] == 0

    run(scenario)


def test_a_full_lane_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        gate = asyncio.Event()

        async def decide(append: Append) -> AppendResult:
            await gate.wait()
            return await world.first.accept(append)

        world.first.decide = decide
        monkeypatch.setattr(lanes, "LANE_BYTES_MAX", 1_000)
        held = asyncio.create_task(world.append(b"x" * 900))
        await wait_for(lambda: len(world.rows) == 1)
        status, problem = await world.append(b"x" * 900)
        assert (status, problem["code"], problem["retryable"]) == (503, "overloaded", True)
        gate.set()
        assert (await held)[0] == 200
        assert (await world.append(b"x" * 900))[0] == 200

    run(scenario)


def test_a_full_process_refuses() -> None:
    async def scenario() -> None:
        budget = Budget(most_bytes=10)
        slow, quick, third = budget.open(), budget.open(), budget.open()
        slow.add_piece(5)
        with pytest.raises(DuramenError, match="overloaded"):
            slow.add_piece(1)
        quick.add_whole(5)  # what arrives may use half, what is whole the rest
        with pytest.raises(DuramenError, match="overloaded"):
            third.add_whole(1)
        slow.add_whole(5)
        quick.close()
        third.add_piece(5)
        slow.close()
        assert (budget.held_bytes, budget.arriving_bytes, budget.request_count) == (5, 5, 1)
        third.close()
        assert (budget.held_bytes, budget.arriving_bytes, budget.request_count) == (0, 0, 0)

    asyncio.run(scenario())


# --- Life ---


def test_a_proxy_that_stops_answers_what_is_in_flight() -> None:
    async def scenario(world: World) -> None:
        gate = asyncio.Event()

        async def decide(append: Append) -> AppendResult:
            await gate.wait()
            return await world.first.accept(append)

        world.first.decide = decide
        registered = f"{PATHS.write_proxies}/w1"
        found = await world.setup.get(registered)
        assert found is not None and f":{world.proxy.port}".encode() in found.data
        assert understands(read_node(found.data), PROCESS_FORMATS)
        append = asyncio.create_task(world.append())
        await wait_for(lambda: len(world.rows) == 1)
        assert world.proxy.is_ready()
        stop = asyncio.create_task(world.proxy.stop())
        await wait_for(lambda: not world.proxy.is_ready())
        status, problem = await world.append()
        assert (status, problem["code"]) == (503, "server_draining")
        gate.set()
        assert (await append)[0] == 200
        await stop
        assert await world.setup.get(registered) is None

    run(scenario)


def test_metrics_and_the_document_of_the_interface() -> None:
    async def scenario(world: World) -> None:
        await world.append()
        await world.append(path=RECORDS + "?x=1")
        text = prometheus_client.generate_latest().decode()
        for name in (
            "duramen_writeproxy_append_seconds_bucket",
            'duramen_writeproxy_appends_total{outcome="ok"}',
            'duramen_writeproxy_appends_total{outcome="unknown_field"}',
            "duramen_writeproxy_frames_total",
            "duramen_writeproxy_in_flight_bytes 0.0",
        ):
            assert name in text
        status, document = await world.call("GET", "/openapi.json")
        assert status == 200
        assert "post" in document["paths"]["/v1/namespaces/{namespace}/logs/{log}/records"]

    run(scenario)
