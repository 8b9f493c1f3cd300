"""The operator's Lease at the API server: read, made, renewed and removed, each by one call.

A renewal replaces the object as it was read, with its resource version, so that of two operators
one gets 409. Times in it are for people: nobody's clock is compared with them.

Called by `leading.keeper`. Source: docs/kubernetes/one-hand.md 1 to 4.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from kubernetes.aio.client import (
    ApiClient,
    CoordinationV1Api,
    V1DeleteOptions,
    V1Lease,
    V1LeaseSpec,
    V1ObjectMeta,
    V1Preconditions,
)

from duramen_operator.kube import ApiUnreachable, Refused
from duramen_operator.leading.claim import LeaseRecord
from duramen_operator.leading.hand import LEASE_S
from duramen_operator.names import FIELD_MANAGER, LEASE, MANAGED_BY, MANAGED_BY_LABEL
from duramen_operator.typed.client import TypedClient

_NOT_FOUND: Final = 404


class OperatorLease:
    """The Lease of one namespace's operators; `keeper.LeaseCalls`."""

    def __init__(self, client: TypedClient, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    async def read(self) -> LeaseRecord | None:
        """As it is; None: there is none."""

        async def ask(api: ApiClient) -> V1Lease:
            return await CoordinationV1Api(api).read_namespaced_lease(LEASE, self._namespace)

        try:
            return _read(await self._client.call(ask))
        except Refused as refused:
            if refused.status == _NOT_FOUND:
                return None
            raise

    async def create(self, identity: str) -> LeaseRecord:
        """Make it, held by this name."""
        lease = self._make(identity, V1ObjectMeta(), transition_count=0)

        async def ask(api: ApiClient) -> V1Lease:
            return await CoordinationV1Api(api).create_namespaced_lease(
                self._namespace, lease, field_manager=FIELD_MANAGER
            )

        return _read(await self._client.call(ask))

    async def take(self, found: LeaseRecord, identity: str) -> LeaseRecord:
        """Renew it in this name, if it is still as it was found."""
        metadata = V1ObjectMeta(uid=found.uid, resource_version=found.resource_version)
        count = found.transition_count + (found.holder != identity)
        lease = self._make(identity, metadata, transition_count=count)

        async def ask(api: ApiClient) -> V1Lease:
            return await CoordinationV1Api(api).replace_namespaced_lease(
                LEASE, self._namespace, lease, field_manager=FIELD_MANAGER
            )

        return _read(await self._client.call(ask))

    async def delete(self, found: LeaseRecord) -> None:
        """Remove it, if it is still as it was found."""
        precondition = V1Preconditions(uid=found.uid, resource_version=found.resource_version)
        options = V1DeleteOptions(preconditions=precondition)

        async def ask(api: ApiClient) -> None:
            await CoordinationV1Api(api).delete_namespaced_lease(
                LEASE, self._namespace, body=options
            )

        await self._client.call(ask)

    def _make(self, identity: str, metadata: V1ObjectMeta, *, transition_count: int) -> V1Lease:
        metadata.name, metadata.namespace = LEASE, self._namespace
        metadata.labels = {MANAGED_BY_LABEL: MANAGED_BY}
        return V1Lease(
            api_version="coordination.k8s.io/v1",
            kind="Lease",
            metadata=metadata,
            spec=V1LeaseSpec(
                holder_identity=identity,
                lease_duration_seconds=LEASE_S,
                lease_transitions=transition_count,
                renew_time=datetime.now(UTC),
            ),
        )


def _read(lease: V1Lease) -> LeaseRecord:
    metadata, spec = lease.metadata, lease.spec or V1LeaseSpec()
    if metadata is None or not metadata.uid or not metadata.resource_version:
        raise ApiUnreachable("a Lease without uid or version came back")
    return LeaseRecord(
        metadata.uid,
        metadata.resource_version,
        spec.holder_identity or "",
        spec.lease_duration_seconds or 0,
        "" if spec.renew_time is None else spec.renew_time.isoformat(),
        spec.lease_transitions or 0,
    )
