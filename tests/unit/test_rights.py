"""The judgement of a call agrees with the plainest reading of the page, grant by grant.

The oracle looks at every grant of every principal and compares texts; the table under test has
dictionaries and a search among prefixes. Source: docs/protocol/rights.md "How a call is judged",
docs/protocol/rights.md "Roles".
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from duramen.core.rights import judgement
from duramen.core.rights.grants import Grant, GrantScope, Principal, PrincipalKind, parse_scope
from duramen.core.rights.judgement import BUILT_IN, CertainRights, GrantTable
from duramen.core.rights.token_scopes import TokenScope
from duramen.core.rights.verbs import OF_CLUSTER, GrantedRole, Verb
from duramen.errors import DuramenError
from duramen.runtime.identity.names import Role
from tests.unit.grants import (
    ANN,
    BOB,
    OPERATOR,
    PEOPLE,
    TEAM,
    grant,
    grants,
    names,
    namespaces,
    rights,
    scopes,
)

verbs = st.sampled_from(list(Verb))
targets = st.one_of(
    st.tuples(st.none(), st.none()),
    st.tuples(namespaces, st.none()),
    st.tuples(namespaces, names.map(lambda name: name + "x")),
    st.tuples(namespaces, names),
)


def is_allowed(
    granted: Iterable[Grant], callers: Iterable[Principal], verb: Verb, target: str
) -> bool:
    """The oracle: `target` is a text as a scope without a star."""
    return any(
        verb in each.role.verbs and is_covered(target, str(each.scope))
        for each in granted
        if each.who in callers
    ) or any(
        verb in role.verbs
        for who in callers
        if who.kind is PrincipalKind.SERVICE
        for role in BUILT_IN.get(who.name.split("/")[0], ())
    )


def is_covered(target: str, scope: str) -> bool:
    if scope == "*":
        return True
    if scope.endswith("*"):
        return "/" in target and target.startswith(scope[:-1])
    return target == scope or target.startswith(scope + "/")


callers_of = st.lists(st.sampled_from(PEOPLE), min_size=1, max_size=3, unique=True)


@given(st.lists(grants, max_size=12), callers_of, verbs, targets)
@example([grant("ann reader shop/a*")], [ANN], Verb.READ, ("shop2", "a"))
@example([grant("ann reader shop/a*")], [ANN], Verb.READ, ("shop", None))
@example(
    [grant("ann reader shop/ab*"), grant("ann reader shop/a*")], [ANN], Verb.READ, ("shop", "ac")
)
@example([grant("ann reader shop/a")], [ANN], Verb.READ, ("shop", "ab"))
def test_a_judgement_is_what_the_grants_say_one_by_one(
    granted: list[Grant],
    callers: list[Principal],
    verb: Verb,
    target: tuple[str | None, str | None],
) -> None:
    namespace, log = target
    said = GrantTable(granted).rights_of(*callers).judge(verb, namespace, log)
    text = "/".join(part for part in target if part) or "the cluster"
    assert said == is_allowed(granted, callers, verb, text)


nested = st.text("ab", min_size=1, max_size=5)


@given(st.dictionaries(nested, st.sampled_from(list(GrantedRole)[:5]), max_size=8), nested)
def test_prefixes_within_prefixes_add_up(prefixes: dict[str, GrantedRole], log: str) -> None:
    granted = [Grant(parse_scope(f"shop/{prefix}*"), ANN, prefixes[prefix]) for prefix in prefixes]
    found = GrantTable(granted).rights_of(ANN)
    for verb in Verb:
        expected = is_allowed(granted, [ANN], verb, f"shop/{log}")
        assert found.judge(verb, "shop", log) == expected, verb


def test_more_on_a_longer_prefix_leaves_what_the_shorter_one_gave() -> None:
    found = rights("producer shop/a*", "reader shop/abc*", "archiver shop/b*")
    assert found.judge(Verb.APPEND, "shop", "abcd") and found.judge(Verb.READ, "shop", "abcd")
    assert found.judge(Verb.APPEND, "shop", "abd") and not found.judge(Verb.READ, "shop", "abd")


@given(st.lists(grants, max_size=12), callers_of, verbs, namespaces)
def test_a_list_reaches_a_namespace_in_which_anything_is_listed(
    granted: list[Grant], callers: list[Principal], verb: Verb, namespace: str
) -> None:
    said = GrantTable(granted).rights_of(*callers).reaches(verb, namespace)
    assert said == (
        is_allowed(granted, callers, verb, namespace)
        or any(
            verb in each.role.verbs and each.scope.namespace == namespace
            for each in granted
            if each.who in callers
        )
    )


@given(st.lists(grants, max_size=12), callers_of, st.sets(verbs, min_size=1), scopes, names)
def test_who_holds_verbs_on_a_scope_may_use_them_on_all_of_it(
    granted: list[Grant],
    callers: list[Principal],
    wanted: set[Verb],
    scope: GrantScope,
    name: str,
) -> None:
    found = GrantTable(granted).rights_of(*callers)
    if not found.holds(wanted, scope):
        return
    log = None if scope.log is None else scope.log + (name if scope.is_prefix else "")
    assert all(found.judge(verb, scope.namespace, log) for verb in wanted)
    covered = [each for each in (GrantScope("shop"), parse_scope("shop/ab")) if scope.covers(each)]
    assert all(found.holds(wanted, each) for each in covered)


@given(scopes, scopes)
def test_a_scope_covers_what_every_text_of_the_other_is_covered_by(
    scope: GrantScope, other: GrantScope
) -> None:
    probes = [f"{space}/{log}" for space in ("shop", "shop2", "sho", "a")
              for log in ("a", "aa", "ab", "aab", "a-", "aba", "a--", "a-bx")]  # fmt: skip
    probes += ["the cluster", "shop", "shop2", "sho", "a"]
    if scope.covers(other):
        of_other = [probe for probe in probes if is_covered(probe, str(other))]
        assert all(is_covered(probe, str(scope)) for probe in of_other)
    elif not other.is_prefix:
        assert not is_covered("the cluster" if other.namespace is None else str(other), str(scope))


@pytest.mark.parametrize(
    ("scope", "target", "is_inside"),
    [
        ("shop/a*", ("shop", "a"), True),
        ("shop/a*", ("shop", "ab"), True),
        ("shop/a*", ("shop", "A"), False),
        ("shop/a*", ("shop", "b"), False),
        ("shop/a*", ("shop2", "a"), False),
        ("shop/a*", ("shop", None), False),
        ("shop/a", ("shop", "ab"), False),
        ("shop", ("shop", None), True),
        ("shop", ("shop", "a"), True),
        ("shop", ("shop2", None), False),
        ("shop", ("shop2", "a"), False),
        ("shop", (None, None), False),
        ("*", (None, None), True),
        ("*", ("shop2", "a"), True),
    ],
)
def test_the_edges_of_each_scope(
    scope: str, target: tuple[str | None, str | None], *, is_inside: bool
) -> None:
    assert rights(f"reader {scope}").judge(Verb.READ, *target) is is_inside


def test_nobody_begins_with_anything_but_what_the_ca_vouches_for() -> None:
    table = GrantTable(())
    for kind in PrincipalKind:
        for name in ("corp/ann", "client/operator", "bookie/b", "readproxy/r", "operators/o"):
            found = table.rights_of(Principal(kind, name))
            assert not any(found.judge(verb) for verb in Verb), (kind, name)
    operator = table.rights_of(OPERATOR)
    assert all(operator.judge(verb, "any", "log") and operator.judge(verb) for verb in Verb)
    # The same text of another kind is somebody else.
    for kind in set(PrincipalKind) - {PrincipalKind.SERVICE}:
        assert not table.rights_of(Principal(kind, OPERATOR.name)).judge(Verb.LIST)


def test_who_begins_with_rights_is_a_role_of_identities() -> None:
    assert set(BUILT_IN) <= {role.value for role in Role}


def test_a_member_of_a_group_has_what_the_group_has_and_the_group_not_what_it_has() -> None:
    table = GrantTable((grant("group:corp/team reader shop"), grant("ann producer shop")))
    both = table.rights_of(ANN, TEAM)
    assert both.judge(Verb.APPEND, "shop", "l") and both.judge(Verb.READ, "shop", "l")
    assert not table.rights_of(ANN).judge(Verb.READ, "shop", "l")
    assert not table.rights_of(TEAM).judge(Verb.APPEND, "shop", "l")
    assert not table.rights_of(BOB).judge(Verb.LIST, "shop", "l")


def test_only_a_cluster_wide_grant_reaches_the_cluster() -> None:
    table = GrantTable((grant("ann owner shop"), grant("bob operator *")))
    assert not any(table.rights_of(ANN).judge(verb) for verb in Verb)
    assert table.rights_of(BOB).judge(Verb.OPERATE)
    assert not table.rights_of(BOB).judge(Verb.READ, "shop", "l"), "the operator reads no records"


def test_rights_of_callers_are_kept_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judgement, "CALLERS_MAX", 2)
    table = GrantTable((grant("ann reader shop"),))
    first = table.rights_of(ANN)
    assert table.rights_of(ANN) is first
    table.rights_of(BOB)
    table.rights_of(ANN, TEAM)
    assert table.statistics()["callers"] == 2
    assert table.rights_of(ANN) is not first
    assert table.rights_of(ANN).judge(Verb.READ, "shop", "l")


@pytest.mark.parametrize(
    ("had", "line", "may"),
    [
        ("owner shop", "bob owner shop", True),
        ("owner shop", "bob writer shop/a*", True),
        ("owner shop", "bob reader shop2", False),
        ("owner shop", "bob reader *", False),
        ("owner shop", "bob archiver shop", False),
        ("owner shop/a*", "bob owner shop/ab*", True),
        ("owner shop/a*", "bob owner shop/ab", True),
        ("owner shop/ab*", "bob reader shop/a*", False),
        ("owner shop/a*", "bob reader shop", False),
        ("owner shop/a", "bob reader shop/a", True),
        ("owner shop/a", "bob reader shop/a*", False),
        ("owner *", "bob owner *", True),
        ("owner *", "bob monitor *", False),
        ("writer *", "bob reader shop", False),
    ],
)
def test_what_is_handed_on_is_no_wider_than_what_one_has(had: str, line: str, *, may: bool) -> None:
    assert rights(had).may_give(grant(line)) is may


def test_verbs_of_several_grants_may_be_handed_on_together() -> None:
    assert rights("owner shop/a*", "archiver shop").may_give(grant("bob archiver shop/ab"))
    assert not rights("owner shop/a*", "archiver shop/b*").may_give(grant("bob archiver shop/ab"))


def test_operators_hand_on_every_role() -> None:
    found = GrantTable(()).rights_of(OPERATOR)
    assert all(found.may_give(Grant(GrantScope(), ANN, role)) for role in GrantedRole)


# --- Scopes of tokens ----------------------------------------------------------------------------

held_scopes = st.builds(
    lambda verbs, scope: TokenScope(
        frozenset(verbs) if scope == GrantScope() else frozenset(verbs) - OF_CLUSTER, scope
    ),
    st.sets(verbs, min_size=1),
    scopes,
)


@given(st.lists(grants, max_size=6), st.lists(held_scopes, max_size=4).map(tuple), verbs, targets)
def test_a_token_s_scopes_come_on_top_of_what_is_granted(
    granted: list[Grant],
    held: tuple[TokenScope, ...],
    verb: Verb,
    target: tuple[str | None, str | None],
) -> None:
    namespace, log = target
    text = "/".join(part for part in target if part) or "the cluster"
    table = GrantTable(granted)
    by_grants = is_allowed(granted, [ANN], verb, text)
    by_scopes = any(verb in one.verbs and is_covered(text, str(one.on)) for one in held)
    said = table.rights_of(ANN, scopes=held).judge(verb, namespace, log)
    assert said == (by_grants or by_scopes)
    assert table.rights_of(ANN).judge(verb, namespace, log) == by_grants, "and are that token's"


@given(st.lists(held_scopes, max_size=4).map(tuple), callers_of, verbs, targets)
def test_while_grants_are_unknown_a_yes_is_certain_and_a_no_is_unknown(
    held: tuple[TokenScope, ...],
    callers: list[Principal],
    verb: Verb,
    target: tuple[str | None, str | None],
) -> None:
    known = GrantTable(()).rights_of(*callers, scopes=held)
    certain = CertainRights(callers, held, DuramenError("metadata_unavailable", "not read"))
    if known.judge(verb, *target):
        assert certain.judge(verb, *target)
    else:
        with pytest.raises(DuramenError, match="not read"):
            certain.judge(verb, *target)
