"""The write proxy's part in ownership: what it tells the next sequencer, and what it creates.

The neighbours are `writeproxy_world`'s: scripted sequencers on the real wire. Creation races over a
real `Control` are below. Source: docs/protocol/ownership.md "Whose is a log".
"""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI

from duramen.errors import DuramenError
from duramen.ids import Dlsn, EntryId, Epoch
from duramen.runtime.admin import add_problem_handler
from duramen.runtime.http_client import NoAnswerError
from duramen.runtime.stores.memory_store import MemoryStore
from duramen.wire.metadata_json import encode_node
from duramen.wire.sequencer_calls import NO_OPTIONS, Append, AppendedEarly, AppendResult
from duramen_sequencer.control import Control
from duramen_writeproxy.cluster.routes import add_cluster_routes
from duramen_writeproxy.cluster.sequencers import Cluster
from tests.component.writeproxy_world import (
    PATHS,
    RECORDS,
    FakeSequencer,
    World,
    always,
    owner,
    run,
)
from tests.waiting import wait_for

NEW = RECORDS.replace("/l/", "/new/")


def tried_of(sequencer: FakeSequencer) -> list[tuple[str, ...]]:
    return [row.options.tried for row in sequencer.rows]


# --- Whom to ask, and what to tell ---------------------------------------------------------------


def test_the_next_sequencer_is_told_of_one_that_is_gone() -> None:
    async def scenario(world: World) -> None:
        first, second, _ = world.sequencers
        await first.stop()
        assert (await world.append())[0] == 200
        assert (await world.append())[0] == 200
        # The second append goes straight to who answered the first.
        assert tried_of(second) == [(first.name,), ()]

    run(scenario, 3)


def test_everybody_who_sent_the_append_on_is_told_to_the_next() -> None:
    async def scenario(world: World) -> None:
        first, second, third = world.sequencers
        first.decide, second.decide = always(owner(second)), always(owner(third))
        assert (await world.append())[0] == 200
        assert tried_of(first) == [()]
        assert tried_of(second) == [(first.name,)]
        assert tried_of(third) == [(first.name, second.name)]
        assert world.first.rows[0].options is NO_OPTIONS or not world.first.rows[0].options.tried

    run(scenario, 3)


def test_sequencers_learn_whence_an_append_came_where_they_are_in_several_regions() -> None:
    async def scenario(world: World) -> None:
        first, second = world.sequencers
        assert (await world.append())[0] == 200
        for sequencer, region in ((first, "r"), (second, "other")):
            path = f"{PATHS.sequencers}/{sequencer.name}"
            fields = {"data_url": sequencer.url, "region": region}
            stored = await world.setup.get(path)
            assert stored is not None
            await world.setup.set(path, encode_node(fields), version=stored.version)
        await wait_for(lambda: world.proxy._region is not None)
        assert (await world.append())[0] == 200
        assert [row.options.region for row in first.rows] == [None, "r"]

    run(scenario, 2)


def test_a_sequencer_that_stops_is_left_for_the_next_at_once() -> None:
    async def scenario(world: World) -> None:
        first, second = world.sequencers
        first.decide = always(DuramenError("server_draining", "going"))
        assert (await world.append())[0] == 200
        assert tried_of(second) == [(first.name,)]
        assert world.proxy.statistics()["appends"]["pauses"] == 0

    run(scenario, 2)


def test_a_sequencer_without_the_metadata_store_is_left_for_the_next_at_once() -> None:
    async def scenario(world: World) -> None:
        first, second = world.sequencers
        first.decide = always(DuramenError("metadata_unavailable", "no session"))
        assert (await world.append())[0] == 200
        assert tried_of(second) == [(first.name,)]
        assert world.proxy.statistics()["appends"]["pauses"] == 0

    run(scenario, 2)


def test_an_append_fails_at_once_where_no_sequencer_reaches_the_metadata_store() -> None:
    async def scenario(world: World) -> None:
        for sequencer in world.sequencers:
            sequencer.decide = always(DuramenError("metadata_unavailable", "no session"))
        status, problem = await world.append()
        assert (status, problem["code"]) == (503, "metadata_unavailable")
        assert not problem["uncertain"]
        assert [len(sequencer.rows) for sequencer in world.sequencers] == [1, 1]

    run(scenario, 2)


