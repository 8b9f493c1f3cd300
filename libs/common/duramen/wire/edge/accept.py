"""What `Accept` of a request means: which of the media types that are served is wanted, or none.

Of the ranges that match a type the most specific one counts; its q-value says how much the type is
wanted, 0 not at all. Among equals it is the one that the client named first, and then the one that
is served by default. Pure. Source: RFC 9110, 12.5.1; docs/protocol/rest.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

_CHARACTERS_MAX: Final = 1_000


class _Range(NamedTuple):
    text: str
    quality: float
    place: int


def choose_media(accept: str, served: Sequence[str]) -> str | None:
    """The type of an answer; None: whatever is served is not wanted.

    Args:
        accept: the value of all `Accept` headers, with commas; empty: anything is welcome.
        served: media types without parameters, the default first.
    """
    ranges = _parse(accept)
    if not ranges:
        return served[0]
    wanted = [(media, found) for media in served if (found := _match(media, ranges)).quality > 0]
    if not wanted:
        return None
    return min(wanted, key=lambda pair: (-pair[1].quality, pair[1].place))[0]


def _parse(accept: str) -> list[_Range]:
    found = []
    for index, part in enumerate(accept[:_CHARACTERS_MAX].lower().split(",")):
        text, *parameters = (piece.strip() for piece in part.split(";"))
        if text:
            found.append(_Range(text, _read_quality(parameters), index))
    return found


def _read_quality(parameters: Sequence[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return min(max(float(value), 0.0), 1.0)
            except ValueError:
                return 1.0
    return 1.0


_NOTHING: Final = _Range("", 0.0, 0)


def _match(media: str, ranges: Sequence[_Range]) -> _Range:
    """The most specific range that the type is in."""
    for text in (media, f"{media.partition('/')[0]}/*", "*/*"):
        for one in ranges:
            if one.text == text:
                return one
    return _NOTHING
