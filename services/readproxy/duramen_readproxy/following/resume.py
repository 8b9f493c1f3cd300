"""Ids of server-sent events: where a client that was cut off goes on, and with what is left.

    seq:N | dlsn:eEnNsS   [;count=C] [;bytes=B] [;end]

The position is that of the next record. What is left of the bounds of the first request comes with
it, so that a stream that broke ten times gives as many records as one that never did. `end`: there
is nothing to go on for; who comes back with it gets a 204, which tells browsers to stop trying.

Written by `stream_forms`, read by `parameters` from `Last-Event-ID`.
Source: docs/protocol/read-answers.md.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from duramen.errors import DuramenError
from duramen.texts import Position, PositionKind, parse_position

RESUME_HEADER: Final = "Last-Event-ID"
_KINDS: Final = (PositionKind.SEQ, PositionKind.DLSN)


class ResumeId(NamedTuple):
    """See the module; None: no bound."""

    position: str
    record_count: int | None
    size_bytes: int | None
    is_end: bool = False

    def __str__(self) -> str:
        parts = [self.position]
        if self.record_count is not None:
            parts.append(f"count={self.record_count}")
        if self.size_bytes is not None:
            parts.append(f"bytes={self.size_bytes}")
        if self.is_end:
            parts.append("end")
        return ";".join(parts)

    def parse_position(self) -> Position:
        """The position, as of `from`."""
        return parse_position(self.position)


def parse_resume_id(text: str) -> ResumeId:
    """Read an id.

    Raises:
        DuramenError: `invalid_argument`, field `Last-Event-ID`: nobody got this from here.
    """
    position, *rest = text.split(";")
    left: dict[str, int] = {}
    is_end = rest[-1:] == ["end"]
    try:
        if parse_position(position).kind not in _KINDS:
            raise ValueError
        for part in rest[: len(rest) - is_end]:
            name, _, number = part.partition("=")
            if name not in ("count", "bytes") or name in left or not number.isdecimal():
                raise ValueError
            left[name] = int(number[:19])
    except (ValueError, DuramenError):
        raise DuramenError(
            "invalid_argument", f"{text[:100]!r} is no id of an event", field=RESUME_HEADER
        ) from None
    return ResumeId(position, left.get("count"), left.get("bytes"), is_end)
