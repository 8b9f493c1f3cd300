"""Grants listed and changed: read anew, judged by what was read, written by compare-and-set.

The caller is judged by the very node that its change replaces, never by a cache: else whoever lost
its right a moment ago could still give it back to itself. A token is judged by its own node, which
the same `multi()` proves to be there. A change of unknown outcome is looked up by its nonce (R3).
What a change makes of the grants is the core's to decide.

Called by the sequencer's control operations. Source: docs/protocol/rights.md "How grants change".
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, NoReturn

from duramen.core.rights.changes import StrangeScopes, list_grants, replace_grants
from duramen.core.rights.grants import GivenGrant, Grant, GrantScope, PrincipalKind
from duramen.errors import DuramenError
from duramen.runtime.credentials.access_tokens.token_stock import SeenTokens, TokenStock
from duramen.runtime.credentials.principals import Bearer
from duramen.runtime.rights.grants_reading import ReadGrants, read_grants_now
from duramen.runtime.rights.judged_callers import JudgedCaller, judge_caller, say_revoked
from duramen.runtime.stores.metadata_store import (
    Conflict,
    ConflictKind,
    Create,
    MetadataError,
    MetadataStore,
    Op,
    OutcomeUnknown,
    Set,
    create_parents,
)
from duramen.wire.metadata_json import Paths
from duramen.wire.nodes.grants import GRANTS_BYTES_MAX, GrantsNode, encode_grants

StrangeRows = Sequence[Mapping[str, Any]]
"""Rows that are not understood, as they are stored."""

_NO_TOKENS: Final = SeenTokens({}, frozenset())


class SeenGrants(NamedTuple):
    """Grants within a scope, and the version of the node that has them; 0: there is none yet.

    Of `*` also what is not understood: rows, or why it is the whole node.
    """

    version: int
    grants: tuple[GivenGrant, ...]
    not_understood: tuple[Mapping[str, Any], ...] = ()
    unreadable: str | None = None


class GrantChanges:
    """The one writer of the node `grants`, but for deletions of namespaces."""

    def __init__(self, store: MetadataStore, paths: Paths, stock: TokenStock) -> None:
        self._store = store
        self._paths = paths
        self._path = paths.grants
        self._stock = stock

    async def list_within(self, scope: GrantScope, caller: Bearer) -> SeenGrants:
        """The grants within the scope.

        Raises:
            DuramenError: `forbidden`; `metadata_unavailable`, also where the node is not
                understood and the caller cannot mend it.
        """
        read = await self._read()
        judged = await self._judge(read, scope, caller)
        list_grants(read.node.grants, scope, judged.rights)
        return _see(read, scope)

    async def replace_within(
        self,
        scope: GrantScope,
        wanted: Collection[Grant],
        caller: Bearer,
        *,
        version: int,
        nonce: str,
        strange: StrangeRows | None = None,
    ) -> SeenGrants:
        """Have these grants within the scope from now on, and no others.

        Args:
            caller: is who gives what is new.
            version: that of the list which the caller has seen.
            nonce: the same in each try of one change, and of no other.
            strange: of `*` alone: the rows that stay of those that are not understood; None: all.

        Raises:
            DuramenError: `forbidden`, `config_conflict`: nothing was changed; `invalid_argument`:
                nor was it, one of them cannot be there; `metadata_unavailable`: it may have been
                changed, and the list tells.
        """
        read = await self._read()
        if read.version and read.node.nonce == nonce:
            # A try whose answer was lost; it may have taken the caller's own right, and the time
            # of its credential may be over since.
            return _see(read, scope)
        judged = await self._judge(read, scope, caller)
        kept = _choose_strange(read.node, scope, strange)
        scopes = StrangeScopes(_scopes_of(read.node.not_understood), _scopes_of(kept))
        changed = replace_grants(
            read.node.grants, scope, wanted,
            by=judged.bearer.principal, rights=judged.rights,
            now_unix_ms=time.time_ns() // 1_000_000, strange=scopes,
        )  # fmt: skip
        if read.version != version:
            raise _conflict(read.version)
        is_same = changed == read.node.grants and kept == read.node.not_understood
        if is_same and read.fault is None:
            return _see(read, scope)
        node = replace(read.node, grants=changed, nonce=nonce, not_understood=kept)
        written = await self._write(judged, node)
        return _see(read._replace(version=written, node=node, fault=None), scope)

    async def _read(self) -> ReadGrants:
        try:
            return await read_grants_now(self._store, self._path)
        except MetadataError as error:
            raise _say_absent(error) from error

    async def _judge(self, read: ReadGrants, scope: GrantScope, caller: Bearer) -> JudgedCaller:
        """What the caller may do; a node that is not understood is replaced as a whole, or not."""
        seen = _NO_TOKENS
        if caller.principal.kind is PrincipalKind.TOKEN:
            try:
                seen = await self._stock.look()
            except MetadataError as error:
                raise _say_absent(error) from error
        judged = judge_caller(read, seen, caller, time.time())
        if read.fault is None:
            return judged
        if scope != GrantScope():
            raise read.say_fault()
        # What the CA vouches for alone: a replacement keeps nothing of what nobody has read.
        return judged._replace(rights=read.rights_of(judged.bearer._replace(scopes=())))

    async def _write(self, judged: JudgedCaller, node: GrantsNode) -> int:
        read, data = judged.read, encode_grants(node)
        if len(data) > max(GRANTS_BYTES_MAX, read.size_bytes):
            raise DuramenError(
                "invalid_argument",
                f"all grants of a cluster have {GRANTS_BYTES_MAX} bytes at most: give to groups",
                field="grants",
            )
        try:
            line = judged.prove_line(self._paths)
            if read.version == 0:
                await self._commit((*line, Create(self._path, data)))
            else:
                await self._store.commit((*line, Set(self._path, data, read.version - 1)))
        except Conflict as error:
            if error.path != self._path:
                raise say_revoked(judged.bearer.principal) from error
            raise _conflict() from error
        except OutcomeUnknown as error:
            await self._find_out(read, node, error)
        except MetadataError as error:
            raise _say_absent(error) from error
        return read.version + 1

    async def _commit(self, ops: Sequence[Op]) -> None:
        """Apply operations of which the last one makes the node, below parents that may be none."""
        try:
            await self._store.commit(ops)
        except Conflict as conflict:
            if (conflict.kind, conflict.path) != (ConflictKind.NO_NODE, self._path):
                raise
            await create_parents(self._store.commit, self._path)
            await self._store.commit(ops)

    async def _find_out(self, read: ReadGrants, node: GrantsNode, error: OutcomeUnknown) -> None:
        now = await self._read()
        if now.version == read.version + 1 and now.node.nonce == node.nonce:
            return
        if now.version > read.version:
            # Whatever comes late finds another version: it was not applied, or is changed again.
            raise _conflict(now.version) from error
        _leave_open(error)


def _say_absent(error: MetadataError) -> DuramenError:
    return DuramenError("metadata_unavailable", f"ZooKeeper: {error}")


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


def _see(read: ReadGrants, scope: GrantScope) -> SeenGrants:
    """What a caller is shown that was judged before."""
    within = tuple(given for given in read.node.grants if scope.covers(given.grant.scope))
    strange = read.node.not_understood if scope == GrantScope() else ()
    return SeenGrants(read.version, within, strange, read.fault)


def _choose_strange(
    node: GrantsNode, scope: GrantScope, wanted: StrangeRows | None
) -> tuple[Mapping[str, Any], ...]:
    """Of the rows that are not understood those that stay.

    Raises:
        DuramenError: `invalid_argument`: one is not there, or they are chosen within less than all.
    """
    if wanted is None:
        return node.not_understood
    if scope != GrantScope() or any(row not in node.not_understood for row in wanted):
        raise DuramenError(
            "invalid_argument", "not_understood: of * alone, give rows that its list shows",
            field="not_understood",
        )  # fmt: skip
    return tuple(row for row in node.not_understood if row in wanted)


def _scopes_of(rows: StrangeRows) -> tuple[str, ...]:
    return tuple(row["scope"] for row in rows)
