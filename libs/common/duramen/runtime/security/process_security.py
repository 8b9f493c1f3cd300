"""The security of one process: its identity, whom it knows, who may call it, and their renewal.

Made at the start from a folder that is judged whole, or not at all. Servers and clients of the
process ask it for their files, contexts and headers, and are told when those change.

Called by the frame of services (`service`), by each service's wiring, by `http_server` and by
`http_client`.
Source: docs/protocol/identity.md "The folder", "TLS", "The caller's header".
"""

from __future__ import annotations

import datetime as dt
import ssl
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from cryptography.hazmat.primitives.serialization import Encoding
from pyreqwest.client import Client, ClientBuilder

from duramen.runtime.identity.callers import Callers, OwnHeaders, bound_public_port
from duramen.runtime.identity.certificates import Bundle, find_issuer, list_anchors
from duramen.runtime.identity.folder import HeldIdentity, encode_bundle, encode_key
from duramen.runtime.identity.generations import BUNDLE_FILE
from duramen.runtime.identity.header import NamedClient
from duramen.runtime.identity.names import Identity, IdentityError, Role
from duramen.runtime.identity.sole_anchors import trusting_alone
from duramen.runtime.rights.process_rights import ProcessRights
from duramen.runtime.role import ServiceOptions, StartRefusedError
from duramen.runtime.security.door import Door
from duramen.runtime.security.held_identity import (
    ExpectedNode,
    WatchedIdentity,
    notify_all,
    read_expected,
)
from duramen.runtime.security.peers import Learn, NotKnownError, PeerNames, Way
from duramen.runtime.security.permitted_roles import Roles
from duramen.runtime.security.private_copies import PrivateCopies, ServerFiles
from duramen.runtime.security.tls_contexts import (
    make_admin_context,
    make_caller_context,
    make_stream_context,
)
from duramen.runtime.turning.addresses import SECURE_SCHEME
from duramen.runtime.turning.open_ports import OpenPorts
from duramen.runtime.turning.tally import RefusalTally, WouldBeRefused
from duramen.wire.edge.gate import is_here

_TIME_DIGITS: Final = 12
_ROLE_OF: Final = {"/b/": Role.BOOKIE, "/s/": Role.SEQUENCER}


class RecordedSend(Protocol):
    """ASGI's `send` of a call that is recorded."""

    def __call__(self, message: Any) -> Awaitable[None]:
        """Send on, and see what came of the call."""

    def end(self) -> None:
        """Nothing more is sent."""


class AdminRecords(Protocol):
    """Who keeps what an admin port does: `runtime.audit.recorded_admin`."""

    def refuse(self, scope: Any, who: str | None, verb: str | None, status: int) -> None:
        """A call was not let in."""

    def begin(self, scope: Any, who: str, route: str, send: Any) -> RecordedSend:
        """A call that changes something was let in."""
        ...


