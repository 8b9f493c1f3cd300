"""Says in the log which rights the operator lacks, until it lacks none.

Without it a missing right shows in the message of whichever step needs it first, perhaps weeks
later. Nothing waits for the check, and nothing is refused for it: what is granted is done. Started
by `running.py`.
"""

from __future__ import annotations

import asyncio
import logging

from duramen_operator.kube import ApiUnreachable, Refused
from duramen_operator.rights import RIGHTS
from duramen_operator.serving import metrics
from duramen_operator.typed.client import TypedClient
from duramen_operator.typed.reviews import MissingRight, find_missing_rights

_log = logging.getLogger(__name__)

_FORBIDDEN = 403
AGAIN_S = 60.0
"""Between two looks while something is missing: whoever grants it sees soon that it was that."""


class RightsCheck:
    """Asks what the operator may do in its namespace, and says what is missing."""

    def __init__(self, client: TypedClient, namespace: str, *, again_s: float = AGAIN_S) -> None:
        self._client = client
        self._namespace = namespace
        self._again_s = again_s
        self._said: tuple[MissingRight, ...] = ()

    async def run(self) -> None:
        """Look until nothing is missing. Ends at once where the API server does not let it ask."""
        try:
            is_over = await self._look()
            while not is_over:
                await asyncio.sleep(self._again_s)
                is_over = await self._look()
        except Exception:
            _log.exception("the operator's rights cannot be checked")  # a fault of ours

    async def _look(self) -> bool:
        """Whether there is nothing to look for any more."""
        try:
            missing = await find_missing_rights(self._client, self._namespace, RIGHTS)
        except (Refused, ApiUnreachable) as error:
            _log.warning("the operator's rights could not be checked: %s", error)
            return isinstance(error, Refused) and error.status == _FORBIDDEN
        metrics.MISSING_RIGHTS.set(sum(len(one.verbs) for one in missing))
        if missing != self._said:
            _log.warning("%s", format_missing(missing, self._namespace))
        self._said = missing
        return not missing


def format_missing(missing: tuple[MissingRight, ...], namespace: str) -> str:
    """One sentence for people."""
    if not missing:
        return f"the operator has every right in namespace {namespace} that it needs"
    what = "; ".join(map(str, missing))
    return f"the operator may not, in namespace {namespace}: {what}. The chart's Role grants it"
