"""The power goes at every operation of every workload: nothing acknowledged is lost, nothing wrong
is served, the bookie starts.

The gate judges 3,000 states; DURAMEN_CRASH_STATES=20000 (or any number) judges more. Each case,
an engine and a workload, prints how many it judged of how many there are. Here too: that the judge
sees what it is there for, with engines that break one promise each.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Sequence

import pytest

from duramen.core.bookie import BookieCore
from duramen.ids import EntryId
from duramen.wire.disk.journal_format import RecordKind
from duramen_bookie.journal.findings import ReplayedRecord
from duramen_bookie.journal.writer import JournalPoisoned
from duramen_bookie.upkeep.transfer import Source, Transfer
from tests.crash.disk import Disk, ModelFile
from tests.crash.envelope_engine import EnvelopeEngine
from tests.crash.explorer import Explorer, Figures, share_out
from tests.crash.journal_engine import DIRECTORY, JournalEngine
from tests.crash.promises import Addition, View, ledger
from tests.crash.runs import Faulty, OpenEngine, Run, Workload
from tests.crash.storage_engine import StorageEngine
from tests.crash.workloads import (
    ALWAYS,
    COMPACTING,
    SETTLING,
    WITH_ENVELOPES,
    drops,
    failing_sync,
    metadata_only_checkpoint,
    seals_alone,
    settling,
    small_commits,
    stored_again,
)
from tests.tiers import sized

pytestmark = pytest.mark.long

STATE_COUNT = int(os.environ.get("DURAMEN_CRASH_STATES", sized(fast=200, gate=2_000, night=60_000)))
"""Of all cases together."""

CASES: list[tuple[OpenEngine, Workload]] = [
    *[(JournalEngine, workload) for workload in ALWAYS + SETTLING],
    *[(StorageEngine, workload) for workload in ALWAYS + SETTLING + COMPACTING],
    *[(EnvelopeEngine, workload) for workload in WITH_ENVELOPES],
]
JUDGED: dict[str, Figures] = {}


def make_disk() -> Disk:
    return Disk(random.Random(1))


def name(case: object) -> str:
    return str(getattr(case, "__name__", case))


@pytest.fixture(scope="module")
def limit() -> int:
    """States per point, the same for all cases."""
    explorers = [Explorer(workload, make_disk, engine) for engine, workload in CASES]
    return share_out([total for each in explorers for total in each.survey()], STATE_COUNT)


@pytest.mark.timeout(300 + STATE_COUNT // 50)
@pytest.mark.parametrize(("engine", "workload"), CASES, ids=name)
def test_no_power_cut_breaks_a_promise(
    engine: OpenEngine, workload: Workload, limit: int, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = Explorer(workload, make_disk, engine).run(limit)
    case = f"{name(workload)} on {name(engine)}"
    JUDGED[case] = figures
    with capsys.disabled():
        print(f"\ncrash states of {case}: {figures}", end="")


def test_enough_states_were_judged(capsys: pytest.CaptureFixture[str]) -> None:
    if len(JUDGED) < len(CASES):
        pytest.skip("not every case was judged")
    count = sum(figures.state_count for figures in JUDGED.values())
    more = sum(figures.nested_count + figures.kill_count for figures in JUDGED.values())
    with capsys.disabled():
        print(f"\ncrash states judged: {count:,}, and {more:,} of crashes at and after starts")
    assert count >= min(STATE_COUNT, 5_000)


# --- The judge sees -------------------------------------------------------------------------------


class Unsynced(Disk):
    """Its syncs of data do nothing."""

    def open(self, path: str, *, is_new: bool = False) -> ModelFile:
        file = super().open(path, is_new=is_new)
        file.fdatasync = lambda: None  # type: ignore[method-assign]
        return file


class Nameless(Disk):
    """Its syncs of directories do nothing."""

    def fsync_directory(self, directory: str) -> None:
        pass


class Sealless(JournalEngine):
    """Forgets seals at a start."""

    def _on_record(self, item: ReplayedRecord) -> None:
        if item.header.kind is not RecordKind.SEAL:
            super()._on_record(item)


class Undead(JournalEngine):
    """Forgets drops at a start."""

    def _on_record(self, item: ReplayedRecord) -> None:
        if item.header.kind is not RecordKind.TOMBSTONE:
            super()._on_record(item)


class Lower(JournalEngine):
    """Forgets explicit LACs at a start."""

    def _on_record(self, item: ReplayedRecord) -> None:
        if item.header.kind is not RecordKind.LAC:
            super()._on_record(item)


class Inventive(JournalEngine):
    """Serves an entry of a ledger that nobody wrote."""

    def look(self) -> View:
        view = super().look()
        view.entries.update({(ledger(5, 5), EntryId(0)): b"x" for _ in view.seals})
        return view


class Careless(JournalEngine):
    """Gives the entries of a ledger for one another."""

    def look(self) -> View:
        view = super().look()
        bodies = list(view.entries.values())
        view.entries.update(zip(view.entries, bodies[1:] + bodies[:1], strict=True))
        return view


class Optimist(JournalEngine):
    """Acknowledges whatever the disk says."""

    def add(self, adds: Sequence[Addition]) -> None:
        with contextlib.suppress(JournalPoisoned):
            super().add(adds)


class Leaky(JournalEngine):
    """Leaves a file behind."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        disk.open(f"{DIRECTORY}/left-{len(disk.list_files())}", is_new=True).close()