def test_an_early_append_has_a_place_and_no_number_yet() -> None:
    place = Dlsn(Epoch(4), EntryId(9), 0)

    async def scenario(world: World) -> None:
        world.first.decide = always(AppendedEarly(place, 1, 5))
        status, answer = await world.append()
        assert status == 200 and (answer["end"], answer["tail"]) == (None, None)
        start = answer["start"]
        assert start["seq_num"] is None and start["dlsn"] == str(place)
        assert start["lsn"] and start["timestamp"]

    run(scenario, 1)


def test_who_takes_a_log_over_is_asked_again_and_then_everybody() -> None:
    async def scenario(world: World) -> None:
        first, second = world.sequencers
        busy = DuramenError("log_unavailable", "it is there")
        answers: list[AppendResult] = [busy, busy]

        async def decide(append: Append) -> AppendResult:
            return answers.pop() if answers else await second.accept(append)

        await first.stop()
        second.decide = decide
        assert (await world.append())[0] == 200
        # Twice with what was tried; then the first is looked for again, in vain.
        assert tried_of(second) == [(first.name,)] * 3
        assert world.proxy.statistics()["appends"]["unreachable"] == 2

    run(scenario, 2)


def test_an_owner_that_left_the_roster_is_not_asked_any_more() -> None:
    async def scenario(world: World) -> None:
        first, second = world.sequencers
        assert (await world.append())[0] == 200
        path = f"{PATHS.sequencers}/{first.name}"
        stored = await world.setup.get(path)
        assert stored is not None
        await world.setup.delete(path, version=stored.version)
        await wait_for(lambda: world.proxy.statistics()["routes"]["sequencers"] == 1)
        assert (await world.append())[0] == 200
        assert (len(first.rows), len(second.rows)) == (1, 1)

    run(scenario, 2)


def test_weights_in_the_roster_decide_whom_a_proxy_asks_first() -> None:
    async def scenario(world: World) -> None:
        first, second = world.sequencers
        fields = {"data_url": first.url, "weight": 0}
        await world.setup.set(f"{PATHS.sequencers}/{first.name}", encode_node(fields), version=0)
        await wait_for(lambda: not world.proxy.statistics()["routes"]["ranks"])
        async with asyncio.timeout(30):
            while not second.rows:
                assert (await world.append())[0] == 200
        assert second.rows[-1].options.tried == ()

    run(scenario, 2)


# --- Logs that an append creates -----------------------------------------------------------------


async def allow(world: World, value: bool = True) -> None:
    await world.setup.set(
        PATHS.namespace("a"), encode_node({"config": {"auto_create": value}}), version=0
    )


def test_an_append_creates_its_log_where_the_namespace_allows_it() -> None:
    async def scenario(world: World) -> None:
        status, problem = await world.append(path=NEW)
        assert (status, problem["code"]) == (404, "log_not_found")
        await allow(world)
        controls = [Control(MemoryStore(world.tree), PATHS, {})]
        await serve_control(world, controls)
        answers = await asyncio.gather(*(world.append(path=NEW) for _ in range(8)))
        assert {status for status, _ in answers} == {200}
        assert world.proxy.statistics()["auto_creation"] == {"created": 1, "creating": 0}
        assert len({row.log_id for row in world.rows}) == 1
        status, _ = await world.append(path="/v1/namespaces/a/logs/.x/records")
        assert status == 400, "names that are not legal are not created"

    run(scenario, 2)


def test_many_creations_of_one_log_at_once_make_one() -> None:
    """Several proxies at several sequencers: one name, one log, and everybody learns its id."""

    async def scenario(world: World) -> None:
        controls = [Control(MemoryStore(world.tree), PATHS, {}) for _ in range(4)]
        for control in controls:
            await control._store.start()
        await world.put(PATHS.cluster, {"uuid": "0" * 32, "format": 1, "last_log_id": 100})
        body = json.dumps(
            {"op": "create_log", "namespace": "a", "log": "new", "config": {}}
        ).encode()
        made = await asyncio.gather(*(controls[i % 4].handle(body) for i in range(16)))
        assert len({answer["log_id"] for answer in made}) == 1
        assert [answer["created"] for answer in made].count(True) == 1

    run(scenario)


