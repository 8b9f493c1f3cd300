"""The SDK's calls, one suite for both faces: appends, conditions, lists, administration, retries.

The cluster is faked behind a real socket (`sdk_world`), so that a fault comes when a test says so.
Producers and readers have modules of their own. Source: docs/sdk.md.
"""

from __future__ import annotations

import asyncio
import datetime
import inspect
from typing import Any

import pytest

import duramen.client
from duramen.client import (
    Client,
    Log,
    Namespace,
    Producer,
    Record,
    Repeat,
    RetryPolicy,
    SyncClient,
    SyncLog,
    SyncNamespace,
    SyncProducer,
    Uncertain,
    Unreachable,
)
from duramen.client.rest_client import RestClient
from duramen.cluster.layout import pick_free_port
from duramen.errors import DuramenError
from tests.component.sdk_faces import open_client
from tests.component.sdk_scenarios import bodies, face, play
from tests.component.sdk_world import (
    FakeCluster,
    LostAnswer,
    lose,
    refuse,
    running_cluster,
    serve,
    store_and_lose,
)

# --- appends -------------------------------------------------------------------------------------


@face
def test_bytes_records_and_lists_are_appended(face: str) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        log = client["ns"]["log"]
        assert (await log.append(b"one"))[:2] == (0, 1)
        noon = datetime.datetime(2026, 1, 2, 12, tzinfo=datetime.UTC)
        record = Record(b"two", [("kind", b"\xff")], txid=7, timestamp=noon)
        assert (await log.append(record))[:2] == (1, 2)
        appended = await log.append([b"three", Record(b"four", {"a": "b"}, timestamp=5)])
        assert appended[:3] == (2, 4, "e1n2s0")
        assert bodies(cluster) == [b"one", b"two", b"three", b"four"]
        _, second, third = (batch.decode() for batch in cluster.log().batches)
        assert second.headers == [((b"kind", b"\xff"),)]
        assert second.txids is not None
        assert (second.txids[0], second.timestamps_ms[0]) == (7, 1767355200000)
        assert third.headers == [(), ((b"a", b"b"),)]
        assert third.timestamps_ms[1] == 5

    play(scenario, face)


@face
@pytest.mark.parametrize(
    ("records", "code"),
    [
        ([], "invalid_argument"),
        (b"x" * (1 << 20 | 1), "record_too_large"),
        ([b"x" * (1 << 20)] * 5, "batch_too_large"),
        ([b""] * 10_001, "too_many_records"),
        ([Record(b"", txid=1), b""], "invalid_argument"),
        (Record(b"", timestamp=datetime.datetime(2026, 1, 1)), "invalid_argument"),
        (Record(b"", headers=[("name", 1)]), "invalid_argument"),  # type: ignore[list-item]
        (Record(b"", headers={"": b"nameless"}), "invalid_argument"),
        (Record(b"", headers=[("n", b"")] * 1_001), "invalid_argument"),
        (Record(b"", txid=-1), "invalid_argument"),
        ([b"bytes", "text"], "invalid_argument"),
    ],
)
def test_what_no_log_can_take_is_refused_before_it_is_sent(
    face: str, records: Any, code: str
) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        with pytest.raises(DuramenError) as refused:
            await client["ns"]["log"].append(records)
        assert refused.value.code == code
        assert not refused.value.uncertain
        assert not cluster.arrivals

    play(scenario, face)


@face
def test_conditions_hold_or_say_what_would(face: str) -> None:
    async def scenario(_cluster: FakeCluster, client: Any) -> None:
        log = client.log("ns/log")
        await log.append(b"one", match_seq_num=0)
        with pytest.raises(DuramenError) as refused:
            await log.append(b"two", match_seq_num=0)
        assert refused.value.code == "condition_failed"
        assert refused.value.facts == {"expected_seq_num": 1}
        assert (await log.fence("mine")).seq_num == 1
        with pytest.raises(DuramenError, match="fencing_token_mismatch"):
            await log.append(b"two", fencing_token="yours")
        await log.append(b"two", fencing_token="mine")
        with pytest.raises(DuramenError, match="fencing_token_mismatch"):
            await log.fence("theirs", expected="yours")

    play(scenario, face)


