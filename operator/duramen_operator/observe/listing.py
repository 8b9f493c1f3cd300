"""Lists what there is around a cluster: our own kinds, and what the operator made.

Every list is read from the API server's store, not from a cache: a plan made of the past would be
safe (preconditions), but it would be refused, and made again. Called by the worker and by release.
"""

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from duramen_operator.kinds import KINDS, OPTIONAL, Kind
from duramen_operator.kube import Kube, Refused
from duramen_operator.names import (
    CLUSTER_LABEL,
    MANAGED_BY,
    MANAGED_BY_LABEL,
    MANAGED_BY_SELECTOR,
)
from duramen_operator.plan.observed import Json, KubeObject, Ref

_ABSENT = (403, 404)
"""There is no such kind, or an older chart gave no right to it."""


NAMED = ("PersistentVolumeClaim", "StatefulSet")
"""Kinds whose names make bookies: all of the namespace have to be known."""


class ClusterListing(NamedTuple):
    """What there is around a cluster."""

    objects: dict[str, list[Json]]
    """Those of each kind that concern it, by the kind's name."""
    taken: frozenset[Ref]
    """Claims and StatefulSets that do not: their names are taken."""

    @property
    def everything(self) -> list[Json]:
        """The objects of all kinds."""
        return [item for items in self.objects.values() for item in items]


async def list_around(kube: Kube, cluster_name: str) -> ClusterListing:
    """All objects that concern a cluster, and the names that others have."""
    kinds = (*KINDS, *OPTIONAL)
    found = await asyncio.gather(*(_list(kube, kind, cluster_name) for kind in kinds))
    listed = dict(zip((kind.name for kind in kinds), found, strict=True))
    others: list[KubeObject] = []
    for name in NAMED:
        ours, rest = split_made(listed[name], cluster_name)
        listed[name] = ours
        others += map(KubeObject, rest)
    return ClusterListing(listed, frozenset(one.ref for one in others))


def split_made(objects: Iterable[Json], cluster_name: str) -> tuple[list[Json], list[Json]]:
    """Those that an operator made for this cluster, and all others."""
    ours: list[Json] = []
    others: list[Json] = []
    for item in objects:
        labels = item["metadata"].get("labels") or {}
        is_ours = labels.get(CLUSTER_LABEL) == cluster_name
        (ours if is_ours and labels.get(MANAGED_BY_LABEL) == MANAGED_BY else others).append(item)
    return ours, others


async def _list(kube: Kube, kind: Kind, cluster_name: str) -> list[Json]:
    if kind.name in NAMED:
        return await kube.list(kind)
    if not kind.is_ours:
        try:
            return await kube.list(kind, f"{MANAGED_BY_SELECTOR},{CLUSTER_LABEL}={cluster_name}")
        except Refused as refused:
            if kind in OPTIONAL and refused.status in _ABSENT:
                return []
            raise
    return list(select_own(await kube.list(kind), cluster_name))


def select_own(objects: Iterable[Json], cluster_name: str) -> Iterable[Json]:
    """Those of our own objects that name this cluster, or are it."""
    for item in objects:
        name = item["metadata"]["name"] if item["kind"] == "LogCluster" else name_cluster(item)
        if name == cluster_name:
            yield item


def name_cluster(item: Json) -> str:
    """Which cluster an object belongs to; "" where it does not say."""
    if item.get("kind") == "LogCluster":
        return str(item["metadata"]["name"])
    spec = item.get("spec")
    named = spec.get("clusterName") if isinstance(spec, dict) else None
    return str(named or (item["metadata"].get("labels") or {}).get(CLUSTER_LABEL) or "")
