"""`duramen archive …`: hands over to the archive's jobs, here by default against a `duramen run`.

The jobs are a program of their own, `duramen-spark`, which this library does not know: the process
becomes that one with the same arguments, so flags, output and exit code are its own. It finds
ZooKeeper and the cold store in the cluster.json of a `duramen run`.

Called by `cli.main`. Source: docs/archive.md.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

from cyclopts import App, Parameter

from duramen.cluster.programs import command_line

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


@archive_app.command(help_flags=())
def verify(*arguments: Arguments) -> NoReturn:
    """Read cold copies, whole, and compare them with their manifests, and with what bookies hold.

    Exit codes: 0 every copy that was looked at is whole; 1 one is not, or cannot be read; 2 usage.
    """
    become("verify", arguments)


@archive_app.command(help_flags=())
def compact(*arguments: Arguments) -> NoReturn:
    """Join small files of consecutive archived segments of a log.

    Exit codes: 0 what was small is joined; 1 something could not be; 2 usage.
    """
    become("compact", arguments)


@archive_app.command(help_flags=())
def restore(*arguments: Arguments) -> NoReturn:
    """Write an archived log to bookies, as a new log with the same records in the same places.

    Exit codes: 0 restored, now or by an earlier run; 1 it cannot be; 2 usage.
    """
    become("restore", arguments)


@archive_app.command(help_flags=())
def export(*arguments: Arguments) -> NoReturn:
    """Append what is archived to a Delta or an Iceberg table, each segment once.

    Exit codes: 0 everything archived is in the table; 1 something is not; 2 usage.
    """
    become("export", arguments)


@archive_app.command(help_flags=())
def retention(*arguments: Arguments) -> NoReturn:
    """Tell what of the archive may go, and remove it if told to.

    Exit codes: 0 told, or removed; 1 something could not be removed; 2 usage.
    """
    become("retention", arguments)


def become(job: str, arguments: tuple[str, ...]) -> NoReturn:
    """Go on as one of the jobs of `duramen-spark`, which says so where its extra is missing."""
    sys.stdout.flush()
    command = [*command_line("duramen-spark"), job, *arguments]
    os.execv(command[0], command)
