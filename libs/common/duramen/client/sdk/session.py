"""What the objects of one client share: connections, policy, retry budget, homes, producer ids.

Every call of the SDK runs through `Session.run` (or, for appends, `sdk.delivery`), so that errors
are translated and repetitions counted in one place. Not public.
Used by `sdk.client`, `sdk.log` and `sdk.producer`. Source: docs/sdk.md.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from duramen.client.credentials.credential import Credential
from duramen.client.rest_client import (
    Appended,
    BulkReadAnswer,
    RestClient,
    SentElsewhereError,
)
from duramen.client.retry import Pauses, Repeat, RetryBudget, RetryPolicy, repeat
from duramen.client.sdk.faults import translate_fault
from duramen.client.sdk.homes import KnownHomes, LogName
from duramen.client.sdk.reader import check_progress
from duramen.client.sharing.append_streams import AppendStreams
from duramen.errors import DuramenError
from duramen.runtime.http_client import PeerError, UnreachableError
from duramen.wire.edge.batch_stream import StreamedBatch
from duramen.wire.record_batch import BatchProducer

T = TypeVar("T")

_LANE_LOG_COUNT_MAX: Final = 4_096
"""Logs whose idle producers are kept; those of the one used first are dropped for another."""


class Session:
    """The shared part of a client."""

    def __init__(
        self,
        write_url: str,
        read_url: str,
        *,
        policy: RetryPolicy,
        timeout_s: float,
        has_http2: bool,
        follows_owner: bool,
        credential: Credential,
    ) -> None:
        def connect(url: str) -> RestClient:
            return RestClient(url, has_http2=has_http2, timeout_s=timeout_s, credential=credential)

        self.write = connect(write_url)
        self.read = self.write if read_url == write_url else connect(read_url)
        self.policy = policy
        self.has_http2 = has_http2
        self.budget = RetryBudget()
        self.homes = KnownHomes(self.read, connect, credential)
        self._follows_owner = follows_owner
        self._owners = KnownHomes(self.write, connect, credential)
        self._lanes: dict[LogName, list[BatchProducer]] = {}
        # A session tries again what is refused for now, and follows no owner.
        may_share = has_http2 and not follows_owner and policy.repeat is not Repeat.NONE
        self._streams = AppendStreams(self.write, timeout_s) if may_share else None

    async def close(self) -> None:
        """Close every connection."""
        if self._streams is not None:
            await self._streams.close()
        await self.homes.close()
        await self._owners.close()
        await self.read.close()
        if self.write is not self.read:
            await self.write.close()

    def pauses(self) -> Pauses | None:
        """The repetitions of one call; None where none are wanted."""
        if self.policy.repeat is Repeat.NONE:
            return None
        return Pauses(self.policy, self.budget)

    async def run(self, call: Callable[[], Awaitable[T]], *, is_once: bool = False) -> T:
        """The answer to a call that is no append.

        Args:
            is_once: it must not be done twice, so that no answer leaves its fate open.

        Raises:
            Uncertain: it may have been done (`is_once` only).
            DuramenError: refused, or no proxy gave an answer in time.
        """
        try:
            pauses = self.pauses()
            if pauses is None:
                return await call()
            return await repeat(call, pauses, is_read=not is_once)
        except (DuramenError, PeerError) as error:
            raise translate_fault(error, is_change=is_once) from error

    async def ask_records(
        self, log: LogName, position: str, most_bytes: int, wait_ms: int
    ) -> BulkReadAnswer:
        """One answer to a read, from the log's home. Raises as `RestClient.read`."""
        home = self.homes.find(log)
        try:
            answer = await home.read(*log, position, most_bytes=most_bytes, wait_ms=wait_ms)
            check_progress(answer, position, wait_ms)
        except PeerError:
            self.homes.forget(log)
            raise
        self.homes.learn(log, answer.home)
        return answer

    async def append(
        self, log: LogName, batch: bytes, conditions: Sequence[tuple[str, str]]
    ) -> Appended:
        """One try to append; in the region of the log's owner, where the client wants that.

        A proxy there that takes no connection, or leaves the fate open, is not asked again before
        it is named again. Raises as `RestClient.append`.
        """
        proxy, is_asking = self._owners.find(log), self._follows_owner
        while True:
            try:
                return await proxy.append(
                    *log, batch, conditions=conditions, may_be_elsewhere=is_asking
                )
            except SentElsewhereError as elsewhere:
                self._owners.learn(log, elsewhere.url)
                proxy, is_asking = self._owners.find(log), False
            except UnreachableError:
                self._owners.forget(log)
                if proxy is self.write:
                    raise
                proxy, is_asking = self.write, False
            except DuramenError as error:
                if error.uncertain or error.code == "server_draining":
                    self._owners.forget(log)
                raise

    async def append_beside(self, log: LogName, streamed: StreamedBatch) -> Appended:
        """One try to append, which may share a request with others on their way to the log.

        Raises as `append`.
        """
        conditions = list_conditions(streamed.match_seq_num, streamed.fencing_token)

        async def call() -> Appended:
            return await self.append(log, streamed.batch, conditions)

        # Who demands a number waits for nobody.
        if self._streams is None or streamed.match_seq_num is not None:
            return await call()
        return await self._streams.append(log, streamed, call)

    def take_lane(self, log: LogName) -> BatchProducer | None:
        """A producer for one append that nothing else uses now; None where the policy needs none.

        Whoever took one gives it back with `give_lane` when its append is certain.
        """
        if self.policy.repeat is not Repeat.ALL:
            return None
        lanes = self._lanes.get(log)
        return lanes.pop() if lanes else BatchProducer(make_producer_id(), 0, 0)

    def give_lane(self, log: LogName, lane: BatchProducer | None, *, is_used: bool) -> None:
        """A producer is free again; `is_used`: the append with its sequence is in the log."""
        if lane is None:
            return
        if is_used:
            lane = lane._replace(sequence=lane.sequence + 1)
        if log not in self._lanes and len(self._lanes) >= _LANE_LOG_COUNT_MAX:
            del self._lanes[next(iter(self._lanes))]
        self._lanes.setdefault(log, []).append(lane)

    def statistics(self) -> dict[str, dict[str, float]]:
        """The retry budget, what is known of homes, and sessions of appends."""
        homes: dict[str, float] = {**self.homes.statistics()}
        streams: dict[str, float] = {} if self._streams is None else {**self._streams.statistics()}
        return {"retries": self.budget.statistics(), "homes": homes, "append_streams": streams}


def list_conditions(
    match_seq_num: int | None, fencing_token: str | None
) -> tuple[tuple[str, str], ...]:
    """What an append demands of its log, as headers of a call."""
    found: list[tuple[str, str]] = []
    if match_seq_num is not None:
        found.append(("Duramen-Match-Seq-Num", str(match_seq_num)))
    if fencing_token is not None:
        found.append(("Duramen-Fencing-Token", fencing_token))
    return tuple(found)


def make_producer_id() -> str:
    """An id that nobody else has."""
    return f"py-{secrets.token_hex(12)}"
