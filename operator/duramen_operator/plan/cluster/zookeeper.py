"""The bundled ZooKeeper: one StatefulSet of 1, 3 or 5 members, spread over the failure domains.

Its members keep their claims, whatever happens: they hold which logs there are. Their number and
their volumes cannot be changed yet, and a wish to is told as refused. Called by `plan`. Pure.
"""

from collections.abc import Iterator

from duramen_operator.names import (
    FOUNDING,
    HOST_LABEL,
    NODE_REGION_LABEL,
    NODE_ZONE_LABEL,
    UUID_LABEL,
    ZOOKEEPER,
    ZOOKEEPER_CLIENT_PORT,
    ZOOKEEPER_ELECTION_PORT,
    ZOOKEEPER_PEER_PORT,
    make_selector,
    name_component,
    name_host,
    name_zookeeper_client,
)
from duramen_operator.plan.claims import describe_change, keep_claims, make_claim
from duramen_operator.plan.cluster.foundation import CLAIM, PERMIT_KEY
from duramen_operator.plan.cluster.frame import ClusterFrame
from duramen_operator.plan.cluster.pods import (
    POD_NAME,
    Pod,
    make_template,
    probe_command,
    spread_over,
)
from duramen_operator.plan.cluster.secured.keys import make_keys
from duramen_operator.plan.evictions.budgets import BUDGET_KIND, find_server_room
from duramen_operator.plan.evictions.restarts import lets_unready_members_go
from duramen_operator.plan.manifests import make_manifest
from duramen_operator.plan.observed import Json

GRACE_S = 30
START_S = 300
_PORTS = {
    "client": ZOOKEEPER_CLIENT_PORT,
    "peer": ZOOKEEPER_PEER_PORT,
    "election": ZOOKEEPER_ELECTION_PORT,
}
FOUNDING_VARIABLE = "DURAMEN_ZOOKEEPER_FOUNDING"
"""Read by `duramen-zookeeper` at each start: what a pod was made with may be long over."""
_HEALTH = ("duramen-zookeeper", "health")


def make_zookeeper(frame: ClusterFrame) -> Iterator[Json]:
    """Manifests of the bundled ensemble; none where it is an external one."""
    if not frame.is_bundled:
        return
    name = name_component(frame.name, ZOOKEEPER)
    labels = frame.make_labels(ZOOKEEPER)
    selector = make_selector(frame.name, ZOOKEEPER)
    ports = [{"name": key, "port": port, "targetPort": key} for key, port in _PORTS.items()]
    members = {
        "clusterIP": "None",
        # They have to find one another before any of them is ready.
        "publishNotReadyAddresses": True,
        "selector": selector,
        "ports": ports,
    }
    clients = {"selector": selector, "ports": ports[:1]}
    cluster = frame.cluster
    yield make_manifest(("v1", "Service"), name, labels, cluster, spec=members)
    client_name = name_zookeeper_client(frame.name)
    if not frame.is_secured:  # a member's certificate names the member alone
        yield make_manifest(("v1", "Service"), client_name, labels, cluster, spec=clients)
    room = find_server_room(frame, name)
    policy = "AlwaysAllow" if lets_unready_members_go(frame) else "IfHealthyBudget"
    budget = {
        "maxUnavailable": room,
        "selector": {"matchLabels": selector},
        # Without a quorum members that do not run are mended all the same; else an election would
        # make each of them fair game.
        "unhealthyPodEvictionPolicy": policy,
    }
    yield make_manifest(BUDGET_KIND, name, labels, cluster, spec=budget)
    kind = ("apps/v1", "StatefulSet")
    made = make_manifest(kind, name, labels, cluster, spec=_make_set(frame, name))
    yield keep_claims(made, frame.observed.find("StatefulSet", name))


def find_refusals(frame: ClusterFrame) -> Iterator[str]:
    """What is wished of the ensemble and not done, for people."""
    wanted = frame.spec.zookeeper
    if frame.is_bundled != (wanted.external is None):
        yield (
            "a cluster cannot move between a bundled ZooKeeper and an external one: it stays with "
            f"{'the bundled' if frame.is_bundled else 'the external'} one; set zookeeper.external "
            "back"
        )
        return
    named = wanted.external.cluster if wanted.external is not None else None
    if named is not None and named != frame.metadata_name:
        yield (
            f"the cluster is called {frame.metadata_name} in its ZooKeeper, and stays so: "
            f"set zookeeper.external.cluster back from {named}"
        )
    if not frame.is_bundled:
        return
    if frame.members != wanted.members:
        yield (
            f"the number of ZooKeeper members stays {frame.members}: "
            f"set zookeeper.members back from {wanted.members}"
        )
    found = frame.observed.find("StatefulSet", name_component(frame.name, ZOOKEEPER))
    if found is not None:
        yield from describe_change(found, CLAIM, wanted.storage, "zookeeper.storage")


def _make_set(frame: ClusterFrame, name: str) -> Json:
    wanted = frame.spec.zookeeper
    selector = make_selector(frame.name, ZOOKEEPER)
    indexes = range(frame.members)
    hosts = [name_host(f"{name}-{index}", name, frame.namespace) for index in indexes]
    arguments = ["--data-dir", "/data", "--name", POD_NAME, "--members", ",".join(hosts)]
    arguments += frame.anybody_arguments
    is_strict = frame.spec.placement == "strict" and bool(frame.spec.domains)
    pod = Pod(
        component=ZOOKEEPER,
        labels=frame.make_labels(ZOOKEEPER),
        image=frame.zookeeper_image,
        command="duramen-zookeeper",
        arguments=arguments,
        ports=_PORTS,
        resources=wanted.resources,
        probes=probe_command(_HEALTH, (*_HEALTH, "--alive"), start_s=START_S),
        grace_s=GRACE_S,
        mounts={CLAIM: "/data"},
        environment_maps={FOUNDING_VARIABLE: (name_component(frame.name, FOUNDING), PERMIT_KEY)},
        affinity=_make_affinity(frame),
        keys=make_keys(frame, ZOOKEEPER),
        spread=[
            spread_over(NODE_ZONE_LABEL, selector, is_strict=is_strict),
            spread_over(HOST_LABEL, selector),
        ],
    )
    labels = frame.make_labels(ZOOKEEPER)
    if frame.is_secured:
        labels[UUID_LABEL] = frame.uuid  # disks outlive the record
    return {
        "serviceName": name,
        "replicas": frame.members,
        "podManagementPolicy": "Parallel",
        # The operator takes a grant before it restarts one.
        "updateStrategy": {"type": "OnDelete"},
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
        "selector": {"matchLabels": selector},
        "template": make_template(frame, pod),
        "volumeClaimTemplates": [make_claim(CLAIM, wanted.storage, labels)],
    }


def _make_affinity(frame: ClusterFrame) -> Json | None:
    """Only in the cluster's domains, if it names any; with one term for each of them."""
    if not frame.spec.domains:
        return None
    terms = [
        {
            "matchExpressions": [
                {"key": NODE_REGION_LABEL, "operator": "In", "values": [domain.region]},
                {"key": NODE_ZONE_LABEL, "operator": "In", "values": [domain.zone]},
            ]
        }
        for domain in frame.spec.domains
    ]
    if frame.spec.placement == "strict":
        required = {"nodeSelectorTerms": terms}
        return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    preferred = [{"weight": 100, "preference": term} for term in terms]
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
