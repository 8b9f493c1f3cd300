"""How every command line of ours ends: what goes wrong becomes an exit code and one sentence.

A failure is told on stderr, with what to do next; never a traceback for what others sent or
refused. The codes stand in `cli.command.ExitCode`.

Called by `main` of `duramen` and of `duramen-spark`. Source: 03-api "CLI".
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from duramen.cli.command import ExitCode, UsageError, say, silence_stdout
from duramen.cli.shell.advice import advise
from duramen.cluster.cluster_file import ClusterFileError
from duramen.errors import DuramenError

Kinds = tuple[type[Exception], ...]


def run_app(
    app: App, argv: Sequence[str] | None, *, usage_errors: Kinds = (), failures: Kinds = ()
) -> int:
    """Run one command of an application; gives its exit code.

    Args:
        argv: without the program's name; None: the process's own.
        usage_errors, failures: exceptions of this application's, beside those that all share.
    """
    of_usage: Kinds = (UsageError, *usage_errors)
    of_failures: Kinds = (ClusterFileError, DuramenError, OSError, *failures)
    tokens = list(sys.argv[1:] if argv is None else argv)
    name = app.name[0]
    try:
        code = app(tokens, exit_on_error=False, print_error=True)
    except CycloptsError:
        return ExitCode.USAGE
    except of_usage as error:
        say(f"{name}: {error}")
        return ExitCode.USAGE
    except BrokenPipeError:
        silence_stdout()  # `| head` has seen enough
        return ExitCode.OK
    except of_failures as error:
        say(f"{name}: {error}")
        advice = advise(error)
        if advice is not None:
            say(f"next: {advice}")
        return ExitCode.FAILED
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    return code if isinstance(code, int) else ExitCode.OK
