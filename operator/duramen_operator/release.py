"""Lets go of every finalizer of ours in a namespace: what the chart runs before an uninstall.

With the operator gone nobody would, and `kubectl delete namespace` would hang for ever. Nothing is
deleted here: namespaces and logs stay as they are in the cluster. Ends within a limit whatever the
API server does; done twice, the second time finds nothing. Called by `duramen-operator release`.
"""

import asyncio
import logging

from duramen_operator.kinds import OURS
from duramen_operator.kube import ApiUnreachable, Kube, Refused
from duramen_operator.names import FINALIZER
from duramen_operator.plan.observed import KubeObject

_log = logging.getLogger(__name__)

LIMIT_S = 60.0
RETRY_S = 1.0
_NOT_FOUND = 404


async def release(namespace: str, kubeconfig: str | None = None, limit_s: float = LIMIT_S) -> int:
    """Take our finalizer off every object of ours; gives how many had it.

    Raises:
        TimeoutError: some still have it when the time is over; their names are in the log.
    """
    count = 0
    async with asyncio.timeout(limit_s):
        while True:
            try:
                kube = await Kube.connect(namespace, kubeconfig)
                held = await _list_held(kube)
                if not held:
                    return count
                for item in held:
                    count += await _let_go(kube, item)
            except (ApiUnreachable, Refused) as error:
                _log.warning("again: %s", error)
                await asyncio.sleep(RETRY_S)


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
    except Refused as refused:
        # It has changed or gone in between: the next look tells.
        _log.info("%s %s: %s", item.ref.kind, item.name, refused)
        return False
    _log.info("let go of %s %s", item.ref.kind, item.name)
    return True
