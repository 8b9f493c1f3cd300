"""Whether an append is better sent through the region of its log's owner, and to which proxy there.

A client that asks for it (`?redirect=owner_region`) is told once for each request. Only an owner
that is known counts: one that answered for the log, or was named as its owner. What is not known is
appended here as ever, and known after that. The other proxy is the first by hash among those that
are registered there, so that a log's appends meet at one. All of it is advice: where it is old, the
append is redirected by a sequencer, as any other.

Called by `append_route`. Source: docs/protocol/ownership.md "Clients in another region".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

from duramen.core.hashing import rank_nodes, weights_of
from duramen.errors import DuramenError
from duramen.ids import LogId
from duramen.runtime.registry import Roster
from duramen.runtime.stores.metadata_store import MetadataStore
from duramen.runtime.turning.addresses import find_next_url
from duramen_writeproxy.routing import Router

REDIRECT_FIELD: Final = "redirect"
_OWNER_REGION: Final = "owner_region"


class Elsewhere:
    """The write proxies of the other regions.

    Args:
        write_proxies: where they are registered.
        region: of this one; empty: it does not know, and sends nobody away.
        sequencers: the roster, id → fields.
    """

    def __init__(
        self,
        store: MetadataStore,
        write_proxies: str,
        region: str,
        router: Router,
        sequencers: Callable[[], Mapping[str, Mapping[str, Any]]],
    ) -> None:
        self._roster = Roster(store, write_proxies)
        self._region = region
        self._router = router
        self._sequencers = sequencers
        self._count = 0

    async def start(self) -> None:
        """Follow who is registered."""
        await self._roster.start()

    async def stop(self) -> None:
        """Stop following it."""
        await self._roster.stop()

    def find(self, namespace: str, log: str, log_id: LogId, scheme: str) -> str | None:
        """Where the log's appends should go; None: they are as well here.

        Args:
            scheme: by which the client came; one that came by TLS goes on by TLS.
        """
        owner = self._router.find_owner(log_id)
        if owner is None or not self._region:
            return None
        region = self._sequencers().get(owner.sequencer_id, {}).get("region")
        if not region or region == self._region:
            return None
        there = {
            name: fields
            for name, fields in self._roster.nodes.items()
            if fields.get("region") == region and find_next_url(fields, "data", scheme)
        }
        if not there:
            return None
        self._count += 1
        first = there[rank_nodes(f"{namespace}/{log}", weights_of(there))[0]]
        url = find_next_url(first, "data", scheme)
        return f"{url}/v1/namespaces/{quote(namespace)}/logs/{quote(log)}/records"

    def statistics(self) -> dict[str, int]:
        """Write proxies that are registered, and appends that were sent elsewhere."""
        return {"proxies": len(self._roster.nodes), "redirected": self._count}


def read_wish(query: Mapping[str, str]) -> bool:
    """Whether the client asks to be sent to the owner's region.

    Raises:
        DuramenError: `invalid_argument`: it asks for something else.
    """
    wish = query.get(REDIRECT_FIELD)
    if wish not in (None, _OWNER_REGION):
        detail = f"{REDIRECT_FIELD} is {_OWNER_REGION}, or left out"
        raise DuramenError("invalid_argument", detail, field=REDIRECT_FIELD)
    return wish is not None
