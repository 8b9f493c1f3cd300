"""What a client shows of itself, what it trusts, and which URLs may see it.

A token goes to public ports and a certificate to admin ports; a token leaves this machine over TLS
alone. Who gives neither shows nothing.

Called by `rest_client`, the SDK's session and the command line. Source:
docs/protocol/credentials.md "How clients show it".
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from duramen.client.credentials.tokens import GivenToken, TokenFile, TokenSource
from duramen.errors import DuramenError
from duramen.wire.edge import gate

if TYPE_CHECKING:
    from duramen.client.credentials.receiver_header import ReceiverHeader

_SECURE: Final = "https://"


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """What is shown, and what is trusted.

    Attributes:
        token: shown to public ports.
        identity: the folder of a certificate, shown wherever TLS asks for one.
        ca: a file of anchors that alone are trusted; None: the identity's, else the system's.
        header: names the identity to a public port, where it is known who is reached there.
    """

    token: TokenSource | None = None
    identity: Path | None = None
    ca: Path | None = None
    header: ReceiverHeader | None = None

    @property
    def name(self) -> str:
        """What was shown, for people."""
        if self.token is not None:
            return self.token.name
        if self.identity is not None:
            return f"the certificate in {self.identity}"
        return "nothing"

    def check_url(self, url: str) -> None:
        """See that a URL may see it.

        Raises:
            DuramenError: `invalid_argument`: others on the way could read the token or header.
        """
        if self.header is not None and not url.startswith(_SECURE):
            raise DuramenError(
                "invalid_argument",
                f"{url}: an identity is named over https alone: others on the way could read it",
                field="url",
            )
        if self.token is not None and not url.startswith(_SECURE) and not is_here(url):
            raise DuramenError(
                "invalid_argument",
                f"{url}: a token is sent over https, or to this machine alone: whoever is on the "
                "way could read it",
                field="url",
            )

    def may_follow(self, given: str, named: str) -> bool:
        """Whether a URL that an answer names may see what the one that was given sees."""
        if self.token is None or named.startswith(_SECURE):
            return True
        return not given.startswith(_SECURE) and is_here(given) and is_here(named)

    def explain_refusal(self) -> str:
        """What a person does who was refused for who it is."""
        if self.header is not None:
            return (
                "an identity was named by header, and is not believed there: see that its "
                "certificate is of a CA of this cluster, and not revoked"
            )
        if self.token is None and self.identity is None:
            return (
                "nothing was shown: give a token (`token_file` in a program, `duramen context add` "
                "for the command line)"
            )
        more = "" if self.token is not None else "; a public port wants a token"
        return f"{self.name} was shown, and is not believed there{more}: see `duramen context list`"


NOTHING_SHOWN: Final = Credential()


def make_credential(
    *, token: str | None = None, token_file: str | Path | None = None, ca: str | Path | None = None
) -> Credential:
    """The credential that a program gives.

    Raises:
        DuramenError: `invalid_argument`: both tokens, or what is no token.
    """
    if token is not None and token_file is not None:
        raise DuramenError(
            "invalid_argument", "give one of token and token_file", field="token_file"
        )
    source: TokenSource | None = None
    if token is not None:
        source = GivenToken(token)
    elif token_file is not None:
        source = TokenFile(Path(token_file))
    return Credential(token=source, ca=None if ca is None else Path(ca))


def is_here(url: str) -> bool:
    """Whether a URL can only reach this machine."""
    try:
        return gate.is_here(urlsplit(url).hostname or "")
    except ValueError:
        return False
