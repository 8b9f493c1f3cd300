"""What is judged of a run of `core_world` once all is closed: whole, in order, where it was said.

Source: docs/testing.md "Invariants".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from duramen.core.flexible.segment import AnySegment
from duramen.core.segment import Segment, Totals
from duramen.core.sequencer import effects as fx
from duramen.ids import Dlsn, EntryId, Epoch, Member
from duramen.wire.entry import HEADER_BYTES, check_entry
from tests.unit.core_fakes import FakeBookie, FakeStore

Answer = fx.Complete | fx.CompleteEarly | fx.OldDuplicate | fx.Fail | fx.Yield


@dataclass(slots=True)
class Fate:
    """What became of one append."""

    batch: bytes
    record_count: int
    invoked_us: int
    answer: Answer | None = None
    answered_us: int = 0


class Judgement:
    """Of one run.

    Args:
        counts: gains what was met.
        is_repeated: whether another append has the same batch: what one was refused, the other may
            store.
    """

    def __init__(
        self,
        store: FakeStore,
        bookies: Mapping[str, FakeBookie],
        *,
        members_lost: Sequence[Member],
        fates: Mapping[int, Fate],
        counts: Counter[str],
        is_repeated: Callable[[int], bool],
    ) -> None:
        self._store = store
        self._bookies = bookies
        self._members_lost = members_lost
        self._fates = fates
        self._counts = counts
        self._is_repeated = is_repeated

    def check(self) -> None:
        """Assert that everything is closed, whole, and where it was acknowledged."""
        log = self._store.log
        assert not log.unclosed_epochs, f"nothing closes {log}"
        found: dict[Dlsn, tuple[bytes, int]] = {}
        seq_num = 0
        for epoch in range(1, log.next_epoch):
            segment, _ = self._store.segments[Epoch(epoch)]
            assert segment.start_seq_num == seq_num, f"gap before {segment}"
            assert segment.totals is not None
            is_striped = isinstance(segment, Segment)
            self._counts["fragments 2+"] += is_striped and len(segment.fragments) > 1
            seq_num = self._read_segment(segment, seq_num, found)
        assert seq_num == log.totals.record_count, "totals of the log"
        batches = Counter(batch for batch, _ in found.values())
        assert all(count == 1 for count in batches.values()), "an append occurs twice"
        self._check_fates(found)

    def _read_segment(
        self, segment: AnySegment, start: int, found: dict[Dlsn, tuple[bytes, int]]
    ) -> int:
        assert segment.last_entry is not None
        totals = Totals()
        by_batch = {fate.batch: fate for fate in self._fates.values()}
        for number in range(segment.last_entry + 1):
            entry = EntryId(number)
            holders = self._holders(segment, entry)
            lost = [m for m in segment.list_holders(entry) if m in self._members_lost]
            assert holders and is_enough(segment, [*holders, *lost]), (segment, entry, holders)
            payload = self._bookies[holders[0].bookie].entries[segment.ledger_id][entry]
            info = check_entry(payload)
            assert info.first_position == totals.record_count, (segment, entry)
            assert info.is_control == (info.record_count == 0), (segment, entry)
            self._counts["control entry"] += info.is_control
            slot = 0
            if info.is_control:
                assert info.record_count == 0
                totals = info.totals
                continue
            for text in payload[HEADER_BYTES:].split(b"append ")[1:]:
                fate = by_batch[b"append " + text]
                position = start + totals.record_count + slot
                found[Dlsn(segment.epoch, entry, slot)] = (fate.batch, position)
                slot += fate.record_count
            assert slot == info.record_count
            totals = info.totals
        assert segment.totals == totals, (segment, segment.totals, totals)
        return start + totals.record_count

    def _holders(self, segment: AnySegment, entry: EntryId) -> list[Member]:
        return [
            member
            for member in segment.list_holders(entry)
            if self._bookies[member.bookie].member == member
            and entry in self._bookies[member.bookie].entries.get(segment.ledger_id, {})
        ]

    def _check_fates(self, found: dict[Dlsn, tuple[bytes, int]]) -> None:
        acknowledged: dict[int, Fate] = {}
        present = {batch for batch, _ in found.values()}
        for append_id, fate in self._fates.items():
            answer = fate.answer
            assert answer is not None, f"never answered: {fate}"
            if isinstance(answer, fx.Complete) and not answer.is_duplicate:
                assert found.get(answer.start) == (fate.batch, answer.seq_num), fate
                assert answer.tail.seq_num == answer.seq_num + fate.record_count
                acknowledged[answer.seq_num] = fate
            elif isinstance(answer, fx.CompleteEarly):
                self._counts["acknowledged early"] += 1
                batch, seq_num = found[answer.start]
                assert batch == fate.batch, fate
                acknowledged[seq_num] = fate
            elif is_refused(answer) and not self._is_repeated(append_id):
                assert fate.batch not in present, f"refused and yet stored: {fate}"
        self._check_order(acknowledged, found)

    def _check_order(
        self, acknowledged: dict[int, Fate], found: dict[Dlsn, tuple[bytes, int]]
    ) -> None:
        """O2: what precedes an acknowledged append was invoked before it was acknowledged."""
        invoked_us: dict[bytes, int] = {}
        for fate in self._fates.values():
            invoked_us.setdefault(fate.batch, fate.invoked_us)
        latest_invoked_us = -1
        for batch, seq_num in sorted(found.values(), key=lambda pair: pair[1]):
            answered = acknowledged.get(seq_num)
            assert answered is None or answered.answered_us >= latest_invoked_us, f"O2: {answered}"
            latest_invoked_us = max(latest_invoked_us, invoked_us[batch])


def is_enough(segment: AnySegment, holders: Collection[Member]) -> bool:
    """Whether copies at these are what an acknowledgement needs."""
    if isinstance(segment, Segment):
        return len(holders) >= segment.quorum.ack_quorum
    nodes = [row.node for row in segment.nodes if row.member in holders]
    return segment.replication.is_satisfied_by(nodes)


def is_refused(answer: object) -> bool:
    """Whether the answer says that nothing was appended."""
    uncertain = isinstance(answer, fx.Fail) and answer.code == "append_uncertain"
    return isinstance(answer, fx.Fail | fx.Yield) and not uncertain
