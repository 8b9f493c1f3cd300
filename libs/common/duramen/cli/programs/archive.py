"""`duramen archive run`: hands over to the archive job, here by default against a `duramen run`.

The job is a program of its own, `duramen-spark archive`, which this library does not know: the
process becomes that one with the same arguments, so flags, output and exit code are its own. It
finds ZooKeeper and the cold store in the cluster.json of a `duramen run`.

Called by `cli.main`. Source: 04-platform "Spark"; docs/archive.md.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Annotated, Final, NoReturn

from cyclopts import App, Parameter

from duramen.cli.command import UsageError

_MODULE: Final = "duramen_spark"

Arguments = Annotated[
    str, Parameter(allow_leading_hyphen=True, help="--help tells which; all are handed over")
]

archive_app = App(name="archive", help="Copy closed segments to the cold store, and check them.")


@archive_app.command(help_flags=())
def run(*arguments: Arguments) -> NoReturn:
    """Archive closed segments of logs with tiering, or of the logs that are named.

    Exit codes: 0 all that was due is archived and whole; 1 something is not; 2 usage.
    """
    become("archive", arguments)


def become(job: str, arguments: tuple[str, ...]) -> NoReturn:
    """Go on as one of the jobs of `duramen-spark`.

    Raises:
        UsageError: they are not installed.
    """
    if importlib.util.find_spec(_MODULE) is None:
        raise UsageError("the jobs are not installed here: pip install 'duramen[spark]'")
    sys.stdout.flush()
    # -P: what happens to lie in the current folder is not imported.
    command = [sys.executable, "-P", "-m", f"{_MODULE}.main", job, *arguments]
    os.execv(sys.executable, command)
