"""`:truncate`, `:end`, `:undelete` and `DELETE` of the write proxy, before fake sequencers.

What a sequencer does is in `test_log_life`; here: what is asked of whom, redirects, refusals.
Source: docs/protocol/rest.md "Write proxy", docs/protocol/errors.md.
"""

from __future__ import annotations

import pytest

from duramen.core.log_node import Ending, LogNode
from duramen.errors import BeyondTailError, DuramenError
from duramen.ids import LogId
from duramen.wire.metadata_json import encode_log, encode_node, read_log
from tests.component.writeproxy_world import PATHS, World, run

LOG = "/v1/namespaces/a/logs/l"
HEAD = {"seq_num": 7, "lsn": "e1n3", "dlsn": "e1n3s1"}
TAIL = {"seq_num": 9, "timestamp": "1970-01-01T00:00:00.005Z", "lsn": "e1n5", "dlsn": "e1n5s0"}


@pytest.mark.parametrize(
    ("method", "path", "body", "message", "answer"),
    [
        ("POST", LOG + ":truncate", b'{"to":"seq:7"}',
         {"op": "truncate", "log_id": "5", "to": "seq:7"},
         {"head": HEAD, "tail": TAIL, "changed": True}),
        ("POST", LOG + ":truncate", b'{"to":7}',
         {"op": "truncate", "log_id": "5", "to": "7"},
         {"head": HEAD, "tail": TAIL, "changed": False}),
        ("POST", LOG + ":end", None, {"op": "end", "log_id": "5"},
         {"log_id": "5", "ended": True, "tail": TAIL}),
        ("DELETE", LOG, None, {"op": "delete", "log_id": "5"},
         {"log_id": "5", "undelete_until": "1970-01-01T01:00:00.000Z"}),
    ],
)  # fmt: skip
def test_the_owner_is_asked_and_answers(
    method: str, path: str, body: bytes | None, message: object, answer: dict[str, object]
) -> None:
    async def scenario(world: World) -> None:
        first, second = world.sequencers
        redirect = {"redirect": {"sequencer_id": second.name, "url": second.url}}
        first.control_answers, second.control_answers = [(200, redirect)], [(200, answer)]
        assert await world.call(method, path, body) == (200, answer)
        assert first.controls == second.controls == [message]

    run(scenario, 2)


def test_undelete_goes_by_name() -> None:
    async def scenario(world: World) -> None:
        world.first.control_answers = [(200, {"log_id": "4", "config": {}})]
        status, answer = await world.call("POST", "/v1/namespaces/a/logs/gone:undelete", b"{}")
        assert (status, answer["log_id"], answer["name"]) == (200, "4", "gone")
        assert world.first.controls == [{"op": "undelete", "namespace": "a", "log": "gone"}]

    run(scenario)


@pytest.mark.parametrize(
    ("path", "body", "code", "field"),
    [
        (LOG + ":truncate", b"{}", "invalid_position", "to"),
        (LOG + ":truncate", b'{"to":true}', "invalid_position", "to"),
        (LOG + ":truncate", b'{"to":"yesterday"}', "invalid_position", "to"),
        (LOG + ":truncate", b'{"to":"head","now":1}', "unknown_field", "now"),
        (LOG + ":end", b'{"really":1}', "unknown_field", "really"),
        ("/v1/namespaces/a/logs/.x:end", None, "invalid_name", "log"),
        ("/v1/namespaces/a/logs/nope:end", None, "log_not_found", "log"),
    ],
)
def test_nonsense_reaches_no_sequencer(
    path: str, body: bytes | None, code: str, field: str
) -> None:
    async def scenario(world: World) -> None:
        _, problem = await world.call("POST", path, body)
        assert (problem["code"], problem["field"]) == (code, field)
        assert world.first.controls == []

    run(scenario)


def test_a_refusal_keeps_its_tail() -> None:
    async def scenario(world: World) -> None:
        beyond = BeyondTailError("seq:99 is beyond the tail seq:9", TAIL, field="to").problem()
        world.first.control_answers = [(416, beyond)]
        assert await world.call("POST", LOG + ":truncate", b'{"to":"seq:99"}') == (416, beyond)

    run(scenario)


def test_a_log_that_is_taken_over_is_asked_again_until_it_answers() -> None:
    async def scenario(world: World) -> None:
        busy = DuramenError("log_unavailable", "is being taken over").problem()
        done = {"log_id": "5", "ended": True, "tail": TAIL}
        world.first.control_answers = [(503, busy), (503, busy), (200, done)]
        assert await world.call("POST", LOG + ":end") == (200, done)

    run(scenario)


def test_sequencers_that_point_at_one_another_are_given_up() -> None:
    async def scenario(world: World) -> None:
        first, second = world.sequencers
        done = {"log_id": "5", "ended": True, "tail": TAIL}
        for one, other in ((first, second), (second, first)):
            redirect = {"redirect": {"sequencer_id": other.name, "url": other.url}}
            one.control_answers = [(200, redirect)] * 5 + [(200, done)]
        assert await world.call("POST", LOG + ":end") == (200, done)
        assert len(first.controls) + len(second.controls) <= 12

    run(scenario, 2)


def test_a_deleted_log_is_not_listed_and_not_shown() -> None:
    async def scenario(world: World) -> None:
        path, name = PATHS.log(LogId(5)), PATHS.name("a", "l")
        stored = await world.setup.get(path)
        assert stored is not None
        log: LogNode = read_log(stored.data).with_ending(Ending.DELETE, unix_ms=1, nonce="d")
        await world.setup.set(path, encode_log(log), version=0)
        deleted = encode_node({"log_id": "5", "deleted": True})
        await world.setup.set(name, deleted, version=0)
        status, problem = await world.call("GET", LOG)
        assert (status, problem["code"]) == (409, "log_deleted")
        for query in ("", "?limit=1"):
            _, listed = await world.call("GET", f"/v1/namespaces/a/logs{query}")
            assert [log["name"] for log in listed["logs"]] == ["m"]
            assert listed["has_more"] is False

    run(scenario)
