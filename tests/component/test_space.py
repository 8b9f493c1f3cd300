"""Levels of space: where each begins and ends, what is told to whom, what a failing look changes.

The disks are numbers that the test sets. Not here: what the core refuses at which level, and a real
disk that is full.
"""

from __future__ import annotations

import pytest

from duramen.core.bookie.bookie_state import SpaceLevel
from duramen_bookie.file_system import DiskUsage, PosixFileSystem
from duramen_bookie.upkeep.space import DiskGauge, SpaceJudge, SpaceReport, SpaceWatch
from tests.component.upkeep_world import run
from tests.waiting import wait_for

TOTAL = 1_000_000
WRITABLE, READ_ONLY, FULL = SpaceLevel.WRITABLE, SpaceLevel.READ_ONLY, SpaceLevel.FULL


def used(percent: float) -> DiskUsage:
    return DiskUsage(total_bytes=TOTAL, free_bytes=round(TOTAL * (100 - percent) / 100))


def judge(*percents: float) -> list[SpaceLevel]:
    """The levels of one disk as its use changes."""
    disk = DiskGauge("/d")
    levels = []
    for percent in percents:
        disk.observe(used(percent))
        levels.append(disk.level)
    return levels


class Disks:
    """Disks by directory, and what a watch over them told."""

    def __init__(self, **percents: float) -> None:
        self.percents: dict[str, float | OSError] = dict(percents)
        self.levels: list[SpaceLevel] = []
        self.reports: list[SpaceReport] = []
        self.look_count = 0

    def usage(self, directory: str) -> DiskUsage:
        self.look_count += 1
        percent = self.percents[directory]
        if isinstance(percent, OSError):
            raise percent
        return used(percent)

    async def wait_levels(self, count: int) -> None:
        await wait_for(lambda: len(self.levels) == count)

    def watch(self, interval_us: int = 0) -> SpaceWatch:
        return SpaceWatch(
            list(self.percents),
            self,
            on_level=self.levels.append,
            on_report=self.reports.append,
            interval_us=interval_us,
        )


# --- One disk ------------------------------------------------------------------------------------


def test_a_disk_rises_through_its_levels_at_their_marks() -> None:
    assert judge(0, 94.9, 95, 97.9, 98, 100) == [
        WRITABLE, WRITABLE, READ_ONLY, READ_ONLY, FULL, FULL,
    ]  # fmt: skip


def test_a_disk_falls_back_at_lower_marks_only() -> None:
    assert judge(99, 95, 94.9, 90, 89.9) == [FULL, FULL, READ_ONLY, READ_ONLY, WRITABLE]


def test_a_disk_that_was_emptied_is_writable_at_once() -> None:
    assert judge(100, 10) == [FULL, WRITABLE]


def test_between_the_marks_a_disk_stays_what_it_was() -> None:
    assert judge(92, 94) == [WRITABLE, WRITABLE]
    assert judge(95, 92, 94) == [READ_ONLY, READ_ONLY, READ_ONLY]
    assert judge(98, 96, 97.9) == [FULL, FULL, FULL]
    assert judge(98, 92, 97.9) == [FULL, READ_ONLY, READ_ONLY]


def test_a_warning_begins_at_ninety_percent_and_does_not_flap() -> None:
    disk = DiskGauge("/d")
    warnings = []
    for percent in (89.9, 90, 89.9, 90, 87.9, 89.9):
        disk.observe(used(percent))
        warnings.append(disk.is_warning)
    assert warnings == [False, True, True, True, False, False]
    assert disk.level is WRITABLE


def test_a_disk_without_size_changes_nothing() -> None:
    disk = DiskGauge("/d")
    disk.observe(used(96))
    disk.observe(DiskUsage(total_bytes=0, free_bytes=0))
    assert disk.level is READ_ONLY
    assert disk.failure is not None
    disk.observe(used(96))
    assert disk.failure is None


# --- Several disks and the switch ----------------------------------------------------------------


def test_the_worst_disk_counts_and_the_one_with_least_room_is_reported() -> None:
    space = SpaceJudge(["/journal", "/ledgers"])
    journal, ledgers = space.disks
    journal.observe(used(50))
    ledgers.observe(used(96))
    assert space.level is READ_ONLY
    assert space.next_report() == SpaceReport("ro", 40_000)
    journal.observe(used(98))
    assert space.level is FULL


