"""Positions of every kind over real HTTP: what a reader gets, where it goes on, what it is told.

What the searches find is proved in `tests/unit/test_positions.py`; here they meet bookies, watches
and the three forms of an answer. Source: docs/protocol/reading.md "Positions",
docs/protocol/rest.md.
"""

import json

import pytest

from duramen.client.sdk.values import read_mark
from duramen.ids import BookieId, Epoch, ledger_of
from duramen.wire.read_answers import parse_batches
from tests.component.readproxy_world import (
    BATCH,
    LOG,
    NDJSON,
    RECORDS,
    A,
    C,
    World,
    check,
    run,
    seq_nums,
)


async def fill_with_txids(world: World) -> None:
    """Txids 1 2 | 3 5 5, an empty segment, 5 and a control entry, then open: 5 6."""
    await world.open_segment()
    await world.append(2, txids=[1, 2])
    await world.append(3, txids=[3, 5, 5])
    await world.close_segment()
    await world.open_segment()
    await world.close_segment()
    await world.open_segment()
    await world.append(1, txids=[5])
    await world.append_control()
    await world.close_segment()
    await world.open_segment()
    await world.append_control()
    await world.append(2, txids=[5, 6])


@pytest.mark.parametrize(
    ("position", "first"),
    [
        ("txid:0", 0),
        ("txid:2", 1),
        ("txid:4", 3),
        ("txid:5", 3),
        ("txid:6", 7),
        ("time:0", 0),
        ("time:1970-01-01T00:00:01.003Z", 2),
        ("time:1006", 5),
        ("time:1007", 6),
        ("time:1009", 8),
        ("ago:10000000h", 0),
        ("ago:1h", 8),
        ("tail-3", 5),
        ("tail-7", 1),
        ("lsn:e2n0", 5),
        ("dlsn:e3n1s0", 6),
    ],
)
def test_the_first_record_of_every_kind_of_position(position: str, first: int) -> None:
    async def scenario(world: World) -> None:
        await fill_with_txids(world)
        answer = await world.read(f"?from={position}")
        assert seq_nums(answer) == list(range(first, 8)) and "moved_to" not in answer
        assert answer["tail"]["seq_num"] == 8

    run(scenario)


def test_a_txid_beyond_the_last_is_beyond_the_tail_and_a_time_is_the_tail() -> None:
    async def scenario(world: World) -> None:
        await fill_with_txids(world)
        problem = await world.problem(416, "beyond_tail", "from", "?from=txid:7")
        assert problem["tail"]["seq_num"] == 8
        await world.append(1, txids=[9], is_confirmed=False)
        await world.problem(503, "data_unavailable", None, "?from=txid:7")
        for position in ("txid:7&clamp=true", "time:1009", "time:2030-01-01T00:00:00Z", "ago:0s"):
            answer = await world.read(f"?from={position}")
            check(world, answer, 8, 8)
        await world.confirm()
        assert seq_nums(await world.read("?from=txid:7")) == [8]

    run(scenario)


@pytest.mark.parametrize(
    ("query", "first", "end"),
    [
        ("from=1&until=txid:5", 1, 3),
        ("from=txid:3&until=time:1006", 2, 5),
        ("from=head&until=tail", 0, 8),
        ("from=tail-4&until=tail-1", 4, 7),
        ("from=head&until=dlsn:e1n1s1", 0, 3),
        ("from=dlsn:e1n1s1&until=lsn:e4n0", 3, 6),
        ("from=5&until=txid:2", 5, 5),
        ("from=dlsn:e3n0s0&until=3", 5, 5),
        ("from=2&until=txid:99", 2, 8),
        ("from=txid:5&count=2", 3, 5),
    ],
)
def test_a_read_ends_before_until_in_every_form(query: str, first: int, end: int) -> None:
    async def scenario(world: World) -> None:
        await fill_with_txids(world)
        check(world, await world.read(f"?{query}"), first, end)
        lines = (await world.get(f"?{query}", accept=NDJSON)).text.splitlines()
        assert [json.loads(line)["seq_num"] for line in lines] == list(range(first, end))
        binary = await world.get(f"?{query}", accept=BATCH)
        batches = parse_batches(binary.content)
        assert binary.headers.get("duramen-start") == (f"seq:{first}" if end > first else None)
        assert not batches or batches[0].seq_num <= first < batches[0].end_seq_num
        next_seq_num = int(binary.headers["duramen-next"].removeprefix("seq:"))
        assert next_seq_num == (batches[-1].end_seq_num if batches else first) >= end

    run(scenario)


@pytest.mark.parametrize(
    ("position", "first", "is_moved"),
    [
        ("head", 4, False),
        ("3", 4, True),
        ("4", 4, False),
        ("5", 5, False),
        ("tail-4", 4, False),
        ("tail-5", 4, True),
        ("tail-100", 4, True),
        ("dlsn:e1n1s0", 4, True),
        ("dlsn:e1n1s2", 4, False),
        ("lsn:e1n0", 4, True),
        ("txid:1", 4, True),
        ("txid:5", 4, True),  # the first one of that txid was truncated
        ("txid:6", 7, False),
        ("time:1002", 4, True),
        ("time:1006", 5, False),
        ("ago:10000000h", 4, True),
    ],
)
def test_a_position_in_a_truncated_prefix_moves_and_says_so(
    position: str, first: int, is_moved: bool
) -> None:
    """Truncated inside an entry, the segments' nodes still there."""

    async def scenario(world: World) -> None:
        await fill_with_txids(world)
        await world.truncate(4, "e1n1")
        answer = await world.read(f"?from={position}")
        check(world, answer, first, 8)
        assert answer.get("moved_to", {}).get("seq_num") == (4 if is_moved else None)
        for accept in (NDJSON, BATCH):
            response = await world.get(f"?from={position}", accept=accept)
            assert response.headers.get("duramen-moved-to") == ("seq:4" if is_moved else None)
            expected_start = f"seq:{first}" if accept == BATCH else None
            assert response.headers.get("duramen-start") == expected_start

    run(scenario)


