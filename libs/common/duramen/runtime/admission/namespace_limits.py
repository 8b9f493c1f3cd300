"""What each namespace is limited to, as this process knows it: read when it is used, and again.

A limit closes nothing for want of ZooKeeper: what was known last counts, else the defaults. Nobody
waits but the first call of a namespace, and that not for long.

Called by `quotas`. Source: docs/protocol/limits.md "What a proxy knows of namespaces".
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from typing import Final

from duramen.config import ClientLimits, NamespaceLimits, parse_namespace_config
from duramen.core.quotas.quota_account import Quota
from duramen.core.quotas.quota_table import PARTY_COUNT_MAX
from duramen.errors import DuramenError
from duramen.runtime.stores.metadata_store import MetadataError, MetadataStore
from duramen.wire.metadata_json import MetadataJsonError, Paths, read_node

FRESH_S: Final = 10.0
FIRST_WAIT_S: Final = 0.5
READING_COUNT_MAX: Final = 128
"""Namespaces that are read at once: a store that says nothing would have one for every name."""

_RETRY_S: Final = 1.0
"""After a look that failed: at a start there is nothing known to go on with."""

_LOG: Final = logging.getLogger(__name__)


class NamespaceQuotas:
    """The quotas of namespaces, a bounded number of them."""

    def __init__(self, store: MetadataStore, paths: Paths) -> None:
        self._store = store
        self._paths = paths
        self._known: OrderedDict[str, tuple[Quota, float]] = OrderedDict()
        """Namespace → its quota, and when it is to be read again."""
        self._looks: dict[str, asyncio.Task[None]] = {}
        self._failed_count = 0

    async def stop(self) -> None:
        """Read no more."""
        looks = [*self._looks.values()]
        for look in looks:
            look.cancel()
        await asyncio.gather(*looks, return_exceptions=True)

    def find(self, namespace: str) -> Quota | None:
        """What is known of it, however old; None: nothing, so `learn` it. Begins to read again."""
        known = self._known.get(namespace)
        if known is None:
            return None
        quota, until_s = known
        if time.monotonic() >= until_s:
            self._begin_look(namespace)
        return quota

    async def learn(self, namespace: str) -> Quota:
        """Read it for the first time; the defaults where that takes too long, or where as many
        are read as may be at once."""
        if namespace not in self._looks:
            self._begin_look(namespace)
        if (look := self._looks.get(namespace)) is not None:
            await asyncio.wait([look], timeout=FIRST_WAIT_S)
        if namespace not in self._known:
            self._keep(namespace, DEFAULT_QUOTA, _RETRY_S)
        return self._known[namespace][0]

    def statistics(self) -> dict[str, int]:
        """Namespaces whose limits are known, reads under way and reads that failed."""
        return {
            "known": len(self._known),
            "known_max": PARTY_COUNT_MAX,
            "reading": len(self._looks),
            "reading_max": READING_COUNT_MAX,
            "failed": self._failed_count,
        }

    def _begin_look(self, namespace: str) -> None:
        if len(self._looks) >= READING_COUNT_MAX:
            # Names cost a caller nothing; one that goes on is read when it is used again.
            return
        look = self._looks[namespace] = asyncio.create_task(self._read(namespace))
        look.add_done_callback(lambda _: self._looks.pop(namespace, None))

    async def _read(self, namespace: str) -> None:
        try:
            found = await self._store.get(self._paths.namespace(namespace))
            config = {} if found is None else read_node(found.data).get("config", {})
            limits = parse_namespace_config(config).limits
        except (MetadataError, MetadataJsonError, DuramenError) as error:
            self._failed_count += 1
            _LOG.debug("limits of %s are not known now: %s", namespace, error)
            self._keep(namespace, self._known.get(namespace, (DEFAULT_QUOTA, 0))[0], _RETRY_S)
            return
        self._keep(namespace, read_quota(limits), FRESH_S)

    def _keep(self, namespace: str, quota: Quota, fresh_s: float) -> None:
        self._known[namespace] = quota, time.monotonic() + fresh_s
        self._known.move_to_end(namespace)
        if len(self._known) > PARTY_COUNT_MAX:
            self._known.popitem(last=False)


def read_quota(limits: ClientLimits) -> Quota:
    """Limits as they are configured, as they are counted with."""
    return Quota(
        limits.calls_per_s,
        limits.bytes_per_s,
        limits.open_calls,
        limits.open_streams,
        limits.in_flight_bytes,
    )


DEFAULT_QUOTA: Final = read_quota(NamespaceLimits())
