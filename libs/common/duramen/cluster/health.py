"""`duramen-health PORT`: asks a service's admin port whether it is ready, for probes that execute.

Ends with 0 when the service says yes, else with 1 and what it said. Only the standard library is
loaded: a probe every few seconds should cost next to nothing. Probes show no certificate. Where
probes can make HTTP calls themselves they ask `/readyz` and `/healthz` directly; the supervisor of
a local cluster asks by `HealthProbe`. Source: docs/protocol/admin.md "Every service".
"""

from __future__ import annotations

import argparse
import http.client
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from duramen.runtime.identity.zookeeper_files import make_client_context

_ANSWER_S: Final = 3.0

READY_PATH: Final = "/readyz"
_ALIVE_PATH: Final = "/healthz"


class HealthAnswer(NamedTuple):
    """What an admin port said of itself."""

    is_well: bool
    status: int
    said: str


class HealthProbe:
    """Asks one admin port, over one connection while that lasts; blocks.

    Args:
        context: TLS, by which the port is to be trusted; None: it speaks none.
    """

    def __init__(self, host: str, port: int, context: ssl.SSLContext | None) -> None:
        self._connection = (
            http.client.HTTPConnection(host, port, timeout=_ANSWER_S)
            if context is None
            else http.client.HTTPSConnection(host, port, timeout=_ANSWER_S, context=context)
        )

    def ask(self, path: str) -> HealthAnswer:
        """Ask once; 3 s at most for each step.

        Raises:
            OSError: nobody answers, or nobody who is trusted.
        """
        try:
            self._connection.request("GET", path)
            answer = self._connection.getresponse()
            said = answer.read().decode(errors="replace")
        except http.client.HTTPException as error:
            self.close()
            raise ConnectionError(f"no answer of HTTP: {error!r}") from error
        except OSError:
            self.close()
            raise
        return HealthAnswer(answer.status == http.client.OK, answer.status, said)

    def close(self) -> None:
        """End the connection; another `ask` makes another one."""
        self._connection.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Ask once; returns the exit status."""
    parser = argparse.ArgumentParser(prog="duramen-health")
    parser.add_argument("port", type=int, help="the admin port")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--alive", action="store_true", help="ask only whether it answers at all")
    parser.add_argument(
        "--ca",
        metavar="FILE",
        type=Path,
        help="the port has TLS, by this CA (`ca.crt` of --tls-dir); whose port it is is not looked "
        "at, as a node need not be called by the address of a probe",
    )
    options = parser.parse_args(argv)
    path = _ALIVE_PATH if options.alive else READY_PATH
    try:
        context = None if options.ca is None else _trust(options.ca)
        probe = HealthProbe(options.host, options.port, context)
        found = probe.ask(path)
        probe.close()
    except OSError as error:
        sys.stderr.write(f"no answer on port {options.port}: {error}\n")
        return 1
    if found.is_well:
        return 0
    sys.stderr.write(f"{path}: {found.status} {found.said}\n")
    return 1


def _trust(anchors: Path) -> ssl.SSLContext:
    context = make_client_context(anchors.read_text(encoding="ascii", errors="replace"))
    context.check_hostname = False
    return context


if __name__ == "__main__":
    sys.exit(main())
