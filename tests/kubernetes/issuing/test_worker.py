"""When a cluster's certificates are seen to in a pass: before the cluster itself is asked anything.

Source: docs/kubernetes/security.md "Renewal".
"""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from duramen_operator.apply.executor import PlanOutcome
from duramen_operator.kinds import Kind
from duramen_operator.kube import Kube
from duramen_operator.leading.hand import Hand
from duramen_operator.plan.observed import AdminView, Json, Observed
from duramen_operator.plan.steps import Call
from duramen_operator.serving import worker
from duramen_operator.serving.watches import Watches
from duramen_operator.serving.worker import ClusterWorker, WorkerContext
from duramen_operator.settings import Settings
from duramen_operator.typed.client import TypedClient
from tests.kubernetes.issuing.ground import FakeKube, Ground


class ListingKube(FakeKube):
    """Shows the objects of a ground, too."""

    def __init__(self, ground: Ground) -> None:
        super().__init__()
        self._ground = ground

    async def list(self, kind: Kind, selector: str = "") -> list[Json]:
        del selector
        return [one.body for one in self._ground.observe().list(kind.name)]


class AskedCluster:
    """A cluster that notes what the operator's Secret held when it was asked."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self.held: list[str] = []

    def renew(self, paths: frozenset[str]) -> None:
        """It knows nothing of logs."""

    async def look(self, seen: Observed) -> AdminView:
        assert seen.cluster is not None
        self.held += self._ground.data("operator")
        return AdminView()

    async def call(self, step: Call) -> None:
        raise AssertionError(step)

    async def take(self, question: Json) -> None:
        raise AssertionError(question)

    async def close(self) -> None:
        """Nothing is open."""


def test_certificates_are_seen_to_before_the_cluster_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def do_nothing(*_: object) -> PlanOutcome:
        return PlanOutcome()

    monkeypatch.setattr(worker, "do_plan", do_nothing)
    ground = Ground()
    ground.kube = ListingKube(ground)
    asked = AskedCluster(ground)
    context = WorkerContext(
        cast("Kube", ground.kube),
        cast("TypedClient", None),
        Settings("logs"),
        Watches((), lambda: 0.0),
        lambda _: asked,
        Hand(),
    )

    async def do_pass() -> None:
        await ClusterWorker("main", context).do_pass()

    asyncio.run(do_pass())
    assert {"tls.crt", "tls.key", "ca.crt"} <= set(asked.held)
