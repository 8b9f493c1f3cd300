"""Standing faults: links that stay cut for minutes, up to an hour, while a log must go on.

`python -m tests.sim.standing --seeds N [--first K]`. No other fault happens. From some moment on
some sequencers are cut off from bookies, from the metadata store, or from one another, in both
directions or in one. As long as one sequencer reaches everybody, every log must have an append
acknowledged within `PATIENCE_US`, again and again, to clients that ask any sequencer. Where nobody
reaches enough, no log may change hands because of that. Then all is healed, and the run ends as any
other: nothing that was acknowledged may be lost.

In some runs nothing is cut, and the cores of logs meet faults of their own (fail-stop).

Played by `test_standing`, and with a mutant by `tests.sim.mutants`. Documented in docs/testing.md.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

from duramen.config import LogConfig
from duramen.core.sequencer.log_state import LogState
from duramen.ids import Dlsn, LogId
from duramen.units import GIB, HOUR, MINUTE, MS, SECOND
from duramen.wire.metadata_json import read_node
from tests.sim.checkers import Checkers
from tests.sim.garbage import collected_afterwards
from tests.sim.log_kinds import settled_use
from tests.sim.metadata import PATHS
from tests.sim.network import STORE
from tests.sim.options import Options, draw_options
from tests.sim.run import Result, Run, Stuck
from tests.sim.sequencers import SequencerNode
from tests.sim.watched_driver import InjectedFault

PATIENCE_US: Final = 60 * SECOND
"""How long a log may stand still: a session ends, its owner's reach is known, the grace passes, an
append that went to the wrong one comes to its time-out, one after the other; and that twice."""

DEPOSED_US: Final = 15 * SECOND
"""How long somebody may take for its own what another has: three looks and an answer."""

_OWNED_US: Final = 6 * SECOND
"""What a deposed owner has for its takeovers and some appends, before it is cut off."""

_LIKE_AN_OWNER: Final = (
    LogState.RECOVERING, LogState.REBUILDING, LogState.EARLY, LogState.ACTIVE, LogState.DRAINING,
)  # fmt: skip
"""A core in them keeps clients' appends."""

_CALM_US: Final = (4 * SECOND, 10 * SECOND)
_SPANS_US: Final = (2 * MINUTE, 2 * MINUTE, 3 * MINUTE, 5 * MINUTE)
_HOUR_RATIO: Final = 0.06

_APPENDS_PER_S: Final = 6
_HOURS_APPENDS_PER_S: Final = 2
"""An hour is for what comes with time; by its appends it would cost as much as all other seeds."""

_HEALED_APPENDS_PER_S: Final = 12
"""As of any other run: each client has to be seen to go on soon after all is healed."""


class Cut(NamedTuple):
    """One link that is cut: nothing goes from `source` to `target`."""

    source: str
    target: str


class Standing(NamedTuple):
    """What stands in one seed; without cuts, invariants of logs are broken again and again.

    Attributes:
        is_served: one sequencer reaches everybody, so that every log must go on.
    """

    kind: str
    cuts: tuple[Cut, ...]
    at_us: int
    span_us: int
    is_served: bool
    deposed: str = ""
    """Has every log when its bookies fall silent, and then another one takes them over."""
    is_owner: bool = False
    """It took them over before that, and serves them; else it is recovering them."""


class HeardCheckers(Checkers):
    """Also knows when an append of each log was acknowledged last."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.heard_us: dict[LogId, int] = {}

    def on_acknowledge(  # noqa: PLR0917 - one event of the history
        self, now_us: int, client: int, log_id: LogId, append_id: int, dlsn: Dlsn,
        seq_num: int | None,
    ) -> None:  # fmt: skip
        super().on_acknowledge(now_us, client, log_id, append_id, dlsn, seq_num)
        self.heard_us[log_id] = now_us


def draw_calm_options(seed: int, standing: Standing) -> Options:
    """The seed's cluster with a light load, and no fault but what stands."""
    drawn = draw_options(seed)
    bookie_count = len(drawn.places) - drawn.spare_count
    logs = [_stay(log, bookie_count) if standing.is_owner else log for log in drawn.logs]
    return replace(
        drawn,
        log_kinds=tuple((log, None) for log in logs),
        log_uses=tuple(map(settled_use, logs)),
        duration_us=standing.at_us + standing.span_us,
        places=drawn.places[: len(drawn.places) - drawn.spare_count],
        spare_count=0,
        has_repair=False,
        has_reliefs=not standing.deposed,
        has_gossip=False,
        archiver_count=0,
        reader_count=1,
        faults=(),
        is_beyond_budget=False,
        appends_per_s=_HOURS_APPENDS_PER_S if standing.span_us >= HOUR else _APPENDS_PER_S,
        appends_per_frame=2,
        loss_ratio=0.0,
        duplicate_ratio=0.0,
    )