class ProcessSecurity:
    """What a process does with its identity.

    Attributes:
        identity: who it is.
        peers: who is reached where.
        rights: what identities may do to the cluster.
        admin_records: of whoever keeps them; None: nobody does, or not yet.
        tally: where what would be refused is counted; None: it is refused.
        open_ports: which TLS ports take connections, where plain ones do as well.

    Args:
        held: as `read_expected` gave it.
        fail: ends the process with one sentence, when its certificate is not valid any more.
        is_turning: it refuses nobody, and calls in plain text whom it does not reach by TLS.
    """

    def __init__(
        self,
        folder: Path,
        held: HeldIdentity,
        fail: Callable[[str], None],
        *,
        is_turning: bool = False,
    ) -> None:
        self.tally = RefusalTally() if is_turning else None
        self.identity = held.identity
        self.open_ports = OpenPorts()
        self.peers = PeerNames(held.identity.domain)
        self.rights = ProcessRights()
        self.admin_records: AdminRecords | None = None
        self._watched = WatchedIdentity(folder, held, self._on_change, fail)
        self._callers = Callers(held.identity, held.bundle)
        self._clients = Callers(held.identity, held.bundle, bound_public_port(held.identity.role))
        self._headers = OwnHeaders(held)
        self._copies = PrivateCopies()
        self._listeners: list[Callable[[], None]] = []

    def start(self) -> None:
        """Look at the folder from now on."""
        self._watched.start()

    async def stop(self) -> None:
        """The end: nobody of this process serves or calls any more."""
        await self._watched.stop()
        await self.open_ports.close()
        self._copies.close()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call this after files have changed: connections are to be made anew."""
        self._listeners.append(listener)

    @property
    def bundle(self) -> Bundle:
        """What is trusted now."""
        return self._watched.held.bundle

    # --- Serving ---------------------------------------------------------------------------------

    def make_admin_context(self) -> ssl.SSLContext:
        """TLS of the admin port, for connections that are made from now on.

        Raises:
            OSError: the key's private copy cannot be written.
        """
        return make_admin_context(self._watched.held)

    def make_stream_context(self) -> ssl.SSLContext:
        """TLS of the port of standing streams, for connections that are made from now on.

        Raises:
            OSError: the key's private copy cannot be written.
        """
        return make_stream_context(self._watched.held)

    def open_door(self, permitted: Mapping[str, Roles]) -> Door:
        """The door of a data port."""
        return Door(self._callers, permitted, self.tally)

    @property
    def clients(self) -> Callers:
        """Those who named themselves at the public port, where proxies speak for their clients."""
        return self._clients

    def write_server_files(self) -> ServerFiles:
        """Files for one more server; to be given back."""
        return self._copies.write(self._watched.held)

    def remove_server_files(self, files: ServerFiles) -> None:
        """A server has ended."""
        self._copies.remove(files)

    # --- Calling ---------------------------------------------------------------------------------

    def make_client(self, builder: ClientBuilder) -> Client:
        """A client that shows this process's certificate, and trusts what it trusts."""
        held = self._watched.held
        own = encode_key(held.key) + held.leaf.public_bytes(Encoding.PEM)
        with trusting_alone(encode_bundle(held.bundle)[BUNDLE_FILE]):
            return builder.identity_pem(own).build()

    def make_caller_context(self) -> ssl.SSLContext:
        """TLS of who opens a standing stream now.

        Raises:
            OSError: the key's private copy cannot be written.
        """
        return make_caller_context(self._watched.held)

    def find_receiver(self, url: str) -> Identity:
        """Whom a call of a data port reaches.

        Raises:
            NotKnownError: nobody who is known.
        """
        end = url.find("/", len(SECURE_SCHEME))
        role = _ROLE_OF.get(url[end : end + 3])
        found = None if role is None else self.peers.find(role, url[:end])
        if found is None:
            raise NotKnownError(f"{url}: nobody is known there")
        return found

    def list_ways(self, url: str) -> tuple[Way, ...]:
        """How a data port is called, the best way first.

        Args:
            url: as it is registered, with the path.

        Raises:
            NotKnownError: it speaks TLS, and nobody is known there.
        """
        if url.startswith(SECURE_SCHEME):
            return (Way(url, self.find_receiver(url)),)
        end = url.find("/", len("http://"))
        role = _ROLE_OF.get(url[end : end + 3])
        place = None if role is None else self.peers.find_place(role, url[:end])
        if place is None or place.tls_url is None:
            return (Way(url, None),)
        secure = Way(place.tls_url + url[end:], place.identity)
        return (secure,) if self.tally is None else (secure, Way(url, None))

    def note_unreached(self, missed: str, why: str) -> None:
        """A peer was reached in plain text, and not by TLS at this URL."""
        if self.tally is not None:
            self.tally.note(
                WouldBeRefused("peer", str(self.identity), "connect", "unreached", why, missed)
            )

    def name_to(self, receiver: Identity) -> str:
        """The header for a receiver."""
        return self._headers.give(receiver, _now())

    def name_client_to(self, receiver: Identity, client: NamedClient) -> str:
        """The header for a receiver in a client's name."""
        return self._headers.give_for(receiver, client, _now())

    def reconsider(
        self,
        receiver: Identity,
        refused: str,
        their_time: str | None,
        client: NamedClient | None = None,
    ) -> None:
        """A receiver does not know a header: make another, by its clock if it told it.

        Args:
            refused: the header; many calls may carry it, and one new one is enough for all.
            their_time: seconds since 1970, as the receiver spelt it.
            client: in whose name it was.
        """
        told = their_time or ""
        is_time = told.isascii() and told.isdecimal() and len(told) <= _TIME_DIGITS
        their_s = float(told) if is_time else None
        self._headers.reconsider(receiver, refused, their_s, _now(), client)

    def statistics(self) -> dict[str, Any]:
        """Whom it trusts, and every table and counter."""
        held = self._watched.held
        return {
            "identity": str(self.identity),
            "issuer": find_issuer(held.leaf, held.bundle),
            "anchors": list_anchors(held.bundle),
            "folder": self._watched.statistics(),
            "callers": self._callers.statistics(),
            "clients": self._clients.statistics(),
            "peers": self.peers.statistics(),
            "grants": self.rights.statistics(),
            "open_ports": self.open_ports.statistics(),
            "would_refuse": None if self.tally is None else self.tally.statistics(),
        }

    def _on_change(self) -> None:
        held = self._watched.held
        self._callers.trust(held.bundle)
        self._clients.trust(held.bundle)
        self._headers.renew(held)
        notify_all(self._listeners)


def open_security(options: ServiceOptions, fail: Callable[[str], None]) -> ProcessSecurity | None:
    """The security that a service is started with; None: it has no identity.

    Raises:
        StartRefusedError: its folder gives none; or it refuses nobody, and others would reach it.
    """
    refuses_nobody = options.tls_dir is None or options.is_turning
    if refuses_nobody and not options.accepts_anybody and not is_here(options.host):
        raise StartRefusedError(
            f"with --security {options.security} whoever reaches --host {options.host} may do "
            "everything: give an identity (--security on, --tls-dir), listen on 127.0.0.1, or say "
            "--accept-anybody"
        )
    if options.tls_dir is None:
        return None
    expected = ExpectedNode(Role(options.role), options.node_id)
    try:
        held = read_expected(options.tls_dir, expected)
    except IdentityError as error:
        raise StartRefusedError(str(error)) from None
    return ProcessSecurity(options.tls_dir, held, fail, is_turning=options.is_turning)


def domain_of(security: ProcessSecurity | None) -> str | None:
    """The uuid of the cluster that the process is of; None: it has no identity."""
    return None if security is None else security.identity.domain


def learn_role(security: ProcessSecurity | None, role: Role) -> Learn | None:
    """What a roster of this role's nodes tells; None: who names itself to nobody need not know."""
    return None if security is None else security.peers.learn_role(role)


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
