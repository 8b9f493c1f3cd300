"""The public REST routes of the read proxy: records, tail, segments, and what a log is.

Routes only translate: parameters in, answers out. A client that goes away ends the work that was
done for it (`unless_gone`). The binary form passes batches through.

Served by `service.ReadProxy` on granian. Source: docs/protocol/read-answers.md "Where an answer
begins and ends".
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Annotated, Any, Final, Protocol

import orjson
from fastapi import FastAPI, Query, Request, Response

from duramen.core.flexible.segment import AnySegment
from duramen.core.life.release import can_do_without_hot_copies
from duramen.core.life.trim import SegmentStatus, status_of
from duramen.core.log_node import LogNode
from duramen.core.reading.read_ahead import ReaderLimits
from duramen.ids import Epoch
from duramen.runtime.admission.callers import AdmittedCall, call_of
from duramen.runtime.public.answers import (
    MarkAnswer,
    SegmentsAnswer,
    TailAnswer,
    describe_log,
    respond,
)
from duramen.runtime.reading.bookies import RangeFetcher
from duramen.runtime.reading.metadata import Catalog, LogFollower
from duramen.runtime.reading.positioning.log_view import LiveLog
from duramen.runtime.reading.positioning.positions import Positions, Start
from duramen.runtime.reading.positioning.segment_edges import SegmentEdges
from duramen.runtime.reading.tail import Tail, TailFinder
from duramen.runtime.rest import DeclaredRoute, make_public_app, read_query
from duramen.texts import check_log_name, check_namespace
from duramen.units import KIB, MIB
from duramen.wire.read_answers import MOVED_HEADER, NEXT_HEADER, START_HEADER, TAIL_HEADER
from duramen_readproxy.answers import BatchPick, RecordPick
from duramen_readproxy.caching import encode_caching, keep_private, omit_known
from duramen_readproxy.following.encodings import SharedEncodings
from duramen_readproxy.following.feed import Feeds
from duramen_readproxy.following.homes import HOME_HEADER, Homes
from duramen_readproxy.following.places import ReadingPlaces
from duramen_readproxy.following.record_reader import RecordReader, fill
from duramen_readproxy.following.stream_forms import make_form
from duramen_readproxy.following.streams import (
    ClientStream,
    StreamCounts,
    stream_records,
    unless_gone,
)
from duramen_readproxy.parameters import Form, ReadRequest, read_request
from duramen_readproxy.requests import OpenRequest, Requests
from duramen_readproxy.segment_answers import describe_epochs, describe_segment

RANGE_BYTES_MAX: Final = 4 * MIB
"""One request to a bookie while catching up: past it bytes per call gain nothing more."""

READ_AHEAD_BYTES: Final = 8 * MIB
"""Held for a reader that goes on where it stopped, beyond what it asked for now."""

LISTED_AGAIN_S: Final = 30.0
"""Repair moves copies of closed segments, an archive run adds cold ones, and there may be many
segments: listings read all of them again so often at most."""

FEW_RECORDS: Final = 10
"""A read of at most that many records is a look-up: it asks for little at first."""

_LOG_PATH: Final = "/v1/namespaces/{namespace}/logs/{log}"


class Backend(Protocol):
    """What the routes work on."""

    catalog: Catalog
    fetcher: RangeFetcher
    positions: Positions
    edges: SegmentEdges
    tails: TailFinder
    feeds: Feeds
    encodings: SharedEncodings
    streams: StreamCounts
    places: ReadingPlaces
    homes: Homes
    requests: Requests

    def begin_request(self) -> None:
        """Raises DuramenError `server_draining` when the proxy is stopping."""


def _add_segment_routes(
    app: FastAPI, backend: Backend, find: Callable[[str, str], Awaitable[LogFollower]]
) -> None:
    """What the log consists of, and consisted of."""

    @app.get(_LOG_PATH + "/segments", response_model=None)
    async def get_segments(request: Request, namespace: str, log: str) -> Response:
        """Every live segment with its placement."""
        with backend.requests.open("segments"):
            read_query(request, ())
            return respond(await _show_segments(backend, await find(namespace, log)))

    @app.get(_LOG_PATH + "/epochs", response_model=None)
    async def get_epochs(request: Request, namespace: str, log: str) -> Response:
        """The history of the log's epochs."""
        with backend.requests.open("epochs"):
            read_query(request, ())
            return respond(describe_epochs(*await (await find(namespace, log)).report_epochs()))


