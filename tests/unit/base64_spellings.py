"""Other texts of the same base64, which a strict reader refuses.

Used by the tests of callers' headers and of credentials.
Source: docs/protocol/credentials.md "JSON web tokens".
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from typing import Final

_ALPHABET: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


def spare_bits(piece: str) -> str:
    """Another last letter that decodes to the same bytes; padding where there is none."""
    found = [piece[:-1] + letter for letter in _ALPHABET if letter != piece[-1]]
    pad = "=" * (-len(piece) % 4)
    same = [one for one in found if urlsafe_b64decode(one + pad) == urlsafe_b64decode(piece + pad)]
    return same[0] if same else piece + "="
