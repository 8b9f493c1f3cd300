"""The client, namespaces and logs for programs without an event loop; names as in `client.sdk`.

Every method runs the asynchronous one of the same name in the client's thread and blocks until it
has ended; arguments, results and errors are said there, once. A test compares the signatures.
Source: docs/sdk.md.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from datetime import datetime
from typing import Any, Self

from duramen.client.blocking.portal import Portal
from duramen.client.blocking.producer import SyncProducer
from duramen.client.rest_client import Appended
from duramen.client.retry import RetryPolicy
from duramen.client.sdk.batches import Records
from duramen.client.sdk.client import Client
from duramen.client.sdk.log import Log, Namespace
from duramen.client.sdk.producer import BATCH_BYTES_DEFAULT, IN_FLIGHT_BYTES_DEFAULT
from duramen.client.sdk.read_batch import ReadBatch
from duramen.client.sdk.reader import ANSWER_BYTES
from duramen.client.sdk.values import Compression, Mark
from duramen.limits import BATCH_RECORD_COUNT_MAX


class SyncClient:
    """`Client` for programs without an event loop; any number of threads may use one."""

    def __init__(
        self,
        url: str,
        *,
        read_url: str | None = None,
        timeout: float = 30.0,
        retry: RetryPolicy | None = None,
        http2: bool = True,
    ) -> None:
        """As `Client`; starts the thread in which everything runs."""
        self._client = Client(url, read_url=read_url, timeout=timeout, retry=retry, http2=http2)
        self._portal = Portal()
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection and end the thread; a second time it does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._portal.call(self._client.close())
            self._portal.close()

    def __getitem__(self, namespace: str) -> SyncNamespace:
        return SyncNamespace(self._portal, self._client[namespace])

    def log(self, name: str) -> SyncLog:
        """As `Client.log`."""
        return SyncLog(self._portal, self._client.log(name))

    def namespaces(self, *, prefix: str = "") -> Generator[SyncNamespace, None, None]:
        """As `Client.namespaces`."""
        for namespace in self._portal.iterate(self._client.namespaces(prefix=prefix)):
            yield SyncNamespace(self._portal, namespace)

    def statistics(self) -> dict[str, dict[str, float]]:
        """As `Client.statistics`."""
        return self._client.statistics()


class SyncNamespace:
    """`Namespace` for threads."""

    def __init__(self, portal: Portal, namespace: Namespace) -> None:
        self._portal = portal
        self._namespace = namespace
        self.name = namespace.name

    def __getitem__(self, log: str) -> SyncLog:
        return SyncLog(self._portal, self._namespace[log])

    def __repr__(self) -> str:
        return f"<SyncNamespace {self.name}>"

    def ensure(self, config: Mapping[str, Any] | None = None) -> bool:
        """As `Namespace.ensure`."""
        return self._portal.call(self._namespace.ensure(config))

    def show(self) -> dict[str, Any]:
        """As `Namespace.show`."""
        return self._portal.call(self._namespace.show())

    def reconfigure(self, patch: Mapping[str, Any]) -> dict[str, Any]:
        """As `Namespace.reconfigure`."""
        return self._portal.call(self._namespace.reconfigure(patch))

    def delete(self) -> bool:
        """As `Namespace.delete`."""
        return self._portal.call(self._namespace.delete())

    def logs(self, *, prefix: str = "") -> Generator[SyncLog, None, None]:
        """As `Namespace.logs`."""
        for log in self._portal.iterate(self._namespace.logs(prefix=prefix)):
            yield SyncLog(self._portal, log)


class SyncLog:
    """`Log` for threads."""

    def __init__(self, portal: Portal, log: Log) -> None:
        self._portal = portal
        self._log = log
        self.namespace = log.namespace
        self.name = log.name

    def __repr__(self) -> str:
        return f"<SyncLog {self.namespace}/{self.name}>"

    def append(
        self,
        records: Records,
        *,
        match_seq_num: int | None = None,
        fencing_token: str | None = None,
        compression: Compression | None = None,
    ) -> Appended:
        """As `Log.append`."""
        return self._portal.call(
            self._log.append(
                records,
                match_seq_num=match_seq_num,
                fencing_token=fencing_token,
                compression=compression,
            )
        )

    def producer(
        self,
        *,
        id: str | None = None,
        epoch: int | None = None,
        idempotent: bool = True,
        linger: float = 0.005,
        batch_bytes: int = BATCH_BYTES_DEFAULT,
        batch_records: int = BATCH_RECORD_COUNT_MAX,
        max_in_flight_bytes: int = IN_FLIGHT_BYTES_DEFAULT,
        fencing_token: str | None = None,
        compression: Compression | None = None,
    ) -> SyncProducer:
        """As `Log.producer`; to be used with `with`."""
        producer = self._log.producer(
            id=id,
            epoch=epoch,
            idempotent=idempotent,
            linger=linger,
            batch_bytes=batch_bytes,
            batch_records=batch_records,
            max_in_flight_bytes=max_in_flight_bytes,
            fencing_token=fencing_token,
            compression=compression,
        )
        return SyncProducer(self._portal, producer)

    def read(
        self,
        from_: str | int | datetime = "head",
        *,
        follow: bool = False,
        count: int | None = None,
        until: int | None = None,
        answer_bytes: int = ANSWER_BYTES,
    ) -> Generator[ReadBatch, None, None]:
        """As `Log.read`."""
        return self._portal.iterate(
            self._log.read(
                from_, follow=follow, count=count, until=until, answer_bytes=answer_bytes
            )
        )

    def tail(self) -> Mark:
        """As `Log.tail`."""
        return self._portal.call(self._log.tail())

    def segments(self) -> list[dict[str, Any]]:
        """As `Log.segments`."""
        return self._portal.call(self._log.segments())

    def ensure(self, config: Mapping[str, Any] | None = None) -> bool:
        """As `Log.ensure`."""
        return self._portal.call(self._log.ensure(config))

    def show(self) -> dict[str, Any]:
        """As `Log.show`."""
        return self._portal.call(self._log.show())

    def reconfigure(
        self, patch: Mapping[str, Any], *, version: int | None = None
    ) -> dict[str, Any]:
        """As `Log.reconfigure`."""
        return self._portal.call(self._log.reconfigure(patch, version=version))

    def truncate(self, to: str | int | datetime) -> int:
        """As `Log.truncate`."""
        return self._portal.call(self._log.truncate(to))

    def end(self) -> Mark:
        """As `Log.end`."""
        return self._portal.call(self._log.end())

    def roll(self) -> int | None:
        """As `Log.roll`."""
        return self._portal.call(self._log.roll())

    def fence(self, token: str, *, expected: str | None = None) -> Mark:
        """As `Log.fence`."""
        return self._portal.call(self._log.fence(token, expected=expected))

    def delete(self) -> str:
        """As `Log.delete`."""
        return self._portal.call(self._log.delete())

    def undelete(self) -> None:
        """As `Log.undelete`."""
        self._portal.call(self._log.undelete())
