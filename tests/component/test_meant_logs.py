"""Changes that name the id of the log that they mean: a name may have got another log meanwhile.

A real write proxy before scripted sequencers, whose server of the metadata store lags, and whose
watches say nothing: what it remembers of the name is old. What a sequencer does with an id is in
`test_log_life`. Source: docs/protocol/rest.md "The log that is meant".
"""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from duramen.config import parse_log_config
from duramen.errors import DuramenError
from duramen.runtime.stores.metadata_store import Stored, Watch
from duramen.wire.metadata_json import encode_node
from tests.component.writeproxy_world import PATHS, World, run

LOG: Final = "/v1/namespaces/a/logs/l"
NAME: Final = PATHS.name("a", "l")
TAIL: Final = {
    "seq_num": 9, "timestamp": "1970-01-01T00:00:00.005Z", "lsn": "e1n5", "dlsn": "e1n5s0"
}  # fmt: skip
HEAD: Final = {"seq_num": 7, "lsn": "e1n3", "dlsn": "e1n3s1"}
CHANGED: Final = {"config": parse_log_config({}).to_json(), "config_version": 2, "changed": True}

CALLS: Final[list[tuple[str, str, bytes | None, dict[str, Any]]]] = [
    ("PATCH", LOG, b'{"commit":"control"}', {"log_id": "7", **CHANGED}),
    ("DELETE", LOG, None, {"log_id": "7", "undelete_until": "1970-01-01T01:00:00.000Z"}),
    ("POST", LOG + ":truncate", b'{"to":"tail"}', {"head": HEAD, "tail": TAIL, "changed": True}),
    ("POST", LOG + ":end", None, {"log_id": "7", "ended": True, "tail": TAIL}),
    ("POST", LOG + ":fence", b'{"token":"t"}', {"tail": TAIL}),
    ("POST", LOG + ":roll", None, {"epoch": 3}),
]
"""Method, path, body; and what a sequencer answers."""


class LateName:
    """The proxy knows `l` as log 5, which is log 7 by now; only a sync shows that."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._get, self._sync = world.store.get, world.store.sync
        self._old: Stored | None = None
        self._seen: Stored | None = None
        world.store.get, world.store.sync = self.get, self.sync  # type: ignore[method-assign]

    async def get(self, path: str, watch: Watch | None = None) -> Stored | None:
        if path != NAME:
            return await self._get(path, watch)
        return self._seen or await self._get(path)

    async def sync(self, path: str) -> None:
        await self._sync(path)
        self._seen = None

    async def give_away(self) -> None:
        self._old = await self._world.setup.get(NAME)
        assert (await self._world.append())[0] == 200
        data = encode_node({"log_id": "7", "replaces": "5"})
        await self._world.setup.set(NAME, data, version=0)

    def fall_behind(self) -> None:
        """Reads show the name as it was, until the next sync."""
        self._seen = self._old


def test_a_change_that_comes_late_does_not_meet_the_log_that_has_the_name_now() -> None:
    async def scenario(world: World) -> None:
        name = LateName(world)
        await name.give_away()
        for method, path, body, _ in CALLS:
            name.fall_behind()
            status, problem = await world.call(method, f"{path}?log_id=5", body)
            told = (status, problem["code"], problem["field"])
            assert told == (412, "condition_failed", "log_id"), path
            assert (problem["retryable"], problem["uncertain"]) == (False, False)
            assert "a/l is log 7, not log 5: nothing was changed" in problem["detail"]
        assert world.first.controls == []

    run(scenario)


def test_a_change_goes_to_the_log_that_is_meant_whatever_is_remembered() -> None:
    async def scenario(world: World) -> None:
        name = LateName(world)
        await name.give_away()
        world.first.control_answers = [(200, answer) for *_, answer in CALLS]
        for method, path, body, _ in CALLS:
            name.fall_behind()
            status, _ = await world.call(method, f"{path}?log_id=7", body)
            assert status in {200, 202}, path
        assert [message["log_id"] for message in world.first.controls] == ["7"] * len(CALLS)

    run(scenario)


def test_a_name_that_is_given_away_after_the_look_does_not_take_the_change_with_it() -> None:
    """The id goes with each try of the call, and the node of a deleted log refuses it."""

    async def scenario(world: World) -> None:
        first = world.first

        async def give_away(_path: str, _body: bytes) -> tuple[int, str, bytes]:
            first.on_control = None
            await world.setup.set(NAME, encode_node({"log_id": "7"}), version=0)
            busy = DuramenError("log_unavailable", "is being taken over").problem()
            return 503, "application/json", json.dumps(busy).encode()

        first.on_control = give_away
        gone = DuramenError("log_deleted", "a/l was deleted", field="log").problem()
        first.control_answers = [(409, gone)]
        assert await world.call("DELETE", f"{LOG}?log_id=5") == (409, gone)
        assert [message["log_id"] for message in first.controls] == ["5", "5"]

    run(scenario)


def test_what_is_no_id_is_refused_with_the_field() -> None:
    async def scenario(world: World) -> None:
        for text in ("", "0", "05", "+5", "5.0", "%D9%A5", "x", "2147483648", "5&log_id=5"):
            for method, path, body, _ in CALLS:
                status, problem = await world.call(method, f"{path}?log_id={text}", body)
                told = (status, problem["code"], problem["field"])
                assert told == (400, "invalid_argument", "log_id"), (path, text)
        assert world.first.controls == []

    run(scenario)


def test_a_name_without_a_log_and_one_that_cannot_be_read_are_told_as_ever() -> None:
    async def scenario(world: World) -> None:
        for namespace, field in (("a", "log"), ("b", "namespace")):
            path = f"/v1/namespaces/{namespace}/logs/none?log_id=5"
            status, problem = await world.call("DELETE", path)
            assert (status, problem["field"]) == (404, field)
        assert (await world.append())[0] == 200
        world.store.disconnect()
        status, problem = await world.call("DELETE", f"{LOG}?log_id=5")
        assert (status, problem["code"]) == (503, "metadata_unavailable"), "a cache proves nothing"
        assert world.first.controls == []

    run(scenario)


@pytest.mark.parametrize(
    ("method", "path"), [("POST", LOG + ":undelete"), ("PUT", LOG), ("GET", LOG)]
)
def test_a_call_that_compares_no_id_refuses_it(method: str, path: str) -> None:
    """As proxies of before do in every call: nobody is left to believe that it was compared."""

    async def scenario(world: World) -> None:
        status, problem = await world.call(method, f"{path}?log_id=5")
        assert (status, problem["code"], problem["field"]) == (400, "unknown_field", "log_id")
        assert world.first.controls == []

    run(scenario)
