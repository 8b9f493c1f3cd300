"""Buckets, accounts and their table, with time by hand; random runs against what the page promises.

Source: docs/protocol/limits.md "How it is counted".
"""

from __future__ import annotations

import random

import pytest

from duramen.core.quotas.quota_account import (
    UNDER_WAY_WAIT_US,
    WAIT_US_MAX,
    CallShape,
    Excess,
    Quota,
    QuotaAccount,
)
from duramen.core.quotas.quota_table import QuotaTable
from duramen.core.quotas.token_bucket import TokenBucket
from duramen.units import KIB, MIB, MS, SECOND

FREE = Quota(None, None, None, None, None)
CALL = CallShape(is_stream=False, announced_bytes=0)
STREAM = CallShape(is_stream=True, announced_bytes=0)


def carry(size_bytes: int) -> CallShape:
    return CallShape(is_stream=False, announced_bytes=size_bytes)


@pytest.mark.parametrize("seed", range(8))
def test_over_any_time_a_bucket_gives_its_rate_and_one_taking_on_top(seed: int) -> None:
    rng = random.Random(seed)
    per_s, largest = rng.choice([1, 7, 1_000, 64 * KIB]), rng.choice([1, 10, 4 * MIB])
    bucket = TokenBucket(per_s, 0)
    now_us, taken = 0, 0
    takings: list[tuple[int, int]] = []
    for _ in range(2_000):
        now_us += rng.choice([0, 1, 500, 100 * MS, 3 * SECOND])
        if not bucket.find_wait_us(now_us):
            size = rng.randint(1, largest)
            bucket.take(size, now_us)
            takings.append((now_us, size))
            taken += size
    for first, (since_us, _) in enumerate(takings[:20]):
        sum_ = 0
        for at_us, size in takings[first:]:
            sum_ += size
            assert sum_ <= per_s * ((at_us - since_us) / SECOND + 1) + largest
    # And who comes as soon as it may gets the rate, nearly.
    bucket, now_us, taken = TokenBucket(per_s, 0), 0, 0
    for _ in range(2_000):
        now_us += bucket.find_wait_us(now_us)
        size = rng.randint(1, largest)
        bucket.take(size, now_us)
        taken += size
    assert taken >= per_s * now_us / SECOND * 0.99


def test_a_wait_is_over_when_it_says() -> None:
    bucket = TokenBucket(10, 0)
    bucket.take(15, 0)
    wait_us = bucket.find_wait_us(0)
    assert 600 * MS < wait_us <= 601 * MS
    assert bucket.find_wait_us(wait_us - 10) > 0
    assert bucket.find_wait_us(wait_us) == 0
    assert bucket.find_wait_us(0) == 0, "a clock that goes back takes nothing"


def test_a_bucket_keeps_no_more_than_a_second() -> None:
    bucket = TokenBucket(10, 0)
    now_us = 3_600 * SECOND
    bucket.take(10, now_us)
    assert bucket.find_wait_us(now_us) > 0


def test_another_rate_counts_at_once_and_forgives_nothing() -> None:
    bucket = TokenBucket(10, 0)
    bucket.take(30, 0)
    bucket.change(100, 0)
    assert 210 * MS <= bucket.find_wait_us(0) <= 211 * MS
    bucket.change(None, 0)
    assert bucket.find_wait_us(0) == 0
    bucket.change(5, 0)
    bucket.take(5, 0)
    assert bucket.find_wait_us(0) > 0, "who had no limit begins with a full bucket, not more"


@pytest.mark.parametrize(
    ("quota", "shape", "count", "excess"),
    [
        (FREE._replace(calls_per_s=3), CALL, 3, Excess("calls_per_s", 3, 333_334)),
        (FREE._replace(bytes_per_s=100), carry(250), 1, Excess("bytes_per_s", 100, 1_510_001)),
        (FREE._replace(open_calls=4), STREAM, 4, Excess("open_calls", 4, UNDER_WAY_WAIT_US)),
        (FREE._replace(open_streams=2), STREAM, 2, Excess("open_streams", 2, UNDER_WAY_WAIT_US)),
        (
            FREE._replace(in_flight_bytes=1_000), carry(400), 2,
            Excess("in_flight_bytes", 1_000, UNDER_WAY_WAIT_US),
        ),
        (
            FREE._replace(in_flight_bytes=10), carry(400), 1,
            Excess("in_flight_bytes", 10, UNDER_WAY_WAIT_US),
        ),
    ],
)  # fmt: skip
def test_each_limit_refuses_the_first_call_beyond_it(
    quota: Quota, shape: CallShape, count: int, excess: Excess
) -> None:
    account = QuotaAccount(quota, 0)
    for _ in range(count):
        assert account.find_excess(shape, 0) is None
        account.begin(shape, 0)
        account.hold(shape.announced_bytes)
        account.spend(shape.announced_bytes, 0)
    assert account.find_excess(shape, 0) == excess
    for _ in range(count):
        account.end(shape, shape.announced_bytes)
    if not excess.limit.endswith("per_s"):
        assert account.find_excess(shape, 0) is None
    assert (account.open_calls, account.open_streams, account.in_flight_bytes) == (0, 0, 0)


def test_calls_without_bodies_pass_where_bodies_do_not_and_a_long_debt_is_told_shorter() -> None:
    account = QuotaAccount(FREE._replace(in_flight_bytes=10, open_streams=1), 0)
    account.begin(carry(10), 0)
    account.hold(10)
    account.begin(STREAM, 0)
    assert account.find_excess(CALL, 0) is None
    account = QuotaAccount(FREE._replace(bytes_per_s=1), 0)
    account.spend(1_000_000, 0)
    found = account.find_excess(CALL, 0)
    assert found is not None and found.wait_us == WAIT_US_MAX
    assert account.find_debt_us(0) > WAIT_US_MAX


def test_a_full_table_drops_who_was_used_longest_ago_and_never_who_is_busy() -> None:
    table = QuotaTable(3)
    quota = FREE._replace(calls_per_s=1)
    busy = table.find("busy", quota, 0)
    busy.begin(STREAM, 0)
    for name in ("a", "b", "a", "c", "d"):
        table.find(name, quota, 0)
    assert table.statistics()["parties"] == 3
    assert table.find("busy", quota, 0) is busy
    # Everybody busy: the table grows with them, and shrinks again.
    accounts = []
    for number in range(5):
        accounts.append(table.find(f"more {number}", quota, 0))
        accounts[-1].begin(CALL, 0)
    assert all(table.find(f"more {n}", quota, 0) is one for n, one in enumerate(accounts))
    for account in (*accounts, busy):
        account.end(CALL if account is not busy else STREAM)
    for number in range(9):
        table.find(f"later {number}", quota, 0)
    assert table.statistics()["parties"] <= 3


def test_other_limits_of_a_party_count_from_its_next_call_on() -> None:
    table = QuotaTable()
    account = table.find("a", FREE._replace(open_calls=1), 0)
    account.begin(CALL, 0)
    assert account.find_excess(CALL, 0) is not None
    assert table.find("a", FREE._replace(open_calls=2), 0) is account
    assert account.find_excess(CALL, 0) is None
