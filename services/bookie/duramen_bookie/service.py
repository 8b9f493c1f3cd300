"""The bookie as a service: identity, replay, data server, registration, and the stop.

Start: hold the directory, compare the cookie with ZooKeeper, replay the journal, serve, register.
Stop: unregister, stop serving, write the journal's end mark, remove DIRTY. A journal that fails
ends the process at once, non-zero and without another acknowledgement: DIRTY stays, and the next
start reads what is really on the disk.

Called by `main`, and by tests with a store in memory. Source: docs/bookie.md "Identity",
docs/protocol/metadata.md "available/<id>".
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from fastapi import FastAPI

from duramen.core.bookie import BookieCore
from duramen.core.status import BookieStatus
from duramen.errors import DuramenError
from duramen.ids import (
    BookieId,
    EntryId,
    LedgerId,
    Member,
)
from duramen.limits import READ_BYTES_MAX
from duramen.runtime.audit.by_admin_ports import open_handed_trail
from duramen.runtime.cluster_node import wait_own_cluster
from duramen.runtime.edge.embedded_server import ServerLimits
from duramen.runtime.http_server import Answer, PeerServer, make_guard
from duramen.runtime.identity.names import Identity
from duramen.runtime.members.witnessing import Witnessing
from duramen.runtime.registry import Registration
from duramen.runtime.role import ServiceOptions, StartRefusedError
from duramen.runtime.security.permitted_roles import BOOKIE_PATHS
from duramen.runtime.security.process_security import ProcessSecurity, domain_of
from duramen.runtime.standing.process_name import STREAM_URL, make_process_name
from duramen.runtime.standing.stream_server import (
    Send,
    StreamServer,
    describe_server,
    make_stream_server,
)
from duramen.runtime.stores.metadata_store import MetadataError, MetadataStore, Rejected
from duramen.runtime.turning.fitting import FitCheck
from duramen.wire.bookie_calls import ReadRange
from duramen.wire.disk.checkpoint_format import CheckpointFormatError
from duramen.wire.disk.entry_log_format import EntryLogFormatError
from duramen.wire.disk.journal_format import JournalFormatError
from duramen.wire.member_calls import HELPER_PATH
from duramen.wire.metadata_json import (
    BookieNode,
    MetadataJsonError,
    Paths,
)
from duramen_bookie.admin import add_routes
from duramen_bookie.checkpoint import CheckpointDamaged, CheckpointMismatch
from duramen_bookie.cookie import NEWEST_FORMAT, Cookie, Directories
from duramen_bookie.file_system import PosixFileSystem
from duramen_bookie.handlers import DataPlane
from duramen_bookie.identity import establish_identity
from duramen_bookie.journal.findings import JournalMismatch
from duramen_bookie.journal.writer import JournalPoisoned
from duramen_bookie.metrics import show_server, show_upkeep
from duramen_bookie.repair.calls import RepairCalls
from duramen_bookie.repair.own_node import OwnNode
from duramen_bookie.repair.proofs import MetadataProofs
from duramen_bookie.repair.sources import RegisteredSources
from duramen_bookie.storage import DataLayout, Storage
from duramen_bookie.upkeep.rounds import Upkeep
from duramen_bookie.upkeep.space import SpaceReport

_LOG = logging.getLogger(__name__)
_RETRY_S: Final = 0.3
_OLD_SESSION_RATIO: Final = 2
"""A dead process's session ends within its time-out, once ZooKeeper itself is well."""
_UNUSABLE: Final = (
    CheckpointFormatError,
    CheckpointMismatch,
    JournalFormatError,
    JournalMismatch,
    JournalPoisoned,
    EntryLogFormatError,
    OSError,
)

T = TypeVar("T")


