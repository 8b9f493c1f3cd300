"""How every command line of ours ends: what goes wrong becomes an exit code and one sentence.

A failure is told on stderr, with what to do next; never a traceback for what others sent or
refused. The codes stand in `cli.command.ExitCode`.

Called by `main` of `duramen` and of `duramen-spark`. Source: docs/cli.md.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

from cyclopts import App, CycloptsError

from duramen.cli.command import ExitCode, UsageError, say, silence_stdout
from duramen.cli.context.kept_contexts import ContextError
from duramen.cli.shell.advice import CommandFacts, advise
from duramen.cluster.cluster_file import ClusterFileError
from duramen.errors import DuramenError

_LAST_STREAM: Final = 2

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
    of_failures: Kinds = (ClusterFileError, ContextError, DuramenError, OSError, *failures)
    tokens = list(sys.argv[1:] if argv is None else argv)
    name = app.name[0]
    open_closed_streams()
    try:
        code = app(tokens, exit_on_error=False, print_error=True)
        sys.stdout.flush()  # here, where it is known what a broken pipe means
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
        advice = advise(error, find_facts(app, tokens))
        if advice is not None:
            say(f"next: {advice}")
        return ExitCode.FAILED
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    return code if isinstance(code, int) else ExitCode.OK


def open_closed_streams() -> None:
    """Let what goes to a stream that the caller has closed (`>&-`) go nowhere.

    Its number would be given to the next connection, and be written to. Standard input stays None,
    for a command that wants to read it (`cli.command.check_standard_input`).
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _LAST_STREAM:
        pass
    os.close(descriptor)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))


def find_facts(app: App, tokens: Sequence[str]) -> CommandFacts:
    """The flags of the command that a line names."""
    _, apps, _ = app.parse_commands(list(tokens))
    arguments = apps[-1].assemble_argument_collection(parse_docstring=False)
    return CommandFacts.of(
        {
            name: str(argument.parameter.help or "")
            for argument in arguments
            for name in argument.names
        }
    )
