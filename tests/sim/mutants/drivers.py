"""Mutants of the way between cores: drivers, lanes, the codecs of frames and of entries.

Part of `tests.sim.mutants`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

from duramen.core.sequencer.effects import CommitOutcome, SetLog, SetSegment
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING, EntryId, Epoch, Member
from duramen.runtime.sequencer import bookie_lanes
from duramen.runtime.sequencer.bookie_lanes import BookieLanes, Sink
from duramen.runtime.sequencer.log_driver import LogDriver
from duramen.runtime.sequencer.metadata_link import MetadataLink
from duramen.wire import bookie_calls
from duramen.wire import entry as entry_module
from duramen.wire.bookie_calls import Marks
from duramen.wire.entry import read_entry_info
from duramen.wire.sequencer_calls import OpenLac
from tests.sim.focus import Focus
from tests.sim.log_kinds import DRAWN
from tests.sim.mutants.mutant import Mutant

_seal = BookieLanes._seal
_parse_adds = bookie_calls.parse_adds
_commit = MetadataLink.commit
_on_add = LogDriver.on_add
_compress = entry_module._compress


class _Optimist:
    """Takes silence for a seal."""

    def __init__(self, sink: Any) -> None:
        self._sink = sink

    def on_seal(self, member: Member, epoch: Epoch, marks: Marks) -> None:
        if marks.status in (BookieStatus.UNREACHABLE, BookieStatus.TIMEOUT):
            marks = Marks(BookieStatus.OK, NOTHING, NOTHING)
        self._sink.on_seal(member, epoch, marks)

    def flush(self) -> None:
        self._sink.flush()


async def _seal_of_the_silent(self: BookieLanes, effect: Any, sink: Any) -> None:
    await _seal(self, effect, cast(Sink, _Optimist(sink)))


def _parse_with_another_lac(data: bytes) -> Any:
    incarnation, adds = _parse_adds(data)
    return incarnation, [add._replace(lac=EntryId(add.entry_id - 1)) for add in adds]


async def _unknown_is_unavailable(self: MetadataLink, log_id: Any, writes: Any) -> CommitOutcome:
    outcome = await _commit(self, log_id, writes)
    return CommitOutcome.UNAVAILABLE if outcome is CommitOutcome.UNKNOWN else outcome


async def _commit_over_whatever_is_there(
    self: MetadataLink, log_id: Any, writes: Any
) -> CommitOutcome:
    """Each node is set at the version that it has when the change is sent."""
    fresh: list[Any] = []
    for write in writes:
        match write:
            case SetSegment(segment, _):
                found = await self.store.get(self.paths.segment(log_id, segment.epoch))
                assert found is not None
                fresh.append(SetSegment(segment, found.version))
            case SetLog(log, _):
                found = await self.store.get(self.paths.log(log_id))
                assert found is not None
                fresh.append(SetLog(log, found.version))
            case _:
                fresh.append(write)
    return await _commit(self, log_id, fresh)


async def _commit_one_by_one(self: MetadataLink, log_id: Any, writes: Any) -> CommitOutcome:
    for write in writes:
        outcome = await _commit(self, log_id, (write,))
        if outcome is not CommitOutcome.APPLIED:
            return outcome
    return CommitOutcome.APPLIED


def _count_what_timed_out(
    self: LogDriver, member: Member, epoch: Epoch, entry: EntryId, status: BookieStatus
) -> None:
    is_silent = status is BookieStatus.TIMEOUT
    _on_add(self, member, epoch, entry, BookieStatus.OK if is_silent else status)


def _compress_from_the_end(batches: Sequence[bytes], payload_bytes: int) -> bytes | None:
    return _compress(batches[::-1], payload_bytes)


def _find_stored_end(self: LogDriver) -> OpenLac | None:
    ours = self.core.open_epoch
    return None if ours is None else OpenLac(ours.number, ours.writer.lap)


MUTANTS: Final[dict[str, Mutant]] = {
    "owner-tells-what-is-stored": Mutant(
        "R30", "an owner tells feeds of entries that are sent and not acknowledged",
        ((LogDriver, "open_lac", property(_find_stored_end)),),
        focus=Focus(("sequencer killed", "node cut off"), has_owner_lacs=True),
    ),
    "unanswered-seal-is-a-seal": Mutant(
        "R12", "lanes report a seal that nobody answered as done",
        ((BookieLanes, "_seal", _seal_of_the_silent),),
    ),
    "unanswered-add-is-stored": Mutant(
        "R8", "an add that nobody answered counts as stored",
        ((LogDriver, "on_add", _count_what_timed_out),),
    ),
    "recovery-read-unchecked": Mutant(
        "R14", "what a recovery reads is taken without its CRC",
        ((bookie_lanes, "check_entry", read_entry_info),),
    ),
    "another-lac-on-the-wire": Mutant(
        "R17", "a frame gives a bookie a higher LAC than it was given",
        ((bookie_calls, "parse_adds", _parse_with_another_lac),),
    ),
    "compressed-in-another-order": Mutant(
        "wire.md", "an entry's batches are compressed in another order than they are numbered",
        ((entry_module, "_compress", _compress_from_the_end),), copysets=DRAWN,
    ),
    "change-in-several-steps": Mutant(
        "R2", "what is to change together is written node by node",
        ((MetadataLink, "commit", _commit_one_by_one),),
    ),
    "change-of-any-version": Mutant(
        "R3", "a change is made to a node whatever became of it since it was read",
        ((MetadataLink, "commit", _commit_over_whatever_is_there),),
    ),
    "unknown-change-called-refused": Mutant(
        "R3", "a change of unknown fate counts as one that is not in force",
        ((MetadataLink, "commit", _unknown_is_unavailable),),
    ),
}  # fmt: skip
