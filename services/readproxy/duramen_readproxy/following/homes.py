"""Which read proxy a log belongs to: where its entries are cached and its feed runs already.

Every read proxy serves every log, so that clients may stand behind any load balancer; the answer
names the log's home, and who can choose (the SDK, the write proxies) goes there next time. Home is
the first by weighted hash over the stable names of the read proxies of this one's region: nothing
moves but what a proxy that came or went had, and no reader is sent into another region.

Advice only: the registry is a hint, and a home that does not answer is one proxy of many.
Called by the REST routes. Source: docs/protocol/read-answers.md "Who shares what".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from duramen.core.hashing import rank_nodes, weights_of
from duramen.runtime.registry import Roster
from duramen.runtime.stores.metadata_store import MetadataStore
from duramen.runtime.turning.addresses import find_next_url

HOME_HEADER: Final = "Duramen-Home"
_CACHED_COUNT_MAX: Final = 10_000


class Homes:
    """Homes of logs, as the registry of read proxies says; one instance per process."""

    def __init__(self, store: MetadataStore, read_proxies: str, region: str) -> None:
        self._region = region
        self._roster = Roster(store, read_proxies, self._on_change)
        self._near: dict[str, Mapping[str, Any]] = {}
        self._weights: dict[str, float] = {}
        self._found: dict[tuple[str, str], str | None] = {}

    async def start(self) -> None:
        """Follow the registry."""
        await self._roster.start()

    async def stop(self) -> None:
        """Stop following it."""
        await self._roster.stop()

    def find(self, namespace: str, log: str, scheme: str) -> str | None:
        """The URL of the log's home; None while no proxy of the region is known.

        Args:
            scheme: by which the client came; one that came by TLS goes on by TLS.
        """
        key = namespace, log
        if key not in self._found:
            if len(self._found) >= _CACHED_COUNT_MAX:
                self._found.clear()
            ranked = rank_nodes(f"{namespace}/{log}", self._weights)
            self._found[key] = ranked[0] if ranked else None
        home = self._found[key]
        return None if home is None else find_next_url(self._near[home], "data", scheme)

    def statistics(self) -> dict[str, int]:
        """Read proxies of this region, and logs whose home was asked for."""
        return {"proxies": len(self._near), "logs": len(self._found)}

    def _on_change(self) -> None:
        self._near = {
            name: fields
            for name, fields in sorted(self._roster.nodes.items())
            if fields.get("region") == self._region and isinstance(fields.get("data_url"), str)
        }
        self._weights = weights_of(self._near)
        self._found.clear()
