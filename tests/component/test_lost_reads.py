"""Reading a log of which entries are lost, and a person has accepted that (R15).

The world of `test_readproxy`: entries 0 to 3 of segment 1 hold the records 0-2, 3-5, 6-8 and 9-12;
its second fragment begins at entry 2. Source: R15, docs/protocol/rest.md.
"""

from __future__ import annotations

import pytest

from duramen.client import Client
from duramen.client.bulk_read import BulkReader
from duramen.client.records import Records
from duramen.client.rest_client import RestClient
from duramen.errors import DuramenError
from duramen.texts import parse_position
from tests.component.losses import lose
from tests.component.readproxy_world import NDJSON, World, check, run, seq_nums


@pytest.mark.parametrize("position", ["seq:3", "seq:5", "seq:8", "dlsn:e1n1s0", "dlsn:e1n2s1"])
def test_a_read_that_begins_in_a_loss_is_told_of_it_and_where_the_log_goes_on(
    position: str,
) -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        await lose(world, 1, 2)
        for headers in ({}, {"Accept": NDJSON}):
            problem = await world.problem(410, "data_lost", "from", f"?from={position}", **headers)
            assert problem["detail"].endswith("go on from dlsn:e1n3s0"), problem
            assert problem["next"] == "dlsn:e1n3s0"
        assert seq_nums(await world.read("?from=dlsn:e1n3s0&count=2")) == [9, 10]

    run(scenario)


def test_an_answer_ends_before_a_loss_and_does_not_say_that_this_is_the_end() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        await lose(world, 1, 2)
        answer = await world.read("?from=head")
        check(world, answer, 0, 3)
        assert "tail" not in answer
        check(world, await world.read("?from=head&until=dlsn:e1n2s0"), 0, 3)
        check(world, await world.read("?from=seq:9"), 9, 31)
        segments = (await world.http.get("/v1/namespaces/ns/logs/log/segments")).json()["segments"]
        assert [segment["lost"] for segment in segments] == [[[1, 2]], [], []]

    run(scenario)


def test_a_loss_up_to_the_end_of_a_segment_leads_to_the_next_one() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        await lose(world, 2, 3)
        for position in ("seq:6", "seq:7", "seq:12"):
            problem = await world.problem(410, "data_lost", "from", f"?from={position}")
            assert problem["detail"].endswith("go on from dlsn:e1n4s0"), problem
        check(world, await world.read("?from=dlsn:e1n4s0"), 13, 31)
        found = await world.read("?from=time:1970-01-01T00:00:01.008Z&count=1")
        assert seq_nums(found) == [13], "the first one that is there"

    run(scenario)


def test_the_sdk_goes_on_behind_losses_and_the_command_line_ends_before_them() -> None:
    async def scenario(world: World) -> None:
        await world.fill()
        await lose(world, 1, 2)
        url = str(world.http.base_url)
        async with Client(url) as client:
            log = client["ns"]["log"]
            for position, skipped in (("head", 6), ("seq:4", 5), ("dlsn:e1n1s2", 0)):
                batches = [batch async for batch in log.read(position)]
                (told,) = [batch for batch in batches if batch.lost is not None]
                assert told.lost is not None and told.lost.next == "dlsn:e1n3s0"
                assert (told.first, told.missing_count) == (9, skipped), position
                found = [body for batch in batches for body in batch.bodies]
                before = range(3) if position == "head" else range(0)
                assert found == [b"r%d" % number for number in [*before, *range(9, 31)]]
        rest = RestClient(url)
        reader = BulkReader(rest, "ns", "log", timeout_s=5)
        read: list[Records] = []
        with pytest.raises(DuramenError, match="go on from dlsn:e1n3s0"):
            await reader.run(
                parse_position("head"), "head", count=None, is_following=False, sink=read.extend
            )
        await rest.close()
        assert [body for records in read for body in records.bodies] == [b"r0", b"r1", b"r2"]

    run(scenario)
