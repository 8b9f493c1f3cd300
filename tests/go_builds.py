"""How tests have Go build the programs that they start: all alike.

What two programs have in common is then compiled once, since Go keeps it by its flags. Descriptions
for debuggers are left out, which nobody looks at here and which are an eighth of the work; traces
of a panic have their lines all the same. Used by what fills the folders of `tests.cache`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ENVIRONMENT: Final[Mapping[str, str]] = {
    "CGO_ENABLED": "0",
    "GOFLAGS": "-mod=readonly -trimpath -gcflags=all=-dwarf=false",
}
"""Beside what the machine has."""
