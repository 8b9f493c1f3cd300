"""Lets go of every finalizer of ours in a namespace: what the chart runs before an uninstall.

With the operator gone nobody would, and `kubectl delete namespace` would hang for ever. Nothing is
deleted here: namespaces and logs stay as they are in the cluster. Ends within a limit whatever the
API server does; done twice, the second time finds nothing. It takes the operators' Lease first,
since one that writes would put finalizers back. Called by `duramen-operator release`.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from duramen_operator.kinds import OURS
from duramen_operator.kube import ApiUnreachable, Kube, Refused
from duramen_operator.leading.claim import Claimant
from duramen_operator.leading.hand import Hand
from duramen_operator.leading.keeper import LEASE_REQUEST_S, LeaseKeeper
from duramen_operator.names import FINALIZER
from duramen_operator.plan.observed import KubeObject
from duramen_operator.typed.client import TypedClient
from duramen_operator.typed.leases import OperatorLease

T = TypeVar("T")

_log = logging.getLogger(__name__)

LIMIT_S = 60.0
RETRY_S = 1.0
_NOT_FOUND = 404
_FORBIDDEN = 403


async def release(namespace: str, kubeconfig: str | None = None, limit_s: float = LIMIT_S) -> int:
    """Take our finalizer off every object of ours; gives how many had it.

    Raises:
        TimeoutError: some still have it when the time is over; their names are in the log.
    """
    async with asyncio.timeout(limit_s):
        kube = await _try_until_done(lambda: Kube.connect(namespace, kubeconfig))
        async with _no_operator_writes(kube):
            return await _let_all_go(kube)


@asynccontextmanager
async def _no_operator_writes(kube: Kube) -> AsyncIterator[None]:
    """While an operator wrote, it would put back what is taken off here."""
    calls = TypedClient(kube, timeout_s=LEASE_REQUEST_S)
    claimant = Claimant("release", secrets.token_hex(4))
    keeper = LeaseKeeper(OperatorLease(calls, kube.namespace), claimant, Hand())

    async def seize() -> None:
        try:
            await keeper.seize()
        except Refused as refused:
            if refused.status != _FORBIDDEN:
                raise
            _log.warning("an operator may undo this meanwhile: %s", refused)

    tasks: list[asyncio.Task[None]] = []
    try:
        await _try_until_done(seize)
        tasks.append(asyncio.create_task(keeper.keep(), name="lease"))
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await keeper.give_back()
        await calls.close()


async def _try_until_done(work: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await work()
        except (ApiUnreachable, Refused) as error:
            _log.warning("again: %s", error)
            await asyncio.sleep(RETRY_S)


async def _let_all_go(kube: Kube) -> int:
    count = 0
    while True:
        held = await _try_until_done(lambda: _list_held(kube))
        if not held:
            return count
        for item in held:
            count += await _let_go(kube, item)


async def _list_held(kube: Kube) -> list[KubeObject]:
    held = []
    for kind in OURS:
        try:
            found = [KubeObject(item) for item in await kube.list(kind)]
        except Refused as refused:
            if refused.status == _NOT_FOUND:
                continue  # the kind itself is gone: so are its objects
            raise
        held += [item for item in found if FINALIZER in item.finalizers]
    return held


async def _let_go(kube: Kube, item: KubeObject) -> bool:
    others = [name for name in item.finalizers if name != FINALIZER]
    metadata = {
        "uid": item.uid,
        "resourceVersion": item.resource_version,
        "finalizers": others or None,
    }
    try:
        await kube.merge(item.ref, {"metadata": metadata})
    except (Refused, ApiUnreachable) as refused:
        # It has changed or gone in between, or nobody knows: the next look tells.
        _log.info("%s %s: %s", item.ref.kind, item.name, refused)
        return False
    _log.info("let go of %s %s", item.ref.kind, item.name)
    return True
