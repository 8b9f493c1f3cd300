"""Judges the configuration of a flexible log on the bookies that are registered, before it is kept.

The nodeset is chosen that the log's next epoch would have. Where there is none, the refusal has its
numbers, and values that would do. Who is away now comes back, and is taken for there: only what no
return can mend is refused.

Called by `placement_operations`. Source: docs/protocol/flexible.md "Choosing the nodeset", R23.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from duramen.config import LogConfig
from duramen.core.flexible.nodeset import ServingBookie, choose_nodeset
from duramen.core.flexible.nodeset_plan import make_nodeset_rule
from duramen.core.placement.rule import Refusal
from duramen.errors import DuramenError
from duramen.ids import LogId


def check_nodeset(config: LogConfig, log_id: LogId, serving: Sequence[ServingBookie]) -> None:
    """Refuse a configuration by which these bookies give no nodeset.

    Args:
        log_id: of the log, which the choice depends on.
        serving: who may be in a nodeset.

    Raises:
        DuramenError: `placement_impossible`, with the numbers and with what would work.
    """
    bookies = [replace(bookie, is_absent=False) for bookie in serving]
    chosen = choose_nodeset(bookies, make_nodeset_rule(config), log_id)
    if isinstance(chosen, Refusal):
        raise DuramenError("placement_impossible", chosen.detail, field="replication")
