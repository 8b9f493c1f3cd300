"""The name of one life of a process: not its identity, and no secret.

A bookie shares its room out by it, and a standing stream is asked for under it, so that none begins
with another process that took a port over. Source: docs/protocol/standing-streams.md "The port".
"""

from __future__ import annotations

import re
import secrets
from typing import Final

_NAME: Final = re.compile(r"[0-9a-f]{32}")


STREAM_URL: Final = "stream_url"
"""Of a registered node: where this life of its process serves standing streams."""


def make_process_name() -> str:
    """A new one, 32 hexadecimal digits."""
    return secrets.token_hex(16)


def is_process_name(text: str) -> bool:
    """Whether it is one."""
    return _NAME.fullmatch(text) is not None
