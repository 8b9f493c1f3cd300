"""Lines of API tokens: a token and those that it was made with, which count only together.

A line is four tokens long at most. One whose beginning has gone is broken, and stays so, as ids are
never used again.

Called by `token_table` and `issuing`.
Source: docs/protocol/credentials.md "Who makes one, and for how long".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from duramen.wire.nodes.access_tokens import AccessToken

DEPTH_MAX: Final = 4
"""Tokens of one line, each made with the one before."""


def find_line(token: AccessToken, tokens: Mapping[str, AccessToken]) -> tuple[AccessToken, ...]:
    """The token, its maker, and so on, as far as they are there: four at most.

    Args:
        tokens: by their ids.
    """
    line = [token]
    while len(line) < DEPTH_MAX:
        parent = tokens.get(line[-1].parent_id or "")
        if parent is None:
            break
        line.append(parent)
    return tuple(line)


def is_whole(line: Sequence[AccessToken]) -> bool:
    """Whether a line ends with a token that was made with none, so that its first one counts."""
    return line[-1].parent_id is None
