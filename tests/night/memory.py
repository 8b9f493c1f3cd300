"""What one night leaves for the next: where its window of seeds ended, and what has failed.

A JSON file in the user's state folder (`XDG_STATE_HOME`, or else ~/.local/state), shared by all
checkouts: so nights of several branches do not play the same seeds. Failed seeds stay until a night
sees them pass. Called by `tests.night`.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

FIRST_SEED: Final = 100_000
"""Far above what the gate and people play by hand."""


@dataclass
class Memory:
    """One state of the file."""

    next_seed: int = FIRST_SEED
    failing_seeds: list[int] = field(default_factory=list)
    turns: dict[str, int] = field(default_factory=dict)
    """How many pieces of a list that is too long for one night were begun, for each such list."""

    def keep_failing(self, seeds: list[int]) -> None:
        """Remember seeds that failed, each once."""
        self.failing_seeds = sorted({*self.failing_seeds, *seeds})

    def turn(self, name: str, count: int) -> list[int]:
        """The indices of a list of `count`, beginning where the last night stopped."""
        begin = self.turns.get(name, 0) % count if count else 0
        return [(begin + n) % count for n in range(count)]

    def advance(self, name: str, count: int) -> None:
        """This many pieces of the list were carried out."""
        self.turns[name] = self.turns.get(name, 0) + count


def default_path() -> Path:
    """Where the file is unless somebody says otherwise."""
    home = os.environ.get("XDG_STATE_HOME")
    folder = Path(home) if home and Path(home).is_absolute() else Path.home() / ".local" / "state"
    return folder / "duramen-tests" / "night.json"


def read_memory(path: Path) -> Memory:
    """What the last night left; a first night finds nothing.

    Raises:
        SystemExit: the file is not one of ours; it is left as it is.
    """
    if not path.exists():
        return Memory()
    try:
        return Memory(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise SystemExit(f"{path}: {error}: mend it or move it away") from error


def write_memory(path: Path, memory: Memory) -> None:
    """Replace the file at once: a night that is killed leaves the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(asdict(memory), indent=1) + "\n", encoding="utf-8")
    part.replace(path)
