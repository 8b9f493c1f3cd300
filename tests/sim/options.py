"""Options of one run: what a seed draws before anything happens (swarm testing).

Every seed draws its own mix: which faults there are and how often, how many processes, the logs'
replication and rolls, delays. A fault that is always on hides what only happens without it. The
draw has its own randomness, so the same seed has the same options whatever happens in the run.

Drawn by `run`, read by every module. Documented in docs/testing.md.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, fields
from typing import Any, Final

from duramen.config import LogConfig, Retention, Tiering, parse_log_config
from duramen.core.placement import Candidate, PlacementRule, choose_ensemble
from duramen.core.quorum import Quorum
from duramen.ids import BookieId, Incarnation, Member
from duramen.units import DAY, HOUR, KIB, MS, SECOND
from tests.sim.log_kinds import (
    LogUse,
    choose_kinds,
    draw_kind,
    draw_use,
    format_replication,
)

SHAPES: Final = (
    (3, 3, 2), (3, 3, 2), (3, 2, 2), (5, 3, 2), (5, 5, 3), (4, 3, 2), (4, 4, 3), (4, 4, 2),
    (3, 3, 3), (5, 5, 2),
)  # fmt: skip

FAULTS: Final = (
    "bookie killed", "bookie power cut", "all bookies power cut", "sync fails", "disk slow",
    "bits flip", "disk replaced", "bookie paused", "bookie stopped", "sequencer killed",
    "sequencer paused", "sequencer stopped", "partition", "one-way cut", "node cut off",
    "regions cut", "store cut off", "link clogged", "store down", "session expires",
    "early takeover", "takeover race", "takeover race", "late adds", "roll asked", "log closed",
    "store slow", "killed at a commit", "killed at a commit", "paused at a commit",
    "rolling suspended", "reconfigured", "handed over", "handed over",
)  # fmt: skip


STAGED_FAULTS: Final = ("last commit rots", "seal rots")
"""Of several steps, each of which must follow the one before (`staged_faults`)."""

BODY_ROTS: Final = "last body rots"
"""As `last commit rots`, and a bookie knows which entry it lost: in runs that ask for it alone."""

ASKED_ZOMBIE: Final = "zombie asked"
"""Of several steps, too (`asked_zombie`): in runs that ask for it alone."""

FULL_DISK: Final = "disk full"
ASLEEP: Final = "asleep for long"
RARE_FAULTS: Final = ("members parted", *STAGED_FAULTS, FULL_DISK, ASLEEP)
"""What goes wrong in a part of the seeds alone."""

_RARE_RATIO: Final = 0.3


REPAIR_FAULTS: Final = (
    "bookie drained", "bookie drained", "drain cancelled", "bookie removed", "bookie removed",
    "bookie long away", "lost again", "rebalance asked", "region lost", "listings empty",
    "auditor killed", "killed at a swap", "killed at a copy", "change races a swap",
)  # fmt: skip
"""What also goes wrong, and what is asked, where there is repair."""

GOSSIP_FAULTS: Final = (
    "owner dozes", "owners doze in turn", "owners doze in turn", "sequencer unheard",
    "members' clock stops",
)  # fmt: skip
"""What also goes wrong where there is gossip: what it notices, and what it takes for that."""

PEACEFUL: Final = (
    "sequencer stopped", "roll asked", "log closed", "reconfigured", "handed over",
)  # fmt: skip
"""What ends a segment in peace. In *restless* seeds it is left out and no log rolls, and retention
lets go of everything: what takeovers must know has to survive all the same."""


_ARCHIVE_RATIO: Final = 0.25
"""Seeds with an archive: released segments are read from elsewhere, which hides what bookies do."""

_METADATA_RATIO: Final = 0.5
"""Of the seeds with an archive, those in which segment nodes leave the metadata store."""

_REPAIR_RATIO: Final = 0.4
"""Seeds with repair: it is the dearest part of a run, and hides what only happens without it."""


_SKEWS_US: Final = (5 * SECOND, HOUR, DAY)
_SKEW_RATIO: Final = 0.2
"""Seeds in which clocks differ: there nothing can be said of what is let go of by age."""


_NEWER_RATIO: Final = 0.15
"""Seeds with servers of two versions; of every other format there is one version, see docs."""


_RELIEF_RATIO: Final = 0.3
"""Seeds in which sequencers ask whom they reach: it changes the course of a run, and costs time."""


_GOSSIP_RATIO: Final = 0.3
"""Seeds with gossip, for the same reasons."""


@dataclass(frozen=True, slots=True)
class Options:
    """One run's drawing."""

    duration_us: int
    places: tuple[tuple[str, str], ...]
    """(region, rack) of each bookie, the spare ones last."""
    spare_count: int
    """Bookies that join later, one for each that is removed."""
    has_repair: bool
    """Sequencers stand for auditor."""
    has_reliefs: bool
    """Sequencers ask whom they reach, and give up what others could serve."""
    has_owner_lacs: bool
    """Feeds of readers wait at owners, too: asked for, and never drawn."""
    has_gossip: bool
    """Sequencers ping one another, bookies are asked about them, write proxies listen."""
    archiver_count: int
    has_metadata_logs: bool
    """Sequencers run keepers: nodes of released segments move to metadata logs."""
    sequencer_count: int
    client_count: int
    producer_count: int
    reader_count: int
    log_kinds: tuple[tuple[LogConfig, LogConfig | None], ...]
    """Of each log its configuration, and that of another kind which it has in turns, if any."""
    log_uses: tuple[LogUse, ...]
    """Of each log who comes to it, and whether its `ack_mode` changes."""
    appends_per_s: int
    appends_per_frame: int
    faults: tuple[str, ...]
    calm_us: int
    """Mean time between two faults."""
    fault_us: int
    """Mean length of a fault."""
    snapshot_entry_count: int
    """After so many entries the state of producers and token is written into the log."""
    is_beyond_budget: bool
    """More disks are lost or damaged than the replication promises to survive."""
    loss_ratio: float
    duplicate_ratio: float
    slow_ratio: float
    has_late_answers: bool
    cross_region_us: int
    sync_us: int
    journal_file_bytes: int
    unknown_ratio: float
    """Commits of the metadata store whose answer is lost: applied, applied late, or never."""
    stale_us: int
    """How far behind an unsynced read of the metadata store may be."""
    watch_us: int
    """How late a watch may be."""
    newer: tuple[str, ...]
    """Processes of a version to come: their nodes have a field that the others do not know."""
    clock_skew_us: int
    """How far apart the clocks of sequencers are: wall clocks are for people, and for retention."""

    @property
    def logs(self) -> tuple[LogConfig, ...]:
        """The configuration of each log at first."""
        return tuple(log for log, _ in self.log_kinds)

    def format(self) -> str:
        """Everything in one line."""
        parts = []
        for field in fields(self):
            value: Any = getattr(self, field.name)
            if field.name == "log_kinds":
                value = "[" + " ".join(_format_log(log) for log in self.logs) + "]"
            elif field.name == "log_uses":
                value = "[" + " ".join(use.format() for use in self.log_uses) + "]"
            elif field.name == "places":
                value = "[" + " ".join(f"{region}/{rack}" for region, rack in value) + "]"
            elif field.name == "faults":
                value = "[" + ", ".join(value) + "]"
            parts.append(f"{field.name}={value}")
        return " ".join(parts)


