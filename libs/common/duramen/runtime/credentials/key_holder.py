"""The keys of one issuer, as this process knows them: read again in time, and no older than a day.

A key that has left its set counts no more, and a set that cannot be read goes on counting as long
as the last token could live that was made by it; then, as before it was ever read, nobody can say
who is known. However many tokens name an unknown key, a server is asked once, and then not for
30 s; a file is looked at for each, one look at a time.

Called by `web_bearers`. Source: docs/protocol/credentials.md "Keys of issuers".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Final

from duramen.runtime.credentials.issuers import Issuer
from duramen.runtime.credentials.key_sets import (
    KeySet,
    KeySetRefusedError,
    VerifyingKey,
    read_key_set,
)
from duramen.runtime.credentials.key_sources import KeysUnreadableError, read_keys
from duramen.runtime.credentials.principals import NothingKnownError

FILE_LOOK_S: Final = 2
REFRESH_S: Final = 600
ASK_AGAIN_S: Final = 30
"""After a failure, and after the last try when a token names a key that a server has not told."""

AGE_S_MAX: Final = 86_400
"""How long a set counts that cannot be read any more: a token's longest life."""

_LOG: Final = logging.getLogger(__name__)
_NOTHING: Final = KeySet({}, ())


class KeyHolder:
    """The keys of one issuer. Times are those of the wall, in seconds since 1970."""

    def __init__(self, issuer: Issuer) -> None:
        self.issuer = issuer
        self.change_count = 0
        """Another number after keys came or went."""
        self._set = _NOTHING
        self._content = b""
        self._refused: tuple[bytes, str] | None = None
        """A set that is none, and why: tokens of strangers have it looked at again and again."""
        self._read_s = -float("inf")
        self._tried_s = -float("inf")
        self._failure = ""
        self._failure_count = 0
        self._read_count = 0
        self._reading: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the keys once, and follow them from then on.

        Raises:
            KeysUnreadableError: they are in a file that cannot be read, or holds none. A server
                may be away: its issuer's tokens are refused until it answers.
        """
        await self._read(time.time())
        if self._failure and self.issuer.keys.file is not None:
            raise KeysUnreadableError(f"keys of issuer {self.issuer.name}: {self._failure}")
        self._following = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        """Read no more."""
        for task in (self._following, self._reading):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    async def find(self, key_id: str, now_s: float) -> VerifyingKey | None:
        """The key of this id, if the issuer has it; an unknown one may have its source asked.

        Raises:
            NothingKnownError: no set was read that counts, so nobody knows what the issuer has.
        """
        found = self._find(key_id, now_s)
        is_late = self._reading is not None
        if found is None and (is_late or self._may_ask(now_s)):
            # Who asks may be gone before the answer comes; the next one wants it as well.
            await asyncio.shield(self._begin(now_s))
            found = self._find(key_id, now_s)
        if found is None and is_late and self.issuer.keys.file is not None:
            # That look may have been at the file that was there before.
            await asyncio.shield(self._begin(now_s))
            found = self._find(key_id, now_s)
        if found is None and self._is_old(now_s):
            raise NothingKnownError(f"keys of issuer {self.issuer.name}: {self._failure}")
        return found

    def holds(self, key: VerifyingKey, now_s: float) -> bool:
        """Whether a key that was found before is still one of the issuer's."""
        found = self._find(key.key_id, now_s)
        return found is not None and found.fingerprint == key.fingerprint

    def statistics(self) -> dict[str, int]:
        """Sizes and counters."""
        return {
            "keys": len(self._set.keys),
            "keys_passed_over": len(self._set.passed_over),
            "keys_read": self._read_count,
            "keys_unread": self._failure_count,
        }

    def _find(self, key_id: str, now_s: float) -> VerifyingKey | None:
        return None if self._is_old(now_s) else self._set.keys.get(key_id)

    def _is_old(self, now_s: float) -> bool:
        """Also what was never read."""
        return now_s - self._read_s > AGE_S_MAX

    def _may_ask(self, now_s: float) -> bool:
        """A clock that went back does not keep a new key out.

        A look at a file costs less than the token that asks for it, and whoever is refused throws
        his token away: who changes a file and signs by the new key at once need not wait for us.
        """
        return self.issuer.keys.file is not None or not 0 <= now_s - self._tried_s < ASK_AGAIN_S

    def _begin(self, now_s: float) -> asyncio.Task[None]:
        """The one reading under way."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._read(now_s))
            self._reading.add_done_callback(self._on_read)
        return self._reading

    def _on_read(self, _done: asyncio.Task[None]) -> None:
        self._reading = None

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self._choose_pause())
            await asyncio.shield(self._begin(time.time()))

    def _choose_pause(self) -> int:
        if self.issuer.keys.file is not None:
            return FILE_LOOK_S
        return ASK_AGAIN_S if self._failure else REFRESH_S

    async def _read(self, now_s: float) -> None:
        self._tried_s = now_s
        self._read_count += 1
        try:
            content = await read_keys(self.issuer)
            if content != self._content:
                self._take(self._judge(content))
                self._content = content
        except (KeysUnreadableError, KeySetRefusedError) as error:
            self._failure_count += 1
            if self._failure != str(error):
                _LOG.warning("keys of issuer %s: %s", self.issuer.name, error)
            self._failure = str(error)
            return
        self._failure = ""
        self._read_s = now_s

    def _judge(self, content: bytes) -> KeySet:
        if self._refused is not None and self._refused[0] == content:
            raise KeySetRefusedError(self._refused[1])
        try:
            return read_key_set(content)
        except KeySetRefusedError as error:
            self._refused = content, str(error)
            raise

    def _take(self, found: KeySet) -> None:
        self.change_count += 1
        self._set = found
        _LOG.info("keys of issuer %s: %s", self.issuer.name, ", ".join(map(repr, found.keys)))
        for reason in found.passed_over:
            _LOG.warning("keys of issuer %s: passed over: %s", self.issuer.name, reason)
