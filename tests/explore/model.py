"""The world: which steps are possible in a state, what they lead to, and what must hold in each.

A state is a tuple of numbers: one local state per bookie and process, the store's, the messages
under way, what is left of each fault's budget, and the history that invariants need (what was
acknowledged, where a writer stood when its epoch was fenced). `steps_of` lists every step from a
state. A message that is never delivered is a lost one, so losing needs no step of its own; a
process that takes no step any more has crashed.

Not here: the search (`search.py`) and what a core decides (`machines.py`).
Source: docs/explorer.md, docs/protocol/write.md "Roll", docs/protocol/recovery.md, docs/testing.md
"Invariants".
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, TypeVar

from duramen.core.sequencer.effects import LogView
from duramen.core.status import BookieStatus
from duramen.ids import NOTHING
from tests.explore.invariants import judge_chain, judge_segment
from tests.explore.machines import (
    NUMBER_UNKNOWN,
    ProcessFacts,
    RecoveryMachine,
    SequencerMachine,
    WriterMachine,
)
from tests.explore.nodes import (
    AnyShape,
    BookieFacts,
    BookieMachine,
    StoreFacts,
    StoreMachine,
    View,
    WriteTable,
)
from tests.explore.state import Automaton, Event, Machine, Out, freeze

State = tuple[int, ...]
Message = tuple[Any, ...]
"""(destination, source, kind, …)."""

Step = tuple[Any, ...]
"""("deliver" | "duplicate" | "time out", message), ("persist" | "crash" | "start" | …, name)."""

_CALLS: Final = frozenset({"add", "wave", "seal", "read", "fetch", "digest", "lac"})
"""What bookies are asked; the answer has the same name with a `!`."""

_Value = TypeVar("_Value", bound=Hashable)


class Budget(NamedTuple):
    """How often each fault may happen on one path."""

    crashes: int = 0
    timeouts: int = 0
    """Calls of bookies whose caller gives up; request or answer stay under way."""
    unknowns: int = 0
    """Metadata calls whose caller gives up; a write may still be applied, or was."""
    duplicates: int = 0
    timers: int = 0
    torn_views: int = 0
    """Reads of metadata between whose nodes something else happens."""
    waves: int = 0
    """Timers of the writer alone: a wave is late, or LNG is told."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is explored.

    `sequencers`: whole LogSequencers, the first of which owns epoch 1 at the start, instead of one
    writer and `recoverers` recoveries.
    """

    name: str
    shape: AnyShape
    budget: Budget = Budget()
    recoverers: int = 1
    sequencers: int = 0
    bookie: Callable[..., Machine] = BookieMachine
    writer: type[WriterMachine] = WriterMachine
    recovery: type[RecoveryMachine] = RecoveryMachine
    sequencer: type[SequencerMachine] = SequencerMachine
    is_reduced: bool = False
    """Leave out orders of steps that show nothing else, where a wave writer is late at most."""
    fence: str = "pushed"
    """How F1 is judged: acknowledgements of what was "pushed" after the cover, by the word
    ("literal": any after the cover), or "unjudged", to see what a broken fence leads to."""

    def __post_init__(self) -> None:
        others = (*self.budget._replace(waves=0), self.sequencers, self.shape.early_append)
        assert not self.is_reduced or not any(others), "an order that is left out may matter"


class History(NamedTuple):
    """What happened, as far as invariants ask."""

    acks: tuple[tuple[int, int, int, int], ...] = ()
    """(epoch, entry, checksum, sequence number), ascending."""
    limits: tuple[tuple[int, int], ...] = ()
    """Epoch, and the last entry pushed when its seal was covered first."""
    bounds: tuple[tuple[int, int], ...] = ()
    """Epoch, and the last entry pushed when a newer epoch first acknowledged before its close."""


class _Table(Generic[_Value]):
    """Values and their numbers."""

    def __init__(self) -> None:
        self.values: list[_Value] = []
        self._numbers: dict[_Value, int] = {}

    def number(self, value: _Value) -> int:
        """The number of a value; a new one if it was never seen."""
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self.values)
            self.values.append(value)
        return number


@dataclass(frozen=True, slots=True)
class Found:
    """One step: what was done, where it leads, and what is wrong with that ("" if nothing)."""

    step: Step
    state: State
    fault: str
    outs: tuple[Out, ...] = field(default=())


class World:
    """All states of a scenario, made as they are asked for."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        shape = scenario.shape
        writes = WriteTable()
        self.bookie = Automaton(lambda: scenario.bookie(is_synced=scenario.is_reduced))
        count = scenario.sequencers
        self.store = Automaton(lambda: StoreMachine(shape, writes, is_fresh=count > 0))
        self.processes: dict[str, Automaton] = {}

        def add(name: str, kind: Callable[[str, AnyShape, WriteTable], Machine]) -> None:
            self.processes[name] = Automaton(lambda: kind(name, shape, writes))

        if count:
            for index in range(count):
                add(f"s{index}", scenario.sequencer)
        else:
            add("w", scenario.writer)
            for index in range(scenario.recoverers):
                add(f"r{index}", scenario.recovery)
        self._messages: _Table[Message] = _Table()
        self._networks: _Table[tuple[int, ...]] = _Table()
        self._budgets: _Table[Budget] = _Table()
        self._histories: _Table[History] = _Table()
        self._destinations: list[int] = []
        self._sources: list[int] = []
        """Where in a state those of each message are."""
        self._eager: dict[tuple[int, int], bool] = {}
        self._stale: dict[tuple[int, int, int, bool], bool] = {}
        self._judged: dict[State, str] = {}
        self._shown: dict[State, Hashable] = {}
        names = [*(m.bookie for m in shape.members), *self.processes]
        self.at = {name: index for index, name in enumerate(names)}
        self._names = [*names, "store"]
        bookies = [self.bookie] * shape.bookie_count
        self._automata = [*bookies, *self.processes.values(), self.store]
        self._bookie_count = shape.bookie_count
        self._store_at = len(names)
        self._network_at, self._budget_at, self._history_at = (len(names) + k for k in (1, 2, 3))

    # --- beginning -------------------------------------------------------------------------------

    def begin(self) -> State:
        """The first state; with sequencers, after the first one has opened epoch 1."""
        parts = [self._networks.number(()), self._budgets.number(self.scenario.budget)]
        state = (*(0 for _ in self.at), 0, *parts, self._histories.number(History()))
        if not self.scenario.sequencers:
            return state
        state = self._follow(state, "start")
        while self._networks.values[state[self._network_at]]:
            to_store = [f for f in self.steps_of(state) if f.step[0] == "deliver"]
            metadata = [f for f in to_store if "store" in f.step[1][:2]]
            if not metadata:
                break
            state = metadata[0].state
        return state

    def _follow(self, state: State, kind: str) -> State:
        return next(found.state for found in self.steps_of(state) if found.step[0] == kind)

    def show(self, state: State) -> Hashable:
        """All that is judged of a state, and seals, by their value."""
        key = self._find_judged(state)
        if key not in self._shown:
            self._shown[key] = self._show(state)
        return self._shown[key]

    def _show(self, state: State) -> Hashable:
        bookies: list[BookieFacts] = [self.bookie.facts[n] for n in state[: self._bookie_count]]
        disks = []
        for one in bookies:
            told = [(epoch, lac) for epoch, lac in one.lacs.items() if lac > NOTHING]
            disks.append((one.sealed, tuple(sorted(one.entries.items())), tuple(told)))
        store: StoreFacts = self.store.facts[state[self._store_at]]
        history = self._histories.values[state[self._history_at]]
        return (*disks, freeze(store.segments), freeze(store.log), history)

    # --- steps -----------------------------------------------------------------------------------

    def steps_of(self, state: State) -> Iterator[Found]:
        """Every step that is possible in a state and changes something.

        A delivery that changes nothing and causes nothing only takes the message away. What can
        happen without it can also happen while it stays under way for ever, so no behaviour is
        lost by leaving that step out; the same holds for messages to a process that is over. In a
        reduced world a message whose delivery commutes with all else is the only step.
        """
        network = self._networks.values[state[self._network_at]]
        budget = self._budgets.values[state[self._budget_at]]
        if self.scenario.is_reduced:
            index = self._find_eager(state, network)
            if index is not None:
                rest = network[:index] + network[index + 1 :]
                message = self._messages.values[network[index]]
                yield from self._deliver(state, message, rest, "deliver", budget)
                return
        yield from self._steps_of_network(state, network, budget)
        for at in range(self._bookie_count):
            if self.bookie.facts[state[at]].can_persist:
                yield from self._local(state, at, ("persist",), budget)
                if budget.crashes:
                    less = budget._replace(crashes=budget.crashes - 1)
                    yield from self._local(state, at, ("crash",), less)
        for name, automaton in self.processes.items():
            facts: ProcessFacts = automaton.facts[state[self.at[name]]]
            if facts.has_timer and budget.timers:
                less = budget._replace(timers=budget.timers - 1)
                yield from self._local(state, self.at[name], ("timer",), less)
            if facts.has_timer and budget.waves and name == "w":
                less = budget._replace(waves=budget.waves - 1)
                yield from self._local(state, self.at[name], ("timer",), less)
            yield from self._start(state, name, facts, budget)

    def _steps_of_network(
        self, state: State, network: tuple[int, ...], budget: Budget
    ) -> Iterator[Found]:
        before = -1
        for index, number in enumerate(network):
            if number == before:
                continue
            before = number
            message = self._messages.values[number]
            rest = network[:index] + network[index + 1 :]
            yield from self._deliver(state, message, rest, "deliver", budget)
            if budget.duplicates and message[2] != "commit":
                less = budget._replace(duplicates=budget.duplicates - 1)
                yield from self._deliver(state, message, network, "duplicate", less)
            if budget.timeouts or budget.unknowns:
                yield from self._give_up(state, message, network, budget)

    # --- reduction -------------------------------------------------------------------------------

    def _find_eager(self, state: State, network: tuple[int, ...]) -> int | None:
        """A message whose delivery commutes with all that can happen before it, if there is one."""
        for index, number in enumerate(network):
            key = (number, state[self._destinations[number]])
            is_eager = self._eager.get(key)
            if is_eager is None:
                is_eager = self._eager[key] = self._is_eager(state, self._messages.values[number])
            if is_eager:
                return index
        return None

    def _is_eager(self, state: State, message: Message) -> bool:
        destination, source, kind, *rest = message
        if destination == "store":
            return kind == "commit" and self._is_void(state, source, rest)
        facts = self._automata[self.at[destination]].facts[state[self.at[destination]]]
        if destination in self.processes:
            return kind in facts.eager
        return self._is_saturated(facts)

    def _is_void(self, state: State, source: str, rest: list[Any]) -> bool:
        """A change of a version that is no more."""
        ((number, outs),) = self.store.step(state[self._store_at], (source, "commit", *rest))
        return number == state[self._store_at] and outs[0][-1] == "conflict"

    def _is_saturated(self, facts: BookieFacts) -> bool:
        """Sealed, with every entry that there can be: what it answers is the same for ever."""
        entries = range(self.scenario.shape.entry_count)
        return facts.sealed >= 1 and all((1, entry) in facts.entries for entry in entries)

    def _drop_stale(self, changed: list[int], network: list[int], budget: Budget) -> list[int]:
        """Messages without those that change nothing any more, nor what is answered to them."""
        has_timers = bool(budget.timers or budget.waves)
        left = []
        for number in network:
            here, there = changed[self._destinations[number]], changed[self._sources[number]]
            key = (number, here, there, has_timers)
            is_stale = self._stale.get(key)
            if is_stale is None:
                message = self._messages.values[number]
                is_stale = self._stale[key] = self._is_stale(changed, message, has_timers)
            if not is_stale:
                left.append(number)
        return left

    def _is_stale(self, changed: list[int], message: Message, has_timers: bool) -> bool:
        destination, source, kind, *rest = message
        if destination in self.processes:
            return self._is_deaf(changed, destination, kind, has_timers)
        if destination == "store" or not self._is_deaf(changed, source, f"{kind}!", has_timers):
            return False
        facts: BookieFacts = self.bookie.facts[changed[self.at[destination]]]
        if kind == "wave" and rest[-1]:
            return self._is_saturated(facts)
        return facts.sealed >= 1

    def _is_deaf(self, changed: list[int], name: str, kind: str, has_timers: bool) -> bool:
        facts: ProcessFacts = self.processes[name].facts[changed[self.at[name]]]
        is_quiet = facts.is_quiet and not has_timers
        return facts.is_over or is_quiet or kind in facts.stale

    # --- steps of one process --------------------------------------------------------------------

    def _start(
        self, state: State, name: str, facts: ProcessFacts, budget: Budget
    ) -> Iterator[Found]:
        """A push of the writer, the start of a recoverer, an append or takeover of a sequencer."""
        is_first = name in {"w", "s0"}
        count = self.scenario.shape.entry_count if is_first else 1
        if facts.is_over or facts.started >= count:
            return
        event: Event = ("start",)
        if name.startswith("r"):
            if name > "r0" and not self._is_started(state, f"r{int(name[1:]) - 1}"):
                return  # recoverers are alike
            store: StoreFacts = self.store.facts[state[self._store_at]]
            if store.log.last_clean_epoch:
                return
            event = ("start", self._view(state[self._store_at], state[self._store_at]))
        yield from self._local(state, self.at[name], event, budget)

    def _deliver(
        self, state: State, message: Message, rest: tuple[int, ...], kind: str, budget: Budget
    ) -> Iterator[Found]:
        destination, *event = message
        step = (kind, message)
        if destination == "store":
            yield from self._at_store(state, message, rest, step, budget)
        elif not self._is_over(state, destination):
            yield from self._apply(
                state, self.at[destination], tuple(event), step, rest=rest, budget=budget
            )

    def _at_store(
        self, state: State, message: Message, rest: tuple[int, ...], step: Step, budget: Budget
    ) -> Iterator[Found]:
        match message:
            case (_, _, "commit", _, _):
                yield from self._apply(
                    state, self._store_at, message[1:], step, rest=rest, budget=budget
                )
            case (_, source, "view", token):
                here = state[self._store_at]
                answer = (source, "store", "view!", token, self._view(here, here))
                yield self._send(state, rest, answer, budget, step)
                if budget.torn_views:
                    less = budget._replace(torn_views=budget.torn_views - 1)
                    half = ("store", source, "segments", token, here)
                    yield self._send(state, rest, half, less, ("read log node", message))
            case (_, source, "segments", token, there):
                view = self._view(there, state[self._store_at])
                yield self._send(state, rest, (source, "store", "view!", token, view), budget, step)

    def _send(
        self, state: State, rest: tuple[int, ...], message: Message, budget: Budget, step: Step
    ) -> Found:
        changed = list(state)
        network = tuple(sorted((*rest, self._number_message(message))))
        changed[self._network_at] = self._networks.number(network)
        changed[self._budget_at] = self._budgets.number(budget)
        return Found(step, tuple(changed), "")

    def _view(self, log_state: int, node_state: int) -> View:
        """The log node as it was in one state of the store, what it names as in a later one."""
        first: StoreFacts = self.store.facts[log_state]
        nodes: StoreFacts = self.store.facts[node_state]
        segments = tuple(nodes.segments[epoch] for epoch in first.log.unclosed_epochs)
        view = LogView(first.log, first.log_version, segments, nodes.owner)
        return View(log_state, node_state, view)

    def _give_up(
        self, state: State, message: Message, network: tuple[int, ...], budget: Budget
    ) -> Iterator[Found]:
        """The caller stops waiting, whether the request or its answer is under way; that stays.

        A call that waits inside a bookie needs no such step: the caller's giving up commutes with
        the bookie's taking the request.
        """
        match message:
            case ("store", source, "commit" | "view" as kind, token, *_):
                event: Event = ("store", f"{kind}!", token, "unknown" if kind == "commit" else None)
            case (source, "store", "commit!", token, _):
                event = ("store", "commit!", token, "unknown")
            case (bookie, source, str(kind), epoch, *rest) if kind in _CALLS:
                event = _silence(bookie, kind, epoch, rest)
            case (source, bookie, str(kind), epoch, *rest) if kind[:-1] in _CALLS:
                event = _silence(bookie, kind[:-1], epoch, rest)
            case _:
                return
        if event[0] == "store":
            less = budget._replace(unknowns=budget.unknowns - 1)
        else:
            less = budget._replace(timeouts=budget.timeouts - 1)
        if min(less) >= 0 and not self._is_over(state, source):
            yield from self._apply(
                state, self.at[source], event, ("time out", message), rest=network, budget=less
            )

    def _is_started(self, state: State, name: str) -> bool:
        facts: ProcessFacts = self.processes[name].facts[state[self.at[name]]]
        return facts.started > 0

    def _is_over(self, state: State, name: str) -> bool:
        return name in self.processes and self.processes[name].facts[state[self.at[name]]].is_over

    def _local(self, state: State, at: int, event: Event, budget: Budget) -> Iterator[Found]:
        network = self._networks.values[state[self._network_at]]
        step = (event[0], self._names[at])
        yield from self._apply(state, at, event, step, rest=network, budget=budget)

    def _apply(
        self,
        state: State,
        at: int,
        event: Event,
        step: Step,
        *,
        rest: tuple[int, ...],
        budget: Budget,
    ) -> Iterator[Found]:
        """Let one automaton take an event; all outcomes that change something."""
        name, automaton = self._names[at], self._automata[at]
        for number, outs in automaton.step(state[at], event):
            if number == state[at] and not outs:
                continue
            changed = list(state)
            changed[at] = number
            network = list(rest)
            network += [
                self._number_message((out[1], name, *out[2:])) for out in outs if out[0] == "send"
            ]
            if self.scenario.is_reduced:
                network = self._drop_stale(changed, network, budget)
            network.sort()
            changed[self._network_at] = self._networks.number(tuple(network))
            changed[self._budget_at] = self._budgets.number(budget)
            fault = self._record(changed, name, outs)
            after = tuple(changed)
            yield Found(step, after, fault or self.judge(after), outs)

    def _number_message(self, message: Message) -> int:
        number = self._messages.number(message)
        if number == len(self._destinations):
            self._destinations.append(self.at.get(message[0], self._store_at))
            self._sources.append(self.at.get(message[1], self._store_at))
        return number

    # --- invariants ------------------------------------------------------------------------------

    def _record(self, changed: list[int], name: str, outs: tuple[Out, ...]) -> str:
        """Write acknowledgements and fences into the history; what is wrong with them."""
        fault = ""
        history = self._histories.values[changed[self._history_at]]
        for out in outs:
            match out:
                case ("broken", text):
                    return f"a core's own invariant is broken: {text}"
                case ("covered", epoch) if epoch not in dict(history.limits):
                    limit = (epoch, self._last_pushed(changed, epoch))
                    history = history._replace(limits=(*history.limits, limit))
                case ("ack", *values):
                    ack = (values[0], values[1], values[2], values[3])
                    fault = fault or self._judge_ack(changed, history, name, ack)
                    history = self._note_bounds(changed, history, ack)
                    acks = {*history.acks, ack}
                    history = history._replace(acks=tuple(sorted(acks)))
        changed[self._history_at] = self._histories.number(history)
        return fault

    def _note_bounds(
        self, changed: list[int], history: History, ack: tuple[int, int, int, int]
    ) -> History:
        store: StoreFacts = self.store.facts[changed[self._store_at]]
        older = range(store.log.last_clean_epoch + 1, ack[0])
        new = [e for e in older if e not in dict(history.bounds)]
        bounds = [(epoch, self._last_pushed(changed, epoch)) for epoch in new]
        return history._replace(bounds=tuple(sorted((*history.bounds, *bounds))))

    def _last_pushed(self, changed: list[int], epoch: int) -> int:
        facts = (self.processes[name].facts[changed[self.at[name]]] for name in self.processes)
        return max((lap for f in facts for at, lap in f.laps if at == epoch), default=NOTHING)

    def _judge_ack(
        self,
        changed: list[int],
        history: History,
        name: str,
        ack: tuple[int, int, int, int],
    ) -> str:
        epoch, entry, crc, seq_num = ack
        store: StoreFacts = self.store.facts[changed[self._store_at]]
        what = f"{name} acknowledged e{epoch}n{entry}"
        limit = dict(history.limits).get(epoch)
        is_late = limit is not None and (entry > limit or self.scenario.fence == "literal")
        if is_late and self.scenario.fence != "unjudged":
            pushed = "which was pushed " if self.scenario.fence == "pushed" else ""
            return f"F1: {what}, {pushed}after the seal of e{epoch} was covered"
        if seq_num == NUMBER_UNKNOWN:
            older = range(store.log.last_clean_epoch + 1, epoch)
            bare = next((at for at in older if at not in dict(history.limits)), None)
            return "" if bare is None else f"E1: {what} before e{bare} was sealed"
        if store.log.last_clean_epoch < epoch - 1:
            return f"E1: {what} before e{epoch - 1} was closed"
        expected = entry + sum(
            segment.totals.record_count
            for at, (segment, _) in store.segments.items()
            if at < epoch and segment.totals is not None
        )
        if seq_num != expected:
            return f"G1: {what} as number {seq_num}, not {expected}"
        if any(old[:2] == (epoch, entry) and old[2] != crc for old in history.acks):
            return f"O1: {what} twice, differently"
        return ""

    def judge(self, state: State) -> str:
        """What is wrong in a state; "" if nothing. Looks at disks, nodes and history only."""
        key = self._find_judged(state)
        found = self._judged.get(key)
        if found is None:
            found = self._judged[key] = self._judge(state)
        return found

    def _find_judged(self, state: State) -> State:
        """The part of a state that is looked at."""
        return (*state[: self._bookie_count], state[self._store_at], state[self._history_at])

    def _judge(self, state: State) -> str:
        bookies: list[BookieFacts] = [self.bookie.facts[n] for n in state[: self._bookie_count]]
        store: StoreFacts = self.store.facts[state[self._store_at]]
        history = self._histories.values[state[self._history_at]]
        for epoch, (segment, _) in store.segments.items():
            acked = {entry: crc for e, entry, crc, _ in history.acks if e == epoch}
            fault = judge_segment(segment, acked, bookies)
            bound = dict(history.bounds).get(epoch)
            end = segment.last_entry
            if not fault and bound is not None and end is not None and end > bound:
                fault = f"O2: ends at {end}, and {bound} was last when a newer epoch acknowledged"
            if fault:
                return f"{fault} (epoch {epoch})"
        return judge_chain(store)

    # --- words -----------------------------------------------------------------------------------

    def format(self, found: Found) -> list[str]:
        """A step in words, then what it caused."""
        kind, what = found.step
        lines = [f"{kind:9} {_format_message(what) if isinstance(what, tuple) else what}"]
        for out in found.outs:
            if out[0] == "ack":
                lines.append(f"          → acknowledges e{out[1]}n{out[2]} as number {out[4]}")
            elif out[0] == "covered":
                lines.append(f"          → the seal of e{out[1]} is covered")
        return lines

    def count_local(self) -> str:
        """Local states and core runs, for reports."""
        parts = {"bookie": self.bookie, "store": self.store, **self.processes}
        return ", ".join(f"{k} {len(a)} states {a.step_count} runs" for k, a in parts.items())


