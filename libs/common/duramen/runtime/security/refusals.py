"""What a port tells of those it refuses: a number for each reason, a line a second at most.

Whoever is refused learns next to nothing of why; who runs the port finds it here. So many lines as
calls would let anybody fill the log.

Called by `door`, `admin_door`, the admin port's listener and `admission.public_door`.
Source: docs/protocol/identity.md "The folder".
"""

from __future__ import annotations

import datetime as dt
import logging
from typing import Final

from prometheus_client import Counter

_LOG: Final = logging.getLogger(__name__)
_LOG_INTERVAL_S: Final = 1.0
_REFUSED: Final = Counter(
    "duramen_callers_refused", "Calls and connections that were refused for who called", ["why"]
)


class Refusals:
    """Those of one port.

    Args:
        counter: of its kind of port, by `why`.
    """

    def __init__(self, counter: Counter = _REFUSED) -> None:
        self._counter = counter
        self._told_s = 0.0
        self._untold_count = 0

    def tell(self, kind: str, why: str, now: dt.datetime) -> None:
        """Count one, and say why, unless another was said just now.

        Args:
            kind: one of a few words, for the counter.
        """
        self._counter.labels(kind).inc()
        if 0.0 <= now.timestamp() - self._told_s < _LOG_INTERVAL_S:
            self._untold_count += 1
            return
        _LOG.warning("a call is refused: %s (%d others since)", why, self._untold_count)
        self._told_s, self._untold_count = now.timestamp(), 0
