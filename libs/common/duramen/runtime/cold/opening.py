"""A cold store by its URL: which implementation, and what of the URL it takes.

The libraries behind a scheme are loaded when a URL asks for it: a service whose archive is a folder
starts without those of S3.

Called by services, jobs and the command line. Source: 08-interfaces "Cold store".
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from duramen.errors import DuramenError
from duramen.runtime.cold.folder import FolderStore
from duramen.runtime.cold.store import ColdStore


def open_cold_store(url: str) -> ColdStore:
    """The store of a URL; nothing is contacted yet.

    Args:
        url: `file:///folder` (an existing one).

    Raises:
        DuramenError: `invalid_argument`, no such URL.
    """
    parts = urlsplit(url)
    match parts.scheme:
        case "file":
            if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
                raise _refuse(url, "a folder is named by its whole path: file:///data/cold")
            return FolderStore(Path(unquote(parts.path)))
        case _:
            raise _refuse(url, "known are file://")


def _refuse(url: str, reason: str) -> DuramenError:
    return DuramenError("invalid_argument", f"not a cold store: {url!r}: {reason}")
