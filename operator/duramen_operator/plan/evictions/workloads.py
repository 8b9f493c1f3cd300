"""What is restarted as one: the members of ZooKeeper, the sequencers, the bookies of all sets.

Of each it is told which pods there are to be, and which run as before the last change of the
StatefulSet that makes them. Called by `restarts`. Pure.
Source: docs/kubernetes/restarts.md 1, 9 and 10.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from duramen_operator.names import (
    BOOKIE,
    SEQUENCER,
    ZOOKEEPER,
    name_bookie_service,
    name_component,
)
from duramen_operator.plan.cluster.bookies import SetFrame
from duramen_operator.plan.cluster.frame import ClusterFrame
from duramen_operator.plan.cluster.spread import DomainShare
from duramen_operator.plan.evictions.lives import is_ready, is_serving
from duramen_operator.plan.observed import KubeObject, Observed
from duramen_operator.plan.removal.record import STOPPING, read_removal


@dataclass(frozen=True, slots=True)
class Workload:
    """Pods of one component, of which one at a time is restarted.

    Attributes:
        pods: by name; None where one is missing.
        outdated: those that run as before the last change and are to stay, in the order in which
            they are restarted; none before the controller has seen that change.
        is_settled: whether their number is the spec's.
        is_seen: whether controllers have seen the last change of each StatefulSet.
    """

    component: str
    budget_name: str
    pods: Mapping[str, KubeObject | None]
    outdated: Sequence[KubeObject]
    is_settled: bool = True
    is_seen: bool = True

    @property
    def there(self) -> Sequence[KubeObject]:
        """The pods that there are."""
        return [pod for pod in self.pods.values() if pod is not None]

    @property
    def is_complete(self) -> bool:
        """Whether none is missing."""
        return None not in self.pods.values()

    @property
    def is_whole(self) -> bool:
        """Whether each pod is there and serves."""
        return self.is_complete and all(map(is_serving, self.there))

    def count_serving(self, but: KubeObject) -> int:
        """Of the others."""
        return sum(pod is not but and is_serving(pod) for pod in self.there)


def list_workloads(frame: ClusterFrame, sets: Sequence[SetFrame] | None) -> Iterator[Workload]:
    """What can be told of, in the order of restarts.

    Args:
        sets: of the bookies; None: it is not clear who they are.
    """
    wanted = {ZOOKEEPER: frame.members, SEQUENCER: frame.spec.sequencers.replicas}
    for component, count in wanted.items():
        name = name_component(frame.name, component)
        found = _find_maker(frame.observed, name, frame.cluster.uid)
        if found is None:
            continue
        names = [f"{name}-{index}" for index in range(int(found.spec.get("replicas", 1)))]
        yield Workload(
            component,
            name,
            {one: frame.observed.find("Pod", one) for one in names},
            _list_outdated(frame.observed, found, names),
            is_settled=len(names) == count,
            is_seen=_is_seen(found),
        )
    bookies = None if sets is None else _gather_bookies(frame, sets)
    if bookies is not None:
        yield bookies


def list_outdated_bookies(own: SetFrame) -> Iterator[str]:
    """Bookies of one set whose pods run as before the last change."""
    for share in own.shares:
        yield from (name for name in share.bookies if is_outdated(own, share, name))


def is_outdated(own: SetFrame, share: DomainShare, bookie: str) -> bool:
    """Whether a bookie's pod runs as before the last change."""
    observed = own.frame.observed
    found = observed.find("StatefulSet", share.find_group(bookie).name)
    return found is not None and bool(_list_outdated(observed, found, [bookie]))


def _gather_bookies(frame: ClusterFrame, sets: Sequence[SetFrame]) -> Workload | None:
    """All bookies that are not to be stopped for good; None: one of them is made by nobody now."""
    observed = frame.observed
    pods: dict[str, KubeObject | None] = {}
    outdated: list[KubeObject] = []
    is_seen = True
    for own in sets:
        for group in (group for share in own.shares for group in reversed(share.groups)):
            names = [n for n in group.bookies if read_removal(observed, n) != STOPPING]
            found = _find_maker(observed, group.name, own.bookie_set.uid)
            if found is None and names:
                return None
            if found is not None:
                pods |= {name: observed.find("Pod", name) for name in names}
                outdated += _list_outdated(observed, found, names)
                is_seen = is_seen and _is_seen(found)
    # Who does not serve is first: while it is not ready nobody else may go.
    outdated.sort(key=lambda pod: is_ready(observed, pod.name))
    return Workload(BOOKIE, name_bookie_service(frame.name), pods, outdated, is_seen=is_seen)


def _find_maker(observed: Observed, name: str, owner_uid: str) -> KubeObject | None:
    found = observed.find("StatefulSet", name)
    is_ours = found is not None and not found.is_leaving and owner_uid in found.owner_uids
    return found if is_ours else None


def _list_outdated(
    observed: Observed, stateful_set: KubeObject, names: Sequence[str]
) -> list[KubeObject]:
    """From the highest number down."""
    revision = stateful_set.status.get("updateRevision")
    if not revision or not _is_seen(stateful_set):
        return []
    there = (observed.find("Pod", name) for name in reversed(names))
    return [
        pod
        for pod in there
        if pod is not None and not pod.is_leaving and _is_of_another(pod, revision)
    ]


def _is_seen(stateful_set: KubeObject) -> bool:
    return bool(stateful_set.status.get("observedGeneration") == stateful_set.generation)


def _is_of_another(pod: KubeObject, revision: object) -> bool:
    runs = pod.labels.get("controller-revision-hash")
    return bool(runs) and runs != revision
