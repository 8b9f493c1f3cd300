"""The ConfigMap with what clients of a secured cluster trust: written, mended, and never emptied.

Source: docs/kubernetes/security.md "What clients trust".
"""

from __future__ import annotations

from duramen_operator.plan.cluster.secured.ca_bundle import BUNDLE_KEY, name_bundle
from duramen_operator.plan.observed import AdminView
from tests.kubernetes.plan.world import World, make_cluster

FIRST = AdminView(trusted="first certificate\n")
SECOND = AdminView(trusted="second certificate\n")


def secured() -> World:
    return World(make_cluster(security="on", acceptAnybody=False))


def settle(world: World, view: AdminView) -> None:
    for _ in range(4):
        world.do(world.plan(admin=view).steps)


def test_clients_find_what_the_operator_trusts_and_keep_it_while_nothing_is_known() -> None:
    world = secured()
    settle(world, AdminView())
    assert name_bundle("main") not in world.names("ConfigMap")
    wanted = ""
    for view in (FIRST, AdminView(), SECOND, AdminView()):
        settle(world, view)
        wanted = view.trusted or wanted
        assert world.find("ConfigMap", "main-ca-bundle")["data"] == {BUNDLE_KEY: wanted}
    assert not world.plan(admin=SECOND).steps, "nothing is left to do"


def test_what_others_write_there_is_taken_back_and_a_namesake_is_told() -> None:
    world = secured()
    settle(world, FIRST)
    world.find("ConfigMap", "main-ca-bundle")["data"] = {BUNDLE_KEY: "a stranger's"}
    settle(world, FIRST)
    assert world.find("ConfigMap", "main-ca-bundle")["data"] == {BUNDLE_KEY: FIRST.trusted}
    world.find("ConfigMap", "main-ca-bundle")["metadata"]["ownerReferences"] = []
    settle(world, SECOND)
    assert world.find("ConfigMap", "main-ca-bundle")["data"] == {BUNDLE_KEY: FIRST.trusted}
    assert "ConfigMap main-ca-bundle" in str(world.find("LogCluster", "main")["status"])


def test_a_cluster_that_asks_nobody_has_none() -> None:
    world = World(make_cluster())
    settle(world, FIRST)
    assert name_bundle("main") not in world.names("ConfigMap")
