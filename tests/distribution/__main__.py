"""`python -m tests.distribution`, as `make dist`: what is shipped, into ./dist.

With `--out FOLDER` elsewhere. Says what it made and whether that is a commit's; ends with 1, and
makes nothing, where a licence is not allowed or cannot be told.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.distribution.lock import ROOT
from tests.distribution.make import LicenceError, make_all
from tests.distribution.sources import changed_paths


def main() -> int:
    """Make it and say so; the exit status."""
    parser = argparse.ArgumentParser(prog="make dist")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="default: ./dist")
    out = parser.parse_args().out
    try:
        made = make_all(out)
    except LicenceError as error:
        sys.stderr.write(f"nothing was made: a licence is not in order\n{error}\n")
        return 1
    for path in made:
        print(f"{path.stat().st_size:>10,}  {path}")
    changed = changed_paths()
    if changed:
        sys.stderr.write(f"not of a commit: {len(changed)} files are changed\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