def test_the_switch_and_the_disks_are_independent() -> None:
    space = SpaceJudge(["/d"])
    space.is_switched_read_only = True
    assert space.level is READ_ONLY
    space.disks[0].observe(used(98))
    assert space.level is FULL
    space.is_switched_read_only = False
    assert space.level is FULL
    space.disks[0].observe(used(10))
    assert space.level is WRITABLE


def test_free_bytes_are_told_again_when_they_moved_by_a_hundredth() -> None:
    space = SpaceJudge(["/d"])
    told = []
    for percent in (50, 50, 50.9, 51, 51.5, 50.9, 50):
        space.disks[0].observe(used(percent))
        report = space.next_report()
        told.append(None if report is None else report.free_bytes)
    assert told == [500_000, None, None, 490_000, None, None, 500_000]


# --- The watch -----------------------------------------------------------------------------------


def test_the_first_look_is_over_when_the_bookie_starts_serving() -> None:
    async def scenario() -> None:
        disks = Disks(journal=10, ledgers=97)
        watch = disks.watch()
        await watch.start()
        assert disks.levels == [READ_ONLY]
        assert disks.reports == [SpaceReport("ro", 30_000)]
        await watch.stop()

    run(scenario)


def test_a_writable_start_is_reported_without_a_change_of_level() -> None:
    async def scenario() -> None:
        disks = Disks(journal=10)
        await disks.watch().look()
        assert disks.levels == []
        assert disks.reports == [SpaceReport("rw", 900_000)]

    run(scenario)


def test_the_watch_follows_a_disk_that_fills_and_is_freed() -> None:
    async def scenario() -> None:
        disks = Disks(journal=10)
        watch = disks.watch()
        await watch.start()
        for count, percent in enumerate((96, 99, 93, 40), start=1):
            disks.percents["journal"] = percent
            await disks.wait_levels(count)
        await watch.stop()
        assert disks.levels == [READ_ONLY, FULL, READ_ONLY, WRITABLE]
        assert [report.state for report in disks.reports] == ["rw", "ro", "ro", "ro", "rw"]

    run(scenario)


def test_the_switch_takes_effect_at_once_and_only_changes_are_told() -> None:
    async def scenario() -> None:
        disks = Disks(journal=10)
        watch = disks.watch()
        await watch.look()
        watch.switch_read_only(is_on=True)
        watch.switch_read_only(is_on=True)
        assert disks.levels == [READ_ONLY]
        assert watch.describe()["is_switched_read_only"]
        watch.switch_read_only(is_on=False)
        assert disks.levels == [READ_ONLY, WRITABLE]
        assert [report.state for report in disks.reports] == ["rw", "ro", "rw"]

    run(scenario)


def test_a_look_that_fails_leaves_the_level_and_says_why() -> None:
    async def scenario() -> None:
        disks = Disks(journal=96, ledgers=10)
        watch = disks.watch()
        await watch.look()
        disks.percents["journal"] = OSError(5, "no such luck")
        disks.percents["ledgers"] = 99
        await watch.look()
        assert disks.levels == [READ_ONLY, FULL]
        journal, ledgers = watch.describe()["disks"]
        assert "no such luck" in journal["failure"]
        assert journal["level"] == "read_only"
        assert ledgers["failure"] is None
        disks.percents["journal"] = disks.percents["ledgers"] = 10
        await watch.look()
        assert watch.level is WRITABLE

    run(scenario)


@pytest.mark.parametrize("percent", [10.0, 92.0, 96.0, 99.0])
def test_every_disk_is_described(percent: float) -> None:
    async def scenario() -> None:
        watch = Disks(journal=percent).watch()
        await watch.look()
        (disk,) = watch.describe()["disks"]
        assert disk == {
            "directory": "journal",
            "total_bytes": TOTAL,
            "free_bytes": used(percent).free_bytes,
            "used_ratio": pytest.approx(percent / 100),
            "level": judge(percent)[0].name.lower(),
            "is_warning": percent >= 90,
            "failure": None,
        }

    run(scenario)


def test_a_real_directory_can_be_watched(tmp_path: object) -> None:
    async def scenario() -> None:
        reports: list[SpaceReport] = []
        watch = SpaceWatch(
            [str(tmp_path)],
            PosixFileSystem(),
            on_level=lambda level: None,
            on_report=reports.append,
        )
        await watch.look()
        (disk,) = watch.describe()["disks"]
        assert disk["failure"] is None
        assert 0 <= reports[0].free_bytes <= disk["total_bytes"]

    run(scenario)
