"""The CA, the identities and the token of a run with security, and what is turned while it goes on.

The supervisor makes its services' identities as `duramen run` does; here are those of ZooKeeper's
servers, whose files are handed on, and everything that turns: leaves, the CA in its three steps,
one node's leaf that is revoked and issued again, the API token that the loads show. Whoever asks
the cluster for the run does so as its operator.

Called by `cluster`, `replicas`, `turning`. Source: docs/protocol/identity.md "Replacing the CA",
docs/testing.md "Chaos".
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from collections.abc import Iterable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

from duramen.client.credentials.local_cluster import OPERATOR_FOLDER, WRITER_FOLDER
from duramen.cluster.layout import HOST, ListenPorts, ProcessPlan
from duramen.cluster.local_identities import LocalIdentities
from duramen.runtime.identity.authority import KeptAuthority, begin_authority, open_authority
from duramen.runtime.identity.certificates import NOWHERE, Bundle, Places, list_anchors
from duramen.runtime.identity.folder import encode_bundle, read_folder, write_bundle, write_folder
from duramen.runtime.identity.generations import BUNDLE_FILE
from duramen.runtime.identity.names import Identity, IdentityError, make_identity
from duramen.runtime.identity.zookeeper_files import (
    load_identity,
    make_client_context,
    make_probe_context,
    write_server_files,
)
from duramen.runtime.security.process_security import ProcessSecurity

LOOK_S: Final = 2.0
"""How often a process looks at its folder."""

_HERE: Final = Places(("localhost",), (ipaddress.ip_address(HOST),))
_NAMED: Final = {OPERATOR_FOLDER.name: "operator", WRITER_FOLDER.name: "corewriter"}
_NAME: Final = "local"


class ClusterKeys:
    """Everything that says who is who in one run.

    Args:
        folder: of the cluster; the supervisor looks there for the CA and for its folders.
        servers: ZooKeeper's servers, each with its port and its data folder.
    """

    def __init__(self, folder: Path, servers: Mapping[str, tuple[int, Path]]) -> None:
        self._ca = folder / "ca"
        self._folders = folder / OPERATOR_FOLDER.parent
        self._servers = servers
        self._local = LocalIdentities(folder)
        self._domain = uuid4().hex
        self._context: ssl.SSLContext | None = None
        self.root_file = folder / "token"
        """Of a token that may do everything, made by the supervisor."""
        self.token_file = folder / "load-token"
        """Of the token that the loads show; it is replaced by one rename."""

    def begin(self) -> None:
        """Make the CA and ZooKeeper's identities, before anything starts."""
        self._ca.parent.mkdir(parents=True, exist_ok=True)
        begin_authority(self._ca, self._domain, _now())
        plans = [
            ProcessPlan(
                "zookeeper", name, "r1", ListenPorts(port, None), data_dir / "log", data_dir
            )
            for name, (port, data_dir) in self._servers.items()
        ]
        self._local.prepare(plans)

    # --- who asks for the run --------------------------------------------------------------------

    @property
    def operator_folder(self) -> Path:
        """Of the identity that may ask everything."""
        return self._local.operator_folder

    def folder_of(self, node_id: str) -> Path:
        """Where the identity of a process lies."""
        return self._local.folder_of(node_id)

    def make_context(self) -> ssl.SSLContext:
        """TLS of who asks admin ports; new connections show what is turned from then on."""
        held = read_folder(self.operator_folder, _now())
        self._context = make_client_context(_encode_anchors(held.bundle))
        load_identity(self._context, held)
        return self._context

    def make_server_context(self, node_id: str) -> ssl.SSLContext:
        """TLS of who asks a ZooKeeper server how it is."""
        return make_probe_context(self._servers[node_id][1])

    def make_security(self) -> ProcessSecurity:
        """Of a part of the run that calls bookies as an operator; to be started and stopped."""
        folder = self.operator_folder
        return ProcessSecurity(folder, read_folder(folder, _now()), print)

    def write_token(self, text: str) -> None:
        """Have the loads show another token from their next call on."""
        beside = self.token_file.with_suffix(".new")
        beside.touch(mode=0o600)
        beside.write_text(text)
        beside.replace(self.token_file)

    # --- what turns; each blocks, and is called in a thread --------------------------------------

    def turn_leaves(self, names: Iterable[str] = ()) -> None:
        """Issue a certificate anew to these, or to all."""
        with open_authority(self._ca, _now()) as authority:
            for name in names or self._list_names():
                identity = self._identify(name)
                places = _HERE if identity.role.is_node else NOWHERE
                issued = authority.issue(identity, _now(), places=places)
                write_folder(self.folder_of(name), issued)
        self._hand_on()

    def announce(self) -> None:
        """Have everybody trust a second CA, too."""
        with open_authority(self._ca, _now()) as authority:
            authority.announce(_now())
            self._spread(authority)

    def switch(self) -> None:
        """Issue by the other CA, and to everybody at once."""
        with open_authority(self._ca, _now()) as authority:
            authority.switch(_now(), is_known_everywhere=True)
        self.turn_leaves()

    def retire(self) -> None:
        """Have nobody trust the CA that does not issue."""
        with open_authority(self._ca, _now()) as authority:
            authority.retire(_now(), is_wanted_now=True)
            self._spread(authority)

    def revoke(self, name: str) -> None:
        """Have nobody believe the certificate that a process has."""
        with open_authority(self._ca, _now()) as authority:
            identity = str(self._identify(name))
            over = authority.list_revoked()
            wanted = {one.serial for one in authority.list_issued() if one.identity == identity}
            authority.revoke(wanted - over.keys(), _now())
            self._spread(authority, revoked=name)

    def list_anchors(self) -> list[str]:
        """The serials of the CAs that are trusted, the one that issues first."""
        with open_authority(self._ca, _now()) as authority:
            return list_anchors(authority.bundle)

    def _spread(self, authority: KeptAuthority, revoked: str = "") -> None:
        for name in self._list_names():
            # Who is revoked is told so as well: it is written, and said that it is not valid.
            with suppress(IdentityError) if name == revoked else nullcontext():
                write_bundle(self.folder_of(name), self._domain, authority.bundle, _now())
        self._hand_on()

    def _hand_on(self) -> None:
        """To those that look at no folder: ZooKeeper's servers, and who asks for the run."""
        for name, (_, data_dir) in self._servers.items():
            write_server_files(self.folder_of(name), data_dir)
        if self._context is not None:
            held = read_folder(self.operator_folder, _now())
            # Anchors that are retired stay trusted by who asks for the run, and by nobody else.
            self._context.load_verify_locations(cadata=_encode_anchors(held.bundle))
            load_identity(self._context, held)

    def _list_names(self) -> list[str]:
        return sorted(path.name for path in self._folders.iterdir() if path.is_dir())

    def _identify(self, name: str) -> Identity:
        role = _NAMED.get(name)
        if role is not None:
            return make_identity(self._domain, role, _NAME)
        return make_identity(self._domain, name.rpartition("-")[0], name)


def _encode_anchors(bundle: Bundle) -> str:
    return encode_bundle(bundle)[BUNDLE_FILE].decode()


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
