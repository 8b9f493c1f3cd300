"""Parts of appends that a made-up neighbour can judge: conditions, sessions in doubt, advice.

Whole sessions are in `tests/component/test_append_session.py`.
"""

import asyncio
from typing import Any

import pytest
from pyreqwest.exceptions import PyreqwestError
from starlette.requests import Request

from duramen.errors import DuramenError
from duramen.runtime.edge import coded_bodies
from duramen.runtime.http_client import KeptCancellation, OverloadedError, _refusal
from duramen.units import SECOND
from duramen.wire.edge.batch_stream import Lines
from duramen.wire.sequencer_calls import AlreadyStored
from duramen_writeproxy.appends import OrderedBatch
from duramen_writeproxy.intake import stream_route
from duramen_writeproxy.intake.budget import Budget
from duramen_writeproxy.intake.conditions import Conditions, check_token
from duramen_writeproxy.intake.session import AppendSession
from duramen_writeproxy.intake.stream_route import StreamRoute
from tests.pauses import stay

DOUBT = DuramenError("append_uncertain", "nobody answered")


async def prepare(unit: bytes) -> OrderedBatch:
    return OrderedBatch(unit)


class Run:
    """One session: pieces of a body, of which the last comes after the first answer."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.group_sizes: list[int] = []
        self.lines: list[bytes] = []
        self.session = AppendSession(Lines(100), prepare, self.append, Budget().open())

    async def append(self, batches: Any) -> Any:
        self.group_sizes.append(len(batches))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def play(self) -> None:
        async def scenario() -> None:
            answered = asyncio.Event()
            pieces = [(b"1\n2\n", True), (b"3\n", False)]

            async def receive() -> tuple[bytes, bool] | None:
                if len(pieces) == 1:
                    await answered.wait()
                return pieces.pop(0) if pieces else None

            async def send(lines: bytes) -> None:
                self.lines += lines.splitlines()
                answered.set()

            await self.session.run(receive, send)

        asyncio.run(scenario())


def test_nothing_is_appended_behind_a_doubt() -> None:
    run = Run([AlreadyStored(), DOUBT], [AlreadyStored()])
    run.play()
    assert run.group_sizes == [2]
    assert b'"session_ended":true' in run.lines[-1]


def test_a_group_that_failed_in_the_middle_is_in_doubt() -> None:
    run = Run(ValueError("a mistake"), [AlreadyStored()])
    run.play()
    assert run.group_sizes == [2]
    assert all(b'"uncertain":true' in line for line in run.lines[:2])


def test_a_session_gives_back_what_it_held() -> None:
    run = Run([AlreadyStored()] * 2, [AlreadyStored()])
    run.play()
    assert run.group_sizes == [2, 1]
    assert run.session.statistics() == {"batches": 0, "batch_bytes": 0, "partial_bytes": 0}


def test_so_many_sessions_are_open_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_route, "SESSION_COUNT_MAX", 0)
    scope = {
        "type": "http", "method": "POST", "path": "/", "query_string": b"",
        "headers": [(b"content-type", b"application/x-ndjson")],
        "path_params": {"ns": "ns", "log": "log"},
    }  # fmt: skip
    nobody: Any = None
    route = StreamRoute(nobody, nobody, nobody, nobody, Budget())
    with pytest.raises(DuramenError) as raised:
        asyncio.run(route.on_stream(Request(scope)))
    assert raised.value.code == "overloaded"


def test_each_condition_counts_alone_and_tokens_are_counted_in_bytes() -> None:
    assert Conditions(fencing_token="mine").options.fencing_token == "mine"
    assert Conditions(match_seq_num=0).options.match_seq_num == 0
    with pytest.raises(DuramenError):
        check_token("ü" * 64, "token")


def test_no_peer_is_left_alone_for_longer_than_a_minute() -> None:
    class Answer:
        status = 503

        def get_header(self, _: str) -> str:
            return str(10**9)

    answer: Any = Answer()
    refusal = _refusal(answer, "http://peer")
    assert isinstance(refusal, OverloadedError) and refusal.retry_after_us == 60 * SECOND


def test_a_cancellation_is_kept_whatever_the_library_makes_of_it() -> None:
    async def scenario() -> None:
        async def work() -> None:
            with KeptCancellation():
                try:
                    await stay()
                except asyncio.CancelledError:
                    raise PyreqwestError("closed") from None

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()

    asyncio.run(scenario())


def test_a_coded_answer_has_no_strong_etag() -> None:
    assert coded_bodies._mark_coded(b"etag", b'"7"') == (b"etag", b'W/"7"')
    assert coded_bodies._mark_coded(b"etag", b'W/"7"') == (b"etag", b'W/"7"')
