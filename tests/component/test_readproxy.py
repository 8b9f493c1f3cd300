"""The read proxy over real HTTP, before fake bookies and a metadata store in memory.

One test per promise of docs/protocol/read-answers.md; `readproxy_world` has the fakes and the log
that is read. Source: docs/protocol/reading.md, docs/protocol/rest.md, docs/protocol/read-answers.md
"JSON".
"""

import asyncio
import base64
import json
from collections.abc import Sequence

import pytest

from duramen.core.segment import Totals
from duramen.core.status import BookieStatus
from duramen.errors import DuramenError
from duramen.ids import (
    BookieId,
    EntryId,
    Incarnation,
    Member,
)
from duramen.runtime.http_server import refuse_overloaded
from duramen.runtime.reading.metadata import LogFollower
from duramen.runtime.reading.tail import Tail
from duramen.wire.entry import encode_entry
from duramen.wire.metadata_json import encode_node
from duramen.wire.nodes.formats import PROCESS_FORMATS, understands
from duramen.wire.read_answers import parse_batches
from duramen.wire.record_batch import encode_batch
from tests.component.readproxy_world import (
    BATCH,
    LOG,
    NDJSON,
    PATHS,
    RECORDS,
    A,
    B,
    C,
    D,
    World,
    check,
    run,
    seq_nums,
)
from tests.waiting import wait_for

# --- Positions and bounds ------------------------------------------------------------------------


def test_the_whole_log_is_read_from_the_head() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        answer = await world.read()
        check(world, answer, 0, 31)
        assert answer["tail"]["seq_num"] == 31
        assert (
            answer["tail"]["dlsn"] == "e3n3s0"
            and answer["tail"]["timestamp"] == "1970-01-01T00:00:01.031Z"
        )
        records = answer["records"]
        assert records[0] == {
            "seq_num": 0,
            "dlsn": "e1n0s0",
            "timestamp": "1970-01-01T00:00:01.002Z",
            "body": "r0",
        }
        assert [r["dlsn"] for r in records[2:4]] == ["e1n0s2", "e1n1s0"]
        assert [r["dlsn"] for r in records[12:15]] == ["e1n3s3", "e2n0s0", "e2n1s0"]

    run(scenario)


def test_every_sequence_number_and_dlsn_is_found() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        records = (await world.read())["records"]
        for seq_num in [*range(30, -1, -1), *range(31)]:
            answer = await world.read(f"?from=seq:{seq_num}&count=2")
            check(world, answer, seq_num, min(seq_num + 2, 31))
            by_dlsn = await world.read(f"?from=dlsn:{records[seq_num]['dlsn']}&count=1")
            assert seq_nums(by_dlsn) == [seq_num]

    run(scenario)


@pytest.mark.parametrize(
    ("query", "first", "end"),
    [
        ("?from=7", 7, 31),
        ("?from=tail-3", 28, 31),
        ("?from=tail-100", 0, 31),
        ("?from=tail", 31, 31),
        ("?from=seq:31", 31, 31),
        ("?from=lsn:e1n2", 6, 31),
        ("?from=dlsn:e1n0s3", 3, 31),  # the end of an append: one past its last record
        ("?from=dlsn:e1n4s0", 13, 31),  # beyond the end of a closed segment: the next one
        ("?from=dlsn:e3n3s0", 31, 31),
        ("?from=seq:99&clamp=true", 31, 31),
        ("?from=dlsn:e9n0s0&clamp=true", 31, 31),
        ("?from=dlsn:e0n0s0", 0, 31),
        ("?from=5&until=9", 5, 9),
        ("?from=5&until=seq:5", 5, 5),
        ("?from=12&count=4", 12, 16),
        ("?from=3&bytes=1", 3, 4),  # one record at least
        ("?from=10&bytes=6", 10, 12),
    ],
)
def test_positions_and_bounds(query: str, first: int, end: int) -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        answer = await world.read(query)
        check(world, answer, first, end)
        assert ("tail" in answer) == (end == 31), answer

    run(scenario)


