"""A cold store in a directory of HDFS, by WebHDFS: HTTP, no JVM and no native library here.

HDFS shows a file while it is being written. So every file is written as `.incoming/<uuid>` and
renamed: the NameNode does that at once, and refuses a name that is taken. Before that, the length
that it has is compared with what was sent; a killed writer leaves its file in `.incoming`, where
nobody reads. Blocks are synced to disks (`sync_block`): bookies drop their copies for this one.

requests alone, not fsspec's client on top of it: that one waits for ever for a server that is
silent, takes a DataNode's error page for data, and overwrites (docs/adr/0015-webhdfs.md).

Called by `opening` for `hdfs://` and `webhdfs://`. Source: docs/cold-store.md.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

import requests

from duramen.limits import COLD_STORE_TIMEOUT_US
from duramen.runtime.cold.store import (
    AlreadyThere,
    ColdFile,
    ColdStore,
    ColdStoreDown,
    NotThere,
    check_path,
    check_prefix,
)
from duramen.runtime.cold.upload import Upload
from duramen.units import MIB, SECOND

_INCOMING: Final = ".incoming"

_PART_BYTES: Final = 1 * MIB
"""What is sent at once; with those that wait a writer holds at most 5 MiB."""

_TIMEOUT_S: Final = (COLD_STORE_TIMEOUT_US / SECOND / 4, COLD_STORE_TIMEOUT_US / SECOND)
"""To connect, and between two packets."""


class WebHdfsStore(ColdStore):
    """Files beneath one existing directory.

    Args:
        address: `host:port` of the NameNode's HTTP server.
        root: the directory, such as `/duramen/cold`.
        user: whom HDFS takes us for; None for its default.
    """

    def __init__(self, address: str, root: str, user: str | None) -> None:
        root = root.rstrip("/")
        self.url = f"webhdfs://{address}{root or '/'}"
        self._base = f"http://{address}/webhdfs/v1{quote(root)}"
        self._root = root
        self._user = {} if user is None else {"user.name": user}
        self._threads = threading.local()

    def put_new(self, path: str, data: bytes) -> None:
        """See the port."""
        writer = self.open_writer(path)
        try:
            writer.write(data)
            writer.commit()
        finally:
            writer.abort()

    def open_writer(self, path: str) -> WebHdfsWriter:
        """See the port."""
        try:
            self.size(check_path(path))
        except NotThere:
            return WebHdfsWriter(self, path)
        raise AlreadyThere(path)

    def read(self, path: str, offset: int, size_bytes: int) -> bytes:
        """See the port."""
        data = b""
        if size_bytes:
            try:
                answer = self._call(
                    "GET", "OPEN", check_path(path), offset=offset, length=size_bytes
                )
                data = answer.content
            except ColdStoreDown:
                if offset < self.size(path):
                    raise
        if len(data) < size_bytes or not size_bytes:
            missing = min(size_bytes, self.size(path) - offset) - len(data)
            if missing > 0:
                raise ColdStoreDown(f"{self.url}: {path}: an answer is {missing} bytes short")
        return data

    def size(self, path: str) -> int:
        """See the port."""
        status = self._call("GET", "GETFILESTATUS", check_path(path)).json()["FileStatus"]
        if status["type"] != "FILE":
            raise NotThere(path)
        return int(status["length"])

    def list(self, prefix: str) -> Iterator[ColdFile]:
        """See the port."""
        folders = [check_prefix(prefix)]
        self._check_root()
        while folders:
            folder = folders.pop()
            for status in self._list_folder(folder):
                name = str(status["pathSuffix"])
                path = f"{folder}/{name}" if folder else name
                if name.startswith(".") or not name:  # "" where the folder is a file
                    continue
                if status["type"] == "FILE":
                    yield ColdFile(path, int(status["length"]), int(status["modificationTime"]))
                else:
                    folders.append(path)

    def delete(self, path: str) -> None:
        """See the port. Folders stay: another writer may be about to use them."""
        self._check_root()
        with suppress(NotThere):
            self._call("DELETE", "DELETE", check_path(path), recursive="false")

    def drop_unfinished(self, before_unix_ms: int) -> int:
        """See the port."""
        self._check_root()
        old = [s for s in self._list_folder(_INCOMING) if s["modificationTime"] < before_unix_ms]
        for status in old:
            self.drop_incoming(str(status["pathSuffix"]))
        return len(old)

    def send_incoming(self, name: str, parts: Iterator[bytes]) -> None:
        """Write a file of `.incoming`, durable when this returns; for `WebHdfsWriter`."""
        path = f"{_INCOMING}/{name}"
        answer = self._call(
            "PUT", "CREATE", path, is_redirected=False,
            overwrite="false", createflag="create,sync_block",
        )  # fmt: skip
        location = answer.headers.get("Location")
        if location is None:
            raise ColdStoreDown(f"{self.url}: the NameNode names no DataNode")
        with self._translated(path):
            sent = self._session.put(location, data=parts, timeout=_TIMEOUT_S)
        self._check(sent, path)

    def publish(self, name: str, path: str, size_bytes: int) -> None:
        """Give a file of `.incoming` its path; for `WebHdfsWriter`."""
        stored_bytes = self.size_incoming(name)
        if stored_bytes != size_bytes:
            raise ColdStoreDown(f"{self.url}: {stored_bytes} of {size_bytes} bytes were stored")
        folder = path.rpartition("/")[0]
        if folder:
            self._call("PUT", "MKDIRS", folder)
        target = f"{self._root}/{path}"
        answer = self._call("PUT", "RENAME", f"{_INCOMING}/{name}", destination=target)
        if answer.json().get("boolean") is not True:
            try:
                self.size(path)
            except NotThere:
                raise ColdStoreDown(f"{self.url}: {path} was not renamed") from None
            raise AlreadyThere(path)

    def size_incoming(self, name: str) -> int:
        """What is stored of a file of `.incoming`."""
        status = self._call("GET", "GETFILESTATUS", f"{_INCOMING}/{name}").json()["FileStatus"]
        return int(status["length"])

    def drop_incoming(self, name: str) -> None:
        """Remove a file of `.incoming`, if there is one."""
        with suppress(NotThere):
            self._call("DELETE", "DELETE", f"{_INCOMING}/{name}", recursive="false")

    def _list_folder(self, folder: str) -> Sequence[dict[str, Any]]:
        try:
            answer = self._call("GET", "LISTSTATUS", folder)
        except NotThere:
            return []
        found: Sequence[dict[str, Any]] = answer.json()["FileStatuses"]["FileStatus"]
        return found

    def _check_root(self) -> None:
        try:
            self._call("GET", "GETFILESTATUS", "", is_root=True)
        except NotThere:
            raise ColdStoreDown(f"{self.url}: there is no such directory: make it") from None

    @property
    def _session(self) -> requests.Session:
        """One for each thread: a session is not said to be safe in several."""
        session: requests.Session | None = getattr(self._threads, "session", None)
        if session is None:
            session = self._threads.session = requests.Session()
        return session

    def _call(
        self,
        method: str,
        operation: str,
        path: str,
        *,
        is_redirected: bool = True,
        is_root: bool = False,
        **options: str | int,
    ) -> requests.Response:
        """One operation of the NameNode, with what a DataNode answers to it."""
        with self._translated(path):
            answer = self._session.request(
                method,
                f"{self._base}/{path}" if path else self._base or "/",
                params={"op": operation, **options, **self._user},
                timeout=_TIMEOUT_S,
                allow_redirects=is_redirected,
            )
        self._check(answer, path, is_root=is_root)
        return answer

    def _check(self, answer: requests.Response, path: str, *, is_root: bool = False) -> None:
        if answer.status_code < HTTPStatus.BAD_REQUEST:
            return
        try:
            error = answer.json()["RemoteException"]
            kind, text = str(error["exception"]), str(error["message"]).partition("\n")[0]
        except (ValueError, KeyError, TypeError):
            kind, text = "", f"HTTP {answer.status_code}"
        if kind in ("FileNotFoundException", "ParentNotDirectoryException") or (
            kind == "AccessControlException" and "is not a directory" in text
        ):
            if not is_root:
                self._check_root()
            raise NotThere(path)
        raise ColdStoreDown(f"{self.url}: {kind}: {text}"[:300])

    @contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        """What requests raises, in the port's words."""
        try:
            yield
        except requests.RequestException as error:
            raise ColdStoreDown(f"{self.url}: {path}: {error}"[:300]) from error


class WebHdfsWriter:
    """A file of `.incoming`, sent while it is written."""

    def __init__(self, store: WebHdfsStore, path: str) -> None:
        self._store = store
        self._path = path
        self._name = uuid4().hex
        self._pending = bytearray()
        self._size_bytes = 0
        self._is_committed = False
        self._upload = Upload(lambda parts: store.send_incoming(self._name, parts))

    def write(self, data: bytes) -> None:
        """See the port."""
        self._pending += data
        self._size_bytes += len(data)
        while len(self._pending) >= _PART_BYTES:
            self._upload.put(bytes(self._pending[:_PART_BYTES]))
            del self._pending[:_PART_BYTES]

    def commit(self) -> None:
        """See the port."""
        if self._pending:
            self._upload.put(bytes(self._pending))
            self._pending.clear()
        self._upload.finish()
        self._store.publish(self._name, self._path, self._size_bytes)
        self._is_committed = True

    def abort(self) -> None:
        """See the port."""
        if self._is_committed:
            return
        self._pending.clear()
        self._upload.abort()
        with suppress(ColdStoreDown):
            self._store.drop_incoming(self._name)
