"""Looks of a whole `ClusterAdmin` over HTTP: when a cluster is unreachable, and what it remembers.

Source: docs/kubernetes/one-hand.md "What a look costs" (15 to 17).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import pytest

from duramen_operator.observe import questions
from duramen_operator.observe.admin import LookMemory
from duramen_operator.observe.log_facts import HANDFUL
from duramen_operator.plan.observed import Json, Observed, Ref, observe_objects
from duramen_operator.plan.steps import Call
from duramen_operator.serving import cluster_admin
from duramen_operator.serving.cluster_admin import ClusterAdmin
from duramen_operator.serving.cluster_identity import ClusterIdentity
from duramen_operator.settings import Settings
from tests.kubernetes.controllers.admin_twin import AdminTwin, running_twin
from tests.kubernetes.plan.worlds import make_cluster, make_log, make_space
from tests.process.times import HANG_S

COUNT_MAX: Final = 80
"""Requests in half a minute that may wait: of twenty logs with four each."""
URL: Final = "/v1/namespaces/shop/logs/{}"


class NoSecrets:
    """An API server that nobody asks: the cluster has no identities."""

    async def get(self, ref: Ref) -> Json | None:
        raise AssertionError(ref)


class Looker:
    """The operator's calls to a twin, and what the twin was asked."""

    def __init__(self, twin: AdminTwin) -> None:
        self.twin = twin
        settings = Settings("logs", write_url=twin.url, admin_url=twin.url)
        self.admin = ClusterAdmin("main", settings, ClusterIdentity(NoSecrets(), "main"))
        self.asked: list[str] = []
        self.silent: set[str] = set()
        twin.state.ensure_namespace("shop", {})
        twin.is_silent = self._ask

    def make(self, count: int) -> list[str]:
        """Logs of the cluster; gives their names."""
        names = [f"log-{index:03}" for index in range(count)]
        for name in names:
            self.twin.state.ensure_log("shop", name, {})
        return names

    def described(self) -> list[str]:
        """Logs that were asked for since, in order."""
        asked, self.asked = self.asked, []
        return [path.rpartition("/")[2] for path in asked if path.count("/") == 5]

    def _ask(self, path: str) -> bool:
        if path not in self.silent:
            self.asked.append(path)
        return path in self.silent


@pytest.fixture
def looker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Looker]:
    monkeypatch.setattr(questions, "ANSWER_S", 1.0)
    # However slow the machine, a look is read whole; and a few logs are many.
    monkeypatch.setattr(cluster_admin, "LOOK_S", HANG_S)
    monkeypatch.setattr(cluster_admin, "LookMemory", partial(LookMemory, least_count=COUNT_MAX))
    with running_twin() as twin:
        yield Looker(twin)


def settle(names: list[str], uid: str = "u") -> Observed:
    """Objects that were told what became of them."""
    status: dict[str, Any] = {"observedGeneration": 1, "logId": "1"}
    logs = [make_log(name, status=status) for name in names]
    cluster = make_cluster(metadata={"uid": uid})
    return observe_objects("test", "main", [cluster, make_space(), *logs])


def test_a_log_that_does_not_answer_leaves_the_cluster_reachable(looker: Looker) -> None:
    async def scenario() -> None:
        names = looker.make(4)
        looker.silent = {URL.format("log-001"), URL.format("log-002") + "/records/tail"}
        view = await looker.admin.look(settle(names))
        assert view.is_reachable and view.logs is not None
        assert view.logs["shop/log-001"]["problem"]["code"] == "unreachable"
        assert view.logs["shop/log-002"]["tail"] is None
        assert view.logs["shop/log-002"]["violations"] == 0
        assert [view.logs[f"shop/{name}"]["tail"] for name in ("log-000", "log-003")] == [0, 0]
        await looker.admin.close()

    asyncio.run(scenario())


def test_a_cluster_is_unreachable_where_the_first_question_is_not_answered(looker: Looker) -> None:
    async def scenario() -> None:
        names = looker.make(4)
        assert (await looker.admin.look(settle(names))).is_reachable
        looker.silent = {"/v1/cluster/bookies"}
        looker.described()
        view = await looker.admin.look(settle(names))
        assert (view.is_reachable, view.logs) == (False, None)
        assert view.reason == "no answer in 1 s"
        assert looker.described() == []
        await looker.admin.close()

    asyncio.run(scenario())


def test_who_was_called_or_asked_for_is_read_first_in_the_next_look(looker: Looker) -> None:
    async def scenario() -> None:
        names = looker.make(COUNT_MAX // 4 + HANDFUL)
        seen = settle(names)
        await looker.admin.look(seen)
        assert sorted(looker.described()) == names
        path = URL.format("log-020") + "?config_version=1"
        await looker.admin.call(Call(Ref("", "Log", ""), "PATCH", path, {"commit": "lac"}))
        looker.admin.renew(frozenset({"shop/log-010"}))
        view = await looker.admin.look(seen)
        asked = looker.described()
        assert set(asked[:2]) == {"log-020", "log-010"}
        assert HANDFUL <= len(asked) < len(names)
        assert view.logs is not None
        assert view.logs["shop/log-020"]["log"]["config"]["commit"] == "lac"
        assert view.stale_logs == {f"shop/{name}" for name in names if name not in asked}
        await looker.admin.look(settle(names, uid="another"))
        assert sorted(looker.described()) == names, "of another cluster nothing is known"
        await looker.admin.close()

    asyncio.run(scenario())
