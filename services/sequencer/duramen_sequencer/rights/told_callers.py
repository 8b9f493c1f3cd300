"""In whose name a control operation is asked, as the write proxy tells it; and the log of it.

The proxy's identity vouches for the caller. A port that asks nobody who it is takes none of these
operations: what it wrote would be there when the cluster asks.

Called by `grant_operations` and `token_operations`.
Source: docs/protocol/wire.md "Sequencer: POST /s/control".
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from duramen.errors import DuramenError
from duramen.runtime.credentials.principals import Bearer, read_bearer

_REQUEST_ID_LENGTH_MAX: Final = 64

_LOG: Final = logging.getLogger(__name__)


class ToldCaller(NamedTuple):
    """Who asks, and the id of the request for the log; empty: the proxy told none."""

    bearer: Bearer
    request_id: str

    def note(self, what: str) -> None:
        """Tell the log what was done in its name."""
        _LOG.info("%s: by %s, request %s", what, self.bearer.principal, self.request_id or "?")


def read_caller(request: Mapping[str, Any]) -> ToldCaller:
    """The members `caller` and `request_id` of a request.

    Raises:
        DuramenError: `invalid_argument`, with the field.
    """
    request_id = request.get("request_id", "")
    is_text = isinstance(request_id, str) and request_id.isprintable()
    if not is_text or len(request_id) > _REQUEST_ID_LENGTH_MAX:
        detail = f"request_id: {_REQUEST_ID_LENGTH_MAX} printable characters at most are expected"
        raise DuramenError("invalid_argument", detail, field="request_id")
    return ToldCaller(read_bearer(request.get("caller")), request_id)
