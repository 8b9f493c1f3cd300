"""The client, namespaces and logs for programs without an event loop; names as in `client.sdk`.

Every method runs the asynchronous one of the same name in the client's thread and blocks until it
has ended. Its docstring says the same, in the words of this face; tests compare both.
Source: docs/sdk.md.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from duramen.client.blocking.portal import Portal
from duramen.client.blocking.producer import SyncProducer
from duramen.client.partitioned.blocking import SyncPartitionedLog
from duramen.client.rest_client import Appended
from duramen.client.retry import RetryPolicy
from duramen.client.sdk.batches import Records
from duramen.client.sdk.client import Client
from duramen.client.sdk.log import Log, Namespace
from duramen.client.sdk.producer import BATCH_BYTES_DEFAULT, IN_FLIGHT_BYTES_DEFAULT
from duramen.client.sdk.read_batch import ReadBatch
from duramen.client.sdk.reader import ANSWER_BYTES
from duramen.client.sdk.values import Compression, Mark
from duramen.client.settings import LogSettings
from duramen.limits import BATCH_RECORD_COUNT_MAX


class SyncClient:
    """`Client` for programs without an event loop; any number of threads may use one.

    Once it is closed, everything of it raises RuntimeError.

    Common errors, which every call may raise beside its own:

    - `Unreachable`, `overloaded`, `log_unavailable`, `metadata_unavailable`, `server_draining`: the
      call was not served within the time of the policy. A retry is safe. An append has not
      happened; another change may have taken effect by an earlier try.
    - `internal`: a server made a mistake; the SDK does not repeat the call. A retry is safe for
      reads and for changes that may be done twice.
    - `invalid_argument`, `unknown_field`, `misdirected`, `unauthenticated`, `forbidden`: a retry is
      refused again, until another token or right is there.

    A change that may be done twice is not `Uncertain` for want of an answer. What must not be done
    twice is, and so is an `internal` of which the server says that the call may have taken effect.
    """

    def __init__(
        self,
        url: str,
        *,
        read_url: str | None = None,
        timeout: float = 30.0,
        retry: RetryPolicy | None = None,
        http2: bool = True,
        follow_owner: bool = False,
        token: str | None = None,
        token_file: str | Path | None = None,
        ca: str | Path | None = None,
    ) -> None:
        """Make a client and start its thread; it connects with the first call.

        Args:
            url: of a proxy, or of write and read proxy with a comma between.
            read_url: of the read proxy, where `url` is the write proxy's; None: as `url`.
            timeout: seconds that one try waits for its answer, above 0; a long poll's wait comes on
                top.
            retry: which calls are repeated, and for how long; None: `RetryPolicy()`.
            http2: one HTTP/2 connection to each proxy. False: HTTP/1.1, for an ingress that speaks
                nothing else; producers then have one batch on its way at a time.
            follow_owner: append through a proxy in the region of the log's owner, where that is
                another one than the region of `url`. The proxies there have to be reached from here
                by the addresses that they are registered with.
            token: an API token or a web token, shown to proxies over https, or on this machine.
            token_file: the file that has it, read anew when it changed and after a refusal.
            ca: file of the certificates that alone are trusted, over https; None: the system's.

        Raises:
            DuramenError: `invalid_argument`: no http:// or https:// url, `token` beside
                `token_file`, or a token that would travel in plain text; `unauthenticated`: `ca`
                cannot be read. A retry fails again.

        Example:
            with SyncClient("http://localhost:7301") as client:
                client["shop"].ensure()
        """
        self._client = Client(
            url,
            read_url=read_url,
            timeout=timeout,
            retry=retry,
            http2=http2,
            follow_owner=follow_owner,
            token=token,
            token_file=token_file,
            ca=ca,
        )
        self._portal = Portal()
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection and end the thread; a second time it does nothing.

        Raises:
            Nothing.

        Example:
            client = SyncClient("http://localhost:7301")
            client.close()
        """
        if not self._is_closed:
            self._is_closed = True
            self._portal.call(self._client.close())
            self._portal.close()

    def __getitem__(self, namespace: str) -> SyncNamespace:
        """The namespace of this name; asks nobody.

        Args:
            namespace: 1 to 63 of `a-z`, `0-9` and `-`; begins and ends with a letter or digit.

        Returns:
            A `SyncNamespace`, whether the cluster has it or not.

        Raises:
            DuramenError: `invalid_name`; a retry fails again.

        Example:
            log = client["shop"]["orders"]
        """
        return SyncNamespace(self._portal, self._client[namespace])

    def log(self, name: str) -> SyncLog:
        """The log of `namespace/log`; asks nobody.

        Args:
            name: names of namespace and log with a slash between.

        Returns:
            A `SyncLog`, whether the cluster has it or not.

        Raises:
            DuramenError: `invalid_name`; a retry fails again.

        Example:
            log = client.log("shop/orders")
        """
        return SyncLog(self._portal, self._client.log(name))

    def partitioned_log(self, name: str, *, partitions: int) -> SyncPartitionedLog:
        """A log of several partitions, each with an order of its own; asks nobody.

        Args:
            name: names of namespace and partitioned log with a slash between.
            partitions: how many there are, 1 to 1,000; for ever the same.

        Returns:
            A `SyncPartitionedLog`, whether the cluster has it or not.

        Raises:
            DuramenError: `invalid_name`, `invalid_argument`; a retry fails again.

        Example:
            clicks = client.partitioned_log("shop/clicks", partitions=4)
            clicks.ensure()
        """
        log = self._client.partitioned_log(name, partitions=partitions)
        return SyncPartitionedLog(self._portal, log)

    def namespaces(self, *, prefix: str = "") -> Generator[SyncNamespace, None, None]:
        """List the namespaces in the order of their names, page by page.

        Args:
            prefix: of the names; "": all namespaces.

        Yields:
            A `SyncNamespace` each.

        Raises:
            DuramenError: the common errors of `SyncClient`; a retry is safe.

        Example:
            for namespace in client.namespaces(prefix="sh"):
                print(namespace.name)
        """
        for namespace in self._portal.iterate(self._client.namespaces(prefix=prefix)):
            yield SyncNamespace(self._portal, namespace)

    def statistics(self) -> dict[str, dict[str, float]]:
        """Count repetitions and their budget, and the logs whose home is known.

        Returns:
            `retries` (`tokens` left, `taken`, `delayed`), `homes` (`logs`, `proxies`) and
            `append_streams` (`open`, `opened`, `failed`, `appended`, `not_taken`; nothing where
            no appends share a request), all counts.

        Raises:
            Nothing.

        Example:
            print(client.statistics()["retries"]["taken"])
        """
        return self._client.statistics()


