"""The configuration of a scenario's log: its numbers, as a striped or as a flexible log has them.

A flexible log makes the same promise by copysets: RP asks for Qa nodes and for the same racks and
regions, and the rest of a write set are extras. With as many bookies as a write set has members,
the same bookies are asked for the same.

Called by the interpreter and the stage. Source: docs/scenarios.md, docs/protocol/flexible.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from duramen.config import LogConfig, parse_log_config
from tests.combinations import Combination

_EXTRAS_MAX = 2


def make_config(options: Mapping[str, str], combination: Combination) -> LogConfig:
    """What the options of `log` and `reconfigure` say."""
    copysets = options.get("copysets", combination.copysets)
    return parse_log_config({
        **(_spread(options) if copysets == "flexible" else _stripe(options)),
        "commit": options.get("commit", "lac"),
        "flush": {"policy": options.get("flush", "immediate"),
                  "size": options.get("flush_size", "512KiB")},
        "early_append": options.get("early") == "yes",
        "window": {"entries": int(options.get("window", 2000))},
        "ack_mode": options.get("ack_mode", combination.ack_mode),
    })  # fmt: skip


def _stripe(options: Mapping[str, str]) -> dict[str, Any]:
    return {
        "replication": {
            "ensemble_size": int(options["E"]), "write_quorum": int(options["Qw"]),
            "ack_quorum": int(options["Qa"]), "placement": options.get("placement", "strict"),
            "min_racks": int(options.get("min_racks", 1)),
            "min_regions": int(options.get("min_regions", 1)),
        },
    }  # fmt: skip


def _spread(options: Mapping[str, str]) -> dict[str, Any]:
    node, regions = int(options["Qa"]), int(options.get("min_regions", 1))
    racks = max(int(options.get("min_racks", 1)), regions)
    return {
        "copysets": "flexible",
        "replication": {
            "node": node, "rack": min(racks, node), "region": min(regions, node),
            "extras": min(int(options["Qw"]) - node, _EXTRAS_MAX), "placement": "prefer",
        },
        "nodeset": {"tolerate": int(options.get("tolerate", node - 1))},
        "sticky": options.get("sticky", "on"),
    }  # fmt: skip
