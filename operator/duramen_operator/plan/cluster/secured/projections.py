"""Volumes of a cluster's Secrets: which key becomes which file, and who may read it.

Projected and never mounted by sub-path, since what is mounted so never changes; for the group of
the pod's volumes alone, since a key that others may read is refused.

Called by `keys`. Pure. Source: docs/kubernetes/security.md "Which key lies where".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from duramen_operator.plan.observed import Json

LEAF: Final = ("tls.crt", "tls.key")
"""A certificate and its key."""
_KEY_MODE: Final = 0o440


def project_pods(volume: str, secret: str, pods: Sequence[str], *, is_certain: bool) -> Json:
    """A volume with a folder for each pod.

    Args:
        is_certain: whether all of these pods are there, so that a key which is missing is waited
            for; else only the bundle is.
    """
    own = [(f"{pod}.{file}", f"{pod}/{file}") for pod in pods for file in LEAF]
    sources = [
        select_keys(secret, own, is_optional=not is_certain),
        select_keys(secret, [("ca.crt", f"{pod}/ca.crt") for pod in pods]),
        select_keys(secret, [("ca.crl", f"{pod}/ca.crl") for pod in pods], is_optional=True),
    ]
    return project(volume, sources)


def project_own(volume: str, secrets: Mapping[str, str], trust: str, *, is_certain: bool) -> Json:
    """The same where each pod has a Secret of its own, and the bundle lies in a ConfigMap.

    Args:
        secrets: by pod.
        trust: the ConfigMap.
    """
    sources = [
        select_keys(secret, [(file, f"{pod}/{file}") for file in LEAF], is_optional=not is_certain)
        for pod, secret in secrets.items()
    ]
    return project(volume, [*sources, *select_trust(trust, [f"{pod}/" for pod in secrets])])


def select_trust(trust: str, folders: Sequence[str]) -> list[Json]:
    """The bundle of a ConfigMap in each of these folders ("" or "NAME/"); lists may be missing."""
    bundle = [{"key": "ca.crt", "path": f"{folder}ca.crt"} for folder in folders]
    lists = [{"key": "ca.crl", "path": f"{folder}ca.crl"} for folder in folders]
    return [
        {"configMap": {"name": trust, "items": bundle}},
        {"configMap": {"name": trust, "items": lists, "optional": True}},
    ]


def select_keys(
    secret: str, items: Iterable[tuple[str, str]], *, is_optional: bool = False
) -> Json:
    """Some keys of a Secret, each with its file; one that is missing keeps pods from starting,
    unless it is optional."""
    named = [{"key": key, "path": path} for key, path in items]
    optional = {"optional": True} if is_optional else {}
    return {"secret": {"name": secret, "items": named, **optional}}


def project(name: str, sources: Sequence[Json]) -> Json:
    """A volume of several selections, which a kubelet swaps as one."""
    return {"name": name, "projected": {"defaultMode": _KEY_MODE, "sources": list(sources)}}
