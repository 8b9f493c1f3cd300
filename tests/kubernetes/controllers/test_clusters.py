"""Clusters in tier kwok: a real API server with controllers, fake nodes and the operator as a
process.

The namespace admits nothing but restricted pods, so every pod of ours that comes up is one. Pods
only pretend to run here; what they do is shown by the tests on real nodes.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from duramen_operator.names import FINALIZER, PAUSED_ANNOTATION
from tests.kubernetes.cluster.handle import ClusterHandle
from tests.kubernetes.controllers.grounds import (
    CALLS_OF_THREE_PASSES,
    MADE,
    SIZES,
    ZONES,
    Ground,
    ground,
)
from tests.kubernetes.controllers.mortals import DEATHS
from tests.kubernetes.controllers.operators import (
    SETTLE_S,
    Objects,
    install_definitions,
    run_release,
    wait_for_objects,
)
from tests.kubernetes.controllers.twin_state import make_bookie

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def here(kwok_cluster: ClusterHandle) -> Iterator[Ground]:
    """One cluster with three bookies, for the tests that leave it as it was."""
    with ground(kwok_cluster) as made:
        made.install()
        yield made


def test_bookies_come_up_in_their_zones_with_disks_of_their_own(here: Ground) -> None:
    found = here.cluster.get("nodes")["items"]
    nodes = {one["metadata"]["name"]: one["metadata"]["labels"] for one in found}
    pods = here.pods()
    zones = {p["metadata"]["labels"]["duramen.io/zone"] for p in pods}
    assert zones == {zone["zone"] for zone in ZONES}
    for pod in pods:
        labels = nodes[pod["spec"]["nodeName"]]
        assert labels["topology.kubernetes.io/zone"] == pod["metadata"]["labels"]["duramen.io/zone"]
        arguments = pod["spec"]["containers"][0]["args"]
        assert labels["topology.kubernetes.io/zone"] in arguments
        assert labels["topology.kubernetes.io/region"] in arguments
        claims = [
            v["persistentVolumeClaim"]["claimName"]
            for v in pod["spec"]["volumes"]
            if "persistentVolumeClaim" in v
        ]
        name = pod["metadata"]["name"]
        assert sorted(claims) == [f"journal-{name}", f"ledgers-{name}"]
    members = Counter(
        nodes[p["spec"]["nodeName"]]["topology.kubernetes.io/zone"] for p in here.pods("zookeeper")
    )
    assert members == {zone["zone"]: 1 for zone in ZONES}


def test_the_status_tells_counts_places_and_endpoints(here: Ground) -> None:
    cluster = here.find("LogCluster", "main")
    assert cluster is not None
    status = cluster["status"]
    assert status["phase"] == "Running"
    assert status["bookies"] == {"wanted": 3, "ready": 3}
    assert [(d["zone"], d["ready"]) for d in status["bookiesByDomain"]] == [
        (zone["zone"], 1) for zone in ZONES
    ]
    assert status["endpoints"]["write"] == f"http://main-writeproxy.{here.namespace}.svc:7301"
    assert here.condition("LogCluster", "main", "PlacementSatisfied") == "True/AsDeclared"
    assert here.condition("LogCluster", "main", "Secure") == "False/NoSecurity"
    command = ("get", "bks", "main", "-n", here.namespace, "-o", "jsonpath={.status.readyReplicas}")
    # Another object's status, which a pass writes after the cluster's.
    wait_for_objects(
        lambda: here.cluster.kubectl(*command).stdout == "3",
        SETTLE_S,
        "three bookies that are ready",
    )
    assert {b["metadata"]["name"] for b in here.list("Bookie")} == {
        p["metadata"]["name"] for p in here.pods()
    }
    here.wait_event("main", "AsWanted")


def test_a_cluster_at_rest_is_left_alone(here: Ground) -> None:
    kinds = f"{MADE},logclusters,bookiesets"

    def read_versions() -> dict[str, str]:
        metadata = [one["metadata"] for one in here.list(kinds)]
        return {one["uid"]: one["resourceVersion"] for one in metadata}

    def is_at_rest() -> bool:
        versions = read_versions()
        calls = here.twin.call_count + CALLS_OF_THREE_PASSES
        wait_for_objects(lambda: here.twin.call_count >= calls, SETTLE_S, "three more passes")
        return read_versions() == versions

    wait_for_objects(is_at_rest, SETTLE_S, "three passes without a change")


def test_what_people_delete_or_change_comes_back(here: Ground) -> None:
    run = here.cluster.kubectl
    before = here.uids("service")
    run("-n", here.namespace, "delete", "service/main-writeproxy", "statefulset/main-sequencer")
    run("-n", here.namespace, "scale", "deployment/main-readproxy", "--replicas=5")
    wait_for_objects(lambda: here.uids("service").keys() == before.keys(), SETTLE_S, "the service")

    def count() -> int:
        found = here.find("deployment", "main-readproxy")
        return 0 if found is None else int(found["spec"]["replicas"])

    wait_for_objects(lambda: count() == 2, SETTLE_S, "two read proxies")
    wait_for_objects(
        lambda: here.find("statefulset", "main-sequencer") is not None, SETTLE_S, "the sequencers"
    )
    here.wait("LogCluster", "main", "True/AsWanted")


def test_a_cluster_grows_and_never_shrinks(kwok_cluster: ClusterHandle) -> None:
    with ground(kwok_cluster) as here:
        here.install(replicas=3)
        before = here.uids("pods")
        run = here.cluster.kubectl
        run("-n", here.namespace, "scale", "bks/main", "--replicas=7")
        wait_for_objects(lambda: len(here.pods()) == 7, SETTLE_S, "seven bookies")
        here.wait("BookieSet", "main", "True/AllReady")
        sizes = {
            one["metadata"]["name"]: one["spec"]["replicas"]
            for one in here.list("statefulset")
            if "bookie-set" in str(one["metadata"]["labels"])
        }
        counts = enumerate([3, 2, 2])
        names = [
            f"main-r{zone}-r{zone}-k{zone}-{i}" for zone, count in counts for i in range(count)
        ]
        assert sizes == dict.fromkeys(names, 1)
        assert before.items() <= here.uids("pods").items()

        run("-n", here.namespace, "scale", "bks/main", "--replicas=4")
        # The twin knows no bookie, and so nobody knows what lies on them.
        here.wait("BookieSet", "main", "False/Blocked", "Progressing")
        assert "knows no bookie of this set" in here.message("BookieSet", "main", "Progressing")
        here.wait_event("main", "Blocked")
        assert len(here.pods()) == 7
        here.wait("LogCluster", "main", "False/Blocked", "Progressing")

        # It blocks nothing else.
        wider = {
            "security": "none",
            "acceptAnybody": True,
            "domains": ZONES,
            "writeProxies": {"replicas": 4},
        }
        here.apply("LogCluster", "main", wider)
        wait_for_objects(lambda: len(here.pods("writeproxy")) == 4, SETTLE_S, "four write proxies")

        run("-n", here.namespace, "scale", "bks/main", "--replicas=7")
        here.wait("BookieSet", "main", "False/Settled", "Progressing")


def test_a_new_image_comes_to_all_and_to_bookies_one_by_one(kwok_cluster: ClusterHandle) -> None:
    next_image = "localhost/duramen:next"
    with ground(kwok_cluster) as here:
        here.install()
        before = {p["metadata"]["name"]: p["metadata"]["uid"] for p in here.pods()}
        spec = {"security": "none", "acceptAnybody": True, "domains": ZONES, "image": next_image}
        here.apply("LogCluster", "main", spec)

        def are_new(*components: str) -> bool:
            pods = [pod for component in components for pod in here.pods(component)]
            return {p["spec"]["containers"][0]["image"] for p in pods} == {next_image}

        servers = ("sequencer", "writeproxy", "readproxy")
        wait_for_objects(lambda: are_new(*servers), SETTLE_S, "new servers")
        # The twin knows no bookie, and so nobody says whether one may be missed.
        here.wait("BookieSet", "main", "True/Restarting", "Progressing")
        assert {p["metadata"]["name"]: p["metadata"]["uid"] for p in here.pods()} == before

        here.twin.state.bookies[:] = [
            make_bookie(name, zone["region"], zone["zone"])
            for name, zone in zip(sorted(before), ZONES, strict=True)
        ]
        most_away = 0

        def are_all_new() -> bool:
            nonlocal most_away
            pods = here.pods()
            kept = [p for p in pods if p["metadata"]["uid"] in before.values()]
            serving = [p for p in pods if p not in kept and is_ready(p)]
            most_away = max(most_away, len(before) - len(kept) - len(serving))
            return len(pods) == len(before) and are_new("bookie")

        wait_for_objects(are_all_new, SETTLE_S, "new bookies")
        here.wait("BookieSet", "main", "False/Settled", "Progressing")
        here.wait("LogCluster", "main", "False/Settled", "Progressing")
        assert most_away <= 1
        asked = [c.body for c in here.twin.changes if c.path == "/v1/cluster/disruptions"]
        granted = Counter(c["target"] for c in asked if c["target"].startswith("bookie/"))
        assert granted.keys() == {f"bookie/{name}" for name in before}
        # One that died before it stopped a bookie has the next one give that back and ask anew.
        assert DEATHS in os.environ or granted.total() == len(before)
        # A status is written before the calls of its pass, of which one gives the last grant back.
        wait_for_objects(lambda: not here.twin.state.disruptions, SETTLE_S, "no grant")


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def test_a_paused_cluster_is_only_looked_at(kwok_cluster: ClusterHandle) -> None:
    # The operator's own clock comes too late: each step here is a watch's doing.
    with ground(kwok_cluster, resync_s=2 * SETTLE_S) as here:
        paused = {"annotations": {PAUSED_ANNOTATION: "true"}}
        here.apply("LogCluster", "main", {"security": "none", "acceptAnybody": True}, **paused)
        here.apply("BookieSet", "main", {"clusterName": "main", **SIZES})
        here.wait("LogCluster", "main", "False/Paused", "Progressing")
        assert here.uids(MADE) == {}
        here.cluster.kubectl("-n", here.namespace, "annotate", "dc/main", f"{PAUSED_ANNOTATION}-")
        here.wait("LogCluster", "main", "True/AsWanted")


def test_what_is_scaled_or_edited_by_hand_goes_back(kwok_cluster: ClusterHandle) -> None:
    # The operator's own clock comes too late: each step here is a watch's doing.
    with ground(kwok_cluster, resync_s=2 * SETTLE_S) as here:
        here.install()

        def read() -> dict[str, tuple[int, list[str]]]:
            return {
                one["metadata"]["name"]: (
                    one["spec"]["replicas"],
                    one["spec"]["template"]["spec"]["containers"][0]["args"],
                )
                for one in here.list("statefulsets")
            }

        def edit(*command: str) -> None:
            generations = {
                one["metadata"]["name"]: one["metadata"]["generation"]
                for one in here.list("statefulsets")
            }
            here.cluster.kubectl("-n", here.namespace, *command)

            def is_back() -> bool:
                now = {
                    one["metadata"]["name"]: one["metadata"]["generation"]
                    for one in here.list("statefulsets")
                }
                return now != generations and read() == whole

            wait_for_objects(is_back, SETTLE_S, f"{command} to go back")
            here.wait("LogCluster", "main", "True/AsWanted")

        whole = read()
        edit("scale", "sts/main-zookeeper", "--replicas=1")
        edit("scale", "sts", "--all", "--replicas=0")
        path = "/spec/template/spec/containers/0/args/1"
        for name in ("main-zookeeper", "main-sequencer", "main-r0-r0-k0-0"):
            patch = f'[{{"op": "replace", "path": "{path}", "value": "edited"}}]'
            edit("patch", f"sts/{name}", "--type=json", f"--patch={patch}")
        # Of the founding nothing is left but the record, which the API server lets nobody change.
        maps = here.cluster.list("configmaps", here.namespace, "duramen.io/cluster=main")
        assert [one["metadata"]["name"] for one in maps] == ["main-foundation"]
        refused = here.cluster.kubectl(
            "-n", here.namespace, "patch", "cm/main-foundation", "--type=merge",
            '--patch={"data": {"members": "1"}}', check=False,
        )  # fmt: skip
        assert refused.returncode != 0
        assert "immutable" in refused.stderr


def test_claims_of_another_hand_stay_and_who_scaled_by_hand_is_told(
    kwok_cluster: ClusterHandle,
) -> None:
    with ground(kwok_cluster) as here:
        here.install()
        name, run = "main-r0-r0-k0-0", here.cluster.kubectl
        here.twin.state.bookies[:] = [
            make_bookie(pod["metadata"]["name"], zone["region"], zone["zone"])
            for pod, zone in zip(here.pods(), ZONES, strict=True)
        ]

        # A StatefulSet of another version, or from a backup: nothing of its claims is as made anew.
        run("-n", here.namespace, "annotate", "dc/main", f"{PAUSED_ANNOTATION}=true")
        here.wait("LogCluster", "main", "False/Paused", "Progressing")
        other = here.find("statefulset", name)
        assert other is not None
        metadata = other["metadata"]
        kept = ("name", "namespace", "labels", "annotations", "ownerReferences")
        other |= {"metadata": {key: metadata[key] for key in kept}, "status": {}}
        for template in other["spec"]["volumeClaimTemplates"]:
            template["metadata"] |= {"labels": {"of": "another"}, "annotations": {"keep": "me"}}
            template["spec"] |= {"accessModes": ["ReadWriteOncePod"], "selector": {}}
        run("-n", here.namespace, "delete", f"sts/{name}", "--cascade=orphan")
        run("-n", here.namespace, "create", "-f", "-", stdin=json.dumps(other))
        run("-n", here.namespace, "annotate", "dc/main", f"{PAUSED_ANNOTATION}-")

        spec = {"security": "none", "acceptAnybody": True, "domains": ZONES}
        here.apply("LogCluster", "main", {**spec, "image": "localhost/duramen:next"})

        def read_image() -> str:
            found = here.find("statefulset", name) or other
            image: str = found["spec"]["template"]["spec"]["containers"][0]["image"]
            return image

        next_image = "localhost/duramen:next"
        wait_for_objects(lambda: read_image() == next_image, SETTLE_S, "its new image")
        found = here.find("statefulset", name)
        assert found is not None
        assert found["spec"]["volumeClaimTemplates"] == other["spec"]["volumeClaimTemplates"]
        assert here.condition("LogCluster", "main", "Progressing") != "False/ApplyRefused"

        # Of a pod that is Ready here the operator believes that it registered, so none of bookies.
        run("-n", here.namespace, "scale", "sts/main-sequencer", "--replicas=5")
        here.wait_event("main", "EditedByHand")

        def is_back() -> bool:
            found = here.find("statefulset", "main-sequencer")
            return found is not None and found["spec"]["replicas"] == 2

        wait_for_objects(is_back, SETTLE_S, "two sequencers")


def test_one_zone_gets_a_rack_for_each_bookie_and_is_told_of_shared_nodes(
    kwok_cluster: ClusterHandle,
) -> None:
    with ground(kwok_cluster) as here:
        here.install(domains=[], zookeeper={"members": 1})
        for pod in here.pods():
            arguments = pod["spec"]["containers"][0]["args"]
            assert arguments[arguments.index("--rack") + 1] == pod["metadata"]["name"]
        assert here.condition("LogCluster", "main", "PlacementSatisfied") == "True/AsDeclared"
        found = here.find("LogCluster", "main")
        assert found is not None
        assert [one["wanted"] for one in found["status"]["bookiesByDomain"]] == [3]

        here.cluster.kubectl("-n", here.namespace, "scale", "bks/main", "--replicas=5")
        here.wait("BookieSet", "main", "True/AllReady")
        here.wait("LogCluster", "main", "True/AsWanted")
        assert len(here.pods()) == 5


def test_a_zone_without_nodes_is_told_and_nothing_runs_elsewhere(
    kwok_cluster: ClusterHandle,
) -> None:
    with ground(kwok_cluster) as here:
        nowhere = [*ZONES[:2], {"region": "r9", "zone": "r9-k9"}]
        here.apply(
            "LogCluster", "main", {"security": "none", "acceptAnybody": True, "domains": nowhere}
        )
        here.apply("BookieSet", "main", {"clusterName": "main", "replicas": 3, **SIZES})
        here.wait("LogCluster", "main", "False/Unschedulable", "PlacementSatisfied")

        def is_named() -> bool:
            # Another bookie has no node either for as long as its claims are new to the scheduler.
            return "r9/r9-k9" in here.message("LogCluster", "main", "PlacementSatisfied")

        wait_for_objects(is_named, SETTLE_S, "the zone to be named")
        assert here.condition("LogCluster", "main", "Ready") == "False/NotServing"

        def list_homeless() -> list[str]:
            pods = [one for one in here.pods() if not one["spec"].get("nodeName")]
            return [one["metadata"]["name"] for one in pods]

        last = ["main-r9-r9-k9-0-0"]
        wait_for_objects(lambda: list_homeless() == last, SETTLE_S, "nodes for two bookies")


def test_claims_go_with_a_set_by_a_word_about_this_very_set(kwok_cluster: ClusterHandle) -> None:
    """`claims: Delete` alone took those of a whole set along in two seconds."""

    with ground(kwok_cluster) as here:
        here.install()

        def list_fates() -> set[str]:
            found = [
                one for one in here.list("statefulset") if "bookie-set" in str(one["metadata"])
            ]
            return {
                one["spec"]["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] for one in found
            }

        def list_claims() -> list[str]:
            return [name for name in here.uids("pvc") if "ledgers-main" in name]

        spec = {"clusterName": "main", "replicas": 3, **SIZES, "claims": "Delete"}
        here.apply("BookieSet", "main", spec)
        here.wait("BookieSet", "main", "False/Settled", "Progressing")
        assert list_fates() == {"Retain"} and len(list_claims()) == 3
        here.delete("BookieSet", "main")
        wait_for_objects(lambda: here.pods() == [], SETTLE_S, "the pods to go")
        assert len(list_claims()) == 3
        here.apply("BookieSet", "main", spec)
        here.wait("BookieSet", "main", "True/AllReady")
        uid = here.uids("BookieSet")["BookieSet/main"]
        here.apply("BookieSet", "main", spec, annotations={"duramen.io/delete-claims": uid})

        def is_told() -> bool:
            return "its claims go" in here.message("BookieSet", "main", "Progressing")

        wait_for_objects(is_told, SETTLE_S, "it to be told")
        wait_for_objects(lambda: list_fates() == {"Delete"}, SETTLE_S, "the policy to be theirs")
        here.delete("BookieSet", "main")
        wait_for_objects(lambda: list_claims() == [], SETTLE_S, "the claims to go")


def test_an_uninstall_leaves_nothing_but_claims_and_an_install_finds_them(
    kwok_cluster: ClusterHandle,
) -> None:
    with ground(kwok_cluster) as here:
        here.install()
        claims = here.uids("pvc")
        assert len(claims) == 9
        here.delete("BookieSet", "main")
        here.delete("LogCluster", "main")
        everything = f"{MADE},pods,logclusters,bookiesets"
        wait_for_objects(lambda: here.uids(everything) == {}, SETTLE_S, "everything to go")
        assert here.uids("pvc") == claims
        here.install(replicas=1)
        # Three bookies have disks, so three come back, whatever the number says.
        here.wait("BookieSet", "main", "False/Blocked", "Progressing")
        wait_for_objects(lambda: len(here.pods()) == 3, SETTLE_S, "three bookies")
        assert here.uids("pvc") == claims


def test_release_lets_go_of_finalizers_without_an_operator(
    kwok_cluster: ClusterHandle,
) -> None:
    install_definitions(kwok_cluster)
    with kwok_cluster.namespace() as namespace:
        objects = Objects(kwok_cluster, namespace)
        kept = {"finalizers": [FINALIZER, "example.org/another"]}
        spec = {"clusterName": "main", "deletionPolicy": "Delete"}
        objects.apply("LogNamespace", "one", spec, finalizers=[FINALIZER])
        objects.apply("LogNamespace", "two", spec, **kept)
        for name in ("one", "two"):
            objects.delete("LogNamespace", name)
        run_release(kwok_cluster, namespace)
        objects.wait_gone("LogNamespace", "one")
        left = objects.find("LogNamespace", "two")
        assert left is not None
        assert left["metadata"]["finalizers"] == ["example.org/another"]
        run_release(kwok_cluster, namespace)
        patch = '{"metadata": {"finalizers": null}}'
        kwok_cluster.kubectl(
            "-n", namespace, "patch", "lns", "two", "--type=merge", f"--patch={patch}"
        )
