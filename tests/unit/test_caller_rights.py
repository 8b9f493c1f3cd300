"""Grants and a token's scopes, put together: what either allows, and nothing else.

Source: docs/protocol/rights.md "How a call is judged", docs/protocol/credentials.md "API tokens".
"""

from __future__ import annotations

import pytest

from duramen.core.rights.grants import parse_principal
from duramen.core.rights.judgement import GrantTable
from duramen.core.rights.verbs import Verb
from duramen.runtime.admission.caller_rights import CallerRights, put_together, refuse
from duramen.runtime.credentials.principals import Bearer
from duramen.wire.nodes.access_tokens import Scope
from tests.unit.grants import grant

TOKEN = parse_principal("token:abcdefghabcdefgh")
GRANT = "token:abcdefghabcdefgh reader shop"


def hold(*scopes: tuple[str, str], grants: tuple[str, ...] = ()) -> CallerRights:
    held = tuple(Scope(frozenset(verbs.split(",")), target) for verbs, target in scopes)
    return put_together(GrantTable(map(grant, grants)), Bearer(TOKEN, 1, scopes=held))


@pytest.mark.parametrize(
    ("target", "namespace", "log", "is_covered"),
    [
        ("*", None, None, True), ("*", "shop", "orders", True), ("shop", "shop", "orders", True),
        ("shop", "shop", None, True), ("shop", None, None, False), ("shop", "shop2", None, False),
        ("shop/ord*", "shop", "orders", True), ("shop/ord*", "shop", "or", False),
        ("shop/ord*", "shop", None, False), ("shop/*", "shop", "orders", True),
        ("shop/*", "shop", None, False), ("shop/orders", "shop", "orders", True),
        ("shop/orders", "shop", "orders2", False), ("sho", "shop", "orders", False),
    ],
)  # fmt: skip
def test_a_scope_covers_what_it_names(
    target: str, namespace: str | None, log: str | None, is_covered: bool
) -> None:
    rights = hold(("append,create", target))
    assert rights.judge(Verb.APPEND, namespace, log) is is_covered
    assert not rights.judge(Verb.READ, namespace, log)
    if namespace is not None:
        is_there = target == "*" or (namespace == "shop" and target.startswith("shop"))
        assert rights.reaches(Verb.APPEND, namespace) is is_there
        assert not rights.reaches(Verb.READ, namespace)


def test_grants_and_scopes_each_count() -> None:
    rights = hold(("append", "shop/orders"), grants=(GRANT,))
    assert rights.judge(Verb.READ, "shop", "any") and rights.judge(Verb.APPEND, "shop", "orders")
    assert not rights.judge(Verb.APPEND, "shop", "any")


def test_a_refusal_names_verb_and_target() -> None:
    assert refuse(Verb.APPEND, "shop", "orders").detail == "append to shop/orders: you may not"
    assert refuse(Verb.CREATE, "shop").detail == "create on shop: you may not"
    assert refuse(Verb.OPERATE).detail == "operate on the cluster: you may not"
