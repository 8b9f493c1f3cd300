"""Calls of a server over https, by a trust that is named for it alone, bounded in bytes.

A server's word counts as far as its certificate is one of `ca_file`'s: neither the system's
authorities nor the cluster's own are asked. Nothing of the environment counts, nothing is followed,
nothing is unpacked. The bound in time is the caller's. httpx is imported with the first call: its
import is a quarter of a process's start, and most have no server to call.

Called by `key_sources` and `token_reviews`.
Source: docs/protocol/credentials.md "Keys of issuers".
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import httpx

ANSWER_BYTES_MAX: Final = 256 << 10
CALL_S_MAX: Final = 5.0
"""What callers give one reading of keys, or one review."""

_BEARER_BYTES_MAX: Final = 8_192
_WELL: Final = (HTTPStatus.OK, HTTPStatus.CREATED)


class CallFailedError(Exception):
    """A server gave no answer that counts; the text says where and why, and no credential."""


class HttpsCaller:
    """Calls by one trust and with one credential, or none."""

    def __init__(self, client: httpx.AsyncClient, headers: dict[str, str]) -> None:
        self._client = client
        self._headers = headers

    async def call(self, url: str, body: bytes | None = None) -> bytes:
        """GET, or POST of a JSON body.

        Raises:
            CallFailedError: there is no answer, or one that is not well, encoded or too long.
        """
        import httpx  # noqa: PLC0415

        try:
            return await self._call(url, body)
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            # The last is a host whose name cannot be: an answer may name any.
            raise CallFailedError(f"{url}: {type(error).__name__} {error}") from None

    async def _call(self, url: str, body: bytes | None) -> bytes:
        method = "GET" if body is None else "POST"
        content = bytearray()
        async with self._client.stream(
            method, url, headers=self._headers, content=body
        ) as response:
            if response.status_code not in _WELL:
                raise CallFailedError(f"{url}: HTTP {response.status_code}")
            if "content-encoding" in response.headers:
                raise CallFailedError(f"{url}: an encoded answer, which was not asked for")
            async for piece in response.aiter_raw():
                content += piece
                if len(content) > ANSWER_BYTES_MAX:
                    raise CallFailedError(f"{url}: more than {ANSWER_BYTES_MAX} bytes")
        return bytes(content)


@contextlib.asynccontextmanager
async def open_caller(ca_file: Path, bearer_file: Path | None) -> AsyncIterator[HttpsCaller]:
    """Calls that trust `ca_file` alone; both files are read anew, since both are replaced in time.

    Raises:
        CallFailedError: a file cannot be read, or holds something else.
    """
    import httpx  # noqa: PLC0415

    context = await asyncio.to_thread(_trust, ca_file)
    # Kubernetes serves its key set as the second of these, and as nothing else.
    types = "application/json, application/jwk-set+json"
    headers = {"accept": types, "accept-encoding": "identity"}
    headers["content-type"] = "application/json"
    if bearer_file is not None:
        bearer = await asyncio.to_thread(_read_bearer, bearer_file)
        headers["authorization"] = f"Bearer {bearer}"
    async with httpx.AsyncClient(
        verify=context, trust_env=False, follow_redirects=False, timeout=CALL_S_MAX
    ) as client:
        yield HttpsCaller(client, headers)


def _read_bearer(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_BEARER_BYTES_MAX).strip()
    except OSError as error:
        raise CallFailedError(f"{path}: {error.strerror}") from None
    text = content.decode("ascii", "replace")
    if not text.isascii() or not text.isprintable() or not text or " " in text:
        raise CallFailedError(f"{path}: holds no token")
    return text


def _trust(ca_file: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except ssl.SSLError:
        raise CallFailedError(f"{ca_file}: holds no certificates in PEM") from None
    except OSError as error:
        raise CallFailedError(f"{ca_file}: {error.strerror}") from None
