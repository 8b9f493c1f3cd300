"""The command `kubectl-duramen`, which kubectl runs as `kubectl duramen`.

Called by the console script and by `python -m kubectl_duramen.main`. Failures are one sentence on
standard error and what to do next, as those of `duramen` (`cli.shell.frame`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cyclopts import App

from duramen import __version__
from duramen.cli.shell.frame import run_app
from duramen.cli.shell.help import PLAIN, unfold_help
from duramen.runtime.http_client import PeerError
from kubectl_duramen.access import AccessError
from kubectl_duramen.records import append, read, token
from kubectl_duramen.status import status
from kubectl_duramen.support.report import report
from kubectl_duramen.wishes.drains import cancel_drain, drain
from kubectl_duramen.wishes.pauses import pause, resume
from kubectl_duramen.wishes.why import why

app = App(
    name="kubectl duramen",
    help="Duramen clusters on Kubernetes: how they are and what they wait for, "
    "support bundles, append and read, tokens, drains, pauses.",
    version=__version__,
    result_action="return_value",
    help_format=PLAIN,
)
for command in (
    status, why, report, append, read, token, drain, cancel_drain, pause, resume,
):  # fmt: skip
    app.command(command)
unfold_help(app)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; gives its exit code."""
    return run_app(app, argv, failures=(AccessError, PeerError))


if __name__ == "__main__":
    sys.exit(main())
