"""What a write proxy says of a control call that nobody answered, and what is too many records.

The whole calls are in `tests/component/test_log_routes.py` and `test_fence_route.py`.
"""

import asyncio
import json
from typing import Any

import pytest

from duramen.errors import DuramenError
from duramen.ids import LogId
from duramen.runtime.http_client import NoAnswerError, UnreachableError
from duramen.runtime.stores.metadata_store import Stored
from duramen.wire.metadata_json import Paths, encode_node
from duramen_writeproxy import bodies
from duramen_writeproxy.bodies import JSON, encode_body
from duramen_writeproxy.logs.creation import AutoCreator, Repetition, _Outcome
from duramen_writeproxy.routing import Target

TARGET = Target("s1", "http://s1")


def test_a_call_that_was_not_answered_is_uncertain_and_one_not_sent_is_not() -> None:
    told = _Outcome(Repetition.TOLD)
    told.note(UnreachableError("refused"), TARGET)
    assert told.error().code == "log_unavailable" and not told.error().uncertain
    told.note(NoAnswerError("silence"), TARGET)
    assert told.error().code == "append_uncertain"
    told.note(UnreachableError("refused"), TARGET)
    assert told.error().code == "append_uncertain", "the first one may still happen"
    free = _Outcome(Repetition.FREE)
    free.note(NoAnswerError("silence"), TARGET)
    assert free.error().code == "log_unavailable"
    with pytest.raises(DuramenError) as raised:
        _Outcome(Repetition.NEVER).note(NoAnswerError("silence"), TARGET)
    assert raised.value.code == "append_uncertain"


def test_a_batch_has_as_many_records_as_are_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BATCH_RECORD_COUNT_MAX", 3)

    def encode(count: int) -> None:
        document = {"records": [{"body": "x"}] * count}
        encode_body(JSON, json.dumps(document).encode(), 1_000)

    encode(3)
    with pytest.raises(DuramenError) as raised:
        encode(4)
    assert raised.value.code == "too_many_records"


def test_a_creation_that_failed_is_tried_again() -> None:
    class Names:
        is_there = False

        async def find(self, *_: str) -> LogId:
            if not self.is_there:
                raise DuramenError("log_not_found", "not there")
            return LogId(7)

    class Creator:
        call_count = 0

        async def create_log(self, *_: object) -> dict[str, object]:
            self.call_count += 1
            if self.call_count == 1:
                raise DuramenError("log_unavailable", "no sequencer")
            names.is_there = True
            return {"created": True}

    class Store:
        async def get(self, _: str) -> Stored:
            return Stored(encode_node({"config": {"auto_create": True}}), 0, 0, 0)

    names, creator = Names(), Creator()

    async def scenario() -> None:
        made: list[Any] = [names, creator, Store()]
        auto = AutoCreator(made[0], made[1], made[2], Paths("test"))
        with pytest.raises(DuramenError):
            await auto.find("ns", "log", None)
        assert await auto.find("ns", "log", None) == 7
        assert auto.statistics() == {"created": 1, "creating": 0}

    asyncio.run(scenario())
