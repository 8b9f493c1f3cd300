"""A sequencer or a bookie whose upkeep takes seconds where a real one waits for minutes or an hour.

A deleted log can be had back for an hour, and bookies drop what is dead a minute after they were
sure of it. In a soak of an hour nothing would ever be given back, and everything would grow. Run as
a script in place of `duramen_sequencer.main` or `duramen_bookie.main`, with the role and then the
same arguments: nothing else differs. It imports nothing of the tests. `quick` makes the command.

Used by `cluster`.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from unittest import mock

from duramen.units import SECOND

WINDOW_S = 20
"""For so long a deleted log can be had back."""

_WINDOW_US = WINDOW_S * SECOND
_ROUND_US = 3 * SECOND
_ROLES = ("sequencer", "bookie")


def quick(command: list[str]) -> list[str]:
    """The same process, quick; others as they are."""
    module = command.index("-m") if "-m" in command else None
    if module is None:
        return command
    role = command[module + 1].removeprefix("duramen_").removesuffix(".main")
    if role not in _ROLES:
        return command
    return [*command[:module], str(Path(__file__)), role, *command[module + 2 :]]


def _run_sequencer() -> None:
    from duramen_sequencer import service
    from duramen_sequencer.life.operations import LifeOperations
    from duramen_sequencer.life.retention import RetentionRounds
    from duramen_sequencer.main import main

    operations = partial(LifeOperations, undelete_window_us=_WINDOW_US)
    rounds = partial(RetentionRounds, interval_us=_ROUND_US, undelete_window_us=_WINDOW_US)
    with (
        mock.patch.object(service, "LifeOperations", operations),
        mock.patch.object(service, "RetentionRounds", rounds),
    ):
        main()


def _run_bookie() -> int:
    from duramen_bookie.main import main
    from duramen_bookie.upkeep import rounds
    from duramen_bookie.upkeep.deletion import Deletion

    deletion = partial(Deletion, interval_us=_ROUND_US, delay_us=_ROUND_US)
    with mock.patch.object(rounds, "Deletion", deletion):
        return main()


if __name__ == "__main__":
    if sys.argv.pop(1) == "sequencer":
        _run_sequencer()
        sys.exit()
    sys.exit(_run_bookie())
