"""Two operators of one namespace on a real API server: one hand writes, whoever dies or sleeps.

They have two default images, so each of them would change every workload that the other one made.
Source: docs/kubernetes/one-hand.md 1 to 9; ADR 0041.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from duramen_operator.names import FINALIZER, LEASE, STEP_BACK_ANNOTATION
from tests.kubernetes.cluster.handle import ClusterHandle
from tests.kubernetes.controllers.admin_twin import running_twin
from tests.kubernetes.controllers.grounds import RESTRICTED, Ground, ground
from tests.kubernetes.controllers.operators import (
    END_S,
    SETTLE_S,
    OperatorProcess,
    install_definitions,
    run_release,
    running_operator,
    wait_for_objects,
)
from tests.tiers import sized

pytestmark = pytest.mark.long

WORKLOADS = "statefulsets,deployments"
ONE, TWO = "localhost/duramen:one", "localhost/duramen:two"
PASS_COUNT = sized(fast=2, gate=4, night=30)
CALLS_OF_A_PASS = 2


class Pair:
    """Two operators, of which the first one was started first."""

    def __init__(self, here: Ground, one: OperatorProcess, two: OperatorProcess) -> None:
        self.here, self.one, self.two = here, one, two

    def images(self) -> set[str]:
        """What runs, but for ZooKeeper, whose image is the same with both."""
        return {
            str(item["spec"]["template"]["spec"]["containers"][0]["image"])
            for item in self.here.list(WORKLOADS)
        } & {ONE, TWO}

    def generations(self) -> dict[str, int]:
        return {
            item["metadata"]["name"]: item["metadata"]["generation"]
            for item in self.here.list(WORKLOADS)
        }

    def holder(self) -> str:
        """The pod that the Lease names."""
        lease = self.here.find("leases", LEASE)
        return "" if lease is None else str(lease["spec"]["holderIdentity"]).rpartition("_")[0]

    def wait_passes(self) -> None:
        """Until whoever serves has looked several times."""
        calls = self.here.twin.call_count + PASS_COUNT * CALLS_OF_A_PASS
        wait_for_objects(lambda: self.here.twin.call_count >= calls, END_S, "passes")

    def wait_for(self, holder: str, image: str) -> None:
        wait_for_objects(
            lambda: self.holder() == holder and self.images() == {image},
            SETTLE_S,
            f"{holder} to serve",
        )
        self.here.wait("LogCluster", "main", "True/AsWanted")


@contextmanager
def pair(cluster: ClusterHandle) -> Iterator[Pair]:
    """A cluster with an operator, and a second one that came later."""
    install_definitions(cluster)
    with cluster.namespace(**RESTRICTED) as namespace, running_twin() as twin:
        here = Ground(cluster, namespace, twin)
        one, two = (
            OperatorProcess(cluster.kubeconfig, namespace, twin.url, identity=identity, image=image)
            for identity, image in (("one", ONE), ("two", TWO))
        )
        with running_operator(one):
            here.install()
            with running_operator(two):
                wait_for_objects(lambda: "holds the Lease" in two.say(), END_S, "two to wait")
                yield Pair(here, one, two)


def test_the_second_one_changes_nothing_until_the_first_one_is_gone(
    kwok_cluster: ClusterHandle,
) -> None:
    with pair(kwok_cluster) as both:
        before = both.generations()
        both.wait_passes()
        assert (both.generations(), both.images(), both.holder()) == (before, {ONE}, "one")
        both.one.kill()
        both.wait_for("two", TWO)
        both.one.start()
        wait_for_objects(lambda: both.one.say().count("holds the Lease") == 1, END_S, "one to wait")
        before = both.generations()
        both.wait_passes()
        assert (both.generations(), both.images(), both.holder()) == (before, {TWO}, "two")
        # One that ends properly leaves no Lease; who waited already waits for its time.
        both.two.stop()
        wait_for_objects(lambda: both.holder() == "one", END_S, "one to serve again")
        both.two.start()


def test_a_holder_that_was_stopped_writes_nothing_when_it_wakes(
    kwok_cluster: ClusterHandle,
) -> None:
    with pair(kwok_cluster) as both:
        both.one.send(signal.SIGSTOP)
        try:
            both.wait_for("two", TWO)
            before = both.generations()
        finally:
            both.one.send(signal.SIGCONT)
        wait_for_objects(lambda: "lost its Lease" in both.one.say(), END_S, "one to notice")
        both.wait_passes()
        assert (both.generations(), both.images(), both.holder()) == (before, {TWO}, "two")
        assert both.one.is_running


def test_a_lease_that_somebody_deletes_or_edits_stays_its_holders(
    kwok_cluster: ClusterHandle,
) -> None:
    with pair(kwok_cluster) as both:
        before = both.generations()
        kubectl, namespace = both.here.cluster.kubectl, both.here.namespace
        kubectl("-n", namespace, "delete", "lease", LEASE)
        wait_for_objects(lambda: both.holder() == "one", END_S, "a Lease again")
        kubectl("-n", namespace, "label", "lease", LEASE, "somebody=me")
        both.wait_passes()
        assert (both.generations(), both.images(), both.holder()) == (before, {ONE}, "one")
        assert "lost its Lease" not in both.one.say()


def test_an_uninstall_beside_a_running_operator_leaves_no_finalizer(
    kwok_cluster: ClusterHandle,
) -> None:
    """It put them back: `kubectl delete namespace` hung once it was gone."""
    with pair(kwok_cluster) as both:
        spec = {"clusterName": "main", "namespace": "shop", "deletionPolicy": "Delete"}
        for number in range(5):
            both.here.apply("Log", f"log-{number}", spec)

        def held() -> list[str]:
            found = both.here.list("logs")
            return [
                one["metadata"]["name"]
                for one in found
                if FINALIZER in one["metadata"].get("finalizers", ())
            ]

        wait_for_objects(lambda: len(held()) == 5, SETTLE_S, "finalizers")
        run_release(both.here.cluster, both.here.namespace)
        # As helm does next: nobody is there to put them back.
        both.one.kill()
        both.two.kill()
        assert held() == []
        both.one.start()
        both.two.start()


def test_an_older_operator_changes_nothing_until_a_person_steps_back(
    kwok_cluster: ClusterHandle,
) -> None:
    """It gives its Lease up, too: a newer one that waits is to have it."""
    with ground(kwok_cluster) as here:
        here.install()
        cluster = here.find("LogCluster", "main")
        assert cluster is not None
        own = cluster["status"]["operatorVersion"]
        kubectl, namespace = here.cluster.kubectl, here.namespace
        patch = '{"status": {"operatorVersion": "99.1.0"}}'
        kubectl(
            "-n", namespace, "patch", "dc/main", "--subresource=status", "--type=merge",
            f"--patch={patch}",
        )  # fmt: skip
        here.wait("LogCluster", "main", "False/NewerOperator", "Progressing")
        wait_for_objects(lambda: here.find("leases", LEASE) is None, END_S, "the Lease to be free")
        kubectl("-n", namespace, "scale", "deployment/main-readproxy", "--replicas=5")
        kubectl("-n", namespace, "annotate", "dc/main", f"{STEP_BACK_ANNOTATION}=99.1.0")

        def is_set_back() -> bool:
            found = here.find("deployment", "main-readproxy")
            return found is not None and found["spec"]["replicas"] == 2

        wait_for_objects(is_set_back, SETTLE_S, "it to serve again")
        here.wait("LogCluster", "main", "True/AsWanted")
        served = here.find("LogCluster", "main")
        assert served is not None
        assert served["status"]["operatorVersion"] == own