@face
def test_an_append_of_unknown_fate_is_repeated_and_stored_once(face: str) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        cluster.faults += [store_and_lose, refuse("log_unavailable", retry_after_ms=1), lose]
        appended = await client["ns"]["log"].append(b"one")
        assert appended.is_duplicate
        assert appended[:2] == (0, 1)
        assert bodies(cluster) == [b"one"]
        assert len(set(cluster.arrivals)) == 1
        assert client.statistics()["retries"]["taken"] == 3
        await client["ns"]["log"].append(b"two")
        first, last = cluster.arrivals[0], cluster.arrivals[-1]
        assert first is not None
        assert last == first._replace(sequence=1)

    play(scenario, face)


@face
@pytest.mark.parametrize("repeat", [Repeat.SAFE, Repeat.NONE])
def test_without_idempotence_an_unknown_fate_is_never_repeated(face: str, repeat: Repeat) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        cluster.faults.append(store_and_lose)
        with pytest.raises(Uncertain) as raised:
            await client["ns"]["log"].append(b"one")
        assert raised.value.uncertain
        assert cluster.arrivals == [None]

    play(scenario, face, retry=RetryPolicy(repeat=repeat))


@face
@pytest.mark.parametrize("repeat", list(Repeat))
def test_a_certain_refusal_is_repeated_unless_nothing_is(face: str, repeat: Repeat) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        cluster.faults += [refuse("overloaded", retry_after_ms=1)] * 2
        if repeat is Repeat.NONE:
            with pytest.raises(DuramenError, match="overloaded"):
                await client["ns"]["log"].append(b"one")
        else:
            await client["ns"]["log"].append(b"one")
        assert len(cluster.arrivals) == (1 if repeat is Repeat.NONE else 3)

    play(scenario, face, retry=RetryPolicy(repeat=repeat, within_s=5))


@face
def test_a_refusal_after_an_unknown_fate_hides_nothing(face: str) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        cluster.faults += [lose, refuse("log_ended")]
        with pytest.raises(Uncertain, match="log_ended"):
            await client["ns"]["log"].append(b"one")
        assert len(cluster.arrivals) == 2

    play(scenario, face)


@face
def test_when_the_time_is_up_the_last_refusal_is_raised(face: str) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        cluster.faults += [refuse("overloaded", retry_after_ms=60_000)]
        with pytest.raises(DuramenError, match="overloaded") as refused:
            await client["ns"]["log"].append(b"one")
        assert not refused.value.uncertain
        assert len(cluster.arrivals) == 1

    play(scenario, face)


@face
def test_what_may_still_arrive_is_never_taken_for_the_next_append(face: str) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        cluster.faults.append(store_and_lose)
        with pytest.raises(Uncertain):
            await client["ns"]["log"].append(b"one")
        await client["ns"]["log"].append(b"two")
        assert bodies(cluster) == [b"one", b"two"]

    play(scenario, face, retry=RetryPolicy(within_s=0))


@face
def test_a_forgotten_producer_is_replaced(face: str) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        log = client["ns"]["log"]
        await log.append(b"one")
        cluster.log().producers.clear()
        await log.append(b"two")
        assert bodies(cluster) == [b"one", b"two"]
        assert [p.sequence for p in cluster.arrivals if p] == [0, 1, 0]

    play(scenario, face)


@face
def test_a_producer_of_which_the_log_lost_entries_is_replaced(face: str) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        log = client["ns"]["log"]
        await log.append(b"one")
        cluster.faults.append(refuse("data_lost", field="producer"))
        await log.append(b"two")
        assert bodies(cluster) == [b"one", b"two"]
        assert [p.sequence for p in cluster.arrivals if p] == [0, 1, 0]
        cluster.faults += [refuse("data_lost", field="producer")] * 2
        with pytest.raises(DuramenError, match="data_lost"):
            await log.append(b"three")

    play(scenario, face)


def test_appends_at_once_have_a_producer_each_and_give_it_back() -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        for _ in range(2):
            await asyncio.gather(*(client["ns"]["log"].append(b"x") for _ in range(5)))
        assert len(bodies(cluster)) == 10
        assert len({p.producer_id for p in cluster.arrivals if p}) == 5

    play(scenario, "async")


# --- the fate of a token -------------------------------------------------------------------------


