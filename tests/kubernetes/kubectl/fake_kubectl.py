"""A kubectl that answers from a file: paths of the API to what lies there, or to an error.

Run as a program named `kubectl` by the commands under test; `plant` puts it on the PATH. It
understands `get --raw`, `config view`, `create token`, `patch` (of what `patched` names) and
`port-forward`, which it says it does.

The file is JSON: {"namespace", "answers": {path: value | text}, "errors": {path: text},
"forward": port | null, "token": text, "error": text}; each call is noted in `calls`. A path is
matched without its query, `error` is what every call says.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # it runs without site-packages
    import pytest


def plant(folder: Path, monkeypatch: pytest.MonkeyPatch, **world: Any) -> Path:
    """Put it first on the PATH; gives the file with the calls."""
    programs = folder / "programs"
    programs.mkdir()
    (folder / "world.json").write_text(json.dumps({"namespace": "shop", **world}))
    program = programs / "kubectl"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{__file__}" "{folder}" "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return folder / "calls"


def _answer(folder: Path, arguments: list[str]) -> int:
    world = json.loads((folder / "world.json").read_text())
    with (folder / "calls").open("a") as calls:
        calls.write(" ".join(arguments) + "\n")
    plain = [argument for argument in arguments if not argument.startswith("-")]
    if world.get("error"):
        sys.stderr.write(world["error"])
        return 1
    if plain[0] == "config":
        sys.stdout.write(world["namespace"])
        return 0
    if plain[0] == "port-forward":
        port = world["forward"]
        sys.stdout.write(f"Forwarding from 127.0.0.1:{port} -> 7301\n")
        sys.stdout.flush()
        signal.pause()
        return 0
    if plain[:2] == ["create", "token"]:
        sys.stdout.write(world["token"] + "\n")
        return 0
    if plain[0] == "patch" and plain[1] in world.get("patched", ()):
        return 0
    path = plain[-1].partition("?")[0]
    if path in world.get("answers", {}):
        value = world["answers"][path]
        sys.stdout.write(value if isinstance(value, str) else json.dumps(value))
        return 0
    said = world.get("errors", {}).get(path, "could not find the requested resource")
    sys.stderr.write(said if "Error" in said else f"Error from server (NotFound): {said}")
    return 1


if __name__ == "__main__":
    sys.exit(_answer(Path(sys.argv[1]), sys.argv[2:]))