async def serve_control(world: World, controls: list[Control]) -> None:
    """Let the fake sequencers create for real."""
    await world.put(PATHS.cluster, {"uuid": "0" * 32, "format": 1, "last_log_id": 100})
    for control in controls:
        await control._store.start()

    async def on_call(_path: str, body: bytes) -> tuple[int, str, bytes]:
        try:
            answer = await controls[0].handle(body)
        except DuramenError as error:
            return (
                error.kind.status,
                "application/problem+json",
                json.dumps(error.problem()).encode(),
            )
        return 200, "application/json", json.dumps(answer).encode()

    for sequencer in world.sequencers:
        sequencer.on_control = on_call


# --- The cluster through one address -------------------------------------------------------------


Answers = dict[str, dict[str, tuple[int, dict[str, Any]]]]


class Peers:
    """Sequencers' control calls, answered as a test says; others do not answer."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.calls: list[tuple[str, dict[str, Any]]] = []

    async def request_json(
        self, _method: str, url: str, body: bytes, _timeout_us: int
    ) -> tuple[int, bytes]:
        name, request = url.split("/")[2], json.loads(body)
        self.calls.append((name, request))
        if request["op"] not in self.answers.get(name, {}):
            raise NoAnswerError(name)
        status, document = self.answers[name][request["op"]]
        return status, json.dumps(document).encode()


class Names:
    async def find(self, _namespace: str, _log: str) -> int:
        return 7


ROSTER = SimpleNamespace(
    nodes={"s1": {"data_url": "http://s1"}, "s2": {"data_url": "http://s2", "weight": 1}}
)


def cluster_of(answers: Answers) -> tuple[Cluster, Peers]:
    peers = Peers(answers)
    return Cluster(cast(Any, Names()), cast(Any, ROSTER), cast(Any, peers)), peers


def log_row(number: int, rate: float, state: str = "active") -> dict[str, Any]:
    return {
        "log_id": str(number), "name": f"a/l{number}", "state": state,
        "appends_per_s": rate, "bytes_per_s": 0,
    }  # fmt: skip


def test_stories_of_all_sequencers_are_told_in_order_and_the_silent_are_named() -> None:
    async def scenario() -> None:
        events = [{"unix_ms": 5, "event": "closed"}]
        cluster, _ = cluster_of({"s2": {"story": (200, {"events": events})}})
        answer = json.loads((await cluster.story("a", "l")).encode())
        assert answer["events"] == [{"sequencer": "s2", "unix_ms": 5, "event": "closed"}]
        assert answer["silent"] == ["s1"] and answer["log_id"] == "7"

    asyncio.run(scenario())


def test_a_hand_over_finds_the_owner_and_its_refusal_is_passed_on() -> None:
    async def scenario() -> None:
        not_mine = DuramenError("log_unavailable", "not mine").problem()
        done = {"from": "s2", "to": "s1", "epoch": 3, "closed": True}
        answers: Answers = {"s1": {"hand_over": (503, not_mine)}, "s2": {"hand_over": (200, done)}}
        cluster, peers = cluster_of(answers)
        moved = await cluster.hand_over("a", "l", "s1")
        assert json.loads(moved.encode()) == done
        assert peers.calls[-1] == ("s2", {"op": "hand_over", "log_id": "7", "to": "s1"})
        refusal = DuramenError("invalid_argument", "nobody", field="to").problem()
        answers["s2"]["hand_over"] = (400, refusal)
        with pytest.raises(DuramenError) as caught:
            await cluster.hand_over("a", "l", "x")
        assert (caught.value.code, caught.value.field) == ("invalid_argument", "to")
        answers["s2"] = {"hand_over": (503, not_mine)}
        with pytest.raises(DuramenError, match="belongs to nobody"):
            await cluster.hand_over("a", "l", None)
        del answers["s2"]
        with pytest.raises(DuramenError, match="s2 did not answer"):
            await cluster.hand_over("a", "l", None)

    asyncio.run(scenario())


def test_a_sequencer_is_weighed_by_its_id() -> None:
    async def scenario() -> None:
        answers: Answers = {"s2": {"weigh": (200, {"id": "s2", "sequencer_weight": 2.5})}}
        cluster, peers = cluster_of(answers)
        told = await cluster.weigh("s2", 2.5)
        assert json.loads(told.encode()) == {"id": "s2", "sequencer_weight": 2.5}
        assert peers.calls == [("s2", {"op": "weigh", "sequencer_weight": 2.5})]
        with pytest.raises(DuramenError, match="there is no sequencer s9"):
            await cluster.weigh("s9", 1)
        with pytest.raises(DuramenError, match="s1 did not answer") as caught:
            await cluster.weigh("s1", 1)
        assert caught.value.uncertain

    asyncio.run(scenario())


def test_balancing_moves_what_the_plan_says_and_a_dry_run_nothing() -> None:
    async def scenario() -> None:
        rows = [log_row(i, 10.0) for i in range(4)] + [log_row(9, 99.0, "draining")]
        answers: Answers = {
            "s1": {"owned": (200, {"logs": rows}), "hand_over": (200, {"to": "s2"})},
            "s2": {"owned": (200, {"logs": []})},
        }
        cluster, peers = cluster_of(answers)
        planned = await cluster.balance(is_dry_run=True, move_count_max=10)
        assert planned.dry_run and [move.name for move in planned.moves] == ["a/l0", "a/l1"]
        assert list(json.loads(planned.moves[0].encode())) == [
            "name",
            "log_id",
            "from",
            "to",
            "cost",
        ]
        assert not any(request["op"] == "hand_over" for _, request in peers.calls)
        done = await cluster.balance(is_dry_run=False, move_count_max=1)
        assert [move.outcome for move in done.moves] == ["moved"]
        assert peers.calls[-1] == ("s1", {"op": "hand_over", "log_id": "0", "to": "s2"})
        del answers["s2"]
        with pytest.raises(DuramenError, match="loads are not known"):
            await cluster.balance(is_dry_run=False, move_count_max=1)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("balance", b'{"dry_run":1}', "dry_run"),
        ("balance", b'{"moves":0}', "moves"),
        ("balance", b'{"moves":true}', "moves"),
        ("balance", b'{"move":1}', "move"),
        ("balance", b"[]", None),
        ("logs/a/l/hand-over", b'{"to":5}', "to"),
        ("logs/A/l/hand-over", b"{}", "namespace"),
    ],
)
def test_a_bad_request_to_the_cluster_is_refused_with_its_field(
    path: str, body: bytes, field: str | None
) -> None:
    cluster, peers = cluster_of({})
    app = FastAPI()
    add_problem_handler(app)
    add_cluster_routes(app, cluster)

    async def post() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://proxy") as client:
            return await client.post(f"/v1/cluster/{path}", content=body)

    answer = asyncio.run(post())
    assert (answer.status_code, answer.json().get("field")) == (400, field)
    assert not peers.calls


ROW = {**log_row(5, 1.5), "later": {"more": [None, 2]}}
EVENTS = [{"unix_ms": 5, "event": "claimed", "epoch": 3}, {"unix_ms": 6, "event": "closed"}]
HANDED_OVER = {"from": "s1", "to": "s2", "epoch": 3, "closed": True}


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("GET", "owners", None, {
            "logs": [{"sequencer": "s1", **ROW}],
            "sequencers": [{"id": "s1", "weight": 1.0}, {"id": "s2", "weight": 1.0}],
            "silent": ["s2"],
        }),
        ("GET", "logs/a/l/story", None, {
            "name": "a/l", "log_id": "7",
            "events": [{"sequencer": "s1", **event} for event in EVENTS], "silent": ["s2"],
        }),
        ("POST", "logs/a/l/hand-over", {"to": "s2"}, HANDED_OVER),
        ("POST", "balance", {"dry_run": True}, {"dry_run": True, "moves": []}),
    ],
)  # fmt: skip
def test_answers_about_the_cluster_have_their_members_in_order(
    method: str, path: str, body: Any, expected: dict[str, Any]
) -> None:
    """Byte for byte: what is not there is left out, and what is not known is passed on."""
    answers: Answers = {
        "s1": {
            "owned": (200, {"logs": [ROW]}),
            "story": (200, {"events": EVENTS}),
            "hand_over": (200, HANDED_OVER),
        }
    }
    if path == "balance":
        answers["s2"] = {"owned": (200, {"logs": []})}
    app = FastAPI()
    add_cluster_routes(app, cluster_of(answers)[0])

    async def call() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://proxy") as client:
            return await client.request(method, f"/v1/cluster/{path}", json=body)

    answer = asyncio.run(call())
    assert answer.status_code == 200
    assert answer.content == json.dumps(expected, separators=(",", ":")).encode()
