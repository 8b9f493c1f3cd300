"""Namespaces and logs: what a client's `c["ns"]["log"]` is, and every call on it.

These objects hold names only; making one asks nobody. All state is the session's.
Made by `sdk.client`. Source: docs/protocol/rest.md "Write proxy", docs/sdk.md.
"""

from __future__ import annotations

import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
)
from datetime import datetime
from typing import Any, Final, TypeVar

from duramen.client.rest_client import Appended
from duramen.client.retry import Repeat
from duramen.client.sdk.batches import Records, encode_records, list_records
from duramen.client.sdk.delivery import check_count, deliver
from duramen.client.sdk.faults import translate_fault
from duramen.client.sdk.producer import (
    BATCH_BYTES_DEFAULT,
    BATCH_BYTES_MOST,
    IN_FLIGHT_BYTES_DEFAULT,
    Producer,
)
from duramen.client.sdk.read_batch import ReadBatch
from duramen.client.sdk.reader import (
    ANSWER_BYTES,
    follow_answers,
    format_position,
    make_batches,
)
from duramen.client.sdk.session import Session, list_conditions, make_producer_id
from duramen.client.sdk.values import (
    Compression,
    Mark,
    find_codec,
    read_mark,
)
from duramen.client.settings import LogSettings
from duramen.errors import DuramenError
from duramen.limits import BATCH_RECORD_COUNT_MAX
from duramen.runtime.http_client import UnreachableError
from duramen.texts import check_log_name, check_namespace, parse_position
from duramen.wire.edge.batch_stream import StreamedBatch
from duramen.wire.record_batch import (
    PRODUCER_ID_BYTES_MAX,
    BatchError,
)
from duramen.wire.record_batch import BatchProducer as Stamp

RESULTS_KEPT_DEFAULT: Final = 64
"""Of a log's configuration, spelt again: `duramen.config` takes longer to load than all of this."""


_USELESS_LANES: Final = ("producer_unknown", "data_lost")
"""It rested for so long that the log has forgotten it, or the log lost entries that may have been
its own: the batch is not in the log, and no later one of this producer will be."""

T = TypeVar("T")


class Namespace:
    """A named group of logs; `namespace["name"]` is one of them.

    Attributes:
        name: its name.
    """

    def __init__(self, session: Session, name: str) -> None:
        self._session = session
        self.name = check_namespace(name)

    def __getitem__(self, log: str) -> Log:
        """The log of this name; asks nobody.

        Args:
            log: 1 to 255 of `A-Z`, `a-z`, `0-9`, `.`, `_` and `-`; begins with a letter or digit.

        Returns:
            A `Log`, whether the cluster has it or not.

        Raises:
            DuramenError: `invalid_name`; a retry fails again.

        Example:
            log = namespace["orders"]
        """
        return Log(self._session, self.name, log)

    def __repr__(self) -> str:
        return f"<Namespace {self.name}>"

    async def ensure(self, config: Mapping[str, Any] | None = None) -> bool:
        """Create the namespace if it is missing.

        Args:
            config: fields that are not to have their defaults (docs/protocol/configuration.md).

        Returns:
            True if this call created it; False if the same was there, perhaps by an earlier try.

        Raises:
            DuramenError: `log_exists_with_other_config`: a retry is refused again; the common
                errors of `Client`: a retry is safe.

        Example:
            await namespace.ensure()
        """
        write = self._session.write
        return await self._session.run(lambda: write.ensure_namespace(self.name, config or {}))

    async def show(self) -> dict[str, Any]:
        """Show the namespace.

        Returns:
            `namespace` and `config`, as REST shows them.

        Raises:
            DuramenError: `namespace_not_found`: a retry is refused again; the common errors of
                `Client`: a retry is safe.

        Example:
            config = (await namespace.show())["config"]
        """
        return await self._session.run(lambda: self._session.write.show_namespace(self.name))

    async def reconfigure(self, patch: Mapping[str, Any]) -> dict[str, Any]:
        """Change some fields of the namespace's configuration; the others stay.

        Args:
            patch: the fields to change, with their new values.

        Returns:
            `namespace`, the whole `config`, and `changed`.

        Raises:
            DuramenError: `namespace_not_found`: a retry is refused again; the common errors of
                `Client`: a retry is safe.

        Example:
            await namespace.reconfigure({"auto_create": True})
        """
        write = self._session.write
        return await self._session.run(lambda: write.reconfigure_namespace(self.name, patch))

    async def delete(self) -> bool:
        """Delete the namespace, if it has no logs.

        Returns:
            True if it was there; False may also be the answer to a repetition.

        Raises:
            DuramenError: `namespace_not_empty` (the name of a deleted log counts until the log is
                purged): a retry is refused until then; the common errors of `Client`: a retry is
                safe.

        Example:
            was_there = await client["old-shop"].delete()
        """
        write = self._session.write
        answer = await self._session.run(lambda: write.delete_namespace(self.name))
        return bool(answer["changed"])

    async def logs(self, *, prefix: str = "") -> AsyncIterator[Log]:
        """List the logs of the namespace in the order of their names, page by page.

        Args:
            prefix: of the names; "": all logs.

        Yields:
            A `Log` each.

        Raises:
            DuramenError: `namespace_not_found`: a retry is refused again; the common errors of
                `Client`: a retry is safe.

        Example:
            async for log in namespace.logs(prefix="ord"):
                print(log.name)
        """
        last, has_more = "", True
        while has_more:
            after = last
            page = await self._session.run(
                lambda: self._session.write.list_logs(
                    self.name,
                    prefix=prefix,
                    start_after=after,  # noqa: B023 - called before the next turn
                )
            )
            has_more = bool(page["has_more"])
            for found in page["logs"]:
                last = found["name"]
                yield Log(self._session, self.name, last)


