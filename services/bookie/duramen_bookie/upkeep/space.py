"""How full the disks are, and what is still accepted: writable, read-only, full.

`SpaceJudge` decides: each directory's disk moves between levels with hysteresis, an operator's
switch stands beside them, and the worst of all counts. `SpaceWatch` looks at the disks every
second and tells the core (which adds it refuses) and the registration (`rw` or `ro`, free bytes,
from which new ensembles are chosen).

    used              90 %         95 %         98 %
    at, rising        warning      READ_ONLY    FULL
    below, falling    WRITABLE     READ_ONLY    still FULL

Not here: refusing (`core.bookie`), room that the journal keeps, freeing anything (`deletion`,
`compaction`). Called by `service` and its admin routes. Source: docs/bookie.md "Space".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from duramen.core.bookie.bookie_state import SpaceLevel
from duramen.limits import (
    DISK_CHECK_INTERVAL_US,
    DISK_FULL_RATIO,
    DISK_READ_ONLY_RATIO,
    DISK_WARN_RATIO,
)
from duramen_bookie.file_system import DiskUsage
from duramen_bookie.upkeep.pacing import Periodic

_LOG = logging.getLogger(__name__)

_LEVELS: Final = (SpaceLevel.WRITABLE, SpaceLevel.READ_ONLY, SpaceLevel.FULL)
"""From best to worst."""

_WARN_END_RATIO: Final = 0.88
"""A warning ends below this, so that a disk just at the mark does not warn every second."""

_REPORT_STEP_COUNT: Final = 100
"""Free bytes are told again when they moved by a hundredth of the disk: each is a write to the
metadata store, and placement does not need to know better."""


class UsageSource(Protocol):
    """What is needed of a `FileSystem`."""

    def usage(self, directory: str) -> DiskUsage:
        """Of the disk that a directory is on; blocks."""


class SpaceReport(NamedTuple):
    """What the other nodes are told."""

    state: str
    """`rw` or `ro`."""
    free_bytes: int
    """Of the disk with the fewest: the one that will be full first."""


class DiskGauge:
    """One directory's disk: what was seen last, and its level.

    Invariants:
     1 FULL implies that the disk is past read-only's lower mark.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.usage: DiskUsage | None = None
        self.level = SpaceLevel.WRITABLE
        self.is_warning = False
        self.failure: str | None = None

    def observe(self, usage: DiskUsage) -> None:
        """The disk was looked at."""
        if usage.total_bytes <= 0:
            self.fail(f"the disk says that it has {usage.total_bytes} bytes")
            return
        self.usage = usage
        self.failure = None
        ratio = self.used_ratio()
        level = self.level
        is_full = _is_past(ratio, DISK_FULL_RATIO, DISK_READ_ONLY_RATIO, level is SpaceLevel.FULL)
        is_read_only = _is_past(
            ratio, DISK_READ_ONLY_RATIO, DISK_WARN_RATIO, level is not SpaceLevel.WRITABLE
        )
        assert is_read_only or not is_full, "1"
        if is_full:
            self.level = SpaceLevel.FULL
        else:
            self.level = SpaceLevel.READ_ONLY if is_read_only else SpaceLevel.WRITABLE
        self.is_warning = _is_past(ratio, DISK_WARN_RATIO, _WARN_END_RATIO, self.is_warning)

    def fail(self, failure: str) -> None:
        """The disk could not be looked at: what was known stays in force."""
        self.failure = failure

    def used_ratio(self) -> float:
        """The part of the disk that is not free, 0.0 … 1.0; 0.0 while nothing is known."""
        if self.usage is None:
            return 0.0
        return (self.usage.total_bytes - self.usage.free_bytes) / self.usage.total_bytes

    def describe(self) -> dict[str, Any]:
        """For `/v1/disks`."""
        usage = self.usage
        return {
            "directory": self.directory,
            "total_bytes": None if usage is None else usage.total_bytes,
            "free_bytes": None if usage is None else usage.free_bytes,
            "used_ratio": round(self.used_ratio(), 4),
            "level": self.level.name.lower(),
            "is_warning": self.is_warning,
            "failure": self.failure,
        }


