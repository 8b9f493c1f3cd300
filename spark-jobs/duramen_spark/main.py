"""The `duramen-spark` command: jobs over the archive, for spark-submit and for a laptop.

What goes wrong becomes an exit code and one sentence on stderr, as for `duramen` itself.

Called by the console script `duramen-spark`, by spark-submit (this file), and by `duramen archive`.
Source: docs/archive.md.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cyclopts import App

from duramen import __version__
from duramen.cli.shell.frame import run_app
from duramen.cli.shell.help import PLAIN, unfold_help
from duramen.runtime.identity.names import IdentityError
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
    help_format=PLAIN,
)
for _command in (archive, verify, compact, restore, export, retention):
    app.command(_command)
unfold_help(app)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one job; gives its exit code."""
    return run_app(app, argv, failures=(IdentityError,))


if __name__ == "__main__":
    sys.exit(main())
