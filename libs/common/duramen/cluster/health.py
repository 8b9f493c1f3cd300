"""`duramen-health PORT`: asks a service's admin port whether it is ready, for probes that execute.

Ends with 0 when the service says yes, else with 1 and what it said. Only the standard library is
loaded: a probe every few seconds should cost next to nothing. Where probes can make HTTP calls
themselves they ask `/readyz` and `/healthz` directly. Source: docs/protocol/admin.md "Every
service".
"""

from __future__ import annotations

import argparse
import http.client
import sys
from collections.abc import Sequence
from typing import Final

_ANSWER_S: Final = 3.0


def main(argv: Sequence[str] | None = None) -> int:
    """Ask once; returns the exit status."""
    parser = argparse.ArgumentParser(prog="duramen-health")
    parser.add_argument("port", type=int, help="the admin port")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--alive", action="store_true", help="ask only whether it answers at all")
    options = parser.parse_args(argv)
    path = "/healthz" if options.alive else "/readyz"
    connection = http.client.HTTPConnection(options.host, options.port, timeout=_ANSWER_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        said = answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        sys.stderr.write(f"no answer on port {options.port}: {error}\n")
        return 1
    finally:
        connection.close()
    if answer.status == http.client.OK:
        return 0
    sys.stderr.write(f"{path}: {answer.status} {said}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
