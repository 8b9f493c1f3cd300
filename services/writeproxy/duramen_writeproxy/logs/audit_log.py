"""The audit log, as a write proxy appends to it and makes it: its own records and no client's.

It has lanes of its own: what clients wait for does not hold up the records about them, and at a
stop the last ones still go out when the clients' lanes are closed.

Called by `service`; a `duramen.runtime.audit.trail.AuditSink`.
Source: docs/protocol/audit.md "Where records wait".
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final

from duramen.config import LogConfig, NamespaceConfig
from duramen.core.rights.system_namespace import AUDIT_LOG, SYSTEM_NAMESPACE
from duramen.errors import DuramenError
from duramen.ids import LogId
from duramen.limits import APPEND_TIMEOUT_US
from duramen.runtime.http_client import PeerClient
from duramen.units import SECOND
from duramen.wire.record_batch import encode_batch
from duramen_writeproxy.appends import Appender
from duramen_writeproxy.lanes import Lanes
from duramen_writeproxy.logs.creation import Creator
from duramen_writeproxy.logs.names import NameCache
from duramen_writeproxy.routing import Router

_KEY: Final = f"{SYSTEM_NAMESPACE}/{AUDIT_LOG}"
_MISSING: Final = ("log_not_found", "namespace_not_found")
_THERE: Final = "log_exists_with_other_config"


class AuditLog:
    """Appends records to the audit log."""

    def __init__(
        self, names: NameCache, creator: Creator, router: Router, peers: PeerClient
    ) -> None:
        self._names = names
        self._creator = creator
        self._lanes = Lanes(peers)
        self._appender = Appender(router, self._lanes)

    async def append(self, lines: Sequence[bytes]) -> None:
        """Store these records; makes the log if there is none.

        Raises:
            DuramenError: they may not be stored.
        """
        log_id = await self._find()
        batch = encode_batch(lines, time.time_ns() // 1_000_000)
        deadline = asyncio.get_running_loop().time() + APPEND_TIMEOUT_US / SECOND
        try:
            await self._appender.append(_KEY, log_id, batch, deadline)
        except DuramenError as error:
            if error.code in ("log_not_found", "log_deleted"):
                self._names.doubt(SYSTEM_NAMESPACE, AUDIT_LOG)
            raise

    def keep_only(self, urls: set[str]) -> None:
        """Forget sequencers that are not there any more."""
        self._lanes.keep_only(urls)

    def close(self) -> None:
        """Send nothing any more."""
        self._lanes.cancel()

    def statistics(self) -> dict[str, Any]:
        """Its lanes."""
        return self._lanes.statistics()

    async def _find(self) -> LogId:
        try:
            return await self._names.find(SYSTEM_NAMESPACE, AUDIT_LOG)
        except DuramenError as error:
            if error.code not in _MISSING:
                raise
        try:
            await self._creator.create_namespace(SYSTEM_NAMESPACE, NamespaceConfig().to_stored())
        except DuramenError as error:
            if error.code != _THERE:
                raise
        try:
            await self._creator.create_log(SYSTEM_NAMESPACE, AUDIT_LOG, LogConfig().to_stored())
        except DuramenError as error:
            # Another proxy made it meanwhile, or it was configured.
            if error.code != _THERE:
                raise
        return await self._names.find(SYSTEM_NAMESPACE, AUDIT_LOG)
