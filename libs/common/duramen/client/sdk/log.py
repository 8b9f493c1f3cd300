"""Namespaces and logs: what a client's `c["ns"]["log"]` is, and every call on it.

These objects hold names only; making one asks nobody. All state is the session's.
Made by `sdk.client`. Source: docs/protocol/rest.md "Write proxy", docs/sdk.md.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

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
    make_batches,
    spell_position,
)
from duramen.client.sdk.session import Session, make_producer_id
from duramen.client.sdk.values import (
    Compression,
    Mark,
    Record,
    find_codec,
    read_mark,
)
from duramen.errors import DuramenError
from duramen.limits import BATCH_RECORD_COUNT_MAX
from duramen.runtime.http_client import UnreachableError
from duramen.texts import check_log_name, check_namespace, parse_position
from duramen.wire.edge.batch_codec import Codec
from duramen.wire.record_batch import (
    PRODUCER_ID_BYTES_MAX,
    BatchError,
)
from duramen.wire.record_batch import Producer as Stamp

RESULTS_KEPT_DEFAULT: Final = 64
"""Of a log's configuration, spelt again: `duramen.config` takes longer to load than all of this."""

_MATCH_HEADER: Final = "Duramen-Match-Seq-Num"
_TOKEN_HEADER: Final = "Duramen-Fencing-Token"


