"""A log's node as most tests want it.

Used by the tests of whatever needs a log. Source: docs/protocol/metadata.md.
"""

from __future__ import annotations

from typing import Any

from duramen.config import parse_log_config
from duramen.core.log_node import LogNode
from tests.unit.core_fakes import LOG_ID


def make_log(**replication: Any) -> LogNode:
    """A log whose racks are not looked at, unless asked for."""
    config = parse_log_config({"replication": {"min_racks": 1, **replication}})
    return LogNode(LOG_ID, "ns", "log", config)
