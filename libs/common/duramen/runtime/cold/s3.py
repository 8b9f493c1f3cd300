"""A cold store in a bucket: S3 and what speaks its protocol, through obstore.

A small file is one conditional PUT (`If-None-Match: *`), which S3 decides for all writers at once.
A large one is a multipart upload, which nobody can read before it is completed; what a killed
writer uploaded is freed by the bucket's rule for incomplete uploads (docs/cold-store.md), for no
listing shows it. Endpoint and region come from the `AWS_…` variables that all tools know, and keys
from a file, a role or such variables (`s3_keys`).

An answer that is lost is repeated beneath us, so that a file of one's own may be met as
`AlreadyThere`: see the port. "Not found" is believed only while the bucket is there.

Called by `opening` for `s3://`. Source: docs/cold-store.md.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store

from duramen.limits import COLD_STORE_TIMEOUT_US
from duramen.runtime.cold.s3_keys import find_keys_file
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
from duramen.units import MIB

_PART_BYTES: Final = 8 * MIB
"""A multipart upload has at most 10,000 parts: files of 80 GB."""

_UNDER_WAY_COUNT_MAX: Final = 3
"""Parts under way; with those that wait a writer holds at most 56 MiB."""

_TRY_COUNT_MAX: Final = 3

_TRUE: Final = ("1", "true", "yes", "on")

_ANSWER: Final = re.compile(r"(status code: \d+[^:]*|error response): .*")
_CODE: Final = re.compile(r"<Code>(\w{1,64})</Code>")


class S3ColdStore(ColdStore):
    """Objects of one bucket, beneath a prefix.

    Args:
        bucket: its name.
        prefix: "" for the whole bucket.

    Raises:
        ValueError: a file of keys is named, and gives none; or variables have half of the keys.
    """

    def __init__(self, bucket: str, prefix: str) -> None:
        self.url = f"s3://{bucket}/{prefix}"
        timeout = timedelta(microseconds=COLD_STORE_TIMEOUT_US)
        try:
            self._objects = S3Store(
                bucket,
                prefix=prefix or None,
                credential_provider=find_keys_file(),
                client_options={
                    "timeout": timeout,
                    "connect_timeout": timeout / 4,
                    # Options given here hide this variable, which is one of them.
                    "allow_http": os.environ.get("AWS_ALLOW_HTTP", "").lower() in _TRUE,
                },
                retry_config={
                    "max_retries": _TRY_COUNT_MAX - 1,
                    "retry_timeout": timeout,
                    "backoff": {
                        "init_backoff": timedelta(milliseconds=100),
                        "max_backoff": timedelta(seconds=2),
                        "base": 2,
                    },
                },
            )
        except BaseError as error:
            raise ValueError(_say(error)) from None

    def put_new(self, path: str, data: bytes) -> None:
        """See the port."""
        with self._translated(check_path(path)):
            obstore.put(self._objects, path, data, mode="create", use_multipart=False)

    def open_writer(self, path: str) -> S3Writer:
        """See the port."""
        try:
            self.size(path)
        except NotThere:
            return S3Writer(self, path)
        raise AlreadyThere(path)

    def read(self, path: str, offset: int, size_bytes: int) -> bytes:
        """See the port."""
        if size_bytes:
            try:
                with self._translated(check_path(path)):
                    data = obstore.get_range(self._objects, path, start=offset, length=size_bytes)
                    return data.to_bytes()
            except ColdStoreDown:
                if offset < self.size(path):
                    raise
        else:
            self.size(path)
        return b""  # at or beyond the end, where S3 refuses a range

    def size(self, path: str) -> int:
        """See the port."""
        with self._translated(check_path(path)):
            return obstore.head(self._objects, path)["size"]

    def list(self, prefix: str) -> Iterator[ColdFile]:
        """See the port."""
        with self._translated(check_prefix(prefix)):
            for found in obstore.list(self._objects, prefix=prefix or None):
                for item in found:
                    modified_unix_ms = int(item["last_modified"].timestamp() * 1000)
                    yield ColdFile(item["path"], item["size"], modified_unix_ms)

    def delete(self, path: str) -> None:
        """See the port."""
        try:
            with self._translated(check_path(path)):
                obstore.delete(self._objects, path)
        except NotThere:
            return

    def drop_unfinished(self, before_unix_ms: int) -> int:
        """See the port: the bucket's own rule does it."""
        return 0

    def put_parts(self, path: str, parts: Iterator[bytes]) -> None:
        """Store a file in parts; if taking one raises, the upload is given up. For `S3Writer`."""
        with self._translated(path):
            obstore.put(

                self._objects, path, parts, chunk_size=_PART_BYTES,
                max_concurrency=_UNDER_WAY_COUNT_MAX,

            )  # fmt: skip

    def _check_bucket(self) -> None:
        try:
            next(iter(obstore.list(self._objects, chunk_size=1)), None)
        except (BaseError, OSError) as error:
            raise ColdStoreDown(f"{self.url}: {_say(error)}") from None

    @contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        """What obstore raises, in the port's words alone: its own show the server's answer."""
        try:
            yield
        except AlreadyExistsError:
            raise AlreadyThere(path) from None
        except FileNotFoundError:
            self._check_bucket()
            raise NotThere(path) from None
        except (BaseError, OSError) as error:
            raise ColdStoreDown(f"{self.url}: {_say(error)}") from None


class S3Writer:
    """A file that grows: one PUT if it stays small, else a multipart upload."""

    def __init__(self, store: S3ColdStore, path: str) -> None:
        self._store = store
        self._path = path
        self._pending = bytearray()
        self._upload: Upload | None = None

    def write(self, data: bytes) -> None:
        """See the port."""
        self._pending += data
        while len(self._pending) > _PART_BYTES:
            part = bytes(self._pending[:_PART_BYTES])
            del self._pending[:_PART_BYTES]
            if self._upload is None:
                self._upload = Upload(lambda parts: self._store.put_parts(self._path, parts))
            self._upload.put(part)

    def commit(self) -> None:
        """See the port."""
        if self._upload is None:
            self._store.put_new(self._path, bytes(self._pending))
        else:
            self._upload.put(bytes(self._pending))
            self._upload.finish()
        self._pending.clear()

    def abort(self) -> None:
        """See the port."""
        self._pending.clear()
        if self._upload is not None:
            self._upload.abort()


def _say(error: Exception) -> str:
    """The first line of what obstore says, which goes on with its whole request.

    Of the server's answer its code alone: answers show which key was used, and what was signed.
    """
    text = str(error).strip()
    code = _CODE.search(text)
    line = _ANSWER.sub(r"\1", text.partition("\n")[0])[:300]
    return line if code is None else f"{line} ({code[1]})"
