"""A change replaces the grants within a scope: as a whole, by who may, and within bounds.

Source: docs/protocol/rights.md "How grants change".
"""

from __future__ import annotations

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from duramen.core.rights.changes import (
    GRANT_COUNT_MAX,
    NAMESPACE_GRANT_COUNT_MAX,
    StrangeScopes,
    is_scope_of,
    leave_out_namespace,
    list_grants,
    order_of,
    replace_grants,
)
from duramen.core.rights.grants import GivenGrant, Grant, GrantScope, parse_scope
from duramen.core.rights.judgement import GrantTable, Rights
from duramen.errors import DuramenError
from tests.unit.grants import ANN, OPERATOR, given, grant, grants, make_grant, rights, scopes

ALL = GrantTable(()).rights_of(OPERATOR)
NOW_MS = 99


def change(
    stored: list[GivenGrant], scope: str, *lines: str, by: Rights = ALL
) -> tuple[GivenGrant, ...]:
    wanted = [grant(line) for line in lines]
    return replace_grants(stored, parse_scope(scope), wanted, by=ANN, rights=by, now_unix_ms=NOW_MS)


@drawn(st.lists(grants, unique=True), scopes, st.lists(grants, unique=True))
def test_what_lies_within_is_replaced_and_all_else_stays(
    before: list[Grant], scope: GrantScope, wanted: list[Grant]
) -> None:
    stored = [GivenGrant(each, OPERATOR, 7) for each in before]
    wanted = [each for each in wanted if scope.covers(each.scope)]
    after = replace_grants(stored, scope, wanted, by=ANN, rights=ALL, now_unix_ms=NOW_MS)
    assert {each.grant for each in after if scope.covers(each.grant.scope)} == set(wanted)
    assert {each for each in after if not scope.covers(each.grant.scope)} == {
        each for each in stored if not scope.covers(each.grant.scope)
    }
    assert list(after) == sorted(set(after), key=order_of)
    for each in after:
        is_new = each.grant not in before
        assert (each.by, each.given_unix_ms) == ((ANN, NOW_MS) if is_new else (OPERATOR, 7))
    again = replace_grants(after, scope, wanted, by=OPERATOR, rights=ALL, now_unix_ms=100)
    assert again == after, "the same list again changes nothing"


@drawn(st.lists(grants, max_size=6), scopes, st.lists(grants, max_size=4, unique=True))
def test_nobody_gives_itself_more_than_it_had(
    had: list[Grant], scope: GrantScope, wanted: list[Grant]
) -> None:
    """Whatever one gives oneself, one may do afterwards what one might do before."""
    had = [make_grant(each.scope, ANN, each.role) for each in had]
    wanted = [make_grant(each.scope, ANN, each.role) for each in wanted]
    before = GrantTable(had).rights_of(ANN)
    stored = [GivenGrant(each, OPERATOR, 7) for each in sorted(set(had), key=str)]
    try:
        after = replace_grants(stored, scope, wanted, by=ANN, rights=before, now_unix_ms=NOW_MS)
    except DuramenError:
        return
    for each in after:
        assert before.holds(each.grant.role.verbs, each.grant.scope)


def test_one_that_may_not_be_given_refuses_the_whole_change() -> None:
    owner = rights("owner shop/a*")
    with pytest.raises(DuramenError) as raised:
        change([], "shop/a*", "bob reader shop/ab", "bob archiver shop/ab", by=owner)
    assert raised.value.code == "forbidden"
    assert raised.value.detail == "grant archiver on shop/ab to user:corp/bob: you may not"


def test_what_stays_needs_no_right_to_give_it_and_what_goes_none_to_have_it() -> None:
    owner = rights("owner shop")
    stored = [given("bob archiver shop"), given("ann archiver shop/a")]
    assert change(stored, "shop", "bob archiver shop", by=owner) == (stored[0],)
    assert change(stored, "shop", by=owner) == ()


