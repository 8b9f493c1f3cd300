"""Names of the files in a journal's directory, and what a listing of it says.

`000012.dj` is a journal file, `000012.gen` the sidecar that tells what stood in a recycled file's
blocks before, `spare-000005.dj` a retired file whose blocks wait for their next use. The number in
a name is a file id; ids are never used again. Anything else in the directory is left alone.

Not here: what is in the files. Called by the other modules of the journal and by the offline tools.
Source: docs/protocol/journal.md "Files".
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from duramen_bookie.file_system import FileSystem

_ID: Final = r"(\d{6,18})"
_FILE: Final = re.compile(rf"{_ID}\.dj")
_GENERATION: Final = re.compile(rf"{_ID}\.gen")
_SPARE: Final = re.compile(rf"spare-{_ID}\.dj")


class Listing(NamedTuple):
    """File ids by what stands under them, each ascending."""

    file_ids: list[int]
    generation_ids: list[int]
    spare_ids: list[int]

    @property
    def id_max(self) -> int:
        """The largest id that is known to have been used; 0 for none."""
        return max([0, *self.file_ids, *self.generation_ids, *self.spare_ids])


def list_journal(fs: FileSystem, directory: str) -> Listing:
    """Read a journal's directory.

    Raises:
        OSError: it cannot be read.
    """
    names = fs.list_names(directory)
    return Listing(*[_find_ids(pattern, names) for pattern in (_FILE, _GENERATION, _SPARE)])


def file_name(file_id: int) -> str:
    """Name of a journal file."""
    return f"{file_id:06d}.dj"


def generation_name(file_id: int) -> str:
    """Name of a recycled file's sidecar."""
    return f"{file_id:06d}.gen"


def spare_name(file_id: int) -> str:
    """Name of a retired file that is kept for its blocks."""
    return f"spare-{file_id:06d}.dj"


def _find_ids(pattern: re.Pattern[str], names: list[str]) -> list[int]:
    matches = [pattern.fullmatch(name) for name in names]
    return sorted(int(match[1]) for match in matches if match)
