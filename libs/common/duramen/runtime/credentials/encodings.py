"""Base64url and JSON as tokens and key sets have them, each with one reading and no other.

A text that decodes and does not encode back to itself is refused, and so is a JSON object in which
a member stands twice: two programs would read two things in it. Numbers are whole or refused where
they are used; here they are bounded, so that none takes long to read.

Called by `web_tokens`, `key_sets`, `issuers`, and by the header of identities.
Source: docs/protocol/credentials.md "JSON web tokens".
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any, Final, NoReturn

BRACKET_COUNT_MAX: Final = 256
"""Opening ones, those in texts too: three for each of 64 keys, no nesting that a stack feels."""

NUMBER_DIGIT_COUNT_MAX: Final = 16
"""Every time and size has fewer, and every number of so many is exact in a double."""


class EncodingError(ValueError):
    """Bytes of another form than the one that is read."""


def encode_base64url(content: bytes) -> str:
    """Base64url without padding."""
    return urlsafe_b64encode(content).rstrip(b"=").decode()


def decode_base64url(text: str) -> bytes:
    """The bytes of a text that is their one encoding; of none only an empty text is.

    Raises:
        EncodingError: it is padded, has other letters, or bits that count for nothing.
    """
    try:
        content = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        raise EncodingError("no base64url") from None
    if encode_base64url(content) != text:
        raise EncodingError("no canonical base64url")
    return content


def read_object(content: bytes) -> dict[str, Any]:
    """A JSON object, UTF-8, whose size the caller has bounded.

    Raises:
        EncodingError: it is none, has too many brackets, a member twice, `NaN`, or a long number.
    """
    if content.count(b"[") + content.count(b"{") > BRACKET_COUNT_MAX:
        raise EncodingError(f"more than {BRACKET_COUNT_MAX} brackets")
    try:
        value = json.loads(
            content.decode(),
            object_pairs_hook=_take_pairs,
            parse_int=_read_whole,
            parse_float=_read_fraction,
            parse_constant=_refuse_constant,
        )
    except EncodingError:
        raise
    except (ValueError, RecursionError):
        raise EncodingError("no JSON") from None
    if not isinstance(value, dict):
        raise EncodingError("no JSON object")
    return value


def _take_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    taken = dict(pairs)
    if len(taken) < len(pairs):
        raise EncodingError("a member that stands twice")
    return taken


def _read_whole(text: str) -> int:
    if len(text.lstrip("-")) > NUMBER_DIGIT_COUNT_MAX:
        raise EncodingError("a number that is too long")
    return int(text)


def _read_fraction(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise EncodingError("a number that is too large")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise EncodingError(f"{name}, which is no JSON")
