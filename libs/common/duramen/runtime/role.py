"""What a service process is started with, and what its role must offer the frame around it.

Types only: the frame (`service`) and the admin application (`admin`) run any role by these. How
options are read from a command line is the frame's.

Called by every service. Source: docs/protocol/admin.md "Every service".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Protocol

from duramen.config import ClientLimits
from duramen.limits import (
    ADMIN_CONNECTION_COUNT_PER_PEER,
    AUDIT_INTERVAL_US,
    CONNECTION_COUNT_MAX,
    GIVE_UP_AFTER_US,
    JOURNAL_FILE_BYTES,
    LOST_BOOKIE_GRACE_US,
    METADATA_AGE_MAX_US,
    STEADY_AFTER_US,
)
from duramen.wire.edge.gate import Gate

GOSSIP_ID_BYTES_MAX: Final = 240
"""A name in a word about a process has 255, with what goes before a bookie's."""

PRIVATE_UMASK: Final = 0o077
"""Of every process that keeps data: folders 0700, files 0600."""


@dataclasses.dataclass(frozen=True, slots=True)
class ServiceOptions:
    """What a service process is started with.

    Those from `data_dir` to `first_journal_file_bytes` are for bookies: docs/bookie.md. `advertise`
    is HOST:PORT under which others reach the data port, where it is not the one listened on; others
    reach the administration under the same host. `public_names` are further names that it is called
    by, as behind an ingress: ADR 0025. `accepts_anybody` is for a node that refuses nobody: whether
    it may listen where others reach it. `tls_dir` holds the identity, and `public_tls_dir` the
    certificate of a proxy's public port: docs/protocol/identity.md.
    `tls_data_port` and `tls_admin_port` are where it listens with TLS beside its plain ports, while
    the cluster turns security on: docs/protocol/turning-on.md. `stream_port` is a bookie's and a
    sequencer's, and others reach it as `advertised_stream_port`, where that is another one:
    docs/protocol/standing-streams.md.
    `issuers` is a proxy's: who may say who its clients are, docs/protocol/credentials.md.
    `weight`
    is a sequencer's: its share of the logs, relative to the others'. `audit_interval_us` and
    `lost_bookie_grace_us` are a sequencer's, for when it is the auditor: docs/protocol/repair.md.
    `bookie_steady_after_us` is a sequencer's, for what it places: docs/protocol/placement.md;
    `give_up_after_us` too, for logs that it cannot serve, and `is_balancing`, for when it is the
    auditor: docs/protocol/ownership.md. `is_gossiping` is not a read proxy's:
    docs/protocol/members.md.
    `is_audit_required` is a proxy's: whether changes need room for their records,
    docs/protocol/audit.md.
    `is_forwarding` is a proxy's: whether it sends on what the other kind of proxy answers, and
    `cors_origins`, of which origins pages may read its answers. `cold_store` is the URL of the
    archive, for read proxies and sequencers: docs/cold-store.md. `metadata_age_max_us` is a read
    proxy's, for when ZooKeeper cannot be read: docs/protocol/read-answers.md. `connection_count` is
    of the data or public port, `admin_connection_count_per_peer` of one address at the admin port.
    `client_limits` are a proxy's, of each of its clients: docs/protocol/limits.md.
    """

    role: str
    cluster: str
    node_id: str
    host: str
    data_port: int
    admin_port: int
    zookeeper: str
    region: str
    rack: str
    security: str
    session_timeout_s: float
    data_dir: Path | None
    accepts_anybody: bool = False
    tls_dir: Path | None = None
    public_tls_dir: Path | None = None
    tls_data_port: int | None = None
    tls_admin_port: int | None = None
    stream_port: int | None = None
    advertised_stream_port: int | None = None
    issuers: Path | None = None
    journal_dir: Path | None = None
    ledger_dirs: tuple[Path, ...] = ()
    accept_new_incarnation: bool = False
    journal_file_bytes: int = JOURNAL_FILE_BYTES
    first_journal_file_bytes: int | None = None
    weight: float = 1.0
    advertise: str | None = None
    public_names: tuple[str, ...] = ()
    audit_interval_us: int = AUDIT_INTERVAL_US
    lost_bookie_grace_us: int = LOST_BOOKIE_GRACE_US
    bookie_steady_after_us: int = STEADY_AFTER_US
    give_up_after_us: int = GIVE_UP_AFTER_US
    is_balancing: bool = True
    is_gossiping: bool = True
    keeps_metadata_logs: bool = True
    is_forwarding: bool = True
    is_audit_required: bool = False
    cors_origins: tuple[str, ...] = ()
    cold_store: str | None = None
    metadata_age_max_us: int = METADATA_AGE_MAX_US
    connection_count: int = CONNECTION_COUNT_MAX
    admin_connection_count_per_peer: int = ADMIN_CONNECTION_COUNT_PER_PEER
    client_limits: ClientLimits = ClientLimits()

    @property
    def takes_part_in_gossip(self) -> bool:
        """Whether it is asked to, and its id fits into a word about it."""
        return self.is_gossiping and len(self.node_id.encode()) <= GOSSIP_ID_BYTES_MAX

    def data_url(self, port: int | None = None) -> str:
        """Where others reach the data plane that listens on `port` (default: `data_port`)."""
        listening = f"{self.host}:{self.data_port if port is None else port}"
        is_inside = self.role in ("bookie", "sequencer")
        folder = self.tls_dir if is_inside else self.public_tls_dir
        is_plain = folder is None or self.is_turning
        return f"{'http' if is_plain else 'https'}://{self.advertise or listening}"

    def admin_url(self) -> str:
        """Where others reach the administration: the host of the data plane, and our own port."""
        is_plain = self.tls_dir is None or self.is_turning
        return f"{'http' if is_plain else 'https'}://{self._find_host()}:{self.admin_port}"

    @property
    def is_turning(self) -> bool:
        """Whether it answers in plain text and by TLS, and refuses nobody for who he is."""
        return self.security == "migrate"

    def tls_urls(self) -> dict[str, str]:
        """Where others reach its ports with TLS beside the plain ones, as it is registered."""
        ports = {"tls_data_url": self.tls_data_port, "tls_admin_url": self.tls_admin_port}
        host = self._find_host()
        return {name: f"https://{host}:{port}" for name, port in ports.items() if port is not None}

    def stream_url(self, port: int, process: str) -> str:
        """Where others reach the standing streams that this life of the process serves.

        Args:
            port: that is listened on; `advertised_stream_port` takes its place.
            process: of this life alone, so that no stream begins with another one on its port.
        """
        scheme = "http" if self.tls_dir is None else "https"
        reached = self.advertised_stream_port or port
        return f"{scheme}://{self._find_host()}:{reached}/standing/{process}"

    @property
    def serves_streams(self) -> bool:
        """Whether standing streams are to be had: not while security is turned on or off."""
        return self.stream_port is not None and not self.is_turning

    def _find_host(self) -> str:
        return self.advertise.rpartition(":")[0] if self.advertise else self.host

    def make_gate(self, origins: Iterable[str] = ()) -> Gate:
        """Whom a port answers; pages of `origins` only where that is the public port."""
        advertised = () if self.advertise is None else (self.advertise.rpartition(":")[0],)
        return Gate.of((self.host, *advertised, *self.public_names), origins)


class StartRefusedError(Exception):
    """The service cannot start; the text is one clear sentence with the way out."""


class RoleService(Protocol):
    """What runs inside the frame."""

    def add_admin_routes(self, app: Any) -> None:
        """Add the role's own routes to the admin application (FastAPI)."""

    async def start(self) -> None:
        """Become ready; raises StartRefusedError if that cannot be."""

    async def stop(self) -> None:
        """Hand over and close, bounded in time."""

    def is_ready(self) -> bool:
        """Whether the role can be served now."""

    def statistics(self) -> dict[str, Any]:
        """Every queue and counter, for `/v1/statistics`."""
