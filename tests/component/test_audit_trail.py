"""The audit trail: the file takes over, the bound holds, changes wait for their records.

A log that is faked, real files, doors as they are. Source: docs/protocol/audit.md "Where records
wait", docs/protocol/audit.md "What is recorded".
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import uvloop

from duramen.backoff import Backoff
from duramen.config import NamespaceConfig
from duramen.core.audit.counts import ROW_COUNT_MAX, CallCounts, CountKey
from duramen.errors import DuramenError
from duramen.ids import LogId
from duramen.runtime.audit import spool, trail
from duramen.runtime.audit.recorded_admin import RecordedAdmin
from duramen.runtime.audit.spool import AuditSpool
from duramen.runtime.audit.trail import REFUSAL_COUNT_AT_ONCE, RESERVED_COUNT_MAX, AuditTrail
from duramen.runtime.role import StartRefusedError
from duramen.runtime.service import parse_options
from duramen.units import MS, SECOND
from duramen_writeproxy.logs.audit_log import AuditLog
from tests.component.admin_world import THROUGH, AdminPort, read_held, run, serving
from tests.component.admission_world import as_user, bear
from tests.component.audit_world import AuditLogTwin, make_trail
from tests.component.door_world import Port, World, play
from tests.component.issuing_world import IssuingWorld
from tests.pauses import let_pass
from tests.waiting import wait_for

CALL = {"who": "user:corp/ann", "from": None, "verb": "end", "target": "shop/orders",
        "outcome": "ok", "status": 200, "request": "r"}  # fmt: skip
Scenario = Callable[[], Awaitable[None]]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that is away is asked often; what is new is gathered for a moment."""
    monkeypatch.setattr(trail, "_GATHER_S", 0.01)
    monkeypatch.setattr(trail, "_BACKOFF", Backoff(10 * MS, 10 * MS))


def small(monkeypatch: pytest.MonkeyPatch, bound_bytes: int) -> None:
    for name, part in (("WAITING", 1.0), ("REFUSALS", 0.5), ("COUNTS_WAITING", 0.75)):
        monkeypatch.setattr(trail, f"{name}_BYTES_MAX", int(bound_bytes * part))


def pending(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "audit" / "pending").read_bytes().splitlines()]


async def note_until_stored(one: AuditTrail, count: int = 1) -> None:
    for _ in range(count):
        one.note(CALL)
    await wait_for(lambda: one.statistics()["waiting"] == 0)


