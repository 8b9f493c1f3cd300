"""What a change makes of the grants: those within one scope are replaced by others.

Done as a whole or refused as a whole. A grant that stays as it is keeps who gave it. Bounds refuse
what grows, never what shrinks: else what is too full could not be mended.

Called by `runtime.rights.grant_changes`, and by whoever deletes a namespace.
Source: docs/protocol/rights.md "How grants change".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from duramen.core.rights.grants import GivenGrant, Grant, GrantScope, Principal
from duramen.core.rights.judgement import Rights
from duramen.core.rights.verbs import Verb
from duramen.errors import DuramenError

GRANT_COUNT_MAX: Final = 4_096
NAMESPACE_GRANT_COUNT_MAX: Final = 256
"""So one owner cannot fill what all share."""


class StrangeScopes(NamedTuple):
    """Texts of the scopes of rows that are not understood: before a change, and those that stay.

    Such rows give nothing, and count as grants do.
    """

    before: Sequence[str] = ()
    after: Sequence[str] = ()


NO_STRANGE_SCOPES: Final = StrangeScopes()


def list_grants(
    stored: Sequence[GivenGrant], scope: GrantScope, rights: Rights
) -> tuple[GivenGrant, ...]:
    """The grants within a scope.

    Raises:
        DuramenError: `forbidden`: the caller may not grant on all of it.
    """
    if not rights.holds((Verb.GRANT,), scope):
        raise DuramenError("forbidden", f"{Verb.GRANT} on {scope}: you may not")
    return tuple(given for given in stored if scope.covers(given.grant.scope))


def replace_grants(
    stored: Sequence[GivenGrant],
    scope: GrantScope,
    wanted: Collection[Grant],
    *,
    by: Principal,
    rights: Rights,
    now_unix_ms: int,
    strange: StrangeScopes = NO_STRANGE_SCOPES,
) -> tuple[GivenGrant, ...]:
    """All grants of the cluster as they are then, in their order.

    Args:
        stored: all of them, as they are now.
        wanted: those within the scope from then on.
        by: who asks, and `rights`: what it may do.
        strange: what lies beside the grants.

    Raises:
        DuramenError: `forbidden`; `invalid_argument`: one is outside of the scope or named twice,
            or there would be too many.
    """
    within = {given.grant: given for given in list_grants(stored, scope, rights)}
    if len(set(wanted)) != len(wanted):
        twice = next(grant for grant, count in Counter(wanted).items() if count > 1)
        raise _refuse(f"{twice} is given twice")
    for grant in wanted:
        if not scope.covers(grant.scope):
            raise _refuse(f"{grant}: not within {scope}, whose grants are replaced")
        if grant not in within and not rights.may_give(grant):
            raise DuramenError("forbidden", f"{Verb.GRANT} {grant}: you may not")
    outside = [given for given in stored if given.grant not in within]
    fresh = [within.get(grant, GivenGrant(grant, by, now_unix_ms)) for grant in wanted]
    changed = tuple(sorted(outside + fresh, key=order_of))
    _check_bounds(stored, changed, strange)
    return changed


def leave_out_namespace(stored: Sequence[GivenGrant], namespace: str) -> tuple[GivenGrant, ...]:
    """The grants that stay when a namespace goes."""
    return tuple(given for given in stored if given.grant.scope.namespace != namespace)


def is_scope_of(text: str, namespace: str) -> bool:
    """Whether the text of a scope, understood or not, is of the namespace."""
    return text.partition("/")[0] == namespace


def order_of(given: GivenGrant) -> tuple[str, str, str]:
    """By which grants are sorted."""
    scope, who, role = given.grant
    return str(scope), str(who), role.value


def _check_bounds(
    before: Sequence[GivenGrant], after: Sequence[GivenGrant], strange: StrangeScopes
) -> None:
    count = len(after) + len(strange.after)
    if count > GRANT_COUNT_MAX and count > len(before) + len(strange.before):
        raise _refuse(
            f"a cluster has {GRANT_COUNT_MAX} grants at most: give to groups, or on namespaces"
        )
    earlier = _count_by_namespace(before, strange.before)
    later = _count_by_namespace(after, strange.after)
    for namespace, count in later.items():
        if count > NAMESPACE_GRANT_COUNT_MAX and count > earlier[namespace]:
            raise _refuse(
                f"{namespace} has {NAMESPACE_GRANT_COUNT_MAX} grants at most: give to groups, or "
                "on the whole namespace"
            )


def _count_by_namespace(grants: Sequence[GivenGrant], strange: Sequence[str]) -> Counter[str]:
    named = (given.grant.scope.namespace for given in grants)
    counted = Counter(namespace for namespace in named if namespace is not None)
    counted.update(text.partition("/")[0] for text in strange)
    return counted


def _refuse(detail: str) -> DuramenError:
    return DuramenError("invalid_argument", detail, field="grants")
