"""Grants for tests: short texts, and strategies whose names share beginnings.

Called by the tests of rights. Source: docs/protocol/rights.md "Grants".
"""

from __future__ import annotations

from hypothesis import strategies as st

from duramen.core.rights.grants import (
    GivenGrant,
    Grant,
    GrantScope,
    Principal,
    parse_grant,
    parse_principal,
    parse_scope,
)
from duramen.core.rights.judgement import GrantTable, Rights
from duramen.core.rights.verbs import GrantedRole

ANN, BOB = parse_principal("user:corp/ann"), parse_principal("user:corp/bob")
TEAM = parse_principal("group:corp/team")
OPERATOR = parse_principal("service:operator/op")
PEOPLE = (ANN, BOB, TEAM, parse_principal("service:client/ann"), OPERATOR)

names = st.text("ab-", max_size=2).map(lambda rest: f"a{rest}")
"""Of logs, and the beginnings of such names."""

namespaces = st.sampled_from(["shop", "shop2", "sho", "a"])
within = st.builds(GrantScope, namespaces, names, st.booleans())
scopes = st.one_of(st.just(GrantScope()), namespaces.map(GrantScope), within)


def make_grant(scope: GrantScope, who: Principal, role: GrantedRole) -> Grant:
    """The grant, on the whole cluster where the role is given nowhere else."""
    return Grant(GrantScope() if role.is_of_cluster else scope, who, role)


grants = st.builds(
    make_grant, scopes, st.sampled_from(PEOPLE), st.sampled_from(list(GrantedRole))
)  # fmt: skip


def grant(line: str) -> Grant:
    """`ann reader shop/ord*` as a grant; other people than ann and bob are written in full."""
    who, role, scope = line.split()
    return parse_grant(who if ":" in who else f"user:corp/{who}", role, scope)


def given(line: str, by: Principal = OPERATOR, at_ms: int = 7) -> GivenGrant:
    """The same as it is stored."""
    return GivenGrant(grant(line), by, at_ms)


def rights(*lines: str, who: Principal = ANN) -> Rights:
    """What ann may do by these grants, each without its principal: `reader shop`."""
    table = GrantTable(Grant(parse_scope(scope), who, GrantedRole(role))
                       for role, scope in map(str.split, lines))  # fmt: skip
    return table.rights_of(who)