def test_the_file_keeps_what_the_log_does_not_take_and_gives_it_in_order(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = AuditLogTwin()
        first = make_trail(log, folder=tmp_path)
        await first.start()
        await note_until_stored(first)
        await wait_for(lambda: pending(tmp_path) == [])
        log.is_away = True
        first.note(CALL)
        await wait_for(lambda: len(pending(tmp_path)) == 1)
        await wait_for(lambda: first.statistics()["log_fault"] is not None)
        await first.stop()
        assert [one["kind"] for one in pending(tmp_path)] == ["call", "end"]
        log.is_away = False
        second = make_trail(log, folder=tmp_path)
        await second.start()
        await second.stop()
        kinds = [one["kind"] for one in log.records()]
        assert kinds == ["start", "call", "call", "end", "start", "end"]
        assert log.check() == []
        assert pending(tmp_path) == []

    uvloop.run(scenario())


def test_a_killed_process_leaves_what_the_next_one_brings_and_names(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = AuditLogTwin()
        log.is_away = True
        killed = make_trail(log, folder=tmp_path)
        await killed.start()
        killed.note(CALL)
        await wait_for(lambda: len(pending(tmp_path)) == 2)
        leave(killed)
        with (tmp_path / "audit" / "pending").open("ab") as file:
            file.write(b"x" * 2_000_000 + b'\n{"v":1,"chain":"writeproxy/wp-0')
        log.is_away = False
        follower = make_trail(log, folder=tmp_path)
        await follower.start()
        await note_until_stored(follower)
        await wait_for(lambda: pending(tmp_path) == [])
        leave(follower)
        # Nothing waited in the file: the kept head names the last one.
        third = make_trail(log, folder=tmp_path)
        await third.start()
        await third.stop()
        assert log.check() == []
        starts = log.records("start")
        assert [one["former"] is None for one in starts] == [True, False, False]
        assert [one["former"][1] for one in starts[1:]] == [1, 1]

    uvloop.run(scenario())


def test_what_goes_to_the_log_is_in_the_file_before(tmp_path: Path) -> None:
    class Watching(AuditLogTwin):
        async def append(self, lines: Sequence[bytes]) -> None:
            filed = (tmp_path / "audit" / "pending").read_bytes().splitlines()
            assert set(lines) <= set(filed)
            if len(self.lines) < 10:
                # It comes while an append is under way.
                one.note(CALL)
            await super().append(lines)

    log = Watching()
    one = make_trail(log)

    async def scenario() -> None:
        nonlocal one
        one = make_trail(log, folder=tmp_path)
        await one.start()
        await wait_for(lambda: len(log.lines) >= 10)
        await one.stop()
        assert log.check() == []

    uvloop.run(scenario())


def leave(killed: AuditTrail) -> None:
    """As a kill does: nothing more is written, and the folder is free."""
    for task in killed._tasks:
        task.cancel()
    assert killed._spool is not None
    killed._spool.close()


def test_what_may_be_stored_is_sent_again_and_known_as_a_double() -> None:
    async def scenario() -> None:
        log = AuditLogTwin()
        log.is_deaf = True
        one = make_trail(log)
        await one.start()
        one.note(CALL)
        await wait_for(lambda: log.try_count > 2)
        log.is_deaf = False
        await one.stop()
        assert len(log.lines) > 3
        assert log.check() == []

    uvloop.run(scenario())


@pytest.mark.parametrize("is_back", [False, True])
def test_without_a_file_a_stop_tries_a_log_that_is_away_once_more(
    is_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And waits for nothing; each process of a cluster that is rolled meanwhile would."""
    monkeypatch.setattr(trail, "_BACKOFF", Backoff(600 * SECOND, 600 * SECOND))
    monkeypatch.setattr(trail, "_FLUSH_S", 600.0)

    async def scenario() -> None:
        log = AuditLogTwin()
        log.is_away = True
        one = make_trail(log)
        await one.start()
        one.note(CALL)
        await wait_for(lambda: one.statistics()["log_fault"] is not None)
        log.is_away, tried = not is_back, log.try_count
        async with asyncio.timeout(30):
            await one.stop()
        assert log.try_count > tried
        kinds = [told["kind"] for told in log.records()]
        assert kinds == (["start", "call", "end"] if is_back else [])

    uvloop.run(scenario())


def test_a_log_that_failed_once_at_a_stop_is_tried_again() -> None:
    """As while its sequencer goes: it is there again in a moment."""

    class Moving(AuditLogTwin):
        async def append(self, lines: Sequence[bytes]) -> None:
            self.is_away = self.try_count == 1
            await super().append(lines)

    async def scenario() -> None:
        log = Moving()
        one = make_trail(log)
        await one.start()
        await wait_for(lambda: one.statistics()["waiting"] == 0)
        await one.stop()
        assert [told["kind"] for told in log.records()] == ["start", "end"]

    uvloop.run(scenario())


def test_behind_the_bound_records_are_counted_as_lost_and_the_chain_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        small(monkeypatch, 16_384)
        log = AuditLogTwin()
        log.is_away = True
        one = make_trail(log)
        await one.start()
        for _ in range(100):
            one.note(CALL)
        waits = one.statistics()
        assert waits["waiting_bytes"] <= 16_384
        assert waits["waiting"] - 1 + waits["lost"] == 100
        log.is_away = False
        await note_until_stored(one, 0)
        one.note(CALL)
        await one.stop()
        assert [told["lost"] for told in log.records("lost")] == [waits["lost"]]
        assert log.check() == []

    uvloop.run(scenario())


def test_refusals_leave_room_for_changes_and_are_counted_beyond_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        small(monkeypatch, 32_768)
        log = AuditLogTwin()
        log.is_away = True
        one = make_trail(log)
        await one.start()
        noted = sum(one.note_refusal(CALL) for _ in range(100))
        assert 0 < noted < 100
        assert one.statistics()["waiting_bytes"] <= 16_384
        one.note(CALL)
        assert one.statistics()["lost"] == 0
        log.is_away = False
        await one.stop()

    uvloop.run(scenario())


def test_refusals_beyond_their_rate_are_counted() -> None:
    async def scenario() -> None:
        one = make_trail(AuditLogTwin())
        await one.start()
        noted = sum(one.note_refusal(CALL) for _ in range(2_000))
        assert REFUSAL_COUNT_AT_ONCE <= noted < 1_000
        await one.stop()

    uvloop.run(scenario())


def test_counts_have_a_bound_and_leave_no_call_out() -> None:
    async def scenario() -> None:
        log = AuditLogTwin()
        one = make_trail(log)
        await one.start()
        who = "user:corp/" + '"' * 255
        for number in range(ROW_COUNT_MAX + 50):
            one.count(CountKey(f"{who}{number}", "shop", "append", "ok"))
        await one.stop()
        rows = [row for told in log.records("counts") for row in told["counts"]]
        assert sum(row[4] for row in rows) == ROW_COUNT_MAX + 50
        assert ["others", None, "append", "ok", 50] in rows
        assert log.check() == []

    uvloop.run(scenario())


def test_a_change_needs_room_for_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        small(monkeypatch, 16_384)
        log = AuditLogTwin()
        log.is_away = True
        one = make_trail(log, folder=tmp_path, is_required=True)
        await one.start()
        let_in = 3
        assert all(one.reserve("user:corp/ann") for _ in range(let_in))
        with pytest.raises(DuramenError, match="audit_unavailable") as refused:
            one.reserve("user:corp/ann")
        assert refused.value.kind.status == 503
        # Whoever was let in finds room, whatever came between.
        for _ in range(100):
            one.note_refusal(CALL)
        for _ in range(let_in):
            one.release("user:corp/ann")
            one.note(CALL)
        assert (one.statistics()["lost"], one.statistics()["reserved"]) == (0, 0)
        log.is_away = False
        await note_until_stored(one, 0)
        assert one.reserve("user:corp/ann")
        await one.stop()
        assert log.check() == []

    uvloop.run(scenario())


def test_who_has_many_changes_under_way_leaves_room_for_those_of_others() -> None:
    async def scenario() -> None:
        one = make_trail(AuditLogTwin(), is_required=True)
        await one.start()
        for _ in range(RESERVED_COUNT_MAX):
            one.reserve("user:corp/ann")
        with pytest.raises(DuramenError, match="rate_limited") as refused:
            one.reserve("user:corp/ann")
        assert refused.value.kind.status == 429
        assert one.reserve("user:corp/bob")
        one.release("user:corp/ann")
        assert one.reserve("user:corp/ann")
        await one.stop()

    uvloop.run(scenario())


def test_a_call_that_outlives_the_stop_is_lost_and_no_forgery(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(trail, "_COUNTED_S", 0.01)
        one: AuditTrail

        class Late(AuditLogTwin):
            async def append(self, lines: Sequence[bytes]) -> None:
                await super().append(lines)
                if self.records("end") and not one.statistics()["lost"]:
                    one.note(CALL)
                    assert not one.note_refusal(CALL)
                    one.count(CountKey(None, None, None, "refused"))
                    await let_pass(0.05, what="another minute, for what was counted")

        log = Late()
        one = make_trail(log)
        await one.start()
        await one.stop()
        assert [told["kind"] for told in log.records()] == ["start", "end"]
        assert one.statistics()["lost"] == 1
        assert log.check() == []

    uvloop.run(scenario())


def test_what_nobody_expects_is_told_and_ends_no_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Odd(AuditLogTwin):
        is_odd = True

        async def append(self, lines: Sequence[bytes]) -> None:
            if self.is_odd:
                raise ValueError("as nobody expects")
            await super().append(lines)

    def fail(*_: object) -> None:
        raise ValueError("as nobody expects")

    async def scenario() -> None:
        monkeypatch.setattr(trail, "_COUNTED_S", 0.01)
        log = Odd()
        one = make_trail(log, folder=tmp_path)
        await one.start()
        with monkeypatch.context() as odd:
            odd.setattr(AuditSpool, "add", fail)
            odd.setattr(AuditSpool, "rewrite", fail)
            odd.setattr(CallCounts, "take", fail)
            one.note(CALL)
            one.count(CountKey(None, None, None, "refused"))
            await wait_for(lambda: "what was counted" in caplog.text)
            await wait_for(lambda: one.statistics()["file_fault"] == "as nobody expects")
            await wait_for(lambda: one.statistics()["log_fault"] == "as nobody expects")
        log.is_odd = False
        await note_until_stored(one)
        await one.stop()
        assert len(log.records("call")) == 2 and log.records("counts")
        assert log.check() == []

    uvloop.run(scenario())


def test_a_file_that_cannot_be_written_refuses_changes_only_while_the_log_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    async def scenario() -> None:
        log = AuditLogTwin()
        log.is_away = True
        one = make_trail(log, folder=tmp_path, is_required=True)
        await one.start()
        await wait_for(lambda: len(pending(tmp_path)) == 1)
        with monkeypatch.context() as full:
            full.setattr(AuditSpool, "add", fail)
            full.setattr(AuditSpool, "rewrite", fail)
            one.note(CALL)
            await wait_for(lambda: one.statistics()["file_fault"] is not None)
            with pytest.raises(DuramenError, match="audit_unavailable"):
                one.reserve("user:corp/ann")
        one.note(CALL)
        await wait_for(lambda: one.statistics()["file_fault"] is None)
        assert len(pending(tmp_path)) == 3
        assert one.reserve("user:corp/ann")
        log.is_away = False
        await one.stop()
        assert log.check() == []

    uvloop.run(scenario())


def test_the_file_is_written_anew_before_it_grows_beyond_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(spool, "_FILE_BYTES_MAX", 4_000)
        log = AuditLogTwin()
        log.is_away = True
        one = make_trail(log, folder=tmp_path)
        await one.start()
        for count in range(2, 30):
            one.note(CALL)

            def is_there(wanted: int = count) -> bool:
                return len(pending(tmp_path)) == wanted

            await wait_for(is_there)
        log.is_away = False
        await one.stop()
        assert log.check() == []

    uvloop.run(scenario())


def test_a_folder_is_of_one_process(tmp_path: Path) -> None:
    held = AuditSpool(tmp_path)
    held.open()
    with pytest.raises(StartRefusedError, match="is held by another process"):
        AuditSpool(tmp_path).open()
    held.close()
    AuditSpool(tmp_path).open()


@pytest.mark.parametrize(
    ("more", "why"),
    [(["--security", "none"], "--security on alone"),
     (["--security", "on", "--tls-dir", "x"], "give --data-dir")],
)  # fmt: skip
def test_requiring_audit_needs_identities_and_a_folder(
    more: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--cluster", "c", "--id", "n", "--zookeeper", "z:1", "--data-port", "1"]
    with pytest.raises(SystemExit):
        parse_options("writeproxy", [*given, "--admin-port", "2", "--audit-require", *more])
    assert why in capsys.readouterr().err


def test_doors_record_changes_and_refusals_and_count_the_rest(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.callers.give("own owner shop")
        write, read = world.ports
        own = as_user("own")

        async def is_given() -> bool:
            answers = [await port.call("GET", "/v1/namespaces/shop", own) for port in world.ports]
            return {answer.status for answer in answers} == {200}

        await wait_for(is_given)
        for port in world.ports:
            await port.trail.start()
        records = "/v1/namespaces/shop/logs/orders/records"
        answer = await write.call("POST", "/v1/namespaces/shop/logs/orders:truncate", own)
        await write.call("POST", records, own)
        await write.call("POST", records, own)
        await write.call("GET", records, own)
        await write.call("POST", "/v1/namespaces/stock/logs/orders:end", own)
        await write.call("PUT", "/v1/grants", own)
        await write.call("GET", "/somewhere?token=dur1_secret", bear("dur1_secret"))
        await read.call("POST", "/v1/namespaces/shop/logs/orders:end", own)
        for port in world.ports:
            await port.trail.stop()
            assert port.audit_log.check() == []
        told = [
            (one["who"], one["verb"], one["target"], one["outcome"], one["status"])
            for one in write.audit_log.records("call")
            if one["verb"] != "list"
        ]
        assert told == [
            ("user:corp/own", "truncate", "shop/orders", "ok", 200),
            ("user:corp/own", "end", "stock/orders", "refused", 403),
            ("user:corp/own", "grant", "grants", "ok", 200),
            (None, None, None, "refused", 401),
        ]
        ids = [one["request"] for one in write.audit_log.records("call")]
        assert answer.headers["duramen-request"] in ids
        # The read is the other proxy's to count.
        (counts,) = write.audit_log.records("counts")
        assert ["user:corp/own", "shop", "append", "ok", 2] in counts["counts"]
        assert "read" not in {row[2] for row in counts["counts"]}
        forwarded = read.audit_log.records("call")[-1]
        assert (forwarded["verb"], forwarded["forwarded"]) == ("end", True)
        assert b"secret" not in b"".join(write.audit_log.lines)

    play(tmp_path, scenario)


def test_the_system_namespace_is_the_proxies_to_write_and_the_observers_to_read(
    tmp_path: Path,
) -> None:
    async def scenario(world: World) -> None:
        await world.callers.give("boss owner *", "eye monitor *", "sly owner duramen-system")

        async def is_given() -> bool:
            return (
                await world.ports[0].call("DELETE", "/v1/namespaces/ns/logs/log", as_user("boss"))
            ).status == 200

        await wait_for(is_given)
        log = "/v1/namespaces/duramen-system/logs/audit"
        port = world.ports[0]
        for name in ("boss", "sly", "eye"):
            shown = as_user(name)
            for verb in ("truncate", "end", "fence", "roll", "undelete"):
                assert (await port.call("POST", f"{log}:{verb}", shown)).status == 403
            assert (await port.call("DELETE", log, shown)).status == 403
            assert (await port.call("POST", f"{log}/records", shown)).status == 403
            if name != "eye":
                assert (await port.call("GET", f"{log}/records", shown)).status == 403

        async def may_read() -> bool:
            answer = await port.call("GET", f"{log}/records", as_user("eye"))
            return answer.status == 200

        await wait_for(may_read)
        proxy = world.callers.identify("readproxy", "rp-0", port.receiver)
        assert (await port.call("POST", f"{log}/records", proxy)).status == 200
        assert (await port.call("DELETE", log, proxy)).status == 403
        op = world.callers.identify("operator", "op", port.receiver)
        assert (await port.call("PATCH", log, op)).status == 200
        assert (await port.call("PATCH", log, as_user("boss"))).status == 403
        assert (await port.call("DELETE", log, op)).status == 403

    play(tmp_path, scenario)


def test_a_door_refuses_changes_that_nobody_could_record_and_lets_the_rest_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(world: World) -> None:
        small(monkeypatch, 0)
        op = world.callers.identify("operator", "op", world.ports[0].receiver)
        port = Port(world.ports[0].receiver, world.admissions[0], is_audit_required=True)
        await port.trail.start()
        log = "/v1/namespaces/shop/logs/orders"
        refused = await port.call("POST", f"{log}:truncate", op)
        assert (refused.status, json.loads(refused.body)["code"]) == (503, "audit_unavailable")
        assert port.reached == []
        for method, path in (("POST", f"{log}/records"), ("GET", log), ("GET", "/v1/grants")):
            assert (await port.call(method, path, op)).status == 200
        await port.trail.stop()

    play(tmp_path, scenario)


def test_changes_that_are_refused_behind_the_door_have_the_bound_of_refusals(
    tmp_path: Path,
) -> None:
    async def scenario(world: World) -> None:
        port = Port(world.ports[0].receiver, world.admissions[0], is_audit_required=True)
        op = world.callers.identify("operator", "op", port.receiver)
        await port.trail.start()
        truncate = "/v1/namespaces/shop/logs/orders:truncate"
        once = int(REFUSAL_COUNT_AT_ONCE)
        port.status = 429
        for _ in range(once):
            await port.call("POST", truncate, op)
        port.status = 403
        for _ in range(2 * once):
            await port.call("POST", truncate, op)
        assert port.trail.statistics()["reserved"] == 0
        await port.trail.stop()
        noted = [one["status"] for one in port.audit_log.records("call")]
        assert set(noted) == {403}, "what limits refuse is counted"
        assert once <= len(noted) < 2 * once
        (row,) = [row for told in port.audit_log.records("counts") for row in told["counts"]]
        assert row == ["service:operator/op", "shop", "truncate", "refused", 3 * once - len(noted)]

    play(tmp_path, scenario)


def test_the_audit_log_is_made_as_older_sequencers_know_namespaces() -> None:
    made: list[dict[str, Any]] = []

    class Catalog:
        """No log is found, and whoever makes one is noted."""

        async def find(self, *_: str) -> LogId:
            raise DuramenError("namespace_not_found", "there is none")

        async def create_namespace(self, _: str, config: dict[str, Any]) -> None:
            made.append(config)

        async def create_log(self, *_: Any) -> None:
            """Nobody looks at it."""

    async def scenario() -> None:
        catalog: Any = Catalog()
        with pytest.raises(DuramenError, match="namespace_not_found"):
            await AuditLog(catalog, catalog, catalog, catalog).append([b"{}"])

    uvloop.run(scenario())
    assert made == [NamespaceConfig().to_stored()] != [NamespaceConfig().to_json()]


def test_admin_ports_record_what_operates_and_who_is_refused(tmp_path: Path) -> None:
    world = IssuingWorld(tmp_path)
    shown = {role: read_held(world.issue(role, f"{role}-9")) for role in ("operator", "monitor")}

    async def scenario() -> None:
        log = AuditLogTwin()
        one = make_trail(log)
        async with serving(AdminPort(world, "writeproxy")) as port:
            port.security.admin_records = RecordedAdmin(one)
            drain = "/v1/cluster/bookies/b-7/drain?token=secret"
            async with port.open_client(shown["operator"]) as client:
                await client.post(drain)
                assert log.lines == [], "the trail has not begun"
                await one.start()
                for path in (drain, "/v1/cluster/rebalance"):
                    assert (await client.post(path)).status_code == THROUGH
                await client.get("/metrics")
            async with port.open_client(shown["monitor"]) as client:
                assert (await client.post(drain)).status_code in (403, 503)
                assert (await client.get("/metrics")).status_code == THROUGH
            async with port.open_client(None) as client:
                assert (await client.get("/metrics")).status_code == 401
        await one.stop()
        told = [
            (call["who"], call["verb"], call.get("call"), call["outcome"])
            for call in log.records("call")
        ]
        assert told == [
            ("service:operator/operator-9", "operate",
             "POST /v1/cluster/bookies/{bookie}/drain", "ok"),
            ("service:operator/operator-9", "operate", "POST /v1/cluster/rebalance", "ok"),
            ("service:monitor/monitor-9", "operate", None, "refused"),
            (None, "observe", None, "refused"),
        ]  # fmt: skip
        assert log.check() == []

    run(scenario())
