"""What identities may do to the cluster, as one process judges it: built-in rights, and grants.

A process is asked before it has reached ZooKeeper: what an identity's role may do needs no grant,
and is judged from the start on. Whatever else is asked waits for the grants to be known, and is
refused with `metadata_unavailable` until then: never allowed, and never as forbidden.

Made by `security.process_security`, asked by the doors of admin ports and public ports.
Source: docs/protocol/rights.md "How a call is judged", "How grants reach processes".
"""

from __future__ import annotations

import asyncio
from typing import Final

from duramen.core.rights.grants import Principal, PrincipalKind
from duramen.core.rights.judgement import CertainRights, GrantTable, Rights
from duramen.core.rights.system_namespace import HANDING_ROLES
from duramen.core.rights.token_scopes import TokenScope
from duramen.core.rights.verbs import Verb
from duramen.errors import DuramenError
from duramen.runtime.identity.names import Identity
from duramen.runtime.rights.grant_cache import GrantCache
from duramen.runtime.stores.metadata_store import MetadataStore
from duramen.wire.metadata_json import Paths

_NOT_REACHED: Final = DuramenError("metadata_unavailable", "grants: ZooKeeper was not reached yet")


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

    async def wait_first_look(self) -> None:
        """Return once the node was looked at, whatever that gave; `follow` was called before."""
        assert self._starting is not None, "nobody looks"
        await asyncio.shield(self._starting)

    def may(self, identity: Identity, verb: Verb) -> bool:
        """Whether an identity of the cluster may do this to it, at an admin port.

        To append there is to hand on records for the audit log, for which no grant counts.

        Raises:
            DuramenError: `metadata_unavailable`: its role may not, and grants are not known.
        """
        if verb is Verb.APPEND:
            return identity.role in HANDING_ROLES
        principal = Principal(PrincipalKind.SERVICE, f"{identity.role}/{identity.name}")
        return self.rights_of(principal).judge(verb)

    def rights_of(self, *principals: Principal, scopes: tuple[TokenScope, ...] = ()) -> Rights:
        """See `GrantCache.rights_of`."""
        if self._grants is None:
            return CertainRights(principals, scopes, _NOT_REACHED)
        return self._grants.rights_of(*principals, scopes=scopes)

    def find_table(self) -> GrantTable | None:
        """What is judged by now, another object after each change; None: nobody knows grants."""
        try:
            return None if self._grants is None else self._grants.get_table()
        except DuramenError:
            return None

    def statistics(self) -> dict[str, int | bool | None] | None:
        """Of the grants; None: ZooKeeper was not reached yet."""
        return None if self._grants is None else self._grants.statistics()
