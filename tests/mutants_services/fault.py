"""What a fault is, and the list of them as `faults/*.toml` hold it.

A file of the list is an area. It has a `[[file]]` for each module, with the test files that are to
notice what is wrong there, and below it the faults. A fault may name test files of its own.
Called by the runner (`__main__`) and by the test of the list; nothing here runs anything.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final, NamedTuple

LISTS: Final = Path(__file__).with_name("faults")
_FIELDS: Final = {"name", "old", "new", "suffers", "tests"}


class ListError(ValueError):
    """A list of faults that is not one; the text says where."""


class Fault(NamedTuple):
    """One line that is wrong."""

    name: str
    area: str
    path: str
    """Of the module, relative to the root of the tree."""
    old: str
    """What is there, exactly once."""
    new: str
    suffers: str
    """What a user would suffer from it."""
    tests: tuple[str, ...]
    """Test files that are to notice it, the cheapest first."""

    def apply(self, source: str) -> str:
        """The module with the fault in it.

        Raises:
            ListError: the old text does not stand there once.
        """
        count = source.count(self.old)
        if count != 1:
            raise ListError(f"{self.name}: its old text occurs {count} times in {self.path}")
        return source.replace(self.old, self.new)


def read_faults(folder: Path = LISTS) -> list[Fault]:
    """Every fault of a folder of lists, area by area.

    Raises:
        ListError: a list has something else in it, or a name occurs twice.
    """
    faults = [fault for path in sorted(folder.glob("*.toml")) for fault in _read_area(path)]
    names = [fault.name for fault in faults]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ListError(f"names that occur twice: {', '.join(twice)}")
    return faults


def _read_area(path: Path) -> list[Fault]:
    faults = []
    for module in tomllib.loads(path.read_text(encoding="utf-8"))["file"]:
        if module.keys() != {"path", "tests", "fault"}:
            raise ListError(f"{path.name}: a file has path, tests and faults: {sorted(module)}")
        for row in module["fault"]:
            if not {"name", "old", "new", "suffers"} <= row.keys() <= _FIELDS:
                raise ListError(f"{path.name}: a fault has other fields: {sorted(row)}")
            tests = tuple(row.get("tests", module["tests"]))
            faults.append(
                Fault(
                    row["name"], path.stem, module["path"], row["old"], row["new"],
                    row["suffers"], tests,
                )
            )  # fmt: skip
    return faults
