"""Who shows a web token: judged once, then found by the hash of its text until that ends.

A row says by which key it was believed, and is asked again whether that key is still there, so a
key that left its issuer's set takes what was believed by it along. No token is kept, only its hash.

Called by `clients`. Source: docs/protocol/credentials.md "What is kept".
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from duramen.runtime.credentials.issuers import Issuer
from duramen.runtime.credentials.key_holder import KeyHolder
from duramen.runtime.credentials.key_sets import VerifyingKey
from duramen.runtime.credentials.principals import Bearer, CredentialRefusedError
from duramen.runtime.credentials.token_reviews import BELIEVED_S_MAX, TokenReviewer
from duramen.runtime.credentials.web_tokens import (
    judge_claims,
    take_web_token_apart,
    verify_token,
)

ROW_COUNT_MAX: Final = 8_192
"""Some 600 bytes each: 5 MB of a process that as many clients ask."""


class _Believed(NamedTuple):
    """What was made of a token, and by which key."""

    bearer: Bearer
    holder: KeyHolder
    key: VerifyingKey


class WebBearers:
    """The issuers that a process believes, and whom they have named to it."""

    def __init__(self, issuers: Sequence[Issuer]) -> None:
        self._holders = {issuer.issuer: KeyHolder(issuer) for issuer in issuers}
        self._reviewers = {one.issuer: TokenReviewer(one) for one in issuers if one.review}
        self._rows: OrderedDict[bytes, _Believed] = OrderedDict()
        self._verified_count = 0
        self._refused_count = 0

    async def start(self) -> None:
        """Read the keys of all issuers, and follow them.

        Raises:
            KeysUnreadableError: a file of keys cannot be read; nothing is followed then.
        """
        # At once: servers that are away are each waited for.
        ends = await asyncio.gather(
            *(holder.start() for holder in self._holders.values()), return_exceptions=True
        )
        failure = next((end for end in ends if end is not None), None)
        if failure is not None:
            await self.stop()
            raise failure

    async def stop(self) -> None:
        """Follow no more."""
        for holder in self._holders.values():
            await holder.stop()
        for reviewer in self._reviewers.values():
            await reviewer.stop()

    async def judge(self, text: str, now_s: float) -> Bearer:
        """Whom a token names. One with an unknown key waits while its issuer is asked, 5 s at most.

        Raises:
            CredentialRefusedError: it names nobody; NothingKnownError: its issuer's keys could not
                be read.
        """
        digest = _hash(text)
        if (kept := self._find(digest, now_s)) is not None:
            return kept
        try:
            believed = await self._verify(text, digest, now_s)
        except CredentialRefusedError:
            self._refused_count += 1
            raise
        self._verified_count += 1
        self._rows[digest] = believed
        if len(self._rows) > ROW_COUNT_MAX:
            self._rows.popitem(last=False)
        return believed.bearer

    def find(self, text: str, now_s: float) -> Bearer | None:
        """Whom a token names that was believed already, and may be still; None: judge it."""
        return self._find(_hash(text), now_s)

    @property
    def change_count(self) -> int:
        """Another number after keys of an issuer came or went."""
        return sum(holder.change_count for holder in self._holders.values())

    def statistics(self) -> dict[str, int]:
        """Sizes and counters; those of keys and reviews are sums over the issuers."""
        told = {
            "web_tokens": len(self._rows),
            "web_tokens_max": ROW_COUNT_MAX,
            "verified": self._verified_count,
            "refused": self._refused_count,
        }
        parts = [holder.statistics() for holder in self._holders.values()]
        parts += [reviewer.statistics() for reviewer in self._reviewers.values()]
        for part in parts:
            for name, count in part.items():
                told[name] = told.get(name, 0) + count
        return told

    def _find(self, digest: bytes, now_s: float) -> Bearer | None:
        row = self._rows.get(digest)
        if row is None:
            return None
        if now_s < row.bearer.until_s and row.holder.holds(row.key, now_s):
            self._rows.move_to_end(digest)
            return row.bearer
        del self._rows[digest]
        return None

    async def _verify(self, text: str, digest: bytes, now_s: float) -> _Believed:
        token = take_web_token_apart(text)
        holder = self._holders.get(token.issuer)
        if holder is None:
            raise CredentialRefusedError(f"a web token of issuer {token.issuer!r}")
        # What costs nothing comes first, and what may ask a server last.
        bearer = judge_claims(token, holder.issuer, now_s)
        key = await holder.find(token.key_id, now_s)
        if key is None:
            raise CredentialRefusedError(f"{holder.issuer.name}: no key {token.key_id!r}")
        verify_token(token, key)
        reviewer = self._reviewers.get(token.issuer)
        if reviewer is not None:
            await reviewer.confirm(text, digest, token.claims["sub"], now_s)
            bearer = bearer._replace(review_s=int(now_s) + BELIEVED_S_MAX)
        return _Believed(bearer, holder, key)


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
