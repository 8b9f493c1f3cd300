"""Content coding on both public ports, over real HTTP: requests decoded, answers coded.

The codec itself is `tests/unit/test_content_coding.py`'s. Source: docs/protocol/rest.md "Content
coding", RFC 9110.
"""

import asyncio
import gzip
import json
from collections.abc import Callable
from typing import Any

import pytest

from duramen.runtime.edge.coded_bodies import SMALL_ANSWER_BYTES, CodedBodies
from duramen.wire.edge.content_coding import (
    STEP_INPUT_BYTES_MAX,
    make_decoder,
    make_encoder,
    zstd,
)
from duramen.wire.record_batch import decode_batch, encode_batch
from tests.component import readproxy_world, writeproxy_world
from tests.component.raw_http import open_call
from tests.component.readproxy_world import check
from tests.component.writeproxy_world import World

STREAM = "/v1/namespaces/a/logs/l/records:stream"
CODERS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "zstd": zstd.compress}
DECODERS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.decompress, "zstd": zstd.decompress}

both_codings = pytest.mark.parametrize("coding", CODERS)

# --- Requests ---


@both_codings
def test_every_body_may_be_coded(coding: str) -> None:
    async def scenario(world: World) -> None:
        for media, body in (
            ("application/octet-stream", b"a" * 3_000),
            ("application/json", b'{"records":[{"body":"%b"}]}' % (b"a" * 3_000)),
            ("application/x-ndjson", b'{"body":"%b"}\n' % (b"a" * 3_000)),
            ("application/vnd.duramen.batch", encode_batch([b"a" * 3_000], 9)),
        ):
            coded = CODERS[coding](body)
            status, _ = await world.append(coded, content_type=media, content_encoding=coding)
            assert status == 200, media
        found = [decode_batch(bytes(row.batch)).bodies for row in world.rows]
        assert found == [[b"a" * 3_000]] * 4
        config = CODERS[coding](b'{"auto_create": true}')
        path, headers = "/v1/namespaces/new", {"content_encoding": coding}
        # Other routes take coded bodies as well: this one fails only at its sequencer.
        status, problem = await world.call("PUT", path, config, **headers)
        assert problem.get("code") != "unsupported_media"

    writeproxy_world.run(scenario)


@both_codings
def test_a_bomb_is_refused_by_the_limit_of_what_it_would_be(coding: str) -> None:
    async def scenario(world: World) -> None:
        for media, size, code in (
            ("application/octet-stream", (1 << 20) + 1, "record_too_large"),
            ("application/json", 200 << 20, "batch_too_large"),
            ("application/vnd.duramen.batch", 200 << 20, "batch_too_large"),
        ):
            bomb = CODERS[coding](bytes(size))
            status, problem = await world.append(bomb, content_type=media, content_encoding=coding)
            assert (status, problem["code"]) == (413, code)
        assert not world.rows
        assert world.proxy.statistics()["in_flight_bytes"] == 0

    writeproxy_world.run(scenario)


@pytest.mark.parametrize(
    ("coding", "frame"),
    [
        ("zstd", zstd.compress(b"")),
        ("zstd", bytes.fromhex("502a4d1800000000")),
        ("gzip", gzip.compress(b"")),
    ],
    ids=["empty frames", "skippable frames", "empty members"],
)
def test_a_body_of_many_frames_is_refused(coding: str, frame: bytes) -> None:
    async def scenario(world: World) -> None:
        body = CODERS[coding](b"before") + frame * 300_000
        got, problem = await world.append(body, content_encoding=coding)
        assert (got, problem["code"], problem["field"]) == (
            400, "invalid_argument", "Content-Encoding",
        )  # fmt: skip
        assert "64 frames" in problem["detail"]
        assert not world.rows
        few = CODERS[coding](b"before") + frame * 62 + CODERS[coding](b" after")
        status, _ = await world.append(
            few, content_type="application/octet-stream", content_encoding=coding
        )
        assert status == 200
        assert decode_batch(bytes(world.rows[0].batch)).bodies == [b"before after"]

    writeproxy_world.run(scenario)


NOTHING_MUCH = {
    "gzip": gzip.compress(b"")[:10] + b"\0\0\0\xff\xff" * 3_000_000 + gzip.compress(b"")[10:],
    "zstd": bytes.fromhex("28b52ffd0058") + bytes(15 << 20) + bytes.fromhex("010000"),
}
"""15 MiB of blocks without content: nothing comes of them, and each is work."""