class SpaceJudge:
    """The level of a bookie: the worst of its disks and of the operator's switch.

    Args:
        directories: one or more; several may be on one disk.
    """

    def __init__(self, directories: Sequence[str]) -> None:
        assert directories, "a bookie has a directory"
        self.disks = tuple(DiskGauge(directory) for directory in directories)
        self.is_switched_read_only = False
        self._told: SpaceReport | None = None

    @property
    def level(self) -> SpaceLevel:
        """What counts now."""
        levels = [disk.level for disk in self.disks]
        if self.is_switched_read_only:
            levels.append(SpaceLevel.READ_ONLY)
        return max(levels, key=_LEVELS.index)

    def next_report(self) -> SpaceReport | None:
        """What the other nodes should be told now; None: nothing worth a write."""
        known = [disk.usage for disk in self.disks if disk.usage is not None]
        fullest = min(known, key=lambda usage: usage.free_bytes, default=DiskUsage(0, 0))
        state = "rw" if self.level is SpaceLevel.WRITABLE else "ro"
        report = SpaceReport(state, fullest.free_bytes)
        if self._told is not None and self._told.state == state:
            moved_bytes = abs(report.free_bytes - self._told.free_bytes)
            if moved_bytes * _REPORT_STEP_COUNT < max(1, fullest.total_bytes):
                return None
        self._told = report
        return report

    def describe(self) -> dict[str, Any]:
        """For `/v1/disks`."""
        return {
            "level": self.level.name.lower(),
            "is_switched_read_only": self.is_switched_read_only,
            "disks": [disk.describe() for disk in self.disks],
        }


class SpaceWatch:
    """Looks at the disks for as long as the bookie runs.

    Args:
        directories: journal, ledgers and whatever else grows.
        on_level: the level changed; also called for the first look, unless that is WRITABLE.
        on_report: the registration should say this; called for the first look.
        interval_us: between two looks.
    """

    def __init__(
        self,
        directories: Sequence[str],
        source: UsageSource,
        *,
        on_level: Callable[[SpaceLevel], None],
        on_report: Callable[[SpaceReport], None],
        interval_us: int = DISK_CHECK_INTERVAL_US,
    ) -> None:
        self._judge = SpaceJudge(directories)
        self._source = source
        self._on_level = on_level
        self._on_report = on_report
        self._level = SpaceLevel.WRITABLE
        self._looks = Periodic("the disks", self.look, rest_us=interval_us)

    @property
    def level(self) -> SpaceLevel:
        """What was told last."""
        return self._level

    async def start(self) -> None:
        """Look once, so that the first request meets the right level, and go on looking."""
        await self.look()
        self._looks.start()

    async def stop(self) -> None:
        """Stop looking."""
        await self._looks.stop()

    def switch_read_only(self, *, is_on: bool) -> None:
        """The operator's switch: takes effect at once; off leaves what the disks say."""
        if is_on is not self._judge.is_switched_read_only:
            _LOG.warning("an operator switched read-only %s", "on" if is_on else "off")
        self._judge.is_switched_read_only = is_on
        self._report()

    async def look(self) -> None:
        """Look at every disk now and tell what changed."""
        was_warning = [disk.is_warning for disk in self._judge.disks]
        seen = await asyncio.to_thread(self._read)
        for disk, was in zip(self._judge.disks, was_warning, strict=True):
            found = seen[disk.directory]
            if isinstance(found, OSError):
                self._fail(disk, found)
            else:
                disk.observe(found)
            if disk.is_warning and not was:
                _LOG.warning("%s: %.1f %% are used", disk.directory, 100 * disk.used_ratio())
        self._report()

    def describe(self) -> dict[str, Any]:
        """For `/v1/disks`, and the answer to `PUT /v1/read-only`."""
        return self._judge.describe()

    def statistics(self) -> dict[str, Any]:
        """As `describe`, with what the watch did."""
        return {**self._judge.describe(), "looks": self._looks.statistics()}

    def _read(self) -> Mapping[str, DiskUsage | OSError]:
        seen: dict[str, DiskUsage | OSError] = {}
        for disk in self._judge.disks:
            try:
                seen[disk.directory] = self._source.usage(disk.directory)
            except OSError as error:
                seen[disk.directory] = error
        return seen

    def _fail(self, disk: DiskGauge, error: OSError) -> None:
        if disk.failure is None:
            _LOG.error("%s cannot be looked at: %s", disk.directory, error)
        disk.fail(str(error))

    def _report(self) -> None:
        level = self._judge.level
        if level is not self._level:
            _LOG.warning("the bookie is %s, was %s", level.name, self._level.name)
            self._level = level
            self._on_level(level)
        report = self._judge.next_report()
        if report is not None:
            self._on_report(report)


def _is_past(ratio: float, mark: float, lower_mark: float, was_past: bool) -> bool:
    """Hysteresis: past from the mark on, until below the lower mark."""
    return ratio >= (lower_mark if was_past else mark)
