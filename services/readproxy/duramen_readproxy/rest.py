"""The public REST routes of the read proxy: records, tail, segments, and what a log is.

Routes only translate: parameters in, answers out. A client that goes away ends the work that was
done for it (`_unless_gone`; streams end by themselves). The binary form passes batches through.

Served by `service.ReadProxy` on granian. Source: 03-api "REST v1", 08-interfaces;
docs/protocol/read-answers.md.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from typing import Annotated, Any, Final, Protocol

import orjson
from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from duramen.core.life.trim import min_active_dlsn, status_of
from duramen.core.log_node import LogNode
from duramen.core.reader import ReaderLimits
from duramen.core.segment import Segment
from duramen.ids import Epoch, Member, ledger_of
from duramen.runtime.rest import make_public_app, read_query
from duramen.texts import check_log_name, check_namespace, spell_time
from duramen.units import KIB, MIB
from duramen.wire.read_answers import MOVED_HEADER, NEXT_HEADER, START_HEADER, TAIL_HEADER
from duramen_readproxy.answers import BatchPick, RecordPick, place_delivered
from duramen_readproxy.bookies import RangeFetcher, read_clock_us
from duramen_readproxy.log_reader import LogCursor, fill
from duramen_readproxy.metadata import Catalog, LogFollower
from duramen_readproxy.parameters import Form, ReadRequest, read_request
from duramen_readproxy.positioning.log_view import LiveLog
from duramen_readproxy.positions import Positions, Start
from duramen_readproxy.tail import Tail, TailFinder

RANGE_BYTES_MAX: Final = 4 * MIB
"""One request to a bookie while catching up: past it bytes per call gain nothing more."""

READ_AHEAD_BYTES: Final = 8 * MIB
"""Held for a reader that goes on where it stopped, beyond what it asked for now."""

FEW_RECORDS: Final = 10
"""A read of at most that many records is a look-up: it asks for little at first."""

_LOG_PATH: Final = "/v1/namespaces/{namespace}/logs/{log}"


class Backend(Protocol):
    """What the routes work on."""

    catalog: Catalog
    fetcher: RangeFetcher
    positions: Positions
    tails: TailFinder

    def begin_request(self) -> None:
        """Raises DuramenError `server_draining` when the proxy is stopping."""


def make_app(backend: Backend) -> FastAPI:
    """The public application."""
    app = make_public_app("Duramen read proxy")

    async def find(request: Request, namespace: str, log: str) -> LogFollower:
        backend.begin_request()
        return await backend.catalog.find(check_namespace(namespace), check_log_name(log))

    @app.get(_LOG_PATH)
    async def get_log(request: Request, namespace: str, log: str) -> dict[str, Any]:
        """What the log is."""
        read_query(request, ())
        node = await (await find(request, namespace, log)).current_log()
        return {
            "namespace": node.namespace,
            "name": node.name,
            "log_id": str(node.log_id),
            "config": node.config.to_json(),
            "ended": node.is_ended,
            "head": {"seq_num": node.trim_seq_num, "dlsn": str(node.trim.dlsn)},
        }

    @app.get(_LOG_PATH + "/records/tail")
    async def get_tail(request: Request, namespace: str, log: str) -> dict[str, Any]:
        """The tail, linearizable."""
        read_query(request, ())
        tail = await backend.tails.find(await find(request, namespace, log))
        tail.check_sure()
        return {"tail": tail.spell()}

    @app.get(_LOG_PATH + "/segments")
    async def get_segments(request: Request, namespace: str, log: str) -> dict[str, Any]:
        """Every live segment with its placement."""
        read_query(request, ())
        follower = await find(request, namespace, log)
        log_node, segments = await list_segments(follower)
        return {"segments": [spell_segment(segment, log_node) for segment in segments]}

    @app.get(_LOG_PATH + "/records")
    async def get_records(  # noqa: PLR0917 - FastAPI passes them by name
        request: Request,
        namespace: str,
        log: str,
        _from: Annotated[str | None, Query(alias="from", description="a position")] = None,
        count: Annotated[str | None, Query(description="records, 1 to 10000")] = None,
        bytes_: Annotated[str | None, Query(alias="bytes", description="1 to 16MiB")] = None,
        until: Annotated[str | None, Query(description="end before this position")] = None,
        wait: Annotated[str | None, Query(description="long poll, up to 60s")] = None,
        clamp: Annotated[str | None, Query(description="true: beyond is the tail")] = None,
    ) -> Response:
        """Records from a position."""
        wanted = read_request(request)
        follower = await find(request, namespace, log)
        return await _unless_gone(request, answer_read(backend, follower, wanted))

    return app


async def answer_read(backend: Backend, follower: LogFollower, wanted: ReadRequest) -> Response:
    """The answer of `GET …/records` in the form that was asked for."""
    view = LiveLog(follower, backend.fetcher, backend.tails)
    start = await backend.positions.find(view, wanted.position, clamp=wanted.clamp)
    if wanted.until is not None:
        until = await backend.positions.find_end(view, wanted.until)
        wanted = wanted._replace(bounds=wanted.bounds._replace(until=until))
    headers = {MOVED_HEADER: f"seq:{start.seq_num}"} if start.is_moved else {}
    if wanted.form is Form.NDJSON:
        pieces = stream_lines(backend, follower, start, wanted)
        # The first piece is made before the answer begins, so that its errors are problems.
        first = await anext(pieces, b"")
        return LineStream(_chain(first, pieces), media_type=Form.NDJSON.value, headers=headers)
    if wanted.form is Form.BATCH:
        batches = BatchPick(start, wanted.bounds)
        tail = await _fill(backend, follower, start, wanted, batches)
        headers[NEXT_HEADER] = f"seq:{_next_of(batches.next_seq_num, tail, start)}"
        if batches.first_seq_num is not None:
            headers[START_HEADER] = f"seq:{batches.first_seq_num}"
        if tail is not None:
            headers[TAIL_HEADER] = json.dumps(tail.spell())
            if (await follower.current_log()).is_ended:
                headers["Duramen-Ended"] = "true"
        return Response(batches.pack(), media_type=Form.BATCH.value, headers=headers)
    records = RecordPick(start, wanted.bounds, is_base64=wanted.is_base64)
    tail = await _fill(backend, follower, start, wanted, records)
    next_seq_num = _next_of(records.next_seq_num, tail, start)
    document: dict[str, Any] = {"records": records.drain(), "next": f"seq:{next_seq_num}"}
    if tail is not None:
        document["tail"] = tail.spell()
        if (await follower.current_log()).is_ended:
            document["ended"] = True
    if start.is_moved:
        head = (await follower.current_log()).trim.dlsn
        document["moved_to"] = {"seq_num": start.seq_num, "dlsn": str(head)}
    return Response(orjson.dumps(document), media_type=Form.JSON.value, headers=headers)


async def stream_lines(
    backend: Backend, follower: LogFollower, start: Start, wanted: ReadRequest
) -> AsyncIterator[bytes]:
    """NDJSON: all records to a bound or the tail, and on while something comes within `wait`."""
    pick = RecordPick(start, wanted.bounds, is_base64=wanted.is_base64)
    limits = choose_limits(start, wanted)
    async with LogCursor(follower, backend.fetcher, (start.epoch, start.entry), limits) as cursor:
        while not pick.is_full:
            delivered = await cursor.take(pick.wanted_seq_num, read_clock_us() + wanted.wait_us)
            if delivered is not None:
                for placed in place_delivered(delivered):
                    if not pick.offer(placed):
                        break
                    if lines := pick.drain_lines():
                        yield lines
            elif cursor.is_following:
                break
            elif not await cursor.on_tail(tail := await backend.tails.find(follower)):
                if wanted.wait_us == 0:
                    tail.check_sure()  # a stream that ends properly is complete
                    break
                cursor.follow()
        if lines := pick.drain_lines():
            yield lines


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


async def list_segments(follower: LogFollower) -> tuple[LogNode, list[Segment]]:
    """The log node, and the live segments of the log, oldest first.

    Raises:
        DuramenError: as `LogFollower.current`.
    """
    log, _ = await follower.refresh(
        Epoch((await follower.current_log()).next_epoch), is_synced=True
    )
    segments = []
    for epoch in range(log.first_live_epoch, log.next_epoch):
        segment = (await follower.current(Epoch(epoch)))[1]
        if segment is not None:
            segments.append(segment)
    return log, segments


def spell_segment(segment: Segment, log: LogNode) -> dict[str, Any]:
    """A segment as the API shows it; None where an unclosed segment does not know yet."""
    totals = segment.totals
    start_seq_num = segment.start_seq_num
    if segment.epoch == log.last_clean_epoch + 1:
        # Every earlier one is closed, so its first record has the number of what they hold.
        start_seq_num = log.totals.record_count
    completed_ms = segment.completed_unix_ms
    active = min_active_dlsn(segment, log)
    return {
        "epoch": segment.epoch,
        "ledger_id": str(ledger_of(segment.log_id, segment.epoch)),
        "state": segment.state.value,
        "status": status_of(segment, log).value,
        "min_active_dlsn": None if active is None else str(active),
        "first_entry": 0,
        "last_entry": segment.last_entry,
        "lost": [list(lost) for lost in segment.lost],
        "start_seq_num": start_seq_num,
        "records": None if totals is None else totals.record_count,
        "bytes": None if totals is None else totals.length_bytes,
        "created": spell_time(segment.created_unix_ms),
        "completed": None if completed_ms is None else spell_time(completed_ms),
        "ensemble_size": segment.quorum.ensemble_size,
        "write_quorum": segment.quorum.write_quorum,
        "ack_quorum": segment.quorum.ack_quorum,
        "fragments": [
            {
                "first_entry": fragment.first_entry,
                "ensemble": [_spell_member(member) for member in fragment.ensemble],
            }
            for fragment in segment.fragments
        ],
    }


async def _fill(
    backend: Backend,
    follower: LogFollower,
    start: Start,
    wanted: ReadRequest,
    pick: RecordPick | BatchPick,
) -> Tail | None:
    position = (start.epoch, start.entry)
    async with LogCursor(
        follower, backend.fetcher, position, choose_limits(start, wanted)
    ) as cursor:
        tail = await fill(cursor, pick, wanted.wait_us, lambda: backend.tails.find(follower))
        touched = cursor.find_touched()
    if touched is not None:
        backend.positions.note(touched)
    return tail


def _next_of(next_seq_num: int | None, tail: Tail | None, start: Start) -> int:
    if next_seq_num is not None:
        return next_seq_num
    return start.seq_num if tail is None else max(tail.seq_num, start.seq_num)


def _spell_member(member: Member) -> dict[str, str]:
    return {"bookie": member.bookie, "incarnation": member.incarnation}


async def _chain(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece


class LineStream(StreamingResponse):
    """A stream of lines that ends when its client goes.

    Whoever made it began to wait for the client's going, and that one `receive` is waited for
    here too: granian takes one that was cancelled for a client that has gone, now and then.
    """

    gone: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the lines; what making them raises breaks the connection."""
        assert self.gone is not None, "`_unless_gone` hands the response on"
        stream = asyncio.create_task(self.stream_response(send))
        try:
            await asyncio.wait({stream, self.gone}, return_when=asyncio.FIRST_COMPLETED)
            if stream.done():
                stream.result()
        finally:
            await _cancel(stream, self.gone)


async def _unless_gone(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """The answer; work for a client that has gone is cancelled, and the waiter freed."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_wait_gone(request))
    response = None
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        response = task.result() if task.done() else Response(status_code=499)  # nobody reads it
        return response
    finally:
        if isinstance(response, LineStream):
            response.gone = gone
        else:
            await _cancel(task, gone)


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _wait_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
