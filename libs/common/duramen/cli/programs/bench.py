"""`duramen bench journal` and `duramen bench bookie`: hands over to the bookie's own program.

What is measured is the bookie's code, which this library does not know: the process becomes
`duramen-bookie bench …` with the same arguments, so flags, output and exit code are that one's.
The program is found as the services of `duramen run` are: in the interpreter that runs this.

Called by `cli.main`. Source: docs/benchmarks.md "A bookie alone", docs/cli.md.
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

bench_app = App(name="bench", help="Measure the journal, or a bookie, on this machine.")


@bench_app.command(help_flags=())
def journal(*arguments: Arguments) -> NoReturn:
    """Measure the journal against a bare loop of pwritev and fdatasync; replay; memory.

    Exit codes: 0 measured, also where a target was missed; 1 void; 2 usage.
    """
    _become("journal", arguments)


@bench_app.command(help_flags=())
def bookie(*arguments: Arguments) -> NoReturn:
    """Measure a bookie over HTTP/2 against the same transport without storage.

    Exit codes: 0 measured, also where a target was missed; 1 void; 2 usage.
    """
    _become("bookie", arguments)


def _become(kind: str, arguments: tuple[str, ...]) -> NoReturn:
    sys.stdout.flush()
    command = [*command_line("duramen-bookie"), "bench", kind, *arguments]
    os.execv(command[0], command)
