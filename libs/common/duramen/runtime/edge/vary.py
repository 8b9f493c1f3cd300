"""One `Vary` for each answer, whoever adds to it: some caches look at the first one alone.

Called by what stands around the routes of a public port. Source: RFC 9110, 12.5.5.
"""

from __future__ import annotations

from collections.abc import Iterable

Headers = list[tuple[bytes, bytes]]


def add_vary(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> Headers:
    """The headers with a single `Vary` that has this name and all that were there, each once."""
    kept, found = [], []
    for header, value in headers:
        if header.lower() == b"vary":
            found += [part.strip() for part in value.split(b",")]
        else:
            kept.append((header, value))
    names = {one.lower(): one for one in (name, *reversed(found)) if one}
    ordered = [one for one in dict.fromkeys((*map(bytes.lower, found), name.lower())) if one]
    return [*kept, (b"vary", b", ".join(names[one] for one in ordered))]
