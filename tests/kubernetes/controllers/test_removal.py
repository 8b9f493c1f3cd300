"""Bookies are removed by a real API server's controllers, and the operator dies at its writes.

The twin drains, and grants one removal at a time of who is drained; pods that the API server has
are registered, as bookies would. Whatever write an operator died at, before or after, the next one
ends where an undisturbed one does: the same bookies with their uids, the same claims, no grant
left, and nobody stopped whose grant was not taken before.

DURAMEN_REMOVAL_KILLS is how many writes it dies at (`all`: each). Source:
docs/kubernetes/removal.md.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from tests.kubernetes.cluster.handle import ClusterHandle
from tests.kubernetes.controllers.admin_twin import AdminTwin, running_twin
from tests.kubernetes.controllers.deadly_proxy import Aim, DeadlyProxy, Moment, running_proxy
from tests.kubernetes.controllers.grounds import RESTRICTED, Ground
from tests.kubernetes.controllers.operators import (
    RESYNC_S,
    SETTLE_S,
    OperatorProcess,
    install_definitions,
    running_operator,
    wait_for_objects,
    write_kubeconfig,
)
from tests.kubernetes.controllers.twin_state import make_bookie
from tests.process.times import HANG_S
from tests.tiers import sized

pytestmark = [pytest.mark.timeout(1_500), pytest.mark.long]

KILLS: Final = os.environ.get("DURAMEN_REMOVAL_KILLS", str(sized(fast=1, gate=4, night=12)))
AMONG: Final = (
    "statefulsets", "bookies", "bookiesets", "logclusters", "poddisruptionbudgets", "pods",
    "events",
)  # fmt: skip
"""What a removal writes; the Lease of an operator is the matter of tests/kubernetes/leading."""
MOST: Final = 5
LEAST: Final = 4


class RemovalGround(Ground):
    """A namespace whose pods of bookies are registered with its twin, and its operators' proxy."""

    def __init__(
        self, cluster: ClusterHandle, namespace: str, twin: AdminTwin, proxy: DeadlyProxy
    ) -> None:
        super().__init__(cluster, namespace, twin)
        self.proxy = proxy
        config = write_kubeconfig(cluster, namespace, proxy.url)
        self.operator = OperatorProcess(config, namespace, twin.url, resync_s=RESYNC_S)

    def register(self) -> None:
        """What bookies do: those that run are there, and those that do not are absent."""
        names = {pod["metadata"]["name"] for pod in self.pods()}
        with self.twin.lock:
            rows = self.twin.state.bookies
            rows += [make_bookie(name, "r", name) for name in sorted(names)
                     if name not in {row["id"] for row in rows}]  # fmt: skip
            for row in rows:
                row["state"] = "rw" if row["id"] in names else "absent"

    def is_settled(self, count: int) -> bool:
        """Whether so many run, everything is told to be done, and nothing is granted."""
        self.register()
        rows = {row["id"]: row["duty"] for row in self.twin.state.bookies}
        names = [pod["metadata"]["name"] for pod in self.pods()]
        return (
            len(names) == count == len(self.list("bookies"))
            and all(rows.get(name) == "serving" for name in names)
            and not self.twin.state.disruptions
            and self.condition("BookieSet", "main", "Progressing") == "False/Settled"
        )

    def resize(self, replicas: int) -> None:
        run = self.cluster.kubectl
        run("-n", self.namespace, "scale", "bks/main", f"--replicas={replicas}")

    def settle(self, count: int) -> None:
        """Wait for that, with an operator that nobody disturbs."""
        self.proxy.arm(None)
        with running_operator(self.operator):
            wait_for_objects(lambda: self.is_settled(count), HANG_S, f"{count} bookies to settle")

    def live(self, aim: Aim) -> bool:
        """One life of an operator that dies at this write; False: it had no such write."""
        before = len(self.proxy.struck)
        self.operator.start()
        self.proxy.arm(aim)
        ends = len(self.twin.changes)
        wait_for_objects(lambda: self._is_over(before, ends), HANG_S, "a life to end")
        self.operator.kill()
        return len(self.proxy.struck) > before

    def _is_over(self, before: int, ends: int) -> bool:
        is_idle = self.is_settled(LEAST) and len(self.twin.changes) > ends
        return len(self.proxy.struck) > before or is_idle


