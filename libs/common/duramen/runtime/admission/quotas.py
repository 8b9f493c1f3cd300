"""Who calls for whom, and what is left to them: the accounts of clients and namespaces of a port.

A process of the cluster is not limited, and a call that a proxy forwarded was counted there: it is
an identity that says so, never a header.

Called by `quota_door`, owned by both proxies.
Source: docs/protocol/limits.md "What is limited" and "How it is counted".
"""

from __future__ import annotations

import time
from typing import Any, Final, NamedTuple

from prometheus_client import Counter

from duramen.core.quotas.quota_account import CallShape, Excess, QuotaAccount
from duramen.core.quotas.quota_table import QuotaTable
from duramen.core.rights.grants import Principal, PrincipalKind
from duramen.errors import DuramenError
from duramen.runtime.admission.callers import AdmittedCall
from duramen.runtime.admission.namespace_limits import NamespaceQuotas, read_quota
from duramen.runtime.credentials.principals import Bearer
from duramen.runtime.identity.names import Role
from duramen.runtime.role import ServiceOptions
from duramen.runtime.stores.metadata_store import MetadataStore
from duramen.units import MS
from duramen.wire.metadata_json import Paths

_CLIENT: Final = f"{Role.CLIENT.value}/"
_REFUSED: Final = Counter(
    "duramen_refused",
    "Calls of the public port that were refused because a party has used up one of its limits",
    ["party", "limit"],
)


class Charged(NamedTuple):
    """A party that a call counts for."""

    kind: str
    """`client` or `namespace`."""

    name: str | Principal
    account: QuotaAccount

    @property
    def is_held_to_its_word(self) -> bool:
        """Whether it holds what its calls announce, or what has come: a client that announces much
        and sends nothing is to keep out itself, not all who share its namespace."""
        return self.kind == "client"


class Quotas:
    """What one process counts of its callers.

    Args:
        options: `client_limits` are those of each client; while security turns clients have none.
    """

    def __init__(self, options: ServiceOptions, store: MetadataStore) -> None:
        self._client_quota = read_quota(options.client_limits)
        self._has_clients = not options.is_turning
        self._clients = QuotaTable()
        self._namespaces = QuotaTable()
        self._limits = NamespaceQuotas(store, Paths(options.cluster))
        self._refused_counts: dict[str, int] = {}

    async def stop(self) -> None:
        """Learn nothing of namespaces any more."""
        await self._limits.stop()

    async def find(self, call: AdmittedCall | None, namespace: str | None) -> tuple[Charged, ...]:
        """Whom a call counts for.

        Args:
            call: None: nobody is asked who it is.
        """
        if call is not None and _is_free(call.bearer):
            return ()
        charged: tuple[Charged, ...] = ()
        if namespace is not None:
            quota = self._limits.find(namespace)
            if quota is None:
                # Before the client's account is looked up: a wait lies between.
                quota = await self._limits.learn(namespace)
            account = self._namespaces.find(namespace, quota, read_clock_us())
            charged = (Charged("namespace", namespace, account),)
        if call is not None and self._has_clients:
            principal = call.bearer.principal
            account = self._clients.find(principal, self._client_quota, read_clock_us())
            charged = (Charged("client", principal, account), *charged)
        return charged

    def begin(self, charged: tuple[Charged, ...], shape: CallShape) -> None:
        """Count a call for all of its parties, or for none.

        Raises:
            DuramenError: `rate_limited`.
        """
        now_us = read_clock_us()
        for one in charged:
            if (excess := one.account.find_excess(shape, now_us)) is not None:
                raise self._refuse(one, excess)
        for one in charged:
            one.account.begin(shape, now_us)
            if one.is_held_to_its_word:
                one.account.hold(shape.announced_bytes)

    def statistics(self) -> dict[str, Any]:
        """Parties, what they have under way, and what was refused by which limit."""
        return {
            "clients": self._clients.statistics(),
            "namespaces": self._namespaces.statistics(),
            "limits": self._limits.statistics(),
            "refused": dict(self._refused_counts),
        }

    def _refuse(self, one: Charged, excess: Excess) -> DuramenError:
        _REFUSED.labels(one.kind, excess.limit).inc()
        group = "limits" if one.kind == "namespace" else "client_limit"
        field = f"{group}.{excess.limit}"
        self._refused_counts[field] = self._refused_counts.get(field, 0) + 1
        return DuramenError(
            "rate_limited",
            f"{one.kind} {one.name} has used up its {excess.limit}, {excess.most} at each proxy: "
            "send it again after Retry-After",
            field=field,
            retry_after_ms=excess.wait_us // MS + 1,
        )


def _is_free(bearer: Bearer) -> bool:
    """Whether it is a process of the cluster, or a proxy that has counted the call."""
    if bearer.is_forwarded:
        return True
    kind, name = bearer.principal
    return kind is PrincipalKind.SERVICE and not name.startswith(_CLIENT)


def read_clock_us() -> int:
    """Time that only rises."""
    return time.monotonic_ns() // 1_000
