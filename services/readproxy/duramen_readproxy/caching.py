"""Which answers any HTTP cache may keep: ranges that can never change, and no others.

An answer can never change when its request names its beginning by number or place, so that it
means the same at any time; when it ended at a bound of the request and not at the tail; and when
every entry that it was made of lies in a closed segment, whose entries, numbers and losses are
settled for good. What makes it go away is truncation, retention or deletion, of which a cache is
not told: so nobody keeps it for longer than truncated records may be shown.

Pure. Called by `rest`. Source: docs/protocol/rest.md "Caches".
"""

from __future__ import annotations

from typing import Final

from fastapi import Response

from duramen.core.log_node import LogNode
from duramen.runtime.reading.positioning.positions import Start
from duramen.texts import PositionKind
from duramen.units import SECOND
from duramen_readproxy.parameters import ReadRequest

FRESH_US_MAX: Final = 3_600 * SECOND
"""How long caches keep an answer at most, whatever the log allows."""

_PLACES: Final = (PositionKind.SEQ, PositionKind.DLSN, PositionKind.LSN)
"""Positions that mean the same at any time; by txid or time an earlier record may be cut off."""


def encode_caching(
    asked: ReadRequest, start: Start, log: LogNode, next_seq_num: int
) -> dict[str, str]:
    """The headers of an answer that reached a bound of its request; none if it may change.

    The tag names the log, the range and the form: entries are immutable, so this is the content.

    Args:
        asked: before `until` was looked up.
        next_seq_num: of the answer: one behind its last record.
    """
    if not _is_settled(asked, start, log, next_seq_num):
        return {}
    form = asked.form.name.lower() + ("-base64" if asked.is_base64 else "")
    kept_s = min(log.config.retention.truncated, FRESH_US_MAX) // SECOND
    return {
        "ETag": f'"{log.log_id}-{start.seq_num}-{next_seq_num}-{form}"',
        "Cache-Control": f"public, max-age={kept_s}, immutable",
        "Vary": "Accept, Duramen-Format",
    }


def _is_settled(asked: ReadRequest, start: Start, log: LogNode, next_seq_num: int) -> bool:
    positions = [asked.position] if asked.until is None else [asked.position, asked.until]
    if start.is_moved or any(position.kind not in _PLACES for position in positions):
        return False
    # Every epoch up to the last clean one is closed, and its records are the totals' first.
    return start.seq_num < next_seq_num <= log.totals.record_count


def keep_private(answer: Response) -> None:
    """What was given to somebody who may read it is no shared cache's to give to others."""
    kept = answer.headers.get("cache-control")
    if kept is not None and kept.startswith("public"):
        answer.headers["cache-control"] = kept.replace("public", "private", 1)
        answer.headers["vary"] = f"{answer.headers['vary']}, Authorization, Duramen-Identity"


def omit_known(if_none_match: str | None, answer: Response) -> Response:
    """The answer, or 304 where the client has it already (RFC 9110, 13.1.2)."""
    tag = answer.headers.get("etag")
    if tag is None or if_none_match is None:
        return answer
    known = [one.strip().removeprefix("W/") for one in if_none_match.split(",")]
    if tag not in known and "*" not in known:
        return answer
    kept = {name: answer.headers[name] for name in ("etag", "cache-control", "vary")}
    return Response(status_code=304, headers=kept)
