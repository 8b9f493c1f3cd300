"""The namespace of the cluster's own logs, where no grant counts: what identities have there.

Whoever has everything granted could cut off what it did; so the audit log is written by proxies,
read by whoever observes the cluster, and truncated by its retention alone, which is an operator's.

Called by `judgement`, and by whoever writes or reads the audit log.
Source: docs/protocol/audit.md "Who may do what with it".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from duramen.core.rights.grants import Principal, PrincipalKind
from duramen.core.rights.verbs import Verb

SYSTEM_NAMESPACE: Final = "duramen-system"
AUDIT_LOG: Final = "audit"

_BY_ROLE: Final[Mapping[str, int]] = {
    "writeproxy": Verb.APPEND.bit,
    "readproxy": Verb.APPEND.bit,
    "archive": Verb.READ.bit | Verb.LIST.bit,
}
"""Role of an identity → its verbs there."""

HANDING_ROLES: Final = frozenset(("bookie", "sequencer"))
"""Who hands records on at a write proxy's admin port; no grant lets anybody else."""


def list_observed_bits(on_cluster: int) -> int:
    """What whoever has these verbs on the whole cluster has in the system namespace."""
    bits = 0
    if on_cluster & Verb.OBSERVE.bit:
        bits |= Verb.READ.bit | Verb.LIST.bit
    if on_cluster & Verb.OPERATE.bit:
        # Somebody has to say how long records are kept; it is recorded who did.
        bits |= Verb.CONFIGURE.bit
    return bits


def list_system_bits(principals: Iterable[Principal]) -> int:
    """What these have in the system namespace by their certificates, as bits of verbs."""
    bits = 0
    for principal in principals:
        if principal.kind is PrincipalKind.SERVICE:
            bits |= _BY_ROLE.get(principal.name.partition("/")[0], 0)
    return bits
