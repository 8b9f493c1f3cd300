"""A client that appends by sessions: batches go up while their answers come down.

The route is the production one (`StreamRoute`, with `AppendSession`, the cutting of its body, the
budget, and `Appender.append_in_order`), spoken to by ASGI messages; played are the server below it
and the names of logs. A session has one log; it ends early behind an uncertain batch, and the
client ends it now and then. What has no line when the answer has ended was not appended.

Made by `run`. Documented in docs/testing.md.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import MutableMapping
from typing import Any, Final, cast

import orjson
from fastapi import Request

from duramen.ids import LogId, parse_dlsn
from duramen.wire.edge.batch_stream import MEDIA_TYPE, StreamedBatch, pack_streamed
from duramen_writeproxy.intake.budget import Budget
from duramen_writeproxy.intake.encoder import Encoder
from duramen_writeproxy.intake.stream_route import StreamRoute
from tests.sim.frames import is_under_way
from tests.sim.workload import ClientNode, Made
from tests.sim.write_proxy import DEADLINE_S, key_of_log

_OPEN_MAX: Final = 48
"""Batches of a session without an answer: a client does not run far ahead of a log that stands."""

_ENDS_RATIO: Final = 0.02
"""So often the client ends a session behind what it sends."""

_HEADERS: Final = (
    (b"content-type", MEDIA_TYPE.encode()),
    (b"duramen-timeout", f"{DEADLINE_S:.0f}s".encode()),
)


class SessionClient(ClientNode):
    """A client with one session for each log, as long as that lasts."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        names = cast(Any, _Names())
        self.route = StreamRoute(names, names, self.proxy.appender, Encoder(), Budget())
        self._sessions: dict[LogId, _Session] = {}
        self._session_count = 0

    def send(self, log_id: LogId, appends: list[Made]) -> None:
        """Send them up in the log's session."""
        session = self._sessions.get(log_id)
        if session is None or session.is_ended:
            self._session_count += 1
            session = self._sessions[log_id] = _Session(self, log_id, self._session_count)
            self.loop.run_task(session.run())
        session.send(appends, is_last=self.world.chance(_ENDS_RATIO))

    def has_room(self, log_id: LogId) -> bool:
        """Whether the log's session is not far behind."""
        session = self._sessions.get(log_id)
        return session is None or session.is_ended or session.open_count < _OPEN_MAX

    def finish(self) -> None:
        """Send nothing any more, in no session."""
        super().finish()
        for session in self._sessions.values():
            session.send([], is_last=True)


class _Session:
    """One request to the route: its body, and what its answer says."""

    def __init__(self, client: SessionClient, log_id: LogId, number: int) -> None:
        self.is_ended = False
        """Nothing more is sent in it."""
        self._client = client
        self._log_id = log_id
        self._number = number
        self._body: list[bytes] = []
        self._open: deque[Made] = deque()
        self._is_cut_short = False
        self._has_news = asyncio.Event()

    @property
    def open_count(self) -> int:
        """Batches without an answer."""
        return len(self._open)

    def send(self, appends: list[Made], *, is_last: bool) -> None:
        """Send batches up; with the last ones the body ends."""
        for made in appends:
            self._body.append(pack_streamed(StreamedBatch(made.batch)))
            self._open.append(made)
            self._client.history.on_sent_in_order(
                self._client.index, self._log_id, made.append_id, self._number
            )
        self.is_ended = self.is_ended or is_last
        self._has_news.set()

    async def run(self) -> None:
        """Serve the request as a server does."""
        namespace, _, log = key_of_log(self._log_id).partition("/")
        scope: dict[str, Any] = {
            "type": "http", "headers": _HEADERS, "query_string": b"",
            "path_params": {"ns": namespace, "log": log},
        }  # fmt: skip
        answer = await self._client.route.on_stream(Request(scope))
        await answer(scope, self._receive, self._take)
        counts = self._client.world.counts
        counts["session cut short" if self._is_cut_short else "session of appends ended"] += 1
        assert self._is_cut_short or not self._open, f"no answers to {self._open}"
        for made in self._open:
            self._client.end(self._log_id, made.append_id, is_uncertain=False)
        self._open.clear()

    async def _receive(self) -> dict[str, Any]:
        """What of the body has come; what is sent behind an early end is dropped by the route."""
        while not self._body and not self.is_ended:
            self._has_news.clear()
            await self._has_news.wait()
        body, self._body = b"".join(self._body), []
        return {"type": "http.request", "body": body, "more_body": not self.is_ended}

    async def _take(self, message: MutableMapping[str, Any]) -> None:
        for line in message.get("body", b"").split(b"\n"):
            if line.strip():
                self._take_line(orjson.loads(line))

    def _take_line(self, answer: dict[str, Any]) -> None:
        assert not self._is_cut_short, answer
        client = self._client
        if answer.get("session_ended"):
            client.world.counts[f"session of appends: {answer['code']}"] += 1
            self._is_cut_short = self.is_ended = True
            self._has_news.set()
            return
        made = self._open.popleft()
        if "code" in answer:
            client.end(
                self._log_id, made.append_id, is_uncertain=answer["uncertain"],
                is_under_way=is_under_way(answer),
            )  # fmt: skip
            return
        start, end = answer["start"], answer["end"]
        assert "duplicate" not in answer, answer
        assert end is None or end["seq_num"] - start["seq_num"] == made.record_count, answer
        client.acknowledge(
            self._log_id, made.append_id, parse_dlsn(start["dlsn"]), start["seq_num"]
        )


class _Names:
    """As much of `NameCache` and `AutoCreator` as a session asks for: every log is there."""

    async def find(self, _namespace: str, log: str, _call: object) -> LogId:
        return LogId(int(log.removeprefix("log-")) + 1)

    def doubt(self, namespace: str, log: str) -> None:
        raise AssertionError(f"{namespace}/{log} is always there")
