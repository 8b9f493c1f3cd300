"""Services that come to their steady state in minutes, where real ones take an hour or longer.

A deleted log can be had back for an hour, bookies drop what is dead a minute after they were sure
of it and compact once an hour, and the caches of a read proxy take as long to fill. In a soak of an
hour all of that would look like a leak. Run as a script in place of `duramen_ROLE.main`, with the
role and then the same arguments: nothing else differs. It imports nothing of the tests. `quick`
makes the command.

Used by `cluster`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from unittest import mock

from duramen.units import MIB, SECOND

WINDOW_S = 20
"""For so long a deleted log can be had back."""

_WINDOW_US = WINDOW_S * SECOND
_ROUND_US = 3 * SECOND
_COMPACTION_US = 30 * SECOND
_CACHE_BYTES = 16 * MIB
"""Of entries of bookies, and of those of the archive: full after a generation of logs."""


def quick(command: list[str]) -> list[str]:
    """The same process, quick; others as they are."""
    module = command.index("-m") if "-m" in command else None
    if module is None:
        return command
    role = command[module + 1].removeprefix("duramen_").removesuffix(".main")
    if role not in _RUNS:
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
    with (
        mock.patch.object(rounds, "Deletion", deletion),
        # Nothing but compaction rests for an hour there.
        mock.patch.object(rounds, "HOUR", _COMPACTION_US),
    ):
        return main()


def _run_readproxy() -> int:
    from duramen.runtime.reading.cold_reads import open_cold_reads
    from duramen_readproxy import main, service

    proxy = partial(service.ReadProxy, cache_bytes=_CACHE_BYTES)
    cold = partial(open_cold_reads, cache_bytes=_CACHE_BYTES)
    with (
        mock.patch.object(main, "ReadProxy", proxy),
        mock.patch.object(service, "open_cold_reads", cold),
    ):
        return main.main()


_RUNS: Mapping[str, Callable[[], int | None]] = {
    "sequencer": _run_sequencer,
    "bookie": _run_bookie,
    "readproxy": _run_readproxy,
}


if __name__ == "__main__":
    sys.exit(_RUNS[sys.argv.pop(1)]())