def test_truncation_inside_the_open_segment_is_seen_by_every_kind_of_position() -> None:
    """Everything before is deleted; later everything there is, and appends go on."""

    async def scenario(world: World) -> None:
        await fill_with_txids(world)
        check(world, await world.read("?from=txid:1"), 0, 8)  # what is known must be forgotten
        await world.truncate(7, "e4n1", first_live=4)
        for position in ("0", "dlsn:e1n1s0", "lsn:e4n0", "txid:6", "txid:1", "time:1000", "tail-5"):
            answer = await world.read(f"?from={position}")
            check(world, answer, 7, 8)
            assert answer["moved_to"]["seq_num"] == 7, position
        await world.truncate(8, "e4n2", first_live=4)
        for position in ("0", "7", "dlsn:e4n1s1", "txid:6", "time:1000", "tail-1"):
            answer = await world.read(f"?from={position}")
            check(world, answer, 8, 8)
            assert answer["moved_to"]["seq_num"] == 8 and answer["tail"]["seq_num"] == 8, position
        await world.problem(416, "beyond_tail", "from", "?from=txid:7")
        await world.append(1, txids=[9])
        check(world, await world.read("?from=head"), 8, 9)
        assert (await world.read("?from=txid:7"))["moved_to"]["seq_num"] == 8

    run(scenario)


def test_a_search_reads_elsewhere_where_a_replica_fails() -> None:
    async def scenario(world: World) -> None:
        await fill_with_txids(world)
        world.bookies[A.bookie].is_broken = True
        entries = world.bookies[BookieId("b")].entries
        for key, body in list(entries.items()):
            entries[key] = body[:-1] + bytes([body[-1] ^ 1])  # headers are whole, entries are not
        assert seq_nums(await world.read("?from=txid:5&count=1")) == [3]
        assert seq_nums(await world.read("?from=time:1004&count=1")) == [2]

    run(scenario)


def test_a_segment_that_goes_between_two_looks_is_worth_another_try() -> None:
    async def scenario(world: World) -> None:
        await fill_with_txids(world)
        await world.delete_segment(Epoch(1))
        problem = await world.problem(503, "metadata_unavailable", None, "?from=2")
        assert problem["retryable"]

    run(scenario)


@pytest.mark.parametrize("query", ["seq:32", "seq:32&clamp=true", "dlsn:e3n4s0", "txid:7"])
def test_nothing_is_beyond_a_tail_that_is_not_sure(query: str) -> None:
    """Regression: a follower was told 416 because its sequencer had died, and gave up for good."""

    async def scenario(world: World) -> None:
        await world.fill()
        await world.append(1, is_confirmed=False)
        await world.problem(503, "data_unavailable", None, f"?from={query}")
        await world.confirm()
        if query != "txid:7":
            check(world, await world.read(f"?from={query}"), 32, 32)

    run(scenario)


def test_the_tail_never_falls_behind_what_was_read() -> None:
    """Regression: one bookie alone knew the last LAC, and did not answer the next time."""

    async def scenario(world: World) -> None:
        await world.fill()
        await world.append(1, is_confirmed=False)
        only = world.bookies[A.bookie]
        await only.change(ledger_of(LOG, Epoch(3)), 3, None)
        world.bookies[C.bookie].is_broken = True
        check(world, await world.read("?from=seq:30"), 30, 32)
        world.bookies[C.bookie].is_broken, only.is_broken = False, True
        response = await world.http.get(f"{RECORDS}/tail")
        assert response.json()["tail"]["seq_num"] == 32, response.text
        for position in ("seq:32", "dlsn:e3n4s0"):
            check(world, await world.read(f"?from={position}"), 32, 32)

    run(scenario)


def test_the_end_of_an_answer_at_the_tail_is_remembered() -> None:
    """Who goes on there is not looked for: one look at the tail, for the answer's own end."""

    async def scenario(world: World) -> None:
        await world.fill()
        check(world, await world.read("?from=seq:25"), 25, 31)
        before = world.proxy.tails.statistics()["rounds"]
        check(world, await world.read("?from=seq:31"), 31, 31)
        assert world.proxy.tails.statistics()["rounds"] == before + 1

    run(scenario)


def test_the_tail_of_an_empty_log_has_no_time() -> None:
    """It was 1970, which a client could take for the age of something."""

    async def scenario(world: World) -> None:
        empty = await world.read("/tail")
        assert (empty["tail"]["seq_num"], empty["tail"]["timestamp"]) == (0, None)
        assert (await world.read("?from=tail"))["tail"]["timestamp"] is None
        assert read_mark(empty["tail"]).timestamp_ms is None
        problem = await world.problem(416, "beyond_tail", "from", "?from=seq:1")
        assert problem["tail"]["timestamp"] is None
        await world.fill()
        assert read_mark((await world.read("/tail"))["tail"]).timestamp_ms

    run(scenario)
