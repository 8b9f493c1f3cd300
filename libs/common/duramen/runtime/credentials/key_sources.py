"""Where an issuer's keys are read: a file, or a server that is asked over https and no other way.

One reading is bounded in time and bytes. When to read, and what to make of a failure, is
`key_holder`'s.

Called by `key_holder`. Source: docs/protocol/credentials.md "Keys of issuers".
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from duramen.runtime.credentials.encodings import EncodingError, read_object
from duramen.runtime.credentials.https_calls import CALL_S_MAX, CallFailedError, open_caller
from duramen.runtime.credentials.issuers import Issuer, KeysFrom, is_https
from duramen.runtime.credentials.key_sets import SET_BYTES_MAX


class KeysUnreadableError(Exception):
    """The keys of an issuer cannot be read now; the text says where and why."""


async def read_keys(issuer: Issuer) -> bytes:
    """The text of an issuer's set of keys, as it is now.

    Raises:
        KeysUnreadableError: it cannot be read. Ask again later.
    """
    source = issuer.keys
    try:
        if source.file is not None:
            return await asyncio.to_thread(_read_file, source.file)
        async with asyncio.timeout(CALL_S_MAX):
            return await _ask_server(source, issuer.issuer)
    except TimeoutError:
        raise KeysUnreadableError(f"{source.url}: no answer within {CALL_S_MAX} s") from None
    except CallFailedError as error:
        raise KeysUnreadableError(str(error)) from None


async def _ask_server(source: KeysFrom, issuer: str) -> bytes:
    assert source.url is not None and source.ca_file is not None, "the issuers file was judged"
    async with open_caller(source.ca_file, source.bearer_file) as caller:
        found = await caller.call(source.url)
        if not source.is_discovery:
            return found
        return await caller.call(_read_discovery(found, source.url, issuer))


def _read_discovery(content: bytes, url: str, issuer: str) -> str:
    """The URL of the set, as an issuer's own document has it."""
    try:
        document = read_object(content)
    except EncodingError as error:
        raise KeysUnreadableError(f"{url}: {error}") from None
    if document.get("issuer") != issuer:
        raise KeysUnreadableError(f"{url}: is of another issuer than {issuer}")
    found = document.get("jwks_uri")
    if not isinstance(found, str) or not is_https(found):
        raise KeysUnreadableError(f"{url}: its jwks_uri is no https URL")
    return found


def _read_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            # A byte more than a set may have: it is refused for its size then.
            return file.read(SET_BYTES_MAX + 1)
    except OSError as error:
        raise KeysUnreadableError(f"{path}: {error.strerror}") from None
