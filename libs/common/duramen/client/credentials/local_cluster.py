"""What a `duramen run` with identities leaves in its folder for clients, and how they find it.

A token for public ports, a certificate for admin ports, and both once more for curl. A port of this
machine is anybody's once its process has ended, so a client that was told nothing shows the token
only to a process of the cluster that runs.

Called by the supervisor (writes), the SDK and the command line (read). Source:
docs/protocol/credentials.md "How clients show it".
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import orjson

from duramen.client.credentials.credential import NOTHING_SHOWN, Credential, is_here
from duramen.client.credentials.tokens import TokenFile
from duramen.core.rights.grants import Principal, PrincipalKind
from duramen.errors import DuramenError
from duramen.runtime.folders import write_private
from duramen.runtime.identity.generations import BUNDLE_FILE, KEY_FILE, LEAF_FILE

if TYPE_CHECKING:
    from duramen.runtime.stores.metadata_store import MetadataStore
    from duramen.wire.metadata_json import Paths

FOLDER_DEFAULT: Final = Path(".duramen")
OPERATOR_FOLDER: Final = Path("identities") / "operator"
WRITER_FOLDER: Final = Path("identities") / "corewriter"
TOKEN_FILE: Final = "token"
CURL_FILE: Final = "curl.conf"
ACCESS_LOOK_S: Final = 60.0
"""How often it is seen to that the token in the folder counts still."""

_ISSUER: Final = Principal(PrincipalKind.SERVICE, "operator/local")
_CLUSTER_FILE: Final = "cluster.json"
_CLUSTER_BYTES_MAX: Final = 4 << 20


# --- Written -------------------------------------------------------------------------------------


async def keep_local_access(store: MetadataStore, paths: Paths, folder: Path, now_s: int) -> None:
    """Have a token that counts in the folder, and what curl needs.

    Raises:
        MetadataError: ZooKeeper gives no answer, or refuses it.
        OSError: the folder cannot be written.
    """
    # Readers, the SDK among them, need nothing of how tokens are kept, which takes long to load.
    from duramen.runtime.credentials.access_tokens.kept_token import keep_token  # noqa: PLC0415

    file = folder / TOKEN_FILE
    kept = await keep_token(
        store, paths, file, issued_by=_ISSUER, note="of duramen run", now_s=now_s
    )
    identity = folder / OPERATOR_FOLDER
    config = format_curl_config(kept.text, identity if identity.is_dir() else None, None)
    await asyncio.to_thread(write_private, folder / CURL_FILE, config)


def format_curl_config(token: str | None, identity: Path | None, ca: Path | None) -> bytes:
    """What `curl -K FILE` reads: the token's header, the certificate, and who is trusted."""
    lines = ["# for curl -K: whoever reads this may do what its owner may"]
    if token is not None:
        lines.append(f"header = {_quote(f'Authorization: Bearer {token}')}")
    if identity is not None:
        lines += [
            f"cert = {_quote(str(identity.absolute() / LEAF_FILE))}",
            f"key = {_quote(str(identity.absolute() / KEY_FILE))}",
        ]
        ca = ca or identity / BUNDLE_FILE
    if ca is not None:
        lines.append(f"cacert = {_quote(str(ca.absolute()))}")
    return ("\n".join(lines) + "\n").encode()


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


# --- Found ---------------------------------------------------------------------------------------


def find_local_credential(folder: Path, *, is_admin: bool = False) -> Credential:
    """What the folder of a local cluster has, for whoever found the URL of a port in it.

    Raises:
        DuramenError: `unauthenticated`: there is a token that others could have read.
    """
    if is_admin:
        identity = folder / OPERATOR_FOLDER
        return Credential(identity=identity) if identity.is_dir() else NOTHING_SHOWN
    token = folder / TOKEN_FILE
    return Credential(token=TokenFile(token)) if _is_there(token) else NOTHING_SHOWN


def find_credential_of(
    url: str, folder: Path = FOLDER_DEFAULT, *, is_admin: bool = False
) -> Credential:
    """What the folder has for a URL that somebody gave: nothing, unless a process of the cluster
    has that port of this machine and runs.

    Raises:
        DuramenError: as `find_local_credential`.
    """
    if not is_here(url):
        return NOTHING_SHOWN
    try:
        wanted = urlsplit(url).port
    except ValueError:
        return NOTHING_SHOWN
    if wanted is None or wanted not in _list_ports(folder / _CLUSTER_FILE):
        return NOTHING_SHOWN
    return find_local_credential(folder, is_admin=is_admin)


def find_local_writer(zookeeper: str, folder: Path = FOLDER_DEFAULT) -> Path | None:
    """The folder of the identity that a local cluster keeps for the core library; None: it keeps
    none, or that ZooKeeper is another one's. Whoever answers there has to prove who it is.
    """
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        with (folder / _CLUSTER_FILE).open("rb") as opened:
            document: Any = orjson.loads(opened.read(_CLUSTER_BYTES_MAX))
        writer = folder / WRITER_FOLDER
        if document["zookeeper"] == zookeeper and writer.is_dir():
            return writer.absolute()
    return None


def _is_there(file: Path) -> bool:
    """Whether a file is there, of this user, and closed to all others; see the caller."""
    try:
        found = file.stat()
    except OSError:
        return False
    if found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077:
        return True
    raise DuramenError(
        "unauthenticated", f"{file} may be read by others: chmod 600 it, as its owner"
    )


def _list_ports(file: Path) -> Iterator[int]:
    """The ports of processes that run; none where the file is none of ours."""
    try:
        with file.open("rb") as opened:
            document: Any = orjson.loads(opened.read(_CLUSTER_BYTES_MAX))
        for process in document["processes"]:
            if not _is_running(process["pid"]):
                continue
            more = (process.get("tls_data_url"), process.get("tls_admin_url"))
            for url in (process["data_url"], process["admin_url"], *more):
                port = urlsplit(url).port if url is not None else None
                if port is not None:
                    yield port
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return


def _is_running(pid: object) -> bool:
    if not isinstance(pid, int) or pid <= 1:
        return False
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