def test_a_reader_that_goes_on_needs_no_search() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        position, seen = "head", []
        while "tail" not in (answer := await world.read(f"?from={position}&count=2")):
            seen += [r["body"] for r in answer["records"]]
            position = answer["next"]
        seen += [r["body"] for r in answer["records"]]
        assert seen == world.bodies
        assert world.proxy.positions.statistics()["searches"] == 0
        assert world.proxy.statistics()["cache"]["hit_ratio"] > 0.5

    run(scenario)


def test_a_read_goes_past_a_segment_that_closed_since_the_last_one() -> None:
    """The proxy's watches come late: only the synced look at the end can tell."""

    async def scenario(world: World) -> None:
        await world.open_segment()
        await world.append(2)
        follower = await world.proxy.catalog.find("ns", "log")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(follower, "_on_change", lambda _epoch: None)
            check(world, await world.read(), 0, 2)
            await world.close_segment()
            await world.open_segment((B, C, D))
            await world.append(3)
            check(world, await world.read("?from=seq:2"), 2, 5)
            check(world, await world.read("?from=seq:1"), 1, 5)

    run(scenario)


def test_an_empty_log_has_head_and_tail() -> None:
    async def scenario(world: World) -> None:
        for query in ("", "?from=tail", "?from=seq:0", "?from=tail-5"):
            answer = await world.read(query)
            check(world, answer, 0, 0)
            assert answer["tail"]["seq_num"] == 0
        await world.open_segment()
        check(world, await world.read(), 0, 0)
        await world.append(1)
        check(world, await world.read(), 0, 1)

    run(scenario)


def test_leftovers_beyond_a_closed_end_are_not_served() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        answer = await world.read("?from=12&count=2")
        assert [r["dlsn"] for r in answer["records"]] == ["e1n3s3", "e2n0s0"]

    run(scenario)


def test_nothing_above_the_lac_is_served() -> None:
    async def scenario(world: World) -> None:
        await world.open_segment()
        await world.append(2)
        await world.append(3, is_confirmed=False)
        answer = await world.read()
        check(world, answer, 0, 2)
        assert "tail" not in answer, "what is not confirmed may count"
        await world.confirm()
        check(world, await world.read(), 0, 5)

    run(scenario)


# --- Forms ---------------------------------------------------------------------------------------


def test_the_binary_form_passes_batches_untouched() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        response = await world.get("?from=1&count=3", accept=BATCH)
        assert response.headers["content-type"] == BATCH
        batches = parse_batches(response.content)
        assert [(b.seq_num, b.record_count) for b in batches] == [(0, 2), (2, 1), (3, 3)]
        assert [b.decode().bodies for b in batches][1] == [b"r2"]
        assert response.headers["duramen-next"] == "seq:6"
        assert "duramen-tail" not in response.headers
        response = await world.get("?from=6&until=100", accept=BATCH)
        assert response.headers["duramen-next"] == "seq:31"
        assert json.loads(response.headers["duramen-tail"])["seq_num"] == 31

    run(scenario)


def test_ndjson_streams_to_the_tail_or_to_a_bound() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        response = await world.get(accept=NDJSON)
        lines = [json.loads(line) for line in response.text.splitlines()]
        assert [line["body"] for line in lines] == world.bodies
        response = await world.get("?from=4&count=3", accept=NDJSON)
        lines = [json.loads(line) for line in response.text.splitlines()]
        assert [line["seq_num"] for line in lines] == [4, 5, 6]
        response = await world.get("?from=tail", accept=NDJSON)
        assert response.status_code == 200 and response.content == b""

    run(scenario)


def test_ndjson_with_wait_goes_on_while_something_comes() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        async with world.http.stream(
            "GET", f"{RECORDS}?from=tail-1&wait=1s", headers={"accept": NDJSON}
        ) as response:
            lines = response.aiter_lines()
            assert json.loads(await anext(lines))["seq_num"] == 30
            for expected in (31, 32):
                await world.append(1)
                assert json.loads(await anext(lines))["seq_num"] == expected
            assert [line async for line in lines] == []

    run(scenario)


