"""What was promised of a turn and is not kept is a violation, and no answer is none.

Pure: the cluster is made up, and what its ports show. Called by pytest.
Source: docs/testing.md "Chaos".
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.chaos import turning
from tests.chaos.schedule import Step
from tests.chaos.turning import Turning

NAMES = ("bookie", "sequencer", "writeproxy", "readproxy")


class Ports:
    """Of a cluster with one process of each role: what they show, and what they say to a token."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shown = dict.fromkeys(NAMES, b"1")
        self.after: dict[str, bytes] = {}
        self.anchors = [["a"], ["a"], ["a"]]
        self.said = "served"
        self.violations: list[str] = []
        monkeypatch.setattr(turning, "_SHOWN_S", 0.0)
        monkeypatch.setattr(turning, "_KNOWN_S", 0.0)
        keys: Any = self
        cluster: Any = self
        self.turning = Turning(cluster, keys, lambda code, text: self.violations.append(code))
        monkeypatch.setattr(self.turning, "_see", lambda name: (name, self.shown[name]))
        monkeypatch.setattr(self.turning, "_kill_one", self._kill_one)
        monkeypatch.setattr(self.turning, "_ask", self._ask)

    def ids(self, role: str) -> list[str]:
        return [role]

    def turn_leaves(self) -> None:
        self.shown.update(self.after)

    def announce(self) -> None: ...

    switch, retire = turn_leaves, announce

    def list_anchors(self) -> list[str]:
        return self.anchors.pop(0)

    async def _kill_one(self, _number: int) -> str:
        return ""

    async def _ask(self, _name: str, _token: str) -> str:
        return self.said

    def turn(self, kind: str) -> bool:
        """Whether it was done."""
        step = Step("turn", kind, (), 0.0, 0.0, overlaps=False)
        return bool(asyncio.run(self.turning.turn(step))["done"])


NEW = dict.fromkeys(NAMES, b"2")


@pytest.mark.parametrize(
    ("after", "is_done", "violations"),
    [
        (NEW, True, []),
        ({**NEW, "bookie": b"1"}, False, ["turned"]),
        ({**NEW, "bookie": b""}, False, []),
        ({}, False, ["turned"] * len(NAMES)),
    ],
    ids=["all are new", "one is the former", "one does not answer", "all are the former"],
)
def test_who_shows_his_former_certificate_breaks_a_promise(
    after: dict[str, bytes],
    is_done: bool,
    violations: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ports = Ports(monkeypatch)
    ports.after = after
    assert (ports.turn("leaves"), ports.violations) == (is_done, violations)


@pytest.mark.parametrize(("last", "is_done"), [(["b"], True), (["a"], False), (["a", "b"], False)])
def test_another_ca_is_there_alone_at_the_end(
    last: list[str], is_done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = Ports(monkeypatch)
    ports.after, ports.anchors = NEW, [["a"], last]
    assert ports.turn("authority") is is_done
    assert ports.violations == ([] if is_done else ["turned"])


@pytest.mark.parametrize(
    ("said", "violations"),
    [("served", []), ("unauthenticated", ["turned"]), ("no answer", []), ("unavailable", [])],
)
def test_a_good_token_that_is_refused_breaks_a_promise(
    said: str, violations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = Ports(monkeypatch)
    ports.said = said
    assert asyncio.run(ports.turning._wait_believed("t")) is (said == "served")
    assert ports.violations == violations
