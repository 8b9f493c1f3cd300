"""Answers of the auditor: repair, drains, disruption, accepted losses and rebalances.

The auditor makes them; a write proxy passes them on, with members of a later version that it does
not know. What the auditor counts of itself stays open: parts add members freely.

Called by the sequencer's `repair` and the write proxy's `cluster`. Source: docs/protocol/repair.md
"Asking".
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from duramen.runtime.public.cluster_answers import PassedOn

# --- Repair --------------------------------------------------------------------------------------


class BacklogAnswer(PassedOn):
    """The work that is known, by problem, and what became of the rest."""

    tasks: int
    tasks_max: int
    running: int
    running_max: int
    targets: dict[str, int]
    """Bookie → tasks that copy to it now."""
    unrepairable: int
    left_bytes: int
    by_problem: dict[str, int]
    done: int
    failed: int
    postponed: int
    unrepairable_reported: int
    beyond: int
    copied_bytes: int


class MissingRangeAnswer(PassedOn):
    """Entries that a copy does not have."""

    bookie: str
    first: int
    last: int
    why: str


class RepairTaskAnswer(PassedOn):
    """The repair of one fragment."""

    log_id: str
    epoch: int
    first_entry: int
    problem: str
    action: str
    good_copies: int
    bytes: int
    copied_bytes: int
    attempts: int
    reason: str
    ranges: list[MissingRangeAnswer]
    """Why it cannot be repaired, copy by copy; empty unless it was judged so."""


class DrainAnswer(PassedOn):
    """A bookie that is being emptied, or is empty."""

    bookie: str
    duty: str
    fragments: int | None
    """That name it; null: no whole round has counted them."""
    bytes: int | None
    waits_for: str


class AuditRoundAnswer(PassedOn):
    """What one round of the auditor read."""

    began_unix_ms: int
    ended_unix_ms: int
    whole: bool
    logs: int
    segments: int
    segments_in_recovery: int
    unproved_fragments: int
    fragments_in_doubt: int
    placement_violations: int
    unread: list[str]
    unread_count: int


class RepairAnswer(PassedOn):
    """Backlog, progress, estimate, what cannot be repaired, drains, the last round."""

    auditor: str | None
    backlog: BacklogAnswer
    bytes_per_s: int
    estimate_s: int | None
    running: list[RepairTaskAnswer]
    unrepairable: list[RepairTaskAnswer]
    """The most urgent ones; the backlog counts all."""
    drains: list[DrainAnswer]
    last_round: AuditRoundAnswer | None
    statistics: dict[str, Any]


class StuckCopiesAnswer(PassedOn):
    """What keeps copies on a bookie that is being emptied."""

    fragments: int
    kind: str
    """`place`: no bookie can take a copy; `entries`: no copy can be verified; `failing`: it fails
    again and again. Of the first one, as the reason."""
    reason: str
    logs: list[str]
    """The first ones, as namespace/name; `logs_count` counts those that are known."""
    logs_count: int


class AuditedBookieAnswer(PassedOn):
    """A bookie as the last round saw it."""

    bookie: str
    incarnation: str
    region: str
    rack: str
    weight: int | float
    duty: str
    fate: str
    writable: bool
    doubtful: bool
    free_bytes: int | None
    copies: int
    bytes: int
    share: int | float | None
    """What it holds, as a multiple of its share; null: it takes no new data."""
    stuck: StuckCopiesAnswer | None = None
    """null: it is not being emptied, its copies move, or the auditor is of an older version."""


class AuditedBookiesAnswer(PassedOn):
    """Every bookie that the last round saw, by id."""

    read_unix_ms: int
    whole: bool
    bookies: list[AuditedBookieAnswer]


# --- Stopping and removing a bookie --------------------------------------------------------------


class DisruptionReasonAnswer(PassedOn):
    """What speaks against it, and how often."""

    code: str
    detail: str
    count: int


class DisruptionAnswer(PassedOn):
    """Whether a bookie may be restarted or removed now."""

    bookie: str
    kind: str
    allowed: bool
    reasons: list[DisruptionReasonAnswer]
    logs_at_risk: list[str]
    """The first ones; `logs_at_risk_count` counts all."""
    logs_at_risk_count: int
    read_unix_ms: int
    metadata_age_ms: int


class DisruptionGrantAnswer(PassedOn):
    """Who may stop what, and how long at most."""

    token: str
    target: str
    """`bookie/…`, `rack/…/…`, `sequencer/…` or `zookeeper/…`."""
    kind: str
    holder: str
    life_ms: int
    over_in_ms: int
    """Until others may stop something, if it is not renewed; longer than its holder may."""
    granted_unix_ms: int
    accepts: list[str]
    """Reasons against it that its holder accepted."""


class DisruptionsAnswer(PassedOn):
    """Grants that are outstanding, in the order in which they were given."""

    grants: list[DisruptionGrantAnswer]


class StandingBookieAnswer(PassedOn):
    """How one bookie stands."""

    bookie: str
    incarnation: str
    there: bool
    """It is registered, and the auditor reaches it."""
    reasons: list[DisruptionReasonAnswer]
    """What speaks against restarting it alone now."""
    lacks_count: int
    """Segments of which it may lack copies: owed, damaged, in doubt, or behind by its owner's
    word; 0: it is caught up."""


class StandingAnswer(PassedOn):
    """How every registered bookie stands, by name."""

    bookies: list[StandingBookieAnswer]
    read_unix_ms: int
    metadata_age_ms: int


class TakenDisruptionAnswer(PassedOn):
    """Whether something may be stopped now, and the grant to do so."""

    target: str
    kind: str
    allowed: bool
    reasons: list[DisruptionReasonAnswer]
    logs_at_risk: list[str]
    """The first ones; `logs_at_risk_count` counts all."""
    logs_at_risk_count: int
    read_unix_ms: int
    metadata_age_ms: int
    grant: DisruptionGrantAnswer | None
    """Null: it is not granted, and `reasons` say why."""


class RenewedDisruptionAnswer(PassedOn):
    """A grant that lasts anew; null: it is over."""

    grant: DisruptionGrantAnswer | None


class EndedDisruptionAnswer(PassedOn):
    """A grant that is over, and whether this call ended it."""

    token: str
    ended: bool


class DutyAnswer(PassedOn):
    """A bookie's duty after a drain began or was cancelled."""

    bookie: str
    incarnation: str
    duty: str


class AcceptedLossAnswer(PassedOn):
    """Since when the loss of an incarnation is accepted."""

    bookie: str
    incarnation: str
    accepted_unix_ms: int


# --- Rebalance -----------------------------------------------------------------------------------


class RebalanceRequestAnswer(PassedOn):
    """What was asked for."""

    requested_unix_ms: int | SkipJsonSchema[None] = None
    tolerance: int | float


class RebalanceAnswer(PassedOn):
    """Whether a rebalance runs, and how evenly bytes lie."""

    running: bool
    request: RebalanceRequestAnswer | None
    moves_waiting: int
    shares: dict[str, int | float]
    """Bookie → what it holds, as a multiple of its share."""


class CopyMoveAnswer(PassedOn):
    """A copy that would be moved."""

    log_id: str
    epoch: int
    first_entry: int
    bytes: int
    source: str = Field(alias="from")
    to: str


class RebalancePlanAnswer(PassedOn):
    """How a rebalance would begin."""

    dry_run: Literal[True]
    moves: list[CopyMoveAnswer]
    bytes: int
    shares: dict[str, int | float]
