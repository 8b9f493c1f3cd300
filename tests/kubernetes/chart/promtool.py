"""promtool, which checks rules and metrics pages: the machine's own, or Debian's unpacked here.

`python -m tests.kubernetes.chart.promtool` unpacks it from Debian's package prometheus into the
user's cache folder, as `make test-kubernetes` does: no root, nothing installed, no server started.
`run` is for tests, which are left out without it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests import debian
from tests.cache import cache_folder, cached_path
from tests.requirements import Need, leave_out

KIND, PACKAGE = "promtool", "prometheus"


def find() -> str | None:
    """Where it is; None: nowhere."""
    program = cached_path(KIND, PACKAGE) / "usr" / "bin" / "promtool"
    return str(program) if os.access(program, os.X_OK) else shutil.which("promtool")


def run(*arguments: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run it; the test skips where it is missing."""
    program = find()
    if program is None:
        leave_out(Need.PROMTOOL, "python -m tests.kubernetes.chart.promtool unpacks it")
    return subprocess.run(
        [str(program), *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def main() -> int:
    """Unpack it, if there is none; gives 1, and says why, where it cannot be had."""
    if find() is not None:
        return 0
    if shutil.which("apt-get") is None:
        print("no promtool: there is no apt-get that could give it", file=sys.stderr)
        return 1
    try:
        cache_folder(KIND, PACKAGE, make=_unpack)
    except subprocess.CalledProcessError as error:
        print(f"no promtool: {error}", file=sys.stderr)
        return 1
    return 0


def _unpack(into: Path) -> None:
    debian.unpack(into, PACKAGE)
    # 100 MB of a server that nobody starts.
    (into / "usr" / "bin" / "prometheus").unlink(missing_ok=True)
    shutil.rmtree(into / "usr" / "share", ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
