"""Local automata out of production cores: canonical keys, replay of events, scripted choices.

A step of the world touches one process and the network. So each process is explored as an
automaton of its own: (local state, event) → outcomes is computed by running the production core
once, and looked up ever after; a world's state is a short tuple of numbers. A core is never copied:
it is made anew and fed the events that led to the state (they are few).

`freeze` decides when two cores are in the same state. It walks all fields, so that a field somebody
adds counts by itself; what it leaves out or orders is argued at the line. Called by `machines.py`
and `model.py`. Source: docs/explorer.md.
"""

from __future__ import annotations

import enum
import random
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final, Protocol

from duramen.core.flexible.nodeset import NodesetRow
from duramen.core.flexible.segment import AnySegment, FlexibleSegment
from duramen.core.log_node import LogNode
from duramen.core.segment import Segment, Totals
from duramen.core.sequencer.append_pipeline import AppendPipeline
from duramen.core.sequencer.epoch.open_epoch import OpenEpoch
from duramen.core.sequencer.epoch.segment_end import SegmentEnd
from duramen.core.sequencer.epoch.stall_watch import StallWatch
from duramen.core.sequencer.roll_policy import RollPolicy
from duramen.core.sequencer.takeover.takeover import Takeover
from duramen.ids import Member

Event = tuple[Any, ...]
"""Hashable: a kind and plain values."""

Out = tuple[Any, ...]
"""What a process does in a step: ("send", message), ("ack", …), ("covered", …), ("broken", …)."""

_TIMES: Final = frozenset({
    "probe_at_us", "retry_at_us", "_retry_at_us", "due_us", "_record_again_at_us", "again_at_us",
    "_owed_end_us", "_drain_end_us", "_mode_due_us", "late_us", "_retry_us",
})  # fmt: skip
"""Instants: only their distance from now can decide anything, and what is past is just due."""

_LEFT_OUT: Final = frozenset({
    "_ports", "_put", "_rule", "_context", "_unix_ms", "outbox", "config",
    "change_count", "roll_count", "takeover_count", "recovered_count",
    "recovery_count", "loss_count", "stall_count", "fence_reason", "reason", "_reason",
    "_refusal", "log_id", "_arrivals_us", "_nodes", "_selector", "_listed", "_tally", "_suffices",
    "incomplete_since_us",
})  # fmt: skip
"""Constants of a world, and counters and sentences that only people read; arrivals, since every
batch is due at once where logs flush immediately, as here. Of a wave writer the nodeset and what
the lists say of it, which stay; the selector, whose plans can be made anew and which has no sticky
blocks here; since when entries are incomplete, by which owners alone judge."""

_BORROWED: Final[Mapping[type, tuple[str, ...]]] = {
    Takeover: ("_carried", "_changes", "_intent", "_older", "_stalled"),
    OpenEpoch: ("_changes", "_intent", "_pipeline"),
    SegmentEnd: ("_writer",),
    StallWatch: ("_writer",),
}
"""What a part is lent: it belongs to the log, or the open epoch, and is in the picture there."""


class ScriptedRandom(random.Random):
    """Randomness of a core under exploration: each draw that decides something is a choice.

    `script` holds the choices of the present event; past its end the first alternative is taken and
    `asked` shows how many there were. Orders are kept as they are: the bookies that placement
    shuffles are alike.
    """

    def __init__(self) -> None:
        super().__init__(0)
        self.drawn_count = 0
        self.begin(())

    def begin(self, script: tuple[int, ...]) -> None:
        """A new event with these choices."""
        self.script = script
        self.asked: list[int] = []

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        """A choice among `start` alternatives."""
        assert stop is None and step == 1
        if start == 1:
            return 0
        self.asked.append(start)
        at = len(self.asked) - 1
        return self.script[at] if at < len(self.script) else 0

    def shuffle(self, x: Any) -> None:
        """Leave the order."""

    def random(self) -> float:
        """Always the same: which of several bookies that are alike a copyset has says nothing."""
        return 0.25

    def uniform(self, a: float, b: float) -> float:
        """The middle."""
        return (a + b) / 2

    def getrandbits(self, k: int) -> int:
        """Never the same number twice: nonces come from here."""
        self.drawn_count += 1
        return self.drawn_count


class Machine(Protocol):
    """A process whose decisions are a production core's."""

    rng: ScriptedRandom

    def handle(self, event: Event) -> list[Out]:
        """Take one event; everything that it causes, in order."""

    def key(self) -> Hashable:
        """Equal for states that cannot be told apart by any future event."""

    def facts(self) -> Any:
        """What invariants and the choice of steps need to know of the state."""