class Log:
    """A log: append to it, read it, look after it.

    Every call may raise `namespace_not_found`, `log_not_found`, `log_deleted` (a retry is refused
    again) and the common errors of `Client`; the methods list what comes on top.

    Attributes:
        namespace: the name of its namespace.
        name: its name.
    """

    def __init__(self, session: Session, namespace: str, name: str) -> None:
        self._session = session
        self.namespace = check_namespace(namespace)
        self.name = check_log_name(name)
        self._key = (namespace, name)

    def __repr__(self) -> str:
        return f"<Log {self.namespace}/{self.name}>"

    # --- append ----------------------------------------------------------------------------------

    async def append(
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
                `data_lost`, `invalid_argument`: a retry is refused again. Those of `Log`.

        Example:
            appended = await log.append([b"one", b"two"], match_seq_num=3)
            print(appended.start, appended.end)
        """
        items = list_records(records)
        codec = find_codec(compression)
        session, key = self._session, self._key
        while True:
            lane = session.take_lane(key)
            try:
                batch = encode_records(items, lane, codec)
                appended = await self._append(
                    StreamedBatch(batch, match_seq_num, fencing_token), len(items), lane
                )
            except DuramenError as error:
                is_useless = error.code in _USELESS_LANES and not error.uncertain
                if is_useless and lane is not None and lane.sequence > 0:
                    continue  # the log will not take it any more: another will do
                if not error.uncertain:
                    session.give_lane(key, lane, is_used=False)
                raise
            session.give_lane(key, lane, is_used=True)
            return appended

    async def _append(
        self, streamed: StreamedBatch, record_count: int, lane: Stamp | None
    ) -> Appended:
        async def send() -> Appended:
            appended = await self._session.append_beside(self._key, streamed)
            return check_count(appended, record_count)

        return await self._deliver(send, may_be_sent_twice=lane is not None)

    async def _deliver(self, send: Callable[[], Awaitable[T]], *, may_be_sent_twice: bool) -> T:
        pauses = self._session.pauses()
        try:
            return await deliver(send, pauses, may_be_sent_twice=may_be_sent_twice)
        except (DuramenError, UnreachableError) as error:
            raise translate_fault(error, is_change=True) from error

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
    ) -> Producer:
        """A producer of this log, to be used with `async with`; asks nobody before that.

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
            A `Producer`; entering it raises as `show`.

        Raises:
            DuramenError: `invalid_argument`, with the name as `field`; a retry fails again.

        Example:
            async with log.producer(linger=0.01) as producer:
                await producer.send(b"one")
        """
        _check_limits(batch_bytes, batch_records, max_in_flight_bytes)
        stamp = None
        if idempotent:
            if id is not None:
                _check_producer_id(id)
            if epoch is None:
                epoch = 0 if id is None else time.time_ns() // 1_000_000
            stamp = Stamp(id or make_producer_id(), epoch, 0)
        conditions = list_conditions(None, fencing_token)
        session = self._session

        async def send(batch: bytes, record_count: int) -> Appended:
            appended = await session.append(self._key, batch, conditions)
            return check_count(appended, record_count)

        return Producer(
            send,
            self._find_results_kept,
            session.pauses,
            stamp=stamp,
            codec=find_codec(compression),
            may_repeat_uncertain=session.policy.repeat is Repeat.ALL,
            linger_s=linger,
            batch_bytes=batch_bytes,
            batch_records=batch_records,
            max_in_flight_bytes=max_in_flight_bytes,
            is_ordered=session.has_http2,
        )

    async def _find_results_kept(self) -> int:
        """How many batches of one producer may be on their way at once."""
        try:
            config = (await self.show())["config"]
        except DuramenError as error:
            if error.code != "log_not_found":
                raise
            return RESULTS_KEPT_DEFAULT  # its namespace may create it with the first append
        return int(config.get("producers", {}).get("results_kept", RESULTS_KEPT_DEFAULT))

    # --- read ------------------------------------------------------------------------------------

    async def read(
        self,
        from_: str | int | datetime = "head",
        *,
        follow: bool = False,
        count: int | None = None,
        until: int | None = None,
        answer_bytes: int = ANSWER_BYTES,
    ) -> AsyncGenerator[ReadBatch, None]:
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
                of `Log`. A read is never uncertain.

        Example:
            async for batch in log.read("head", count=100):
                print(batch.first, batch.bodies)
        """
        text = format_position(from_)
        session = self._session
        answers = follow_answers(
            lambda position, wait_ms: session.run(
                lambda: session.ask_records(self._key, position, answer_bytes, wait_ms)
            ),
            parse_position(text),
            text,
            count=count,
            until=until,
            is_following=follow,
            is_passing_losses=True,
        )
        try:
            async for cut in answers:
                try:
                    batches = make_batches(cut)
                except BatchError as error:
                    detail = f"the records at {cut.wanted} came damaged: {error}"
                    raise DuramenError("internal", detail) from error
                for batch in batches:
                    yield batch
        finally:
            await answers.aclose()

    async def tail(self) -> Mark:
        """Find the mark behind the last record; every append acknowledged before is in front of it.

        Returns:
            A `Mark`.

        Raises:
            DuramenError: `data_unavailable` and those of `Log`; a retry of the first is safe.

        Example:
            count = (await log.tail()).seq_num
        """
        return read_mark(await self._session.run(lambda: self._session.read.show_tail(*self._key)))

    async def acknowledged(self) -> Mark:
        """Find the mark behind the highest record that is acknowledged, released or not.

        It is behind `tail` only of a log with `ack_mode: out_of_order`, and only for a while: what
        lies before it and is not released yet is given to readers later, or told as a gap.

        Returns:
            A `Mark`.

        Raises:
            DuramenError: `data_unavailable` and those of `Log`; a retry of the first is safe.

        Example:
            waiting = (await log.acknowledged()).seq_num - (await log.tail()).seq_num
        """
        show = self._session.read.show_tail
        return read_mark(await self._session.run(lambda: show(*self._key, "acknowledged")))

    async def segments(self) -> list[dict[str, Any]]:
        """List the live segments, oldest first.

        Returns:
            A mapping each, as REST shows a segment (docs/protocol/rest.md "Segments").

        Raises:
            DuramenError: those of `Log`.

        Example:
            states = [segment["state"] for segment in await log.segments()]
        """
        answer = await self._session.run(lambda: self._session.read.list_segments(*self._key))
        return list(answer["segments"])

    async def epochs(self) -> list[dict[str, Any]]:
        """List the epochs of the log, oldest first, also given-up ones that are still told of.

        Returns:
            A mapping each, as REST shows an epoch (docs/protocol/rest.md "Epochs"), with the
            configuration by which it was opened as `config`: None where nobody has told it.

        Raises:
            DuramenError: those of `Log`.

        Example:
            configs = [epoch["config"] for epoch in await log.epochs()]
        """
        answer = await self._session.run(lambda: self._session.read.list_epochs(*self._key))
        configs = answer["configs"]
        return [
            {**row, "config": configs.get(str(row["config_version"]))} for row in answer["epochs"]
        ]

    # --- look after it ---------------------------------------------------------------------------

    async def ensure(self, config: LogSettings | Mapping[str, Any] | None = None) -> bool:
        """Create the log if it is missing.

        Args:
            config: fields that are not to have their defaults (docs/protocol/configuration.md).

        Returns:
            True if this call created it; False if the same was there, perhaps by an earlier try.

        Raises:
            DuramenError: `log_exists_with_other_config`, `placement_impossible`,
                `invalid_argument`: a retry is refused again. Those of `Log`.

        Example:
            await log.ensure({"retention": {"age": "24h"}})
        """
        write = self._session.write
        return await self._session.run(lambda: write.ensure_log(*self._key, config or {}))

    async def show(self) -> dict[str, Any]:
        """Show the log.

        Returns:
            `namespace`, `name`, `log_id`, `config`, `config_version`, `ended` and `head`.

        Raises:
            DuramenError: those of `Log`.

        Example:
            config = (await log.show())["config"]
        """
        return await self._session.run(lambda: self._session.write.show_log(*self._key))

    async def reconfigure(
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
                refused again. Those of `Log`.

        Example:
            await log.reconfigure({"roll": {"size": "64MiB"}})
        """
        write = self._session.write
        return await self._session.run(
            lambda: write.reconfigure_log(*self._key, patch, version=version),
            is_once=version is not None,
        )

    async def truncate(self, to: str | int) -> int:
        """Give up every record before a position.

        Args:
            to: the first record to keep: a sequence number, `head`, `tail`, `tail-N`, `seq:N`,
                `dlsn:…` or `lsn:…`. Other positions are refused.

        Returns:
            The sequence number of the new head.

        Raises:
            DuramenError: `invalid_position`, `beyond_tail`, `log_held`, `data_lost`: a retry is
                refused again. `data_unavailable`, `cold_store_unavailable`: a retry is safe, and
                the truncation may have been done. Those of `Log`.

        Example:
            head = await log.truncate(2)
        """
        text, write = format_position(to), self._session.write
        answer = await self._session.run(lambda: write.truncate_log(*self._key, text))
        return int(answer["head"]["seq_num"])

    async def end(self) -> Mark:
        """End the log: appends are refused from now on.

        Returns:
            The `Mark` where it ends.

        Raises:
            DuramenError: `log_held`: refused until the log is closed. Those of `Log`. It may be
                done twice.

        Example:
            end = await log.end()
        """
        answer = await self._session.run(lambda: self._session.write.end_log(*self._key))
        return read_mark(answer["tail"])

    async def roll(self) -> int | None:
        """Have the open segment closed soon.

        Returns:
            The epoch that is being closed; None: no segment is open.

        Raises:
            DuramenError: `log_ended`, `log_held`: a retry is refused again. Those of `Log`. It may
                be done twice.

        Example:
            epoch = await log.roll()
        """
        return await self._session.run(lambda: self._session.write.roll_log(*self._key))

    async def fence(self, token: str, *, expected: str | None = None) -> Mark:
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
                retry is safe. Those of `Log`.

        Example:
            await log.fence("node-2")
            await log.append(b"one", fencing_token="node-2")
        """
        answer = await self._deliver(
            lambda: self._session.write.fence_log(*self._key, token, expected=expected),
            may_be_sent_twice=expected is None,
        )
        return read_mark(answer["tail"])

    async def delete(self) -> str:
        """Delete the log.

        Returns:
            The time (RFC 3339) until which `undelete` has it back.

        Raises:
            DuramenError: `log_held`: refused until the log is closed. Those of `Log`.

        Example:
            until = await log.delete()
        """
        answer = await self._session.run(lambda: self._session.write.delete_log(*self._key))
        return str(answer["undelete_until"])

    async def undelete(self) -> None:
        """Have the deleted log back.

        Raises:
            DuramenError: `log_deleted`: the time is over, or its name was given away; `log_held`: a
                retry is refused again. Those of `Log`.

        Example:
            await log.delete()
            await log.undelete()
        """
        await self._session.run(lambda: self._session.write.undelete_log(*self._key))


def _check_producer_id(producer_id: str) -> None:
    is_text = producer_id.isascii() and producer_id.isprintable()
    if not (is_text and 0 < len(producer_id) <= PRODUCER_ID_BYTES_MAX):
        detail = f"a producer's id is 1 to {PRODUCER_ID_BYTES_MAX} printable ASCII characters"
        raise DuramenError("invalid_argument", detail, field="id")


def _check_limits(batch_bytes: int, batch_records: int, max_in_flight_bytes: int) -> None:
    for field, value, most in (
        ("batch_bytes", batch_bytes, BATCH_BYTES_MOST),
        ("batch_records", batch_records, BATCH_RECORD_COUNT_MAX),
        ("max_in_flight_bytes", max_in_flight_bytes, None),
    ):
        if value < 1 or (most is not None and value > most):
            detail = f"{field} is 1 or more" if most is None else f"{field} is from 1 to {most}"
            raise DuramenError("invalid_argument", detail, field=field)
