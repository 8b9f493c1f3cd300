"""When a sequencer that cannot reach enough bookies gives a log up, and to whom.

Without this rule its owner node would keep the log here for ever while others could serve it. So
every sequencer names in its roster node the bookies that it does not reach. A log without progress
for `grace` goes to the first sequencer by hash that could serve it, provided that this one could
not. To seal every unclosed segment takes a cover of its last fragment; to append takes an ack set
of every write set. If no other sequencer reaches more than this one, the log stays. Each gift of a
log doubles the grace of its next one, so a wrong giver, or a flapping link, gives ever more rarely.

Called by the sequencer's `ownership.reliefs`, `claims` and by the simulator.
Source: docs/protocol/ownership.md "Cut off from bookies", ADR 0023; R12.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from duramen.config import LogConfig
from duramen.core.flexible.nodeset_plan import make_nodeset_rule
from duramen.core.flexible.property import PlacedBookie
from duramen.core.flexible.segment import AnySegment
from duramen.core.placement import Candidate
from duramen.core.sequencer.log_sequencer import LogSequencer
from duramen.core.sequencer.log_state import LogState
from duramen.ids import LogId
from duramen.limits import GIVE_UP_AFTER_US
from duramen.units import MINUTE

GRACE_MAX_US: Final = 10 * MINUTE
FORGOTTEN_AFTER_US: Final = 30 * MINUTE
"""A gift so long after the one before is a first one again."""

LOG_COUNT_MAX: Final = 10_000

_GOES_ON: Final = (
    LogState.RECOVERING, LogState.REBUILDING, LogState.EARLY, LogState.ACTIVE, LogState.DRAINING,
)  # fmt: skip
"""States that bookies have to let go on; what the others wait for is the metadata store."""


def can_append(
    config: LogConfig, candidates: Sequence[Candidate], unreached: Collection[str]
) -> bool:
    """Whether who does not reach these bookies could append to a log that is placed anew.

    It may choose members that it does not reach, as long as every write set has Qa others. Whether
    racks and regions allow that is the same for everybody, and is not asked here. A flexible log's
    copies lie among those that it reaches.
    """
    if config.is_flexible:
        reached_bookies = [c for c in candidates if c.member.bookie not in unreached]
        return make_nodeset_rule(config).wanted.is_satisfied_by(
            PlacedBookie(c.member.bookie, c.region, c.rack) for c in reached_bookies
        )
    wanted = config.striped
    reached = sum(candidate.member.bookie not in unreached for candidate in candidates)
    if wanted.placement == "prefer" and len(candidates) < wanted.ensemble_size:
        return reached >= wanted.ack_quorum
    return reached >= wanted.ensemble_size - (wanted.write_quorum - wanted.ack_quorum)


def can_serve(
    log: LogSequencer, candidates: Sequence[Candidate], unreached: Collection[str]
) -> bool:
    """Whether who does not reach these bookies could take the log over and append to it."""
    assert log.view is not None
    here = [candidate.member for candidate in candidates]
    able = [member for member in here if member.bookie not in unreached]
    if not all(segment.is_sealed_by(able) for segment in list_unclosed(log)):
        return False
    return can_append(log.view.log.config, candidates, unreached)


def list_unclosed(log: LogSequencer) -> list[AnySegment]:
    """The segments that a next owner has to seal, as this one knows them."""
    older: list[AnySegment] = [recovery.segment for recovery in log.older.recoveries]
    if log.writer is not None:
        return [*older, log.writer.segment]
    known = [] if log.view is None else [segment for segment, _ in log.view.segments]
    return [*older, *(s for s in known if all(s.epoch != one.epoch for one in older))]


class _Stall(NamedTuple):
    seen: object
    since_us: int


class _Gift(NamedTuple):
    grace_us: int
    at_us: int


class Reliefs:
    """What stands still in one process, and how patient it is with each log.

    Args:
        grace_us: of a log that was not given up lately; 0: none is ever given up.
    """

    def __init__(self, grace_us: int = GIVE_UP_AFTER_US) -> None:
        self.gift_count = 0
        self._grace_us = grace_us
        self._stalls: dict[LogId, _Stall] = {}
        self._gifts: dict[LogId, _Gift] = {}

    def choose(
        self,
        logs: Iterable[LogSequencer],
        candidates: Sequence[Candidate],
        own: Collection[str],
        others: Mapping[str, Collection[str]],
        now_us: int,
    ) -> list[tuple[LogId, list[str]]]:
        """Logs to give up now, each with those who could serve it; to be asked every second or so.

        Args:
            own: the bookies that this process does not reach.
            others: the same of every other live sequencer that says so.
        """
        stalls, self._stalls = self._stalls, {}
        found = []
        for log in logs:
            seen = self._look(log, candidates, own)
            if seen is None:
                continue
            stall = stalls.get(log.log_id)
            if stall is None or stall.seen != seen:
                stall = _Stall(seen, now_us)
            self._stalls[log.log_id] = stall
            is_due = self._grace_us > 0 and now_us - stall.since_us >= self.grace_us(
                log.log_id, now_us
            )
            if is_due and own and not can_serve(log, candidates, own):
                able = [name for name, their in others.items() if can_serve(log, candidates, their)]
                if able:
                    found.append((log.log_id, able))
        return found

    def grace_us(self, log_id: LogId, now_us: int) -> int:
        """How long the log may stand still here."""
        gift = self._gifts.get(log_id)
        if gift is None or now_us - gift.at_us >= FORGOTTEN_AFTER_US:
            return self._grace_us
        return gift.grace_us

    def note_gift(self, log_id: LogId, now_us: int) -> None:
        """The log was given up: its next stall here may last twice as long."""
        grace_us = min(2 * self.grace_us(log_id, now_us), max(GRACE_MAX_US, self._grace_us))
        self._gifts.pop(log_id, None)
        if len(self._gifts) >= LOG_COUNT_MAX:
            del self._gifts[next(iter(self._gifts))]
        self._gifts[log_id] = _Gift(grace_us, now_us)
        self._stalls.pop(log_id, None)
        self.gift_count += 1

    def statistics(self) -> dict[str, int]:
        """Logs that stand still now, and those that were given up since the start."""
        return {"stalled_logs": len(self._stalls), "logs_given_up": self.gift_count}

    def _look(
        self, log: LogSequencer, candidates: Sequence[Candidate], own: Collection[str]
    ) -> object:
        """How far a log has come that stands still, or may; None: it goes on."""
        if log.state not in _GOES_ON or log.view is None:
            return None
        writer = log.writer
        if writer is None or log.older.recoveries:
            rebuild = log.pipeline.carried.rebuild
            recovered = [recovery.progress for recovery in log.older.recoveries]
            return (recovered, None if rebuild is None else rebuild.entry_count)
        # Not what the writer makes of its members: one-way links have it change them all the time.
        may_stand = writer.window or (own and not can_serve(log, candidates, own))
        return (writer.segment.epoch, writer.lac) if may_stand else None
