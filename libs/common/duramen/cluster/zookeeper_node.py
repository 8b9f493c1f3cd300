"""`duramen-zookeeper`: one member of a bundled ZooKeeper, or the question whether it is healthy.

`duramen-zookeeper FLAGS` becomes the server (`zookeeper_member`). `duramen-zookeeper health` is for
probes: whether this member serves clients, which one of an ensemble does with a quorum only, or
with `--alive` whether its process answers at all. A probe runs every few seconds with little time,
so for it nothing is loaded but the standard library.

Called by the ZooKeeper image. Source: docs/kubernetes.
"""

from __future__ import annotations

import argparse
import socket
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from duramen.cluster import first_process  # noqa: F401 - importing it is the act

_ANSWER_S: Final = 3.0


def main(argv: Sequence[str] | None = None) -> int:
    """Become the server, or ask the one that runs; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["health"]:
        return _check_health(arguments[1:])
    from duramen.cluster.zookeeper_member import run_member  # noqa: PLC0415

    return run_member(arguments)


def _check_health(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="duramen-zookeeper health")
    parser.add_argument("--alive", action="store_true", help="ask only whether it answers at all")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--client-port", type=int, default=2181)
    parser.add_argument("--data-dir", type=Path, default=Path("/data"), help="that of the server")
    options = parser.parse_args(arguments)
    question, wanted = (b"ruok", b"imok") if options.alive else (b"srvr", b"Mode: ")
    try:
        context = _find_context(options.data_dir)
        answer = _ask(options.host, options.client_port, question, context)
    except OSError as error:
        sys.stderr.write(f"no answer on port {options.client_port}: {error}\n")
        return 1
    if wanted in answer:
        return 0
    sys.stderr.write(f"not serving: {answer.decode(errors='replace').strip()}\n")
    return 1


def _find_context(data_dir: Path) -> ssl.SSLContext | None:
    """How the server in this folder is to be asked; None: in plain text.

    Raises:
        OSError: it speaks TLS, and the files of its identity are missing or not to be read.
    """
    try:
        configuration = (data_dir / "zoo.cfg").read_text()
    except FileNotFoundError:
        return None
    if "\nsecureClientPort=" not in configuration:
        return None
    from duramen.runtime.identity.zookeeper_files import make_probe_context  # noqa: PLC0415

    return make_probe_context(data_dir)


def _ask(host: str, port: int, question: bytes, context: ssl.SSLContext | None) -> bytes:
    with socket.create_connection((host, port), timeout=_ANSWER_S) as plain:
        connection = plain if context is None else context.wrap_socket(plain)
        with connection:
            connection.sendall(question)
            answer = b""
            while part := connection.recv(4096):
                answer += part
            return answer


if __name__ == "__main__":
    sys.exit(main())
