"""The API tokens of a cluster as this process knows them, and who shows one of them.

Nodes of tokens never change, so the list of names says everything: a new name is read once, a name
that has gone counts no more. No cache stands before the table. While ZooKeeper is away the table
stays what it was, for an hour; then it believes nobody, since it cannot know who was revoked.

Called by `clients`. Source: docs/protocol/credentials.md "API tokens".
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from duramen.runtime.credentials.access_tokens.token_text import is_same_secret, take_token_apart
from duramen.runtime.credentials.principals import (
    Bearer,
    CredentialRefusedError,
    NothingKnownError,
    name_token,
)
from duramen.runtime.registry import Follower
from duramen.runtime.stores.metadata_store import MetadataStore, SessionState
from duramen.wire.metadata_json import MetadataJsonError, Paths
from duramen.wire.nodes.access_tokens import AccessToken, read_access_token

TOKEN_COUNT_TAKEN: Final = 8_192
"""Twice what a cluster may have: issuers that race may pass that by a few."""

AWAY_S_MAX: Final = 3_600
DEPTH_MAX: Final = 4
"""Tokens of one line, each made with the one before."""

_LOG: Final = logging.getLogger(__name__)


class TokenTable:
    """The tokens that are there, by their ids, kept current by a watch of their names."""

    def __init__(self, store: MetadataStore, paths: Paths) -> None:
        self._store = store
        self._paths = paths
        self._tokens: dict[str, AccessToken] = {}
        self._unreadable: dict[str, str] = {}
        self._left_out_count = 0
        self.change_count = 0
        """Another number after tokens came or went."""
        self._away_since_s: float | None = None
        self._follower = Follower(store, "table of API tokens", self._look)
        store.on_session(self._on_session)

    async def start(self) -> None:
        """Read the tokens, and follow them; returns when all of them are known."""
        await self._follower.start()

    async def stop(self) -> None:
        """Follow no more."""
        await self._follower.stop()

    def find(self, text: str, now_s: float) -> Bearer:
        """Who shows a token, by its text.

        Raises:
            CredentialRefusedError: it is none that counts now.
            NothingKnownError: nobody knows which one counts, as ZooKeeper is away for too long.
        """
        shown = take_token_apart(text)
        token = self._tokens.get(shown.token_id)
        is_same = is_same_secret(shown, None if token is None else token.secret_hash)
        return self._bear(shown.token_id, token if is_same else None, now_s)

    def find_known(self, token_id: str, now_s: float) -> Bearer:
        """Who was shown by somebody that is believed to have seen the token's text.

        Raises:
            CredentialRefusedError, NothingKnownError: as `find`.
        """
        return self._bear(token_id, self._tokens.get(token_id), now_s)

    def _bear(self, token_id: str, token: AccessToken | None, now_s: float) -> Bearer:
        if self._is_blind():
            raise NothingKnownError(f"ZooKeeper has been away for more than {AWAY_S_MAX} s")
        if token is None:
            raise CredentialRefusedError(f"API token {token_id}: not known, or revoked")
        until_s = min(one.expires_s for one in self._list_line(token))
        if now_s >= until_s:
            raise CredentialRefusedError(f"API token {token.token_id}: ended at {until_s}")
        return Bearer(name_token(token.token_id), until_s, scopes=token.scopes)

    def count_line(self, token_id: str) -> int:
        """How many tokens a token stands on, itself included; 0: it is not there.

        Raises:
            CredentialRefusedError: one of them is not there.
        """
        token = self._tokens.get(token_id)
        return 0 if token is None else len(self._list_line(token))

    def list_tokens(self) -> tuple[AccessToken, ...]:
        """All that are there, those too that have ended, by their ids."""
        return tuple(self._tokens[token_id] for token_id in sorted(self._tokens))

    def statistics(self) -> dict[str, int]:
        """Sizes."""
        return {
            "api_tokens": len(self._tokens),
            "api_tokens_max": TOKEN_COUNT_TAKEN,
            "api_tokens_unreadable": len(self._unreadable),
            "api_tokens_left_out": self._left_out_count,
        }

    def _list_line(self, token: AccessToken) -> list[AccessToken]:
        """A token and those that it was made with, which count only together."""
        line = [token]
        while line[-1].parent_id is not None:
            parent = self._tokens.get(line[-1].parent_id)
            if parent is None or len(line) == DEPTH_MAX:
                why = f"made with {line[-1].parent_id}, which does not count"
                raise CredentialRefusedError(f"API token {token.token_id}: {why}")
            line.append(parent)
        return line

    def _is_blind(self) -> bool:
        since_s = self._away_since_s
        return since_s is not None and asyncio.get_running_loop().time() - since_s > AWAY_S_MAX

    def _on_session(self, state: SessionState) -> None:
        if state is not SessionState.CONNECTED and self._away_since_s is None:
            self._away_since_s = asyncio.get_running_loop().time()

    async def _look(self) -> None:
        names = await self._follower.children(self._paths.access_tokens)
        taken = sorted(names or ())[:TOKEN_COUNT_TAKEN]
        left_out = len(names or ()) - len(taken)
        if left_out and not self._left_out_count:
            _LOG.warning("%d API tokens are not taken in: remove some", left_out)
        self._left_out_count = left_out
        for gone in self._tokens.keys() - {*taken}:
            del self._tokens[gone]
            self.change_count += 1
        for gone in self._unreadable.keys() - {*taken}:
            del self._unreadable[gone]
        for name in taken:
            if name not in self._tokens and name not in self._unreadable:
                await self._take(name)
        if self._store.session is SessionState.CONNECTED:
            self._away_since_s = None

    async def _take(self, name: str) -> None:
        found = await self._store.get(self._paths.access_token(name))
        if found is None:
            return
        try:
            token = read_access_token(found.data)
            if token.token_id != name:
                raise MetadataJsonError(f"it is the node of {token.token_id}")
        except MetadataJsonError as error:
            self._unreadable[name] = str(error)
            _LOG.warning("API token %s opens nothing: %s", name, error)
            return
        self._tokens[name] = token
        self.change_count += 1
