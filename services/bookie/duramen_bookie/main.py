"""Entry point of the bookie: `duramen-bookie` and `python -m duramen_bookie.main`.

Reads the command line, builds the service on a ZooKeeper store and runs it in the common frame.
Source: 08-interfaces "Processes and admin".
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from duramen.runtime.role import ServiceOptions
from duramen.runtime.service import parse_options, run_service
from duramen.runtime.zookeeper_store import ZooKeeperStore
from duramen_bookie.service import BookieService


def make_service(options: ServiceOptions, fail: Callable[[str], None]) -> BookieService:
    """Build the service; called inside the running loop."""
    store = ZooKeeperStore(options.zookeeper, session_timeout_s=options.session_timeout_s)
    return BookieService(options, fail, store)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a bookie until it is told to stop; returns the exit status."""
    return run_service(parse_options("bookie", argv), make_service)


if __name__ == "__main__":
    sys.exit(main())