class SyncNamespace:
    """A named group of logs; `namespace["name"]` is one of them.

    Attributes:
        name: its name.
    """

    def __init__(self, portal: Portal, namespace: Namespace) -> None:
        self._portal = portal
        self._namespace = namespace
        self.name = namespace.name

    def __getitem__(self, log: str) -> SyncLog:
        """The log of this name; asks nobody.

        Args:
            log: 1 to 255 of `A-Z`, `a-z`, `0-9`, `.`, `_` and `-`; begins with a letter or digit.

        Returns:
            A `SyncLog`, whether the cluster has it or not.

        Raises:
            DuramenError: `invalid_name`; a retry fails again.

        Example:
            log = namespace["orders"]
        """
        return SyncLog(self._portal, self._namespace[log])

    def __repr__(self) -> str:
        return f"<SyncNamespace {self.name}>"

    def ensure(self, config: Mapping[str, Any] | None = None) -> bool:
        """Create the namespace if it is missing.

        Args:
            config: fields that are not to have their defaults (docs/protocol/configuration.md).

        Returns:
            True if this call created it; False if the same was there, perhaps by an earlier try.

        Raises:
            DuramenError: `log_exists_with_other_config`: a retry is refused again; the common
                errors of `SyncClient`: a retry is safe.

        Example:
            namespace.ensure()
        """
        return self._portal.call(self._namespace.ensure(config))

    def show(self) -> dict[str, Any]:
        """Show the namespace.

        Returns:
            `namespace` and `config`, as REST shows them.

        Raises:
            DuramenError: `namespace_not_found`: a retry is refused again; the common errors of
                `SyncClient`: a retry is safe.

        Example:
            config = namespace.show()["config"]
        """
        return self._portal.call(self._namespace.show())

    def reconfigure(self, patch: Mapping[str, Any]) -> dict[str, Any]:
        """Change some fields of the namespace's configuration; the others stay.

        Args:
            patch: the fields to change, with their new values.

        Returns:
            `namespace`, the whole `config`, and `changed`.

        Raises:
            DuramenError: `namespace_not_found`: a retry is refused again; the common errors of
                `SyncClient`: a retry is safe.

        Example:
            namespace.reconfigure({"auto_create": True})
        """
        return self._portal.call(self._namespace.reconfigure(patch))

    def delete(self) -> bool:
        """Delete the namespace, if it has no logs.

        Returns:
            True if it was there; False may also be the answer to a repetition.

        Raises:
            DuramenError: `namespace_not_empty` (the name of a deleted log counts until the log is
                purged): a retry is refused until then; the common errors of `SyncClient`: a retry
                is safe.

        Example:
            was_there = client["old-shop"].delete()
        """
        return self._portal.call(self._namespace.delete())

    def logs(self, *, prefix: str = "") -> Generator[SyncLog, None, None]:
        """List the logs of the namespace in the order of their names, page by page.

        Args:
            prefix: of the names; "": all logs.

        Yields:
            A `SyncLog` each.

        Raises:
            DuramenError: `namespace_not_found`: a retry is refused again; the common errors of
                `SyncClient`: a retry is safe.

        Example:
            for log in namespace.logs(prefix="ord"):
                print(log.name)
        """
        for log in self._portal.iterate(self._namespace.logs(prefix=prefix)):
            yield SyncLog(self._portal, log)


