"""`duramen-spark retention`: what of the archive may go, and making it go.

Called by `main`. Source: docs/archive.md.
"""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from duramen_spark.commands.framing import (
    JsonOption,
    Selectors,
    parse_duration,
    run_connected,
    show,
)
from duramen_spark.connection import Connection
from duramen_spark.places import PlaceOptions, find_place
from duramen_spark.retention.driver import RetentionReport, RetentionRun
from duramen_spark.retention.plan import RetentionPolicy


def retention(
    *selectors: Selectors,
    place: PlaceOptions | None = None,
    truncated: Annotated[
        bool, Parameter(negative="", help="copies of segments that were truncated and given up")
    ] = False,
    deleted: Annotated[
        bool, Parameter(negative="", help="copies of logs that were deleted for good")
    ] = False,
    older_than: Annotated[str, Parameter(help="these only when archived so long ago")] = "0s",
    delay: Annotated[
        str, Parameter(help="what compaction replaced, or killed runs left, stays so long")
    ] = "24h",
    remove: Annotated[
        bool, Parameter(negative="", help="remove it; without, only tell what would go")
    ] = False,
    json: JsonOption = False,
) -> int:
    """Tell what of the archive may go, and remove it with --remove.

    Never what a segment's node names as its cold copy while its log still has the segment: such
    records may be nowhere else. Without --truncated and --deleted only what compaction replaced.

    Exit codes: 0 told, or removed; 1 something could not be removed; 2 usage.
    """
    policy = RetentionPolicy(
        drops_truncated=truncated,
        drops_deleted=deleted,
        older_than_us=parse_duration(older_than),
        delay_us=parse_duration(delay),
    )

    async def use(connection: Connection) -> RetentionReport:
        return await RetentionRun(connection, policy).run(selectors, removes=remove)

    return show(run_connected(find_place(place), use), as_json=json)
