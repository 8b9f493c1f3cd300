"""What identities may do to the cluster, as one process judges it: built-in rights, and grants.

A process is asked before it has reached ZooKeeper: what an identity's role may do needs no grant,
and is judged from the start on. Whatever else is asked waits for the grants to be known, and is
refused with `metadata_unavailable` until then: never allowed, and never as forbidden.

Made by `security.process_security`, asked by the door of the admin port.
Source: docs/protocol/rights.md "How a call is judged", "How grants reach processes".
"""

from __future__ import annotations

import asyncio
from typing import Final

from duramen.core.rights.grants import Principal, PrincipalKind
from duramen.core.rights.judgement import GrantTable
from duramen.core.rights.verbs import Verb
from duramen.errors import DuramenError
from duramen.runtime.identity.names import Identity
from duramen.runtime.rights.grant_cache import GrantCache
from duramen.runtime.stores.metadata_store import MetadataStore
from duramen.wire.metadata_json import Paths

_NO_GRANTS: Final = GrantTable(())


class ProcessRights:
    """The rights by which one process judges."""

    def __init__(self) -> None:
        self._grants: GrantCache | None = None
        self._starting: asyncio.Task[None] | None = None

    def follow(self, store: MetadataStore, paths: Paths) -> None:
        """Judge by the grants of the cluster as well, as soon as they were read.

        Nothing waits for that: a node that cannot be read keeps no process from its start.
        """
        self._grants = GrantCache(store, paths)
        self._starting = asyncio.create_task(self._grants.start())

    async def stop(self) -> None:
        """Follow no more; to be called before the store is closed."""
        if self._starting is not None and self._grants is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
            await self._grants.stop()

    def may(self, identity: Identity, verb: Verb) -> bool:
        """Whether an identity of the cluster may do this to it.

        Raises:
            DuramenError: `metadata_unavailable`: its role may not, and grants are not known.
        """
        principal = Principal(PrincipalKind.SERVICE, f"{identity.role}/{identity.name}")
        if _NO_GRANTS.rights_of(principal).judge(verb):
            return True
        if self._grants is None:
            raise DuramenError("metadata_unavailable", "grants: ZooKeeper was not reached yet")
        return self._grants.get_table().rights_of(principal).judge(verb)

    def statistics(self) -> dict[str, int | bool | None] | None:
        """Of the grants; None: ZooKeeper was not reached yet."""
        return None if self._grants is None else self._grants.statistics()
