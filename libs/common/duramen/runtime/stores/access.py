"""Who may do what with a node of ZooKeeper: rights by its path, and by nothing else.

Pure: the table of the page as a function. An id that ends in a star stands for a role, or for
everybody who may connect. Operators stand in no list: the server lets them do everything.

Called by `zookeeper_store` for each node that it makes, and by `guarding`.
Source: docs/protocol/metadata-access.md "Rights".
"""

from __future__ import annotations

from typing import Final, NamedTuple

from duramen.runtime.identity.names import SCHEME, Role

READ: Final = 1
WRITE: Final = 2
CREATE: Final = 4
DELETE: Final = 8
_EVERYTHING: Final = 31
"""With the right to change rights."""

WORLD: Final = "world:anyone"
"""In place of an identity: whoever reaches ZooKeeper."""

_READ_ALL: Final = ((None, READ),)
_SEQUENCERS: Final = ((Role.SEQUENCER, WRITE | CREATE | DELETE),)
_TREE_DEPTH: Final = 2
"""Parts of a cluster's root: /duramen/<cluster>."""

# Rights at the parent: to create and to delete below it. The whole cluster reads.
_PARENTS: Final[dict[str, tuple[tuple[Role, int], ...]]] = {
    "": ((Role.SEQUENCER, CREATE | DELETE),),
    "bookies": ((Role.BOOKIE, CREATE), (Role.SEQUENCER, DELETE)),
    "available": ((Role.BOOKIE, CREATE),),
    "sequencers": ((Role.SEQUENCER, CREATE | DELETE),),
    "writeproxies": ((Role.WRITEPROXY, CREATE),),
    "readproxies": ((Role.READPROXY, CREATE),),
    "cluster": ((Role.SEQUENCER, WRITE),),
    "repair": ((Role.SEQUENCER, CREATE | DELETE),),
    "repair/queue": ((Role.BOOKIE, CREATE), (Role.SEQUENCER, CREATE | DELETE)),
    "repair/lost": ((Role.BOOKIE, CREATE), (Role.SEQUENCER, CREATE | DELETE)),
    "repair/owed": (*_SEQUENCERS, (Role.COREWRITER, CREATE)),
}
# Who owns a node that is named after it.
_OWNERS: Final = {
    "bookies": Role.BOOKIE,
    "available": Role.BOOKIE,
    "sequencers": Role.SEQUENCER,
    "writeproxies": Role.WRITEPROXY,
    "readproxies": Role.READPROXY,
}
_OF_PROCESSES: Final = ("available", "sequencers", "writeproxies", "readproxies")
# Rights at their children, of whole roles.
_CHILDREN: Final[dict[str, tuple[tuple[Role, int], ...]]] = {
    "bookies": ((Role.SEQUENCER, WRITE),),
    "repair/queue": ((Role.BOOKIE, WRITE), (Role.SEQUENCER, WRITE)),
    "repair/lost": ((Role.SEQUENCER, WRITE),),
}
# Below `logs`, by the number of parts below it: a log, where its segments are, and one of them.
_OF_LOGS: Final[dict[int, tuple[tuple[Role, int], ...]]] = {
    2: (*_SEQUENCERS, (Role.COREWRITER, WRITE | CREATE | DELETE)),
    3: (*_SEQUENCERS, (Role.COREWRITER, CREATE)),
    4: (*_SEQUENCERS, (Role.ARCHIVE, WRITE), (Role.COREWRITER, WRITE)),
}
# Below `repair/owed`: a ledger, and a bookie's life that is owed some of it.
_OWED: Final = {
    1: (*_SEQUENCERS, (Role.COREWRITER, CREATE)),
    2: (*_SEQUENCERS, (Role.COREWRITER, WRITE)),
}


class NodeRight(NamedTuple):
    """What an identity, or all that begin with the same text, may do: bits of ZooKeeper's."""

    who: str
    permissions: int


def find_rights(path: str, domain: str) -> tuple[NodeRight, ...]:
    """The rights of a node in the tree of a cluster of this trust domain; never none, in order."""
    return _format(_find(path), domain)


def open_rights(path: str) -> tuple[NodeRight, ...]:
    """Those of a node in a cluster without identities: everything, to anybody."""
    is_own = path.startswith("/zookeeper/config")  # Of ZooKeeper, and never written by clients.
    return (NodeRight(WORLD, READ if is_own else _EVERYTHING),)


def is_of_process(path: str) -> bool:
    """Whether a node says that a process is there, and so lives no longer than its session."""
    parts = [part for part in path.split("/") if part]
    if parts[:1] != ["duramen"]:
        return False
    parent, _, name = "/".join(parts[_TREE_DEPTH:]).rpartition("/")
    is_owner = parent.startswith("logs/") and name == "owner"
    return is_owner or parent in _OF_PROCESSES or (not parent and name == "auditor")


def _find(path: str) -> tuple[tuple[Role | tuple[Role, str] | None, int], ...]:
    parts = [part for part in path.split("/") if part]
    if parts[:1] == ["zookeeper"]:
        return ((Role.OPERATOR, READ),)
    if len(parts) < _TREE_DEPTH and parts in ([], ["duramen"]):
        return _READ_ALL
    inside = "/".join(parts[_TREE_DEPTH:]) if parts[0] == "duramen" else path
    if inside in _PARENTS:
        return _READ_ALL + _PARENTS[inside]
    parent, _, name = inside.rpartition("/")
    if parent in _OWNERS:
        return (*_READ_ALL, ((_OWNERS[parent], name), WRITE), *_CHILDREN.get(parent, ()))
    if parent in _CHILDREN:
        return _READ_ALL + _CHILDREN[parent]
    return _READ_ALL + _find_deep(inside.split("/"))


def _find_deep(parts: list[str]) -> tuple[tuple[Role, int], ...]:
    """Rights of nodes of which one log, or one ledger, has several."""
    match parts:
        case ["logs", *below] if below[2:3] in ([], ["segments"]):
            return _OF_LOGS.get(len(below), _SEQUENCERS)
        case ["repair", "owed", *below]:
            return _OWED.get(len(below), _SEQUENCERS)
    return _SEQUENCERS


def _format(
    found: tuple[tuple[Role | tuple[Role, str] | None, int], ...], domain: str
) -> tuple[NodeRight, ...]:
    rights = []
    for who, permissions in found:
        match who:
            case None:
                end = "*"
            case (role, name):
                end = f"{role}/{name}"
            case role:
                end = f"{role}/*"
        rights.append(NodeRight(f"{SCHEME}{domain}/{end}", permissions))
    return tuple(rights)
