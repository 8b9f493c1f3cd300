"""Which proxy of the other kind a call is forwarded to: the nearest, one log always to the same.

Own rack before own region before anywhere; among equals the hash of the log decides, so that one
log's readers share a cache and its appends a frame. One that could not be reached a moment ago is
asked last, never left out. Pure: the roster's nodes and the time go in, urls come out.

Called by `forwarding` and `audit.by_write_proxies`. Source: docs/protocol/metadata.md
"sequencers/<id>, writeproxies/<id>, readproxies/<id>", docs/protocol/turning-on.md "Which way a
call takes".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from duramen.core.hashing import rank_nodes
from duramen.core.reading.replica_order import Place
from duramen.runtime.turning.addresses import list_urls

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

    def rank_ways(
        self, key: str, nodes: Mapping[str, Mapping[str, Any]], now_s: float, *, may_be_plain: bool
    ) -> list[str]:
        """The same for whoever has an identity: by TLS, where a proxy speaks it besides.

        Args:
            may_be_plain: a proxy with both stands there twice, in plain text behind TLS.
        """
        ways = {
            name: urls
            for name, node in nodes.items()
            if (urls := list_urls(node, "data", may_be_plain=may_be_plain))
        }
        reached = {name: {**nodes[name], "data_url": urls[0]} for name, urls in ways.items()}
        all_of = {urls[0]: urls for urls in ways.values()}
        return [way for url in self.rank(key, reached, now_s) for way in all_of[url]]

    def note_failure(self, url: str, now_s: float) -> None:
        """It could not be reached, or did not answer."""
        self._failed_until_s[url] = now_s + FAILURE_MEMORY_S

    def _has_failed(self, node: Mapping[str, Any], now_s: float) -> bool:
        return self._failed_until_s.get(node["data_url"], now_s) > now_s

    def _distance(self, node: Mapping[str, Any]) -> int:
        if node.get("region") != self._here.region:
            return 2
        return 0 if node.get("rack") == self._here.rack else 1