class SyncLog:
    """A log: append to it, read it, look after it.

    Every call may raise `namespace_not_found`, `log_not_found`, `log_deleted` (a retry is refused
    again) and the common errors of `SyncClient`; the methods list what comes on top.

    Attributes:
        namespace: the name of its namespace.
        name: its name.
    """

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
        """Append records as one batch: they follow each other in the log, or none is there.

        With `Repeat.ALL` the log knows a repetition again; the SDK repeats the append until its
        fate is certain or the time of the policy is over.

        Args:
            records: `bytes`, a `Record` or a list of them: 1 to 10,000 records, at most 1 MiB each
                and 4 MiB together.
            match_seq_num: what the first record must get; None: any number.
            fencing_token: what the log's token must be, "" for none; None: any token.
            compression: "zstd": what is sent, stored and read is compressed; None: it is not.

        Returns:
            An `Appended`: the sequence numbers `start` up to, not including, `end`, and the `dlsn`.

        Raises:
            Uncertain: the records may be in the log, or come to be there. Read before a retry.
            DuramenError: nothing was appended. `window_full`, `not_enough_bookies`: a retry is
                safe. `condition_failed` (`facts["expected_seq_num"]`), `fencing_token_mismatch`,
                `log_ended`, `log_held`, `record_too_large`, `batch_too_large`, `too_many_records`,
                `data_lost`, `invalid_argument`: a retry is refused again. Those of `SyncLog`.

        Example:
            appended = log.append([b"one", b"two"], match_seq_num=3)
            print(appended.start, appended.end)
        """
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
        """A producer of this log, to be used with `with`; asks nobody before that.

        Args:
            id: 1 to 64 printable ASCII characters; None: a random one.
            epoch: fences lower ones of the same id; None: 0, or unix milliseconds with an `id`.
            idempotent: number the batches, so that a repetition is never stored twice. Otherwise
                one batch is on its way at a time, and one of unknown fate ends the producer.
            linger: seconds that a record waits for others at most, from 0.
            batch_bytes, batch_records: when a batch is full; 1 MiB and 10,000, at most 4,174,304
                bytes and 10,000.
            max_in_flight_bytes: of what is not acknowledged, from 1; 16 MiB.
            fencing_token, compression: as in `append`, for every batch.

        Returns:
            A `SyncProducer`; entering it raises as `show`.

        Raises:
            DuramenError: `invalid_argument`, with the name as `field`; a retry fails again.

        Example:
            with log.producer(linger=0.01) as producer:
                producer.send(b"one")
        """
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
        """Read the records from a position on, each once and in order.

        Reading passes truncated (`moved_to`) and lost (`lost`) records; the batch behind them says
        so. It goes on behind the last record when a connection or a proxy is lost.

        Args:
            from_: a sequence number, a time, or a position: `head`, `tail`, `tail-N`, `seq:N`,
                `dlsn:…`, `lsn:…`, `txid:N`, `time:…`, `ago:1h30m`.
            follow: wait at the tail for more; ends only at the end of an ended log.
            count: how many records at most; None: no limit.
            until: the sequence number to end before; None: no limit.
            answer_bytes: asked for at once, 1 byte to 16 MiB; 4 MiB. Two answers are held at most.

        Yields:
            A `ReadBatch` each; an interrupted read is begun again at the last one's `end`.

        Raises:
            DuramenError: `invalid_position`, `beyond_tail`: a retry is refused again (until the
                tail is there). `data_unavailable`, `cold_store_unavailable`: a retry is safe. Those
                of `SyncLog`. A read is never uncertain.

        Example:
            for batch in log.read("head", count=100):
                print(batch.first, batch.bodies)
        """
        return self._portal.iterate(
            self._log.read(
                from_, follow=follow, count=count, until=until, answer_bytes=answer_bytes
            )
        )

    def tail(self) -> Mark:
        """Find the mark behind the last record; every append acknowledged before is in front of it.

        Returns:
            A `Mark`.

        Raises:
            DuramenError: `data_unavailable` and those of `SyncLog`; a retry of the first is safe.

        Example:
            count = log.tail().seq_num
        """
        return self._portal.call(self._log.tail())

    def acknowledged(self) -> Mark:
        """Find the mark behind the highest record that is acknowledged, released or not.

        It is behind `tail` only of a log with `ack_mode: out_of_order`, and only for a while: what
        lies before it and is not released yet is given to readers later, or told as a gap.

        Returns:
            A `Mark`.

        Raises:
            DuramenError: `data_unavailable` and those of `SyncLog`; a retry of the first is safe.

        Example:
            waiting = log.acknowledged().seq_num - log.tail().seq_num
        """
        return self._portal.call(self._log.acknowledged())

    def segments(self) -> list[dict[str, Any]]:
        """List the live segments, oldest first.

        Returns:
            A mapping each, as REST shows a segment (docs/protocol/rest.md "Segments").

        Raises:
            DuramenError: those of `SyncLog`.

        Example:
            states = [segment["state"] for segment in log.segments()]
        """
        return self._portal.call(self._log.segments())

    def epochs(self) -> list[dict[str, Any]]:
        """List the epochs of the log, oldest first, also given-up ones that are still told of.

        Returns:
            A mapping each, as REST shows an epoch (docs/protocol/rest.md "Epochs"), with the
            configuration by which it was opened as `config`: None where nobody has told it.

        Raises:
            DuramenError: those of `SyncLog`.

        Example:
            configs = [epoch["config"] for epoch in log.epochs()]
        """
        return self._portal.call(self._log.epochs())

    def ensure(self, config: LogSettings | Mapping[str, Any] | None = None) -> bool:
        """Create the log if it is missing.

        Args:
            config: fields that are not to have their defaults (docs/protocol/configuration.md).

        Returns:
            True if this call created it; False if the same was there, perhaps by an earlier try.

        Raises:
            DuramenError: `log_exists_with_other_config`, `placement_impossible`,
                `invalid_argument`: a retry is refused again. Those of `SyncLog`.

        Example:
            log.ensure({"retention": {"age": "24h"}})
        """
        return self._portal.call(self._log.ensure(config))

    def show(self) -> dict[str, Any]:
        """Show the log.

        Returns:
            `namespace`, `name`, `log_id`, `config`, `config_version`, `ended` and `head`.

        Raises:
            DuramenError: those of `SyncLog`.

        Example:
            config = log.show()["config"]
        """
        return self._portal.call(self._log.show())

    def reconfigure(
        self, patch: LogSettings | Mapping[str, Any], *, version: int | None = None
    ) -> dict[str, Any]:
        """Change some fields of the log's configuration; the others stay.

        Args:
            patch: the fields to change, with their new values.
            version: the stored `config_version` that is to be replaced; None: any.

        Returns:
            `namespace`, `name`, `log_id`, the whole `config`, `config_version` and `changed`.

        Raises:
            Uncertain: no answer came to a change with `version`. It may have been done; `show` it.
            DuramenError: `config_conflict`, `placement_impossible`, `invalid_argument`: a retry is
                refused again. Those of `SyncLog`.

        Example:
            log.reconfigure({"roll": {"size": "64MiB"}})
        """
        return self._portal.call(self._log.reconfigure(patch, version=version))

    def truncate(self, to: str | int) -> int:
        """Give up every record before a position.

        Args:
            to: the first record to keep: a sequence number, `head`, `tail`, `tail-N`, `seq:N`,
                `dlsn:…` or `lsn:…`. Other positions are refused.

        Returns:
            The sequence number of the new head.

        Raises:
            DuramenError: `invalid_position`, `beyond_tail`, `log_held`, `data_lost`: a retry is
                refused again. `data_unavailable`, `cold_store_unavailable`: a retry is safe, and
                the truncation may have been done. Those of `SyncLog`.

        Example:
            head = log.truncate(2)
        """
        return self._portal.call(self._log.truncate(to))

    def end(self) -> Mark:
        """End the log: appends are refused from now on.

        Returns:
            The `Mark` where it ends.

        Raises:
            DuramenError: `log_held`: refused until the log is closed. Those of `SyncLog`. It may be
                done twice.

        Example:
            end = log.end()
        """
        return self._portal.call(self._log.end())

    def roll(self) -> int | None:
        """Have the open segment closed soon.

        Returns:
            The epoch that is being closed; None: no segment is open.

        Raises:
            DuramenError: `log_ended`, `log_held`: a retry is refused again. Those of `SyncLog`. It
                may be done twice.

        Example:
            epoch = log.roll()
        """
        return self._portal.call(self._log.roll())

    def fence(self, token: str, *, expected: str | None = None) -> Mark:
        """Set the fencing token: appends that name another one are refused.

        Args:
            token: at most 64 bytes; "": the log has none.
            expected: the token that is to be replaced; None: any.

        Returns:
            The `Mark` from which on the token holds.

        Raises:
            Uncertain: the token may have been set, or come to be, also after others have set
                theirs: name `expected` where there are others. A retry without it sets the same
                token again; one with it may be refused by its own first try.
            DuramenError: nothing was set. `fencing_token_mismatch`, `log_ended`, `log_held`,
                `invalid_argument`: a retry is refused again. `window_full`, `not_enough_bookies`: a
                retry is safe. Those of `SyncLog`.

        Example:
            log.fence("node-2")
            log.append(b"one", fencing_token="node-2")
        """
        return self._portal.call(self._log.fence(token, expected=expected))

    def delete(self) -> str:
        """Delete the log.

        Returns:
            The time (RFC 3339) until which `undelete` has it back.

        Raises:
            DuramenError: `log_held`: refused until the log is closed. Those of `SyncLog`.

        Example:
            until = log.delete()
        """
        return self._portal.call(self._log.delete())

    def undelete(self) -> None:
        """Have the deleted log back.

        Raises:
            DuramenError: `log_deleted`: the time is over, or its name was given away; `log_held`: a
                retry is refused again. Those of `SyncLog`.

        Example:
            log.delete()
            log.undelete()
        """
        self._portal.call(self._log.undelete())
