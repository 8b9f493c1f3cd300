"""Standing streams over loopback: what goes by them, what goes as calls, and what ends them.

Source: docs/protocol/standing-streams.md.
"""

from __future__ import annotations

import asyncio

import pytest

from duramen.runtime.http_client import NoAnswerError, OverloadedError, RefusedError
from duramen.wire.standing.messages import REQUEST_BYTES_MAX
from tests.component.stream_world import HOST, WAIT_US, calling, run_on_both_loops, running_peer
from tests.waiting import wait_for


def test_small_requests_go_by_the_stream_once_it_is_open() -> None:
    async def scenario() -> None:
        async with running_peer() as peer, calling(peer) as caller:
            await caller.open(peer)
            assert [one[0] for one in peer.asked] == ["call"]
            assert await caller.call(peer, b"one") == b"/b/add one"
            assert await caller.call(peer, b"two", "/b/lac") == b"/b/lac two"
            large = bytes(REQUEST_BYTES_MAX)
            assert len(await caller.call(peer, large)) > len(large)
            assert peer.count("stream") == 3
            # What is larger, and what is rare, are calls.
            await caller.call(peer, large + b"+")
            await caller.call(peer, b"three", "/b/read")
            assert peer.count("stream") == 3
            assert peer.count("call") == 3
            assert len(peer.peers) == 1, "calls and streams of one process are its own"

    run_on_both_loops(scenario)


def test_answers_come_piece_by_piece_and_in_any_order() -> None:
    async def scenario() -> None:
        async with running_peer() as peer, calling(peer) as caller:
            await caller.open(peer)
            pieces = caller.client.stream(f"{peer.url}/s/append", b"hold,a,b", WAIT_US)
            assert [await anext(pieces) for _ in range(3)] == [b"hold", b"a", b"b"]
            held = asyncio.create_task(caller.call(peer, b"hold"))
            assert await caller.call(peer, b"quick") == b"/b/add quick"
            assert not held.done()
            peer.released.set()
            assert await held == b"/b/add hold"
            assert [piece async for piece in pieces] == []
            assert peer.count("call") == 1

    run_on_both_loops(scenario)


def test_refusals_mean_what_they_mean_in_a_call() -> None:
    async def scenario() -> None:
        async with running_peer() as peer, calling(peer) as caller:
            await caller.open(peer)
            with pytest.raises(OverloadedError) as caught:
                await caller.call(peer, b"full")
            assert caught.value.retry_after_us == 250_000
            with pytest.raises(RefusedError):
                await caller.call(peer, b"odd")
            with pytest.raises(NoAnswerError) as unknown:
                await caller.call(peer, b"broken")
            assert unknown.type is NoAnswerError
            pieces = caller.client.stream(f"{peer.url}/s/append", b"a,fault", WAIT_US)
            assert [await anext(pieces), await anext(pieces)] == [b"a", b"fault"]
            with pytest.raises(NoAnswerError):
                await anext(pieces)
            assert peer.count("call") == 1, "none of them was asked again"

    run_on_both_loops(scenario)


def test_a_peer_without_streams_is_called() -> None:
    async def scenario() -> None:
        async with running_peer() as peer, calling() as caller:
            caller.streams.learn({"a": {"data_url": peer.url}, "b": {"data_url": []}, "c": {}})
            for _ in range(3):
                await caller.call(peer, b"x")
            assert peer.count("call") == 3
            assert caller.streams.statistics()["peers"] == 0

    run_on_both_loops(scenario)


@pytest.mark.parametrize(
    "stream_url",
    [
        "https://{host}:{port}/standing/{process}",
        "http://{host}:{port}/standing/" + "0" * 32,
        "http://{host}:{port}",
        "http://{host}/standing/{process}",
        "http://{host}:1/standing/{process}",
        "http://nowhere.invalid:1/standing/{process}",
        "http://[::1/standing",
        7,
    ],
    ids=["TLS", "another life", "no path", "no port", "nobody", "no name", "no URL", "no text"],
)
def test_where_no_stream_comes_about_requests_are_calls(stream_url: str | int) -> None:
    async def scenario() -> None:
        async with running_peer() as peer, calling() as caller:
            url: object = stream_url
            if isinstance(stream_url, str):
                url = stream_url.format(
                    host="127.0.0.1", port=peer.streams.port, process=peer.process
                )
            caller.streams.learn({"a": {"data_url": peer.url, "stream_url": url}})
            await caller.call(peer, b"one")
            counts = caller.streams.statistics
            await wait_for(lambda: counts()["not_opened"] == 1 or not counts()["peers"])
            await caller.call(peer, b"two")
            assert peer.count("call") == 2

    run_on_both_loops(scenario)


