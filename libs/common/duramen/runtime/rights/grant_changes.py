"""Grants listed and changed: read anew, judged by what was read, written by compare-and-set.

The caller is judged by the very node that its change replaces, never by a cache: else whoever lost
its right a moment ago could still give it back to itself. A change of unknown outcome is looked up
by its nonce (R3). What a change makes of the grants is the core's to decide.

Called by nothing yet: no port knows who calls. Source: docs/protocol/rights.md "How grants change".
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple, NoReturn

from duramen.core.rights.changes import list_grants, replace_grants
from duramen.core.rights.grants import GivenGrant, Grant, GrantScope, Principal
from duramen.core.rights.judgement import GrantTable, Rights
from duramen.errors import DuramenError
from duramen.runtime.stores.metadata_store import (
    Conflict,
    MetadataError,
    MetadataStore,
    OutcomeUnknown,
)
from duramen.wire.metadata_json import MetadataJsonError, Paths
from duramen.wire.nodes.grants import GRANTS_BYTES_MAX, GrantsNode, encode_grants, read_grants


class SeenGrants(NamedTuple):
    """Grants within a scope, and the version of the node that has them; 0: there is none yet."""

    version: int
    grants: tuple[GivenGrant, ...]


class _ReadNode(NamedTuple):
    version: int
    node: GrantsNode
    size_bytes: int

    def rights_of(self, caller: tuple[Principal, ...]) -> Rights:
        return GrantTable(given.grant for given in self.node.grants).rights_of(*caller)


class GrantChanges:
    """The one writer of the node `grants`."""

    def __init__(self, store: MetadataStore, paths: Paths) -> None:
        self._store = store
        self._path = paths.grants

    async def list_within(self, scope: GrantScope, caller: tuple[Principal, ...]) -> SeenGrants:
        """The grants within the scope.

        Args:
            caller: who asks: itself, then its groups.

        Raises:
            DuramenError: `forbidden`; `metadata_unavailable`; `internal`: the node is broken.
        """
        read = await self._read()
        within = list_grants(read.node.grants, scope, read.rights_of(caller))
        return SeenGrants(read.version, within)

    async def replace_within(
        self,
        scope: GrantScope,
        wanted: Collection[Grant],
        caller: tuple[Principal, ...],
        *,
        version: int,
    ) -> SeenGrants:
        """Have these grants within the scope from now on, and no others.

        Args:
            caller: as of `list_within`; the first is who gives what is new.
            version: that of the list which the caller has seen.

        Raises:
            DuramenError: `forbidden`, `config_conflict`: nothing was changed; `invalid_argument`:
                nor was it, one of them cannot be there; `metadata_unavailable`: it may have been
                changed, and the list tells; `internal`: the node is broken.
        """
        read = await self._read()
        rights = read.rights_of(caller)
        changed = replace_grants(
            read.node.grants, scope, wanted,
            by=caller[0], rights=rights, now_unix_ms=time.time_ns() // 1_000_000,
        )  # fmt: skip
        if read.version != version:
            raise _conflict(read.version)
        if changed == read.node.grants:
            return SeenGrants(read.version, list_grants(changed, scope, rights))
        node = replace(read.node, grants=changed, nonce=secrets.token_hex(12))
        return SeenGrants(await self._write(read, node), list_grants(changed, scope, rights))

    async def _read(self) -> _ReadNode:
        try:
            await self._store.sync(self._path)
            stored = await self._store.get(self._path)
            if stored is None:
                return _ReadNode(0, GrantsNode(), 0)
            return _ReadNode(stored.version + 1, read_grants(stored.data), len(stored.data))
        except MetadataError as error:
            raise DuramenError("metadata_unavailable", f"ZooKeeper: {error}") from error
        except MetadataJsonError as error:
            raise DuramenError("internal", f"the grants are to be mended: {error}") from error

    async def _write(self, read: _ReadNode, node: GrantsNode) -> int:
        data = encode_grants(node)
        if len(data) > max(GRANTS_BYTES_MAX, read.size_bytes):
            raise DuramenError(
                "invalid_argument",
                f"all grants of a cluster have {GRANTS_BYTES_MAX} bytes at most: give to groups",
                field="grants",
            )
        try:
            if read.version == 0:
                await self._store.create(self._path, data, make_parents=True)
            else:
                await self._store.set(self._path, data, version=read.version - 1)
        except Conflict as error:
            raise _conflict() from error
        except OutcomeUnknown as error:
            await self._find_out(read, node, error)
        except MetadataError as error:
            raise DuramenError("metadata_unavailable", f"ZooKeeper: {error}") from error
        return read.version + 1

    async def _find_out(self, read: _ReadNode, node: GrantsNode, error: OutcomeUnknown) -> None:
        now = await self._read()
        if now.version == read.version + 1 and now.node.nonce == node.nonce:
            return
        if now.version > read.version:
            # Whatever comes late finds another version: it was not applied, or is changed again.
            raise _conflict(now.version) from error
        _leave_open(error)


def _leave_open(error: OutcomeUnknown) -> NoReturn:
    raise DuramenError(
        "metadata_unavailable", "the change may still take effect: list the grants", uncertain=True
    ) from error


def _conflict(version: int | None = None) -> DuramenError:
    now = "" if version is None else f", which has version {version} now"
    return DuramenError(
        "config_conflict", f"somebody else changed the grants: read them again{now}",
        field="version",
    )  # fmt: skip
