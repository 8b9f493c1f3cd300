"""Where a key's records are, for ever: golden values, and the names of partitions.

A value that changes here is a broken promise: stored records would be looked for elsewhere.
Source: docs/sdk.md "Partitioned logs".
"""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.client.partitioned.keys import (
    PARTITION_COUNT_MAX,
    Key,
    find_partition,
    name_partition,
    read_partition,
)
from duramen.errors import DuramenError
from duramen.texts import check_log_name

GOLDEN: dict[Key, tuple[int, ...]] = {
    "": (0, 0, 1, 4, 652),
    "customer-7": (0, 0, 0, 0, 368),
    "\u043a\u043b\u044e\u0447": (0, 0, 1, 0, 24),
    b"\x00\xff": (0, 1, 1, 5, 29),
    "a" * 100: (0, 1, 1, 3, 211),
}
counts = st.integers(1, PARTITION_COUNT_MAX)


@pytest.mark.parametrize("key", GOLDEN)
def test_a_key_has_its_partition_for_ever(key: Key) -> None:
    assert tuple(find_partition(key, count) for count in (1, 2, 3, 8, 1_000)) == GOLDEN[key]


@given(st.binary(), counts)
def test_the_partition_is_what_the_page_says(key: bytes, count: int) -> None:
    first_eight = hashlib.sha256(key).hexdigest()[:16]
    assert find_partition(key, count) == int(first_eight, 16) % count


@given(st.text(), counts)
def test_text_is_its_utf_8(key: str, count: int) -> None:
    assert find_partition(key, count) == find_partition(key.encode(), count)


def test_text_that_has_no_utf_8_is_refused() -> None:
    with pytest.raises(DuramenError) as refused:
        find_partition("\ud800", 4)
    assert refused.value.field == "key"


def test_keys_are_spread_evenly() -> None:
    found = Counter(find_partition(f"customer-{number}", 8) for number in range(8_000))
    assert set(found) == set(range(8)) and max(found.values()) - min(found.values()) < 200


@given(counts, st.data())
def test_a_name_is_read_back(count: int, data: st.DataObject) -> None:
    partition = data.draw(st.integers(0, count - 1))
    name = check_log_name(name_partition("a.b", partition, count))
    assert read_partition("a.b", name) == (partition, count)
    assert read_partition("a", name) is None and read_partition("a_b", name) is None


@pytest.mark.parametrize(
    "log",
    ["a", "a.1", "a.4-of-4", "a.01-of-4", "a.1-of-04", "a.1-of-4x", "a.-1-of-4", "a.0-of-0",
     "a.0-of-1001", "xa.1-of-4", "a.1-of-4\n"],
)  # fmt: skip
def test_what_is_no_partition_is_none(log: str) -> None:
    assert read_partition("a", log) is None
