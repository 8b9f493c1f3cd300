"""Which node a log belongs to by hash: weighted rendezvous on stable names.

Every process computes the same order from the same names. When a node comes or goes, only the logs
that it holds move. The second node in the order is the next to ask when the first does not answer.
Pure; not Python's `hash`, which differs from process to process.

Called by both proxies (routing) and the sequencer (which orphaned logs are mine).
Source: docs/protocol/ownership.md "Whose is a log", ARCHITECTURE.md "The way of one record".
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any, Final

_SCALE = float(1 << 64)

WEIGHT_MAX: Final = 1_000.0
"""No node is a thousand times as strong as another."""


def weights_of(nodes: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Weights of a roster's nodes: `weight` of each, 1 where none, or none that makes sense, is.

    Args:
        nodes: node name → fields, as others wrote them.
    """
    return {name: _weight_of(fields.get("weight", 1.0)) for name, fields in nodes.items()}


def rank_nodes(key: str, weights: Mapping[str, float]) -> list[str]:
    """Nodes by their claim on `key`, strongest first; nodes of weight 0 are left out.

    Args:
        key: what is placed, such as `namespace/log`.
        weights: node name → weight ≥ 0.
    """
    scores = [(_score(key, node, weight), node) for node, weight in weights.items() if weight > 0]
    return [node for _, node in sorted(scores, reverse=True)]


def _weight_of(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 1.0
    return float(value) if 0 <= value <= WEIGHT_MAX else 1.0


def _score(key: str, node: str, weight: float) -> float:
    digest = hashlib.blake2b(f"{node}\0{key}".encode(), digest_size=8).digest()
    ratio = (int.from_bytes(digest, "big") + 0.5) / _SCALE
    return -weight / math.log(ratio)