def test_only_who_grants_on_all_of_the_scope_sees_or_replaces_it() -> None:
    stored = [given("bob reader shop"), given("bob reader shop/a"), given("bob reader shop2")]
    owner = rights("owner shop/a*", "writer shop")
    assert list_grants(stored, parse_scope("shop/a*"), owner) == (stored[1],)
    for scope in ("shop", "*", "shop2", "shop/b", "nothing-there"):
        with pytest.raises(DuramenError) as listed:
            list_grants(stored, parse_scope(scope), owner)
        with pytest.raises(DuramenError) as changed:
            change(stored, scope, by=owner)
        for refusal in (listed.value, changed.value):
            assert refusal.code == "forbidden"
            assert refusal.detail == f"grant on {scope}: you may not"


def test_a_grant_outside_of_the_scope_and_one_named_twice_are_refused() -> None:
    with pytest.raises(DuramenError, match="not within shop/a") as raised:
        change([], "shop/a*", "bob reader shop")
    assert (raised.value.code, raised.value.field) == ("invalid_argument", "grants")
    with pytest.raises(DuramenError, match="is given twice"):
        change([], "shop", "bob reader shop", "bob reader shop")


def test_bounds_refuse_what_grows_and_never_what_shrinks() -> None:
    lines = [f"user:corp/u{number} reader shop" for number in range(NAMESPACE_GRANT_COUNT_MAX)]
    full = list(change([], "shop", *lines))
    one_more = "bob reader shop"
    with pytest.raises(DuramenError, match="shop has 256 grants at most"):
        change(full, "shop", *lines, one_more)
    over = [*full, *(given(f"user:corp/v{number} reader shop") for number in range(9))]
    kept = [f"{each.grant.who} reader shop" for each in over]
    with pytest.raises(DuramenError, match="shop has 256 grants at most"):
        change(over, "shop", *kept, one_more)
    assert len(change(over, "shop", *kept[1:], one_more)) == len(over)
    assert len(change(over, "shop", *kept[1:])) == len(over) - 1
    # Another namespace is none of its business.
    assert len(change(over, "shop2", "bob reader shop2")) == len(over) + 1


def test_a_cluster_has_so_many_grants_and_no_more() -> None:
    full = [given(f"user:corp/u{number} reader *") for number in range(GRANT_COUNT_MAX)]
    with pytest.raises(DuramenError, match="a cluster has 4096 grants at most"):
        change(full, "shop", "bob reader shop")
    kept = [f"{each.grant.who} reader *" for each in full]
    assert len(change(full, "*", *kept[1:], "bob reader shop")) == GRANT_COUNT_MAX
    over = [*full, given("bob reader *")]
    assert len(change(over, "*", "bob reader *", *kept[1:])) == GRANT_COUNT_MAX


def test_rows_that_are_not_understood_count_and_may_be_taken_out() -> None:
    def change_beside(before: int, after: int, *lines: str, scopes: str = "shop/a") -> None:
        strange = StrangeScopes((scopes,) * before, (scopes,) * after)
        replace_grants(
            (), parse_scope("shop"), [grant(line) for line in lines],
            by=ANN, rights=ALL, now_unix_ms=NOW_MS, strange=strange,
        )  # fmt: skip

    full = NAMESPACE_GRANT_COUNT_MAX
    change_beside(full - 1, full - 1, "ann reader shop/b")
    change_beside(full + 1, full, "ann reader shop/b")
    with pytest.raises(DuramenError, match="shop has 256 grants at most"):
        change_beside(full, full, "ann reader shop/b")
    with pytest.raises(DuramenError, match="a cluster has 4096 grants at most"):
        change_beside(GRANT_COUNT_MAX, GRANT_COUNT_MAX, "ann reader shop/b", scopes="?")


@drawn(st.lists(grants, unique=True), st.sampled_from(["shop", "shop2", "gone"]))
def test_with_a_namespace_go_its_grants_and_no_others(had: list[Grant], namespace: str) -> None:
    stored = [GivenGrant(each, OPERATOR, 7) for each in had]
    left = leave_out_namespace(stored, namespace)
    assert list(left) == [
        each
        for each in stored
        if str(each.grant.scope) != namespace
        and not str(each.grant.scope).startswith(f"{namespace}/")
    ]
    for each in had:
        assert is_scope_of(str(each.scope), namespace) == (each.scope.namespace == namespace)
