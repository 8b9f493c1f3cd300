"""Which formats a process understands beside the first ones, as it says in its node.

`segment` is the newest schema of segment nodes, `envelope` the newest of the envelopes that entries
of flexible segments travel in, `entry` the newest version of entries: 2 may be compressed.
`ack_mode` 1: it knows what an owner and a reader of an `out_of_order` log must do. A process from
before these says nothing. Of a bookie `envelope` is asked: that it stores entries of flexible
segments.

Written by every process that registers, read by who is about to write what an older process would
refuse or not understand: the format of the tree, a configuration with compression or out_of_order.
Source: docs/protocol/flexible.md "Who may meet it", docs/protocol/configuration.md "Compression".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from duramen.wire.entry import VERSION_COMPRESSED

FORMATS: Final = "formats"
"""The field of the node."""

PROCESS_FORMATS: Final[Mapping[str, int]] = {
    "segment": 2,
    "log": 2,
    "envelope": 1,
    "entry": VERSION_COMPRESSED,
    "ack_mode": 1,
}
"""What every process of this version understands."""


def understands(fields: Mapping[str, Any], kinds: Collection[str]) -> bool:
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
