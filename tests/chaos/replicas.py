"""Asks every replica of every entry: metadata from ZooKeeper, entries from the bookies themselves.

Which segments a log has follows from its log node (first live epoch to next epoch), never from a
listing; which entries count, from the segment node or, while it is not closed, from the highest LAC
that a member tells. What was truncated counts where takeovers read it. Each member is asked for its
entries by the incarnation that the segment names (R1), and every entry that comes is checked. Of a
flexible segment every node of the map is asked for everything, without a filter.

Nothing of the product's own readers, repair or `duramen verify` is used: the count is to be a
second opinion. Called by `run` (the end) and `disks` (what may be destroyed).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from duramen.cluster.layout import CLUSTER_NAME
from duramen.core.flexible.segment import AnySegment, FlexibleSegment
from duramen.core.log_node import LogNode
from duramen.core.reading.runs import last_of_run
from duramen.core.segment import Segment, SegmentState
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, BookieId, EntryId, Epoch, Incarnation, LogId, Member
from duramen.runtime.http_client import (
    NoAnswerError,
    OverloadedError,
    PeerClient,
    UnreachableError,
)
from duramen.runtime.identity.names import Role
from duramen.runtime.security.process_security import ProcessSecurity
from duramen.runtime.stores.metadata_store import Stored, Unavailable
from duramen.runtime.stores.zookeeper_store import ZooKeeperStore
from duramen.units import SECOND
from duramen.wire.bookie_calls import (
    ReadAnswer,
    ReadRange,
    ServiceClass,
    pack_reads,
    parse_read_answers,
)
from duramen.wire.entry import EntryError, check_entry
from duramen.wire.flexible.filtered_answers import FilteredAnswer, parse_filtered_answers
from duramen.wire.flexible.filtered_reads import FilteredRange, pack_filtered_reads
from duramen.wire.metadata_json import Paths, read_any_segment, read_log, read_node
from tests.chaos.copies import NO_ENTRY, Answer, CopyCount, Counted, Place, Rule
from tests.chaos.keys import ClusterKeys
from tests.chaos.load import NAMESPACE
from tests.chaos.waiting import wait_at_most

T = TypeVar("T")
A = TypeVar("A", ReadAnswer, FilteredAnswer)

_PATHS: Final = Paths(CLUSTER_NAME)
_READ_BYTES: Final = 1 << 20
_READ_TIMEOUT_US: Final = 5 * SECOND
_TRIES_MAX: Final = 6
"""Of a read that was refused for now or not answered; then the member counts as not there."""

_AGAIN_S: Final = 0.5
_CONCURRENCY: Final = 6
_SESSION_S: Final = 10.0
_CONNECT_S: Final = 30.0
_END: Final = 1 << 32
_FOR_NOW: Final = (BookieStatus.OVERLOADED, BookieStatus.TIMEOUT, BookieStatus.UNREACHABLE)
_OF_ALL: Final = (BookieStatus.WRONG_INCARNATION, BookieStatus.GONE, *_FOR_NOW)
"""Statuses that say the same of every entry of the ledger."""


class Bookie(NamedTuple):
    """A bookie as its two nodes show it; `url` is None while it does not serve.

    `is_doubtful`: its journal lost a record, and it does not know which.
    """

    incarnation: Incarnation
    place: Place
    duty: str
    url: str | None
    is_doubtful: bool = False


class Replicas:
    """The cluster's copies; to be started and closed."""

    def __init__(self, zookeeper: str, keys: ClusterKeys | None) -> None:
        """`keys`: by what it is let in; None: nobody is asked."""
        self._keys = keys
        self._store = ZooKeeperStore(
            zookeeper,
            session_timeout_s=_SESSION_S,
            identity_dir=None if keys is None else keys.operator_folder,
        )
        self._security: ProcessSecurity | None = None
        self._client: PeerClient | None = None
        self._slots = asyncio.Semaphore(_CONCURRENCY)

    async def start(self) -> None:
        """Connect.

        Raises:
            TimeoutError: ZooKeeper does not answer.
        """
        if self._keys is not None:
            self._security = self._keys.make_security()
            self._security.start()
        self._client = PeerClient(self._security)
        async with asyncio.timeout(_CONNECT_S):
            await self._store.start()

    async def close(self) -> None:
        """Give the session and the connections back."""
        if self._client is not None:
            await self._client.close()
        if self._security is not None:
            await self._security.stop()
        await self._store.close()

    # --- metadata --------------------------------------------------------------------------------

    async def list_bookies(self) -> dict[BookieId, Bookie]:
        """Every bookie that ever registered."""
        await self._patiently(lambda: self._store.sync(_PATHS.bookies))
        bookies = {}
        for name in await self._patiently(lambda: self._store.children(_PATHS.bookies)) or ():
            known = await self._read_fields(f"{_PATHS.bookies}/{name}")
            served = await self._read_fields(f"{_PATHS.available}/{name}")
            if self._security is not None and "data_url" in served:
                url = str(served["data_url"])
                self._security.peers.hear(Role.BOOKIE, name, url)
            bookies[BookieId(name)] = Bookie(
                Incarnation(str(known.get("incarnation"))),
                Place(str(known.get("region")), str(known.get("rack"))),
                str(known.get("duty", "")),
                served.get("data_url"),
                served.get("doubtful") is True,
            )
        return bookies

    async def list_segments(self, log: str) -> tuple[LogNode, list[AnySegment]]:
        """A log and its live segments; one that goes while this looks is left out."""
        fields = await self._read_fields(_PATHS.name(NAMESPACE, log))
        log_id = LogId(int(fields["log_id"]))
        await self._patiently(lambda: self._store.sync(_PATHS.log(log_id)))
        found = await self._get(_PATHS.log(log_id))
        assert found is not None, log
        node = read_log(found.data)
        segments: list[AnySegment] = []
        for epoch in range(node.first_kept_epoch, node.next_epoch):
            stored = await self._get(_PATHS.segment(log_id, Epoch(epoch)))
            if stored is not None:
                segments.append(read_any_segment(stored.data))
        return node, segments

    async def count_written(self, logs: Sequence[str], sequencer: str) -> Counter[BookieId]:
        """Bookie → open segments of this sequencer's logs that write to it."""
        counts: Counter[BookieId] = Counter()
        for log in logs:
            node, segments = await self.list_segments(log)
            owner = await self._read_fields(_PATHS.owner(node.log_id))
            for segment in segments:
                if owner.get("sequencer") == sequencer and segment.state is SegmentState.OPEN:
                    counts.update(member.bookie for member in segment.members)
        return counts

    async def count_naming(
        self, logs: Sequence[str], bookie: str, incarnation: Incarnation | None = None
    ) -> int:
        """Live segments that name a bookie, in one life of its disks or in any."""
        count = 0
        for log in logs:
            node, segments = await self.list_segments(log)
            for segment in segments:
                count += any(
                    m.bookie == bookie and incarnation in (None, m.incarnation)
                    for m in list_needed_members(node, segment)
                )
        return count

    async def _read_fields(self, path: str) -> dict[str, Any]:
        found = await self._get(path)
        return {} if found is None else read_node(found.data)

    async def _get(self, path: str) -> Stored | None:
        return await self._patiently(lambda: self._store.get(path))

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Read, again while ZooKeeper is between two leaders or sessions."""
        deadline = asyncio.get_running_loop().time() + _CONNECT_S
        while True:
            try:
                return await call()
            except Unavailable:
                if asyncio.get_running_loop().time() > deadline:
                    raise
            await wait_at_most(_AGAIN_S)

    # --- copies ----------------------------------------------------------------------------------

    async def count(self, logs: Sequence[str]) -> CopyCount:
        """Ask for every copy of every entry of these logs."""
        total = CopyCount()
        bookies = await self.list_bookies()
        places = {bookie: known.place for bookie, known in bookies.items()}
        for log in logs:
            node, segments = await self.list_segments(log)
            rule = _find_rule(node)
            for segment in segments:
                last = segment.last_entry
                if last is None:
                    last = await self._find_lac(segment, bookies)
                first = find_first_needed(node, segment)
                answers = await self._ask_all(segment, first, last, bookies)
                total.take(Counted(log, segment, first, last, rule), answers, places)
        return total

    async def _ask_all(
        self,
        segment: AnySegment,
        first: EntryId,
        last: EntryId,
        bookies: Mapping[BookieId, Bookie],
    ) -> dict[Member, dict[EntryId, Answer]]:
        async def ask(member: Member) -> dict[EntryId, Answer]:
            async with self._slots:
                if isinstance(segment, FlexibleSegment):
                    return await self._ask_node(member, segment, first, last, bookies)
                return await self._ask_member(member, segment, first, last, bookies)

        ordered = sorted(_list_members(segment))
        return dict(zip(ordered, await asyncio.gather(*map(ask, ordered)), strict=True))

    async def _ask_member(
        self,
        member: Member,
        segment: Segment,
        first: EntryId,
        last: EntryId,
        bookies: Mapping[BookieId, Bookie],
    ) -> dict[EntryId, Answer]:
        """What one member says to each entry that it should hold."""
        mine = [e for e in _list_entries(first, last) if member in segment.write_set_of(e)]
        answers: dict[EntryId, Answer] = {}
        at = 0
        while at < len(mine):
            end = EntryId(min(last, last_of_run(segment, mine[at], member)))
            answer = await self._read(member, segment, mine[at], end, bookies)
            if not answer.entries and answer.status in _OF_ALL:
                return answers | dict.fromkeys(mine[at:], answer.status.name.lower())
            if not answer.entries:
                answers[mine[at]] = answer.status.name.lower()
                at += 1
            for entry_id, body in answer.entries:
                if at == len(mine) or entry_id != mine[at]:
                    break
                answers[entry_id] = _judge_copy(segment, entry_id, bytes(body))
                at += 1
        return answers

    async def _ask_node(
        self,
        member: Member,
        segment: FlexibleSegment,
        first: EntryId,
        last: EntryId,
        bookies: Mapping[BookieId, Bookie],
    ) -> dict[EntryId, Answer]:
        """What a node of a map says to every entry: it may have any."""
        answers: dict[EntryId, Answer] = {}
        at = first
        while at <= last:
            asked = FilteredRange(_make_range(segment, at, last))
            body = pack_filtered_reads(member.incarnation, [asked])
            found = await self._ask(member, bookies, body, parse_filtered_answers)
            status = found if isinstance(found, BookieStatus) else found.status
            if isinstance(found, BookieStatus) or status is not BookieStatus.OK:
                return answers | dict.fromkeys(_list_entries(at, last), status.name.lower())
            end = EntryId(min(found.next, last + 1))
            if end <= at:
                return answers | dict.fromkeys(_list_entries(at, last), "told of nothing")
            answers |= dict.fromkeys(_list_entries(at, EntryId(end - 1)), NO_ENTRY)
            for low, high in found.unvouched:
                answers |= dict.fromkeys(
                    _list_entries(low, high), BookieStatus.UNKNOWN.name.lower()
                )
            for entry_id, copy in found.entries:
                answers[entry_id] = _judge_copy(segment, entry_id, bytes(copy))
            at = end
        return answers

    async def _find_lac(self, segment: AnySegment, bookies: Mapping[BookieId, Bookie]) -> EntryId:
        """The highest LAC that anybody tells who is written to: that much was acknowledged."""
        lacs = [NOTHING]
        for member in segment.members:
            answer = await self._read(member, segment, EntryId(0), EntryId(0), bookies)
            lacs.append(answer.lac)
        return max(lacs)

    async def _read(
        self,
        member: Member,
        segment: AnySegment,
        first: EntryId,
        last: EntryId,
        bookies: Mapping[BookieId, Bookie],
    ) -> ReadAnswer:
        body = pack_reads(member.incarnation, [_make_range(segment, first, last)])
        found = await self._ask(member, bookies, body, parse_read_answers)
        if isinstance(found, BookieStatus):
            return ReadAnswer(found, NOTHING, NOTHING, False, [])
        return found

    async def _ask(
        self,
        member: Member,
        bookies: Mapping[BookieId, Bookie],
        body: bytes,
        parse: Callable[[bytes], Sequence[A]],
    ) -> A | BookieStatus:
        """One read of one range; again, a few times, while the answer is for now."""
        url = bookies[member.bookie].url
        found: A | BookieStatus = BookieStatus.UNREACHABLE
        for _ in range(_TRIES_MAX):
            if url is not None:
                found = await self._call(f"{url}/b/read", body, parse)
            status = found if isinstance(found, BookieStatus) else found.status
            if status not in _FOR_NOW:
                break
            await wait_at_most(_AGAIN_S)
        return found

    async def _call(
        self, url: str, body: bytes, parse: Callable[[bytes], Sequence[A]]
    ) -> A | BookieStatus:
        assert self._client is not None, "started"
        try:
            (answer,) = parse(await self._client.call(url, body, _READ_TIMEOUT_US))
            return answer
        except UnreachableError:
            return BookieStatus.UNREACHABLE
        except OverloadedError:
            return BookieStatus.OVERLOADED
        except NoAnswerError:
            return BookieStatus.TIMEOUT


def find_first_needed(node: LogNode, segment: AnySegment) -> EntryId:
    """The first entry that truncation has left, or that a takeover reads: from the snapshot on."""
    state_lsn = node.first_live_epoch << 32 if node.snapshot_lsn is None else node.snapshot_lsn + 1
    return EntryId(max(0, min(node.trim_lsn, state_lsn) - (segment.epoch << 32)))


def list_needed_members(node: LogNode, segment: AnySegment) -> set[Member]:
    """Who may hold a needed entry, or come to hold one: by fragments, or by the map."""
    first = find_first_needed(node, segment)
    end = _END if segment.last_entry is None else segment.last_entry
    if isinstance(segment, FlexibleSegment):
        return _list_members(segment) if first <= end else set()
    ends = [*(fragment.first_entry - 1 for fragment in segment.fragments[1:]), end]
    return {
        member
        for fragment, last in zip(segment.fragments, ends, strict=True)
        if max(first, fragment.first_entry) <= last
        for member in fragment.ensemble
    }


def _list_members(segment: AnySegment) -> set[Member]:
    if isinstance(segment, FlexibleSegment):
        return {row.member for row in segment.nodes}
    return {member for fragment in segment.fragments for member in fragment.ensemble}


def _find_rule(node: LogNode) -> Rule:
    """Of the log's striped segments; flexible ones have their own in their nodes."""
    if node.config.copysets == "flexible":
        return Rule()
    replication = node.config.striped
    return Rule(replication.min_regions, replication.min_racks, replication.placement == "strict")


def _make_range(segment: AnySegment, first: EntryId, last: EntryId) -> ReadRange:
    return ReadRange(segment.ledger_id, first, last, _READ_BYTES, service=ServiceClass.REPAIR)


def _list_entries(first: EntryId, last: EntryId) -> list[EntryId]:
    return [EntryId(entry) for entry in range(first, last + 1)]


def _judge_copy(segment: AnySegment, entry_id: EntryId, body: bytes) -> Answer:
    """The fingerprint of a copy, if it is that of this entry and its checksum holds."""
    try:
        info = check_entry(body)
    except EntryError:
        return "damaged"
    if (info.ledger_id, info.entry_id) != (segment.ledger_id, entry_id):
        return "misplaced"
    return int.from_bytes(hashlib.blake2b(body, digest_size=8).digest(), "big")
