"""A sequencer that purges deleted logs after seconds, where a real one waits for an hour, and moves
released segments to metadata logs at once, where a real one waits for two days.

Run as a script in place of `duramen_sequencer.main`, with the same arguments: nothing else differs.
It imports nothing of the tests, which need not be on the path of a script. `hasty` makes the
command line. Used by `test_log_life` and `test_metadata_logs`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from unittest import mock

from duramen.units import MS, SECOND
from duramen_sequencer import service
from duramen_sequencer.life.keeping import Keeping
from duramen_sequencer.life.operations import LifeOperations
from duramen_sequencer.life.retention import RetentionRounds
from duramen_sequencer.main import main

_WINDOW_US = 15 * SECOND


def hasty(command: list[str]) -> list[str]:
    """The same sequencer, hasty."""
    module = command.index("-m")
    assert command[module + 1] == "duramen_sequencer.main", command
    return [*command[:module], str(Path(__file__)), *command[module + 2 :]]


def plain(command: list[str]) -> list[str]:
    """The command line of a hasty one, made that of the real one again; any other is as it was."""
    if str(Path(__file__)) not in command:
        return command
    script = command.index(str(Path(__file__)))
    return [*command[:script], "-m", "duramen_sequencer.main", *command[script + 1 :]]


if __name__ == "__main__":
    operations = partial(LifeOperations, undelete_window_us=_WINDOW_US)
    rounds = partial(RetentionRounds, interval_us=100 * MS, undelete_window_us=_WINDOW_US)
    with (
        mock.patch.object(service, "LifeOperations", operations),
        mock.patch.object(service, "RetentionRounds", rounds),
        mock.patch.object(service, "Keeping", partial(Keeping, rest_us=0)),
    ):
        main()
