"""Which processes a local cluster has, and where each listens and keeps its data.

Ports are a base plus an offset by role: with the base 7100 bookie i has 7101 + 2i (data) and
7102 + 2i (administration), sequencers begin at 7201, write proxies at 7301, read proxies at 7401,
ZooKeeper has 7181. Every port of a base that somebody asked for has to be free; without one, what
is taken is replaced by a free port, and with the base 0 all are picked, as those with TLS are:
below the range of outgoing connections, none of which can sit on one while its process restarts.
Standing streams have what is left of a hundred, from 7200 and 7300 down, or any port that is free.
DURAMEN_FREE_PORTS narrows the choice: clusters that start at the same moment keep apart by it.

Where nobody says otherwise there is one region, and each process is a rack of its own, because
placement is strict about racks (docs/protocol/configuration.md "Log"). Named regions take turns,
and their racks do: nine bookies fill three racks of three regions.

Called by the supervisor. Source: docs/protocol/turning-on.md "On a laptop".
"""

from __future__ import annotations

import itertools
import os
import random
import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple

Security = Literal["on", "migrate", "none"]
"""Whether the services of a folder ask who calls; `migrate`: they ask, and refuse nobody."""

CLUSTER_NAME: Final = "local"
REGION: Final = "local"
HOST: Final = "127.0.0.1"
BASE_PORT_DEFAULT: Final = 7100
_RECORDING: Final = ("sequencer", "writeproxy", "readproxy")
"""Where callers are known, audit records wait in a folder: docs/protocol/audit.md."""

_INSIDE: Final = ("bookie", "sequencer")
"""Whose data port speaks as the cluster does inside; a public port is plain on loopback."""

COUNT_MAX: Final = 49
"""Processes of one role: two ports each, one hundred ports per role."""

_OFFSETS: Final = {
    "zookeeper": 81,
    "bookie": 1,
    "sequencer": 101,
    "writeproxy": 201,
    "readproxy": 301,
}
_STREAM_OFFSETS: Final = {"bookie": 100, "sequencer": 200}
"""Of the first one's standing streams; those of the others count down. Nobody outside has to know
them, so none of these has to be free where somebody asked for a base."""

FREE_PORTS_VARIABLE: Final = "DURAMEN_FREE_PORTS"
"""`FIRST-LAST`, both included."""

FIRST_FREE_PORT: Final = 10_000

_EPHEMERAL_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_PORT_TRIES_MAX: Final = 1000
# Begins anywhere: clusters that start at the same moment are seldom at the same port.
_port_turns: Final = itertools.count(random.randrange(65_536))
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class LayoutError(ValueError):
    """The cluster asked for cannot be laid out; the text says why."""


@dataclass(frozen=True, slots=True)
class ClusterSize:
    """How many processes of each role; each 1 to COUNT_MAX."""

    bookies: int = 3
    sequencers: int = 1
    write_proxies: int = 1
    read_proxies: int = 1
    regions: tuple[str, ...] = (REGION,)
    racks: tuple[str, ...] = ()
    """Of each region; none: every process has its own."""

    def __post_init__(self) -> None:
        for role, count in self.counts().items():
            if not 1 <= count <= COUNT_MAX:
                raise LayoutError(f"{count} × {role}: from 1 to {COUNT_MAX} are possible")
        if not self.regions:
            raise LayoutError("there is one region at least")
        for name in (*self.regions, *self.racks):
            if not _NAME.fullmatch(name):
                raise LayoutError(
                    f"{name!r} is no name of a region or rack: 1 to 63 of A-Z, a-z, 0-9, '.', '_' "
                    "and '-'"
                )
        for names in (self.regions, self.racks):
            if len(set(names)) < len(names):
                raise LayoutError(f"{', '.join(names)}: each once")

    def place(self, index: int) -> tuple[str, str]:
        """Region and rack of the process with this index in its role, from 0 on."""
        round_count, turn = divmod(index, len(self.regions))
        rack = self.racks[round_count % len(self.racks)] if self.racks else f"r{index + 1}"
        return self.regions[turn], rack

    def counts(self) -> dict[str, int]:
        """Role → number of processes, in start order, ZooKeeper left out."""
        return {
            "bookie": self.bookies,
            "sequencer": self.sequencers,
            "writeproxy": self.write_proxies,
            "readproxy": self.read_proxies,
        }


class ListenPorts(NamedTuple):
    """Where one process listens; ZooKeeper has no administration port.

    `tls_data`, `tls_admin`: with TLS, beside the others that then are plain; None: it has none.
    `stream`: a bookie's and a sequencer's, for standing streams.
    """

    data: int
    admin: int | None
    tls_data: int | None = None
    tls_admin: int | None = None
    stream: int | None = None


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """One process of the cluster."""

    role: str
    node_id: str
    rack: str
    ports: ListenPorts
    log_file: Path
    data_dir: Path | None
    region: str = REGION
    has_identity: bool = False

    @property
    def data_url(self) -> str:
        """Where it serves."""
        has_tls = self.has_identity and self.role in _INSIDE and not self.is_turning
        scheme = "tcp" if self.role == "zookeeper" else "https" if has_tls else "http"
        return f"{scheme}://{HOST}:{self.ports.data}"

    @property
    def admin_url(self) -> str | None:
        """Where it is administered; None for ZooKeeper."""
        scheme = "https" if self.has_identity and not self.is_turning else "http"
        return None if self.ports.admin is None else f"{scheme}://{HOST}:{self.ports.admin}"

    @property
    def is_turning(self) -> bool:
        """Whether it answers in plain text and by TLS."""
        return self.ports.tls_data is not None or self.ports.tls_admin is not None

    @property
    def tls_data_url(self) -> str | None:
        """Where it serves by TLS beside `data_url`; None: there alone."""
        scheme = "tcp" if self.role == "zookeeper" else "https"
        return None if self.ports.tls_data is None else f"{scheme}://{HOST}:{self.ports.tls_data}"

    @property
    def tls_admin_url(self) -> str | None:
        """Where it is administered by TLS beside `admin_url`; None: there alone, or nowhere."""
        return None if self.ports.tls_admin is None else f"https://{HOST}:{self.ports.tls_admin}"


def is_free_port(port: int) -> bool:
    """Whether a server could listen on this port of loopback now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def pick_free_port() -> int:
    """A port of loopback that is free now and is never given to an outgoing connection.

    A process is given each port of its range once before it is given one again: what was picked
    is free until its process listens.

    Raises:
        LayoutError: none was found, or DURAMEN_FREE_PORTS is no range of ports.
    """
    ports = find_port_range()
    for _ in range(_PORT_TRIES_MAX):
        port = ports[next(_port_turns) % len(ports)]
        if is_free_port(port):
            return port
    raise LayoutError(f"no free port from {ports[0]} to {ports[-1]} was found on loopback")


def find_port_range() -> range:
    """Where free ports are picked: below those of outgoing connections, or as the environment says.

    Raises:
        LayoutError: DURAMEN_FREE_PORTS is no range of ports.
    """
    said = os.environ.get(FREE_PORTS_VARIABLE)
    if said:
        found = re.fullmatch(r"(\d{1,5})-(\d{1,5})", said)
        if found is None or not 1024 <= int(found[1]) <= int(found[2]) <= 65_535:
            raise LayoutError(
                f"{FREE_PORTS_VARIABLE}={said!r}: FIRST-LAST, from 1024 to 65535, as 20000-20999"
            )
        return range(int(found[1]), int(found[2]) + 1)
    try:
        first_ephemeral = int(_EPHEMERAL_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        first_ephemeral = 32768
    most = first_ephemeral if first_ephemeral > FIRST_FREE_PORT + 1_000 else 65_536
    return range(FIRST_FREE_PORT, most)


def plan_cluster(
    folder: Path,
    size: ClusterSize,
    *,
    base_port: int | None,
    has_zookeeper: bool,
    remembered: Mapping[str, ListenPorts],
    security: Security = "none",
    is_free: Callable[[int], bool] = is_free_port,
    pick: Callable[[], int] = pick_free_port,
) -> list[ProcessPlan]:
    """Lay the cluster out, processes in start order.

    Args:
        folder: absolute path of the cluster's data.
        base_port: see the module; 0 for free ports throughout; None: nobody asked for one.
        has_zookeeper: whether a ZooKeeper server belongs to the cluster.
        remembered: id → ports of the last run, used again where they are free, unless there is a
            base that says others.
        security: `none`: no service has an identity; `migrate`: ports with TLS come beside plain
            ones, used again as any where they are free, and picked else.

    Raises:
        LayoutError: the base leaves no room, a port of it is taken, or no port is free.
    """
    if base_port and not 1024 <= base_port <= 65_535 - 400:
        raise LayoutError(f"base port {base_port}: 0, or from 1024 to {65_535 - 400}")
    is_asked_for = bool(base_port)
    base_port = BASE_PORT_DEFAULT if base_port is None else base_port
    last = {} if is_asked_for else remembered
    members = list(_members(size, has_zookeeper=has_zookeeper))
    choice = _PortChoice(is_free, pick)
    ports = _settle_ports(members, base_port, last, choice, is_needed=is_asked_for)
    if security == "migrate":
        for role, index in members:
            node_id = f"{role}-{index}"
            ports[node_id] = _add_tls(
                role, node_id, ports[node_id], remembered.get(node_id), choice
            )
    _add_streams(ports, members, base_port, last, choice)
    plans = []
    is_secure = security != "none"
    for role, index in members:
        node_id = f"{role}-{index}"
        region, rack = size.place(index)
        has_data = role in ("zookeeper", "bookie") or (is_secure and role in _RECORDING)
        plans.append(
            ProcessPlan(
                role=role,
                node_id=node_id,
                region=region,
                rack=rack,
                ports=ports[node_id],
                log_file=folder / "logs" / f"{node_id}.log",
                data_dir=folder / node_id if has_data else None,
                has_identity=is_secure and role != "zookeeper",
            )
        )
    return plans


class _PortChoice:
    """Ports of one cluster, none of which is given twice."""

    def __init__(self, is_free: Callable[[int], bool], pick: Callable[[], int]) -> None:
        self._is_free = is_free
        self._pick = pick
        self._taken: set[int] = set()

    def settle(self, node_id: str, wanted: tuple[int, ...], *, is_needed: bool) -> int:
        """The first that is free; else any, unless that is no port that somebody asked for."""
        for port in wanted:
            if port and port not in self._taken and self._is_free(port):
                break
        else:
            if is_needed:
                raise LayoutError(
                    f"port {wanted[-1]}, which {node_id} would have, is taken: end what listens "
                    "there, or choose another --base-port (0: any that are free)"
                )
            port = next(port for port in iter(self._pick, -1) if port not in self._taken)
        self._taken.add(port)
        return port


def _settle_ports(
    members: Sequence[tuple[str, int]],
    base_port: int,
    remembered: Mapping[str, ListenPorts],
    choice: _PortChoice,
    *,
    is_needed: bool,
) -> dict[str, ListenPorts]:
    """Id → data and administration ports, which somebody may have asked for."""
    settled = {}
    for role, index in members:
        node_id = f"{role}-{index}"
        first = base_port and base_port + _OFFSETS[role] + 2 * index
        last = remembered.get(node_id, ListenPorts(0, 0))
        data = choice.settle(node_id, (last.data, first), is_needed=is_needed)
        admin = None
        if role != "zookeeper":
            wanted = (last.admin or 0, first and first + 1)
            admin = choice.settle(node_id, wanted, is_needed=is_needed)
        settled[node_id] = ListenPorts(data, admin)
    return settled


def _add_streams(
    ports: dict[str, ListenPorts],
    members: Sequence[tuple[str, int]],
    base_port: int,
    remembered: Mapping[str, ListenPorts],
    choice: _PortChoice,
) -> None:
    """Those of standing streams come last: they move nobody else's."""
    for role, index in members:
        if role not in _STREAM_OFFSETS:
            continue
        node_id = f"{role}-{index}"
        last = remembered.get(node_id)
        first = base_port and base_port + _STREAM_OFFSETS[role] - index
        wanted = ((last and last.stream) or 0, first)
        stream = choice.settle(node_id, wanted, is_needed=False)
        ports[node_id] = ports[node_id]._replace(stream=stream)


def _add_tls(
    role: str, node_id: str, ports: ListenPorts, last: ListenPorts | None, choice: _PortChoice
) -> ListenPorts:
    """Those with TLS come after plain ones are settled: they may have any number."""
    data = admin = None
    if role in ("zookeeper", *_INSIDE):
        data = choice.settle(node_id, ((last and last.tls_data) or 0,), is_needed=False)
    if role != "zookeeper":
        admin = choice.settle(node_id, ((last and last.tls_admin) or 0,), is_needed=False)
    return ports._replace(tls_data=data, tls_admin=admin)


def _members(size: ClusterSize, *, has_zookeeper: bool) -> Iterator[tuple[str, int]]:
    if has_zookeeper:
        yield "zookeeper", 0
    for role, count in size.counts().items():
        for index in range(count):
            yield role, index