_NAMES: Final = {
    "add": "epoch entry lac checksum recovery", "add!": "epoch entry status",
    "wave": "epoch entry lac checksum recovery", "wave!": "epoch entry status",
    "seal": "epoch", "seal!": "epoch status lac highest",
    "digest": "epoch first last", "digest!": "epoch status entries",
    "lac": "epoch lac", "lac!": "epoch status lac highest",
    "read": "epoch entry seal", "read!": "epoch entry status checksum",
    "fetch": "epoch entry seal", "fetch!": "epoch entry status checksum",
}  # fmt: skip


def _silence(bookie: str, kind: str, epoch: int, rest: list[Any]) -> Event:
    """The event that tells a caller that a bookie did not answer in time."""
    status = int(BookieStatus.TIMEOUT)
    match kind:
        case "add" | "wave":
            return bookie, f"{kind}!", epoch, rest[0], status
        case "read" | "fetch":
            return bookie, f"{kind}!", epoch, rest[0], status, -1
        case "digest":
            return bookie, "digest!", epoch, status, ()
        case _:
            return bookie, f"{kind}!", epoch, status, NOTHING, NOTHING


def _format_message(message: Message) -> str:
    destination, source, kind, *rest = message
    names = _NAMES.get(kind, "token what")
    values = [
        BookieStatus(value).name if name == "status" else value
        for name, value in zip(names.split(), rest, strict=False)
    ]
    told = ", ".join(f"{n} {v}" for n, v in zip(names.split(), values, strict=False))
    return f"{source} → {destination}: {kind} ({told})"
