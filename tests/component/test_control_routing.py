"""Whom the write proxy asks to carry a control call out, what it tells them, and what it answers.

The sequencers are scripted (`writeproxy_world`), or real ones (`Control`) whose answers get lost.
What an owner's successor does is in `test_dead_owners`.
Source: duramen_writeproxy.logs.creation, docs/protocol/wire.md "`POST /s/control`".
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from duramen.errors import DuramenError
from duramen.ids import LogId, SequencerId
from duramen.runtime.http_server import Answer
from duramen.wire.metadata_json import encode_log, read_log
from duramen.wire.sequencer_calls import Append, AppendResult, Redirect, encode_redirect
from duramen_sequencer.control import Control
from tests.component.writeproxy_world import PATHS, FakeSequencer, World, owner, run

LOG = "/v1/namespaces/a/logs/l"
FIRST_LOG = LogId(101)
"""The first log that is created."""

HEAD = {"seq_num": 1, "lsn": "e1n0", "dlsn": "e1n0s1"}
TAIL = {**HEAD, "timestamp": None}
CONFIG: dict[str, Any] = {"config": {}}

OF_OWNERS = [
    ("POST", LOG + ":truncate", b'{"to":"seq:7"}', {"head": HEAD, "tail": TAIL, "changed": True}),
    ("POST", LOG + ":end", None, {"log_id": "5", "ended": True, "tail": TAIL}),
    ("DELETE", LOG, None, {"log_id": "5", "undelete_until": "then"}),
    ("POST", LOG + ":fence", b'{"token":"t"}', {"tail": TAIL}),
    ("POST", LOG + ":fence", b'{"token":"t","expected":"s"}', {"tail": TAIL}),
]
"""Calls that only the log's owner carries out, and what it answers."""

OF_ANYBODY = [
    ("POST", LOG + ":roll", None, {"epoch": 3}),
    ("POST", LOG + ":undelete", None, {"log_id": "5", **CONFIG}),
    ("PATCH", LOG, b"{}", {"config_version": 2, "changed": True, **CONFIG}),
    ("PUT", LOG, b"{}", {"created": True, "log_id": "5", **CONFIG}),
    ("PUT", "/v1/namespaces/a", b"{}", {"created": True, **CONFIG}),
    ("PATCH", "/v1/namespaces/a", b"{}", {"changed": True, **CONFIG}),
    ("DELETE", "/v1/namespaces/a", None, {"changed": True}),
]

Reply = Callable[[dict[str, Any]], tuple[int, dict[str, Any]]]
ALL_CALLS = pytest.mark.parametrize(("method", "path", "body", "answer"), [*OF_OWNERS, *OF_ANYBODY])
AWAY = DuramenError("metadata_unavailable", "no session")


def script(sequencer: FakeSequencer, reply: Reply) -> None:
    """Have a sequencer answer each control call, of which it is given all but the nonce."""

    async def on_control(_path: str, _body: bytes) -> Answer:
        status, document = reply(sequencer.controls[-1])
        return status, "application/json", json.dumps(document).encode()

    sequencer.on_control = on_control


# --- Who is asked --------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path", "body", "answer"), OF_OWNERS)
def test_a_dead_owner_is_named_to_whoever_may_succeed_it(
    method: str, path: str, body: bytes | None, answer: dict[str, Any]
) -> None:
    """Its node names it until its session ends: asked alone, the survivor points there."""

    async def scenario(world: World) -> None:
        survivor, dead = world.sequencers
        await dead.stop()
        redirect = encode_redirect(Redirect(SequencerId(dead.name), dead.url))

        def reply(message: dict[str, Any]) -> tuple[int, dict[str, Any]]:
            return 200, answer if dead.name in message.get("tried", ()) else redirect

        script(survivor, reply)
        status, _ = await world.call(method, path, body)
        assert status == 200
        assert [message.get("tried") for message in survivor.controls] == [None, [dead.name]]

    run(scenario, 2)


def test_a_dead_owner_is_named_to_whoever_may_succeed_it_also_by_an_append() -> None:
    async def scenario(world: World) -> None:
        survivor, dead = world.sequencers
        await dead.stop()

        async def decide(append: Append) -> AppendResult | None:
            if dead.name in append.options.tried:
                return await survivor.accept(append)
            return owner(dead)

        survivor.decide = decide
        assert (await world.append())[0] == 200
        assert [row.options.tried for row in survivor.rows] == [(), (dead.name,)]

    run(scenario, 2)


