"""Which proxy of the other kind a call is forwarded to: the nearest, one log always to the same.

Own rack before own region before anywhere; among equals the hash of the log decides, so that one
log's readers share a cache and its appends a frame. One that could not be reached a moment ago is
asked last, never left out. Pure: the roster's nodes and the time go in, urls come out.

Called by `forwarding`. Source: docs/protocol/metadata.md "sequencers/<id>, writeproxies/<id>,
readproxies/<id>".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from duramen.core.hashing import rank_nodes
from duramen.core.reading.replica_order import Place

FAILURE_MEMORY_S: Final = 5.0
"""A proxy that could not be reached is asked last for so long: its registration outlives it for
about a session, and each try may cost the time-out of a connection."""


class PeerOrder:
    """Ranks the proxies that are registered.

    Args:
        here: where this process is.
    """

    def __init__(self, here: Place) -> None:
        self._here = here
        self._failed_until_s: dict[str, float] = {}

    def rank(self, key: str, nodes: Mapping[str, Mapping[str, Any]], now_s: float) -> list[str]:
        """Their urls (no slash at the end), whom to ask first first.

        Args:
            key: what the call is about, such as `namespace/log`.
            nodes: of the roster: name → fields.
        """
        usable = {
            name: 1.0 for name, node in nodes.items() if isinstance(node.get("data_url"), str)
        }
        urls = {nodes[name]["data_url"] for name in usable}
        self._failed_until_s = {
            url: until_s for url, until_s in self._failed_until_s.items() if url in urls
        }
        ranked = sorted(
            rank_nodes(key, usable),
            key=lambda name: (self._has_failed(nodes[name], now_s), self._distance(nodes[name])),
        )
        return [nodes[name]["data_url"] for name in ranked]

    def note_failure(self, url: str, now_s: float) -> None:
        """It could not be reached, or did not answer."""
        self._failed_until_s[url] = now_s + FAILURE_MEMORY_S

    def _has_failed(self, node: Mapping[str, Any], now_s: float) -> bool:
        return self._failed_until_s.get(node["data_url"], now_s) > now_s

    def _distance(self, node: Mapping[str, Any]) -> int:
        if node.get("region") != self._here.region:
            return 2
        return 0 if node.get("rack") == self._here.rack else 1