def draw_options(
    seed: int, *, duration_us: int | None = None, copysets: str = "striped"
) -> Options:
    """The options of a seed.

    Args:
        duration_us: replaces the drawn length of the first phase.
        copysets: of `KINDS`, what the logs are.
    """
    copysets = draw_kind(seed, copysets)
    rng = random.Random(f"options {seed}")
    repair = random.Random(f"repair {seed}")
    has_repair = repair.random() < _REPAIR_RATIO
    places = _draw_places(rng, repair if has_repair else None)
    spares = tuple(repair.choice(places) for _ in range(2 * has_repair))
    is_calm = rng.random() < 0.1
    is_noisy = rng.random() < 0.5
    faults = tuple(fault for fault in FAULTS if rng.random() < 0.6)
    is_restless = rng.random() < 0.12
    if is_restless:
        faults = tuple(fault for fault in faults if fault not in PEACEFUL)
    early = random.Random(f"early append {seed}")
    archive, skew = random.Random(f"archive {seed}"), random.Random(f"skew {seed}")
    wishes, flexible = random.Random(f"wishes {seed}"), random.Random(f"flexible {seed}")
    faults += _draw_rare_faults(seed, repair if has_repair else None)
    tiered = archive if archive.random() < _ARCHIVE_RATIO else None
    has_gossip, more_faults = _draw_gossip(seed)
    faults += more_faults

    def draw_kinds() -> tuple[LogConfig, LogConfig | None]:
        log = _draw_log(rng, places, is_restless=is_restless)
        more = _draw_more(early, tiered, wishes)
        return choose_kinds(log.model_copy(update=more), copysets, flexible)

    return Options(
        duration_us=duration_us or 60 * SECOND,
        places=(*places, *spares),
        spare_count=len(spares),
        has_repair=has_repair,
        has_reliefs=random.Random(f"relief {seed}").random() < _RELIEF_RATIO,
        has_owner_lacs=False,
        has_gossip=has_gossip,
        archiver_count=0 if tiered is None else 2,
        has_metadata_logs=tiered is not None and _draw_metadata_logs(seed),
        sequencer_count=rng.choice((2, 2, 3)),
        client_count=rng.choice((2, 3, 3)),
        producer_count=rng.choice((1, 2, 3)),
        reader_count=rng.choice((1, 1, 2)),
        log_kinds=(kinds := tuple(draw_kinds() for _ in range(rng.choice((1, 2, 3))))),
        log_uses=tuple(draw_use(log, wishes) for log, _ in kinds),
        appends_per_s=rng.choice((80, 95, 115)),
        appends_per_frame=rng.choice((2, 4, 6)),
        faults=() if is_calm else faults or ("sequencer killed",),
        calm_us=rng.choice((400 * MS, 1 * SECOND, 3 * SECOND)),
        fault_us=rng.choice((500 * MS, 2 * SECOND, 6 * SECOND)),
        snapshot_entry_count=rng.choice((4_000, 200, 20)),
        is_beyond_budget=rng.random() < 0.1,
        loss_ratio=rng.choice((0.0, 0.0, 0.002, 0.01)) if is_noisy else 0.0,
        duplicate_ratio=rng.choice((0.0, 0.01, 0.05)) if is_noisy else 0.0,
        slow_ratio=rng.choice((0.0, 0.005, 0.02)),
        has_late_answers=rng.random() < 0.3,
        cross_region_us=rng.choice((500, 2 * MS, 8 * MS)),
        sync_us=rng.choice((300, 1 * MS, 4 * MS)),
        journal_file_bytes=rng.choice((64 * KIB, 256 * KIB)),
        unknown_ratio=rng.choice((0.0, 0.02, 0.15)),
        stale_us=rng.choice((0, 20 * MS, 1 * SECOND)),
        watch_us=rng.choice((5 * MS, 100 * MS, 2 * SECOND)),
        newer=_draw_newer(seed),
        clock_skew_us=skew.choice(_SKEWS_US) if skew.random() < _SKEW_RATIO else 0,
    )


