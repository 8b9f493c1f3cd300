"""Keys in pods: volumes of the cluster's Secrets, a folder for each pod, and the flags for them.

Nothing is read here: the kubelet puts what the Secrets hold into the pods. A pod whose bundle is
not there yet waits to be started; one whose own certificate is missing is refused by itself, and
says so. Nothing depends on the number of pods but by steps, or each change of it would start all
pods of a role anew.

Called by the modules that make pods. Pure.
Source: docs/kubernetes/security.md "Which key lies where"; docs/protocol/identity.md "The folder".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from duramen_operator.names import ARCHIVE, READ_PROXY, WRITE_PROXY, ZOOKEEPER
from duramen_operator.plan.cluster.frame import ClusterFrame
from duramen_operator.plan.cluster.nodes import (
    OPERATOR_IDENTITY,
    PUBLIC,
    SECRET_OF_ROLE,
    name_own_secret,
    name_pods,
    name_secret,
)
from duramen_operator.plan.cluster.secured.projections import (
    LEAF,
    project,
    project_own,
    project_pods,
    select_keys,
    select_trust,
)
from duramen_operator.plan.observed import Json

POD_NAME: Final = "$(POD_NAME)"
IDENTITY_DIR: Final = "/etc/duramen/tls"
PUBLIC_DIR: Final = "/etc/duramen/public"
_IDENTITY, _PUBLIC = "identity", "public"
_PODS_MIN: Final = 4
"""Room for so many pods of a role without a change to any of them; then for twice as many."""


@dataclass(frozen=True, slots=True)
class Keys:
    """What a pod gets: flags, volumes, and where each of these is mounted."""

    arguments: tuple[str, ...]
    volumes: tuple[Json, ...]
    mounts: Mapping[str, str]


NO_KEYS: Final = Keys((), (), {})
"""With `none`."""


def make_keys(frame: ClusterFrame, role: str, pods: Sequence[str] = ()) -> Keys:
    """What the pods of one template get.

    Args:
        pods: those whose keys they mount, if it is not the whole role: a bookie has its own alone.
    """
    if not frame.is_secured:
        return NO_KEYS
    is_certain = bool(pods) or role == ZOOKEEPER
    folders = pods or name_pods(frame, role, _make_room(frame, role))
    arguments = ["--tls-dir", f"{IDENTITY_DIR}/{POD_NAME}"]
    volumes = [_project_identities(frame, role, folders, is_certain=is_certain)]
    mounts = {_IDENTITY: IDENTITY_DIR}
    if role in (WRITE_PROXY, READ_PROXY):
        arguments += ["--public-tls-dir", PUBLIC_DIR]
        secret = name_secret(frame.name, PUBLIC)
        sources = [select_keys(secret, [(name, name) for name in LEAF])]
        if not frame.trust:  # else its CA is the one of all others
            sources.append(select_keys(secret, [("ca.crt", "ca.crt")], is_optional=True))
        volumes.append(project(_PUBLIC, sources))
        mounts[_PUBLIC] = PUBLIC_DIR
    return Keys(tuple(arguments), tuple(volumes), mounts)


def make_operator_keys(frame: ClusterFrame) -> Keys:
    """The operator's identity, for the job that founds the cluster: its folder is no flag."""
    return _make_sole_keys(frame, OPERATOR_IDENTITY, ())


def make_archive_keys(frame: ClusterFrame) -> Keys:
    """The identity of archive runs, for the pod of one."""
    if not frame.is_secured:
        return NO_KEYS
    return _make_sole_keys(frame, ARCHIVE, ("--identity", IDENTITY_DIR))


def _make_sole_keys(frame: ClusterFrame, which: str, arguments: tuple[str, ...]) -> Keys:
    """A Secret of one identity, whole: a pod waits for what is missing there, but for the list."""
    secret = name_secret(frame.name, which)
    if frame.trust:
        own = select_keys(secret, [(name, name) for name in LEAF])
        sources = [own, *select_trust(frame.trust, [""])]
    else:
        sources = [
            select_keys(secret, [(name, name) for name in (*LEAF, "ca.crt")]),
            select_keys(secret, [("ca.crl", "ca.crl")], is_optional=True),
        ]
    return Keys(arguments, (project(_IDENTITY, sources),), {_IDENTITY: IDENTITY_DIR})


def _project_identities(
    frame: ClusterFrame, role: str, folders: Sequence[str], *, is_certain: bool
) -> Json:
    if frame.trust:
        own = {pod: name_own_secret(pod) for pod in folders}
        return project_own(_IDENTITY, own, frame.trust, is_certain=is_certain)
    secret = name_secret(frame.name, SECRET_OF_ROLE[role])
    return project_pods(_IDENTITY, secret, folders, is_certain=is_certain)


def _make_room(frame: ClusterFrame, role: str) -> int:
    """How many pods a template knows: members as they are, others by steps of twice as many."""
    wanted = len(name_pods(frame, role))
    if role == ZOOKEEPER:
        return wanted
    room = _PODS_MIN
    while room < wanted:
        room *= 2
    return room
