"""What a cluster answers to the commands that show it.

Used by `test_cli_live` and `test_cli_counts`. Source: docs/cli.md.
"""

from __future__ import annotations

from typing import Any

OWNED = {
    "log_id": "1", "name": "shop/a", "sequencer": "s1", "epoch": 2, "state": "active",
    "appends_per_s": 20.0, "bytes_per_s": 3_000_000, "unanswered_count": 4,
}  # fmt: skip
BOOKIE = {
    "id": "b0", "incarnation": "i", "region": "x", "rack": "r1", "state": "rw", "duty": "serving",
    "weight": 1.0, "free_bytes": 3 << 30, "doubtful": False, "takes_new_data": True,
    "steady_in_s": 0,
}  # fmt: skip
REPAIR: dict[str, Any] = {
    "auditor": "s1", "backlog": {"tasks": 3, "left_bytes": 7_000_000, "running": 1},
    "bytes_per_s": 1_000_000, "estimate_s": 7, "drains": [{"bookie": "b1", "duty": "draining"}],
    "unrepairable": [{"log_id": "1", "epoch": 1, "first_entry": 0, "reason": "no copy"}],
    "running": [],
}  # fmt: skip