def _draw_rare_faults(seed: int, repair: random.Random | None) -> tuple[str, ...]:
    """What goes wrong in a part of the seeds, and what goes wrong where there is repair."""
    rare = random.Random(f"rare {seed}")
    faults = tuple(fault for fault in RARE_FAULTS if rare.random() < _RARE_RATIO)
    if repair is not None:
        faults += tuple(fault for fault in REPAIR_FAULTS if repair.random() < 0.6)
    return faults


def _draw_metadata_logs(seed: int) -> bool:
    return random.Random(f"metadata log {seed}").random() < _METADATA_RATIO


def _draw_gossip(seed: int) -> tuple[bool, tuple[str, ...]]:
    """Whether there is gossip, and what goes wrong with it."""
    rng = random.Random(f"gossip {seed}")
    if rng.random() >= _GOSSIP_RATIO:
        return False, ()
    return True, tuple(fault for fault in GOSSIP_FAULTS if rng.random() < 0.7)


def _draw_places(rng: random.Random, repair: random.Random | None) -> tuple[tuple[str, str], ...]:
    """Region and rack of each bookie; where there is repair, there may be many."""
    region_count = rng.choice((1, 2, 2, 2))
    bookie_count = rng.choice((3, 4, 5, 5, 5, 6))
    rack_size = rng.choice((1, 1, 2))
    if repair is not None and repair.random() < 0.3:
        region_count, bookie_count, rack_size = 3, repair.choice((6, 7, 9)), 1
    return tuple(
        (f"r{i % region_count}", f"k{i // region_count // rack_size}") for i in range(bookie_count)
    )


def _draw_more(
    early: random.Random, tiered: random.Random | None, wishes: random.Random
) -> dict[str, Any]:
    more: dict[str, Any] = {
        "early_append": early.random() < 0.4,
        "compression": wishes.choice(("none", "zstd")),
    }
    return more if tiered is None else {**more, "tiering": _draw_tiering(tiered)}


