"""The grants of the cluster as this process knows them: one table, made anew at each change.

A table is there whole or not at all. Until the node was read for the first time, and once the last
table is older than GRANTS_AGE_MAX_US because a look fails or the node is not understood, grants are
unknown: a caller may do then what it may without any, and all else is no refusal of anybody, and
is said otherwise.

Called by `process_rights`.
Source: docs/protocol/rights.md "How grants reach processes".
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from duramen.core.rights.grants import Principal
from duramen.core.rights.judgement import CertainRights, GrantTable, Rights
from duramen.core.rights.token_scopes import TokenScope
from duramen.errors import DuramenError
from duramen.limits import GRANTS_AGE_MAX_US
from duramen.runtime.registry import Follower
from duramen.runtime.stores.metadata_store import (
    MetadataError,
    MetadataStore,
    Rejected,
    SessionState,
)
from duramen.units import SECOND, format_duration
from duramen.wire.metadata_json import MetadataJsonError, Paths
from duramen.wire.nodes.grants import GrantsNode, read_grants

_LOG = logging.getLogger(__name__)

_FORBIDDEN_RETRY_S: Final = 5.0
"""No watch tells that a node may be read from now on."""


class GrantCache:
    """Follows the node `grants`."""

    def __init__(self, store: MetadataStore, paths: Paths) -> None:
        self._store = store
        self._path = paths.grants
        self._table: GrantTable | None = None
        self._old_since_us: int | None = None
        """Since when something may have changed that the table does not have."""
        self._fault: str | None = None
        self._not_understood_count = 0
        self._follower = Follower(store, "grants", self._look)
        store.on_session(self._on_session)

    async def start(self) -> None:
        """Look at the node, and follow it; returns after the first answer, whatever it says."""
        await self._follower.start()

    async def stop(self) -> None:
        """Stop following; what is known grows old."""
        await self._follower.stop()

    def rights_of(self, *principals: Principal, scopes: tuple[TokenScope, ...] = ()) -> Rights:
        """What a caller may do now; asked anew for each call.

        Where grants are not known, or may be too old, `judge` and its like say yes to what needs
        no grant, and raise `metadata_unavailable` instead of saying no.

        Args:
            principals: the caller, then its groups.
            scopes: of the access token that it has shown.
        """
        try:
            table = self.get_table()
        except DuramenError as unknown:
            return CertainRights(principals, scopes, unknown)
        return table.rights_of(*principals, scopes=scopes)

    def get_table(self) -> GrantTable:
        """The grants by which a call is judged now; another object after each change.

        Raises:
            DuramenError: `metadata_unavailable`: they are not known, or may be too old.
        """
        if self._table is None:
            raise DuramenError("metadata_unavailable", f"grants: {self._fault or 'not read yet'}")
        if self._old_since_us is not None and _now_us() - self._old_since_us > GRANTS_AGE_MAX_US:
            age = format_duration(GRANTS_AGE_MAX_US)
            reason = self._fault or "ZooKeeper cannot be reached"
            raise DuramenError("metadata_unavailable", f"grants are older than {age}: {reason}")
        return self._table

    def statistics(self) -> dict[str, int | bool | None]:
        """What the table has, and since when it may be old; `grants` null: there is none yet."""
        counted = {"grants": None} if self._table is None else self._table.statistics()
        old_us = None if self._old_since_us is None else _now_us() - self._old_since_us
        return {
            **counted,
            "not_understood": self._not_understood_count,
            "is_refused": self._fault is not None,
            "old_s": None if old_us is None else old_us // SECOND,
        }

    async def _look(self) -> None:
        try:
            stored = await self._follower.get(self._path)
            node = GrantsNode() if stored is None else read_grants(stored.data)
        except Rejected as error:
            self._keep_old(str(error))
            # Raised, it would keep a start waiting for as long as the node is closed to us.
            self._follower.look_later(_FORBIDDEN_RETRY_S)
            return
        except MetadataJsonError as error:
            self._keep_old(str(error))
            return
        except MetadataError:
            self._grow_old()
            raise
        self._fault = None
        if node.not_understood and len(node.not_understood) != self._not_understood_count:
            _LOG.warning("%d grants are not understood and give nothing; the first: %s",
                         len(node.not_understood), node.not_understood[0])  # fmt: skip
        self._not_understood_count = len(node.not_understood)
        self._table = GrantTable(given.grant for given in node.grants)
        if self._store.session is SessionState.CONNECTED:
            self._old_since_us = None

    def _keep_old(self, fault: str) -> None:
        if fault != self._fault:
            _LOG.error("%s is not understood, so what was known before counts: %s",
                       self._path, fault)  # fmt: skip
        self._fault = fault
        self._grow_old()

    def _on_session(self, state: SessionState) -> None:
        # Connected again is not read again: the follower looks, and that ends it.
        if state is not SessionState.CONNECTED:
            self._grow_old()

    def _grow_old(self) -> None:
        if self._old_since_us is None:
            self._old_since_us = _now_us()


def _now_us() -> int:
    return int(asyncio.get_running_loop().time() * SECOND)
