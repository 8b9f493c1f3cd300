"""Which formats a process understands beside those of version 0.4, as it says in its node.

`segment` is the newest schema of segment nodes, `envelope` the newest of the envelopes that entries
of flexible segments travel in. A process of 0.4 says nothing. Of a bookie `envelope` is asked: that
it stores entries of flexible segments.

Written by every process that registers, read by who raises the format of the tree.
Source: docs/protocol/flexible.md "Who may meet it".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

FORMATS: Final = "formats"
"""The field of the node."""

PROCESS_FORMATS: Final[Mapping[str, int]] = {"segment": 2, "envelope": 1}
"""What every process of this version understands."""


def understands(fields: Mapping[str, Any], kinds: Collection[str] = tuple(PROCESS_FORMATS)) -> bool:
    """Whether the node of a process says that it understands what this version may write.

    Args:
        kinds: of `PROCESS_FORMATS`, those that it meets.
    """
    said = fields.get(FORMATS)
    if not isinstance(said, Mapping):
        return False
    return all(
        type(said.get(kind)) is int and said[kind] >= PROCESS_FORMATS[kind] for kind in kinds
    )
