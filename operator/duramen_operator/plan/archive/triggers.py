"""Whether a run is due that no CronJob will start: closed segments, and schedules that were missed.

One run at a time. The name of a run follows from what it is for and from how often that was tried,
all of it read from objects: an operator that is started anew, or two at once, come to the same
name, and the API server makes only one Job of it. A make-up run has the name that the CronJob's
controller would give it, so that the two cannot meet either.

Called by `plan`. Source: docs/kubernetes/archive.md "When".
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from cronsim import CronSim, CronSimError

from duramen.backoff import Backoff
from duramen.units import MINUTE
from duramen_operator.names import shorten
from duramen_operator.plan.archive.runs import (
    CLOSED_SEGMENTS,
    MISSED_SCHEDULE,
    Run,
    count_failed,
)
from duramen_operator.plan.archive.waiting import LogSelection

GRACE = timedelta(minutes=3)
"""A CronJob's controller starts a run within seconds; after a restart it takes a minute or two."""

BACKOFF = Backoff(1 * MINUTE, 64 * MINUTE)
"""Between two runs that nobody scheduled: what is closed meanwhile shares a JVM. Longer after
failures, and after runs that left everything waiting."""

_MACROS = {
    "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0", "@daily": "0 0 * * *", "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Due:
    """A run that is to be started now."""

    name: str
    cause: str
    digest: str = ""
    due: str = ""


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a policy runs. `base`: name of the CronJob; nothing before `since` was missed."""

    base: str
    cron: str
    since: datetime


class ScheduleError(Exception):
    """A schedule that never comes, or is none."""


def find_last_due(schedule: str, now: datetime) -> datetime:
    """When a schedule was last due; now counts.

    Raises:
        ScheduleError: it is not one.
    """
    try:
        times = CronSim(_MACROS.get(schedule, schedule), now + timedelta(seconds=1), reverse=True)
        return next(times)
    except (CronSimError, StopIteration) as error:
        raise ScheduleError(f"spec.schedule {schedule!r}: {error}") from None


def find_missed(
    schedule: Schedule, runs: tuple[Run, ...], choice: LogSelection, now: datetime
) -> Due | None:
    """The run that makes up for the schedule's last time, if that was missed or failed.

    Raises:
        ScheduleError: the schedule is not one.
    """
    due = find_last_due(schedule.cron, now)
    if due < schedule.since or now < due + GRACE or not _may_start(runs, choice, now):
        return None
    if not any(one.completed <= due for one in choice.waiting):
        return None  # whatever ran, or did not: nothing was left that it should have taken
    if any(run.started >= due and run.result == "Succeeded" for run in runs):
        return None  # what it left it will leave again
    minutes = str(int(due.timestamp()) // 60)
    tries = sum(run.due == minutes for run in runs)
    name = f"{schedule.base}-{minutes}" if not tries else f"{schedule.base}-{minutes}-{tries}"
    return Due(name, MISSED_SCHEDULE, due=minutes)


def find_closed(
    base: str, runs: tuple[Run, ...], choice: LogSelection, now: datetime
) -> Due | None:
    """The run for closed segments that wait, if there are any."""
    if not choice.waiting or not _may_start(runs, choice, now):
        return None
    tries = sum(run.digest == choice.digest for run in runs)
    name = f"{shorten(f'{base}-closed')}-{choice.digest}-{tries}"
    return Due(name, CLOSED_SEGMENTS, digest=choice.digest)


def _may_start(runs: tuple[Run, ...], choice: LogSelection, now: datetime) -> bool:
    if not choice.is_known or any(run.is_running for run in runs):
        return False
    ends = [run.finished for run in runs if run.finished is not None]
    return not ends or now >= max(ends) + find_pause(runs, choice)


def find_pause(runs: tuple[Run, ...], choice: LogSelection) -> timedelta:
    """How long to wait after the last run."""
    tries = sum(run.digest == choice.digest for run in runs)
    pause_us = BACKOFF.pause_us(max(count_failed(runs), tries))
    return timedelta(microseconds=pause_us)
