"""Questions to the admin ports of other nodes: HTTP/1.1, by this process's identity if it has one.

A process with an identity shows it, trusts its bundle alone, and asks nobody in plain text, but
while the cluster turns security on. The host is compared with the node's certificate, its role is
not: the HTTP library shows no certificate. So what is asked for here decides nothing.

Called by the write proxy's cluster routes and by `audit.by_admin_ports`.
Source: docs/protocol/identity.md "TLS",
docs/protocol/turning-on.md "Which way a call takes".
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import orjson
from pyreqwest.client import ClientBuilder
from pyreqwest.exceptions import PyreqwestError
from pyreqwest.request import RequestBuilder

from duramen.runtime.http_client import (
    KeptCancellation,
    NoAnswerError,
    UnreachableError,
    close_client,
    translate,
)
from duramen.runtime.security.process_security import ProcessSecurity
from duramen.runtime.turning.addresses import SECURE_SCHEME, list_urls
from duramen.wire.edge.gate import JSON

_CONNECT_TIMEOUT: Final = timedelta(seconds=1)


class AdminPortCalls:
    """Calls of one round, to any number of nodes; `close` ends it, and with it its connections."""

    def __init__(self, security: ProcessSecurity | None) -> None:
        self._has_identity = security is not None
        self._may_be_plain = security is None or security.tally is not None
        builder = (
            ClientBuilder()
            .http1_only()
            .connect_timeout(_CONNECT_TIMEOUT)
            .no_proxy()
            .follow_redirects(enable=False)
        )
        self._client = builder.build() if security is None else security.make_client(builder)

    async def get_object(self, url: str) -> dict[str, Any]:
        """GET a JSON object.

        Raises:
            PeerError: nobody is there who is trusted, or the answer is no success, or none.
        """
        if not self._may_be_plain and not url.startswith(SECURE_SCHEME):
            raise UnreachableError(f"{url!r} has no TLS, and who is there cannot be known")
        answer = await _send(self._client.get(url), url)
        try:
            found = orjson.loads(answer)
        except orjson.JSONDecodeError:
            found = None
        if not isinstance(found, dict):
            raise NoAnswerError(f"{url}: the answer is no JSON object")
        return found

    async def post(self, url: str, body: bytes) -> None:
        """POST a body of JSON, by TLS alone.

        Raises:
            PeerError: nobody is there who is trusted, or the answer is no success, or none.
        """
        if not url.startswith(SECURE_SCHEME):
            raise UnreachableError(f"{url!r} has no TLS, and others could read")
        await _send(self._client.post(url).header("content-type", JSON).body_bytes(body), url)

    async def ask_node(self, fields: Mapping[str, Any], path: str) -> dict[str, Any]:
        """GET a JSON object of a node, as it registered.

        Raises:
            PeerError: as `get_object`, of the last way that there is.
        """
        failure = UnreachableError("it has registered no admin port")
        urls = list_urls(fields, "admin", may_be_plain=self._may_be_plain)
        for url in urls if self._has_identity else urls[-1:]:
            try:
                return await self.get_object(url.rstrip("/") + path)
            except UnreachableError as error:
                failure = error
        raise failure

    async def close(self) -> None:
        """Close every connection."""
        await close_client(self._client)


async def _send(builder: RequestBuilder, url: str) -> bytes:
    """The body of a success."""
    try:
        with KeptCancellation():
            response = await builder.build().send()
            answer = bytes(await response.bytes())
    except PyreqwestError as error:
        raise translate(error, url) from error
    if response.status != 200:
        raise NoAnswerError(f"{url}: HTTP {response.status}")
    return answer
