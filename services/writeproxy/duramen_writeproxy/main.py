"""`duramen-writeproxy`: the process of one write proxy.

Nothing but the wiring: options from the command line, ZooKeeper as the metadata store, the frame
that every service runs in. Source: README.md "The processes".
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from duramen.cluster import first_process  # noqa: F401 - importing it is the act
from duramen.runtime.role import ServiceOptions
from duramen.runtime.security.process_security import ProcessSecurity
from duramen.runtime.service import parse_options, run_service
from duramen.runtime.stores.service_store import make_service_store
from duramen_writeproxy.service import WriteProxy


def main(argv: Sequence[str] | None = None) -> None:
    """Run a write proxy until it is told to stop."""
    sys.exit(run_service(parse_options("writeproxy", argv), make_service))


def make_service(
    options: ServiceOptions, _fail: Callable[[str], None], security: ProcessSecurity | None
) -> WriteProxy:
    """The write proxy of these options."""
    return WriteProxy(options, make_service_store(options), security)


if __name__ == "__main__":
    main()
