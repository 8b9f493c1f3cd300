"""All API tokens as they are now, for decisions about them: issue, list, revoke, sweep.

Nodes of tokens never change, so one that was read once is known as long as its name is there; a
look costs the list of names, and a read for each new one. Judging calls goes by `token_table`.

Called by `issuing` and by whoever deletes a namespace.
Source: docs/protocol/credentials.md "Who makes one, and for how long".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final, NamedTuple

from duramen.runtime.stores.metadata_store import MetadataStore, Rejected
from duramen.wire.metadata_json import MetadataJsonError, Paths
from duramen.wire.nodes.access_tokens import AccessToken, read_access_token

_READ_COUNT: Final = 64
"""Reads under way at once."""

_LOG: Final = logging.getLogger(__name__)


class SeenTokens(NamedTuple):
    """Tokens by their ids, and the names of all nodes, of those too that are not understood."""

    tokens: Mapping[str, AccessToken]
    names: frozenset[str]

    @property
    def unreadable_count(self) -> int:
        """Nodes that open nothing."""
        return len(self.names) - len(self.tokens)


class TokenStock:
    """The tokens that are there, read when somebody asks."""

    def __init__(self, store: MetadataStore, paths: Paths) -> None:
        self._store = store
        self._paths = paths
        self._tokens: dict[str, AccessToken] = {}
        self._strange: set[str] = set()

    async def look(self) -> SeenTokens:
        """All of them, each that was acknowledged to anybody before.

        Raises:
            MetadataError: they cannot be read.
        """
        await self._store.sync(self._paths.access_tokens)
        names = await self._store.children(self._paths.access_tokens) or ()
        known = {name: self._tokens[name] for name in names if name in self._tokens}
        fresh = [name for name in names if name not in known and name not in self._strange]
        for first in range(0, len(fresh), _READ_COUNT):
            some = fresh[first : first + _READ_COUNT]
            for name, token in zip(some, await asyncio.gather(*map(self._read, some)), strict=True):
                if token is not None:
                    known[name] = token
        self._tokens = known
        self._strange &= set(names)
        return SeenTokens(known, frozenset(names))

    async def _read(self, name: str) -> AccessToken | None:
        try:
            found = await self._store.get(self._paths.access_token(name))
            return None if found is None else read_access_token(found.data, name)
        except (MetadataJsonError, Rejected) as error:
            _LOG.warning("API token %s opens nothing: %s", name, error)
            self._strange.add(name)
            return None
