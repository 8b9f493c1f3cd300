"""What a run leaves behind, looked through once, when it is over.

Called by `run` and whoever plays one in a process that goes on. Documented in docs/testing.md.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collected_afterwards() -> Iterator[None]:
    """No garbage collection but one, at the end: a run makes 10 to 20 MiB, nearly none of it in
    cycles, and to look through all of that again and again is a fifth of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        # What finalizers let go of (coroutines have them) is found in a later pass, and the last
        # run, which a gauge of the process held, after this one.
        while gc.collect():
            pass
        if was_enabled:
            gc.enable()
