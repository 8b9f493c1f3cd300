"""Identities of a local cluster: a CA in its folder, a folder for each process, renewed in time.

The CA's key lies beside what it issues, which is right for a laptop and for nothing else. What is
there and valid is used again; a process finds a renewed certificate by itself, and for ZooKeeper,
which does not, it is handed on. Whoever runs the cluster is its operator: with that identity the
tree in ZooKeeper is founded before any service starts.

Called by `supervisor`. Source: docs/protocol/identity.md "Certificates", "The folder",
docs/protocol/metadata-access.md "A local cluster".
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import ipaddress
import json
import shutil
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final
from uuid import uuid4

from duramen.client.credentials.local_cluster import (
    CURL_FILE,
    OPERATOR_FOLDER,
    TOKEN_FILE,
    WRITER_FOLDER,
)
from duramen.cluster.cluster_file import AUTHORITY_FOLDER
from duramen.cluster.layout import CLUSTER_NAME, HOST, ProcessPlan
from duramen.runtime.cluster_node import find_cluster, repeat_until_answered
from duramen.runtime.folders import sync_folder
from duramen.runtime.identity.authority import (
    KeptAuthority,
    begin_authority,
    open_authority,
    read_former_domain,
)
from duramen.runtime.identity.certificates import NOWHERE, Places, find_issuer, list_anchors
from duramen.runtime.identity.folder import HeldIdentity, read_folder, write_bundle, write_folder
from duramen.runtime.identity.generations import BUNDLE_FILE
from duramen.runtime.identity.names import (
    Identity,
    IdentityError,
    InvalidIdentityError,
    Role,
    make_domain,
    make_identity,
)
from duramen.runtime.identity.zookeeper_files import make_client_context, write_server_files
from duramen.runtime.security.held_identity import ExpectedNode, WatchedIdentity, read_expected
from duramen.runtime.stores.guarding import (
    WrongClusterError,
    found_tree,
    is_guarded,
    open_tree,
    walk_rights,
)
from duramen.runtime.stores.zookeeper_store import ZooKeeperStore
from duramen.wire.metadata_json import Paths

RENEWAL_LOOK_S: Final = 60.0
_HERE: Final = Places(("localhost",), (ipaddress.ip_address(HOST),))
_OPERATOR_NAME: Final = "local"
_GUARDED_FILE: Final = "guarded"
"""In ZooKeeper's folder, from when nodes were first given to those who have an identity."""


