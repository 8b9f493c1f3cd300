"""Who calls a public port: by `Authorization`, or by a header `Duramen-Identity` for this proxy.

An identity is the principal `service:<role>/<name>`, unless it is a proxy's that calls in a
client's name: then the client is who calls. An API token that a proxy vouches for has to be in this
process's own table.

Called by `admission`. Source: docs/protocol/credentials.md "Who it is",
docs/protocol/identity.md "The caller's header".
"""

from __future__ import annotations

import datetime as dt
from functools import lru_cache
from typing import Final

from duramen.core.rights.grants import Principal, PrincipalKind
from duramen.errors import DuramenError
from duramen.runtime.admission.callers import ShownCredentials
from duramen.runtime.credentials.access_tokens.token_table import TokenTable
from duramen.runtime.credentials.clients import ClientCredentials
from duramen.runtime.credentials.principals import (
    Bearer,
    CredentialRefusedError,
    name_group,
    read_principals,
)
from duramen.runtime.identity.callers import Callers, TooManyHeadersError
from duramen.runtime.identity.header import Caller, CallerRefusedError, NamedClient

CLIENT_COUNT_MAX: Final = 4_096
"""Clients of other proxies that need not be read anew."""


class Identification:
    """All that says who somebody is."""

    def __init__(
        self, credentials: ClientCredentials, tokens: TokenTable, callers: Callers
    ) -> None:
        self._credentials = credentials
        self._tokens = tokens
        self._callers = callers

    async def identify(self, shown: ShownCredentials, now: dt.datetime) -> Bearer:
        """Who shows these.

        Raises:
            CredentialRefusedError: nobody who is known; NothingKnownError: nobody is, now.
            TooManyHeadersError: a leaf asks for too many verifications.
        """
        if not shown.identities:
            return await self._credentials.judge(shown.authorizations, now.timestamp())
        try:
            return self._bear(self._callers.find(_find_one(shown), now), now.timestamp())
        except TooManyHeadersError:
            raise
        except CallerRefusedError as error:
            raise CredentialRefusedError(f"Duramen-Identity: {error}") from None

    def find_again(self, shown: ShownCredentials, now: dt.datetime) -> Bearer | None:
        """Who showed these when a call began that lasts; an identity goes by its certificate.

        None: nothing is known against it, and `identify` has to be asked, which may wait.

        Raises:
            CredentialRefusedError: nobody who is known any more; NothingKnownError.
        """
        if not shown.identities:
            return self._credentials.find_known(shown.authorizations, now.timestamp())
        try:
            return self._bear(self._callers.find_again(_find_one(shown), now), now.timestamp())
        except CallerRefusedError as error:
            raise CredentialRefusedError(f"Duramen-Identity: {error}") from None

    def _bear(self, caller: Caller, now_s: float) -> Bearer:
        if caller.client is not None:
            return self._bear_client(caller, caller.client, now_s)
        identity = caller.identity
        name = f"{identity.role.value}/{identity.name}"
        return Bearer(Principal(PrincipalKind.SERVICE, name), int(caller.leaf_until_s))

    def _bear_client(self, caller: Caller, client: NamedClient, now_s: float) -> Bearer:
        principal, groups = _read_client(client)
        ends_s = int(min(client.until_s, caller.leaf_until_s))
        if now_s >= ends_s:
            raise CredentialRefusedError(f"{principal}, by {caller.identity}: ended at {ends_s}")
        if principal.kind is PrincipalKind.TOKEN:
            known = self._tokens.find_known(principal.name, now_s)
            return known._replace(ends_s=min(known.ends_s, ends_s), is_forwarded=True)
        return Bearer(principal, ends_s, groups, is_forwarded=True)


@lru_cache(CLIENT_COUNT_MAX)
def _read_client(client: NamedClient) -> tuple[Principal, tuple[Principal, ...]]:
    """The client whom a proxy names, and its groups.

    Raises:
        CredentialRefusedError: no such client can be.
    """
    issuer = client.principal.partition(":")[2].partition("/")[0]
    try:
        return read_principals(
            client.principal, (str(name_group(issuer, group)) for group in client.groups)
        )
    except DuramenError as error:
        raise CredentialRefusedError(f"a proxy: {error.detail}") from None


def name_client(bearer: Bearer) -> NamedClient:
    """A caller as a proxy names it that forwards its call."""
    groups = tuple(group.name.partition("/")[2] for group in bearer.groups)
    return NamedClient(str(bearer.principal), groups, bearer.ends_s)


def _find_one(shown: ShownCredentials) -> str:
    if len(shown.identities) != 1 or shown.authorizations:
        count = len(shown.identities) + len(shown.authorizations)
        raise CredentialRefusedError(f"{count} credentials in one call")
    return shown.identities[0]
