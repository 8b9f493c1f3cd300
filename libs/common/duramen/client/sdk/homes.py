"""Which proxy serves a log best: what a client over proxies has instead of an ownership cache.

Any proxy answers every call. One of them has the log in its cache already, and may say so in its
answers (`Duramen-Home: url`); reads of the log go there from then on, and back to the first url as
soon as that proxy gives no answer. In the same way appends go to a proxy in the region of the log's
owner, where the client asks for that. A url that must not see the client's token is not followed.
Bounded in logs and in proxies.

Called by `sdk.session`. Source: docs/protocol/credentials.md "How clients show it".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from duramen.client.credentials.credential import Credential
from duramen.client.rest_client import RestClient

_LOG_COUNT_MAX: Final = 4_096
_PROXY_COUNT_MAX: Final = 64
"""Proxies that a client keeps connections to: more of them are not learnt."""

LogName = tuple[str, str]
"""Namespace and log."""


class KnownHomes:
    """A log's home, where one is known; the proxy of the client's url otherwise."""

    def __init__(
        self, first: RestClient, connect: Callable[[str], RestClient], credential: Credential
    ) -> None:
        """`credential`: it decides which of the urls that answers name may see it."""
        self._first = first
        self._credential = credential
        self._connect = connect
        self._clients: dict[str, RestClient] = {}
        self._homes: dict[LogName, RestClient] = {}

    def find(self, log: LogName) -> RestClient:
        """Whom to ask about a log."""
        return self._homes.get(log, self._first)

    def learn(self, log: LogName, url: str | None) -> None:
        """An answer named the log's home, or none."""
        if url is None:
            return
        url = url.rstrip("/")
        if not url.startswith(("http://", "https://")) or url == self.find(log).url:
            return
        self._homes.pop(log, None)
        if url == self._first.url or not self._credential.may_follow(self._first.url, url):
            return
        client = self._clients.get(url)
        if client is None and len(self._clients) < _PROXY_COUNT_MAX:
            client = self._clients[url] = self._connect(url)
        if client is not None:
            if len(self._homes) >= _LOG_COUNT_MAX:
                del self._homes[next(iter(self._homes))]
            self._homes[log] = client

    def forget(self, log: LogName) -> None:
        """The home of the log gave no answer."""
        self._homes.pop(log, None)

    async def close(self) -> None:
        """Close the connections to every home."""
        for client in self._clients.values():
            await client.close()

    def statistics(self) -> dict[str, int]:
        """Logs with a home elsewhere, and proxies that are known by that."""
        return {"logs": len(self._homes), "proxies": len(self._clients)}
