"""`duramen repair|drain|rebalance|disruption|disruptions|accept-loss` against a server that plays
an admin port.

What is checked is what a user sees: lines, JSON, exit codes, and what is asked of the server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from duramen.cli.cluster import repair as commands
from duramen.cli.main import main
from duramen.errors import DuramenError
from tests.unit.fake_proxy import FakeProxy, admin

__all__ = ["admin"]

Out = pytest.CaptureFixture[str]
CLUSTER = "/v1/cluster"
STATUS: dict[str, Any] = {
    "auditor": "s0",
    "backlog": {"tasks": 2, "left_bytes": 300, "running": 1, "running_max": 8},
    "bytes_per_s": 100,
    "estimate_s": 3,
    "unrepairable": [],
    "drains": [],
    "last_round": {"whole": True, "logs": 4, "segments": 9, "unproved_fragments": 1,
                   "fragments_in_doubt": 2, "placement_violations": 0, "unread_count": 0},
}  # fmt: skip
FLAWED = {
    "log_id": "5", "epoch": 2, "first_entry": 0, "reason": "2 entries have no copy",
    "ranges": [{"first": 3, "last": 4, "bookie": "b1", "why": "absent"}],
}  # fmt: skip
DENIED = {
    "allowed": False,
    "reasons": [{"code": "too_few_copies", "detail": "fewer than ack_quorum", "count": 2}],
    "logs_at_risk": ["shop/orders"],
    "logs_at_risk_count": 7,
}


def test_status_is_a_failure_only_when_something_is_unrepairable(
    admin: FakeProxy, capsys: Out
) -> None:
    admin.answers[f"{CLUSTER}/repair"] = STATUS
    assert main(["repair", "status"]) == 0
    shown = capsys.readouterr().out
    assert "backlog 2 fragments, 300 bytes, estimate 3 s" in shown and "auditor s0" in shown
    assert "1 unproved, 2 in doubt, 0 misplaced" in shown
    admin.answers[f"{CLUSTER}/repair"] = {**STATUS, "unrepairable": [FLAWED], "estimate_s": None}
    assert main(["repair", "status"]) == 1
    shown = capsys.readouterr().out
    assert "unrepairable log 5 epoch 2" in shown and "3-4 at b1: absent" in shown
    assert main(["repair", "status", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["unrepairable"] == [FLAWED]


def test_disruption_answers_with_its_exit_code(admin: FakeProxy, capsys: Out) -> None:
    path = f"{CLUSTER}/bookies/b1/disruption?kind="
    allowed = {**DENIED, "allowed": True, "reasons": [], "logs_at_risk": [],
               "logs_at_risk_count": 0}  # fmt: skip
    admin.answers[f"{path}restart"] = allowed
    admin.answers[f"{path}remove"] = DENIED
    assert main(["disruption", "b1", "--kind", "restart"]) == 0
    assert capsys.readouterr().out == "b1: restart allowed\n"
    assert main(["disruption", "b1", "--kind", "remove"]) == 1
    shown = capsys.readouterr().out
    assert "too_few_copies (2)" in shown and "7 logs in all" in shown
    assert main(["disruption", "b1", "--kind", "remove", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == DENIED
    assert main(["disruption", "b1", "--kind", "explode"]) == 2
    assert main(["disruption", "b1"]) == 2


GRANT = {
    "token": "f" * 32, "target": "bookie/b1", "kind": "restart", "holder": "ann@desk",
    "life_ms": 90_000, "over_in_ms": 95_000, "granted_unix_ms": 5, "accepts": [],
}  # fmt: skip


def test_a_grant_is_taken_shown_and_ended(admin: FakeProxy, capsys: Out) -> None:
    path = f"{CLUSTER}/disruptions"
    allowed = {"allowed": True, "reasons": [], "logs_at_risk": [], "logs_at_risk_count": 0}
    admin.answers[path] = {**allowed, "grant": GRANT}
    take = ["disruption", "b1", "--kind", "restart", "--take"]
    known = ["--token", "a" * 32, "--life", "90s", "--holder", "ann@desk"]
    assert main([*take, *known, "--accept", "no_spare", "--accept", "placement"]) == 0
    shown = capsys.readouterr()
    assert "granted for 90 s" in shown.out and shown.err == f"token {'a' * 32}\n"
    assert admin.asked[-1][1] == {
        "token": "a" * 32, "target": "bookie/b1", "kind": "restart", "holder": "ann@desk",
        "life_ms": 90_000, "accepts": ["no_spare", "placement"],
    }  # fmt: skip
    admin.answers[path] = {**DENIED, "grant": None}
    assert main(take) == 1
    drawn = admin.asked[-1][1]
    assert "@" in drawn["holder"] and "life_ms" not in drawn
    assert f"token {drawn['token']}" in capsys.readouterr().err
    admin.answers[path] = {"grants": [GRANT, {**GRANT, "accepts": ["quorum"]}]}
    assert main(["disruptions"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == (
        f"{GRANT['token']}: ann@desk may restart bookie/b1; over in 95 s unless it is renewed"
    )
    assert "bookie/b1, quorum accepted; over" in second
    admin.answers[path] = {"grants": []}
    assert main(["disruptions"]) == 0
    assert capsys.readouterr().out == "nobody may stop anything now\n"
    for has_ended, code in ((True, 0), (False, 1)):
        admin.answers[f"{path}/{GRANT['token']}"] = {"token": GRANT["token"], "ended": has_ended}
        assert main(["disruptions", "--end", str(GRANT["token"])]) == code


@pytest.mark.parametrize(
    "flag",
    [["--life", "90s"], ["--holder", "me"], ["--token", "t"], ["--accept", "quorum"],
     ["--take", "--life", "x"]],
)  # fmt: skip
def test_flags_of_a_grant_that_make_no_sense(admin: FakeProxy, flag: list[str]) -> None:
    assert main(["disruption", "b1", "--kind", "restart", *flag]) == 2
    assert admin.asked == []


def test_a_drain_begins_is_cancelled_and_is_refused(admin: FakeProxy, capsys: Out) -> None:
    admin.answers[f"{CLUSTER}/bookies/b1/drain"] = {"bookie": "b1", "duty": "draining"}
    admin.answers[f"{CLUSTER}/bookies/b1/cancel-drain"] = {"bookie": "b1", "duty": "serving"}
    assert main(["drain", "b1"]) == 0
    assert main(["drain", "b1", "--cancel"]) == 0
    assert capsys.readouterr().out == "b1: draining\nb1: serving\n"
    refusal = DuramenError("placement_impossible", "2 bookies are left", field="bookie")
    admin.answers[f"{CLUSTER}/bookies/b1/drain"] = refusal
    assert main(["drain", "b1"]) == 1
    assert "2 bookies are left" in capsys.readouterr().err
    assert main(["drain", "b1", "--cancel", "--wait"]) == 2


class _Turns(dict[str, Any]):
    """Answers of one path, one after the other; the last one stays."""

    def __init__(self, path: str, turns: Iterator[Any], others: dict[str, Any]) -> None:
        super().__init__(others)
        self._path, self._turns = path, turns
        self._last: Any = None

    def __getitem__(self, path: str) -> Any:
        if path != self._path:
            return super().__getitem__(path)
        self._last = next(self._turns, self._last)
        return self._last


def drains(*duties: str) -> list[dict[str, Any]]:
    return [
        {**STATUS, "drains": [{"bookie": "b1", "duty": duty, "bytes": 9, "waits_for": "x"}]}
        if duty else STATUS
        for duty in duties
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("duties", "code", "lines"),
    [
        (("", "draining", "draining", "leaving", "drained"), 0,
         ["the next round", "draining: x", "leaving: x", "drained: x"]),
        (("draining", ""), 1, ["draining: x", "it serves: the drain was cancelled"]),
    ],
)  # fmt: skip
def test_who_waits_for_a_drain_sees_a_line_for_each_change(  # noqa: PLR0917 - fixtures
    admin: FakeProxy,
    capsys: Out,
    monkeypatch: pytest.MonkeyPatch,
    duties: tuple[str, ...],
    code: int,
    lines: list[str],
) -> None:
    monkeypatch.setattr(commands, "_POLL_S", 0)
    begun = {f"{CLUSTER}/bookies/b1/drain": {"bookie": "b1", "duty": "draining"}}
    admin.answers = _Turns(f"{CLUSTER}/repair", iter(drains(*duties)), begun)
    assert main(["drain", "b1", "--wait", "--json"]) == code
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [f"drain of b1: {line}" for line in lines]
    assert json.loads(captured.out)["bookie"] == "b1"


def test_a_loss_is_accepted_only_of_an_incarnation_that_is_named(
    admin: FakeProxy, capsys: Out
) -> None:
    path, life = f"{CLUSTER}/bookies/b1/accept-loss", "ab" * 16
    admin.answers[path] = {"bookie": "b1", "incarnation": life, "accepted_unix_ms": 5}
    assert main(["accept-loss", "b1", "--incarnation", life]) == 0
    assert capsys.readouterr().out == f"b1: incarnation {life} is gone for ever\n"
    assert admin.asked == [(path, {"incarnation": life})]
    assert main(["accept-loss", "b1"]) == 2
    admin.answers[path] = DuramenError("invalid_argument", "b1 is here", field="incarnation")
    assert main(["accept-loss", "b1", "--incarnation", life, "--json"]) == 1
    assert "b1 is here" in capsys.readouterr().err


def test_a_rebalance_is_shown_begun_and_planned(admin: FakeProxy, capsys: Out) -> None:
    path = f"{CLUSTER}/rebalance"
    admin.answers[path] = {"running": True, "shares": {"b1": 1.5}, "moves_waiting": 1}
    assert main(["rebalance"]) == 0 and main(["rebalance", "--status"]) == 0
    assert "b1: 1.50 of its share" in capsys.readouterr().out
    assert admin.asked == [(path, {"dry_run": False, "tolerance": 0.1}), (path, None)]
    move = {"log_id": "5", "epoch": 1, "first_entry": 0, "from": "b1", "to": "b2", "bytes": 7}
    admin.answers[path] = {"dry_run": True, "moves": [move], "bytes": 7, "shares": {}}
    assert main(["rebalance", "--dry-run", "--tolerance", "0.3"]) == 0
    assert "b1 to b2, 7 bytes" in capsys.readouterr().out
    assert main(["rebalance", "--dry-run", "--stop"]) == 2
    admin.answers[path] = {"running": False, "shares": {}, "moves_waiting": 0}
    assert main(["rebalance", "--stop"]) == 0
    assert admin.asked[-1] == (path, "deleted")
    assert capsys.readouterr().out == "no rebalance is running\n"