def test_a_stream_that_looks_for_the_end_for_a_while_is_complete() -> None:
    """A wait inside the stream, again and again: it must not be taken for a client that left."""

    async def scenario(world: World) -> None:
        await world.open_segment()
        for count in range(1, 26):
            await world.append(1, is_confirmed=False)
            reading = asyncio.create_task(world.get(accept=NDJSON))
            await wait_for(lambda: sum(b.waiting_count for b in world.bookies.values()) == 1)
            await world.confirm()
            assert len((await reading).text.splitlines()) == count

    run(scenario)


def test_a_record_that_is_no_text_says_so_and_its_neighbours_stay_text() -> None:
    async def scenario(world: World) -> None:
        await world.open_segment()
        await world.append(1)
        body = bytes(range(256))
        batch = encode_batch([body], 7, headers=[[(b"n", b"\xff")]], txids=[5])
        assert world.segment is not None
        before, size = world.totals, Totals(1, len(batch), 5, 7)
        world.totals = before.plus(size)
        entry = encode_entry(
            ledger_id=world.segment.ledger_id, entry_id=EntryId(1), before=before,
            batches=[batch], record_count=1, after=world.totals,
        )  # fmt: skip
        await world.store_entry(entry)
        world.bodies.append("")
        await world.append(1)
        first, marked, last = (await world.read())["records"]
        assert (first["body"], last["body"]) == ("r0", "r2")
        assert "format" not in first and "format" not in last
        assert marked.pop("format") == "base64"
        assert base64.b64decode(marked["body"]) == body
        assert marked["headers"] == [["bg==", "/w=="]] and marked["txid"] == 5
        asked = (await world.get(duramen_format="base64")).json()["records"]
        assert asked[1] == marked

    run(scenario)


# --- Waiting -------------------------------------------------------------------------------------


def test_a_long_poll_is_woken_and_shared() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        readers = [asyncio.create_task(world.read("?from=tail&wait=20s")) for _ in range(5)]
        await wait_for(lambda: sum(b.waiting_count for b in world.bookies.values()) == 1)
        await wait_for(lambda: world.proxy.feeds.statistics()["readers"] == 5)
        assert world.proxy.fetcher.statistics()["long_polls"] == 1
        await world.append(2)
        for reader in readers:
            answer = await reader
            check(world, answer, 31, 33)
            assert answer["tail"]["seq_num"] == 33

    run(scenario)


def test_the_greatest_timestamp_may_lie_in_an_earlier_segment() -> None:
    async def scenario(world: World) -> None:
        await world.open_segment()
        await world.append(1, at_ms=9_000)
        await world.close_segment()
        await world.open_segment()
        reader = asyncio.create_task(world.read("?from=tail&wait=20s"))
        await wait_for(lambda: world.proxy.feeds.statistics()["readers"] == 1)
        await world.append(1, at_ms=2_000)
        tail = (await reader)["tail"]
        assert tail == (await world.http.get(f"{RECORDS}/tail")).json()["tail"]
        assert tail["timestamp"] == "1970-01-01T00:00:09.000Z" and tail["seq_num"] == 2

    run(scenario)


def test_a_wait_that_brings_nothing_ends_with_the_tail() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        answer = await world.read("?from=seq:31&wait=50ms")
        check(world, answer, 31, 31)
        assert answer["tail"]["seq_num"] == 31

    run(scenario)


def test_a_waiting_reader_passes_from_segment_to_segment() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        reader = asyncio.create_task(world.read("?from=tail&wait=20s"))
        await wait_for(lambda: sum(b.waiting_count for b in world.bookies.values()) == 1)
        await world.close_segment()
        await world.open_segment((B, C, D))
        await world.append(1)
        answer = await reader
        assert answer["records"][0]["dlsn"] == "e4n0s0" and seq_nums(answer) == [31]

    run(scenario)


def test_a_reader_waits_for_the_first_epoch() -> None:
    async def scenario(world: World) -> None:
        reader = asyncio.create_task(world.read("?wait=20s"))
        await wait_for(lambda: world.proxy.tails.statistics()["rounds"] == 1)
        await world.open_segment()
        await world.append(1)
        check(world, await reader, 0, 1)

    run(scenario)


