"""Lists what there is around a cluster: our own kinds, and what the operator made.

Every list is read from the API server's store, not from a cache: a plan made of the past would be
safe (preconditions), but it would be refused, and made again. Called by the worker and by release.
"""

import asyncio
from collections.abc import Iterable

from duramen_operator.kinds import KINDS, OPTIONAL, Kind
from duramen_operator.kube import Kube, Refused
from duramen_operator.names import CLUSTER_LABEL, MANAGED_BY_SELECTOR
from duramen_operator.plan.observed import Json

_ABSENT = (403, 404)
"""There is no such kind, or an older chart gave no right to it."""


async def list_around(kube: Kube, cluster_name: str) -> dict[str, list[Json]]:
    """Objects of each kind that concern a cluster, by the kind's name."""
    kinds = (*KINDS, *OPTIONAL)
    found = await asyncio.gather(*(_list(kube, kind, cluster_name) for kind in kinds))
    return dict(zip((kind.name for kind in kinds), found, strict=True))


async def _list(kube: Kube, kind: Kind, cluster_name: str) -> list[Json]:
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
