"""API tokens as text, `dur1_<id>_<secret>`: made, taken apart, and hashed for keeping.

Every token has one text, so that its hash is one, and every text of the form is a token that could
have been made. Whether it was is for `token_table` to say.

Called by `token_table` and `issuing`. Source: docs/protocol/credentials.md "API tokens".
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from base64 import b32encode
from typing import Final, NamedTuple

from duramen.core.rights.grants import TOKEN_ID_PATTERN
from duramen.runtime.credentials.principals import CredentialRefusedError
from duramen.wire.nodes.access_tokens import HASH_BYTES

PREFIX: Final = "dur1_"
SECRET_BYTES: Final = 32
_ID_BYTES: Final = 10
_FORM: Final = re.compile(f"{PREFIX}({TOKEN_ID_PATTERN})_[a-z2-7]{{51}}[aq]")
"""51 characters hold 255 bits, and the last one the bit that is left: its other four are zero, so
that one secret has one text."""

_NOBODYS_HASH: Final = bytes(HASH_BYTES)
"""No text is known whose SHA-256 this is; so one comparison is made whether or not there is a
token of an id."""


class TokenText(NamedTuple):
    """A token's text that has the form, with the id in it; what is shown of it is no secret."""

    token_id: str
    text: str

    def __repr__(self) -> str:
        return f"TokenText({format_prefix(self.token_id)})"

    @property
    def hash(self) -> bytes:
        """What is kept of it."""
        return hashlib.sha256(self.text.encode()).digest()


def make_token() -> TokenText:
    """A token that nobody has: 80 and 256 bits of the system's randomness."""
    token_id, secret = map(
        _encode, (secrets.token_bytes(_ID_BYTES), secrets.token_bytes(SECRET_BYTES))
    )
    return TokenText(token_id, f"{PREFIX}{token_id}_{secret}")


def take_token_apart(text: str) -> TokenText:
    """The id of a text of the one form.

    Raises:
        CredentialRefusedError: it has another one.
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise CredentialRefusedError("an API token of another form")
    return TokenText(found[1], text)


def format_prefix(token_id: str) -> str:
    """What lists and logs show of a token: enough to find it, nothing to use it."""
    return f"{PREFIX}{token_id}"


def is_same_secret(shown: TokenText, kept_hash: bytes | None) -> bool:
    """Whether a text is the one whose hash was kept; it takes as long where none was."""
    expected = _NOBODYS_HASH if kept_hash is None else kept_hash
    return hmac.compare_digest(shown.hash, expected)


def _encode(content: bytes) -> str:
    return b32encode(content).rstrip(b"=").decode().lower()