def _draw_newer(seed: int) -> tuple[str, ...]:
    """A rolling upgrade that stands still: a part of the servers is of the next version."""
    rng = random.Random(f"newer {seed}")
    if rng.random() >= _NEWER_RATIO:
        return ()
    names = [*(f"s{i}" for i in range(3)), *(f"b{i}" for i in range(9))]
    return tuple(name for name in names if rng.random() < 0.5)


def _draw_log(
    rng: random.Random, places: tuple[tuple[str, str], ...], *, is_restless: bool
) -> LogConfig:
    ensemble, write, ack = rng.choice([shape for shape in SHAPES if shape[0] <= len(places)])
    min_racks = rng.choice((1, 2, 2))
    min_regions = rng.choice((1, 1, 1, 2))
    quorum = Quorum(ensemble, write, ack)
    if not can_place(places, quorum, min_racks, min_regions):
        min_racks = min_regions = 1
    return parse_log_config({
        "ack_mode": rng.choice(("ordered", "ordered", "ordered", "out_of_order")),
        "replication": {
            "ensemble_size": ensemble, "write_quorum": write, "ack_quorum": ack,
            "min_racks": min_racks, "min_regions": min_regions,
            "placement": rng.choice(("strict", "strict", "prefer")),
        },
        "roll": {
            "interval": "1h" if is_restless else rng.choice(("1s", "4s", "15s", "1h")),
            "size": "1MiB" if is_restless else rng.choice(("8KiB", "64KiB", "1MiB")),
            "idle_close": "10m" if is_restless else rng.choice(("1s", "5s", "10m")),
        },
        "commit_delay": rng.choice(("5ms", "5ms", "50ms")),
        "owed_bytes_max": rng.choice(("2KiB", "64KiB", "64MiB")),
        "commit": rng.choice(("lac", "lac", "control")),
        "retention": {"age": "5s", "truncated": "6s"} if is_restless else _draw_retention(rng),
        "producers": {"results_kept": rng.choice((1, 4, 64))},
        "flush": {
            "policy": rng.choice(("immediate", "immediate", "periodic", "size")),
            "size": rng.choice(("1KiB", "8KiB")),
        },
    })  # fmt: skip


def _draw_tiering(rng: random.Random) -> Tiering:
    policy = rng.choice(("move", "move", "move", "copy"))
    return Tiering.model_validate({"policy": policy, "keep_hot": rng.choice(("0s", "2s", "8s"))})


def _draw_retention(rng: random.Random) -> dict[str, Any]:
    """Mostly nothing goes, so that most logs can be read from their head at the end."""
    match rng.choice(("nothing", "nothing", "truncated", "age", "bytes")):
        case "truncated":
            return {"truncated": "6s"}
        case "age":
            return {"age": rng.choice(("5s", "15s")), "truncated": "6s"}
        case "bytes":
            return {"bytes": rng.choice(("8KiB", "64KiB")), "truncated": "6s"}
        case _:
            return {}


def can_place(
    places: tuple[tuple[str, str], ...], quorum: Quorum, min_racks: int, min_regions: int
) -> bool:
    """Whether there is an ensemble while every bookie is there."""
    if quorum.ack_quorum < max(min_racks, min_regions):
        return False
    candidates = [
        Candidate(Member(BookieId(f"b{i}"), Incarnation("")), region, rack)
        for i, (region, rack) in enumerate(places)
    ]
    rule = PlacementRule(min_racks, min_regions)
    return choose_ensemble(candidates, quorum, rule, random.Random(0)) is not None


def _format_log(log: LogConfig) -> str:
    roll = log.roll
    return (
        f"{format_replication(log)}"
        f"-roll{roll.interval // SECOND}s/{roll.size}B/idle{roll.idle_close // SECOND}s"
        f"-owed{log.owed_bytes_max}B-{log.ack_mode}-{log.commit}-{log.flush.policy}"
        f"{'-zstd' * (log.compression == 'zstd')}"
        f"-kept{log.producers.results_kept}-{_format_retention(log.retention)}"
        f"{'-early' * log.early_append}{_format_tiering(log.tiering)}"
    )


def _format_tiering(tiering: Tiering) -> str:
    if tiering.policy == "none":
        return ""
    return f"-{tiering.policy}{tiering.keep_hot // SECOND}s"


def _format_retention(retention: Retention) -> str:
    age = None if retention.age is None else f"{retention.age // SECOND}s"
    return f"age{age}/bytes{retention.bytes}/truncated{retention.truncated // SECOND}s"
