"""TLS beneath kazoo: a connection that shows an identity and sees who answers.

kazoo's own TLS adds the system's anchors, takes no `SSLContext` and so neither TLS 1.3 alone nor a
CA that a parent has signed as an anchor, and asks nobody for a host name by default: none of it is
used. What it is given instead is one function that opens a connection, and one that waits for one.

Called by `zookeeper_store`, on kazoo's threads.
Source: docs/protocol/metadata-access.md "Who connects".
"""

from __future__ import annotations

import contextlib
import datetime as dt
import socket
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from duramen.runtime.identity.certificates import (
    UNREADABLE,
    CertificateRefusedError,
    judge_leaf,
)
from duramen.runtime.identity.folder import HeldIdentity, read_folder
from duramen.runtime.identity.names import Identity, IdentityError, Role
from duramen.runtime.identity.zookeeper_files import load_identity, make_client_context

_PATIENCE_MAX: Final = 4
"""A handshake that is the last of several in a row to be late has so many times what one has."""

_NO_DELAY: Final = (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

Ready = tuple[list[Any], list[Any], list[Any]]


class SecureConnections:
    """Opens connections by what lies in a folder when each of them is opened.

    Attributes:
        refusal: why the last attempt failed; empty where it did not.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.refusal = ""
        self._patience = 1

    def read(self) -> Identity:
        """Whose folder it is; blocks for 2 s at most.

        Raises:
            IdentityError: it holds no identity that is valid now.
        """
        return self._read().identity

    def _read(self) -> HeldIdentity:
        return read_folder(self._folder, dt.datetime.now(dt.UTC))

    def open(self, address: tuple[str, int], hostname: str, timeout_s: float) -> ssl.SSLSocket:
        """A connection to a ZooKeeper of this cluster, which `hostname` is the name of.

        Args:
            timeout_s: for TCP, and then for the handshake; twice as long for each that was late in
                a row, up to four times. A server that all want at once after its start would else
                be kept busy by handshakes which nobody waits for any more, and serve nobody.

        Raises:
            OSError: nobody answers, or somebody else; `refusal` says why.
        """
        try:
            connection = self._open(address, hostname, timeout_s)
        except (IdentityError, CertificateRefusedError) as error:
            self.refusal = str(error)
            raise ConnectionRefusedError(self.refusal) from error
        except OSError as error:
            self.refusal = str(error)
            raise
        self.refusal = ""
        return connection

    @staticmethod
    def wait_ready(
        select: Callable[..., Ready], rlist: Sequence[Any], wlist: Sequence[Any], *more: Any
    ) -> Ready:
        """kazoo's `select`, which does not know that TLS may hold what was received already.

        Two answers in one record would leave the second waiting for a third.
        """
        held = [one for one in rlist if isinstance(one, ssl.SSLSocket) and one.pending()]
        return (held, [], []) if held else select(rlist, wlist, *more)

    def _open(self, address: tuple[str, int], hostname: str, timeout_s: float) -> ssl.SSLSocket:
        held = self._read()
        anchors = b"".join(one.public_bytes(Encoding.PEM) for one in held.bundle.anchors)
        context = make_client_context(anchors.decode())
        load_identity(context, held)
        with contextlib.ExitStack() as opened:
            plain = opened.enter_context(socket.create_connection(address, timeout_s))
            plain.setsockopt(*_NO_DELAY)
            plain.settimeout(timeout_s * self._patience)
            try:
                secure = opened.enter_context(context.wrap_socket(plain, server_hostname=hostname))
            except TimeoutError:
                self._patience = min(2 * self._patience, _PATIENCE_MAX)
                raise
            self._patience = 1
            secure.settimeout(timeout_s)
            _judge(secure, held)
            opened.pop_all()
        return secure


def _judge(connection: ssl.SSLSocket, held: HeldIdentity) -> None:
    """See that a ZooKeeper of this cluster answers, and no other node on its machine."""
    shown = connection.getpeercert(binary_form=True)
    assert shown is not None, "a certificate was required"
    try:
        leaf = x509.load_der_x509_certificate(shown)
    except UNREADABLE:
        raise CertificateRefusedError("the certificate of ZooKeeper cannot be read") from None
    try:
        identity = judge_leaf(leaf, held.bundle, held.identity.domain, dt.datetime.now(dt.UTC))
    except CertificateRefusedError as error:
        raise CertificateRefusedError(f"the certificate of ZooKeeper {error}") from None
    if identity.role is not Role.ZOOKEEPER:
        raise CertificateRefusedError(f"{identity} answers in the place of ZooKeeper")
