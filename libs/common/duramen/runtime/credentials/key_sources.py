"""Where an issuer's keys are read: a file, or a server that is asked over https and no other way.

A server's word counts as far as its certificate is one of `ca_file`'s, which is named for it alone:
neither the system's authorities nor the cluster's own are asked. One reading is bounded in time and
bytes. When to read, and what to make of a failure, is `key_holder`'s.

Called by `key_holder`. Source: docs/protocol/credentials.md "Keys of issuers".
"""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Final

import httpx

from duramen.runtime.credentials.encodings import EncodingError, read_object
from duramen.runtime.credentials.issuers import Issuer, KeysFrom, is_https
from duramen.runtime.credentials.key_sets import SET_BYTES_MAX

READING_S_MAX: Final = 5.0
"""For all of one reading: discovery, and the set."""

_BEARER_BYTES_MAX: Final = 8_192


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
            return await asyncio.to_thread(_read_file, source.file, SET_BYTES_MAX)
        async with asyncio.timeout(READING_S_MAX):
            return await _ask_server(source, issuer.issuer)
    except OSError as error:  # TimeoutError and ssl.SSLError are some of these
        where = source.file or source.url
        raise KeysUnreadableError(f"{where}: {error.strerror or type(error).__name__}") from None
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        # The last is a host whose name cannot be: discovery may name any.
        raise KeysUnreadableError(f"{source.url}: {type(error).__name__} {error}") from None


async def _ask_server(source: KeysFrom, issuer: str) -> bytes:
    assert source.url is not None and source.ca_file is not None, "the issuers file was judged"
    context = await asyncio.to_thread(_trust, source.ca_file)
    headers = {"accept": "application/json", "accept-encoding": "identity"}
    if source.bearer_file is not None:
        bearer = await asyncio.to_thread(_read_bearer, source.bearer_file)
        headers["authorization"] = f"Bearer {bearer}"
    # Nothing of the environment counts: no proxy, no authorities, no passwords of a .netrc.
    async with httpx.AsyncClient(
        verify=context, trust_env=False, follow_redirects=False, timeout=READING_S_MAX
    ) as client:
        found = await _get(client, source.url, headers)
        if not source.is_discovery:
            return found
        return await _get(client, _read_discovery(found, source.url, issuer), headers)


async def _get(client: httpx.AsyncClient, url: str, headers: dict[str, str]) -> bytes:
    content = bytearray()
    async with client.stream("GET", url, headers=headers) as response:
        if response.status_code != httpx.codes.OK:
            raise KeysUnreadableError(f"{url}: HTTP {response.status_code}")
        if "content-encoding" in response.headers:
            raise KeysUnreadableError(f"{url}: an encoded answer, which was not asked for")
        async for piece in response.aiter_raw():
            content += piece
            if len(content) > SET_BYTES_MAX:
                raise KeysUnreadableError(f"{url}: more than {SET_BYTES_MAX} bytes")
    return bytes(content)


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


def _read_file(path: Path, bytes_max: int) -> bytes:
    with path.open("rb") as file:
        content = file.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise KeysUnreadableError(f"{path}: more than {bytes_max} bytes")
    return content


def _read_bearer(path: Path) -> str:
    content = _read_file(path, _BEARER_BYTES_MAX).strip()
    text = content.decode("ascii", "replace")
    if not text.isascii() or not text.isprintable() or not text or " " in text:
        raise KeysUnreadableError(f"{path}: holds no token")
    return text


def _trust(ca_file: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except ssl.SSLError:
        raise KeysUnreadableError(f"{ca_file}: holds no certificates in PEM") from None
    except OSError as error:
        raise KeysUnreadableError(f"{ca_file}: {error.strerror}") from None