def _stay(log: LogConfig, bookie_count: int) -> LogConfig:
    """A log whose owner has no reason to change its nodes: by that it would learn of another."""
    replication = log.striped.model_copy(update={"ensemble_size": bookie_count})
    roll = log.roll.model_copy(
        update={"interval": HOUR, "idle_close": HOUR, "size": GIB}
    )  # fmt: skip
    return log.model_copy(update={"replication": replication, "roll": roll, "ack_mode": "ordered"})


def draw_standing(rng: random.Random, sequencers: list[str], bookies: list[str]) -> Standing:
    """What is cut: `kind` is that of the first sequencer that is hit."""
    draw = rng.random()
    is_served = draw < 0.85
    if 0.75 < draw < 0.85:
        return Standing("broken invariants", (), rng.randrange(*_CALM_US), 2 * MINUTE, is_served)
    if draw < 0.15:
        name = rng.choice(sequencers)
        links = [link for bookie in bookies for link in (Cut(name, bookie), Cut(bookie, name))]
        at_us = rng.randrange(*_CALM_US)
        return Standing(
            "deposed", tuple(links), at_us, MINUTE, is_served=True, deposed=name,
            is_owner=draw < 0.035,
        )  # fmt: skip
    hit = list(sequencers)
    rng.shuffle(hit)
    if is_served:
        hit = hit[: len(hit) - 1] if rng.random() < 0.7 else hit[:1]
    cuts: list[Cut] = []
    kinds = []
    for name in hit:
        kind = "bookies" if not is_served else rng.choice(("bookies", "bookies", "store", "both"))
        kinds.append(kind)
        if kind != "store":
            spared = rng.choice((0, 0, 1)) if is_served else 0
            for bookie in rng.sample(bookies, len(bookies) - spared):
                cuts += _cut(rng, name, bookie)
        if kind != "bookies":
            cuts += _cut(rng, name, STORE)
        if rng.random() < 0.5:
            for other in sequencers:
                cuts += [Cut(name, other), Cut(other, name)] if other != name else []
    span_us = rng.choice(_SPANS_US)
    if rng.random() < _HOUR_RATIO:
        span_us = 60 * MINUTE
    at_us = rng.randrange(*_CALM_US)
    return Standing(kinds[0], tuple(cuts), at_us, span_us, is_served)


def _cut(rng: random.Random, one: str, other: str) -> list[Cut]:
    both = [Cut(one, other), Cut(other, one)]
    return rng.choice((both, both, both[:1], both[1:]))


