"""Durations and sizes as people write them, and as the code counts them.

Configuration says "250ms" and "64MiB"; the code counts integer microseconds (`_us`) and bytes
(`_bytes`). Texts are parsed once, at the border. Zero is a number; None means no limit.

Called by configuration, REST and the command line. Source: docs/protocol/rest.md "Texts",
CONTRIBUTING.md "Style on a page".
"""

from __future__ import annotations

import re
from typing import Final

MS: Final = 1_000
SECOND: Final = 1_000_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30
TIB: Final = 1 << 40

_DURATIONS: Final = {"d": DAY, "h": HOUR, "m": MINUTE, "s": SECOND, "ms": MS, "us": 1}
_SIZES: Final = {"TiB": TIB, "GiB": GIB, "MiB": MIB, "KiB": KIB, "B": 1}
DURATION_PATTERN: Final = "^([0-9]{1,15}(ms|us|d|h|m|s))+$"
SIZE_PATTERN: Final = "^[0-9]{1,15} ?(TiB|GiB|MiB|KiB|B)?$"
"""What the two functions below read, for the documents."""

_PART_MAX: Final = 10**15 - 1
_DURATION_PART = re.compile(r"([0-9]{1,15})(ms|us|d|h|m|s)")
_SIZE = re.compile(r"([0-9]{1,15}) ?(TiB|GiB|MiB|KiB|B)?")


def parse_duration_us(text: str) -> int:
    """Microseconds of "250ms", "1h30m" or "0s".

    Raises:
        ValueError: the text is no duration.
    """
    parts = _DURATION_PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f'{text!r} is no duration: expected such as "250ms" or "1h30m"')
    return sum(int(number) * _DURATIONS[unit] for number, unit in parts)


def parse_size_bytes(text: str) -> int:
    """Bytes of "64MiB", "512KiB", "100B" or "100".

    Raises:
        ValueError: the text is no size.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f'{text!r} is no size: expected such as "64MiB"')
    return int(match[1]) * _SIZES[match[2] or "B"]


def format_duration(duration_us: int) -> str:
    """The shortest exact text of a duration, such as "1h30m".

    What several parts have added up to may need several parts of days again.
    """
    parts = []
    rest = duration_us
    for unit, size in _DURATIONS.items():
        count, rest = divmod(rest, size)
        while count:
            part = min(count, _PART_MAX)
            parts.append(f"{part}{unit}")
            count -= part
    return "".join(parts) or "0s"


def format_size(size_bytes: int) -> str:
    """The text of a size in its largest unit that divides it, such as "64MiB"."""
    for unit, size in _SIZES.items():
        if size_bytes and size_bytes % size == 0:
            return f"{size_bytes // size}{unit}"
    return "0B"


_ONE: Final = re.compile(r"(?<![\w.,])1 ([a-z]+s)\b(?!/)")
_IRREGULAR: Final = {"entries": "entry", "copies": "copy", "batches": "batch"}


def agree(sentence: str) -> str:
    """A sentence of ours with counts, in the plural, whose ones are singular: `1 record in 3 logs`.

    Names of others do not belong in it, unless they have no spaces.
    """
    return _ONE.sub(lambda found: f"1 {_IRREGULAR.get(found[1], found[1][:-1])}", sentence)
