"""Who calls a public port, by the header `Authorization`: one way in for all bearers' credentials.

Every refusal is one kind of error, and answered by one 401. It says why to the log alone. The
header `Duramen-Identity` is `duramen.runtime.identity`'s.

Called by whoever serves a public port. Source: docs/protocol/credentials.md "Who it is".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from duramen.runtime.credentials.access_tokens.token_table import TokenTable
from duramen.runtime.credentials.access_tokens.token_text import PREFIX
from duramen.runtime.credentials.principals import Bearer, CredentialRefusedError
from duramen.runtime.credentials.web_bearers import WebBearers
from duramen.runtime.credentials.web_tokens import TOKEN_LENGTH_MAX

SCHEME: Final = "bearer "


class ClientCredentials:
    """What a process knows of API tokens and of issuers, asked by a header's values."""

    def __init__(self, tokens: TokenTable, web_bearers: WebBearers) -> None:
        self._tokens = tokens
        self._web_bearers = web_bearers

    async def judge(self, authorizations: Sequence[str], now_s: float) -> Bearer:
        """Who calls.

        Args:
            authorizations: every value of the header in this call.
            now_s: seconds since 1970.

        Raises:
            CredentialRefusedError: nobody who is known, now; NothingKnownError: nobody can say.
        """
        text = _find_text(authorizations)
        if text.startswith(PREFIX):
            return self._tokens.find(text, now_s)
        return await self._web_bearers.judge(text, now_s)

    def find_known(self, authorizations: Sequence[str], now_s: float) -> Bearer | None:
        """Who calls, if nobody has to be asked; None: `judge` has to be, which may wait.

        Raises:
            CredentialRefusedError: as `judge`.
        """
        text = _find_text(authorizations)
        if text.startswith(PREFIX):
            return self._tokens.find(text, now_s)
        return self._web_bearers.find(text, now_s)

    def statistics(self) -> dict[str, int]:
        """Sizes and counters of both."""
        return self._tokens.statistics() | self._web_bearers.statistics()


def _find_text(authorizations: Sequence[str]) -> str:
    """The token that the values of the header show.

    Raises:
        CredentialRefusedError: they show none, or several.
    """
    if len(authorizations) != 1:
        raise CredentialRefusedError(f"{len(authorizations)} headers of authorization")
    header = authorizations[0]
    if len(header) > len(SCHEME) + TOKEN_LENGTH_MAX:
        raise CredentialRefusedError(f"a header of {len(header)} characters")
    if header[: len(SCHEME)].lower() != SCHEME:
        raise CredentialRefusedError("another scheme than Bearer")
    return header[len(SCHEME) :]
