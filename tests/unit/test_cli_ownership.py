"""`duramen owners|story|hand-over|balance` against a server that plays a write proxy's admin port.

What is checked is what a user sees: lines, JSON, exit codes, and what is asked of the server.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from duramen.cli.main import main
from duramen.errors import DuramenError
from tests.unit.fake_proxy import FakeProxy, admin

__all__ = ["admin"]

LOG_PATH = "/v1/cluster/logs/shop/orders"
EVENTS = [
    {"unix_ms": 0, "sequencer": "s1", "event": "claimed", "epoch": 3},
    {"unix_ms": 1500, "sequencer": "s1", "event": "given up", "reason": "it is gone"},
]
OWNED = {"name": "shop/orders", "sequencer": "s1", "epoch": 3, "state": "active"}


def test_owners_are_listed_and_a_silent_sequencer_is_told(
    admin: FakeProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.answers["/v1/cluster/owners"] = {"logs": [OWNED], "silent": []}
    assert main(["owners"]) == 0
    shown = capsys.readouterr().out
    assert "shop/orders" in shown and "s1" in shown
    admin.answers["/v1/cluster/owners"] = {"logs": [OWNED], "silent": ["s2"]}
    assert main(["owners", "--json"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["logs"] == [OWNED]
    assert "no answer from s2" in captured.err


def test_a_story_is_told_in_lines(admin: FakeProxy, capsys: pytest.CaptureFixture[str]) -> None:
    admin.answers[f"{LOG_PATH}/story"] = {"events": EVENTS, "silent": []}
    assert main(["story", "shop/orders"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("1970-01-01T00:00:00.000+00:00") and first.endswith("claimed e3")
    assert second.endswith("given up: it is gone")
    assert main(["story", "shop/orders", "--json", "--url", admin.url]) == 0
    assert json.loads(capsys.readouterr().out)["events"] == EVENTS


def test_a_hand_over_names_the_target_and_a_refusal_is_one_sentence(
    admin: FakeProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    path = f"{LOG_PATH}/hand-over"
    admin.answers[path] = {"from": "s1", "to": "s2", "epoch": 3, "closed": True}
    assert main(["hand-over", "shop/orders", "--to", "s2"]) == 0
    assert main(["hand-over", "shop/orders", "--json"]) == 0
    assert admin.asked == [(path, {"to": "s2"}), (path, {})]
    assert "from s1 to s2, epoch 3 closed in peace" in capsys.readouterr().out
    admin.answers[path] = DuramenError("invalid_argument", "x is not there", field="to")
    assert main(["hand-over", "shop/orders", "--to", "x"]) == 1
    assert "x is not there" in capsys.readouterr().err
    assert main(["hand-over", "orders"]) == 2


def test_balancing_shows_its_moves_and_fails_when_one_did(
    admin: FakeProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    move = {"name": "shop/orders", "from": "s1", "to": "s2", "cost": 7.5}
    admin.answers["/v1/cluster/balance"] = {"dry_run": True, "moves": [move]}
    assert main(["balance", "--dry-run", "--moves", "3"]) == 0
    assert admin.asked == [("/v1/cluster/balance", {"dry_run": True, "moves": 3})]
    assert "7.5" in capsys.readouterr().out
    moves = [{**move, "outcome": "log_unavailable: gone"}]
    admin.answers["/v1/cluster/balance"] = {"dry_run": False, "moves": moves}
    assert main(["balance", "--json"]) == 1
    admin.answers["/v1/cluster/balance"] = {"dry_run": False, "moves": []}
    capsys.readouterr()
    assert main(["balance"]) == 0
    assert "nothing to move" in capsys.readouterr().err


def test_a_sequencer_gets_another_share(
    admin: FakeProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    path = "/v1/cluster/sequencers/s-1"
    admin.answers[path] = {"id": "s-1", "sequencer_weight": 2.0}
    assert main(["weigh", "s-1", "--sequencer-weight", "2"]) == 0
    assert capsys.readouterr().out == "s-1: weight 2.0\n"
    assert main(["weigh", "s-1", "--weight", "2", "--json"]) == 0
    assert admin.asked == [(path, {"sequencer_weight": 2.0})] * 2
    assert main(["weigh", "s-1"]) == 2


def test_members_are_listed_by_what_is_said_of_them(
    admin: FakeProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    alive = [{"id": name, "state": "alive", "incarnation": 0} for name in ("s1", "s2")]
    away = [alive[0], {"id": "s2", "state": "away", "incarnation": 0}]
    views: list[dict[str, Any]] = [{"sequencer": name, "members": alive} for name in ("s1", "s2")]
    admin.answers["/v1/cluster/members"] = {"views": views, "silent": []}
    assert main(["members"]) == 0
    assert "s1, s2" in capsys.readouterr().out
    views = [{"sequencer": "s1", "members": away}, {"sequencer": "s3", "members": None}]
    admin.answers["/v1/cluster/members"] = {"views": views, "silent": ["s2"]}
    assert main(["members"]) == 1
    told = capsys.readouterr()
    assert "away" in told.out
    assert "without gossip: s3" in told.err and "no answer from s2" in told.err
    assert main(["members", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["views"] == views
