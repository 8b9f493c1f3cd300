"""Why no session begins: what listens speaks TLS to who has no identity, or the other way round.

Neither side says so by itself: a ZooKeeper closes what it does not understand. So it is asked once
in the other way, and only an answer counts: one that is silent may be starting.

Called by `zookeeper_store` when it got no session.
Source: docs/protocol/metadata-access.md "Who connects".
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

_ANSWER_S: Final = 1.0
_QUESTION: Final = b"srvr"
_ANSWERS: Final = (b"Zookeeper version", b"ZooKeeper instance", b"whitelist")
"""Of a server that serves, one that does not, and one that does not tell."""

_NO_IDENTITY: Final = (
    "ZooKeeper at {host} speaks TLS and asks who connects, and this process has no identity: give "
    "it one (--security on --tls-dir DIR of a service, --identity DIR of a command)"
)
_NO_TLS: Final = (
    "ZooKeeper at {host} speaks plain text, and who has an identity connects by TLS alone: start "
    "ZooKeeper with an identity, or all of the cluster without"
)


async def find_misfit(hosts: str, *, has_identity: bool) -> str | None:
    """Why none of these hosts will ever let us in, in a sentence; None: that is not known."""
    asked = hosts.split(",")
    ask = _answers_plainly if has_identity else _speaks_tls
    found = await asyncio.gather(*map(ask, asked))
    for host, is_misfit in zip(asked, found, strict=True):
        if is_misfit:
            return (_NO_TLS if has_identity else _NO_IDENTITY).format(host=host)
    return None


async def _speaks_tls(host: str) -> bool:
    """A server that asks for a certificate shows its own before."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    # Nothing is told to it, and what it says is not believed: it only shows that it is there.
    context.verify_mode = ssl.CERT_NONE
    return await _ask(host, context) is not None


async def _answers_plainly(host: str) -> bool:
    answer = await _ask(host, None)
    return answer is not None and any(text in answer for text in _ANSWERS)


async def _ask(host: str, context: ssl.SSLContext | None) -> bytes | None:
    """What it says; None: it is not reached in this way."""
    name, _, port = host.rpartition(":")
    try:
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_connection(name, int(port), ssl=context)
    except (OSError, ValueError, TimeoutError):
        return None
    try:
        async with asyncio.timeout(_ANSWER_S):
            writer.write(_QUESTION)
            return await reader.read(4096)
    except (OSError, TimeoutError):
        return b""
    finally:
        writer.transport.abort()