@both_codings
def test_others_have_their_turn_while_a_body_is_decoded(coding: str) -> None:
    """Also while nothing comes of it that a route could take."""

    async def scenario() -> None:
        turns, ended_at = 0, []

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": NOTHING_MUCH[coding], "more_body": False}

        async def read(_scope: Any, receive: Any, _send: Any) -> None:
            while (await receive())["more_body"]:
                pass
            ended_at.append(turns)

        scope = {
            "type": "http", "method": "POST", "headers": [(b"content-encoding", coding.encode())],
        }  # fmt: skip
        counting = asyncio.create_task(count())
        await CodedBodies(read)(scope, receive, None)
        counting.cancel()
        assert ended_at[0] >= len(NOTHING_MUCH[coding]) // STEP_INPUT_BYTES_MAX

    asyncio.run(scenario())


def test_bodies_that_cannot_be_decoded_are_refused() -> None:
    async def scenario(world: World) -> None:
        whole = gzip.compress(b"x" * 2_000)
        for coding, body, status, code in (
            ("br", b"x", 415, "unsupported_media"),
            ("gzip, zstd", b"x", 415, "unsupported_media"),
            ("gzip", b"x", 400, "invalid_argument"),
            ("gzip", b"", 400, "invalid_argument"),
            ("gzip", whole[:-4], 400, "invalid_argument"),
            ("gzip", whole + b"more", 400, "invalid_argument"),
            ("zstd", whole, 400, "invalid_argument"),
        ):
            got, problem = await world.append(body, content_encoding=coding)
            found = (got, problem["code"], problem["field"])
            assert found == (status, code, "Content-Encoding"), (coding, body)
        assert not world.rows

    writeproxy_world.run(scenario)


@both_codings
@pytest.mark.parametrize("protocol", ["h1", "h2"])
def test_a_session_may_be_coded_both_ways_and_is_flushed(coding: str, protocol: str) -> None:
    async def scenario(world: World) -> None:
        headers = {"content_encoding": coding, "content_type": "application/x-ndjson"}
        call = await open_call(protocol, world.proxy.port, STREAM, **headers)
        encoder = make_encoder(coding)
        for number in range(1, 4):
            unit = json.dumps({"records": [{"body": str(number)}]}).encode() + b"\n"
            await call.send(encoder.encode(unit, is_last=False))
            answer = json.loads(await call.read_line())
            assert answer["start"]["seq_num"] == number
        await call.send(encoder.encode(b"", is_last=True))
        await call.end()
        assert await call.read_line() == b""
        call.close()

    writeproxy_world.run(scenario)


# --- Answers ---


@both_codings
def test_answers_are_coded_for_who_accepts_it(coding: str) -> None:
    async def scenario(world: readproxy_world.World) -> None:
        await world.fill()
        plain = await world.get("?from=head", accept_encoding="identity")
        assert "content-encoding" not in plain.headers
        assert plain.headers["vary"] == "Accept-Encoding"
        assert len(plain.content) > SMALL_ANSWER_BYTES
        check(world, plain.json(), 0, plain.json()["records"][-1]["seq_num"] + 1)
        for media in ("application/json", readproxy_world.NDJSON, readproxy_world.BATCH):
            expected = await world.get("?from=head", accept=media, accept_encoding="identity")
            headers = {"accept": media, "accept_encoding": f"br, {coding}"}
            async with world.http.stream(
                "GET",
                f"{readproxy_world.RECORDS}?from=head",
                headers={name.replace("_", "-"): value for name, value in headers.items()},
            ) as answer:
                coded = b"".join([piece async for piece in answer.aiter_raw()])
            assert answer.headers["content-encoding"] == coding
            assert answer.headers["vary"] == "Accept-Encoding"
            assert DECODERS[coding](coded) == expected.content
            assert len(coded) < len(expected.content) or media == readproxy_world.BATCH

    readproxy_world.run(scenario)


def test_small_answers_are_not_coded() -> None:
    async def scenario(world: readproxy_world.World) -> None:
        await world.fill()
        for query, status in (("?from=head&count=1", 200), ("?from=seq:100000", 416)):
            answer = await world.get(query, accept_encoding="zstd, gzip")
            assert answer.status_code == status
            assert "content-encoding" not in answer.headers
            assert int(answer.headers["content-length"]) == len(answer.content)

    readproxy_world.run(scenario)


@both_codings
def test_a_streamed_answer_is_flushed_piece_by_piece(coding: str) -> None:
    async def scenario(world: readproxy_world.World) -> None:
        await world.fill()
        headers = {"accept": readproxy_world.NDJSON, "accept-encoding": coding}
        path = f"{readproxy_world.RECORDS}?from=tail-1&wait=20s"
        async with world.http.stream("GET", path, headers=headers) as answer:
            decoder = make_decoder(coding)
            pieces = answer.aiter_raw()
            for number in range(3):
                text = b""
                while not text.endswith(b"\n"):
                    decoder.feed(await anext(pieces))
                    text += decoder.step(1 << 20)
                assert text.count(b"\n") == 1, number
                await world.append(1)

    readproxy_world.run(scenario)
