"""Counts of what runs, and where, as workloads, pods and the cluster itself tell it.

Called by `status` and `bookie_status`. Pure.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from duramen_operator.names import (
    READ_PROXY,
    SEQUENCER,
    WRITE_PROXY,
    ZOOKEEPER,
    name_component,
)
from duramen_operator.plan.cluster.bookies import SetFrame
from duramen_operator.plan.cluster.frame import ClusterFrame
from duramen_operator.plan.cluster.servers import count_proxies, name_proxy_kind
from duramen_operator.plan.cluster.spread import DomainShare
from duramen_operator.plan.evictions.lives import find_pod_condition, serves
from duramen_operator.plan.observed import KubeObject
from duramen_operator.resources.clusters import BookieCount, ServerCount

_PROXIES = (WRITE_PROXY, READ_PROXY)


def count_servers(frame: ClusterFrame) -> dict[str, ServerCount]:
    """Wanted and ready servers of each component but the bookies."""
    spec = frame.spec
    wanted = {
        ZOOKEEPER: frame.members,
        SEQUENCER: spec.sequencers.replicas,
        WRITE_PROXY: count_proxies(frame, WRITE_PROXY, spec.write_proxies),
        READ_PROXY: count_proxies(frame, READ_PROXY, spec.read_proxies),
    }
    return {
        component: ServerCount(wanted=count, ready=_count_ready(frame, component))
        for component, count in wanted.items()
    }


def count_bookies(sets: Iterable[SetFrame]) -> ServerCount:
    """Wanted and ready bookies of all sets."""
    counts = count_by_domain(sets)
    return ServerCount(
        wanted=sum(count.wanted for count in counts), ready=sum(count.ready for count in counts)
    )


def count_by_domain(sets: Iterable[SetFrame]) -> tuple[BookieCount, ...]:
    """The same by failure domain."""
    wanted: Counter[tuple[str, str]] = Counter()
    ready: Counter[tuple[str, str]] = Counter()
    for own in sets:
        present = frozenset(own.present)
        for share in own.shares:
            place, names = (share.region, share.zone), present & frozenset(share.bookies)
            wanted[place] += len(names)
            ready[place] += sum(serves(own.frame.observed, name) for name in names)
    return tuple(
        BookieCount(region=place[0], zone=place[1], wanted=wanted[place], ready=ready[place])
        for place in sorted(wanted)
        if wanted[place]
    )


def find_misplaced(own: SetFrame) -> Iterator[tuple[str, str]]:
    """Reason and sentence for each bookie that is not, or may not be, where it ought to be."""
    nodes: dict[str, str] = {}
    for share in own.shares:
        for name in share.bookies:
            pod = own.frame.observed.find("Pod", name)
            if pod is None:
                continue
            yield from _find_unscheduled(share, pod)
            yield from _find_wrong(own, share, name)
            node = str(pod.spec.get("nodeName") or "")
            if node and not share.zone and node in nodes:
                yield "SharedNode", f"{nodes[node]} and {name} run on one node: one loss for both"
            nodes.setdefault(node, name)


def _find_unscheduled(share: DomainShare, pod: KubeObject) -> Iterator[tuple[str, str]]:
    # What the scheduler could not do for a pod of that name before it says of this one, perhaps.
    condition = find_pod_condition(pod, "PodScheduled") if not pod.spec.get("nodeName") else None
    if condition is not None and condition.get("status") == "False":
        why = condition.get("message") or condition.get("reason")
        yield "Unschedulable", f"{pod.name} has no node in {share.place}: {why}"


def _find_wrong(own: SetFrame, share: DomainShare, name: str) -> Iterator[tuple[str, str]]:
    row = (own.frame.observed.admin.bookies or {}).get(name)
    if row is None or not share.zone:
        return
    says = (str(row.get("region")), str(row.get("rack")))
    if says != (share.region, share.zone):
        yield (
            "WrongPlace",
            f"{name} is registered in {'/'.join(says)}, and ought to be {share.place}",
        )


def _count_ready(frame: ClusterFrame, component: str) -> int:
    kind = name_proxy_kind(frame) if component in _PROXIES else "StatefulSet"
    found = frame.observed.find(kind, name_component(frame.name, component))
    return int(found.status.get("readyReplicas") or 0) if found is not None else 0