class Hasty(JournalEngine):
    """Retires journal files before what covers them is durable."""

    def _write_settled(self, covered_file_id: int) -> None:
        self._writer.recycle([f for f in self._writer.sealed_file_ids if f <= covered_file_id])
        super()._write_settled(covered_file_id)


class Skipping(JournalEngine):
    """Writes no checkpoint when no entry is to be settled."""

    def _write_settled(self, covered_file_id: int) -> None:
        if any(place.file_id <= covered_file_id for place in self._places.values()):
            super()._write_settled(covered_file_id)


class Timid(JournalEngine):
    """Refuses to start after an unclean stop."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        assert not self._places, "DIRTY"


class Bare(EnvelopeEngine):
    """Settles entries without their envelopes."""

    def _carry_out(self, transfer: Transfer) -> None:
        transfer._source = strip_envelopes(transfer._source)
        super()._carry_out(transfer)


def strip_envelopes(source: Source) -> Source:
    for ledger_id, entry_id, record in source:
        bare = record and record._replace(kind=RecordKind.ADD, envelope=b"")
        yield ledger_id, entry_id, bare


class Later(EnvelopeEngine):
    """V5: the cookies come after the first record."""

    def _write_format(self) -> None:
        self._is_late = True

    def add(self, adds: Sequence[Addition]) -> None:
        super().add(adds)
        if self._is_late:
            super()._write_format()


class Lacless(EnvelopeEngine):
    """V2: what is here is OK at once, without its LAC."""

    def _open_core(self) -> BookieCore:
        core = super()._open_core()
        core._owes_lac = lambda add: False  # type: ignore[method-assign]
        return core


@pytest.mark.parametrize(
    ("engine", "disk", "workload", "fault"),
    [
        (JournalEngine, Unsynced, small_commits, "acknowledged and is lost"),
        (JournalEngine, Nameless, small_commits, "acknowledged and is lost"),
        (Sealless, Disk, seals_alone, "is sealed to 0, not 2"),
        (Undead, Disk, drops, "of a dropped ledger is served"),
        (Lower, Disk, seals_alone, "the LAC of"),
        (Inventive, Disk, small_commits, "never added like this"),
        (Careless, Disk, small_commits, "served with other bytes"),
        (Optimist, Disk, failing_sync, "was acknowledged though the disk failed"),
        (Leaky, Disk, small_commits, "is leaked"),
        (Hasty, Disk, metadata_only_checkpoint, "acknowledged and is lost"),
        (Skipping, Disk, metadata_only_checkpoint, "is sealed to 0, not 3"),
        (Timid, Disk, small_commits, "does not start"),
        (Bare, Disk, settling, "has no envelope"),
        (Later, Disk, small_commits, "under an old cookie"),
        (Lacless, Disk, stored_again, "the LAC of"),
    ],
)
def test_a_broken_promise_is_seen(
    engine: OpenEngine, disk: type[Disk], workload: Workload, fault: str
) -> None:
    with pytest.raises(Faulty, match=fault):
        Explorer(workload, lambda: disk(random.Random(1)), engine).run(8)


class SeesOne(Explorer):
    """Objects at one point, and to nothing afterwards."""

    def _judge_point(self, run: Run, point: str, limit: int) -> None:
        self.figures.point_count += 1
        if self.figures.point_count == 2:
            raise Faulty("seen once")


def swallowing(run: Run) -> None:
    """Expects an error where none comes, as a workload does whose disk fails."""
    with contextlib.suppress(Exception):
        small_commits(run)


def test_a_fault_is_final_whatever_the_workload_makes_of_it() -> None:
    explorer = SeesOne(swallowing, lambda: Disk(random.Random(1)), JournalEngine)
    with pytest.raises(Faulty, match="seen once"):
        explorer.run(8)


def test_the_budget_is_shared_out() -> None:
    assert share_out([1, 4, 1000, 1000], 205) in range(95, 106)
    assert share_out([1, 4], 205) in range(4, 7)
