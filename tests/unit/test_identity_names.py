"""Identities as text: one form, and whatever differs from it is none.

A name that two parsers read differently would be two callers with one certificate.
Source: docs/protocol/identity.md "Names".
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.runtime.identity.names import (
    Identity,
    InvalidIdentityError,
    Role,
    make_dns_name,
    make_domain,
    make_identity,
    parse_identity,
)
from tests.unit.identities import DOMAIN

GOOD = f"spiffe://{DOMAIN}/bookie/bookie-0"


@given(
    st.from_regex(r"\A[0-9a-f]{32}\Z"),
    st.sampled_from(list(Role)),
    st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z"),
)
def test_an_identity_is_read_as_it_was_written(domain: str, role: Role, name: str) -> None:
    identity = make_identity(domain, role, name)
    assert parse_identity(str(identity)) == identity == Identity(domain, role, name)


@pytest.mark.parametrize(
    "text",
    [
        "",
        GOOD + "\n",
        " " + GOOD,
        GOOD + "/",
        GOOD + "?x",
        GOOD + "#x",
        GOOD.upper(),
        GOOD.replace("spiffe", "SPIFFE"),
        GOOD.replace("bookie/", "Bookie/"),
        GOOD.replace("bookie-0", ""),
        GOOD.replace("bookie-0", ".."),
        GOOD.replace("bookie-0", "-a"),
        GOOD.replace("bookie-0", "b%6fokie"),
        GOOD.replace("bookie-0", "b\u043eokie"),
        GOOD.replace("bookie-0", "a/b"),
        GOOD.replace("bookie-0", "a" * 65),
        GOOD.replace("/bookie/", "/auditor/"),
        GOOD.replace(DOMAIN, DOMAIN[:-1]),
        GOOD.replace(DOMAIN, DOMAIN + ":443"),
        GOOD.replace(DOMAIN, "u@" + DOMAIN),
        GOOD.replace("spiffe://", "https://"),
    ],
)
def test_what_is_not_exactly_an_identity_is_none(text: str) -> None:
    with pytest.raises(InvalidIdentityError):
        parse_identity(text)


@pytest.mark.parametrize(
    ("domain", "role", "name", "named"),
    [
        (DOMAIN[:-1], "bookie", "b", "cluster uuid"),
        (DOMAIN.upper(), "bookie", "b", "cluster uuid"),
        (DOMAIN, "root", "b", "bookie, sequencer"),
        (DOMAIN, "bookie", "b c", "'b c'"),
        (DOMAIN, "bookie", "", "64 letters"),
    ],
)
def test_the_part_that_is_wrong_is_named(domain: str, role: str, name: str, named: str) -> None:
    with pytest.raises(InvalidIdentityError, match=named):
        make_identity(domain, role, name)


def test_a_host_is_named_without_wildcards() -> None:
    assert make_dns_name("bookie-0.bookies.default.svc") == "bookie-0.bookies.default.svc"
    for text in ("*.example", "a..b", "-a", "A", "a_b", "a.", "x" * 64, "a." * 127 + "ab", ""):
        with pytest.raises(InvalidIdentityError):
            make_dns_name(text)
    assert make_domain(DOMAIN) == DOMAIN


def test_nodes_are_who_others_call() -> None:
    assert {role for role in Role if not role.is_node} == {
        Role.OPERATOR, Role.ARCHIVE, Role.MONITOR, Role.CLIENT, Role.COREWRITER, Role.COREREADER,
    }  # fmt: skip
