"""The end of a task, or a future, of which perhaps nobody asks any more how it ended.

Work that several wait for is shielded from each of them, and goes on when the last one has gone. If
it fails then, the event loop complains of an exception that was never retrieved, long after, and of
nothing that anybody could mend: whoever wanted the result was told, or did not want it any more.

Not for tasks that belong to nobody: their failure is a fault of ours, and the loop's to tell.
Called by whoever shares work or gives it up.
"""

from __future__ import annotations

import asyncio
from typing import Any


def take_failure(ended: asyncio.Future[Any]) -> None:
    """Note that it was seen how something done has ended; a callback, or called at the end."""
    if not ended.cancelled():
        ended.exception()
