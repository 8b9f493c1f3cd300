"""The caller of a call, as the port that let it in has found it out.

It stands in the ASGI scope, where no client writes. Nothing is judged here.

Called by routes whose call judges itself. Source: docs/protocol/credentials.md "Who it is".
"""

from __future__ import annotations

from typing import Final

from fastapi import Request

from duramen.runtime.credentials.principals import Bearer

CALLER_KEY: Final = "duramen.caller"
"""In the scope of a call; not there where nobody is asked who it is."""


def caller_of(request: Request) -> Bearer | None:
    """Who calls; None: nobody is asked who it is (`--security none`)."""
    found: Bearer | None = request.scope.get(CALLER_KEY)
    return found
