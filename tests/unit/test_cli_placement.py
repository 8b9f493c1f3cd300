"""`duramen bookies|regions|placement` against a server that plays a write proxy's admin port.

What is checked is what a user sees: lines, JSON, exit codes, and what is asked of the server.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from duramen.cli.main import main
from tests.unit.fake_proxy import FakeProxy, admin

__all__ = ["admin"]

BOOKIE = {
    "id": "bookie-0", "incarnation": "ab" * 16, "region": "x", "rack": "a", "state": "rw",
    "duty": "draining", "weight": 2.0, "free_bytes": (3 << 30) + 5, "takes_new_data": False,
    "doubtful": True, "steady_in_s": 12,
}  # fmt: skip
REGIONS = {
    "closed": ["y"],
    "regions": [{"region": "y", "bookies": 3, "takes_new_data": 0, "closed": True}],
}
PLACEMENT = "/v1/cluster/logs/shop/orders/placement"
VIOLATION = {
    "epoch": 3, "first_entry": 17, "kind": "racks", "found": 2, "limit": 2, "detail": "2 of 3 lie",
    "write_set": [
        {"bookie": "b1", "region": "x", "rack": "a", "owed": False},
        {"bookie": "b2", "region": "", "rack": "", "owed": True},
    ],
}  # fmt: skip

Captured = pytest.CaptureFixture[str]


def test_bookies_are_listed_with_place_duty_and_room(
    admin: FakeProxy, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    admin.answers["/v1/cluster/bookies"] = {"bookies": [BOOKIE]}
    assert main(["bookies"]) == 0
    shown = capsys.readouterr().out
    for text in ("bookie-0", "abababab", "draining", "3GiB", "2.0", "no", "in 12 s"):
        assert text in shown, text
    assert "ab" * 16 in shown, "accept-loss asks for all of it"
    assert main(["bookies", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bookies"] == [BOOKIE]


def test_a_bookie_is_located_by_what_is_given_and_by_nothing_else(
    admin: FakeProxy, capsys: Captured
) -> None:
    path = "/v1/cluster/bookies/bookie-0"
    admin.answers[path] = {"id": "bookie-0", "region": "x", "rack": "c", "weight": 0.0}
    assert main(["bookies", "locate", "bookie-0", "--rack", "c", "--weight", "0"]) == 0
    assert capsys.readouterr().out == "bookie-0: region x, rack c, weight 0.0\n"
    assert admin.asked == [(path, {"rack": "c", "weight": 0.0})]
    assert main(["bookies", "locate", "bookie-0", "--storage-capacity", "2"]) == 0
    assert admin.asked.pop() == (path, {"weight": 2.0})
    assert main(["bookies", "locate", "bookie-0", "--from-flags"]) == 0
    assert "its flags count from its next start on" in capsys.readouterr().out
    assert admin.asked[1:] == [(path, {"from_flags": True})]
    assert main(["bookies", "locate", "bookie-0"]) == 2
    assert "--region, --rack or --storage-capacity" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "closed"), [(["close", "x"], ["x", "y"]), (["open", "y"], []), (["open", "x"], ["y"])]
)
def test_a_region_is_closed_beside_the_others(
    admin: FakeProxy, capsys: Captured, words: list[str], closed: list[str]
) -> None:
    path = "/v1/cluster/regions"
    admin.answers[path] = REGIONS
    assert main(["regions", *words]) == 0
    assert admin.asked == [(path, None), (path, {"closed": closed})]
    assert main(["regions", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == REGIONS


NODESET: dict[str, Any] = {
    "node": 3, "rack": 2, "region": 1, "extras": 1, "tolerate": 1, "refusal": None,
    "nodes": [
        {"bookie": "b1", "region": "x", "rack": "a", "absent": True},
        {"bookie": "b2", "region": "", "rack": "", "absent": False},
    ],
    "waived": ["too few"], "may_be_away": ["any 1 node", "any one rack"], "reopens": ["b3 joins"],
    "places": [
        {"kind": "rack", "place": "x/a", "nodes": 1, "appendable": True, "recoverable": True},
        {"kind": "rack", "place": "", "nodes": 2, "appendable": False, "recoverable": True},
        {"kind": "region", "place": "x", "nodes": 3, "appendable": True, "recoverable": False},
        {"kind": "region", "place": "y", "nodes": 3, "appendable": False, "recoverable": False},
    ],
}  # fmt: skip


def test_the_nodeset_of_a_flexible_log_is_explained(admin: FakeProxy, capsys: Captured) -> None:
    answer = {"segments": 1, "fragments": 0, "violations": 0, "shown": [], "nodeset": NODESET}
    admin.answers[PLACEMENT] = answer
    assert main(["placement", "check", "shop/orders"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "copies of an entry: node 3, rack 2, region 1, extras 1",
        "nodeset: 2 bookies: b1(x/a, absent) b2(?/?)",
        "may be away: any 1 node or any one rack",
        "without rack x/a (1 bookie): appends and recovery go on",
        "without the unknown place (2 bookies): appends wait; recovery goes on",
        "without region x (3 bookies): appends go on; what was stored last may lie there alone: "
        "no recovery",
        "without region y (3 bookies): appends and recovery wait",
        "waived: too few",
        "the open epoch makes way: b3 joins",
        "shop/orders: 0 violations in 1 segment",
    ]
    refused = {**NODESET, "refusal": "2 bookies are less", "nodes": []}
    admin.answers[PLACEMENT] = {**answer, "fragments": 4, "nodeset": refused}
    assert main(["placement", "check", "shop/orders"]) == 1, "it could not be appended to"
    assert capsys.readouterr().out.splitlines() == [
        "copies of an entry: node 3, rack 2, region 1, extras 1",
        "nodeset: none can be chosen: 2 bookies are less",
        "shop/orders: 0 violations in 4 fragments of 1 segment",
    ]
    admin.answers[PLACEMENT] = {**answer, "nodeset": {**NODESET, "may_be_away": []}}
    assert main(["placement", "check", "shop/orders"]) == 0
    assert "may be away: nobody" in capsys.readouterr().out


@pytest.mark.parametrize(("shown", "code"), [([], 0), ([VIOLATION], 1)])
def test_a_violation_is_told_with_its_write_set_and_fails(
    admin: FakeProxy, capsys: Captured, shown: list[Any], code: int
) -> None:
    answer = {"segments": 4, "fragments": 5, "violations": len(shown), "shown": shown}
    admin.answers[PLACEMENT] = answer
    assert main(["placement", "check", "shop/orders"]) == code
    lines = capsys.readouterr().out.splitlines()
    assert (
        lines[-1]
        == f"shop/orders: {code} violation{'' if code else 's'} in 5 fragments of 4 segments"
    )
    if code:
        assert lines[0] == "e3 from entry 17: b1(x/a) b2(?/?, owed): 2 of 3 lie"
    assert main(["placement", "check", "shop/orders", "--json"]) == code
    assert json.loads(capsys.readouterr().out) == answer