class BookieService:
    """One bookie process.

    Args:
        options: `data_dir` is set.
        fail: ends the process with one sentence and status 1.
        store: the metadata store, not started; closed by `stop`.
        security: None: it has no identity.
    """

    def __init__(
        self,
        options: ServiceOptions,
        fail: Callable[[str], None],
        store: MetadataStore,
        security: ProcessSecurity | None = None,
    ) -> None:
        self._security = security
        self._options = options
        self._fail = fail
        self._store = store
        self._paths = Paths(options.cluster)
        self._handed_trail = open_handed_trail(options, store, self._paths, security)
        self._directories: Directories | None = None
        self._cookie: Cookie | None = None
        self._core: BookieCore | None = None
        self._storage: Storage | None = None
        self._plane: DataPlane | None = None
        self._server: PeerServer | None = None
        self._process = make_process_name()
        self._stream_server: StreamServer | None = None
        self._registration: Registration | None = None
        self._space = SpaceReport("rw", 0)
        self.upkeep: Upkeep | None = None
        self._repair: RepairCalls | None = None
        self._own_node: OwnNode | None = None
        self._witnessing: Witnessing | None = None
        self._proofs = MetadataProofs(store, self._paths, self._on_segment_checked)
        self._is_store_opened = False
        self._is_storage_started = False
        self._is_ready = False
        self._is_poisoned = False

    # --- Service ---------------------------------------------------------------------------------

    def add_admin_routes(self, app: FastAPI) -> None:
        """Add the bookie's routes."""
        add_routes(app, self)

    async def start(self) -> None:
        """Become ready.

        Raises:
            StartRefusedError: the disk is not this bookie's, or cannot be read; with the way out.
        """
        options = self._options
        assert options.data_dir is not None
        self._directories = directories = Directories(
            options.data_dir, options.journal_dir, options.ledger_dirs
        )
        self._is_store_opened = True
        own = domain_of(self._security)
        await self._insist(lambda: wait_own_cluster(self._store, self._paths, own))
        fitting = FitCheck(self._store, options)
        await fitting.wait_fitting()
        self._cookie = cookie = await self._establish(directories)
        if self._security is not None:
            self._security.rights.follow(self._store, self._paths)
        if self._handed_trail is not None:
            await self._handed_trail.start()
        was_dirty = directories.is_dirty()
        directories.mark_dirty()
        storage = self._make_storage(directories, cookie)
        await self._replay(storage, was_dirty)
        self._core, self._storage = storage.core, storage
        self._plane = self._make_plane(storage)
        storage.start()
        self._is_storage_started = True
        self._repair = RepairCalls(
            storage,
            self._plane,
            RegisteredSources(self._store, self._paths, self._security).find,
            security=self._security,
        )
        self._repair.start()
        if options.takes_part_in_gossip:
            self._start_witnessing(self._plane)
        self._own_node = OwnNode(
            self._store, self._paths, cookie.bookie_id, cookie.incarnation, self._on_node
        )
        await self._own_node.start()
        self.upkeep = Upkeep(
            storage,
            self._store,
            self._paths,
            member=Member(cookie.bookie_id, cookie.incarnation),
            cluster_uuid=cookie.cluster_uuid,
            drain=self._plane.drain,
            on_report=self._on_space,
        )
        show_upkeep(self.upkeep.statistics, storage.statistics)
        await self.upkeep.start()
        self._server = self._make_server(self._plane)
        await self._server.start()
        self._stream_server = self._make_stream_server(self._plane)
        if self._stream_server is not None:
            await self._stream_server.start()
        self._registration = Registration(
            self._store, f"{self._paths.available}/{options.node_id}", self._node_fields()
        )
        await self._registration.start()
        await fitting.check_registered()
        if storage.core.is_doubtful and not storage.core.is_doubt_bounded:
            await self._insist(self._bound_doubt)
        self._is_ready = True

    async def stop(self) -> None:
        """Unregister, stop serving, write the end mark, give the directory back."""
        self._is_ready = False
        if self._registration is not None:
            await self._registration.stop()
        if self._handed_trail is not None:
            # What is served still may be the copy that the audit log needs for it.
            await self._handed_trail.stop()
        if self._own_node is not None:
            await self._own_node.stop()
        self._proofs.stop()
        if self._witnessing is not None:
            await self._witnessing.stop()
        if self.upkeep is not None:
            await self.upkeep.stop()
        if self._security is not None:
            await self._security.rights.stop()
        if self._is_store_opened:
            await self._store.close()
        if self._plane is not None:
            self._plane.stop("the bookie is stopping")
        if self._repair is not None:
            await self._repair.stop()
        if self._stream_server is not None:
            await self._stream_server.stop()
        if self._server is not None:
            await self._server.stop()
        if self._plane is not None:
            await self._plane.close()
        if self._directories is None:
            return
        if self._storage is not None and self._is_storage_started:
            try:
                await self._storage.close()
                self._directories.mark_clean()
            except JournalPoisoned as error:
                _LOG.error("the journal is left as it is: %s", error)
        self._directories.release()

    def is_ready(self) -> bool:
        """Whether requests are served now."""
        return self._is_ready and not self._is_poisoned

    def statistics(self) -> dict[str, Any]:
        """Core, data plane, storage and metadata store."""
        if self._core is None or self._storage is None or self._plane is None:
            return {"store": self._store.statistics()}
        return {
            "core": self._core.statistics(),
            "data_plane": self._plane.statistics(),
            "server": self._server.statistics() if self._server is not None else None,
            "stream_server": describe_server(self._stream_server),
            "storage": self._storage.statistics(),
            "upkeep": self.upkeep.statistics() if self.upkeep is not None else None,
            "repair": self._repair.statistics() if self._repair is not None else None,
            "witness": self._witnessing.statistics() if self._witnessing is not None else None,
            "security": self._security.statistics() if self._security is not None else None,
            "audit": self._handed_trail.statistics() if self._handed_trail is not None else None,
            **self._proofs.statistics(),
            "store": self._store.statistics(),
        }

    # --- What the admin routes and tests ask -----------------------------------------------------

    @property
    def data_url(self) -> str:
        """Where others reach what is served here."""
        assert self._server is not None
        return self._options.data_url(self._server.port)

    def running_core(self) -> BookieCore:
        """The core, once replay is over.

        Raises:
            DuramenError: `overloaded`, while the bookie starts.
        """
        if self._core is None:
            raise DuramenError("overloaded", "the bookie is starting: try again soon")
        return self._core

    def running_upkeep(self) -> Upkeep:
        """The upkeep, once the bookie runs.

        Raises:
            DuramenError: `overloaded`, while the bookie starts.
        """
        if self.upkeep is None:
            raise DuramenError("overloaded", "the bookie is starting: try again soon")
        return self.upkeep

    async def read_entry(
        self, ledger_id: LedgerId, entry_id: EntryId
    ) -> tuple[BookieStatus, bytes | None]:
        """One entry as a reader would get it.

        Raises:
            DuramenError: `overloaded`, while the bookie starts.
        """
        plan = self.running_core().plan(ReadRange(ledger_id, entry_id, entry_id, READ_BYTES_MAX))
        assert self._storage is not None
        readings, _ = self._storage.select([plan])
        result = await asyncio.to_thread(self._storage.read, readings)
        (answer,) = result.answers
        return answer.status, bytes(answer.entries[0][1]) if answer.entries else None

    def describe(self) -> dict[str, Any]:
        """Identity and sizes, for `/v1/state`."""
        statistics = self.running_core().statistics()
        assert self._cookie is not None and self._storage is not None
        return {
            "bookie_id": self._cookie.bookie_id,
            "incarnation": self._cookie.incarnation,
            "cluster_uuid": self._cookie.cluster_uuid,
            "volume_uuid": self._cookie.volume_uuid,
            "sealed_logs": statistics["sealed_logs"],
            "ledgers": statistics["ledgers"],
            "entries": statistics["entries"],
            "entry_bytes": self._storage.entry_bytes,
            "space": self.running_upkeep().space.level.value,
            "duty": self._core.duty.value if self._core is not None else None,
            "is_ready": self.is_ready(),
            "journal": self.describe_journal()["state"],
        }

    def describe_journal(self) -> dict[str, Any]:
        """What the journal did and what waits, for `/v1/journal`."""
        assert self._storage is not None
        return self._storage.journal_state()

    # --- Steps -----------------------------------------------------------------------------------

    async def _insist(self, step: Callable[[], Awaitable[T]]) -> T:
        """Try a metadata step until ZooKeeper answers it; each is safe to begin again."""
        while True:
            try:
                return await step()
            except (Rejected, MetadataJsonError) as error:
                raise StartRefusedError(f"ZooKeeper holds something else: {error}") from error
            except MetadataError as error:
                _LOG.warning("waiting for ZooKeeper: %s", error)
                await asyncio.sleep(_RETRY_S)

    def _make_storage(self, directories: Directories, cookie: Cookie) -> Storage:
        layout = DataLayout(
            str(directories.data.path),
            str(directories.journal.path),
            tuple(str(directory.path) for directory in directories.ledgers),
        )

        def identity_of(ledger_id: LedgerId, entry_id: EntryId) -> int | None:
            return storage.entry_log.identity_of(ledger_id, entry_id)

        core = BookieCore(
            cookie.incarnation, identity_of=identity_of, start_number=secrets.randbits(32)
        )
        storage = Storage(
            layout,
            PosixFileSystem(),
            core,
            on_poisoned=self._on_poisoned,
            on_durable=self._on_durable,
            keeps_envelopes=cookie.format >= NEWEST_FORMAT,
            write_formats=directories.secure_newest_format,
            now_unix_us=lambda: time.time_ns() // 1_000,
            journal_file_bytes=self._options.journal_file_bytes,
            first_journal_file_bytes=self._options.first_journal_file_bytes,
        )
        return storage

    async def _establish(self, directories: Directories) -> Cookie:
        """Whose disks these are, in whose cluster."""
        options, domain = self._options, domain_of(self._security)
        return await self._insist(
            lambda: establish_identity(
                directories,
                self._store,
                self._paths,
                BookieId(options.node_id),
                region=options.region,
                rack=options.rack,
                accepts_new_incarnation=options.accept_new_incarnation,
                domain=domain,
                old_session_s=_OLD_SESSION_RATIO * options.session_timeout_s,
            )
        )

    def _make_server(self, plane: DataPlane) -> PeerServer:
        options = self._options
        server = PeerServer(
            options.host,
            options.data_port,
            plane.handle,
            gate=options.make_gate(),
            guard=make_guard(self._security, BOOKIE_PATHS, options.tls_data_port),
            limits=ServerLimits(connection_count=options.connection_count),
        )
        show_server(server.statistics)
        return server

    def _make_stream_server(self, plane: DataPlane) -> StreamServer | None:
        def on_request(
            path: str, body: bytes, peer: str, caller: Identity | None, _send: Send
        ) -> Awaitable[Answer]:
            return plane.handle(path, body, peer, caller)

        return make_stream_server(
            self._options, self._process, on_request, self._security, BOOKIE_PATHS
        )

    def _make_plane(self, storage: Storage) -> DataPlane:
        return DataPlane(
            storage.core,
            storage,
            self._proofs.check_segment,
            read_next_epoch=self._proofs.read_next_epoch,
            on_damage=self._on_damage,
            on_broken=self._on_broken,
        )

    def _start_witnessing(self, plane: DataPlane) -> None:
        """Others ask whether this bookie reaches a sequencer."""
        self._witnessing = Witnessing(
            self._options.node_id, self._store, self._paths.sequencers, security=self._security
        )
        plane.serve(HELPER_PATH, self._witnessing.on_call)
        self._witnessing.start()

    async def _replay(self, storage: Storage, was_dirty: bool) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(None, storage.replay)
        except CheckpointDamaged as error:
            raise StartRefusedError(
                f"StaleDisk: {error}: run duramen-bookie fsck; if no copy is whole, empty every "
                "directory and start with --accept-new-incarnation"
            ) from error
        except _UNUSABLE as error:
            raise StartRefusedError(f"StaleDisk: the disk cannot be used: {error}") from error
        replayed = storage.replayed
        _LOG.info(
            "replayed %d records, %d bytes, after %s stop",
            replayed.record_count,
            replayed.replayed_bytes,
            "an unclean" if was_dirty else "a clean",
        )
        for damage in replayed.damages:
            _LOG.error("the journal is damaged: %s", damage)

    def _node_fields(self) -> dict[str, Any]:
        assert self._cookie is not None and self._own_node is not None
        node = self._own_node.node
        return {
            "incarnation": self._cookie.incarnation,
            "data_url": self.data_url,
            "admin_url": self._options.admin_url(),
            **self._options.tls_urls(),
            **self._stream_fields(),
            "state": self._space.state,
            "free_bytes": self._space.free_bytes,
            "draining": not node.duty.takes_new_ledgers,
            "duty": node.duty.value,
            "region": node.region,
            "rack": node.rack,
            "weight": node.weight,
            "doubtful": self.running_core().is_doubtful,
        }

    def _stream_fields(self) -> dict[str, str]:
        server = self._stream_server
        if server is None:
            return {}
        return {STREAM_URL: self._options.stream_url(server.port, self._process)}

    def _on_space(self, report: SpaceReport) -> None:
        self._space = report
        if self._registration is not None:
            self._registration.update(self._node_fields())

    def _on_node(self, node: BookieNode) -> None:
        """What the node says holds, then it is published."""
        self.running_core().set_duty(node.duty)
        if self._registration is not None:
            self._registration.update(self._node_fields())

    def _on_damage(self, ledger_id: LedgerId) -> None:
        if self.upkeep is not None:
            self.upkeep.on_unreadable(ledger_id)

    def _on_durable(self) -> None:
        if self._plane is not None:
            self._plane.drain()

    def _on_poisoned(self, error: JournalPoisoned) -> None:
        self._stop_serving(f"the journal has failed, nothing more is acknowledged: {error}")

    def _on_broken(self, error: Exception) -> None:
        """The process ends, and its next life begins with what is durable."""
        _LOG.critical("a broken invariant", exc_info=error)
        self._stop_serving(f"a broken invariant, nothing more is acknowledged: {error!r}")

    def _stop_serving(self, sentence: str) -> None:
        self._is_poisoned = True
        if self._plane is not None:
            self._plane.stop(sentence)
        self._fail(sentence)

    # --- What the metadata proves after damage (R10, R15) ----------------------------------------

    def _on_segment_checked(self, ledger_id: LedgerId, is_open: bool, made: int) -> None:
        assert self._plane is not None
        self._plane.on_segment_checked(ledger_id, is_open=is_open, made=made)

    async def _bound_doubt(self) -> None:
        """Find out which ledgers certainly began after the damage: those of segments whose node
        was made later than the one by which this process registered, after its replay (R15).

        What the journal holds is settled soon, so that no later start meets the same damage again
        and has to count anew from then.
        """
        made = await self._proofs.read_registered_at(BookieId(self._options.node_id))
        self.running_core().on_doubt_bounded(made)
        self.running_upkeep().hurry("settling")
