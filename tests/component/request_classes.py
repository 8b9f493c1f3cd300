"""Names of the classes of requests that a bookie admits, two callers, and limits that are small.

Used by `test_admission`, `test_data_plane` and `test_bookie_edges`. Source: docs/bookie.md.
"""

from __future__ import annotations

from duramen.wire.bookie_calls import ServiceClass
from duramen_bookie.admission import (
    ClassLimits,
)

APPEND, TAIL, CATCH_UP = ServiceClass.APPEND, ServiceClass.TAIL_READ, ServiceClass.CATCH_UP_READ
RECOVERY, REPAIR = ServiceClass.RECOVERY, ServiceClass.REPAIR
ALICE, BOB = "10.0.0.1:4000", "10.0.0.2:4000"
SMALL = {
    APPEND: ClassLimits(4, 1_000, 0, 0, 100),
    TAIL: ClassLimits(4, 0, 1_000, 1, 50),
    CATCH_UP: ClassLimits(6, 0, 1_000, 2, 250),
    RECOVERY: ClassLimits(4, 1_000, 1_000, 1, 100),
    REPAIR: ClassLimits(4, 1_000, 1_000, 1, 1_000),
}
