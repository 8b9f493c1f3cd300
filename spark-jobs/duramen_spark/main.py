"""The `duramen-spark` command: jobs over the archive, for spark-submit and for a laptop.

What goes wrong becomes an exit code and one sentence on stderr, as for `duramen` itself.

Called by the console script `duramen-spark`, by spark-submit (this file), and by `duramen archive`.
Source: 04-platform "Spark"; docs/archive.md.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from duramen import __version__
from duramen.cli.command import ExitCode, UsageError, say, silence_stdout
from duramen.cli.shell.advice import advise
from duramen.cluster.cluster_file import ClusterFileError
from duramen.errors import DuramenError
from duramen_spark.commands.archive import archive
from duramen_spark.commands.compact import compact
from duramen_spark.commands.export import export
from duramen_spark.commands.restore import restore
from duramen_spark.commands.retention import retention
from duramen_spark.commands.verify import verify

app = App(
    name="duramen-spark",
    help="Jobs over closed segments and the archive that they go to.",
    version=__version__,
    result_action="return_value",
    help_format="markdown",
)
for _command in (archive, verify, compact, restore, export, retention):
    app.command(_command)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one job; gives its exit code."""
    tokens = list(sys.argv[1:] if argv is None else argv)
    try:
        code = app(tokens, exit_on_error=False, print_error=True)
    except CycloptsError:
        return ExitCode.USAGE
    except UsageError as error:
        say(f"duramen-spark: {error}")
        return ExitCode.USAGE
    except BrokenPipeError:
        silence_stdout()
        return ExitCode.OK
    except (ClusterFileError, DuramenError, OSError) as error:
        say(f"duramen-spark: {error}")
        advice = advise(error)
        if advice is not None:
            say(f"next: {advice}")
        return ExitCode.FAILED
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    return code if isinstance(code, int) else ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