def test_a_client_that_goes_away_frees_its_waiter() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        for accept in ("application/json", NDJSON):
            reader = asyncio.create_task(world.get("?from=tail&wait=60s", accept=accept))
            await wait_for(lambda: world.proxy.fetcher.statistics()["long_polls"] == 1)
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            await wait_for(lambda: world.proxy.fetcher.statistics()["long_polls"] == 0)
        follower = await world.proxy.catalog.find("ns", "log")
        await wait_for(lambda: follower.is_idle)

    run(scenario)


# --- Failures ------------------------------------------------------------------------------------


def damage(world: World, names: Sequence[str]) -> None:
    for name in names:
        entries = world.bookies[BookieId(name)].entries
        for key, body in list(entries.items()):
            entries[key] = body[:-1] + bytes([body[-1] ^ 1])


def test_damaged_entries_are_read_elsewhere_and_counted() -> None:
    async def scenario(world: World) -> None:
        await world.open_segment()
        for _ in range(4):
            await world.append(2)
        damage(world, "ab")
        check(world, await world.read(), 0, 8)
        assert world.proxy.statistics()["bookies"]["damaged"] >= 1 or world.bookies[A.bookie].reads

    run(scenario)


def test_one_good_copy_is_enough_whatever_the_others_say() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        world.bookies[A.bookie].is_broken = True
        world.bookies[D.bookie].status = BookieStatus.UNKNOWN
        await world.bookies[C.bookie].server.stop()
        answer = await world.read("?count=13")
        check(world, answer, 0, 13)

    run(scenario)


def test_a_wrong_incarnation_is_no_copy() -> None:
    async def scenario(world: World) -> None:
        await world.open_segment()
        await world.append(2)
        await world.close_segment()
        for name in "ab":
            bookie = world.bookies[BookieId(name)]
            bookie.member = Member(bookie.member.bookie, Incarnation("0f" * 16))
        check(world, await world.read(), 0, 2)

    run(scenario)


def test_no_copy_at_all_is_data_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duramen.runtime.reading.log_reader.UNAVAILABLE_US", 200_000)

    async def scenario(world: World) -> None:
        await world.fill()
        for bookie in world.bookies.values():
            bookie.status = BookieStatus.UNKNOWN
        problem = await world.problem(503, "data_unavailable", None, "?from=head")
        assert problem["retryable"]
        for bookie in world.bookies.values():
            bookie.status = None
        check(world, await world.read("?count=5"), 0, 5)

    run(scenario)


def test_an_overloaded_replica_is_left_alone_for_as_long_as_it_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("duramen.runtime.reading.log_reader.UNAVAILABLE_US", 200_000)

    async def scenario(world: World) -> None:
        await world.fill()
        for name in "bcd":
            world.bookies[BookieId(name)].status = BookieStatus.UNKNOWN
        overloaded = world.bookies[A.bookie]
        overloaded.refusals["/b/read"] = [refuse_overloaded("catch up read: full", 60_000)]
        await world.problem(503, "data_unavailable", None, "?from=head")
        assert overloaded.refused_count == 1 and not overloaded.reads
        assert world.proxy.statistics()["bookies"]["spared"] >= 1
        for name in "bcd":
            world.bookies[BookieId(name)].status = None
        check(world, await world.read(), 0, 31)
        assert not overloaded.reads

    run(scenario)


def test_replicas_that_are_overloaded_for_a_moment_are_asked_again() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        for bookie in world.bookies.values():
            bookie.refusals["/b/read"] = [refuse_overloaded("catch up read: full", 1)]
        check(world, await world.read("?count=6"), 0, 6)
        assert [world.bookies[m.bookie].refused_count for m in (A, B, C)] == [1, 1, 1]

    run(scenario)


def test_a_tail_is_waited_for_where_bookies_are_overloaded() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        for bookie in world.bookies.values():
            bookie.refusals["/b/lac"] = [refuse_overloaded("tail read: full", 1)] * 2
        response = await world.http.get(f"{RECORDS}/tail")
        assert response.status_code == 200 and response.json()["tail"]["seq_num"] == 31
        for bookie in world.bookies.values():
            bookie.refusals["/b/read"] = [refuse_overloaded("catch up read: full", 60_000)]
        await world.append(1)
        response = await world.http.get(f"{RECORDS}/tail")
        assert (response.status_code, response.json()["code"]) == (503, "overloaded")

    run(scenario)


