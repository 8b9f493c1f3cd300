"""Which partition a key belongs to, and what the log of a partition is called.

Both are for ever: a writer of another version, or in another language, has to come to the same
partition, or the order of a key is lost. The number of partitions is part of the name of every one
of them. So writers that disagree about it can never write to the same log, and whoever lists the
logs sees what there is. Pure; golden values are in tests/unit/test_partition_keys.py.

Used by `client.partitioned`. Source: docs/sdk.md "Partitioned logs".
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from duramen.errors import DuramenError

PARTITION_COUNT_MAX: Final = 1_000
"""Each partition is a log, and a producer and a reader of its own."""

_HASH_BYTES: Final = 8

Key = str | bytes
"""What says which records have one order; a str is its UTF-8."""


def find_partition(key: Key, partition_count: int) -> int:
    """The first eight bytes of the key's SHA-256, big-endian, modulo the number of partitions.

    Raises:
        DuramenError: `invalid_argument`, field `key`: neither str nor bytes, or no UTF-8.
    """
    try:
        data = key.encode() if isinstance(key, str) else memoryview(key)
    except (TypeError, UnicodeEncodeError) as error:
        detail = f"a key is str or bytes: {error}"
        raise DuramenError("invalid_argument", detail, field="key") from None
    digest = hashlib.sha256(data, usedforsecurity=False).digest()
    return int.from_bytes(digest[:_HASH_BYTES], "big") % partition_count


def name_partition(name: str, partition: int, partition_count: int) -> str:
    """The name of a partition's log."""
    return f"{name}.{partition}-of-{partition_count}"


def read_partition(name: str, log: str) -> tuple[int, int] | None:
    """Partition and number of partitions, if a log is a partition of the partitioned log `name`."""
    found = re.fullmatch(rf"{re.escape(name)}\.(0|[1-9]\d{{0,3}})-of-([1-9]\d{{0,3}})", log)
    if found is None:
        return None
    partition, count = int(found[1]), int(found[2])
    return (partition, count) if partition < count <= PARTITION_COUNT_MAX else None


def check_partition_count(partition_count: int) -> int:
    """The number itself.

    Raises:
        DuramenError: `invalid_argument`, field `partitions`.
    """
    is_number = type(partition_count) is int
    if not is_number or not 1 <= partition_count <= PARTITION_COUNT_MAX:
        detail = f"partitions: a number from 1 to {PARTITION_COUNT_MAX}, not {partition_count!r}"
        raise DuramenError("invalid_argument", detail, field="partitions")
    return partition_count
