"""API tokens: their text, their node, and which scope is no wider than which.

Source: docs/protocol/credentials.md "API tokens".
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.core.rights.grants import GrantScope, is_token_id, parse_principal, parse_scope
from duramen.core.rights.token_scopes import SCOPE_COUNT_MAX, TokenScope, parse_token_scope
from duramen.core.rights.verbs import OF_CLUSTER, Verb
from duramen.errors import DuramenError
from duramen.runtime.credentials.access_tokens.token_text import (
    format_prefix,
    is_same_secret,
    make_token,
    take_token_apart,
)
from duramen.runtime.credentials.principals import CredentialRefusedError
from duramen.wire.metadata_json import MetadataJsonError, Paths, encode_node, read_node
from duramen.wire.nodes.access_tokens import (
    AccessToken,
    encode_access_token,
    encode_scopes,
    read_access_token,
    read_scopes,
)
from tests.golden import read_golden
from tests.unit.grants import scopes

plain_verbs = st.sampled_from(sorted(set(Verb) - OF_CLUSTER))

TOKEN: Final = AccessToken(
    token_id="abcdefghijkl2345",
    secret_hash=bytes(range(32)),
    issued_by=parse_principal("user:corp/alice"),
    scopes=(
        parse_token_scope(["append", "read"], "events/web-*"),
        parse_token_scope(["list"], "events"),
    ),
    created_s=1_800_000_000,
    expires_s=1_800_086_400,
    note="the shop's cart",
    parent_id="2345abcdefghijkl",
)


# --- Text ----------------------------------------------------------------------------------------


def test_a_token_has_the_form_of_the_page_and_is_never_the_same() -> None:
    made = [make_token() for _ in range(200)]
    for token in made:
        assert re.fullmatch(r"dur1_[a-z2-7]{16}_[a-z2-7]{51}[aq]", token.text), token.text
        assert len(token.text) == 74
        assert take_token_apart(token.text) == token
        assert token.text.startswith(format_prefix(token.token_id))
        assert token.text[22:] not in f"{token!r} {token} {[token]}", "nobody logs it by mistake"
        assert token.hash == hashlib.sha256(token.text.encode()).digest()
    assert (
        len({token.token_id for token in made}) == len({token.text[22:] for token in made}) == 200
    )


def test_only_the_text_that_was_hashed_is_the_same_secret() -> None:
    made, other = make_token(), make_token()
    assert is_same_secret(made, made.hash)
    assert not is_same_secret(made, other.hash)
    assert not is_same_secret(made, None)
    assert not is_same_secret(made, b"")
    copied = made._replace(text=made.text.replace(made.token_id, other.token_id))
    assert not is_same_secret(copied, made.hash), "a hash under another id opens nothing"


def test_one_secret_has_one_text() -> None:
    """Of the 32 last letters that decode to the same bytes one alone is taken."""
    text = make_token().text
    taken = []
    for letter in "abcdefghijklmnopqrstuvwxyz234567":
        try:
            taken.append(take_token_apart(text[:-1] + letter))
        except CredentialRefusedError:
            continue
    assert [token.text[-1] for token in taken] == ["a", "q"]


@given(st.text(max_size=80))
def test_no_text_raises_anything_else(text: str) -> None:
    for shown in (text, f"dur1_{text}"):
        with pytest.raises(CredentialRefusedError):
            take_token_apart(shown)


@pytest.mark.parametrize(
    "text",
    ["", "abcdefghijkl234", "abcdefghijkl2345\n", "../../../cluster", "abcdefghijkl2341"],
)
def test_what_is_no_id_is_no_path_either(text: str) -> None:
    assert not is_token_id(text)
    assert is_token_id(make_token().token_id)


# --- Node ----------------------------------------------------------------------------------------


def test_a_node_has_the_bytes_of_its_version() -> None:
    golden = read_golden("access-token-v1.json", encode_access_token(TOKEN))
    assert read_access_token(golden, TOKEN.token_id) == TOKEN
    assert Paths("c1").access_token(TOKEN.token_id) == f"/duramen/c1/access-tokens/{TOKEN.token_id}"


@given(
    st.lists(
        st.builds(TokenScope, st.frozensets(plain_verbs, min_size=1), scopes),
        min_size=1,
        max_size=SCOPE_COUNT_MAX,
    ),
    st.binary(min_size=32, max_size=32),
    st.integers(0, 1 << 40),
)
def test_a_node_is_read_as_it_was_written(
    held: list[TokenScope], secret: bytes, end_s: int
) -> None:
    token = replace(TOKEN, scopes=tuple(held), secret_hash=secret, expires_s=end_s)
    for one in (token, replace(token, parent_id=None, note="")):
        assert read_access_token(encode_access_token(one), TOKEN.token_id) == one


WRONG: Final[dict[str, dict[str, Any]]] = {
    "id": {"id": "../cluster"},
    "id that is a number": {"id": 1},
    "hash": {"sha256": "00"},
    "hash in capitals": {"sha256": "A" * 64},
    "hash that is nothing": {"sha256": None},
    "issuer": {"issued_by": 7},
    "issuer with a line end": {"issued_by": "a\nb"},
    "no scopes": {"scopes": []},
    "scopes by name": {"scopes": {"read": "events"}},
    "too many scopes": {"scopes": [{"verbs": ["read"], "target": "a"}] * 33},
    "a scope that is a text": {"scopes": ["read"]},
    "a scope that says more": {"scopes": [{"verbs": ["read"], "target": "a", "unless": "b"}]},
    "no verbs": {"scopes": [{"verbs": [], "target": "a"}]},
    "verbs that are a text": {"scopes": [{"verbs": "read", "target": "a"}]},
    "a verb that is a number": {"scopes": [{"verbs": [1], "target": "a"}]},
    "a verb in capitals": {"scopes": [{"verbs": ["READ"], "target": "a"}]},
    "a verb that is not known": {"scopes": [{"verbs": ["read", "peek"], "target": "a"}]},
    "a target that is no scope": {"scopes": [{"verbs": ["read"], "target": "a/*"}]},
    "an issuer that is nobody": {"issued_by": "alice"},
    "no target": {"scopes": [{"verbs": ["read"]}]},
    "a target that is nothing": {"scopes": [{"verbs": ["read"], "target": None}]},
    "an end that is true": {"expires_unix_s": True},
    "an end that is a text": {"expires_unix_s": "9"},
    "an end below zero": {"expires_unix_s": -1},
    "no end": {"expires_unix_s": None},
    "a parent that is none": {"parent": "x"},
    "a note of 401 letters": {"note": "a" * 401},
    "a field that is not known": {"only_from": "10.0.0.0/8"},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_node_of_another_form_is_refused(name: str) -> None:
    fields = read_node(encode_access_token(TOKEN))
    with pytest.raises(MetadataJsonError, match="the node"):
        read_access_token(encode_node(fields | WRONG[name]), TOKEN.token_id)


@pytest.mark.parametrize("name", ["id", "sha256", "issued_by", "scopes", "expires_unix_s", "note"])
def test_a_node_without_a_field_is_refused(name: str) -> None:
    fields = read_node(encode_access_token(TOKEN))
    del fields[name]
    with pytest.raises(MetadataJsonError, match=f"'{name}'"):
        read_access_token(encode_node(fields), TOKEN.token_id)


def test_a_node_of_a_later_version_is_refused() -> None:
    fields = json.loads(encode_access_token(TOKEN)) | {"v": 2}
    with pytest.raises(MetadataJsonError, match="newer"):
        read_access_token(json.dumps(fields).encode(), TOKEN.token_id)


def test_a_node_under_another_name_is_refused() -> None:
    with pytest.raises(MetadataJsonError, match=f"it is the node of {TOKEN.token_id}"):
        read_access_token(encode_access_token(TOKEN), "2345abcdefghijkl")


# --- Scopes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["*", "events", "events/web-*", "events/web-1"])
def test_a_target_is_a_scope_of_grants(text: str) -> None:
    scope = parse_token_scope(["read"], text)
    assert scope == TokenScope(frozenset({Verb.READ}), parse_scope(text))
    (encoded,) = encode_scopes([scope])
    assert encoded == {"verbs": ["read"], "target": text}
    assert read_scopes([encoded]) == (scope,)


@pytest.mark.parametrize(
    ("verbs", "target", "said"),
    [
        (["read"], "events/*", "all of a namespace is written 'events'"),
        (["read"], "ev*", "write"),
        (["read"], "Events", "write"),
        ([], "events", "give each some verbs"),
        (["READ"], "events", "'READ' is no verb"),
        (["read", "peek"], "events", "'peek' is no verb"),
        (["read", "read"], "events", "a verb stands twice"),
        (["observe"], "events", r"observe and operate are given on \* alone"),
        (["read", "operate"], "events/a*", r"observe and operate are given on \* alone"),
    ],
)
def test_another_text_is_no_scope(verbs: list[str], target: str, said: str) -> None:
    with pytest.raises(DuramenError, match=said) as refusal:
        parse_token_scope(verbs, target)
    assert (refusal.value.code, refusal.value.field) == ("invalid_argument", "scopes")


def test_verbs_of_the_cluster_are_on_the_cluster() -> None:
    assert parse_token_scope(["observe", "read"], "*").on == GrantScope()
