"""The files that style tests read: those that git knows or would take.

Used by every test of this folder.
"""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

from tests.style.tidiness import Module

ROOT = Path(__file__).resolve().parents[2]
NOT_OURS = (".git", ".venv", ".duramen", "__pycache__", "build", "dist")


@cache
def list_paths() -> list[str]:
    """Every file of the repository, relative to its root."""
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        names = {name for name in listed.stdout.split("\0") if name}
        return sorted(name for name in names if (ROOT / name).is_file())
    found = []
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [f for f in folders if f not in NOT_OURS and not f.endswith("_cache")]
        found += [(Path(folder) / file).relative_to(ROOT).as_posix() for file in files]
    return sorted(found)


@cache
def read_modules() -> list[Module]:
    """Every Python file of the repository."""
    paths = [path for path in list_paths() if path.endswith(".py")]
    return [Module(path, (ROOT / path).read_text(encoding="utf-8")) for path in paths]


def assert_tidy(faults: list[str]) -> None:
    assert not faults, "\n".join(["", *faults])
