"""The official client with our limits and errors, under the login that kr8s found.

kr8s alone reads kubeconfigs, service accounts and credential plugins; kopf's watches and these
calls take what it found. So the operator is one user everywhere, and a token is renewed once.
A call ends within its limit, and fails as one of `Kube`'s two errors: `Refused` or
`ApiUnreachable`. Nothing is tried again here but a call that was unauthorized: a pass is tried
again anyway.

A caller waits for its call, so no queue grows here: at most one call for each worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol, TypeVar

import aiohttp
from kubernetes.aio.client import ApiClient, ApiException, Configuration

from duramen_operator.kube import REQUEST_S, UNAUTHORIZED, ApiUnreachable, Login, make_refusal

CONNECTIONS_MAX = 4
"""To the API server at once: these calls are rare, lists and applies do not come this way."""
_TEXT_CHARACTERS = 300

T = TypeVar("T")


class LoginSource(Protocol):
    """Whose credentials the calls carry: `Kube`."""

    @property
    def login(self) -> Login:
        """As they were last read."""
        ...

    async def renew_login(self) -> Login:
        """Read them again."""
        ...


@dataclass(slots=True)
class _Counts:
    """How many calls there were, and how they ended."""

    calls: int = 0
    refused: int = 0
    unreachable: int = 0
    in_flight: int = 0


class TypedClient:
    """Makes calls of the official client."""

    def __init__(self, source: LoginSource, *, timeout_s: float = REQUEST_S) -> None:
        self._source = source
        self._timeout_s = timeout_s
        self._connected_as: Login | None = None
        self._client: ApiClient | None = None
        self._counts = _Counts()

    async def call(self, ask: Callable[[ApiClient], Awaitable[T]]) -> T:
        """Make one call; `ask` is given the client that an API class of `kubernetes` needs.

        Raises:
            Refused: the API server said no.
            ApiUnreachable: no answer in time, or none that the client can read: whether it acted is
                open.
        """
        counts = self._counts
        counts.calls += 1
        counts.in_flight += 1
        try:
            return await self._try_twice(ask)
        except ApiException as error:
            if error.status:
                counts.refused += 1
                raise make_refusal(error.status, (error.body or "").encode()) from error
            counts.unreachable += 1
            raise ApiUnreachable(_format(error)) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # OSError has time-outs and TLS in it, ValueError an answer that is not of its model.
            counts.unreachable += 1
            raise ApiUnreachable(_format(error)) from error
        finally:
            counts.in_flight -= 1

    async def close(self) -> None:
        """Close every connection."""
        client, self._client, self._connected_as = self._client, None, None
        if client is not None:
            await client.close()

    def statistics(self) -> dict[str, int]:
        """How many calls there were, and how they ended."""
        counts = self._counts
        return {
            "calls": counts.calls,
            "refused": counts.refused,
            "unreachable": counts.unreachable,
            "in_flight": counts.in_flight,
        }

    async def _try_twice(self, ask: Callable[[ApiClient], Awaitable[T]]) -> T:
        try:
            return await self._try(ask)
        except ApiException as error:
            if error.status != UNAUTHORIZED:
                raise
        await self._source.renew_login()
        return await self._try(ask)

    async def _try(self, ask: Callable[[ApiClient], Awaitable[T]]) -> T:
        async with asyncio.timeout(self._timeout_s):
            return await ask(await self._find_client())

    async def _find_client(self) -> ApiClient:
        """The client of the login as it is now.

        A token goes with each request. Other files or another server need other connections: the
        old ones are closed, and what is asked there has no answer any more.
        """
        login = self._source.login
        apart_from_token = replace(login, token=None)
        client = self._client
        if client is None or apart_from_token != self._connected_as:
            old, client = client, make_client(login)
            # In place before anybody else has a turn, who would make one of his own.
            self._client, self._connected_as = client, apart_from_token
            if old is not None:
                await old.close()
        token = login.token
        client.configuration.api_key = {"BearerToken": f"Bearer {token}"} if token else {}
        return client


def make_client(login: Login) -> ApiClient:
    """A client that connects as this login, without its token."""
    configuration = Configuration(
        host=login.server.rstrip("/"),
        ssl_ca_cert=login.authority_file,
        cert_file=login.certificate_file,
        key_file=login.key_file,
        tls_server_name=login.tls_server_name,
        connection_pool_maxsize=CONNECTIONS_MAX,
    )
    # As kr8s judges certificates: Python 3.13 refuses authorities that Kubernetes itself made.
    configuration.disable_strict_ssl_verification = True
    return _Client(configuration)


def format_micro_time(moment: datetime) -> str:
    """RFC 3339 with six digits: MicroTime takes no fewer, and Time takes them too."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class _Client(ApiClient):
    """The official client leaves the fraction out at a whole second, which MicroTime refuses: an
    event or a Lease in a million would be lost."""

    def sanitize_for_serialization(self, obj: Any) -> Any:
        """What a body, a path or a query holds, as JSON has it."""
        if isinstance(obj, datetime):
            return format_micro_time(obj)
        return ApiClient.sanitize_for_serialization(self, obj)


def _format(error: Exception) -> str:
    """On one line, and no longer than a line of a log should be: models tell of every field."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:_TEXT_CHARACTERS]
