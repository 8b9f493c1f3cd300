"""Admin routes of a sequencer about the logs that it runs, and a round of retention now.

What a driver counts of its log, and what the rounds of retention counted, are read into models here
when somebody asks. The models are closed: a member that a part adds is shown once it is described.

Called by `service`. Source: docs/protocol/admin.md "Each role".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import FastAPI, Query
from pydantic.json_schema import SkipJsonSchema

from duramen.core.rights.verbs import Verb
from duramen.errors import DuramenError
from duramen.ids import LogId
from duramen.runtime.public.answers import Answer
from duramen.runtime.rights.route_verbs import needs
from duramen.runtime.sequencer.log_driver import LogDriver
from duramen_sequencer.life.retention import RetentionRounds


class _OfLog(Answer):
    log_id: str


class _CountsOfLog(Answer):
    state: str
    epoch: int | None
    """Null, as `lac` and `lap`: no segment is open here."""
    lac: int | None
    lap: int | None
    queued_count: int
    queued_bytes: int
    window_bytes: int
    owed_bytes: int
    suspended: list[str]
    """Bookies that the open segment does not send to for now."""
    ensemble_changes: int
    rolls: int
    takeovers: int
    stalls: int
    """Times that an entry lacked copies for too long, and the owner took its own log over."""
    producers: int
    has_fencing_token: bool
    unproved_count: int
    waiting_for_recovery_count: int
    snapshots: int
    rebuilds: int
    recoveries: int
    unrecovered_epochs: list[int]
    name: str | None
    """Null: its node has not been read yet."""
    appends_per_s: float
    bytes_per_s: int
    held_s: int
    """Since when the log is here, over all its epochs."""
    unanswered_count: int


# In both, the members of the last parent come first.
class RunLogAnswer(_CountsOfLog, _OfLog):
    """A log that this sequencer runs: its state, what waits, and what was done since it came."""


class _CoreOfLog(_OfLog):
    core: str


class ShownLogAnswer(_CountsOfLog, _CoreOfLog):
    """As RunLog, with the core in words; the token of who fenced it, if that was asked for."""

    fencing_token: str | SkipJsonSchema[None] = None


class TombstonesAnswer(Answer):
    """Tombstones of purged logs: removed, met another's change, wait for a bookie."""

    removed: int
    conflicts: int
    waiting: int


class RetentionAnswer(Answer):
    """What the rounds of retention did since the start, and what waits."""

    rounds: int
    rounds_cut: int
    logs_visited: int
    trims: int
    segments_given_up: int
    segments_released: int
    purges: int
    nodes_removed: int
    conflicts: int
    is_running: bool
    quiet_logs: int
    tombstones: TombstonesAnswer
    held_for_cold_copy: dict[str, int]
    """Log → the epoch that is due and has no cold copy."""
    waiting_for_archive: dict[str, int]
    """Log → the epoch whose hot copies wait for the archive."""


def add_log_routes(
    app: FastAPI, drivers: Mapping[LogId, LogDriver], retention: RetentionRounds
) -> None:
    """Add `GET /v1/logs`, `GET /v1/logs/{log_id}`, `POST /v1/retention`."""

    @app.post("/v1/retention", **needs(Verb.OPERATE))
    async def post_retention() -> RetentionAnswer:
        retention.want_round()
        return RetentionAnswer.model_validate(retention.statistics())

    @app.get("/v1/logs", **needs(Verb.OBSERVE))
    async def get_logs() -> list[RunLogAnswer]:
        return [
            RunLogAnswer.model_validate({"log_id": str(log_id), **driver.statistics()})
            for log_id, driver in sorted(drivers.items())
        ]

    @app.get("/v1/logs/{log_id}", **needs(Verb.OPERATE), response_model_exclude_unset=True)
    async def get_log(
        log_id: int,
        tokens: Annotated[bool, Query(description="tell the fencing token, too")] = False,
    ) -> ShownLogAnswer:
        driver = drivers.get(LogId(log_id))
        if driver is None:
            raise DuramenError("log_not_found", "this sequencer does not know the log")
        told = {"log_id": str(log_id), "core": repr(driver.core), **driver.statistics()}
        if tokens:
            told["fencing_token"] = driver.core.pipeline.fencing_token
        return ShownLogAnswer.model_validate(told)
