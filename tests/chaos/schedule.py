"""What goes wrong when: a schedule that the seed and the layout alone decide.

A step is kill, pause, cut, disk or drain, of one process or several, for a time. The schedule deals
the actions of its layout in turn and the kinds of each like cards, so that short runs see every
action and long ones every kind. Where it says `OWNER`, the sequencer is meant that owns most logs
at that moment; where it says `BOOKIE`, one that the budget of destroyed disks allows.
Most steps stand alone, so that what they cost can be measured; one in five begins while the step
before it is still under way, unless one of the two holds a disk in its hands, or is the long one.

A long run also has every ZooKeeper server away for a minute: its first kill is that.

Pure. Carried out by `nemesis`. Source: docs/testing.md "Chaos".
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from tests.chaos.layout import FLAT, LAYOUTS, Layout

PAUSE_S_MAX: Final = 20.0
_OVERLAP_RATIO: Final = 0.2
_REGION_DOWN_S_MIN: Final = 10.0
_REGION_DOWN_RATIO: Final = 1.5
"""A region stays away for 10 to 30 s where other processes pause for 20 s at most."""

OWNER: Final = "owner"
BOOKIE: Final = "bookie"

Action = Literal["kill", "pause", "cut", "disk", "drain", "turn"]
Cards = Mapping[Action, tuple[str, ...]]

_CARDS: Final[Mapping[str, Cards]] = {
    "flat": {
        "kill": (
            "sequencer", "sequencer", "sequencer", "sequencer", "bookie", "bookie", "bookie",
            "two bookies", "writeproxy", "readproxy", "zookeeper", "everything",
        ),
        "pause": (
            "sequencer", "sequencer", "sequencer", "bookie", "bookie", "zookeeper", "zookeeper",
            "writeproxy", "readproxy",
        ),
        "cut": (
            "session", "session", "bookie", "bookie", "sequencer from bookies", "race",
            "one way", "resets", "proxy from sequencer",
        ),
    },
    "regions": {
        "kill": (
            "region", "region", "region", "sequencer", "sequencer", "bookie", "two bookies",
            "zookeeper", "everything",
        ),
        "pause": ("region", "region", "sequencer", "bookie", "zookeeper"),
        "cut": ("region", "session", "sequencer from bookies", "race", "bookie", "one way"),
        "disk": ("wipe", "flips", "second loss"),
        "drain": ("bookie",),
    },
}  # fmt: skip

_TURNS: Final = (
    "leaves", "token", "authority", "issuer",
    "revoked sequencer", "revoked bookie", "revoked writeproxy", "revoked readproxy",
)  # fmt: skip
"""What is turned in a run with security."""

_ALONE: Final = ("disk", "drain", "turn")
"""Actions that start and stop their processes themselves: nobody else may at the same time."""

AWAY: Final = "zookeeper away"
AWAY_KIND: Final = f"kill {AWAY}"
AWAY_S: Final = 60.0
"""Ten times a session's time-out, and longer than a server is down in a rolling upgrade."""

LONG_S: Final = 600.0
"""A run of so many seconds has room for that minute, and has to have met it."""


def list_kinds(layout: Layout, *, is_long: bool = False, turns: bool = False) -> list[str]:
    """Names of all kinds of faults of a layout."""
    cards = _deal(layout, is_long=is_long, turns=turns)
    return sorted({f"{action} {kind}" for action, kinds in cards.items() for kind in kinds})


def _deal(layout: Layout, *, is_long: bool, turns: bool) -> Cards:
    cards = dict(_CARDS[layout.name])
    if is_long:
        cards["kill"] = (*cards["kill"], AWAY)
    if turns:
        cards["turn"] = _TURNS
    return cards


ALL_KINDS: Final = sorted(
    {kind for layout in LAYOUTS.values() for kind in list_kinds(layout, is_long=True, turns=True)}
)


@dataclass(frozen=True)
class Step:
    """One fault of the schedule.

    Attributes:
        duration_s: how long it is down, paused or cut; the least for a kill is what a start takes.
        rest_s: quiet time after the cluster has recovered.
        overlaps: whether it begins while the step before is under way.
        number: drawn for whatever the hands have to choose: a bookie, the bits that flip.
    """

    action: Action
    kind: str
    targets: tuple[str, ...]
    duration_s: float
    rest_s: float
    overlaps: bool
    cut: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
    is_one_way: bool = False
    is_reset: bool = False
    number: int = 0

    @property
    def name(self) -> str:
        """Kind of fault, as summaries count them."""
        return f"{self.action} {self.kind}"

    @property
    def is_alone(self) -> bool:
        """Whether nothing else may go on meanwhile."""
        return self.action in _ALONE or self.kind == AWAY


def draw_steps(
    seed: int,
    layout: Layout = FLAT,
    *,
    pause_s_max: float = PAUSE_S_MAX,
    only: Sequence[str] = (),
    is_long: bool = False,
    turns: bool = False,
) -> Iterator[Step]:
    """The schedule of a seed, without end; `only` of some kinds, where any are named.

    Args:
        is_long: ZooKeeper goes away for a minute, too; else only where `only` names that.
        turns: certificates and tokens turn, which a run with security alone has.
    """
    rng = random.Random(seed)
    draw = _Draw(rng, layout, pause_s_max)
    decks: dict[Action, list[str]] = {
        action: [kind for kind in cards if not only or f"{action} {kind}" in only]
        for action, cards in _deal(
            layout, is_long=is_long or AWAY_KIND in only, turns=turns
        ).items()
    }
    hands: dict[Action, list[str]] = {action: [] for action, deck in decks.items() if deck}
    assert hands, only
    opening = (*layout.opening, AWAY_KIND)
    for action, deck in decks.items():
        first = [kind for kind in deck if f"{action} {kind}" in opening]
        if first:
            hands[action] = first
    actions: list[Action] = []
    before: Step | None = None
    while True:
        actions = actions or rng.sample(list(hands), len(hands))
        action = actions.pop()
        if not hands[action]:
            hands[action] = rng.sample(decks[action], len(decks[action]))
        overlaps = before is not None and rng.random() < _OVERLAP_RATIO
        kind = hands[action].pop()
        if action in _ALONE or kind == AWAY or (before is not None and before.is_alone):
            overlaps = False
        before = draw.step(action, kind, overlaps=overlaps)
        yield before


