"""A bookie that drops dead ledgers at once, where a real one waits for minutes.

Run as a script in place of `duramen_bookie.main`, with the same arguments: nothing else differs, so
that a test can kill it while it deletes. It imports nothing of the tests, which need not be on the
path of a script. `hasty` makes the command line.
Used by the bookie's process tests.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from unittest import mock

from duramen.units import MS
from duramen_bookie.main import main
from duramen_bookie.upkeep import rounds
from duramen_bookie.upkeep.deletion import Deletion


def hasty(command: list[str]) -> list[str]:
    """The same bookie, hasty."""
    module = command.index("-m")
    assert command[module + 1] == "duramen_bookie.main", command
    return [*command[:module], str(Path(__file__)), *command[module + 2 :]]


if __name__ == "__main__":
    deletion = partial(Deletion, interval_us=20 * MS, delay_us=20 * MS)
    with mock.patch.object(rounds, "Deletion", deletion):
        sys.exit(main())
