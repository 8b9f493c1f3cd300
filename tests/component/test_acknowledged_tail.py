"""The two ends of a log that acknowledges out of order: what is released, what is acknowledged.

The bookies hold an entry behind one that nobody has; the log's owner says what that means.
Source: docs/protocol/reading.md "The tail", R29.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from duramen.runtime.http_server import Answer, DataServer
from duramen.units import MS
from duramen.wire.metadata_json import encode_node, encode_segment
from tests.component.readproxy_world import LOG, PATHS, World, check, run

WORD = {"epoch": 1, "released": [0, 2, 1_002], "acknowledged": [2, 6, 1_006]}


class Owner:
    """A sequencer that says what a test wants."""

    def __init__(self) -> None:
        self.word: Any = WORD
        self.status = 200
        self.asked: list[dict[str, Any]] = []
        self._server = DataServer("127.0.0.1", 0, self._on_call)

    async def own(self, world: World) -> None:
        await self._server.start()
        url = f"http://127.0.0.1:{self._server.port}"
        fields = {"sequencer": "s1", "epoch": 1, "data_url": url}
        await world.put(PATHS.owner(LOG), encode_node(fields))

    async def stop(self) -> None:
        await self._server.stop()

    async def _on_call(self, path: str, body: bytes, _caller: object) -> Answer:
        assert path == "/s/control"
        self.asked.append(json.loads(body))
        return self.status, "application/json", json.dumps(self.word).encode()


async def leave_gap(world: World, ack_mode: str = "out_of_order") -> None:
    """Two records are released; nobody has the entry of the next three; one more is stored."""
    await world.open_segment()
    assert world.segment is not None
    world.segment = replace(world.segment, ack_mode=ack_mode)
    await world.put(PATHS.segment(LOG, world.segment.epoch), encode_segment(world.segment))
    await world.append(2)
    world.make_entry(3)
    world.entry_count += 1
    body = world.make_entry(1)
    for member in world.segment.members:
        bookie = world.bookies[member.bookie]
        await bookie.change(world.segment.ledger_id, 0, (2, body))


def play(scenario: Callable[[World, Owner], Awaitable[None]]) -> None:
    async def with_owner(world: World) -> None:
        owner = Owner()
        try:
            await scenario(world, owner)
        finally:
            await owner.stop()

    run(with_owner)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duramen.runtime.reading.tail.SETTLE_US", 50 * MS)


async def ask(world: World) -> dict[str, Any]:
    answer = await world.get("/tail")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    assert found["tail"] == found["released"]
    return found


def test_what_is_acknowledged_is_told_beside_what_may_be_read() -> None:
    async def scenario(world: World, owner: Owner) -> None:
        await leave_gap(world)
        await owner.own(world)
        found = await ask(world)
        assert (found["released"]["seq_num"], found["released"]["dlsn"]) == (2, "e1n1s0")
        assert (found["acknowledged"]["seq_num"], found["acknowledged"]["dlsn"]) == (6, "e1n3s0")
        assert found["acknowledged"]["timestamp"] == "1970-01-01T00:00:01.006Z"
        assert owner.asked == [{"op": "report_tail", "log_id": str(LOG)}]
        answer = await world.read()
        check(world, answer, 0, 2)
        assert answer["tail"]["seq_num"] == 2, "readers wait there"

    play(scenario)


def test_while_nothing_lies_behind_the_lac_nobody_is_asked_and_both_ends_are_one() -> None:
    async def scenario(world: World, owner: Owner) -> None:
        await world.open_segment()
        await world.append(2)
        await owner.own(world)
        found = await ask(world)
        assert found["acknowledged"] == found["released"] and not owner.asked

    play(scenario)


def test_the_owner_may_have_released_more_than_bookies_were_told() -> None:
    async def scenario(world: World, owner: Owner) -> None:
        await leave_gap(world)
        owner.word = {**WORD, "released": [2, 6, 1_006]}
        await owner.own(world)
        found = await ask(world)
        assert found["released"]["seq_num"] == found["acknowledged"]["seq_num"] == 6

    play(scenario)


@pytest.mark.parametrize(
    ("status", "word"),
    [
        (200, {**WORD, "epoch": 2}),
        (200, {**WORD, "released": [-1, 0, 0]}),
        (200, {**WORD, "acknowledged": ["2", 6, 1_006]}),
        (200, {**WORD, "acknowledged": [2, 6]}),
        (200, {"epoch": 1}),
        (200, []),
        (503, {"code": "log_unavailable"}),
    ],
)
def test_without_a_word_about_this_epoch_the_tail_is_not_sure(status: int, word: Any) -> None:
    async def scenario(world: World, owner: Owner) -> None:
        await leave_gap(world)
        owner.status, owner.word = status, word
        await owner.own(world)
        await world.problem(503, "data_unavailable", None, "/tail")
        assert owner.asked

    play(scenario)


@pytest.mark.parametrize("url", [None, ""])
def test_without_an_owner_that_serves_it_is_not_sure_either(url: str | None) -> None:
    async def scenario(world: World, _owner: Owner) -> None:
        await leave_gap(world)
        if url is not None:
            fields = {"sequencer": "app", "epoch": 1, "data_url": url}
            await world.put(PATHS.owner(LOG), encode_node(fields))
        await world.problem(503, "data_unavailable", None, "/tail")

    play(scenario)


def test_of_an_ordered_log_and_of_an_older_epoch_no_owner_is_asked() -> None:
    async def scenario(world: World, owner: Owner) -> None:
        await leave_gap(world, "ordered")
        await owner.own(world)
        await world.problem(503, "data_unavailable", None, "/tail")
        assert world.segment is not None
        late = replace(world.segment, ack_mode="out_of_order").marked("m")
        await world.put(PATHS.segment(LOG, late.epoch), encode_segment(late))
        await world.open_segment()
        await world.problem(503, "data_unavailable", None, "/tail")
        assert not owner.asked, "what it acknowledged in the newer epoch would be left out"

    play(scenario)
