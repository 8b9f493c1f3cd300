"""What things are called in Kubernetes: labels, annotations, ports, the objects of the operator.

Nothing here decides anything and nothing does any I/O. The names are relied on by the chart, by the
kubectl plugin, by dashboards and by people's scripts: changing one needs a decision record.
"""

import hashlib
import re

GROUP = "duramen.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
FIELD_MANAGER = "duramen-operator"
"""Who the operator is in server-side apply; also what it says it is in events."""

# --- Labels and annotations -----------------------------------------------------------------------

NAME_LABEL = "app.kubernetes.io/name"
INSTANCE_LABEL = "app.kubernetes.io/instance"
COMPONENT_LABEL = "app.kubernetes.io/component"
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
CLUSTER_LABEL = f"{GROUP}/cluster"
BOOKIE_SET_LABEL = f"{GROUP}/bookie-set"
BOOKIE_LABEL = f"{GROUP}/bookie"
"""On the pod of a bookie that is a StatefulSet by itself: its own name."""
REGION_LABEL = f"{GROUP}/region"
ZONE_LABEL = f"{GROUP}/zone"

APP = "duramen"
MANAGED_BY = "duramen-operator"
MANAGED_BY_SELECTOR = f"{MANAGED_BY_LABEL}={MANAGED_BY}"

UUID_LABEL = f"{GROUP}/cluster-uuid"
"""On claims of ZooKeeper's members, where the cluster has one: its disks outlive the record. As an
annotation of a LogCluster: the uuid that a person says it has."""
SECURITY_LABEL = f"{GROUP}/security"
"""On what belongs to a cluster with identities: `on`. Monitors tell by it how a port is asked."""
CAUGHT_UP_GATE = f"{GROUP}/caught-up"
"""Type of the condition that bookies' pods wait for, as their readiness gate."""
NOT_STOPPED_CONDITION = f"{GROUP}/not-stopped"
"""Type of the condition of a pod that a grant was taken for, and that was not stopped by it."""
APART = "-0"
"""What ends the name of the one pod of a StatefulSet."""
REMOVAL_ANNOTATION = f"{GROUP}/removal"
"""On a StatefulSet of bookies: one of them is to be stopped for good."""
CONSENT_ANNOTATION = f"{GROUP}/delete-claims"
"""On a BookieSet: its own uid, where its claims are to go when it is deleted."""
ABANDON_ANNOTATION = f"{GROUP}/abandon-copies"
"""On a LogCluster or a BookieSet: its own uid, where it may be deleted while it holds copies."""
PAUSED_ANNOTATION = f"{GROUP}/paused"
"""With the value "true" on a LogCluster: the operator only observes it."""
STEP_BACK_ANNOTATION = f"{GROUP}/step-back-from"
"""On a LogCluster: the version of a newer operator that served it and is not to come back."""
CA_ANNOTATION = f"{GROUP}/ca"
"""On a LogCluster: the step towards another CA that a person asks for."""
REVOKE_ANNOTATION = f"{GROUP}/revoke"
"""On a LogCluster: `POD@TIME`, whose certificates count no more that were made until then."""
MANIFEST_ANNOTATION = f"{GROUP}/manifest"
"""On what the operator applied: the digest of what it applied, to see what needs no second time."""
FINALIZER = f"{GROUP}/delete"
"""On namespaces and logs whose deletionPolicy is Delete, on grants that are their object's, and on
nothing else."""

NODE_REGION_LABEL = "topology.kubernetes.io/region"
NODE_ZONE_LABEL = "topology.kubernetes.io/zone"
HOST_LABEL = "kubernetes.io/hostname"

# --- Components and their ports -------------------------------------------------------------------

BOOKIE = "bookie"
SEQUENCER = "sequencer"
WRITE_PROXY = "writeproxy"
READ_PROXY = "readproxy"
ZOOKEEPER = "zookeeper"
ARCHIVE = "archive"
FOUNDATION = "foundation"
"""The record of what a cluster is for good."""
AUTHORITY = "authority"
"""The record of which CAs a cluster has."""
ACCESS = "access"
"""The job that gives the nodes of a secured cluster their rights, once."""
FOUNDED = "founded"
"""The record that it came to its end."""
FOUNDING = "founding"
"""What lets members of a new ZooKeeper make an empty database."""
OPERATOR = "operator"
LEASE = "duramen-operator"
"""The Lease of a namespace's operators: who holds it writes."""

DATA_PORTS = {BOOKIE: 7101, SEQUENCER: 7201, WRITE_PROXY: 7301, READ_PROXY: 7401}
ADMIN_PORTS = {BOOKIE: 7102, SEQUENCER: 7202, WRITE_PROXY: 7302, READ_PROXY: 7402}
STREAM_PORTS = {BOOKIE: 7103, SEQUENCER: 7203}
ZOOKEEPER_CLIENT_PORT = 2181
ZOOKEEPER_PEER_PORT = 2888
ZOOKEEPER_ELECTION_PORT = 3888
OPERATOR_HEALTH_PORT = 8081
OPERATOR_METRICS_PORT = 8080

CLUSTER_DOMAIN = "cluster.local"
"""What names in DNS end with, unless a cluster of Kubernetes was told otherwise."""

USER_ID = 10001
"""User and group of every image of ours."""
KEYS_GROUP_ID = 10002
"""The group of a pod's volumes where keys are among them: a key that the group may read in which a
process runs is refused."""

NAME_MAX = 48
"""A StatefulSet's pods carry the label `<name>-<hash of 10>` and the host name `<name>-<ordinal>`,
both of 63 characters at most; 48 leaves room for ordinals of four digits too."""
_DIGEST_LENGTH = 8


def make_labels(cluster: str, component: str) -> dict[str, str]:
    """The labels of everything that the operator makes for a cluster."""
    return {
        **make_selector(cluster, component),
        MANAGED_BY_LABEL: MANAGED_BY,
        CLUSTER_LABEL: cluster,
    }


def make_selector(cluster: str, component: str) -> dict[str, str]:
    """The labels by which services, disruption budgets and spreads find a component's pods."""
    return {NAME_LABEL: APP, INSTANCE_LABEL: cluster, COMPONENT_LABEL: component}


def name_component(cluster: str, component: str) -> str:
    """The name of the workload and of the service of a component (`main-writeproxy`)."""
    return shorten(f"{cluster}-{component}")


def name_zookeeper_client(cluster: str) -> str:
    """The service at which ZooKeeper's clients knock."""
    return shorten(f"{cluster}-{ZOOKEEPER}-client")


def name_bookies(bookie_set: str, region: str, zone: str) -> str:
    """What names of a BookieSet's bookies in one failure domain begin with; without domains the
    set's own name."""
    parts = [bookie_set, region, zone]
    return shorten("-".join(part for part in parts if part))


def name_bookie_service(cluster: str) -> str:
    """The headless service that gives every bookie of a cluster its name in DNS."""
    return name_component(cluster, BOOKIE)


def name_host(pod: str, service: str, namespace: str) -> str:
    """The stable name in DNS of a pod behind a headless service."""
    return f"{pod}.{service}.{namespace}.svc"


def shorten(text: str) -> str:
    """A DNS label made of any text: what had to be changed or cut is told apart by a digest.

    Node labels may hold capitals, dots and underscores; names of objects may not.
    """
    name = re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-")
    if not name[:1].isalpha():
        name = f"d-{name}".rstrip("-")  # a service's name begins with a letter
    if name == text and len(name) <= NAME_MAX:
        return name
    digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]
    return f"{name[: NAME_MAX - _DIGEST_LENGTH - 1].rstrip('-')}-{digest}"