def make_app(backend: Backend) -> FastAPI:
    """The public application."""
    app = make_public_app("Duramen read proxy")

    async def find(namespace: str, log: str) -> LogFollower:
        backend.begin_request()
        return await backend.catalog.find(check_namespace(namespace), check_log_name(log))

    @app.get(_LOG_PATH, response_model=None)
    async def get_log(request: Request, namespace: str, log: str) -> Response:
        """What the log is."""
        with backend.requests.open("log"):
            read_query(request, ())
            return respond(describe_log(await (await find(namespace, log)).current_log()))

    @app.get(_LOG_PATH + "/records/tail", response_model=None)
    async def get_tail(request: Request, namespace: str, log: str) -> Response:
        """The tail, linearizable."""
        with backend.requests.open("tail"):
            read_query(request, ())
            tail = await backend.tails.find(await find(namespace, log))
            tail.check_sure()
        return respond(_describe_tail(tail))

    _add_segment_routes(app, backend, find)

    def get_records(  # noqa: PLR0917 - FastAPI passes them by name
        request: Request,
        namespace: str,
        log: str,
        _from: Annotated[str | None, Query(alias="from", description="a position")] = None,
        count: Annotated[str | None, Query(description="records, 1 to 10000")] = None,
        bytes_: Annotated[str | None, Query(alias="bytes", description="1 to 16MiB")] = None,
        until: Annotated[str | None, Query(description="end before this position")] = None,
        wait: Annotated[str | None, Query(description="long poll, up to 60s")] = None,
        clamp: Annotated[str | None, Query(description="true: beyond is the tail")] = None,
        format_: Annotated[str | None, Query(alias="format", description="base64")] = None,
        notes: Annotated[str | None, Query(description="true: NDJSON lines on gaps")] = None,
    ) -> Awaitable[Response]:
        """Records from a position."""
        return give_records(request, namespace, log)  # whose frame waits has none of the above

    async def give_records(request: Request, namespace: str, log: str) -> Response:
        with backend.requests.open("records") as opened:
            wanted = read_request(request)
            opened.admitted = call = call_of(request)
            follower = await find(namespace, log)
            receive, known = request.receive, request.headers.get("if-none-match")
            scheme = request.url.scheme
            del request  # thousands may wait here: they keep what they need
            response = await unless_gone(
                receive, answer_read(backend, follower, wanted, opened), opened
            )
            if call is not None:
                keep_private(response)
            response = omit_known(known, response)
            if not isinstance(response, ClientStream):
                opened.note_sent(wanted.form.name.lower(), len(response.body))
        home = backend.homes.find(namespace, log, scheme)
        if home is not None:
            response.headers[HOME_HEADER] = home
        return response

    app.router.add_api_route(
        _LOG_PATH + "/records", get_records, response_model=None,
        route_class_override=DeclaredRoute,
    )  # fmt: skip
    return app


async def answer_read(
    backend: Backend, follower: LogFollower, wanted: ReadRequest, opened: OpenRequest
) -> Response:
    """The answer of `GET …/records` in the form that was asked for."""
    if wanted.is_done:
        return Response(status_code=204)
    view = LiveLog(follower, backend.fetcher, backend.tails)
    start = await backend.positions.find(view, wanted.position, clamp=wanted.clamp)
    asked = wanted
    if wanted.until is not None:
        until = await backend.positions.find_end(view, wanted.until)
        wanted = wanted._replace(bounds=wanted.bounds._replace(until=until))
    headers = {MOVED_HEADER: f"seq:{start.seq_num}"} if start.is_moved else {}
    if wanted.form.is_stream:
        return await _answer_stream(backend, follower, start, wanted, headers, opened=opened)
    reader = open_reader(backend, follower, start, wanted, opened.admitted)
    if wanted.form is Form.BATCH:
        batches = BatchPick(start, wanted.bounds)
        tail = await fill(reader, batches, wanted.wait_us, view.find_reach)
        opened.waited_us = reader.waited_us
        backend.positions.note(reader.find_touched())
        next_seq_num = _next_of(batches.next_seq_num, tail, start)
        headers[NEXT_HEADER] = f"seq:{next_seq_num}"
        if batches.first_seq_num is not None:
            headers[START_HEADER] = f"seq:{batches.first_seq_num}"
        if tail is not None:
            headers[TAIL_HEADER] = json.dumps(tail.encode())
            if _is_end_of(await follower.current_log(), tail):
                headers["Duramen-Ended"] = "true"
        elif batches.is_full:
            headers |= encode_caching(asked, start, await follower.current_log(), next_seq_num)
        return Response(batches.pack(), media_type=Form.BATCH.value, headers=headers)
    records = RecordPick(start, wanted.bounds, is_base64=wanted.is_base64)
    tail = await fill(reader, records, wanted.wait_us, view.find_reach)
    opened.waited_us = reader.waited_us
    backend.positions.note(reader.find_touched())
    next_seq_num = _next_of(records.next_seq_num, tail, start)
    document: dict[str, Any] = {"records": records.drain(), "next": f"seq:{next_seq_num}"}
    if records.gaps:
        document["gaps"] = records.gaps
    if tail is not None:
        document["tail"] = tail.encode()
        if _is_end_of(await follower.current_log(), tail):
            document["ended"] = True
    elif records.is_full:
        headers |= encode_caching(asked, start, await follower.current_log(), next_seq_num)
    if start.is_moved:
        head = (await follower.current_log()).trim.dlsn
        document["moved_to"] = {"seq_num": start.seq_num, "dlsn": str(head)}
    return Response(orjson.dumps(document), media_type=Form.JSON.value, headers=headers)


