"""One of something is singular, in every sentence of the command line that counts.

Each is made with every count 1, and nothing in it may read `1 records`.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from duramen.cli.cluster import repair as auditor
from duramen.cli.cluster import verify
from duramen.cli.figures import format_figures, summarize_append, summarize_read
from duramen.cli.live.view import render, summarize
from duramen.cli.main import main
from duramen.client.bulk_append import AppendFigures, PreparedBatch
from duramen.client.bulk_read import ReadFigures
from duramen.client.rest_client import Appended
from duramen.units import agree
from tests.unit.cluster_answers import BOOKIE, OWNED, REPAIR
from tests.unit.fake_proxy import FakeProxy, admin

__all__ = ["admin"]

REPAIR_ONE: dict[str, Any] = {
    **REPAIR, "backlog": {"tasks": 1, "left_bytes": 1, "running": 1, "running_max": 1},
    "bytes_per_s": 1, "last_round": {
        "whole": True, "logs": 1, "segments": 1, "unproved_fragments": 1, "fragments_in_doubt": 1,
        "placement_violations": 1, "unread_count": 0,
    },
    "drains": [], "unrepairable": [],
}  # fmt: skip
MOVE = {"log_id": "1", "epoch": 1, "first_entry": 0, "from": "a", "to": "b", "bytes": 1}


def check(said: str, *wanted: str) -> None:
    assert not re.search(r"(?<![\d.,])1 [a-z]+s\b(?!/)", said), said
    for text in wanted:
        assert text in said, said


def test_what_appends_and_reads_report() -> None:
    figures = AppendFigures()
    figures.on_appended(PreparedBatch(1, [b"a"], 1, b""), Appended(0, 1, "e1n0s0"), 0.1)
    check(format_figures(summarize_append(figures)), "1 record,", "1 append,")
    read = ReadFigures()
    read.record_count = 1
    check(format_figures(summarize_read(read)), "1 record,")


def test_what_the_auditor_reports(capsys: pytest.CaptureFixture[str]) -> None:
    check("\n".join(auditor._format_status(REPAIR_ONE)), "1 fragment, 1 byte,", "1 log, 1 segment")
    answer = {"dry_run": True, "moves": [MOVE], "bytes": 1, "shares": {}}
    check("\n".join(auditor._format_rebalance(answer)), "1 move to begin with, 1 byte")
    found = {
        "findings": [], "lost_entries": 1, "hole_entries": 1,
        "released_segments": 1, "segments": [{}], "entries": 1,
        "good_copies": 1, "copies": 1, "ok": False,
    }  # fmt: skip
    verify._show("a/b", found)
    check(
        capsys.readouterr().out,
        "1 segment, 1 entry, 1 of 1 copy good",
        "accepted: 1 entry",
        "acknowledged: 1 entry",
    )


def test_what_top_reports() -> None:
    owners = {"logs": [OWNED], "sequencers": [{"id": "s1", "weight": 1.0}], "silent": []}
    moment = summarize({"owners": owners, "bookies": {"bookies": [BOOKIE]}, "repair": REPAIR_ONE})
    said = "\n".join(render(moment, columns=None, lines=None))
    check(said, "1 bookie, 1 take", "1 sequencer", "1 log open:", "1 fragment to do")


def test_what_commands_report(admin: FakeProxy, capsys: pytest.CaptureFixture[str]) -> None:
    admin.answers["/v1/cluster/bookies"] = {"bookies": [BOOKIE]}
    assert main(["sql", "select * from bookies"]) == 0
    check(capsys.readouterr().err, "1 row")
    path = "/v1/cluster/logs/shop/orders/placement"
    admin.answers[path] = {"segments": 1, "fragments": 1, "violations": 1, "shown": []}
    assert main(["placement", "check", "shop/orders"]) == 1
    check(capsys.readouterr().out, "1 violation in 1 fragment of 1 segment")
    admin.answers["/v1/cluster/maintenance"] = {
        "rolling_suspended": True, "under_way": {"s1": 1}, "is_settled": False,
    }  # fmt: skip
    assert main(["maintenance", "on"]) == 1
    check(capsys.readouterr().out, "1 log")


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ("1 records in 11 segments", "1 record in 11 segments"),
        ("1 entries, 1 copies, 1 batches", "1 entry, 1 copy, 1 batch"),
        ("1,001 records at 0.1 appends, e1 segments", "1,001 records at 0.1 appends, e1 segments"),
        ("1 bytes/s", "1 bytes/s"),
        ("0 records, 2 entries", "0 records, 2 entries"),
    ],
)
def test_only_ones_are_changed(said: str, wanted: str) -> None:
    assert agree(said) == wanted