def test_a_peer_that_is_registered_anew_gets_another_stream() -> None:
    async def scenario() -> None:
        async with running_peer() as peer, running_peer() as next_life, calling(peer) as caller:
            await caller.open(peer)
            held = asyncio.create_task(caller.call(peer, b"hold"))
            await wait_for(lambda: peer.count("stream") == 1)
            fields = next_life.describe() | {"data_url": peer.url}
            caller.streams.learn({"a": fields})
            assert await caller.call(peer, b"behind")
            await wait_for(lambda: caller.streams.statistics()["opened"] == 2)
            assert await caller.call(peer, b"by the next")
            assert [one[2] for one in next_life.asked] == [b"by the next"]
            peer.released.set()
            assert await held == b"/b/add hold", "what was begun is answered"

    run_on_both_loops(scenario)


def test_a_server_that_stops_answers_what_it_began_and_begins_nothing() -> None:
    async def scenario() -> None:
        async with running_peer() as peer, calling(peer) as caller:
            await caller.open(peer)
            held = [asyncio.create_task(caller.call(peer, b"hold")) for _ in range(5)]
            await wait_for(lambda: peer.count("stream") == 5)
            stopping = asyncio.create_task(peer.streams.stop())
            await wait_for(lambda: caller.streams.statistics()["streams"] == 0)
            assert await caller.call(peer, b"next") == b"/b/add next"
            assert peer.asked[-1][0] == "call"
            peer.released.set()
            assert set(await asyncio.gather(*held)) == {b"/b/add hold"}
            await stopping

    run_on_both_loops(scenario)


def test_a_stop_under_load_costs_no_request() -> None:
    """A socket that is closed while something comes is reset, and what was sent last is lost."""

    async def scenario() -> None:
        async with running_peer() as peer, calling(peer) as caller:
            await caller.open(peer)
            is_over = asyncio.Event()

            async def keep_calling(number: int) -> None:
                while not is_over.is_set():
                    body = b"%d" % number * 100
                    assert await caller.call(peer, body) == b"/b/add " + body

            tasks = [asyncio.create_task(keep_calling(number)) for number in range(64)]
            await wait_for(lambda: peer.count("stream") > 1_000)
            await peer.streams.stop()
            called_count = peer.count("call")
            await wait_for(lambda: peer.count("call") > called_count + 100)
            is_over.set()
            await asyncio.gather(*tasks)

    run_on_both_loops(scenario)


def test_two_registrations_of_one_address_are_the_later_one() -> None:
    async def scenario() -> None:
        async with running_peer() as peer, calling(peer) as caller:
            await caller.open(peer)
            gone = peer.describe() | {"stream_url": peer.describe()["stream_url"][:-32] + "0" * 32}
            for _ in range(3):
                caller.streams.learn({"old": gone, "new": peer.describe()})
            assert caller.streams.statistics()["streams"] == 1
            assert await caller.call(peer, b"x")
            assert peer.count("stream") == 1

    run_on_both_loops(scenario)


def test_what_was_begun_has_an_open_fate_when_the_peer_dies() -> None:
    async def scenario() -> None:
        async with running_peer() as peer, calling(peer) as caller:
            await caller.open(peer)
            held = asyncio.create_task(caller.call(peer, b"hold"))
            await wait_for(lambda: peer.count("stream") == 1)
            for stream in peer.streams.list_streams():
                stream.break_off("it dies")
            with pytest.raises(NoAnswerError) as caught:
                await held
            assert caught.type is NoAnswerError
            assert [one[0] for one in peer.asked] == ["call", "stream"], "it is not asked again"
            assert await caller.call(peer, b"next")
            assert peer.asked[-1][0] == "call"

    run_on_both_loops(scenario)


def test_connections_have_a_bound_before_they_say_anything() -> None:
    async def scenario() -> None:
        async with running_peer(connection_count=4) as peer:
            opened = [await _connect(peer.streams.port) for _ in range(2)]
            assert all([await reader.read(1) for reader, _ in opened])
            reader, writer = await _connect(peer.streams.port)
            assert await reader.read() == b""
            writer.close()
            opened.pop()[1].close()

            async def has_a_place() -> bool:
                opened.append(await _connect(peer.streams.port))
                return await opened[-1][0].read(1) != b""

            await wait_for(has_a_place, rest_s=0.01)
            for _, writer in opened:
                writer.close()

    run_on_both_loops(scenario)


async def _connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(HOST, port)


def test_a_cancelled_call_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        async with running_peer() as peer, calling(peer) as caller:
            await caller.open(peer)
            for _ in range(20):
                held = asyncio.create_task(caller.call(peer, b"hold"))
                await asyncio.sleep(0)
                held.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await held
            peer.released.set()
            await wait_for(lambda: caller.streams.statistics()["requests_open"] == 0)
            assert peer.streams.statistics()["requests_open"] == 0

    run_on_both_loops(scenario)
