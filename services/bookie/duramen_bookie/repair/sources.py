"""Where the bookies are from which a pull fetches: where they themselves registered.

Whoever sends a pull says which bookies, not where: a bookie would call any address on his behalf.
A request of an older client still says where, and is believed if the bookie says the same.

Not here: fetching (`pulling`). Called by `calls`. Source: docs/protocol/wire.md "POST /b/pull",
docs/protocol/metadata.md "available/<id>".
"""

from __future__ import annotations

import asyncio
from typing import Final

from duramen.runtime.identity.names import Role
from duramen.runtime.security.process_security import ProcessSecurity
from duramen.runtime.stores.metadata_store import MetadataError, MetadataStore
from duramen.runtime.turning.addresses import TLS_DATA_URL, find_tls_url
from duramen.units import SECOND
from duramen.wire.metadata_json import MetadataJsonError, Paths, read_node
from duramen.wire.repair_calls import Source

_LOOK_US: Final = 2 * SECOND
"""A registration that was not read by then is none: the pull has seconds for everything."""


class RegisteredSources:
    """Finds bookies by their ephemeral nodes, each time anew: they move, and pulls are rare."""

    def __init__(
        self, store: MetadataStore, paths: Paths, security: ProcessSecurity | None = None
    ) -> None:
        self._security = security
        self._store = store
        self._paths = paths

    async def find(self, named: Source) -> Source | None:
        """The bookie, and where it is; None: nobody can be asked in its name now."""
        try:
            async with asyncio.timeout(_LOOK_US / SECOND):
                found = await self._store.get(f"{self._paths.available}/{named.member.bookie}")
            fields = {} if found is None else read_node(found.data)
        except (MetadataError, MetadataJsonError, TimeoutError):
            return None
        url, tls_url = fields.get("data_url"), find_tls_url(fields, TLS_DATA_URL)
        if not isinstance(url, str) or named.data_url not in ("", url):
            return None
        if self._security is not None:
            self._security.peers.hear(Role.BOOKIE, named.member.bookie, url, tls_url)
        return named._replace(data_url=url)
