"""The token that plain HTTP requests of a load show, as its file has it at that moment.

Called by `load` and `waiters`; clients of the product have `token_file`.
Source: docs/protocol/credentials.md "How clients show it".
"""

from __future__ import annotations

from pathlib import Path


def show_token(file: str | None) -> dict[str, str]:
    """The header; none where nobody asks."""
    if file is None:
        return {}
    return {"authorization": f"Bearer {Path(file).read_text(encoding='ascii')}"}
