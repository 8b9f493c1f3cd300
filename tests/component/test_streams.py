"""How a stream ends: completely or not at all, and with a client that takes nothing or goes.

Cursors are played by hand, feeds are real, the clock stands still (`feed_world`); clients are what
an ASGI server would call. What streams say is in `test_event_streams`, over real HTTP.
Source: duramen_readproxy.following.streams, docs/protocol/read-answers.md.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Final

import pytest
from prometheus_client import CollectorRegistry
from starlette.types import Message

from duramen.core.reading.read_ahead import ReaderLimits
from duramen.errors import DuramenError
from duramen.ids import EntryId, Epoch
from duramen.runtime.reading.positioning.positions import Start
from duramen.runtime.reading.tail import Tail
from duramen.texts import parse_position
from duramen_readproxy.answers import Bounds
from duramen_readproxy.following.encodings import SharedEncodings
from duramen_readproxy.following.places import ReadingPlaces
from duramen_readproxy.following.presence import Presence
from duramen_readproxy.following.record_reader import RecordReader
from duramen_readproxy.following.stream_forms import make_form
from duramen_readproxy.following.streams import (
    SEND_TIMEOUT_S,
    ClientStream,
    StreamCounts,
    stream_records,
)
from duramen_readproxy.parameters import Form, ReadRequest
from duramen_readproxy.requests import CUT_OFF, GONE, OK, OpenRequest, Requests
from tests.component.feed_world import LOG, MOMENT_S, FeedWorld, deliver, play, tail_at
from tests.component.still_clock import run_still, wait_clock, wait_quiet
from tests.pauses import stay

HEAD: Final = Start(Epoch(1), EntryId(0), 0)
LIMITS: Final = ReaderLimits()
PIECE: Final = b"a piece"


def open_request() -> OpenRequest:
    """A request of which nobody else knows."""
    return OpenRequest(Requests(CollectorRegistry()), "records")


def open_stream(world: FeedWorld, tail: Tail, request: OpenRequest) -> AsyncGenerator[bytes, None]:
    """NDJSON without notes from the head to the tail, which is the one that is found."""
    wanted = ReadRequest(
        parse_position("head"), None, Bounds(None, None, None), wait_us=0, clamp=False,
        form=Form.NDJSON, is_base64=False, has_notes=False,
    )  # fmt: skip

    async def find_tail() -> Tail:
        return tail

    at = (Epoch(1), EntryId(0))
    reader = RecordReader(world.feeds, world.fetcher, world.follower(), at, LIMITS)
    reader.catch_up_in(ReadingPlaces())
    form = make_form(LOG, HEAD, wanted, SharedEncodings(), reader.find_hole)
    return stream_records(
        reader, form, wanted, find_tail, lambda: False, request=request,
    )  # fmt: skip


@pytest.mark.parametrize("is_sure", [True, False])
def test_a_stream_ends_properly_only_where_all_that_was_acknowledged_is_in_it(
    monkeypatch: pytest.MonkeyPatch, is_sure: bool
) -> None:
    async def scenario(world: FeedWorld) -> None:
        request = open_request()
        stream = open_stream(world, tail_at(1, 2, 2, is_sure=is_sure), request)
        taking = asyncio.ensure_future(anext(stream))
        await wait_quiet()
        await world.cursors[0].give(deliver(1, 0, 1), None)
        assert taking.result().count(b"\n") == 2
        if is_sure:
            assert not b"".join([piece async for piece in stream])
            assert request.outcome == OK
        else:
            with pytest.raises(DuramenError) as caught:
                await anext(stream)
            assert request.outcome == caught.value.code == "data_unavailable"

    play(monkeypatch, scenario)


class Client:
    """A client of ASGI, which takes so many messages and then no more."""

    def __init__(self, taken_max: int) -> None:
        self.taken: list[Message] = []
        self._taken_max = taken_max
        self._going: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self.is_cleaned_up = False
        self.request = open_request()

    def go(self) -> None:
        self._going.set_result({"type": "http.disconnect"})

    async def receive(self) -> Message:
        return await self._going

    async def send(self, message: Message) -> None:
        if len(self.taken) == self._taken_max:
            await stay()
        self.taken.append(message)

    async def _make_pieces(self) -> AsyncGenerator[bytes, None]:
        try:
            yield PIECE
            yield PIECE
            await stay()
        finally:
            self.is_cleaned_up = True

    async def _fail_behind(self, *pieces: bytes) -> AsyncGenerator[bytes, None]:
        for piece in pieces:
            yield piece
        raise DuramenError("data_unavailable", "nobody answers")

    async def serve_failing(self, *pieces: bytes) -> None:
        """A stream of these pieces that then fails, to this client."""
        await self._serve(StreamCounts(), self._fail_behind(*pieces))

    async def serve(self, counts: StreamCounts) -> None:
        """A stream of two pieces that then waits for more, to this client."""
        await self._serve(counts, self._make_pieces())

    async def _serve(self, counts: StreamCounts, pieces: AsyncGenerator[bytes, None]) -> None:
        self.pieces = pieces
        response = ClientStream(aiter_pieces(self.pieces))
        response.counts, response.pieces = counts, self.pieces
        response.presence = Presence(self.receive)
        response.request, response.form = self.request, "events"
        await response({"type": "http"}, self.receive, self.send)


async def aiter_pieces(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """As the routes have it: what was made before the answer began comes before the rest."""
    async for piece in pieces:
        yield piece


def test_what_fails_before_a_byte_was_sent_is_a_problem_and_later_breaks_the_stream() -> None:
    """The first piece of a wait is empty: the answer had begun by then, and became a bare 500."""

    async def scenario() -> None:
        client = Client(taken_max=9)
        await client.serve_failing(b"", b"")
        start, body = client.taken
        assert start["status"] == 503
        assert json.loads(body["body"])["code"] == "data_unavailable"
        assert client.request.outcome == "data_unavailable"
        client = Client(taken_max=9)
        with pytest.raises(DuramenError):
            await client.serve_failing(b"", PIECE)
        assert [message.get("status") for message in client.taken] == [200, None]
        assert client.request.outcome == "data_unavailable"

    run_still(scenario())


def test_a_client_that_takes_nothing_for_long_is_cut_off() -> None:
    async def scenario() -> None:
        counts, client = StreamCounts(), Client(taken_max=2)
        serving = asyncio.create_task(client.serve(counts))
        begun_s = asyncio.get_running_loop().time()
        await wait_clock(begun_s + SEND_TIMEOUT_S - MOMENT_S)
        assert not serving.done() and counts.statistics()["open"] == 1
        await wait_clock(begun_s + SEND_TIMEOUT_S + MOMENT_S)
        assert isinstance(serving.exception(), TimeoutError)
        assert client.is_cleaned_up
        assert client.request.outcome == CUT_OFF
        assert counts.statistics() == {
            "open": 0, "sent_bytes": len(PIECE), "pieces": 1, "cut_off": 1,
        }  # fmt: skip

    run_still(scenario())


@pytest.mark.parametrize("taken_max", [3, 2])
def test_what_a_stream_holds_is_freed_when_its_client_goes(taken_max: int) -> None:
    """At once, whether it waits for records or for the client: no collector has to come round."""

    async def scenario() -> None:
        counts, client = StreamCounts(), Client(taken_max)
        serving = asyncio.create_task(client.serve(counts))
        await wait_quiet()
        assert len(client.taken) == taken_max and not client.is_cleaned_up
        client.go()
        await serving
        assert client.is_cleaned_up
        assert client.request.outcome == GONE
        assert counts.statistics()["open"] == counts.statistics()["cut_off"] == 0

    run_still(scenario())