class Automaton:
    """The reachable local states of one kind of process, numbered as they are found."""

    def __init__(self, make: Callable[[], Machine]) -> None:
        self._make = make
        self.numbers: dict[Hashable, int] = {}
        self._origins: list[tuple[int, Event, tuple[int, ...]] | None] = []
        self._steps: dict[tuple[int, Event], tuple[tuple[int, tuple[Out, ...]], ...]] = {}
        self.facts: list[Any] = []
        self._intern(make(), None)

    def __len__(self) -> int:
        return len(self.facts)

    @property
    def step_count(self) -> int:
        """Different (state, event) pairs that a production core was run for."""
        return len(self._steps)

    def step(self, number: int, event: Event) -> tuple[tuple[int, tuple[Out, ...]], ...]:
        """Every outcome of an event: more than one where the core makes a choice."""
        found = self._steps.get((number, event))
        if found is None:
            found = self._steps[number, event] = self._run(number, event)
        return found

    def _run(self, number: int, event: Event) -> tuple[tuple[int, tuple[Out, ...]], ...]:
        outcomes: dict[tuple[int, tuple[Out, ...]], None] = {}
        scripts: list[tuple[int, ...]] = [()]
        while scripts:
            script = scripts.pop()
            machine = self.revive(number)
            machine.rng.begin(script)
            try:
                outs = tuple(machine.handle(event))
            except AssertionError as error:
                outcomes[number, (("broken", f"{type(machine).__name__}: {error}"),)] = None
                continue
            outcomes[self._intern(machine, (number, event, script)), outs] = None
            asked = machine.rng.asked
            for at in range(len(script), len(asked)):
                zeros = (0,) * (at - len(script))
                scripts += [(*script, *zeros, other) for other in range(1, asked[at])]
        return tuple(outcomes)

    def list_steps(self) -> list[tuple[int, Event, tuple[tuple[int, tuple[Out, ...]], ...]]]:
        """Every step that was computed: state, event, outcomes."""
        return [(number, event, found) for (number, event), found in self._steps.items()]

    def revive(self, number: int) -> Machine:
        """A machine in this state, by playing what led there."""
        origin = self._origins[number]
        past = []
        while origin is not None:
            past.append(origin)
            origin = self._origins[origin[0]]
        machine = self._make()
        for _, event, script in reversed(past):
            machine.rng.begin(script)
            machine.handle(event)
        return machine

    def _intern(self, machine: Machine, origin: tuple[int, Event, tuple[int, ...]] | None) -> int:
        key = machine.key()
        number = self.numbers.get(key)
        if number is None:
            number = self.numbers[key] = len(self.facts)
            self._origins.append(origin)
            self.facts.append(machine.facts())
        return number


def freeze(value: Any, now_us: int = 0) -> Hashable:
    """A hashable picture of a value: equal pictures, equal behaviour."""
    match value:
        case None | bool() | int() | str() | bytes() | float():
            return value
        case enum.Enum():
            return value.name
        case Member():
            return value.bookie
        case Segment() | FlexibleSegment() | NodesetRow() | LogNode():
            return _freeze_node(value)
        case Totals():
            return value.record_count
        case RollPolicy():
            return "roll"  # neither age nor size nor idleness ends a segment in these worlds
        case AppendPipeline():
            # No appends of producers here: nothing is judged, held or written for later owners. Of
            # the past only what decides whether it is read matters.
            past = value.carried
            known = (past._complete_through, past._table is None, past.rebuild is None)
            return freeze(value._transmit, now_us), *known, tuple(past._stateless)
        case tuple():
            return tuple([freeze(item, now_us) for item in value])
        case list() | deque():
            items = [freeze(item, now_us) for item in value]
            # Lists of members stand for sets: who holds, lacks or failed. Their order decides only
            # the order of sends within one step, which the network does not keep anyway.
            is_set = bool(value) and isinstance(value[0], Member)
            return tuple(sorted(items, key=repr) if is_set else items)
        case set() | frozenset():
            return tuple(sorted([freeze(item, now_us) for item in value], key=repr))
        case dict():
            pairs = [(freeze(k, now_us), freeze(v, now_us)) for k, v in value.items()]
            return tuple(sorted(pairs, key=repr))
    assert not callable(value), value
    borrowed = _BORROWED.get(type(value), ())
    own = {name: one for name, one in list_fields(value).items() if name not in borrowed}
    return type(value).__name__, *_freeze_fields(own, now_us)


def _freeze_node(value: AnySegment | NodesetRow | LogNode) -> Hashable:
    """What the metadata store keeps."""
    if isinstance(value, NodesetRow):
        return value.number, value.member.bookie
    if isinstance(value, LogNode):
        return value.next_epoch, value.last_clean_epoch, freeze(value.totals), value.nonce
    if isinstance(value, FlexibleSegment):
        counts = (value.own_count, value.guest_count, value.missing_record_count)
        placing: Hashable = (tuple(map(_freeze_node, value.nodes)), *counts)
    else:
        placing = tuple((f.first_entry, freeze(f.ensemble)) for f in value.fragments)
    end = (value.last_entry, value.holes, freeze(value.totals), value.start_seq_num)
    return (
        value.epoch, value.state.name, placing, end, value.bound, value.ack_mode, value.nonce,
    )  # fmt: skip


def list_fields(value: Any) -> Mapping[str, Any]:
    """Fields of an object, with or without slots."""
    if hasattr(value, "__dict__"):
        return dict(vars(value))
    names = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    return {name: getattr(value, name) for name in names}


def _freeze_fields(fields: Mapping[str, Any], now_us: int) -> list[Hashable]:
    frozen: list[Hashable] = []
    for name, value in fields.items():
        if name in _LEFT_OUT:
            continue
        if name in _TIMES and value is not None:
            frozen.append(max(value - now_us, 0))
        else:
            frozen.append(freeze(value, now_us))
    return frozen