class Namespace:
    """A named group of logs; `namespace["name"]` is one of them."""

    def __init__(self, session: Session, name: str) -> None:
        self._session = session
        self.name = check_namespace(name)

    def __getitem__(self, log: str) -> Log:
        return Log(self._session, self.name, log)

    def __repr__(self) -> str:
        return f"<Namespace {self.name}>"

    async def ensure(self, config: Mapping[str, Any] | None = None) -> bool:
        """Create it if it is missing; True if this call created it.

        Raises:
            DuramenError: `log_exists_with_other_config` (not worth repeating) among others.
        """
        write = self._session.write
        return await self._session.run(lambda: write.ensure_namespace(self.name, config or {}))

    async def show(self) -> dict[str, Any]:
        """Its configuration.

        Raises:
            DuramenError: `namespace_not_found` among others.
        """
        return await self._session.run(lambda: self._session.write.show_namespace(self.name))

    async def reconfigure(self, patch: Mapping[str, Any]) -> dict[str, Any]:
        """Change the fields that `patch` names; gives the whole.

        Raises:
            DuramenError: `namespace_not_found`, `invalid_argument`, …
        """
        write = self._session.write
        return await self._session.run(lambda: write.reconfigure_namespace(self.name, patch))

    async def delete(self) -> bool:
        """Delete it, if it has no logs; False if it was not there.

        Raises:
            DuramenError: `namespace_not_empty`: the name of a deleted log counts until the log is
                purged.
        """
        write = self._session.write
        answer = await self._session.run(lambda: write.delete_namespace(self.name))
        return bool(answer["changed"])

    async def logs(self, *, prefix: str = "") -> AsyncIterator[Log]:
        """Its logs in the order of their names, page by page.

        Raises:
            As `show`.
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
    """A log: append to it, read it, look after it."""

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
        """Append records atomically: they follow each other in the log, or none is there.

        With the policy `Repeat.ALL` it is repeated until its fate is certain or the time is up: the
        SDK numbers it, so that the log knows a repetition.

        Args:
            records: bytes, a `Record`, or up to 10,000 of them, 4 MiB together.
            match_seq_num: the first record must get this sequence number.
            fencing_token: the log's token must be this one; empty: it must have none.
            compression: `zstd`: what is sent, stored and read as batches is compressed.

        Raises:
            Uncertain: they may be in the log, or come to be there.
            DuramenError: refused, nothing was appended: `condition_failed` (its `facts` have the
                number expected), `fencing_token_mismatch`, `log_ended`, `batch_too_large`, …
        """
        items = list_records(records)
        codec = find_codec(compression)
        conditions = []
        if match_seq_num is not None:
            conditions.append((_MATCH_HEADER, str(match_seq_num)))
        if fencing_token is not None:
            conditions.append((_TOKEN_HEADER, fencing_token))
        session, key = self._session, self._key
        while True:
            lane = session.take_lane(key)
            try:
                appended = await self._append(items, lane, codec, conditions)
            except DuramenError as error:
                is_forgotten = error.code == "producer_unknown" and not error.uncertain
                if is_forgotten and lane is not None and lane.sequence > 0:
                    continue  # it rested for too long: the log has forgotten it, another will do
                if not error.uncertain:
                    session.give_lane(key, lane, is_used=False)
                raise
            session.give_lane(key, lane, is_used=True)
            return appended

    async def _append(
        self,
        items: Sequence[Record],
        lane: Stamp | None,
        codec: Codec,
        conditions: Sequence[tuple[str, str]],
    ) -> Appended:
        batch = encode_records(items, lane, codec)

        async def send() -> Appended:
            write = self._session.write
            appended = await write.append(*self._key, batch, conditions=conditions)
            return check_count(appended, len(items))

        try:
            return await deliver(send, self._session.pauses(), has_producer=lane is not None)
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
        """A producer of this log, to be used with `async with`.

        Args:
            id: who it is, 1 to 64 printable ASCII characters; a random one by default.
            epoch: fences lower ones of the same id; 0 for a random id, the clock's milliseconds for
                a given one.
            idempotent: number the batches, so that a repetition is never stored twice. Without it
                one batch is on its way at a time, and one of unknown fate ends the producer.
            linger: seconds that a record waits for others at most, ≥ 0.
            batch_bytes, batch_records: when a batch is full, up to almost 4 MiB and 10,000.
            max_in_flight_bytes: what may be unacknowledged.
            fencing_token, compression: as in `append`, for every batch.

        Raises:
            DuramenError: `invalid_argument`: one of these, with its name as `field`.
        """
        _check_limits(batch_bytes, batch_records, max_in_flight_bytes)
        stamp = None
        if idempotent:
            if id is not None:
                _check_producer_id(id)
            if epoch is None:
                epoch = 0 if id is None else time.time_ns() // 1_000_000
            stamp = Stamp(id or make_producer_id(), epoch, 0)
        conditions = () if fencing_token is None else ((_TOKEN_HEADER, fencing_token),)
        session = self._session

        async def send(batch: bytes, record_count: int) -> Appended:
            appended = await session.write.append(*self._key, batch, conditions=conditions)
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
        """The records from a position on, batch by batch, each record once and in order.

        Records that are not there are passed, and the batch behind them says so: `moved_to` where
        they were truncated, `lost` where a person has accepted that they are lost. A lost
        connection or a proxy that goes away is no end: reading goes on behind the last record as
        soon as a proxy answers, within the time of the policy.

        Args:
            from_: a sequence number, a time, or a position: `head`, `tail`, `tail-N`, `seq:N`,
                `dlsn:…`, `lsn:…`, `txid:N`, `time:…`, `ago:1h30m`.
            follow: at the tail, wait for more; ends only at the end of an ended log.
            count: how many records at most.
            until: the sequence number to end before.
            answer_bytes: about as much is asked for at once; two answers are held at most.

        Raises:
            DuramenError: `invalid_position`, `beyond_tail`, `log_not_found`; `log_unavailable`: no
                answer within the time of the policy, worth repeating from `batch.end`.
        """
        text = spell_position(from_)
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
        """The mark behind the last record: every append acknowledged before is in front of it.

        Raises:
            DuramenError: `log_not_found`, `data_unavailable` (worth repeating), …
        """
        return read_mark(await self._session.run(lambda: self._session.read.show_tail(*self._key)))

    async def segments(self) -> list[dict[str, Any]]:
        """Its live segments, oldest first, as REST shows them. Raises as `tail`."""
        answer = await self._session.run(lambda: self._session.read.list_segments(*self._key))
        return list(answer["segments"])

    # --- look after it ---------------------------------------------------------------------------

    async def ensure(self, config: Mapping[str, Any] | None = None) -> bool:
        """Create it with this configuration if it is missing; True if this call created it.

        Raises:
            DuramenError: `log_exists_with_other_config`, `namespace_not_found`, …
        """
        write = self._session.write
        return await self._session.run(lambda: write.ensure_log(*self._key, config or {}))

    async def show(self) -> dict[str, Any]:
        """Its id, configuration, head, and whether it has ended.

        Raises:
            DuramenError: `log_not_found` among others.
        """
        return await self._session.run(lambda: self._session.write.show_log(*self._key))

    async def reconfigure(
        self, patch: Mapping[str, Any], *, version: int | None = None
    ) -> dict[str, Any]:
        """Change the fields that `patch` names; gives the whole.

        Args:
            version: refuse unless the stored configuration has this one.

        Raises:
            Uncertain: no answer came to a change with `version`: it may have been done.
            DuramenError: `config_conflict`, `invalid_argument`, …
        """
        write = self._session.write
        return await self._session.run(
            lambda: write.reconfigure_log(*self._key, patch, version=version),
            is_once=version is not None,
        )

    async def truncate(self, to: str | int | datetime) -> int:
        """Give up every record before a position; gives the sequence number of the new head.

        Raises:
            DuramenError: `beyond_tail` among others.
        """
        text, write = spell_position(to), self._session.write
        answer = await self._session.run(lambda: write.truncate_log(*self._key, text))
        return int(answer["head"]["seq_num"])

    async def end(self) -> Mark:
        """End the stream: appends are refused from now on. Gives where it ends.

        Raises:
            DuramenError: refused.
        """
        answer = await self._session.run(lambda: self._session.write.end_log(*self._key))
        return read_mark(answer["tail"])

    async def roll(self) -> int | None:
        """Have the open segment closed soon; gives its epoch, None if none is open.

        Raises:
            DuramenError: refused.
        """
        return await self._session.run(lambda: self._session.write.roll_log(*self._key))

    async def fence(self, token: str, *, expected: str | None = None) -> Mark:
        """Set the fencing token (empty: none): every append from the given mark on must name it.

        Args:
            expected: set it only in place of this one.

        Raises:
            Uncertain: no answer came to a call with `expected`: it may have been done.
            DuramenError: `fencing_token_mismatch` among others.
        """
        write = self._session.write
        answer = await self._session.run(
            lambda: write.fence_log(*self._key, token, expected=expected),
            is_once=expected is not None,
        )
        return read_mark(answer["tail"])

    async def delete(self) -> str:
        """Delete it; gives the time (RFC 3339) until which `undelete` has it back.

        Raises:
            DuramenError: refused.
        """
        answer = await self._session.run(lambda: self._session.write.delete_log(*self._key))
        return str(answer["undelete_until"])

    async def undelete(self) -> None:
        """Have it back.

        Raises:
            DuramenError: `log_deleted`: the time is over, or its name was given away.
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
