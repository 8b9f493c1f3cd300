"""Entry point of the read proxy's process: `duramen-readproxy --cluster … --id … …`.

Builds the service on ZooKeeper and hands it to the frame that every service shares; nothing is
decided here. Started by `duramen run` and by the container image.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from duramen.cluster import first_process  # noqa: F401 - importing it is the act
from duramen.runtime.role import ServiceOptions
from duramen.runtime.security.process_security import ProcessSecurity
from duramen.runtime.service import parse_options, run_service
from duramen.runtime.stores.service_store import make_service_store
from duramen_readproxy.service import ReadProxy


def main(argv: Sequence[str] | None = None) -> int:
    """Run a read proxy until it is told to stop; the exit status."""
    return run_service(parse_options("readproxy", argv), _make)


def _make(
    options: ServiceOptions, _fail: Callable[[str], None], security: ProcessSecurity | None
) -> ReadProxy:
    return ReadProxy(options, make_service_store(options), security=security)


if __name__ == "__main__":
    sys.exit(main())
