"""A cold store by its URL: which implementation, and what of the URL it takes.

The libraries behind a scheme are loaded when a URL asks for it: a service whose archive is a folder
starts without those of S3.

Called by services, jobs and the command line. Source: docs/cold-store.md.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from duramen.errors import DuramenError
from duramen.runtime.cold.folder import FolderStore
from duramen.runtime.cold.store import ColdStore


def open_cold_store(url: str) -> ColdStore:
    """The store of a URL; nothing is contacted yet.

    Args:
        url: `file:///folder`, `s3://bucket/prefix`, or `webhdfs://user@host:port/directory` (also
            `hdfs://`; the port is that of the NameNode's HTTP server). Folder, bucket and directory
            have to exist.

    Raises:
        DuramenError: `invalid_argument`, no such URL, or its libraries are not installed.
    """
    try:
        parts = urlsplit(url)
        match parts.scheme:
            case "file":
                return _open_folder(parts)
            case "s3":
                return _open_s3(parts)
            case "hdfs" | "webhdfs":
                return _open_webhdfs(parts)
            case _:
                raise ValueError("schemes are file, s3, hdfs and webhdfs")
    except ValueError as error:
        raise _refuse(url, str(error)) from None
    except ImportError as error:
        raise _refuse(url, f"{error}: install duramen[cold]") from error


def _open_folder(parts: SplitResult) -> ColdStore:
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise ValueError("a folder is named by its whole path: file:///data/cold")
    return FolderStore(Path(unquote(parts.path)))


def _open_s3(parts: SplitResult) -> ColdStore:
    from duramen.runtime.cold.s3 import S3ColdStore  # noqa: PLC0415 - an extra

    if not parts.netloc or parts.netloc != parts.hostname:
        raise ValueError("a bucket is named by s3://bucket/prefix; keys come from AWS_… variables")
    return S3ColdStore(parts.netloc, unquote(parts.path).strip("/"))


def _open_webhdfs(parts: SplitResult) -> ColdStore:
    from duramen.runtime.cold.webhdfs import WebHdfsStore  # noqa: PLC0415 - an extra

    if parts.hostname is None or parts.port is None or parts.password is not None:
        raise ValueError("a directory is named by webhdfs://user@host:port/directory, without keys")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    user = parts.username or os.environ.get("HADOOP_USER_NAME")
    return WebHdfsStore(f"{host}:{parts.port}", unquote(parts.path), user)


def _refuse(url: str, reason: str) -> DuramenError:
    return DuramenError("invalid_argument", f"not a cold store: {_hide_password(url)}: {reason}")


def _hide_password(url: str) -> str:
    before, at, behind = url.rpartition("@")
    return f"{before.partition('//')[0]}//…@{behind}" if at else url
