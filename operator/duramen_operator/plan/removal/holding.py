"""Whether copies of entries may lie on a set's bookies: what a deletion waits for.

The API server asks `status.holdsCopies` before it deletes a BookieSet or a LogCluster. It is said
before the first bookie is made, and taken back once the cluster answers that all were let go.
Called by `plan.cluster`. Pure. Source: docs/kubernetes/deletion.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from duramen_operator.names import ABANDON_ANNOTATION, BOOKIE, COMPONENT_LABEL
from duramen_operator.plan.cluster.bookies import SetFrame, find_impossible
from duramen_operator.plan.cluster.frame import ClusterFrame
from duramen_operator.plan.observed import KubeObject, Observed


def holds_copies(own: SetFrame) -> bool:
    """Whether a bookie of a set is there or is to be made; what was said last, while nobody
    knows."""
    observed, item = own.frame.observed, own.bookie_set
    if _is_any_there(observed, item):
        return True
    if observed.is_paused or own.frame.is_held or any(find_impossible(own)):
        return was_holding(item)
    is_wished = own.spec.replicas > 0 or any(share.count for share in own.shares)
    return is_wished or (was_holding(item) and not observed.admin.knows_bookies)


def any_holds_copies(frame: ClusterFrame, sets: Sequence[SetFrame]) -> bool:
    """Whether one of a cluster's sets does, or a bookie is there whose set has gone. A set that
    cannot be read counts as it said last."""
    read = {own.bookie_set.ref for own in sets}
    others = [one for one in frame.observed.list("BookieSet") if one.ref not in read]
    return (
        any(map(holds_copies, sets))
        or any(was_holding(one) or _is_any_there(frame.observed, one) for one in others)
        or any(one.labels.get(COMPONENT_LABEL) == BOOKIE for one in frame.observed.list("Pod"))
    )


def is_told(own: SetFrame) -> bool:
    """Whether set and cluster say so by now, where bookies are to be: the first one waits for it.
    Nothing waits of a set that has bookies."""
    has_said = was_holding(own.bookie_set) and was_holding(own.frame.cluster)
    is_there = _is_any_there(own.frame.observed, own.bookie_set)
    return has_said or is_there or not holds_copies(own)


def is_abandoned(item: KubeObject) -> bool:
    """Whether somebody said of this very object that it may be deleted with its copies."""
    return item.annotations.get(ABANDON_ANNOTATION) == item.uid


def was_holding(item: KubeObject) -> bool:
    """What was last said of an object."""
    return item.status.get("holdsCopies") is True


def _is_any_there(observed: Observed, item: KubeObject) -> bool:
    """Whether anything is there that is, or makes, a bookie of this very set."""
    makers = [one for one in observed.list("StatefulSet") if item.uid in one.owner_uids]
    uids = {one.uid for one in makers}
    return (
        any(item.uid in one.owner_uids for one in observed.list("Bookie"))
        or any(int(one.spec.get("replicas", 1)) for one in makers)
        or any(not uids.isdisjoint(one.owner_uids) for one in observed.list("Pod"))
    )