@contextmanager
def removal_ground(cluster: ClusterHandle) -> Iterator[RemovalGround]:
    install_definitions(cluster)
    with (
        running_twin() as twin,
        running_proxy(cluster.url, cluster.certificate) as proxy,
        cluster.namespace(**RESTRICTED) as namespace,
    ):
        here = RemovalGround(cluster, namespace, twin, proxy)
        with running_operator(here.operator):
            here.install(replicas=MOST, domains=[])
        here.settle(MOST)
        yield here


def check_order(twin: AdminTwin) -> None:
    """Each bookie that went was drained and granted by then, and each grant was ended."""
    paths = [(call.method, call.path) for call in twin.changes if call.status < 300]
    drained = [path.split("/")[4] for method, path in paths if path.endswith("/drain")]
    granted = [
        call.body["target"] for call in twin.changes
        if call.path == "/v1/cluster/disruptions" and call.body.get("kind") == "remove"
    ]  # fmt: skip
    absent = {row["id"] for row in twin.state.bookies if row["state"] == "absent"}
    assert absent <= set(drained)
    assert {f"bookie/{name}" for name in absent} <= set(granted)
    assert not twin.state.disruptions


def test_an_operator_that_dies_at_a_write_of_a_removal_is_followed_by_one_that_ends_it(
    kwok_cluster: ClusterHandle,
) -> None:
    with removal_ground(kwok_cluster) as here:
        uids = here.uids("pods")
        claims = here.uids("pvc")
        # How many writes a removal has, undisturbed.
        here.resize(LEAST)
        here.proxy.arm(None)
        here.operator.start()
        here.proxy.arm(aim_at(10_000, Moment.BEFORE, here))
        wait_for_objects(lambda: here.is_settled(LEAST), HANG_S, "the first removal")
        here.operator.kill()
        writes = here.proxy.aimed_count
        check_order(here.twin)
        numbers = range(1, writes + 1)
        if KILLS != "all":
            numbers = range(1, writes + 1, max(1, writes // int(KILLS)))
        struck = 0
        for index, number in enumerate(numbers):
            here.resize(MOST)
            here.settle(MOST)
            here.resize(LEAST)
            moment = (Moment.BEFORE, Moment.AFTER)[index % 2]
            struck += here.live(aim_at(number, moment, here))
            here.settle(LEAST)
            check_order(here.twin)
            assert here.uids("pvc") == claims
            left = here.uids("pods").items()
            gone = {f"Pod/main-{LEAST}"}
            assert {item for item in uids.items() if item[0] not in gone} <= left
        sys.stderr.write(f"{writes} writes, {struck} lives ended at {len(numbers)} of them\n")
        assert struck >= len(numbers) // 2


def test_a_wish_that_is_taken_back_while_it_drains_leaves_all_as_they_were(
    kwok_cluster: ClusterHandle,
) -> None:
    with removal_ground(kwok_cluster) as here:
        before = here.uids("pods")
        with running_operator(here.operator):
            here.twin.state.disruptions = [make_grant()]
            here.resize(LEAST)

            def is_waiting() -> bool:
                here.register()
                return "granted is zookeeper/z" in here.message("BookieSet", "main", "Progressing")

            wait_for_objects(is_waiting, SETTLE_S, "the removal to wait for its turn")
            here.resize(MOST)
            here.twin.state.disruptions = []
            wait_for_objects(lambda: here.is_settled(MOST), HANG_S, "all to serve again")
        assert here.uids("pods") == before


def aim_at(number: int, moment: Moment, here: RemovalGround) -> Aim:
    return Aim(number, moment, is_writes_only=True, strike=here.operator.kill, among=AMONG)


def make_grant() -> dict[str, Any]:
    return {
        "token": "0b" * 16, "target": "zookeeper/z", "kind": "restart", "holder": "x",
        "life_ms": 60_000, "over_in_ms": 60_000, "granted_unix_ms": 1, "accepts": [],
    }  # fmt: skip