def test_the_tail_needs_a_cover() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        response = await world.http.get(f"{RECORDS}/tail")
        assert response.json()["tail"]["seq_num"] == 31
        world.bookies[A.bookie].is_broken = True
        assert (await world.http.get(f"{RECORDS}/tail")).status_code == 200
        world.bookies[B.bookie].is_broken = True
        response = await world.http.get(f"{RECORDS}/tail")
        assert response.status_code == 503 and response.json()["code"] == "data_unavailable"

    run(scenario)


@pytest.mark.parametrize("code", ["data_unavailable", "metadata_unavailable"])
def test_records_are_given_where_nobody_can_say_the_tail(
    code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cover or a ZooKeeper that is gone keeps nobody from what one replica has."""

    async def scenario(world: World) -> None:
        await world.fill()
        await world.read()
        await world.append(3)
        world.forget()

        async def refuse(_: LogFollower) -> Tail:
            raise DuramenError(code, "nobody says")

        monkeypatch.setattr(world.proxy.tails, "find_reach", refuse)
        seen, query = 0, "?from=head"
        while (response := await world.get(query)).status_code == 200:
            answer = response.json()
            assert answer["records"] and "tail" not in answer
            check(world, answer, seen, seen + len(answer["records"]))
            seen += len(answer["records"])
            query = f"?from={answer['next']}"
        assert (seen, response.json()["code"]) == (34, code)

    run(scenario)


def test_the_tail_waits_a_moment_for_what_is_stored_but_not_confirmed() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        await world.append(1, is_confirmed=False)
        request = asyncio.create_task(world.http.get(f"{RECORDS}/tail"))
        await wait_for(lambda: sum(b.waiting_count for b in world.bookies.values()) == 1)
        await world.confirm()
        assert (await request).json()["tail"]["seq_num"] == 32

    run(scenario)


def test_a_tail_that_nobody_can_confirm_is_refused() -> None:
    """Regression: below it lay what a sequencer had acknowledged just before it died."""

    async def scenario(world: World) -> None:
        await world.fill()
        await world.append(1, is_confirmed=False)
        response = await world.http.get(f"{RECORDS}/tail")
        assert (response.status_code, response.json()["code"]) == (503, "data_unavailable")
        for start in (22, 31):
            answer = await world.read(f"?from=seq:{start}")
            assert len(answer["records"]) == 31 - start, "what is confirmed is given"
            assert "tail" not in answer and answer["next"] == "seq:31"
        await world.confirm()
        assert (await world.read("?from=seq:31"))["tail"]["seq_num"] == 32

    run(scenario)


# --- What the log is, and bad input --------------------------------------------------------------


def test_log_and_segments_are_shown() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        log = (await world.http.get("/v1/namespaces/ns/logs/log")).json()
        assert (log["namespace"], log["name"], log["log_id"]) == ("ns", "log", "9")
        assert log["config"]["replication"]["write_quorum"] == 3
        answer = (await world.http.get("/v1/namespaces/ns/logs/log/segments")).json()
        shown = [
            (s["epoch"], s["state"], s["last_entry"], s["records"], s["start_seq_num"])
            for s in answer["segments"]
        ]
        assert shown == [
            (1, "CLOSED", 3, 13, 0), (2, "CLOSED", 4, 9, 13), (3, "OPEN", None, None, 22),
        ]  # fmt: skip
        first = answer["segments"][0]
        assert first["completed"] == "1970-01-01T00:00:05.000Z"
        assert [f["first_entry"] for f in first["fragments"]] == [0, 2]
        assert first["fragments"][1]["ensemble"][2] == {"bookie": "d", "incarnation": D.incarnation}

    run(scenario)


@pytest.mark.parametrize(
    ("status", "code", "field", "query", "headers"),
    [
        (400, "unknown_field", "form", "?form=head", {}),
        (400, "invalid_position", "from", "?from=nowhere", {}),
        (400, "invalid_position", "from", "?from=txid:4", {}),
        (400, "invalid_position", "from", "?from=txid:4&clamp=true", {}),
        (400, "invalid_position", "from", "?from=time:yesterday", {}),
        (400, "invalid_position", "until", "?until=nowhere", {}),
        (400, "invalid_position", "until", "?until=txid:4", {}),
        (400, "invalid_argument", "count", "?count=0", {}),
        (400, "invalid_argument", "count", "?count=10001", {}),
        (400, "invalid_argument", "count", "?count=", {}),
        (400, "invalid_argument", "count", "?count=1&count=2", {}),
        (400, "invalid_argument", "bytes", "?bytes=17MiB", {}),
        (400, "invalid_argument", "bytes", "?bytes=-1", {}),
        (400, "invalid_argument", "wait", "?wait=61s", {}),
        (400, "invalid_argument", "wait", "?wait=5", {}),
        (400, "invalid_argument", "clamp", "?clamp=yes", {}),
        (400, "invalid_argument", "Duramen-Format", "", {"duramen_format": "hex"}),
        (406, "not_acceptable", "Accept", "", {"accept": "image/png"}),
        (416, "beyond_tail", "from", "?from=seq:32", {}),
        (416, "beyond_tail", "from", "?from=dlsn:e3n3s1", {}),
    ],
)
def test_bad_input_gets_its_code_and_field(
    status: int, code: str, field: str | None, query: str, headers: dict[str, str]
) -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        problem = await world.problem(status, code, field, query, **headers)
        if status == 416:
            assert problem["tail"]["seq_num"] == 31

    run(scenario)


def test_paths_and_methods_that_are_not_served_are_problems() -> None:
    async def scenario(world: World) -> None:
        await world.problem(404, "invalid_argument", "path", "/tail/x")
        response = await world.http.delete(RECORDS)
        problem = response.json()
        assert (response.status_code, problem["status"]) == (405, 405)
        assert (problem["code"], problem["field"]) == ("invalid_argument", "method")

    run(scenario)


def test_a_binary_read_ends_with_the_batch_that_reaches_the_count() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        response = await world.get("?count=1", accept="application/vnd.duramen.batch")
        # The first batch holds two records; whole batches are the binary form's unit.
        assert response.headers["duramen-next"] == "seq:2"

    run(scenario)


def test_unknown_names_are_told_apart() -> None:
    async def scenario(world: World) -> None:
        for path, status, code in (
            ("/v1/namespaces/other/logs/log/records", 404, "namespace_not_found"),
            ("/v1/namespaces/ns/logs/other/records", 404, "log_not_found"),
            ("/v1/namespaces/ns/logs/.sys/records", 400, "invalid_name"),
            ("/v1/namespaces/NS/logs/log", 400, "invalid_name"),
        ):
            response = await world.http.get(path)
            assert (response.status_code, response.json()["code"]) == (status, code)
        await world.put(PATHS.name("ns", "other"), encode_node({"log_id": str(LOG)}))
        response = await world.http.get("/v1/namespaces/ns/logs/other/records")
        assert response.status_code == 200

    run(scenario)


def test_it_registers_and_refuses_when_it_stops() -> None:
    async def scenario(world: World) -> None:
        found = await world.store.get(f"{PATHS.read_proxies}/rp-0")
        assert found is not None and found.ephemeral_session
        assert json.loads(found.data)["data_url"] == f"http://127.0.0.1:{world.proxy.port}"
        assert understands(json.loads(found.data), PROCESS_FORMATS)
        assert world.proxy.is_ready()
        await world.proxy.stop()
        assert not world.proxy.is_ready()

    run(scenario)


def test_what_comes_while_it_stops_is_sent_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        may_end, is_ending = asyncio.Event(), asyncio.Event()

        async def wait_none(_timeout_s: float) -> None:
            is_ending.set()
            await may_end.wait()

        monkeypatch.setattr(world.proxy.streams, "wait_none", wait_none)
        stopping = asyncio.create_task(world.proxy.stop())
        await is_ending.wait()
        try:
            for query in ("?from=seq:0&count=5", "/tail"):
                await world.problem(503, "server_draining", None, query)
        finally:
            may_end.set()
            await stopping

    run(scenario)