@ALL_CALLS
def test_a_sequencer_that_does_not_reach_zookeeper_is_passed_over(
    method: str, path: str, body: bytes | None, answer: dict[str, Any]
) -> None:
    async def scenario(world: World) -> None:
        # Which of them the hash names depends on the call.
        away: list[FakeSequencer] = []

        def reply_of(sequencer: FakeSequencer) -> Reply:
            def reply(_message: dict[str, Any]) -> tuple[int, dict[str, Any]]:
                if not away:
                    away.append(sequencer)
                return (503, AWAY.problem()) if away == [sequencer] else (200, answer)

            return reply

        for sequencer in world.sequencers:
            script(sequencer, reply_of(sequencer))
        status, _ = await world.call(method, path, body)
        assert status in (200, 201, 202)
        [other] = [sequencer for sequencer in world.sequencers if sequencer not in away]
        assert [message["tried"] for message in other.controls] == [[away[0].name]]

    run(scenario, 2)


@ALL_CALLS
def test_where_none_reaches_zookeeper_each_is_asked_once(
    method: str, path: str, body: bytes | None, answer: dict[str, Any]
) -> None:
    async def scenario(world: World) -> None:
        for sequencer in world.sequencers:
            script(sequencer, lambda _message: (503, AWAY.problem()))
        status, problem = await world.call(method, path, body)
        assert (status, problem["code"]) == (503, "metadata_unavailable"), answer
        assert [len(sequencer.controls) for sequencer in world.sequencers] == [1, 1]

    run(scenario, 2)


# --- What a repetition is told -------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path", "body", "answer"), OF_ANYBODY[2:6])
def test_every_try_of_a_call_has_its_nonce_and_every_call_another(
    method: str, path: str, body: bytes | None, answer: dict[str, Any]
) -> None:
    async def scenario(world: World) -> None:
        busy = DuramenError("log_unavailable", "taken over").problem()
        world.first.control_answers = [(503, busy), (200, answer), (200, answer)]
        for _ in range(2):
            await world.call(method, path, body)
        first, again, other = world.first.nonces
        assert first == again and first and other and first != other

    run(scenario)


class Lossy:
    """Sequencers of one store; the answer to what one of them does first gets lost."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._control = Control(world.setup, PATHS, {})
        self.is_losing = True
        for sequencer in world.sequencers:
            sequencer.on_control = self._on_control

    async def _on_control(self, _path: str, body: bytes) -> Answer:
        try:
            status, document = 200, await self._control.handle(body)
        except DuramenError as error:
            status, document = error.kind.status, error.problem()
        if self.is_losing:
            self.is_losing = False
            await self._claim()
            status, document = 503, AWAY.problem()
        return status, "application/json", json.dumps(document).encode()

    async def _claim(self) -> None:
        """A sequencer writes over the nonce of the log's node, as for its first append."""
        path = PATHS.log(FIRST_LOG)
        stored = await self._world.setup.get(path)
        if stored is not None:
            log = read_log(stored.data).with_new_epoch("claim")
            await self._world.setup.set(path, encode_log(log), version=stored.version)


@pytest.mark.parametrize("path", ["/v1/namespaces/new", "/v1/namespaces/a/logs/new"])
def test_what_a_call_created_it_is_told_to_have_created_whichever_try_it_was(path: str) -> None:
    async def scenario(world: World) -> None:
        lossy = Lossy(world)
        assert (await world.call("PUT", path))[0] == 201
        assert sum(len(sequencer.controls) for sequencer in world.sequencers) == 2
        # Another call did not, however often it is repeated.
        lossy.is_losing = True
        assert (await world.call("PUT", path))[0] == 200

    run_with_cluster(scenario)


def test_what_a_call_changed_in_a_namespace_it_is_told_to_have_changed() -> None:
    async def scenario(world: World) -> None:
        lossy = Lossy(world)
        for expected in (True, False):
            lossy.is_losing = True
            answer = await world.call("PATCH", "/v1/namespaces/a", b'{"auto_create":true}')
            assert answer[0] == 200 and answer[1]["changed"] is expected

    run_with_cluster(scenario)


def run_with_cluster(scenario: Callable[[World], Awaitable[None]]) -> None:
    """Run it between two sequencers, with the counter of log ids."""

    async def play(world: World) -> None:
        await world.put(PATHS.cluster, {"last_log_id": FIRST_LOG - 1})
        await scenario(world)

    run(play, 2)
