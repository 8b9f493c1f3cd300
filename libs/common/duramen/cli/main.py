"""The `duramen` command: which commands there are.

How what goes wrong becomes an exit code stands in `shell.frame`; each command's help says what its
codes mean.

Called by the console script `duramen` and by `python -m duramen.cli.main`. Source: docs/cli.md.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cyclopts import App

from duramen import __version__
from duramen.cli.append import append
from duramen.cli.cluster.access import access_app
from duramen.cli.cluster.bookies import bookies_app, regions_app
from duramen.cli.cluster.ca import ca_app
from duramen.cli.cluster.disruptions import disruption, disruptions
from duramen.cli.cluster.members import members
from duramen.cli.cluster.ownership import balance, hand_over, owners, story, weigh
from duramen.cli.cluster.placement import placement_app
from duramen.cli.cluster.rebuild import rebuild
from duramen.cli.cluster.repair import accept_loss, drain, rebalance, repair_app
from duramen.cli.cluster.security import security_app
from duramen.cli.cluster.verify import verify
from duramen.cli.context.commands import context_app
from duramen.cli.declare.apply import apply
from duramen.cli.declare.namespaces import namespace_app
from duramen.cli.live.sql import sql
from duramen.cli.live.top import top
from duramen.cli.log_history import epochs
from duramen.cli.log_life import delete, end, truncate, undelete
from duramen.cli.logs import log_app, maintenance, segments
from duramen.cli.programs.archive import archive_app
from duramen.cli.programs.bench import bench_app
from duramen.cli.programs.run import run
from duramen.cli.read import read, tail
from duramen.cli.rights.audit import audit_app
from duramen.cli.rights.grants import grant_app
from duramen.cli.rights.tokens import token_app
from duramen.cli.shell.completion import make_completion
from duramen.cli.shell.frame import run_app
from duramen.cli.shell.help import PLAIN, unfold_help
from duramen.cluster.layout import LayoutError
from duramen.cluster.supervisor import ClusterError
from duramen.runtime.http_client import PeerError
from duramen.runtime.identity.names import IdentityError

app = App(
    name="duramen",
    help="Duramen: durable, totally ordered, replicated logs. Run a cluster here, append, read.",
    version=__version__,
    result_action="return_value",
    help_format=PLAIN,
)
app.command(run)
app.command(append)
app.command(read)
app.command(tail)
app.command(namespace_app)
for log_command in (truncate, end, delete, undelete, epochs, rebuild):
    log_app.command(log_command)
app.command(log_app)
app.command(segments)
app.command(maintenance)
for command in (owners, hand_over, balance, weigh, story, members):
    app.command(command)
app.command(verify)
for placement_command in (bookies_app, regions_app, placement_app):
    app.command(placement_command)
for repair_command in (repair_app, drain, rebalance, disruption, disruptions, accept_loss):
    app.command(repair_command)
for live_command in (top, sql, apply, make_completion(app)):
    app.command(live_command)
app.command(context_app)
for rights_command in (grant_app, token_app, audit_app):
    app.command(rights_command)
app.command(ca_app)
app.command(access_app)
app.command(security_app)
app.command(archive_app)
app.command(bench_app)
unfold_help(app)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; gives its exit code."""
    return run_app(
        app, argv, usage_errors=(LayoutError,), failures=(ClusterError, IdentityError, PeerError)
    )


if __name__ == "__main__":
    sys.exit(main())
