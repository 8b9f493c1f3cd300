"""Which answers caches may keep: bounded ranges of closed segments by number or place, no others.

The world of `test_readproxy`: segments 1 (records 0 to 12) and 2 (13 to 21) are closed, 3 is open
and goes up to 30. Source: docs/protocol/rest.md "Caches".
"""

from __future__ import annotations

import pytest

from duramen.errors import DuramenError
from duramen.runtime.reading.metadata import LogFollower
from duramen.runtime.reading.tail import Tail
from tests.component.readproxy_world import BATCH, NDJSON, World, run

KEPT = "public, max-age=3600, immutable"


@pytest.mark.parametrize(
    ("query", "tag"),
    [
        ("?from=seq:0&count=5", '"9-0-5-json"'),
        ("?from=3&count=10", '"9-3-13-json"'),
        ("?from=seq:3&until=seq:22", '"9-3-22-json"'),
        ("?from=dlsn:e1n1s0&count=2", '"9-3-5-json"'),
        ("?from=lsn:e2n0&count=9", '"9-13-22-json"'),
        ("?from=seq:4&bytes=6", '"9-4-7-json"'),
    ],
)
def test_a_bounded_range_of_closed_segments_may_be_kept(query: str, tag: str) -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        answer = await world.get(query)
        assert answer.headers["cache-control"] == KEPT, answer.text
        assert answer.headers["etag"].removeprefix("W/") == tag
        assert answer.headers["vary"].startswith("Accept, Duramen-Format")
        same = await world.get(query, If_None_Match=f'"x", W/{tag}')
        assert (same.status_code, same.content) == (304, b"")
        assert same.headers["etag"].removeprefix("W/") == tag
        assert (await world.get(query, If_None_Match='"x"')).status_code == 200
        other = await world.get(query, Duramen_Format="base64")
        assert other.headers["etag"] != tag

    run(scenario)


@pytest.mark.parametrize(
    "query",
    [
        "",  # head moves
        "?from=head&count=5",
        "?from=tail-31&count=5",
        "?from=ago:1h&count=5&clamp=true",
        "?from=time:0&count=5",
        "?from=seq:0&until=tail-9",
        "?from=seq:20&count=3",  # into the open segment
        "?from=seq:22&count=2",
        "?from=seq:25",  # to the tail
        "?from=seq:31",  # nothing
    ],
)
def test_nothing_else_may_be_kept(query: str) -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        answer = await world.get(query, If_None_Match="*")
        assert answer.status_code == 200
        assert answer.headers["cache-control"] == "no-store"
        assert "etag" not in answer.headers

    run(scenario)


def test_a_range_is_kept_once_its_segment_is_closed() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        assert (await world.get("?from=seq:22&count=2")).headers["cache-control"] == "no-store"
        await world.close_segment()
        # The proxy sees it by a watch; each look is a request.
        while (await world.get("?from=seq:22&count=2")).headers["cache-control"] != KEPT:
            pass

    run(scenario)


@pytest.mark.parametrize("accept", ["application/json", BATCH])
def test_an_answer_that_stopped_half_way_is_not_kept(
    accept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the log ends nobody could say: soon the same request has more to show."""

    async def scenario(world: World) -> None:
        await world.fill()
        await world.close_segment()
        await world.open_segment()
        await world.append(4)

        async def refuse(_: LogFollower) -> Tail:
            raise DuramenError("data_unavailable", "too few bookies answer")

        find_tail = world.proxy.tails.find_reach
        monkeypatch.setattr(world.proxy.tails, "find_reach", refuse)
        query = "?from=seq:13&count=100"
        half = await world.get(query, Accept=accept)
        assert half.status_code == 200
        monkeypatch.setattr(world.proxy.tails, "find_reach", find_tail)
        whole = await world.get(query, Accept=accept)
        assert len(half.content) < len(whole.content)
        for answer in (half, whole):
            assert answer.headers["cache-control"] == "no-store"
            assert "etag" not in answer.headers

    run(scenario)


def test_forms_have_tags_of_their_own_and_streams_none() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        batch = await world.get("?from=seq:0&count=5", Accept=BATCH)
        assert batch.headers["etag"] == '"9-0-6-batch"'
        lines = await world.get("?from=seq:0&count=5", Accept=NDJSON)
        assert lines.headers["cache-control"] == "no-store"

    run(scenario)


def test_what_was_truncated_is_kept_no_more_and_problems_never_are() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        await world.truncate(13, "e2n0", first_live=2)
        for query, status in (("?from=seq:0&count=5", 200), ("?from=seq:99", 416)):
            answer = await world.get(query)
            assert answer.status_code == status
            assert answer.headers["cache-control"] == "no-store"
        assert (await world.get("/tail")).headers["cache-control"] == "no-store"

    run(scenario)
