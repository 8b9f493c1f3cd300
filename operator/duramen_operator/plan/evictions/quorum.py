"""What waits while most of the bundled ZooKeeper's members do not serve: what would restart others.

Proxies work on without metadata, as long as they are left alone; one that is started anew does not
come up. (Sequencers have to be granted, see `restarts`.) Members of ZooKeeper are mended meanwhile,
what is missing is made, and numbers go back.

Called by `plan.cluster.plan` and `status`. Pure. Source: docs/kubernetes/evictions.md 11.
"""

from collections.abc import Iterator

from duramen_operator.names import COMPONENT_LABEL, ZOOKEEPER, name_component
from duramen_operator.plan.cluster.frame import ClusterFrame
from duramen_operator.plan.evictions.lives import is_serving
from duramen_operator.plan.manifests import covers
from duramen_operator.plan.observed import Json


def find_lost_quorum(frame: ClusterFrame) -> str:
    """Why there is no quorum, for people; "" where there is one, or it is not ours to judge."""
    name = name_component(frame.name, ZOOKEEPER)
    if not frame.is_bundled or frame.observed.find("StatefulSet", name) is None:
        return ""
    pods = (p for p in frame.observed.list("Pod") if p.labels.get(COMPONENT_LABEL) == ZOOKEEPER)
    serving = sum(map(is_serving, pods))
    majority = frame.members // 2 + 1
    if serving >= majority:
        return ""
    return f"{serving} of {frame.members} ZooKeeper members serve, and {majority} are a majority"


def keep_running(frame: ClusterFrame, manifest: Json) -> bool:
    """Whether a workload is left as it is, since the manifest would restart its pods now."""
    strategy = manifest["spec"].get("updateStrategy", {}).get("type")
    if manifest["kind"] not in {"StatefulSet", "Deployment"} or strategy == "OnDelete":
        return False
    if not find_lost_quorum(frame):
        return False
    found = frame.observed.find(manifest["kind"], manifest["metadata"]["name"])
    if found is None or frame.cluster.uid not in found.owner_uids:
        return False
    return not covers(found.spec.get("template"), manifest["spec"]["template"])


def list_waiting(frame: ClusterFrame, manifests: Iterator[Json]) -> tuple[str, ...]:
    """Names of the workloads that are left as they are."""
    return tuple(one["metadata"]["name"] for one in manifests if keep_running(frame, one))
