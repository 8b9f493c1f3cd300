"""What a structure costs in memory, counted by `tracemalloc`: not dependent on the machine.

Called by tests of what is kept per ledger and per entry.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable


def allocated_bytes(build: Callable[[], object]) -> int:
    """Memory that what is built holds."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        built = build()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
        assert built is not None
        return after - before
    finally:
        tracemalloc.stop()