@face
@pytest.mark.parametrize("repeat", list(Repeat))
@pytest.mark.parametrize("expected", [None, ""])
def test_a_token_that_a_gateway_does_not_tell_of_is_uncertain(
    face: str, repeat: Repeat, expected: str | None
) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        cluster.change_faults.append(LostAnswer())
        set_token = client["ns"]["log"].fence("mine", expected=expected)
        if expected is None and repeat is not Repeat.NONE:
            assert (await set_token).seq_num == 0
        else:
            with pytest.raises(Uncertain):
                await set_token
        assert cluster.log().token == "mine"

    play(scenario, face, retry=RetryPolicy(repeat=repeat, within_s=5, first_pause_s=0.001))


@face
@pytest.mark.parametrize("expected", [None, ""])
def test_a_token_that_nobody_tells_of_is_uncertain(face: str, expected: str | None) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        cluster.is_mute = True
        with pytest.raises(Uncertain, match="append_uncertain"):
            await client["ns"]["log"].fence("mine", expected=expected)
        assert cluster.log().token == "mine"

    play(scenario, face, timeout=0.1, retry=RetryPolicy(within_s=0.05, first_pause_s=0.001))


@face
def test_a_refusal_after_a_token_of_unknown_fate_hides_nothing(face: str) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        cluster.change_faults += [LostAnswer(), DuramenError("log_ended", "by somebody")]
        with pytest.raises(Uncertain, match="log_ended"):
            await client["ns"]["log"].fence("mine")

    play(scenario, face)


@face
def test_a_change_of_one_version_that_a_gateway_does_not_tell_of_is_uncertain(face: str) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        cluster.change_faults.append(LostAnswer())
        with pytest.raises(Uncertain):
            await client["ns"]["log"].reconfigure({"roll": {"size": "64MiB"}}, version=1)
        assert cluster.log().config == {"roll": {"size": "64MiB"}}

    play(scenario, face)


@pytest.mark.parametrize(
    ("call", "is_open"),
    [
        ("PATCH ?config_version=1", True), ("PATCH ?config_version=1&log_id=1", True),
        ("PATCH ?log_id=1&config_version=1", True), ("PATCH ?log_id=1", False),
        ("POST :fence?log_id=1", True), ("POST :roll?log_id=1", False),
    ],
)  # fmt: skip
def test_what_a_gateway_does_not_tell_of_is_judged_by_the_call_and_not_by_its_spelling(
    call: str, is_open: bool
) -> None:
    method, rest = call.split()
    path = f"/v1/namespaces/ns/logs/log{rest}"

    async def scenario() -> None:
        async with running_cluster() as cluster:
            cluster.change_faults.append(LostAnswer())
            client = RestClient(cluster.url)
            asking = (
                client.post_json(path, {"token": "t"}) if method == "POST"
                else client.change_json("PATCH", path, {})
            )  # fmt: skip
            with pytest.raises(DuramenError) as lost:
                await asking
            assert lost.value.uncertain is is_open
            await client.close()

    asyncio.run(scenario())


def test_a_time_is_no_place_to_truncate_at() -> None:
    """Servers refuse it, so that no type of ours promises it (docs/protocol/rest.md)."""
    for log in (Log, SyncLog):
        assert inspect.signature(log.truncate).parameters["to"].annotation == "str | int"


# --- the rest of the calls -----------------------------------------------------------------------


@face
def test_namespaces_and_logs_are_made_and_listed_over_pages(face: str) -> None:
    async def scenario(_cluster: FakeCluster, client: Any) -> None:
        assert await client["other"].ensure()
        assert not await client["other"].ensure({})
        for name in "abcde":
            assert await client["other"][name].ensure({"roll": {"size": "64MiB"}})
        assert [log.name async for log in client["other"].logs()] == list("abcde")
        assert [log.name async for log in client["other"].logs(prefix="c")] == ["c"]
        assert [found.name async for found in client.namespaces()] == ["ns", "other"]
        assert (await client["other"].show())["namespace"] == "other"
        shown = await client["other"]["a"].show()
        assert shown["config"] == {"roll": {"size": "64MiB"}}

    play(scenario, face)


@face
def test_a_namespace_is_changed_and_deleted(face: str) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        namespace = client["other"]
        await namespace.ensure()
        changed = await namespace.reconfigure({"auto_create": True})
        assert changed == {"config": {"auto_create": True}, "changed": True}
        assert cluster.namespaces["other"] == {"auto_create": True}
        assert await namespace.delete()
        assert not await namespace.delete()
        with pytest.raises(DuramenError, match="namespace_not_empty"):
            await client["ns"].delete()

    play(scenario, face)


