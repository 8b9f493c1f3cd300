"""Entry point of the bookie: `duramen-bookie` and `python -m duramen_bookie.main`.

With a command (`fsck`, `inspect`, `bench`) as its first argument it runs that one and ends; else it
reads the command line, builds the service on a ZooKeeper store and runs it in the common frame.
Source: docs/bookie.md "Admin API".
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Final

from duramen.cluster import first_process  # noqa: F401 - importing it is the act
from duramen.runtime.role import ServiceOptions
from duramen.runtime.security.process_security import ProcessSecurity
from duramen.runtime.service import parse_options, run_service
from duramen.runtime.stores.service_store import make_service_store
from duramen_bookie.service import BookieService

COMMANDS: Final = ("fsck", "inspect", "bench")

_EPILOG: Final = "duramen-bookie fsck|inspect|bench --help: tools for a bookie that does not run"


def make_service(
    options: ServiceOptions, fail: Callable[[str], None], security: ProcessSecurity | None
) -> BookieService:
    """Build the service; called inside the running loop."""
    return BookieService(options, fail, make_service_store(options), security)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a bookie until it is told to stop, or one command; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in COMMANDS:
        # A bookie at work has no use for its tools, and does not load them.
        from duramen_bookie.offline.commands import run_command  # noqa: PLC0415

        return run_command(arguments)
    return run_service(parse_options("bookie", arguments, epilog=_EPILOG), make_service)


if __name__ == "__main__":
    sys.exit(main())
