"""Audit records of bookies and sequencers: kept as proxies keep theirs, handed on to a write proxy.

They have no public ports and append to no log by themselves, so what their admin ports do goes to a
write proxy's admin port, whose certificate each node trusts. One after another is asked until one
says that it is stored. A folder that cannot be used keeps no node from its start.

Called by the wiring of bookies and sequencers.
Source: docs/protocol/audit.md "Bookies and sequencers".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

from duramen.core.hashing import rank_nodes
from duramen.runtime.audit.recorded_admin import RecordedAdmin
from duramen.runtime.audit.spool import AuditSpool
from duramen.runtime.audit.trail import AuditTrail
from duramen.runtime.http_client import PeerError, UnreachableError
from duramen.runtime.identity.names import Role
from duramen.runtime.registry import Roster
from duramen.runtime.role import ServiceOptions, StartRefusedError
from duramen.runtime.security.admin_calls import AdminPortCalls
from duramen.runtime.security.process_security import ProcessSecurity
from duramen.runtime.stores.metadata_store import MetadataStore
from duramen.runtime.turning.addresses import SECURE_SCHEME, list_urls
from duramen.wire.edge.audit_records import encode_handed, find_foreign
from duramen.wire.metadata_json import Paths

_LOG: Final = logging.getLogger(__name__)

RECORDS_PATH: Final = "/v1/audit/records"
_TIMEOUT_S: Final = 15.0
"""A write proxy answers an append after 10 s at most."""


class AuditByAdminPorts:
    """Hands records on to whichever write proxy takes them; a `trail.AuditSink`.

    Args:
        node: whose records these are, as `bookie/b-1`.
    """

    def __init__(
        self, node: str, store: MetadataStore, paths: Paths, security: ProcessSecurity
    ) -> None:
        self._node = node
        self._security = security
        learn = security.peers.learn_role(Role.WRITEPROXY)
        self._roster = Roster(store, paths.write_proxies, learn=learn)
        self._last: str | None = None
        self._calls: AdminPortCalls | None = None
        self._is_changed = False
        security.on_change(self._note_change)

    async def start(self) -> None:
        """Follow which write proxies there are."""
        await self._roster.start()

    async def stop(self) -> None:
        """Call nobody any more."""
        await self._close_calls()
        await self._roster.stop()

    async def append(self, lines: Sequence[bytes]) -> None:
        """Store these records.

        Raises:
            PeerError: as the last write proxy that was asked says; they may be stored.
        """
        own = self._leave_out_foreign(lines)
        if not own:
            return
        body = encode_handed(own)
        failure: PeerError = UnreachableError("there is no write proxy with TLS")
        calls = await self._open_calls()
        for name, url in self._list_ways():
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    await calls.post(url.rstrip("/") + RECORDS_PATH, body)
            except PeerError as error:
                failure = error
            except TimeoutError:
                failure = PeerError(f"{url} did not answer within {_TIMEOUT_S:.0f} s")
            else:
                self._last = name
                return
        raise failure

    async def _open_calls(self) -> AdminPortCalls:
        """By the identity as it is now; made once for each, since a TLS client takes milliseconds.

        The trail has one append under way at a time.
        """
        if self._is_changed:
            await self._close_calls()
        if self._calls is None:
            self._is_changed = False
            self._calls = AdminPortCalls(self._security)
        return self._calls

    async def _close_calls(self) -> None:
        calls, self._calls = self._calls, None
        if calls is not None:
            await calls.close()

    def _note_change(self) -> None:
        self._is_changed = True

    def _list_ways(self) -> list[tuple[str, str]]:
        """Names and admin urls of write proxies; first the one that took the last records."""
        nodes = self._roster.nodes
        ranked = rank_nodes(self._node, dict.fromkeys(nodes, 1.0))
        ranked.sort(key=lambda name: name != self._last)
        # A write proxy that turns is asked by TLS: a record is told nobody in plain text.
        ways = [(name, list_urls(nodes[name], "admin", may_be_plain=False)) for name in ranked]
        return [
            (name, urls[0]) for name, urls in ways if urls and urls[0].startswith(SECURE_SCHEME)
        ]

    def _leave_out_foreign(self, lines: Sequence[bytes]) -> list[bytes]:
        """Without records of other nodes, which no write proxy takes of this one."""
        own = [line for line in lines if find_foreign(line, self._node) is None]
        if len(own) < len(lines):
            left_out = len(lines) - len(own)
            _LOG.warning("%d audit records of other nodes are left out", left_out)
        return own


class HandedTrail:
    """The trail of a bookie or a sequencer, which its admin port records to once it has begun."""

    def __init__(
        self,
        options: ServiceOptions,
        store: MetadataStore,
        paths: Paths,
        security: ProcessSecurity,
    ) -> None:
        self._node = f"{options.role}/{options.node_id}"
        self._data_dir = options.data_dir
        self._security = security
        self._sink = AuditByAdminPorts(self._node, store, paths, security)
        self._trail: AuditTrail | None = None

    async def start(self) -> None:
        """Take over what lies in the folder, and record from now on."""
        await self._sink.start()
        self._trail = await self._begin()
        self._security.admin_records = RecordedAdmin(self._trail)

    async def stop(self) -> None:
        """End the chain, within 3 s; a write proxy has to be reachable still."""
        if self._trail is not None:
            await self._trail.stop()
        await self._sink.stop()

    def statistics(self) -> dict[str, Any] | None:
        """As the trail's; None: it has not begun."""
        return None if self._trail is None else self._trail.statistics()

    async def _begin(self) -> AuditTrail:
        if self._data_dir is not None:
            spool = AuditSpool(self._data_dir)
            trail = AuditTrail(self._node, self._sink, spool, is_required=False)
            try:
                await trail.start()
            except StartRefusedError as error:
                spool.close()
                _LOG.warning("audit records wait in memory alone: %s", error)
            else:
                return trail
        trail = AuditTrail(self._node, self._sink, None, is_required=False)
        await trail.start()
        return trail


def open_handed_trail(
    options: ServiceOptions,
    store: MetadataStore,
    paths: Paths,
    security: ProcessSecurity | None,
) -> HandedTrail | None:
    """The trail of a node that is no proxy; None: it has no identity, and nobody is known."""
    return None if security is None else HandedTrail(options, store, paths, security)