async def _answer_stream(
    backend: Backend,
    follower: LogFollower,
    start: Start,
    wanted: ReadRequest,
    headers: dict[str, str],
    *,
    opened: OpenRequest,
) -> Response:
    """NDJSON or events."""
    reader = open_reader(backend, follower, start, wanted, opened.admitted)
    reader.catch_up_in(backend.places, start.find_end())
    pieces = stream_records(
        reader,
        make_form(follower.log_id, start, wanted, backend.encodings, reader.find_hole),
        wanted,
        lambda: backend.tails.find_reach(follower),
        lambda: backend.feeds.is_stopping,
        request=opened,
    )
    # The first piece is made before the answer begins, so that its errors are problems.
    first = await anext(pieces, b"")
    if wanted.form is Form.EVENTS:
        headers["Cache-Control"] = "no-store"
    stream = ClientStream(_chain(first, pieces), media_type=wanted.form.value, headers=headers)
    stream.counts = backend.streams
    stream.pieces = pieces
    stream.request, stream.form = opened, wanted.form.name.lower()
    opened.is_stream = True
    return stream


def open_reader(
    backend: Backend,
    follower: LogFollower,
    start: Start,
    wanted: ReadRequest,
    call: AdmittedCall | None,
) -> RecordReader:
    """A reader from the start on; `call` is in whose name it waits."""
    limits = choose_limits(start, wanted)
    position = (start.epoch, start.entry)
    reader = RecordReader(backend.feeds, backend.fetcher, follower, position, limits)
    reader.call = call
    return reader


def choose_limits(start: Start, wanted: ReadRequest) -> ReaderLimits:
    """How much to ask for: what the answer can hold, and more for who reads on."""
    count, size_bytes, _ = wanted.bounds
    asked_bytes = RANGE_BYTES_MAX if size_bytes is None else size_bytes
    if count is not None and count <= FEW_RECORDS:
        asked_bytes = min(asked_bytes, 64 * KIB)
    reads_on = start.is_sequential or (count is None and size_bytes is None)
    return ReaderLimits(
        range_bytes=min(max(asked_bytes, 64 * KIB), RANGE_BYTES_MAX),
        buffer_bytes=asked_bytes + (READ_AHEAD_BYTES if reads_on else 0),
    )


async def list_segments(follower: LogFollower) -> tuple[LogNode, Sequence[AnySegment]]:
    """The log node, and the live segments of the log, oldest first.

    What they say of closed ones is up to LISTED_AGAIN_S old; what they say of cold copies is as new
    as the call in a log with tiering. Once some have moved to the metadata log all of it is.

    Raises:
        DuramenError: as `LogFollower.list_all`.
    """
    log, _ = await follower.refresh(
        Epoch((await follower.current_log()).next_epoch), is_synced=True
    )
    if log.metadata.through >= log.first_live_epoch:
        return await follower.list_all()
    now_s = asyncio.get_running_loop().time()
    is_due = now_s >= follower.listed_at_s + LISTED_AGAIN_S
    is_tiered = log.config.tiering.policy != "none"
    segments: list[AnySegment] = []
    for epoch in range(log.first_live_epoch, log.next_epoch):
        segment = (await follower.current(Epoch(epoch)))[1]
        if segment is not None and segment.is_closed:
            is_archived = can_do_without_hot_copies(segment)
            may_have_moved = segment.epoch >= log.first_hot_epoch or not is_archived
            if (is_due and may_have_moved) or (is_tiered and not is_archived):
                segment = (await follower.refresh(Epoch(epoch)))[1]
        if segment is not None:
            segments.append(segment)
    if is_due:
        follower.listed_at_s = now_s
    return log, segments


def _describe_tail(tail: Tail) -> TailAnswer:
    end = MarkAnswer(**tail.encode())
    acknowledged = MarkAnswer(**tail.encode_acknowledged())
    return TailAnswer(tail=end, released=end, acknowledged=acknowledged)


async def _show_segments(backend: Backend, follower: LogFollower) -> SegmentsAnswer:
    log, segments = await list_segments(follower)
    view = LiveLog(follower, backend.fetcher, backend.tails)
    edges = await backend.edges.learn(view, _list_readable(segments, log))
    return SegmentsAnswer(
        segments=[describe_segment(one, log, edges.get(one.epoch)) for one in segments]
    )


def _list_readable(segments: Sequence[AnySegment], log: LogNode) -> list[AnySegment]:
    """The closed ones that readers are shown: repair does not care for the others any more."""
    return [
        segment
        for segment in segments
        if segment.is_closed and status_of(segment, log) is not SegmentStatus.TRUNCATED
    ]


def _is_end_of(log: LogNode, tail: Tail) -> bool:
    """Whether the log has ended there: it may have grown, and ended, since the tail was found."""
    return log.is_ended and tail.seq_num == log.totals.record_count


def _next_of(next_seq_num: int | None, tail: Tail | None, start: Start) -> int:
    if next_seq_num is not None:
        return next_seq_num
    return start.seq_num if tail is None else max(tail.seq_num, start.seq_num)


async def _chain(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece
