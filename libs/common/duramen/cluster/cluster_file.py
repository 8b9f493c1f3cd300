"""`cluster.json`: what a local cluster consists of right now, for people, tools and chaos tests.

Written whole and atomically (temporary file, fsync, rename, fsync of the folder) at every change:
a reader never sees half of it, and a process that is dead has no pid in it. It is also the
supervisor's memory: the ports of the last run, and whether it had identities.

The shape is docs/protocol/admin.md "cluster.json", with `"v"`. Called by the supervisor (writes)
and the command line (reads).
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast, get_args
from urllib.parse import urlsplit

from duramen.cluster.layout import ListenPorts, ProcessPlan, Security
from duramen.runtime.folders import sync_folder

FILE_NAME: Final = "cluster.json"
VERSION: Final = 1
AUTHORITY_FOLDER: Final = "ca"
_BOOKIE_FOLDER: Final = "bookie-0"
_PORT_MAX: Final = 65_535


class ClusterFileError(Exception):
    """There is no readable cluster.json; the text says where and what to do."""


@dataclass(frozen=True, slots=True)
class ClusterProcess:
    """One process as the file has it; `pid` is None while it does not run."""

    role: str
    node_id: str
    pid: int | None
    incarnation: str | None
    region: str
    rack: str
    data_url: str
    admin_url: str | None
    data_dir: str | None
    log_file: str
    tls_data_url: str | None = None
    tls_admin_url: str | None = None
    """Beside the plain ones, while security is turned on."""
    stream_port: int | None = None
    """A bookie's and a sequencer's, for standing streams; None in a file of an older version. Their
    whole URL, which differs from start to start, is what the process registers."""

    def to_json(self) -> dict[str, Any]:
        """The JSON object of one process."""
        entry: dict[str, Any] = {"role": self.role, "id": self.node_id, "pid": self.pid}
        if self.incarnation is not None:
            entry["incarnation"] = self.incarnation
        entry |= {
            "region": self.region,
            "rack": self.rack,
            "data_url": self.data_url,
            "admin_url": self.admin_url,
        }
        more = {"tls_data_url": self.tls_data_url, "tls_admin_url": self.tls_admin_url}
        entry |= {name: url for name, url in more.items() if url is not None}
        if self.stream_port is not None:
            entry["stream_port"] = self.stream_port
        if self.data_dir is not None:
            entry["data_dir"] = self.data_dir
        return entry | {"log_file": self.log_file}


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The whole file."""

    cluster: str
    zookeeper: str
    members: tuple[ClusterProcess, ...]
    cold_store: str | None = None
    """URL of the archive; None in a file that an older version wrote."""
    security: Security = "none"

    def to_json(self) -> dict[str, Any]:
        """The JSON object of the whole file."""
        write_proxy = self._first("writeproxy")
        read_proxy = self._first("readproxy")
        return {
            "v": VERSION,
            "cluster": self.cluster,
            "zookeeper": self.zookeeper,
            "write_url": write_proxy and write_proxy.data_url,
            "read_url": read_proxy and read_proxy.data_url,
            # For commands, which have an identity where there is one to show.
            "admin_url": write_proxy and (write_proxy.tls_admin_url or write_proxy.admin_url),
            "cold_store": self.cold_store,
            "security": self.security,
            "processes": [member.to_json() for member in self.members],
        }

    def ports(self) -> dict[str, ListenPorts]:
        """Id → ports, of every process whose addresses can be read."""
        found = {}
        for member in self.members:
            data = _port_of(member.data_url)
            if data is not None:
                found[member.node_id] = ListenPorts(
                    data, _port_of(member.admin_url), _port_of(member.tls_data_url),
                    _port_of(member.tls_admin_url), member.stream_port,
                )  # fmt: skip
        return found

    def _first(self, role: str) -> ClusterProcess | None:
        return next((member for member in self.members if member.role == role), None)


def member_of(plan: ProcessPlan, pid: int | None) -> ClusterProcess:
    """The entry of a planned process; a bookie's incarnation is read from its cookie."""
    return ClusterProcess(
        role=plan.role,
        node_id=plan.node_id,
        pid=pid,
        incarnation=read_incarnation(plan.data_dir) if plan.role == "bookie" else None,
        region=plan.region,
        rack=plan.rack,
        data_url=plan.data_url,
        admin_url=plan.admin_url,
        data_dir=None if plan.data_dir is None else str(plan.data_dir),
        log_file=str(plan.log_file),
        tls_data_url=plan.tls_data_url,
        tls_admin_url=plan.tls_admin_url,
        stream_port=plan.ports.stream,
    )


def read_incarnation(data_dir: Path | None) -> str | None:
    """The incarnation in a bookie's cookie.json, None before its first start."""
    if data_dir is None:
        return None
    try:
        cookie = json.loads((data_dir / "cookie.json").read_bytes())
    except (OSError, ValueError):
        return None
    found = cookie.get("incarnation") if isinstance(cookie, dict) else None
    return found if isinstance(found, str) else None


def write_state(folder: Path, state: ClusterState) -> None:
    """Replace the file; it is durable when this returns."""
    temporary = folder / f".{FILE_NAME}.tmp"
    with temporary.open("w", encoding="utf-8") as file:
        file.write(json.dumps(state.to_json(), indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(folder / FILE_NAME)
    sync_folder(folder)


def read_document(folder: Path) -> dict[str, Any]:
    """The file's JSON object.

    Raises:
        ClusterFileError: there is none, or it is none of ours.
    """
    path = folder / FILE_NAME
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ClusterFileError(
            f"no local cluster in {folder}: start one with duramen run"
        ) from None
    except (OSError, ValueError) as error:
        raise ClusterFileError(f"{path} cannot be read ({error}): remove it") from error
    if not isinstance(document, dict) or document.get("v") != VERSION:
        raise ClusterFileError(f"{path} is not of version {VERSION}")
    return document


def read_state(folder: Path) -> ClusterState | None:
    """What the last run left, None if there was none.

    Raises:
        ClusterFileError: the file is damaged or of another version.
    """
    if not (folder / FILE_NAME).exists():
        return None
    document = read_document(folder)
    try:
        members = tuple(_parse_member(entry) for entry in document["processes"])
        return ClusterState(
            document["cluster"],
            document["zookeeper"],
            members,
            document.get("cold_store"),
            _parse_security(document.get("security"), members),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ClusterFileError(f"{folder / FILE_NAME} lacks or has a wrong {error}") from error


def recall_security(folder: Path) -> Security | None:
    """Whether a folder ran with identities so far; None: nothing ran in it.

    Raises:
        ClusterFileError: as `read_state`.
    """
    state = read_state(folder)
    if state is not None:
        return state.security
    if (folder / AUTHORITY_FOLDER).exists():
        return "on"
    return "none" if (folder / _BOOKIE_FOLDER).exists() else None


def _parse_security(found: object, members: tuple[ClusterProcess, ...]) -> Security:
    """What the file says; one of an older version shows it by the addresses in it."""
    if found in get_args(Security):
        return cast(Security, found)
    if found is not None:
        raise TypeError(f"security {found!r}")
    is_secure = any((one.admin_url or "").startswith("https:") for one in members)
    return "on" if is_secure else "none"


def _parse_member(entry: dict[str, Any]) -> ClusterProcess:
    pid = entry["pid"]
    if pid is not None and (not isinstance(pid, int) or pid <= 1):
        raise TypeError(f"pid {pid!r}")
    return ClusterProcess(
        role=entry["role"],
        node_id=entry["id"],
        pid=pid,
        incarnation=entry.get("incarnation"),
        region=entry["region"],
        rack=entry["rack"],
        data_url=entry["data_url"],
        admin_url=entry["admin_url"],
        data_dir=entry.get("data_dir"),
        log_file=entry["log_file"],
        tls_data_url=entry.get("tls_data_url"),
        tls_admin_url=entry.get("tls_admin_url"),
        stream_port=_parse_port(entry.get("stream_port")),
    )


def _parse_port(found: object) -> int | None:
    """None for what is no port: another one is chosen then."""
    return found if isinstance(found, int) and 0 < found <= _PORT_MAX else None


def _port_of(url: str | None) -> int | None:
    try:
        return urlsplit(url).port if url else None
    except ValueError:
        return None