class StandingRun(Run):
    """One seed's cluster while something stands."""

    make_checkers = HeardCheckers

    def __init__(self, seed: int, *, with_trace: bool = False) -> None:
        rng = random.Random(f"standing {seed}")
        drawn = draw_options(seed)
        sequencers = [f"s{i}" for i in range(drawn.sequencer_count)]
        bookies = [f"b{i}" for i in range(len(drawn.places) - drawn.spare_count)]
        self.standing = standing = draw_standing(rng, sequencers, bookies)
        super().__init__(
            seed,
            with_trace=with_trace,
            drawn=draw_calm_options(seed, standing),
        )
        self.world.at(standing.at_us, self._begin)

    def _begin(self) -> None:
        standing, world = self.standing, self.world
        world.note("nemesis", f"standing {standing.kind}", *[f"{a}→{b}" for a, b in standing.cuts])
        world.counts[f"standing: {standing.kind}{'' if standing.is_served else ', everybody'}"] += 1
        if standing.is_served:
            world.at(SECOND, self._look)
        if standing.deposed:
            self._depose()
        world.at(_OWNED_US if standing.is_owner else 0, self._cut_links)
        if not standing.cuts:
            self._break_again()

    def _cut_links(self) -> None:
        standing = self.standing
        for source, target in standing.cuts:
            self.network.cut(source, target, self.world.now_us + standing.span_us)

    def _break_again(self) -> None:
        """The core of some log meets a fault of its own, wherever the log is, whatever it does."""
        world = self.world
        world.at(world.between(SECOND, 12 * SECOND), self._break_again)
        if world.now_us < self.standing.at_us + self.standing.span_us:
            sequencer = world.rng.choice(list(self.sequencers.values()))
            if sequencer.drivers:
                driver = world.rng.choice(list(sequencer.drivers.values()))
                sequencer.run(sequencer.life, driver.stop_at, InjectedFault("of its own"))

    def _depose(self) -> None:
        """The one that is cut off takes over, then another one does."""
        world, deposed = self.world, self.sequencers[self.standing.deposed]
        pending_owner = next(each for each in self.sequencers.values() if each is not deposed)
        if not self.standing.is_owner:
            # Each log has to be recovered, which needs bookies.
            for sequencer in self.sequencers.values():
                sequencer.crash()
                world.at(500 * MS, sequencer.start)
        for number in range(len(self.options.logs)):
            world.at(SECOND, self._take_over, deposed, LogId(number + 1))
            world.at(9 * SECOND, self._take_over, pending_owner, LogId(number + 1))
        world.at(9 * SECOND + DEPOSED_US, self._look_at_deposed)

    @staticmethod
    def _take_over(taker: SequencerNode, log_id: LogId) -> None:
        taker.run(taker.life, taker.disturb, log_id, "take over")

    def _look_at_deposed(self) -> None:
        deposed = self.sequencers[self.standing.deposed]
        for log_id, driver in deposed.drivers.items():
            owner = self.store.find(PATHS.owner(log_id))
            is_others = owner is not None and read_node(owner.data)["sequencer"] != deposed.name
            if is_others and driver.core.state in _LIKE_AN_OWNER:
                raise Stuck("deposed", f"{deposed.name} counts as owner still: {driver.core!r}")
        kind = "owner" if self.standing.is_owner else "recoverer"
        self.world.counts[f"deposed {kind} looked at"] += 1

    def _look(self) -> None:
        """Every log goes on."""
        world, standing = self.world, self.standing
        if world.now_us >= standing.at_us + standing.span_us:
            return
        world.at(500 * MS, self._look)
        assert isinstance(self.checkers, HeardCheckers)
        for number in range(len(self.options.logs)):
            heard_us = self.checkers.heard_us.get(LogId(number + 1), 0)
            if world.now_us - max(heard_us, standing.at_us) > PATIENCE_US:
                raise Stuck(
                    "standing liveness",
                    f"log {number + 1} stands still though one sequencer reaches all: "
                    f"{self._format_logs()}",
                )

    def _heal(self) -> None:
        given_up = self.world.counts["log given up for want of bookies"]
        count_max = 0
        if self.standing.is_served:
            count_max = 2 * len(self.options.logs) * len(self.sequencers)
        if given_up > count_max:
            raise Stuck("standing liveness", f"logs were given up {given_up} times")
        super()._heal()
        # A producer has a twentieth of all appends: at the pace of an hour it has two in 90 s.
        for client in self._list_clients():
            client.slow_factor = self.options.appends_per_s / _HEALED_APPENDS_PER_S


def play_standing(seed: int, *, with_trace: bool = False) -> Result:
    """Play one seed."""
    with collected_afterwards():
        return StandingRun(seed, with_trace=with_trace).play()


def play_all(seeds: range) -> Iterator[tuple[int, Result]]:
    """One after the other."""
    for seed in seeds:
        yield seed, play_standing(seed)


def main() -> int:
    """Play seeds; 1 if one fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.standing")
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--trace", action="store_true", help="show the failing seed's events")
    options = parser.parse_args()
    failed = []
    begun_s = time.monotonic()
    for seed, result in play_all(range(options.first, options.first + options.seeds)):
        stands = [name for name in result.counts if name.startswith("standing:")]
        given_up = result.counts["log given up for want of bookies"]
        print(f"{seed:5} {stands} given up {given_up} {result.violation or 'ok'}"[:400], flush=True)
        if result.violation:
            failed.append(seed)
            if options.trace:
                print("\n".join(result.story))
    took_s = time.monotonic() - begun_s
    print(f"{options.seeds} seeds, {len(failed)} failed {failed}, {took_s:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