class LocalIdentities:
    """The CA and the identities in the folder of a local cluster."""

    def __init__(self, folder: Path) -> None:
        self._authority = folder / AUTHORITY_FOLDER
        self._folder = folder / OPERATOR_FOLDER.parent
        self._domain = ""
        self._mark: Path | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._server: WatchedIdentity | None = None

    @property
    def operator_folder(self) -> Path:
        """Of the identity of whoever runs the cluster."""
        return self.folder_of(OPERATOR_FOLDER.name)

    def folder_of(self, node_id: str) -> Path:
        """Where the identity of a process lies."""
        return self._folder / node_id

    # --- Before ZooKeeper runs -------------------------------------------------------------------

    def prepare(self, plans: Sequence[ProcessPlan]) -> None:
        """Have an identity for each process, for whoever runs them, and for the core library.

        Raises:
            IdentityError: the CA cannot be read, or it is not known of which cluster it has to be.
            OSError: something cannot be written.
        """
        self._mark = _find_mark(plans)
        former = read_former_domain(self._authority)
        if former is None:
            self._domain = self._choose_domain(plans)
            begin_authority(self._authority, self._domain, _now())
        else:
            self._domain = former
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self.renew_due(plans)

    def _choose_domain(self, plans: Sequence[ProcessPlan]) -> str:
        """The uuid of a cluster that has no CA yet."""
        server = _find_server(plans)
        if server is None or server.data_dir is None:
            raise IdentityError(
                f"{self._authority} holds no CA, and ZooKeeper has to trust it before anybody "
                f"connects: make it (`duramen ca init {self._authority} --uuid` with the "
                "cluster's, or any 32 hexadecimal digits for a new one), issue an identity of a "
                "zookeeper from it, and start ZooKeeper with that; or say --security none"
            )
        if not _holds_nodes(server):
            return uuid4().hex
        found = {_read_cluster(plan.data_dir) for plan in plans if plan.role == "bookie"}
        found.discard(None)
        if len(found) == 1 and (uuid := found.pop()) is not None:
            return uuid
        raise IdentityError(
            f"{server.data_dir} holds a cluster without identities, and its uuid is not to be read "
            "from its bookies: start it with --security none, ask it for its uuid by `duramen ca "
            f"init {self._authority} --data {self._authority.parent}`, stop it, and start it with "
            "--security on"
        )

    def renew_due(self, plans: Sequence[ProcessPlan]) -> None:
        """Hand on what is trusted; issue where there is nothing valid, or what is to be renewed.

        What another CA of the folder issued is issued anew, but not before everybody trusts that
        CA: who was handed a bundle now has until the next look to use it.

        Raises:
            IdentityError, OSError: as `prepare`.
        """
        now = _now()
        wanted = {
            plan.node_id: make_identity(self._domain, plan.role, plan.node_id) for plan in plans
        }
        operator = make_identity(self._domain, Role.OPERATOR, _OPERATOR_NAME)
        wanted[OPERATOR_FOLDER.name] = operator
        writer = make_identity(self._domain, Role.COREWRITER, _OPERATOR_NAME)
        wanted[WRITER_FOLDER.name] = writer
        refusals: list[str] = []
        with open_authority(self._authority, now) as authority:
            held = {name: self._read(name, one, now) for name, one in wanted.items()}
            # Who has a certificate of a CA that is gone gets another one, with the bundle.
            behind = [
                name
                for name, one in held.items()
                if one is not None
                and one.bundle != authority.bundle
                and find_issuer(one.leaf, authority.bundle) is not None
            ]
            for name in behind:
                refusals += _note_refusal(
                    partial(write_bundle, self.folder_of(name), self._domain, authority.bundle, now)
                )
            for name, identity in wanted.items():
                if not _is_due(held[name], authority, now, is_known=not behind):
                    continue
                places = _HERE if identity.role.is_node else NOWHERE
                issued = authority.issue(identity, now, places=places)
                refusals += _note_refusal(partial(write_folder, self.folder_of(name), issued))
        if refusals:
            raise IdentityError("; ".join(refusals))

    def make_probe_context(self) -> ssl.SSLContext:
        """TLS for who asks the processes whether they are ready: it shows nobody's certificate.

        Raises:
            OSError: the CA's certificate cannot be read.
        """
        return make_client_context((self._authority / BUNDLE_FILE).read_text(encoding="ascii"))

    def _read(self, node_id: str, identity: Identity, now: dt.datetime) -> HeldIdentity | None:
        """What lies in a folder, if that is valid and of this process."""
        folder = self.folder_of(node_id)
        if not folder.exists():
            return None
        try:
            held = read_folder(folder, now)
        except IdentityError:
            return None
        return held if held.identity == identity else None

    # --- While the cluster runs ------------------------------------------------------------------

    def start(self, plans: Sequence[ProcessPlan], on_fault: Callable[[str], None]) -> None:
        """Renew what is due, and hand on to ZooKeeper what it is to show and to trust.

        Args:
            on_fault: told a sentence of what could not be done, and is tried again.

        Raises:
            IdentityError: ZooKeeper has none.
        """
        report = _report_changes(on_fault)
        self._renewing = asyncio.create_task(self._renew_for_ever(plans, report))
        server = _find_server(plans)
        if server is None or server.data_dir is None:
            return
        folder, data_dir = self.folder_of(server.node_id), server.data_dir
        held = read_expected(folder, ExpectedNode(Role.ZOOKEEPER, server.node_id))

        def hand_on() -> None:
            write_server_files(folder, data_dir)

        self._server = WatchedIdentity(folder, held, hand_on, report)
        self._server.start()

    async def stop(self) -> None:
        """The end of the cluster."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait([self._renewing])
        if self._server is not None:
            await self._server.stop()

    async def _renew_for_ever(
        self, plans: Sequence[ProcessPlan], on_fault: Callable[[str], None]
    ) -> None:
        while True:
            await asyncio.sleep(RENEWAL_LOOK_S)
            try:
                await asyncio.to_thread(self.renew_due, plans)
            except (IdentityError, OSError) as error:
                on_fault(f"an identity: {error}")

    def expect_guarded(self) -> None:
        """Note that nodes may be made with rights from now on.

        Raises:
            OSError: it cannot be noted, and whoever opens the tree would pass over them.
        """
        assert self._mark is not None, "another's ZooKeeper is not opened"
        self._mark.parent.mkdir(parents=True, exist_ok=True)
        self._mark.touch()
        sync_folder(self._mark.parent)

    async def open_tree(self, zookeeper: str, *, is_last: bool = True) -> int:
        """Give all nodes in ZooKeeper to anybody, as before identities; how many were another's
        when ZooKeeper last had to be waited for.

        Waits for ZooKeeper, as often as it goes. Where it holds no cluster yet, it gets the one
        that the CA is of: the first service to come would make another.

        Args:
            is_last: nobody with an identity comes after.

        Raises:
            StartRefusedError: it will never let anybody in who has an identity.
            IdentityError: it holds another cluster than the CA is of, and identities come after.
            MetadataError, MetadataJsonError, OSError: it may be done in part; repeat it.
        """
        store = ZooKeeperStore(zookeeper, identity_dir=self.operator_folder, gives_rights=False)
        paths = Paths(CLUSTER_NAME)

        async def found_and_open() -> int:
            there = await find_cluster(store, paths)
            if there is None or not is_last:
                await found_tree(store, paths, self._domain)
            return await open_tree(store)

        try:
            opened_count = await repeat_until_answered(store, found_and_open)
        except WrongClusterError as error:
            raise self._refuse_cluster(error) from None
        finally:
            await store.close()
        if self._mark is not None and is_last:
            self._mark.unlink(missing_ok=True)
            sync_folder(self._mark.parent)
        return opened_count

    async def guard_tree(self, zookeeper: str) -> None:
        """Found the cluster in ZooKeeper, and give all nodes their rights, unless that was done.

        Waits for ZooKeeper, as often as it goes.

        Raises:
            StartRefusedError: it will never let anybody in who has an identity.
            IdentityError: it holds another cluster than the CA is of.
            MetadataError, MetadataJsonError, OSError: it may be done in part.
        """
        store = ZooKeeperStore(zookeeper, identity_dir=self.operator_folder)
        paths = Paths(CLUSTER_NAME)

        async def found_and_guard() -> None:
            there = await find_cluster(store, paths)
            if there in (None, self._domain) and self._mark is not None:
                # Each time: it may be lost, and a start with `none` goes by it.
                self.expect_guarded()
            if there == self._domain and await is_guarded(store, self._domain):
                return
            await found_tree(store, paths, self._domain)
            async for _ in walk_rights(store, self._domain, is_mending=True):
                pass

        try:
            await repeat_until_answered(store, found_and_guard)
        except WrongClusterError as error:
            raise self._refuse_cluster(error) from None
        finally:
            await store.close()

    def _refuse_cluster(self, error: WrongClusterError) -> IdentityError:
        return IdentityError(
            f"{error}. {self._authority} was made for another one: move it away, with "
            f"{self._folder}"
        )


def _note_refusal(write: Callable[[], None]) -> list[str]:
    """Why a folder was not written: the others have theirs in time."""
    try:
        write()
    except (IdentityError, OSError) as error:
        return [str(error)]
    return []


def _is_due(
    held: HeldIdentity | None, authority: KeptAuthority, now: dt.datetime, *, is_known: bool
) -> bool:
    """Whether a certificate is to be issued.

    Args:
        is_known: everybody has been handed what the CA's folder trusts, for a while.
    """
    if held is None or now >= held.renew_at:
        return True
    issuer = find_issuer(held.leaf, authority.bundle)
    return issuer is None or (is_known and issuer != list_anchors(authority.bundle)[0])


def is_opening_due(folder: Path, plans: Sequence[ProcessPlan]) -> bool:
    """Whether nodes in this cluster's own ZooKeeper may be for those alone who have an identity,
    or it has to become the cluster that a CA is of.

    Each sign is there before the first such node, and goes when all nodes are anybody's.
    """
    server, mark = _find_server(plans), _find_mark(plans)
    if server is None or mark is None:
        return False
    is_begun = (folder / AUTHORITY_FOLDER).exists() and not _holds_nodes(server)
    return mark.exists() or (folder / OPERATOR_FOLDER).exists() or is_begun


def remove_local_access(folder: Path) -> None:
    """Take away what commands show to a cluster with identities: they would speak TLS by it.

    Raises:
        OSError: it may be there still.
    """
    for name in (TOKEN_FILE, CURL_FILE):
        (folder / name).unlink(missing_ok=True)
    for identity in (OPERATOR_FOLDER, WRITER_FOLDER):
        if (folder / identity).exists():
            shutil.rmtree(folder / identity)


def _report_changes(tell: Callable[[str], None]) -> Callable[[str], None]:
    """What is found at each look again is told once."""
    told = ""

    def report_once(sentence: str) -> None:
        nonlocal told
        if sentence != told:
            told = sentence
            tell(sentence)

    return report_once


def _find_server(plans: Sequence[ProcessPlan]) -> ProcessPlan | None:
    """The ZooKeeper of the cluster; None: it uses another one."""
    return next((plan for plan in plans if plan.role == "zookeeper"), None)


def _holds_nodes(server: ProcessPlan) -> bool:
    """Whether this ZooKeeper ever ran."""
    assert server.data_dir is not None, "a server of ours has a folder"
    return any((server.data_dir / "data").glob("version-2/*"))


def _find_mark(plans: Sequence[ProcessPlan]) -> Path | None:
    server = _find_server(plans)
    return None if server is None or server.data_dir is None else server.data_dir / _GUARDED_FILE


def _read_cluster(data_dir: Path | None) -> str | None:
    """The uuid of the cluster that a bookie's disk is of; None: it says none."""
    if data_dir is None:
        return None
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, InvalidIdentityError):
        return make_domain(json.loads((data_dir / "cookie.json").read_bytes())["cluster_uuid"])
    return None


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
