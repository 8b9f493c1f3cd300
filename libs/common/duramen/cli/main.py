"""The `duramen` command: which commands there are, and how what goes wrong becomes an exit code.

Every command prints one clear sentence on stderr when it fails, and what to do next; never a
traceback for what others sent or refused. The codes stand in `command.ExitCode`.

Called by the console script `duramen` and by `python -m duramen.cli.main`. Source: 03-api "CLI".
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from duramen import __version__
from duramen.cli.append import append
from duramen.cli.command import ExitCode, UsageError, say, silence_stdout
from duramen.cli.declare.apply import apply
from duramen.cli.declare.namespaces import namespace_app
from duramen.cli.live.sql import sql
from duramen.cli.live.top import top
from duramen.cli.log_life import delete, end, truncate, undelete
from duramen.cli.logs import log_app, maintenance, segments
from duramen.cli.ownership import balance, hand_over, owners, story
from duramen.cli.placement.bookies import bookies_app, regions_app
from duramen.cli.placement.check import placement_app
from duramen.cli.programs.archive import archive_app
from duramen.cli.programs.bench import bench_app
from duramen.cli.read import read, tail
from duramen.cli.repair.auditor import accept_loss, disruption, drain, rebalance, repair_app
from duramen.cli.repair.verify import verify
from duramen.cli.run import run
from duramen.cli.shell.advice import advise
from duramen.cli.shell.completion import make_completion
from duramen.cluster.cluster_file import ClusterFileError
from duramen.cluster.layout import LayoutError
from duramen.cluster.supervisor import ClusterError
from duramen.errors import DuramenError
from duramen.runtime.http_client import PeerError

app = App(
    name="duramen",
    help="Duramen: durable, totally ordered, replicated logs. Run a cluster here, append, read.",
    version=__version__,
    result_action="return_value",
    help_format="markdown",
)
app.command(run)
app.command(append)
app.command(read)
app.command(tail)
app.command(namespace_app)
for log_command in (truncate, end, delete, undelete):
    log_app.command(log_command)
app.command(log_app)
app.command(segments)
app.command(maintenance)
for command in (owners, hand_over, balance, story):
    app.command(command)
app.command(verify)
for placement_command in (bookies_app, regions_app, placement_app):
    app.command(placement_command)
for repair_command in (repair_app, drain, rebalance, disruption, accept_loss):
    app.command(repair_command)
for live_command in (top, sql, apply, make_completion(app)):
    app.command(live_command)
app.command(archive_app)
app.command(bench_app)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; gives its exit code."""
    tokens = list(sys.argv[1:] if argv is None else argv)
    try:
        code = app(tokens, exit_on_error=False, print_error=True)
    except CycloptsError:
        return ExitCode.USAGE
    except (UsageError, LayoutError) as error:
        say(f"duramen: {error}")
        return ExitCode.USAGE
    except BrokenPipeError:
        silence_stdout()  # `| head` has seen enough
        return ExitCode.OK
    except (ClusterError, ClusterFileError, DuramenError, PeerError, OSError) as error:
        say(f"duramen: {error}")
        advice = advise(error)
        if advice is not None:
            say(f"next: {advice}")
        return ExitCode.FAILED
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    return code if isinstance(code, int) else ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
