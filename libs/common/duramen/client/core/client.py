"""A process's place in a cluster as a writer and reader of its own: ZooKeeper, bookies, its logs.

`CoreClient` runs the sequencer's driver and the read proxy's cursor inside the application. It has
no port, so nobody can append through it; it registers nowhere but in the owner nodes of the logs
that it opens. Logs are made by other means (REST, `duramen log create`).

Not here: appends through proxies (`duramen.client.Client`), which most applications want.
Source: README.md "The processes", docs/sdk.md, ADR 0013.
"""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from duramen.client.core.own_identity import check_may_own, open_security
from duramen.client.core.owned_log import APPEND_TIMEOUT_S, OPEN_TIMEOUT_S, OwnedLog
from duramen.client.core.parts import make_owning, make_reading
from duramen.client.core.read_log import ReadLog
from duramen.client.credentials.local_cluster import find_local_writer
from duramen.core.placement.node_states import ListChange
from duramen.core.reading.replica_order import Place
from duramen.errors import DuramenError
from duramen.ids import BookieId, LogId
from duramen.limits import ZOOKEEPER_SESSION_S
from duramen.runtime.cluster_node import find_cluster
from duramen.runtime.http_client import PeerClient
from duramen.runtime.identity.names import IdentityError, Role
from duramen.runtime.security.process_security import learn_role
from duramen.runtime.sequencer.maintenance import Maintenance
from duramen.runtime.sequencer.surveyor import Surveyor
from duramen.runtime.stores.metadata_store import MetadataError, MetadataStore, SessionState
from duramen.runtime.stores.zookeeper_store import ZooKeeperStore
from duramen.units import MIB
from duramen.wire.metadata_json import MetadataJsonError, Paths

CLUSTER_DEFAULT: Final = "local"
CACHE_BYTES_DEFAULT: Final = 32 * MIB
"""For what is read ahead; a reader holds 8 MiB besides."""


