"""A ZooKeeper that is slow to shake hands, as one is that was started anew and that all want.

Source: docs/protocol/metadata-access.md "Who connects".
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from pathlib import Path

import pytest

from duramen.runtime.stores.secure_connection import SecureConnections
from tests.component.issuing_world import IssuingWorld
from tests.pauses import observe_for

TIMEOUT_S = 0.15
LATE_S = 3 * TIMEOUT_S


class SlowServer:
    """Takes connections at once, and shakes each hand after a while."""

    def __init__(self, folder: Path) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = ("127.0.0.1", int(self._socket.getsockname()[1]))
        self.late_s = LATE_S
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._socket.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(
                    target=self._shake, args=(self._socket.accept()[0],), daemon=True
                ).start()

    def _shake(self, plain: socket.socket) -> None:
        observe_for(self.late_s, what="how late the server is")
        with (
            contextlib.suppress(OSError),
            self._context.wrap_socket(plain, server_side=True) as one,
        ):
            one.recv(1)


def test_who_was_late_is_waited_for_longer_until_it_is_in_time(tmp_path: Path) -> None:
    world = IssuingWorld(tmp_path)
    server = SlowServer(world.issue("zookeeper", "z"))
    connections = SecureConnections(world.caller)
    try:
        for _ in range(2):
            with pytest.raises(TimeoutError):
                connections.open(server.address, "127.0.0.1", TIMEOUT_S)
        with connections.open(server.address, "127.0.0.1", TIMEOUT_S) as secure:
            assert secure.gettimeout() == TIMEOUT_S, "what follows has the time that it had"
        with pytest.raises(TimeoutError):
            # It was in time, so that all begins anew.
            connections.open(server.address, "127.0.0.1", TIMEOUT_S)
        server.late_s = 60.0
        for _ in range(6):
            with pytest.raises(TimeoutError):
                connections.open(server.address, "127.0.0.1", TIMEOUT_S / 10)
        assert connections._patience == 4, "nobody waits for ever for one of several"
    finally:
        server.close()
