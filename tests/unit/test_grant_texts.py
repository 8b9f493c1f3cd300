"""Principals, scopes and grants as texts: one form each, and whatever differs from it is none.

Source: docs/protocol/rights.md "Principals", docs/protocol/rights.md "Grants".
"""

from __future__ import annotations

import pytest
from hypothesis import given

from duramen.core.rights.grants import Grant, GrantScope, parse_grant, parse_principal, parse_scope
from duramen.errors import DuramenError
from tests.unit.grants import grants


@given(grants)
def test_a_grant_is_read_as_it_was_written(grant: Grant) -> None:
    assert parse_grant(str(grant.who), grant.role.value, str(grant.scope)) == grant


@pytest.mark.parametrize(
    "text",
    [
        "user:corp/ann",
        "user:corp/a/b:c*",
        "user:corp/" + "x" * 255,
        "group:a-1/Domain Admins",
        "group:c/É",
        "token:abcdefghijkl2345",
        "serviceaccount:k8s/shop/till",
        "serviceaccount:k8s/shop/till.v1-a",
        "service:bookie/bookie-0",
    ],
)
def test_a_principal_keeps_its_text(text: str) -> None:
    assert str(parse_principal(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "", "*", "user", "user:", "ann", "User:corp/ann", " user:corp/ann", "user:ann",
        "user:/ann", "user:corp/", "user:Corp/ann", "user:corp/Ann Lee", "user:corp/é",
        "user:corp-/ann", "user:1corp/ann", "user:" + "c" * 33 + "/ann", "group:corp/",
        "group:corp/E\u0301", "group:corp/ a", "group:corp/a ", "serviceaccount:K8s/shop/till",
        "user:corp/ann\n", "user:corp/ ann",
        "user:corp/ann ", "user:corp/a\tb", "user:corp/a\u202eb", "user:corp/a\u00a0b",
        "user:corp/\ud800", "user:corp/" + "x" * 256, "group:corp", "token:", "token:a_b",
        "token:*", "token:" + "a" * 15, "token:" + "a" * 17, "token:ABCDEFGHIJKL2345",
        "token:abcdefghijkl2341", "serviceaccount:shop/till", "serviceaccount:k8s/Shop/till",
        "serviceaccount:k8s/shop/till/x", "serviceaccount:k8s/shop/-a",
        "serviceaccount:k8s/shop/" + "a" * 254,
        "service:bookie", "service:bookie/", "service:Bookie/b", "service:bookie/b/c",
        "service:*/b", "service:bookie/b\n", "anybody:x",
    ],
)  # fmt: skip
def test_another_text_is_no_principal(text: str) -> None:
    with pytest.raises(DuramenError, match="names no principal") as raised:
        parse_principal(text)
    assert (raised.value.code, raised.value.field) == ("invalid_argument", "who")


@pytest.mark.parametrize(
    ("text", "scope"),
    [
        ("*", GrantScope()),
        ("shop", GrantScope("shop")),
        ("shop/ord", GrantScope("shop", "ord")),
        ("shop/ord*", GrantScope("shop", "ord", is_prefix=True)),
        ("shop/" + "a" * 255 + "*", GrantScope("shop", "a" * 255, is_prefix=True)),
    ],
)
def test_a_scope_has_one_text(text: str, scope: GrantScope) -> None:
    assert parse_scope(text) == scope
    assert str(scope) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("shop/", "all of a namespace is written 'shop'"),
        ("shop/*", "all of a namespace is written 'shop'"),
        ("", "write *, NAMESPACE, NAMESPACE/LOG or NAMESPACE/PREFIX*"),
        ("**", "write"), ("*/a", "write"), ("sh*", "write"), ("sh*/a", "write"),
        ("shop/a**", "write"), ("shop/*a", "write"), ("shop/a*b", "write"), ("shop/a/b", "write"),
        ("shop/-a*", "write"), ("Shop", "write"), (" shop", "write"), ("shop\n", "write"),
        ("shop/" + "a" * 256 + "*", "write"), ("/a", "write"),
    ],
)  # fmt: skip
def test_another_text_is_no_scope(text: str, said: str) -> None:
    with pytest.raises(DuramenError) as raised:
        parse_scope(text)
    assert said in raised.value.detail
    assert (raised.value.code, raised.value.field) == ("invalid_argument", "scope")


@pytest.mark.parametrize("role", ["", "Reader", "admin", "reader "])
def test_another_text_is_no_role(role: str) -> None:
    with pytest.raises(DuramenError, match="is no role: reader, producer") as raised:
        parse_grant("user:corp/ann", role, "shop")
    assert raised.value.field == "role"


@pytest.mark.parametrize("role", ["monitor", "operator"])
def test_what_is_of_the_cluster_is_given_on_the_cluster(role: str) -> None:
    for scope in ("shop", "shop/a*", "shop/a"):
        with pytest.raises(DuramenError, match=r"is given on \* alone") as raised:
            parse_grant("user:corp/ann", role, scope)
        assert raised.value.field == "scope"
    assert parse_grant("user:corp/ann", role, "*").scope == GrantScope()


def test_a_whole_token_that_is_given_as_a_name_is_not_repeated() -> None:
    secret = "b" * 51 + "a"
    for text in (f"token:dur1_{'a' * 16}_{secret}", f"dur1_{'a' * 16}_{secret}"):
        with pytest.raises(DuramenError) as refused:
            parse_principal(text)
        assert "bbbb" not in refused.value.detail and "dur1_aaaa" in refused.value.detail
