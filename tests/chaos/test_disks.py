"""The hands that touch disks, on a cluster that is made up: what counts as done, and who is blamed.

A bookie that is wiped comes back as another incarnation; a sequencer's administration says yes or
no to a drain. What the product can do is asked of its own routes. No process is started.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from duramen.ids import BookieId, Incarnation
from tests.chaos import abilities
from tests.chaos.abilities import Abilities, find_abilities
from tests.chaos.cluster import ChaosCluster
from tests.chaos.copies import CopyCount, Place
from tests.chaos.disks import DiskHands
from tests.chaos.layout import REGIONS
from tests.chaos.replicas import Bookie, Replicas
from tests.chaos.schedule import OWNER, Step

ALL = Abilities(repairs=True, drains=True, verifies=True)
NONE = Abilities(repairs=False, drains=False, verifies=False)


class Town:
    """Stands for the cluster and for what its replicas tell."""

    def __init__(self, folder: Path, *, routes: tuple[str, ...] = (), drain_status: int = 202):
        self.folder = folder
        self.duty = ""
        self.naming: list[int] = []
        self.lives: Counter[str] = Counter()
        self.down: set[str] = set()
        self.paused: set[str] = set()
        self.killed: list[str] = []
        self.asked: list[str] = []
        self.is_whole = False
        self._routes = routes
        self._drain_status = drain_status
        self.http = httpx.AsyncClient(transport=httpx.MockTransport(self._serve))

    # --- as the cluster ---

    def ids(self, role: str) -> list[str]:
        return REGIONS.ids(role)

    def url(self, node_id: str, kind: str = "") -> str:
        return f"http://{node_id}"

    async def ask(self, node_id: str, path: str) -> Any:
        return (await self.http.get(self.url(node_id) + path)).json()

    def data_dir(self, node_id: str) -> Path:
        (self.folder / node_id / "journal").mkdir(parents=True, exist_ok=True)
        (self.folder / node_id / "cookie.json").write_text("{}")
        return self.folder / node_id

    def pid(self, node_id: str) -> int | None:
        return None if node_id in self.down else 7

    def late(self) -> list[str]:
        return sorted(self.down)

    async def wait_ready(self, timeout_s: float) -> list[str]:
        return self.late()

    def kill(self, node_id: str) -> bool:
        self.killed.append(node_id)
        self.down.add(node_id)
        return True

    end_cleanly = kill

    def release(self, node_id: str, *, accepts_new_incarnation: bool = False) -> None:
        if accepts_new_incarnation:
            assert not list((self.folder / node_id).iterdir()), "its disk was to be empty"
            self.lives[node_id] += 1
        self.down.discard(node_id)

    def send(self, node_id: str, number: int) -> bool:
        (self.paused.discard if node_id in self.paused else self.paused.add)(node_id)
        return True

    def is_stopped(self, node_id: str) -> bool:
        return node_id in self.paused

    def _serve(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.path)
        if request.url.path == "/openapi.json":
            return httpx.Response(200, json={"paths": {route: {} for route in self._routes}})
        self.duty = "" if "cancel" in request.url.path else "drained"
        return httpx.Response(self._drain_status, text="no room")

    # --- as its replicas ---

    async def list_bookies(self) -> dict[BookieId, Bookie]:
        return {
            BookieId(name): Bookie(
                Incarnation(f"{self.lives[name]:032x}"), Place("ada", "r1"), self.duty, None
            )
            for name in self.ids("bookie")
        }

    async def count_written(self, logs: list[str], sequencer: str) -> Counter[BookieId]:
        return Counter([BookieId("bookie-4")])

    async def count_naming(self, *arguments: object) -> int:
        return self.naming.pop(0) if self.naming else 0

    async def count(self, logs: list[str]) -> CopyCount:
        return CopyCount()


def strike(
    town: Town, step: Step, able: Abilities = ALL
) -> tuple[dict[str, Any], list[str], DiskHands]:
    """Evidence, who was blamed for what, and the hands afterwards."""
    blamed: list[str] = []
    hands = DiskHands(
        cast(ChaosCluster, town), REGIONS, replicas=cast(Replicas, town), logs=["log"],
        abilities=able, on_violation=lambda code, text: blamed.append(code),
    )  # fmt: skip
    return asyncio.run(hands.strike(step)), blamed, hands


def step(action: Any, kind: str, *targets: str) -> Step:
    return Step(action, kind, targets, 0.0, 0.0, overlaps=False, number=3)


def test_a_wipe_leaves_another_incarnation_and_a_spent_budget(tmp_path: Path) -> None:
    town = Town(tmp_path)
    evidence, _, hands = strike(town, step("disk", "wipe", "sequencer-1"))
    assert evidence["done"] and evidence["before"] != evidence["after"]
    assert town.killed == ["bookie-4"] and not town.paused
    assert hands.budget.damaged == {"bookie-4"}


def test_a_bookie_that_comes_back_as_it_was_was_not_wiped(tmp_path: Path) -> None:
    town = Town(tmp_path)
    town.lives = cast(Any, dict.fromkeys(town.ids("bookie"), 0) | {"bookie-4": 0})
    town.release = lambda node_id, **_: town.down.discard(node_id)  # type: ignore[method-assign]
    evidence, _, _ = strike(town, step("disk", "wipe", "sequencer-1"))
    assert not evidence["done"]


def test_a_second_loss_counts_only_while_the_first_is_repaired(tmp_path: Path) -> None:
    for naming, expected in (([9, 9, 4], True), ([9, 0], False)):
        town = Town(tmp_path)
        town.naming = naming
        evidence, _, _ = strike(town, step("disk", "second loss"))
        assert (evidence["done"], len(town.killed)) == (expected, 2)
    evidence, _, _ = strike(Town(tmp_path), step("disk", "second loss"), NONE)
    assert evidence["done"] and evidence["during_repair"] is None


def test_the_budget_is_restored_by_a_count_alone(tmp_path: Path) -> None:
    town = Town(tmp_path)
    _, _, hands = strike(town, step("disk", "second loss"), NONE)
    assert hands.budget.damaged
    asyncio.run(hands._look_whether_restored())
    assert hands.budget.damaged, "nothing repairs"
    _, _, hands = strike(Town(tmp_path), step("disk", "wipe", OWNER))
    asyncio.run(hands._look_whether_restored())
    assert not hands.budget.damaged


def test_what_is_drained_is_wiped_and_costs_nothing(tmp_path: Path) -> None:
    town = Town(tmp_path)
    evidence, blamed, hands = strike(town, step("drain", "bookie"))
    assert evidence["done"] and evidence["wiped"]["done"] and not blamed
    assert not hands.budget.damaged
    assert town.asked[-1].endswith("/cancel-drain")


def test_a_drain_that_says_safe_too_early_is_a_violation(tmp_path: Path) -> None:
    town = Town(tmp_path)
    town.naming = [1]
    evidence, blamed, _ = strike(town, step("drain", "bookie"))
    assert blamed == ["drain"] and "wiped" not in evidence


def test_a_drain_that_is_refused_is_no_fault(tmp_path: Path) -> None:
    evidence, blamed, _ = strike(Town(tmp_path, drain_status=409), step("drain", "bookie"))
    assert not evidence["done"] and evidence["why"] == "no room" and not blamed


def test_what_the_product_cannot_do_is_left_out(tmp_path: Path) -> None:
    _, _, hands = strike(Town(tmp_path), step("disk", "flips"), NONE)
    assert hands.why_not(step("drain", "bookie")) and not hands.why_not(step("disk", "wipe"))


def test_abilities_are_read_off_the_products_own_routes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*arguments: str) -> tuple[int, str]:
        return 2, f"unknown command {arguments[0]}"

    monkeypatch.setattr(abilities, "run_cli", refuse)
    said: list[str] = []
    routes = ("/v1/repair", "/v1/bookies/{bookie_id}/drain")
    for town, expected in ((Town(tmp_path, routes=routes), True), (Town(tmp_path), False)):
        found = asyncio.run(find_abilities(cast(ChaosCluster, town), said.append))
        assert found == Abilities(expected, expected, verifies=False)
    assert {"no drain", "no repair"} <= {text.split(":")[0] for text in said}
    assert any("unknown command verify" in text for text in said)