class _Draw:
    """Steps of one schedule, one after the other."""

    def __init__(self, rng: random.Random, layout: Layout, pause_s_max: float) -> None:
        self._rng = rng
        self._layout = layout
        self._pause_s_max = pause_s_max

    def step(self, action: Action, kind: str, *, overlaps: bool) -> Step:
        """The next one."""
        rng, most_s = self._rng, self._pause_s_max
        rest_s = rng.uniform(0.5, 2.0)
        # Half of them short, so that a process comes back before anybody has given it up.
        session_s = self._layout.session_s
        long_s = rng.uniform(session_s, most_s) if most_s > session_s else most_s
        duration_s = rng.choice([rng.uniform(1.0, 3.0), long_s])
        if action == "turn":
            return self._turn_step(kind, rest_s)
        if action in _ALONE:
            return self._disk_step(action, kind, rest_s)
        if kind == AWAY:
            servers = tuple(self._layout.ids("zookeeper"))
            return Step(action, kind, servers, AWAY_S, rest_s, overlaps)
        if kind == "region" and action == "kill":
            low_s = _REGION_DOWN_S_MIN
            duration_s = rng.uniform(low_s, max(low_s, _REGION_DOWN_RATIO * most_s))
        if action == "kill" and kind == "everything":
            everybody = tuple(sorted(self._layout.everybody()))
            return Step(action, kind, everybody, 0.0, rest_s, overlaps)
        if action in ("kill", "pause"):
            targets = self._targets(kind)
            if action == "kill" and kind != "region":
                duration_s = rng.choice([0.0, duration_s])
            return Step(action, kind, targets, duration_s, rest_s, overlaps)
        a, b = self._sides(kind)
        if kind == "session":
            duration_s = max(duration_s, session_s + rng.uniform(2.0, 4.0))
        return Step(
            action, kind, tuple(sorted(a)), duration_s, rest_s, overlaps, (a, b),
            is_one_way=kind == "one way", is_reset=kind == "resets",
        )  # fmt: skip

    def _targets(self, kind: str) -> tuple[str, ...]:
        """Who is killed or paused."""
        if kind == "region":
            return self._layout.members_of(self._rng.choice(self._layout.regions))
        role, count = ("bookie", 2) if kind == "two bookies" else (kind, 1)
        targets = self._some(role, count)
        return (OWNER,) if role == "sequencer" else tuple(sorted(targets))

    def _some(self, role: str, count: int = 1) -> frozenset[str]:
        numbers = self._rng.sample(range(self._layout.counts()[role]), count)
        return frozenset(f"{role}-{number}" for number in numbers)

    def _sides(self, kind: str) -> tuple[frozenset[str], frozenset[str]]:
        """Who is parted from whom."""
        rng, some, everybody = self._rng, self._some, self._layout.everybody()
        zookeepers = frozenset(self._layout.ids("zookeeper"))
        bookie, sequencer = some("bookie"), frozenset({OWNER})
        match kind:
            case "session":
                return rng.choice([sequencer, sequencer, bookie]), zookeepers
            case "bookie" | "resets":
                return bookie, everybody - bookie
            case "region":
                region = frozenset(self._layout.members_of(rng.choice(self._layout.regions)))
                return region, everybody - region
            case "sequencer from bookies":
                return sequencer, some("bookie", rng.randint(1, self._layout.size.bookies))
            case "race":
                # The owner loses its session and goes on with some bookies, the taker sees others.
                return sequencer, some("bookie", 2) | zookeepers
            case "one way":
                return rng.choice([(bookie, sequencer), (sequencer, bookie)])
            case _:
                assert kind == "proxy from sequencer", kind
                return some("writeproxy"), sequencer

    def _turn_step(self, kind: str, rest_s: float) -> Step:
        """What is revoked stays so for a time; what is started anew on the way is drawn."""
        rng = self._rng
        targets = () if not kind.startswith("revoked ") else self._targets(kind.split()[1])
        return Step(
            "turn", kind, targets, rng.uniform(2.0, 8.0), rest_s, overlaps=False,
            number=rng.getrandbits(32),
        )  # fmt: skip

    def _disk_step(self, action: Action, kind: str, rest_s: float) -> Step:
        """A bookie is chosen by the hands; an old writer sleeps beyond its session."""
        rng, session_s = self._rng, self._layout.session_s
        duration_s = session_s + rng.uniform(3.0, 6.0)
        if kind == "second loss" or action == "drain":
            duration_s = rng.uniform(5.0, max(8.0, self._pause_s_max))
        targets = (OWNER, BOOKIE) if kind == "wipe" else (BOOKIE,)
        number = rng.getrandbits(32)
        return Step(action, kind, targets, duration_s, rest_s, overlaps=False, number=number)
