"""The node `grants` as it is now, read for a decision: who may what by it, and proof that it stays.

Whoever changes something because of a right reads by `read_grants_now` and commits together with
the operation that proves the node unchanged: else a right that was taken a moment ago still counts.
Judging calls goes by `grant_cache` instead.

Called by `grant_changes`, whoever issues access tokens, and whoever deletes a namespace.
Source: docs/protocol/rights.md "How grants change".
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import NamedTuple

from duramen.core.rights.changes import is_scope_of, leave_out_namespace
from duramen.core.rights.judgement import CertainRights, GrantTable, Rights
from duramen.errors import DuramenError
from duramen.runtime.credentials.principals import Bearer
from duramen.runtime.stores.metadata_store import Check, Create, MetadataStore, Op, Set
from duramen.wire.metadata_json import MetadataJsonError
from duramen.wire.nodes.grants import GrantsNode, encode_grants, read_grants


class ReadGrants(NamedTuple):
    """The node; `version` counts from 1, 0: it is not there. With a `fault` it has no grants."""

    path: str
    version: int
    node: GrantsNode
    size_bytes: int = 0
    fault: str | None = None

    def rights_of(self, caller: Bearer) -> Rights:
        """What a caller may do by this node; by one with a fault what its credential gives."""
        if self.fault is not None:
            return CertainRights((caller.principal,), caller.scopes, self.say_fault())
        table = GrantTable(given.grant for given in self.node.grants)
        return table.rights_of(*caller.principals, scopes=caller.scopes)

    def say_fault(self) -> DuramenError:
        """The refusal of whatever needs to know grants."""
        return DuramenError(
            "metadata_unavailable",
            f"an operator's identity has to replace the grants of *, of version {self.version}, "
            f"which nobody understands: {self.fault}",
        )

    def prove(self) -> tuple[Op, ...]:
        """What refuses a commit if the node has changed. Of none nothing: who has rights without it
        has them with it."""
        return (Check(self.path, self.version - 1),) if self.version else ()

    def leave_out(self, namespace: str) -> Op:
        """What takes all grants of a namespace along, or proves that there are none.

        Raises:
            DuramenError: `metadata_unavailable`: the node is not understood.
        """
        if self.fault is not None:
            raise self.say_fault()
        if not self.version:
            # Without a node there is no version that says that none comes in between.
            return Create(self.path, encode_grants(GrantsNode()))
        node = self.node
        grants = leave_out_namespace(node.grants, namespace)
        strange = tuple(
            row for row in node.not_understood if not is_scope_of(row["scope"], namespace)
        )
        if (grants, strange) == (node.grants, node.not_understood):
            return Check(self.path, self.version - 1)
        left = replace(node, grants=grants, not_understood=strange, nonce=secrets.token_hex(12))
        return Set(self.path, encode_grants(left), self.version - 1)


async def read_grants_now(store: MetadataStore, path: str) -> ReadGrants:
    """The node as it is once everything acknowledged before is seen.

    Raises:
        MetadataError: it cannot be read.
    """
    await store.sync(path)
    stored = await store.get(path)
    if stored is None:
        return ReadGrants(path, 0, GrantsNode())
    version, size_bytes = stored.version + 1, len(stored.data)
    try:
        return ReadGrants(path, version, read_grants(stored.data), size_bytes)
    except MetadataJsonError as error:
        return ReadGrants(path, version, GrantsNode(), size_bytes, str(error))