@face
def test_a_log_is_looked_after(face: str) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        log = client["ns"]["log"]
        await log.append([b"one", b"two"])
        assert (await log.tail())[0] == (await log.acknowledged())[0] == 2
        cluster.logs["ns", "log"].ahead = 3
        assert ((await log.tail())[0], (await log.acknowledged())[0]) == (2, 5)
        assert await log.truncate(1) == 1
        assert await log.roll() == 1
        assert (await log.segments())[0]["epoch"] == 1
        changed = await log.reconfigure({"retention": {"age": "1h"}})
        assert changed["config"] == {"retention": {"age": "1h"}}
        assert (await log.end()).seq_num == 2
        with pytest.raises(DuramenError, match="log_ended"):
            await log.append(b"three")
        assert await log.delete() == "2026-01-02T03:04:05.678Z"
        await log.undelete()
        assert not cluster.log().is_deleted

    play(scenario, face)


@face
@pytest.mark.parametrize(
    ("name", "code"), [("ns", "invalid_name"), ("NS/log", "invalid_name"), ("ns/nil", "log_not")]
)
def test_names_are_checked_and_missing_logs_are_said(face: str, name: str, code: str) -> None:
    async def scenario(_cluster: FakeCluster, client: Any) -> None:
        with pytest.raises(DuramenError, match=code):
            await client.log(name).tail()

    play(scenario, face)


@face
def test_nobody_there_is_no_doubt(face: str) -> None:
    async def run() -> None:
        url = f"http://127.0.0.1:{pick_free_port()}"
        quick = RetryPolicy(within_s=0.05, first_pause_s=0.01)
        async with open_client(face, url, retry=quick) as client:
            for call in (client["ns"]["log"].append(b"x"), client["ns"]["log"].tail()):
                with pytest.raises(Unreachable) as raised:
                    await call
                assert not raised.value.uncertain

    asyncio.run(run())


@face
@pytest.mark.parametrize("form", ["comma", "argument"])
def test_write_and_read_proxy_may_have_urls_of_their_own(face: str, form: str) -> None:
    async def run() -> None:
        async with running_cluster() as write, running_cluster() as read:
            url = f"{write.url},{read.url}" if form == "comma" else write.url
            options = {} if form == "comma" else {"read_url": read.url}
            async with open_client(face, url, **options) as client:
                await client["ns"]["log"].append(b"x")
                read.logs = write.logs
                found = [batch.bodies async for batch in client["ns"]["log"].read()]
            assert found == [[b"x"]]
            assert len(write.arrivals) == len(read.reads) == 1

    asyncio.run(run())


@pytest.mark.parametrize("url", ["localhost:7301", "http://a,http://b,http://c", ""])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(DuramenError, match="http://"):
        Client(url)


@face
def test_http1_serves_too(face: str) -> None:
    async def scenario(cluster: FakeCluster, client: Any) -> None:
        cluster.faults += [serve, store_and_lose]
        async with client["ns"]["log"].producer(linger=0, batch_records=1) as producer:
            for number in range(20):
                await producer.send(b"%d" % number)
        assert bodies(cluster) == [b"%d" % number for number in range(20)]
        assert [p.sequence for p in cluster.arrivals if p][:4] == [0, 1, 1, 2]

    play(scenario, face, http2=False)


# --- both faces ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plain", "blocking"),
    [(Client, SyncClient), (Namespace, SyncNamespace), (Log, SyncLog), (Producer, SyncProducer)],
)
def test_both_faces_have_the_same_names_and_arguments(plain: type, blocking: type) -> None:
    def format(kind: type) -> dict[str, Any]:
        named = {k: v for k, v in vars(kind).items() if not k.startswith("_") and callable(v)}
        return {
            name: [(p.name, p.kind, p.default) for p in inspect.signature(f).parameters.values()]
            for name, f in named.items()
        }

    assert format(plain) == format(blocking)


def test_every_public_name_has_a_docstring() -> None:
    for name in duramen.client.__all__:
        found = getattr(duramen.client, name)
        assert inspect.getdoc(found), name
        for member, value in vars(found).items():
            if not member.startswith("_") and (callable(value) or isinstance(value, property)):
                assert inspect.getdoc(value), f"{name}.{member}"
