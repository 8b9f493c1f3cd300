"""`duramen sql` and `duramen top` against a server that plays both proxies and the admin port.

What is checked is what a user sees, and what is asked of the server: only what a statement reads,
in pages, and never more than the bounds allow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from duramen.cli.live import query
from duramen.cli.live.query import Database, QueryError
from duramen.cli.live.tables import TABLES
from duramen.cli.live.view import render, summarize
from duramen.cli.main import main
from duramen.errors import DuramenError
from tests.unit.cluster_answers import BOOKIE, OWNED, REPAIR
from tests.unit.fake_proxy import FakeProxy, running_proxy

NAMESPACES = "/v1/namespaces?limit=1000"
SHOP_LOGS = "/v1/namespaces/shop/logs?limit=1000"
MEMBERS = [{"bookie": f"b{index}", "incarnation": "i"} for index in range(3)]
SEGMENT = {
    "epoch": 1, "ledger_id": "4294967297", "state": "CLOSED", "status": "active", "records": 10,
    "bytes": 100, "start_seq_num": 0, "last_entry": 4, "lost": [[1, 2]], "created": "t",
    "completed": "u", "ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2,
    "fragments": [{"first_entry": 0, "ensemble": MEMBERS}],
}  # fmt: skip
NODE = {
    "number": 0, "bookie": "b0", "incarnation": "i", "region": "x", "rack": "a", "weight": 1.0,
    "role": "own",
}  # fmt: skip
FLEXIBLE = {
    **{n: v for n, v in SEGMENT.items() if n not in ("fragments",) and "_quorum" not in n},
    "property": {"node": 3, "rack": 2, "region": 1}, "nodes": [NODE],
}  # fmt: skip
OWNERS: dict[str, Any] = {
    "logs": [OWNED, {**OWNED, "log_id": "2", "name": None, "bytes_per_s": 9_000_000}],
    "sequencers": [{"id": "s1", "weight": 1.0}, {"id": "s2", "weight": 2.0}],
    "silent": [],
}
BOOKIES = {"bookies": [BOOKIE, {**BOOKIE, "id": "b1", "free_bytes": None, "state": "absent"}]}
JOURNALS = {"journals": [{"bookie": "b0", "waiting_bytes": 4096, "sync_us_last": 1_234}]}


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeProxy]:
    with running_proxy() as server:
        monkeypatch.setenv("DURAMEN_URL", server.url)
        monkeypatch.setenv("DURAMEN_ADMIN_URL", server.url)
        names = [{"namespace": "shop"}]
        server.answers[NAMESPACES] = {"namespaces": names, "has_more": False}
        logs = [{"namespace": "shop", "name": name, "log_id": "1"} for name in "ab"]
        server.answers[SHOP_LOGS] = {"logs": logs, "has_more": False}
        for name in "ab":
            path = f"/v1/namespaces/shop/logs/{name}/segments"
            server.answers[path] = {"segments": [SEGMENT]}
        server.answers["/v1/cluster/owners"] = OWNERS
        server.answers["/v1/cluster/bookies"] = BOOKIES
        server.answers["/v1/cluster/journals"] = JOURNALS
        server.answers["/v1/cluster/repair"] = REPAIR
        yield server


def run_empty(statement: str) -> list[Any]:
    """The rows over empty tables."""
    database = Database(1)
    database.tables_of(statement)
    return list(database.select(statement)[1])


# --- sql -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "tables"),
    [
        ("select 1", []),
        ("select count(*) from logs", ["logs"]),
        ("select log from owners join logs using (log)", ["logs", "owners"]),
        ("select * from bookies where bookie in (select bookie from fragments)",
         ["fragments", "bookies"]),
        ("with x as (select * from segments) select * from x", ["segments"]),
        ("select 1 where exists (select 1 from repairs)", ["repairs"]),
    ],
)  # fmt: skip
def test_only_the_tables_that_a_statement_reads_are_named(
    statement: str, tables: list[str]
) -> None:
    assert [table.name for table in Database(1).tables_of(statement)] == tables


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("select * from nope", "no such table: nope; there are namespaces, logs, segments"),
        ("select colour from logs", "no such column: colour; logs has log, namespace, name"),
        ("delete from logs", "only SELECT is allowed"),
        ("attach ':memory:' as x", "only SELECT is allowed"),
        ("pragma writable_schema = 1", "only SELECT is allowed"),
        ("create table x (y)", "only SELECT is allowed"),
        ("begin", "only SELECT is allowed"),
        ("select load_extension('x')", "only SELECT is allowed"),
        ("select 1; select 2", "one statement at a time"),
        ("query plan select 1", "syntax error"),
        ("", "incomplete input"),
        ("select \0", "null character"),
    ],
)
def test_what_is_no_reading_is_refused(statement: str, why: str) -> None:
    with pytest.raises(QueryError, match=re.escape(why)):
        run_empty(statement)


def test_time_values_and_rows_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(0.05)
    endless = "with recursive r(n) as (select 1 union all select n + 1 from r) select {} from r"
    with pytest.raises(QueryError, match=r"ran for longer than 0\.05 s"):
        database.select(endless.format("count(*)"))
    columns, rows = database.select(endless.format("n"))
    with pytest.raises(QueryError, match="longer"):
        list(rows)
    assert columns == ["n"]
    with pytest.raises(QueryError, match="too big"):
        database.select("select zeroblob(2000000)")
    monkeypatch.setattr(query, "TABLE_ROWS_MAX", 1)
    with pytest.raises(QueryError, match="more than 1 rows: narrow it with --namespace"):
        database.load({"namespaces": [("a",), ("b",)]})


def test_rows_come_as_a_table_as_csv_and_as_json(
    proxy: FakeProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    statement = "select log, epoch, lost_entries, null as empty from segments order by log"
    assert main(["sql", statement]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [
        "log     epoch  lost_entries  empty",
        "shop/a  1      2             –",
        "shop/b  1      2             –",
    ]
    assert captured.err == "2 rows\n"
    assert main(["sql", statement, "--csv"]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        "log,epoch,lost_entries,empty", "shop/a,1,2,",
    ]  # fmt: skip
    assert (
        main(["sql", "select bookie, x'00ff' as b from fragments where place = 2", "--json"]) == 0
    )
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows == [{"bookie": "b2", "b": "00ff"}] * 2


def test_only_what_is_read_is_asked_for(proxy: FakeProxy) -> None:
    assert main(["sql", "select * from owners where sequencer = 's1'"]) == 0
    assert [path for path, _ in proxy.asked] == ["/v1/cluster/owners"]
    proxy.asked.clear()
    path = "/v1/namespaces/shop/logs/a"
    proxy.answers[path] = {"namespace": "shop", "name": "a", "log_id": "1"}
    statement = "select * from segments join fragments using (log, epoch)"
    assert main(["sql", statement, "--log", "shop/a"]) == 0
    assert [path for path, _ in proxy.asked] == [path, f"{path}/segments"]
    proxy.asked.clear()
    assert main(["sql", "select * from segments", "--namespace", "shop"]) == 0
    assert NAMESPACES not in [path for path, _ in proxy.asked]


def test_every_table_is_read_with_the_columns_it_has(
    proxy: FakeProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    holding = {"bookie": "b0", "incarnation": "i", "copies": 1, "bytes": 2, "share": 1.0}
    proxy.answers["/v1/cluster/repair/bookies"] = {"bookies": [{**holding, "fate": "here"}]}
    path = "/v1/namespaces/shop/logs/b/segments"
    proxy.answers[path] = {"segments": [FLEXIBLE]}
    for table in TABLES.values():
        assert main(["sql", f"select * from {table.name}", "--json"]) == 0
        row = json.loads(capsys.readouterr().out.splitlines()[0])
        assert list(row) == [column.name for column in table.columns]
        assert row[table.columns[0].name] is not None


def test_a_flexible_segment_has_a_property_and_nodes_and_no_fragments(
    proxy: FakeProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    proxy.answers["/v1/namespaces/shop/logs/b/segments"] = {"segments": [FLEXIBLE]}
    statement = "select log, property, write_quorum, fragments from segments order by log"
    assert main(["sql", statement, "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows == [
        {"log": "shop/a", "property": None, "write_quorum": 3, "fragments": 1},
        {
            "log": "shop/b", "property": "node 3, rack 2, region 1", "write_quorum": None,
            "fragments": None,
        },
    ]  # fmt: skip
    assert main(["sql", "select log, number, role from nodes", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows == [{"log": "shop/b", "number": 0, "role": "own"}]
    assert main(["sql", "select distinct log from fragments", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows == [{"log": "shop/a"}]


def test_too_many_logs_are_refused_and_not_cut(
    proxy: FakeProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sql", "select * from segments", "--logs-max", "1"]) == 1
    assert "more than 1: narrow it with --namespace or --log" in capsys.readouterr().err
    assert [path for path, _ in proxy.asked] == [NAMESPACES, SHOP_LOGS]


def test_pages_are_put_together(proxy: FakeProxy, capsys: pytest.CaptureFixture[str]) -> None:
    first = [{"namespace": "shop", "name": f"l{n:04}", "log_id": "1"} for n in range(1_000)]
    proxy.answers[SHOP_LOGS] = {"logs": first, "has_more": True}
    last = [{"namespace": "shop", "name": "z", "log_id": "2"}]
    proxy.answers[f"{SHOP_LOGS}&start_after=l0999"] = {"logs": last, "has_more": False}
    assert main(["sql", "select count(*) as n, max(log) as m from logs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"n": 1_001, "m": "shop/z"}


def test_owners_that_are_not_all_known_are_no_answer(
    proxy: FakeProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    proxy.answers["/v1/cluster/owners"] = {**OWNERS, "silent": ["s2"]}
    assert main(["sql", "select * from owners"]) == 1
    assert "s2 did not answer: not all owners are known" in capsys.readouterr().err


def test_a_log_that_went_meanwhile_has_no_segments(
    proxy: FakeProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = DuramenError("log_deleted", "it was deleted")
    proxy.answers["/v1/namespaces/shop/logs/a/segments"] = gone
    assert main(["sql", "select log from segments", "--csv"]) == 0
    assert capsys.readouterr().out.split() == ["log", "shop/b"]


def test_without_a_statement_tables_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql"]) == 0
    shown = capsys.readouterr().out
    assert "segments: live segments" in shown and "ack_quorum" in shown
    assert main(["sql", "--json"]) == 0
    tables = [json.loads(line)["table"] for line in capsys.readouterr().out.splitlines()]
    assert tables == list(TABLES)
    assert main(["sql", "select 1", "--json", "--csv"]) == 2
    assert main(["sql", "select * from nope"]) == 2


# --- top -----------------------------------------------------------------------------------------


def test_a_log_that_its_owner_cannot_carry_is_named_before_the_tables() -> None:
    hot = {**OWNED, "log_id": "3", "name": "shop/hot", "bytes_per_s": 0, "hot": "cpu"}
    idle = [{**OWNED, "log_id": str(100 + index), "hot": None} for index in range(30)]
    summary = summarize({"owners": {**OWNERS, "logs": [*idle, hot]}})
    assert summary["hot_logs"] == [{"log": "shop/hot", "sequencer": "s1", "reason": "cpu"}]
    lines = render(summary, columns=80, lines=24)
    assert "too hot for its owner: shop/hot at s1 (cpu)" in lines[:4]
    cool = render(summarize({"owners": OWNERS}), columns=80, lines=24)
    assert not any("too hot" in line for line in cool)


def test_a_moment_is_shown_in_lines_and_as_one_object(
    proxy: FakeProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", "--once"]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "2 logs open: 40.0 appends/s, 12.000 MB/s" in shown
    assert "repair: 3 fragments to do, 7.0 MB at 1.0 MB/s, 7 s left; 1 cannot be repaired" in shown
    assert "drain: b1 draining" in shown
    assert main(["top", "--once", "--json"]) == 0
    moment = json.loads(capsys.readouterr().out)
    assert [log["log"] for log in moment["logs"]] == ["id 2", "shop/a"]  # by load
    assert moment["sequencers"][1] == {
        "sequencer": "s2", "weight": 2.0, "logs": 0, "appends_per_s": 0, "mb_per_s": 0.0,
    }  # fmt: skip
    first, second = moment["bookies"]
    assert (first["free"], first["queue"], first["sync_ms"]) == ("3.0GiB", "4KiB", 1.2)
    assert (second["free"], second["queue"], second["state"]) == (None, None, "absent")
    assert moment["unknown"] == {}


def test_a_source_that_fails_leaves_the_others_shown(
    proxy: FakeProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    no_auditor = DuramenError("metadata_unavailable", "no sequencer is the auditor now")
    proxy.answers["/v1/cluster/repair"] = no_auditor
    assert main(["top", "--once"]) == 1
    shown = capsys.readouterr().out
    assert "repair not known: metadata_unavailable: no sequencer" in shown and "shop/a" in shown
    for path in list(proxy.answers):
        proxy.answers[path] = no_auditor
    assert main(["top", "--once"]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and "next: " in captured.err


def test_the_view_is_cut_to_the_terminal() -> None:
    everything = summarize(
        {"owners": OWNERS, "bookies": BOOKIES, "journals": JOURNALS, "repair": REPAIR}
    )
    lines = render(everything, columns=30, lines=5)
    assert len(lines) == 5 and max(map(len, lines)) <= 30
    nothing = summarize(dict.fromkeys(("owners", "bookies", "journals", "repair"), "no answer"))
    assert nothing["appends_per_s"] is None and len(nothing["unknown"]) == 4
    assert "owners not known: no answer" in render(nothing, columns=None, lines=None)
    many = {**OWNERS, "logs": [OWNED] * 100}
    assert len(summarize({"owners": many})["logs"]) == 20


def test_holes_of_segments_are_listed_and_counted(
    proxy: FakeProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    path = "/v1/namespaces/shop/logs/b/segments"
    assert main(["segments", "shop/b"]) == 0
    assert "holes" not in capsys.readouterr().out, "there are none"
    for segment in (SEGMENT, FLEXIBLE):
        proxy.answers[path] = {"segments": [{**segment, "holes": [[1, 2], [5, 5]]}]}
        assert main(["segments", "shop/b"]) == 0
        heads, row = capsys.readouterr().out.splitlines()
        assert row[heads.index("holes") :].startswith("1-2, 5-5 ")
        assert main(["sql", "select hole_entries from segments where log = 'shop/b'"]) == 0
        assert capsys.readouterr().out.split() == ["hole_entries", "3"]
