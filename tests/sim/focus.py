"""A run in which a few faults happen and nothing else: what hunts a mutant that shows only so.

Options are those of the seed, but for the faults, and where the mutant asks for it the replication
of every log and its acknowledgement mode. Runs are short: one fault follows the other.

Used by `tests.sim.mutants`. Documented in docs/testing.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, NamedTuple

from duramen.config import LogConfig, Retention, Tiering, parse_log_config
from duramen.units import MS, SECOND
from tests.sim.garbage import collected_afterwards
from tests.sim.log_kinds import settled_use
from tests.sim.options import Options, draw_options
from tests.sim.run import Result, Run

_DURATION_US: Final = 25 * SECOND
_CALM_US: Final = 800 * MS
_RELEASING_US: Final = 100 * SECOND
"""Longer than a repair that was under way may last after a release (`archive.record`)."""


_MOVING_US: Final = 60 * SECOND


class Focus(NamedTuple):
    """What happens, and to which logs."""

    faults: tuple[str, ...]
    shape: tuple[int, int, int] | None = None
    """Ensemble size, write quorum and ack quorum of every log; None: as drawn."""

    ack_mode: str | None = None
    unknown_ratio: float | None = None
    """Of the commits of the metadata store, those whose fate the author does not learn."""

    copysets: str = "striped"
    """`flexible`: logs make the same promises by copysets."""

    stall: str | None = None
    """`window.stall` of flexible logs; their nodesets are as small as they may be then."""

    fault_us: int | None = None
    """How long a fault lasts about; None: as drawn."""

    has_gossip: bool = False
    has_owner_lacs: bool = False
    does_release: bool = False
    """Segments are short, archived and released at once, under repair; the run is a long one."""

    does_move: bool = False
    """Segments are short, archived and released at once, and their nodes move to metadata logs."""


def draw_focused(seed: int, focus: Focus) -> Options:
    """The options of a seed, with no fault but those."""
    drawn = draw_options(seed, copysets=focus.copysets)
    if focus.does_move:
        return _draw_moving(drawn, focus)
    if focus.does_release:
        return _draw_releasing(drawn, focus)
    logs = [_focus_log(log, focus) for log in drawn.logs]
    return replace(
        drawn,
        duration_us=_DURATION_US,
        places=drawn.places[: len(drawn.places) - drawn.spare_count],
        spare_count=0,
        has_repair=False,
        has_owner_lacs=focus.has_owner_lacs,
        has_gossip=focus.has_gossip,
        archiver_count=0,
        has_metadata_logs=False,
        log_kinds=tuple((log, None) for log in logs),
        log_uses=tuple(map(settled_use, logs)),
        faults=focus.faults,
        calm_us=_CALM_US,
        fault_us=drawn.fault_us if focus.fault_us is None else focus.fault_us,
        is_beyond_budget=False,
        unknown_ratio=drawn.unknown_ratio if focus.unknown_ratio is None else focus.unknown_ratio,
        loss_ratio=0.0,
        duplicate_ratio=0.0,
    )


def _draw_releasing(drawn: Options, focus: Focus) -> Options:
    """What leaves the bookies leaves them early, so that repair meets it for a long while."""
    assert (focus.shape, focus.ack_mode, focus.unknown_ratio) == (None, None, None), focus
    first, last = drawn.places[0], drawn.places[-1]
    return replace(
        drawn,
        duration_us=_RELEASING_US,
        places=drawn.places if drawn.spare_count else (*drawn.places, first, last),
        spare_count=2,
        has_repair=True,
        has_gossip=focus.has_gossip,
        archiver_count=2,
        has_metadata_logs=False,
        log_kinds=tuple((_release_log(log), None) for log in drawn.logs),
        log_uses=tuple(map(settled_use, drawn.logs)),
        faults=focus.faults,
        calm_us=2 * SECOND,
        is_beyond_budget=False,
        appends_per_s=60,
        loss_ratio=0.0,
        duplicate_ratio=0.0,
        clock_skew_us=0,
        newer=(),
    )


def _draw_moving(drawn: Options, focus: Focus) -> Options:
    """What leaves the metadata store leaves it early, from one sequencer's hands to another's."""
    assert (focus.shape, focus.ack_mode) == (None, None), focus
    unknown_ratio = drawn.unknown_ratio if focus.unknown_ratio is None else focus.unknown_ratio
    return replace(
        drawn,
        duration_us=_MOVING_US,
        places=drawn.places[: len(drawn.places) - drawn.spare_count],
        spare_count=0,
        has_repair=False,
        has_gossip=focus.has_gossip,
        archiver_count=2,
        has_metadata_logs=True,
        log_kinds=tuple((_release_log(log), None) for log in drawn.logs),
        log_uses=tuple(map(settled_use, drawn.logs)),
        faults=focus.faults,
        calm_us=_CALM_US,
        is_beyond_budget=False,
        unknown_ratio=unknown_ratio,
        appends_per_s=60,
        loss_ratio=0.0,
        duplicate_ratio=0.0,
        clock_skew_us=0,
    )


def _release_log(log: LogConfig) -> LogConfig:
    roll = log.roll.model_copy(update={"interval": SECOND, "idle_close": SECOND})
    return log.model_copy(
        update={
            "roll": roll,
            "tiering": Tiering.model_validate({"policy": "move", "keep_hot": "0s"}),
            "retention": Retention.model_validate({"truncated": "6s"}),
        }
    )


def _focus_flexible(log: LogConfig, focus: Focus) -> LogConfig:
    """Two copies, so that the budget lets one of them be lost; a nodeset without a spare node."""
    fields = log.to_json()
    part = {**fields["replication"], "node": 2, "rack": 1, "region": 1, "extras": 0}
    more: dict[str, Any] = {"replication": part, "ack_mode": focus.ack_mode or log.ack_mode}
    more["nodeset"] = {"size": None if focus.stall is None else 3, "tolerate": 1}
    if focus.stall is not None:
        more["window"] = {**fields["window"], "stall": focus.stall}
    return parse_log_config(fields | more)


def _focus_log(log: LogConfig, focus: Focus) -> LogConfig:
    if log.is_flexible:
        return _focus_flexible(log, focus)
    part = log.striped
    if focus.shape is not None:
        ensemble, write, ack = focus.shape
        part = part.model_copy(update={
            "ensemble_size": ensemble, "write_quorum": write, "ack_quorum": ack,
            "min_racks": 1, "min_regions": 1,
        })  # fmt: skip
    return log.model_copy(update={"replication": part, "ack_mode": focus.ack_mode or log.ack_mode})


def play_focused(seed: int, focus: Focus, *, with_trace: bool = False) -> Result:
    """Play one seed."""
    with collected_afterwards():
        return Run(seed, drawn=draw_focused(seed, focus), with_trace=with_trace).play()
