"""The node `grants`: what is written is read, and what is wrong is refused or gives nothing.

Source: docs/protocol/rights.md "The node `grants`".
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from duramen.core.rights.changes import GRANT_COUNT_MAX, order_of
from duramen.core.rights.grants import GivenGrant
from duramen.wire.nodes.fields import MetadataJsonError
from duramen.wire.nodes.grants import GRANTS_BYTES_MAX, GrantsNode, encode_grants, read_grants
from tests.unit.grants import OPERATOR, PEOPLE, given, grants

PAGE = Path(__file__).resolve().parents[2] / "docs" / "protocol" / "rights.md"
ROW = {
    "who": "user:corp/ann", "role": "reader", "scope": "shop", "by": "service:operator/op",
    "given_unix_ms": 7,
}  # fmt: skip

stored = st.builds(
    GivenGrant, grants, st.sampled_from(PEOPLE), st.integers(min_value=0, max_value=1 << 50)
)
texts = st.dictionaries(st.sampled_from(["later", "next"]), st.integers(), max_size=2)
strange_rows = st.sampled_from([{"if": "monday"}, {"role": "auditor"}, {"who": "ldap:ann"},
                                {"scope": "shop/*"}, {"by": "nobody"}])  # fmt: skip


def encode_rows(*rows: object, **more: object) -> bytes:
    return json.dumps({"grants": rows, "nonce": "n", "v": 1, **more}).encode()


@drawn(
    st.lists(stored, unique_by=lambda each: each.grant, max_size=8), st.text(), texts,
    st.lists(strange_rows, max_size=3),
)  # fmt: skip
def test_a_node_is_read_as_it_was_written(
    rows: list[GivenGrant], nonce: str, extra: dict[str, int], strange: list[dict[str, str]]
) -> None:
    kept = tuple({**ROW, **one} for one in strange)
    node = GrantsNode(tuple(sorted(rows, key=order_of)), nonce, kept, extra)
    data = encode_grants(node)
    assert read_grants(data) == node
    assert encode_grants(read_grants(data)) == data
    assert encode_grants(GrantsNode(tuple(rows), nonce, kept, extra)) == data, "one order"


def test_the_example_of_the_page_is_what_is_written() -> None:
    example = PAGE.read_text(encoding="utf-8").partition("```json\n")[2].partition("```")[0]
    data = example.replace("\n ", "").strip().encode()
    node = read_grants(data)
    assert len(node.grants) == 2 and not node.not_understood
    assert encode_grants(node) == data


@pytest.mark.parametrize(
    "change",
    [
        {"role": "auditor"}, {"role": "Reader"}, {"who": "ldap:ann"}, {"who": "ann"},
        {"scope": "shop/*"}, {"scope": "s*"}, {"by": "nobody"}, {"only_from": "10.0.0.0/8"},
        {"role": "operator"},
    ],
)  # fmt: skip
def test_a_row_whose_words_are_not_known_gives_nothing_and_is_kept(change: dict[str, str]) -> None:
    odd = {**ROW, **change}
    node = read_grants(encode_rows(odd, ROW))
    assert node.grants == (given("ann reader shop"),)
    assert node.not_understood == (odd,)
    assert read_grants(encode_grants(node)) == node


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("a text", "no object"),
        (None, "no object"),
        ([], "no object"),
        ({**ROW, "who": 7}, "7 is no text"),
        ({**ROW, "role": None}, "None is no text"),
        ({**ROW, "scope": ["shop"]}, "is no text"),
        ({**ROW, "by": {}}, "is no text"),
        ({**ROW, "given_unix_ms": "7"}, "is no whole number"),
        ({**ROW, "given_unix_ms": True}, "is no whole number"),
        ({**ROW, "given_unix_ms": -1}, "is no whole number"),
        *(({key: ROW[key] for key in ROW if key != left}, left) for left in ROW),
    ],
)
def test_a_row_of_another_form_makes_the_whole_node_refused(row: Any, said: str) -> None:
    with pytest.raises(MetadataJsonError, match=f"grant 1: .*{said}"):
        read_grants(encode_rows(ROW, row))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "no JSON"),
        (b"[]", "no schema version"),
        (b"\xff", "no JSON"),
        (b'{"grants": [], "nonce": "n"}', "no schema version"),
        (b'{"v": 2, "grants": [], "nonce": "n"}', "newer than 1"),
        (b'{"v": 1, "nonce": "n"}', "has no grants"),
        (b'{"v": 1, "grants": {}, "nonce": "n"}', "grants: no list"),
        (b'{"v": 1, "grants": []}', "has no grants: KeyError..nonce"),
        (b'{"v": 1, "grants": [], "nonce": 7}', "7 is no text"),
        (encode_rows(ROW, {**ROW, "by": "user:corp/bob"}), "grant 1: .* is there twice"),
    ],
)
def test_another_form_of_the_node_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(MetadataJsonError, match=said):
        read_grants(data)


def test_as_many_grants_as_a_cluster_may_have_fit_into_the_node() -> None:
    """With names of usual length; longer ones meet the bound of bytes first."""
    line = "serviceaccount:k8s/payments-{:04}/checkout-service producer payments-eu/orders-v2*"
    rows = tuple(given(line.format(number), OPERATOR, 10**12) for number in range(GRANT_COUNT_MAX))
    assert len(encode_grants(GrantsNode(rows, "5f1c0e2ab34d19c07788a1b2"))) < GRANTS_BYTES_MAX
