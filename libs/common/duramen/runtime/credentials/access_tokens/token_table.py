"""The API tokens of a cluster as this process knows them, and who shows one of them.

Nodes of tokens never change, so the list of names says everything: a new name is read once, a name
that has gone counts no more. No cache stands before the table. While looks fail the table stays
what it was, for an hour; then every token is unknown, since nobody can say who was revoked. What
is unknown is not refused: that is said otherwise, so that clients keep what they have.

Called by `clients`. Source: docs/protocol/credentials.md "API tokens".
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from duramen.limits import GRANTS_AGE_MAX_US
from duramen.runtime.credentials.access_tokens.lines import find_line, is_whole
from duramen.runtime.credentials.access_tokens.token_text import is_same_secret, take_token_apart
from duramen.runtime.credentials.principals import (
    Bearer,
    CredentialRefusedError,
    NothingKnownError,
    name_token,
)
from duramen.runtime.registry import Follower
from duramen.runtime.stores.metadata_store import (
    MetadataError,
    MetadataStore,
    Rejected,
    SessionState,
)
from duramen.units import SECOND
from duramen.wire.metadata_json import MetadataJsonError, Paths
from duramen.wire.nodes.access_tokens import AccessToken, read_access_token

TOKEN_COUNT_TAKEN: Final = 8_192
"""Twice what a cluster may have: issuers that race may pass that by a few."""

_AGE_S_MAX: Final = GRANTS_AGE_MAX_US // SECOND
_FORBIDDEN_RETRY_S: Final = 5.0
"""No watch tells that a node may be read from now on."""

_LOG: Final = logging.getLogger(__name__)


class TokenTable:
    """The tokens that are there, by their ids, kept current by a watch of their names."""

    def __init__(self, store: MetadataStore, paths: Paths) -> None:
        self._store = store
        self._paths = paths
        self._tokens: dict[str, AccessToken] = {}
        self._unreadable: dict[str, str] = {}
        self._forbidden: set[str] = set()
        """Ids whose nodes this process may not read."""
        self.change_count = 0
        """Another number after tokens came or went."""
        self._left_out_count = 0
        self._highest_id = ""
        """Above it are those that were left out."""
        self._is_known = False
        self._old_since_s: float | None = None
        self._fault = "not read yet"
        self._follower = Follower(store, "table of API tokens", self._look)
        store.on_session(self._on_session)

    async def start(self) -> None:
        """Look at the tokens, and follow them; returns after the first answer about them all."""
        await self._follower.start()

    async def stop(self) -> None:
        """Follow no more; what is known grows old."""
        await self._follower.stop()

    def find(self, text: str, now_s: float) -> Bearer:
        """Who shows a token, by its text.

        Raises:
            NothingKnownError: whether it counts is not known.
            CredentialRefusedError: it is none that counts now.
        """
        shown = take_token_apart(text)
        token = self._tokens.get(shown.token_id)
        is_same = is_same_secret(shown, None if token is None else token.secret_hash)
        if token is not None and not is_same:
            # As an id that is not there is answered, else who guesses learns which ones are.
            self._expect_known(shown.token_id)
            raise CredentialRefusedError(f"API token {shown.token_id}: another secret")
        return self.find_known(shown.token_id, now_s)

    def find_known(self, token_id: str, now_s: float) -> Bearer:
        """Who was shown by somebody that is believed to have seen the token's text.

        Raises:
            NothingKnownError, CredentialRefusedError: as `find`.
        """
        token = self._tokens.get(token_id)
        if token is None:
            self._expect_known(token_id)
            raise CredentialRefusedError(f"API token {token_id}: not known, or revoked")
        if self._is_blind():
            raise self._make_unknown(token_id)
        line = find_line(token, self._tokens)
        if not is_whole(line):
            parent_id = str(line[-1].parent_id)
            if self._may_be(parent_id):
                raise self._make_unknown(parent_id)
            raise CredentialRefusedError(
                f"API token {token.token_id}: made with {parent_id}, which does not count"
            )
        until_s = min(one.expires_s for one in line)
        if now_s >= until_s:
            raise CredentialRefusedError(f"API token {token.token_id}: ended at {until_s}")
        return Bearer(name_token(token.token_id), until_s, scopes=token.scopes)

    def list_tokens(self) -> tuple[AccessToken, ...]:
        """All that are there, those too that have ended, by their ids."""
        return tuple(self._tokens[token_id] for token_id in sorted(self._tokens))

    def statistics(self) -> dict[str, int]:
        """Sizes, and since when what is known may be old; 0: it is not."""
        since_s = self._old_since_s
        return {
            "api_tokens": len(self._tokens),
            "api_tokens_max": TOKEN_COUNT_TAKEN,
            "api_tokens_unreadable": len(self._unreadable),
            "api_tokens_forbidden": len(self._forbidden),
            "api_tokens_left_out": self._left_out_count,
            "api_token_changes": self.change_count,
            "api_tokens_old_s": 0 if since_s is None else int(_now_s() - since_s),
        }

    def _expect_known(self, token_id: str) -> None:
        """Raise NothingKnownError if a token of this id may be there, or nobody can say."""
        if self._is_blind() or self._may_be(token_id):
            raise self._make_unknown(token_id)

    def _make_unknown(self, token_id: str) -> NothingKnownError:
        return NothingKnownError(f"API token {token_id}: {self._fault}")

    def _is_blind(self) -> bool:
        if not self._is_known:
            return True
        return self._old_since_s is not None and _now_s() - self._old_since_s > _AGE_S_MAX

    def _may_be(self, token_id: str) -> bool:
        """Whether there may be a token of this id that this process has not read.

        While looks fail nobody here has heard of those that are new.
        """
        is_left_out = bool(self._left_out_count) and token_id > self._highest_id
        return is_left_out or token_id in self._forbidden or self._old_since_s is not None

    def _on_session(self, state: SessionState) -> None:
        if state is not SessionState.CONNECTED:
            self._grow_old("ZooKeeper cannot be reached")

    def _grow_old(self, fault: str) -> None:
        self._fault = fault
        if self._old_since_s is None:
            self._old_since_s = _now_s()

    async def _look(self) -> None:
        try:
            names = await self._follower.children(self._paths.access_tokens)
            await self._keep_only(names or ())
        except Rejected as error:
            _LOG.error("%s: %s", self._paths.access_tokens, error)
            self._grow_old(str(error))
            # Raised, it would keep a start waiting for as long as the node is closed to us.
            self._follower.look_later(_FORBIDDEN_RETRY_S)
            return
        except MetadataError as error:
            self._grow_old(str(error))
            raise
        unread_count = len(self._forbidden) + self._left_out_count
        self._fault = f"{unread_count} of them are not read here"
        if self._forbidden:
            self._follower.look_later(_FORBIDDEN_RETRY_S)
        self._is_known = True
        if self._store.session is SessionState.CONNECTED:
            self._old_since_s = None

    async def _keep_only(self, names: tuple[str, ...]) -> None:
        taken = sorted(names)[:TOKEN_COUNT_TAKEN]
        left_out = len(names) - len(taken)
        if left_out and not self._left_out_count:
            _LOG.warning("%d API tokens are not taken in: remove some", left_out)
        self._left_out_count = left_out
        self._highest_id = taken[-1] if taken else ""
        for gone in self._tokens.keys() - {*taken}:
            del self._tokens[gone]
            self.change_count += 1
        for gone in self._unreadable.keys() - {*taken}:
            del self._unreadable[gone]
        self._forbidden &= {*taken}
        for name in taken:
            if name not in self._tokens and name not in self._unreadable:
                await self._take(name)

    async def _take(self, name: str) -> None:
        try:
            found = await self._store.get(self._paths.access_token(name))
        except Rejected as error:
            if name not in self._forbidden:
                _LOG.error("API token %s may not be read here: %s", name, error)
            self._forbidden.add(name)
            return
        self._forbidden.discard(name)
        if found is None:
            return
        try:
            self._tokens[name] = read_access_token(found.data, name)
            self.change_count += 1
        except MetadataJsonError as error:
            self._unreadable[name] = str(error)
            _LOG.warning("API token %s opens nothing: %s", name, error)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