class CoreClient:
    """Opens logs to append to, and reads logs; `async with` connects and leaves.

    Args:
        zookeeper: `host:port,host:port…`.
        cluster: its name in ZooKeeper; `duramen run` calls it `local`, which is the default.
        name: who writes, for people that look at owner nodes; unique by what is added to it. None:
            the host's name.
        region, rack: where this process is; replicas near it are read first. "": not known.
        session_timeout_s: seconds, above 0, that a log stays this process's after it has died; 4.
        cache_bytes: of entries that were read ahead; 32 MiB.
        cold_store: URL of the archive (`duramen[cold]`); None: what has left the bookies cannot be
            read (`cold_store_unavailable`).
        identity: folder of an identity of the role `corewriter`, or `corereader` for who only
            reads, where ZooKeeper and bookies ask who calls (`duramen ca issue`); looked at every
            2 s, so that what is renewed counts. None: that of the local cluster in `.duramen`, if
            this is its ZooKeeper and it has one; else they ask nobody.
        store: in the place of ZooKeeper, for tests.

    Raises:
        DuramenError: `invalid_argument`: the folder holds no such identity that is valid.
    """

    def __init__(
        self,
        zookeeper: str,
        *,
        cluster: str = CLUSTER_DEFAULT,
        name: str | None = None,
        region: str = "",
        rack: str = "",
        session_timeout_s: float = ZOOKEEPER_SESSION_S,
        cache_bytes: int = CACHE_BYTES_DEFAULT,
        cold_store: str | None = None,
        identity: str | Path | None = None,
        store: MetadataStore | None = None,
    ) -> None:
        self.writer_id = f"core-{name or socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._zookeeper = zookeeper
        folder = find_local_writer(zookeeper) if identity is None else Path(identity)
        self._security = None if folder is None else open_security(folder, self._on_identity_ended)
        self._store = store or ZooKeeperStore(
            zookeeper, session_timeout_s=session_timeout_s, identity_dir=folder
        )
        self._paths = Paths(cluster)
        self._client = PeerClient(self._security)
        self._open_logs: dict[LogId, OwnedLog] = {}
        self._owning = make_owning(
            self._store, self._paths, self.writer_id, self._client, self._find_url
        )
        self._owning.lanes.watch.on_lists_changed = self._on_lists_changed
        self._surveyor = Surveyor(
            self._store, self._paths, self._owning.context, self._on_bookies_changed,
            learn=learn_role(self._security, Role.BOOKIE),
        )  # fmt: skip
        self._maintenance = Maintenance(
            self._store, self._paths, self._on_maintenance, self._count_changing
        )
        self._reading = make_reading(
            self._store, self._paths, Place(region, rack), cache_bytes, cold_store,
            client=self._client, security=self._security,
        )  # fmt: skip

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            DuramenError: `metadata_unavailable`: ZooKeeper does not answer, or has no such cluster;
                a retry by another `CoreClient` is safe.
        """
        if self._security is not None:
            self._security.start()
        try:
            await self._store.start()
            if await find_cluster(self._store, self._paths) is None:
                detail = f"{self._zookeeper} knows no cluster at {self._paths.root}"
                raise DuramenError("metadata_unavailable", detail)
            self._store.on_session(self._on_session)
            await self._surveyor.start()
            await self._maintenance.start()
            await self._reading.bookies.start()
        except (IdentityError, MetadataError, MetadataJsonError) as error:
            await self._stop()
            raise DuramenError("metadata_unavailable", f"{self._zookeeper}: {error}") from error
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Leave; logs that are still open are left to their next owner."""
        for log in list(self._open_logs.values()):
            await log.abandon()
        await self._stop()

    async def _stop(self) -> None:
        """End what runs, however far the start has come."""
        await self._owning.lanes.stop()
        await self._reading.fetcher.stop()
        await self._reading.bookies.stop()
        await self._maintenance.stop()
        await self._surveyor.stop()
        await self._store.close()
        await self._client.close()
        if self._security is not None:
            await self._security.stop()

    def log(self, namespace: str, name: str) -> ReadLog:
        """A log, to be read; asks nobody.

        Args:
            namespace: 1 to 63 of `a-z`, `0-9` and `-`; begins and ends with a letter or digit.
            name: 1 to 255 of `A-Z`, `a-z`, `0-9`, `.`, `_` and `-`; begins with a letter or digit.

        Returns:
            A `ReadLog`, whether the cluster has it or not.

        Raises:
            DuramenError: `invalid_name`; a retry fails again.
        """
        return ReadLog(self._reading, namespace, name)

    def open_log(
        self,
        namespace: str,
        name: str,
        *,
        open_timeout_s: float = OPEN_TIMEOUT_S,
        append_timeout_s: float = APPEND_TIMEOUT_S,
    ) -> OwnedLog:
        """A log to own, from the beginning of `async with` to its end: see `OwnedLog`.

        Whoever has the log loses it. Nobody else can append to it until it is closed, or until the
        session of this process has ended.

        Args:
            namespace: 1 to 63 of `a-z`, `0-9` and `-`; begins and ends with a letter or digit.
            name: 1 to 255 of `A-Z`, `a-z`, `0-9`, `.`, `_` and `-`; begins with a letter or digit.
                The log must exist.
            open_timeout_s: seconds to try to own it, above 0; 30.
            append_timeout_s: seconds, above 0; 10. An append that is not acknowledged by then ends
                the life of the object.

        Returns:
            An `OwnedLog`, not open yet.

        Raises:
            DuramenError: `invalid_name`, or `forbidden`: the identity of this process only reads;
                a retry fails again.
        """
        check_may_own(self._security)
        return OwnedLog(
            self._owning,
            self._reading,
            namespace,
            name,
            open_timeout_s=open_timeout_s,
            append_timeout_s=append_timeout_s,
            open_logs=self._open_logs,
        )

    def statistics(self) -> dict[str, Any]:
        """Count what waits and what was done in the process, and in its open logs.

        Returns:
            `writer_id`; `metadata`, `lanes`, `bookies`, `upstream`, `security`: counts each, the
            latter None without an identity; `logs`: counts by log.

        Raises:
            Nothing.
        """
        return {
            "writer_id": self.writer_id,
            "metadata": self._store.statistics(),
            "lanes": self._owning.lanes.statistics(),
            "bookies": self._reading.bookies.statistics(),
            "upstream": self._reading.fetcher.statistics(),
            "security": None if self._security is None else self._security.statistics(),
            "logs": {repr(log): log.statistics() for log in self._open_logs.values()},
        }

    def _find_url(self, bookie: BookieId) -> str | None:
        return self._surveyor.urls.get(bookie)

    def _on_bookies_changed(self) -> None:
        rows = self._surveyor.list_bookies()
        leaving = frozenset(row.bookie for row in rows if not row.duty.takes_new_ledgers)
        for log in list(self._open_logs.values()):
            log.on_bookies_changed(leaving)

    def _on_lists_changed(self, change: ListChange) -> None:
        for log in list(self._open_logs.values()):
            log.on_lists_changed(change)

    def _on_maintenance(self, is_suspended: bool) -> None:
        self._owning.context.is_rolling_suspended = is_suspended

    def _count_changing(self) -> int:
        return sum(log.is_changing for log in self._open_logs.values())

    def _on_identity_ended(self, why: str) -> None:
        for log in list(self._open_logs.values()):
            log.on_identity_ended(why)

    def _on_session(self, state: SessionState) -> None:
        self._owning.context.is_metadata_reachable = state is SessionState.CONNECTED
        if state is SessionState.CONNECTED:
            for log in list(self._open_logs.values()):
                log.on_session()
