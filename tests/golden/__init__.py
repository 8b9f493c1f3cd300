"""Golden files: the bytes of every wire, disk and metadata format, one file a format and version.

Newer code must read every older version. `DURAMEN_WRITE_GOLDEN=1` writes the present version's
files anew: for new formats only, since a changed one needs a new version number instead.
Called by the tests of the codecs. Source: docs/protocol/metadata.md, docs/protocol/wire.md
"Versions".
"""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parent


def read_golden(name: str, present: bytes | None) -> bytes:
    """The committed bytes of a format.

    Args:
        present: what today's code spells for the same value; None: it spells a newer version.
    """
    path = FOLDER / name
    if present is None:
        return path.read_bytes()
    if os.environ.get("DURAMEN_WRITE_GOLDEN") == "1":
        path.write_bytes(present)
    golden = path.read_bytes()
    assert present == golden, f"{name}: the format changed; give it a new version"
    return golden
