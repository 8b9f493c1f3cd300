"""Probes of members: ping, ping through others, suspect, confirm; each by this process's own look.

A probe goes through its stages by `look`, which is called each 25 ms: whatever is due by the clock
is done there, and nothing by a failed call. A look that comes late was slept through; then every
probe is dropped, and for a while nothing is suspected, because what was missed is one's own
silence. Any message of the member ends its probe.

Called by `gossip`. Source: docs/protocol/members.md "Ping" and "Suspicion".
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

from duramen.core.members.messages import (
    ASK_TIMEOUT_US,
    CONFIRM_AFTER_US,
    LATE_US,
    LIFE_SIGN_US,
    PERIOD_US,
    PING_COUNT,
    PING_TIMEOUT_US,
    RELAY_COUNT,
    RELAY_TIMEOUT_US,
    SILENT_COUNT,
    MemberState,
    RelayFinding,
    Send,
    Word,
)
from duramen.core.members.table import MemberTable


class _Probe:
    """One member that is being looked at."""

    __slots__ = ("asked_us", "begun_us", "findings", "number", "suspicion", "target")

    def __init__(self, target: str, number: int, now_us: int) -> None:
        self.target = target
        self.number = number
        self.begun_us = now_us
        self.asked_us: int | None = None
        self.findings: dict[str, RelayFinding | None] = {}
        """What each relay said; None: nothing yet."""
        self.suspicion: tuple[Word, int] | None = None
        """The word with which it was suspected here, and when."""


class MemberProbes:
    """The probes of one process.

    Args:
        tell: passes a word on.
    """

    def __init__(
        self, table: MemberTable, rng: random.Random, tell: Callable[[Word], None]
    ) -> None:
        self._table = table
        self._rng = rng
        self._tell = tell
        self._open: dict[str, _Probe] = {}
        self._numbers = itertools.count(1)
        self._turns: list[str] = []
        self._next_period_us: int | None = None
        self._last_look_us: int | None = None
        self._quiet_until_us: int | None = None
        self.counts = dict.fromkeys(
            ("pings", "unanswered", "suspected", "confirmed", "late_looks"), 0
        )

    def is_quiet(self, now_us: int) -> bool:
        """Whether this process slept a moment ago, or looks no more: it knows nothing."""
        if self._last_look_us is None or now_us - self._last_look_us > LATE_US:
            return True
        return self._quiet_until_us is not None and now_us < self._quiet_until_us

    def look(self, now_us: int) -> list[Send]:
        """Do what is due; what is to be sent for it."""
        if self._last_look_us is not None and now_us - self._last_look_us > LATE_US:
            self.counts["late_looks"] += 1
            self._open.clear()
            self._next_period_us = now_us
            self._quiet_until_us = now_us + LIFE_SIGN_US
        self._last_look_us = now_us
        sends: list[Send] = []
        for probe in list(self._open.values()):
            sends += self._go_on(probe, now_us)
        if self._next_period_us is None or now_us >= self._next_period_us:
            self._next_period_us = now_us + PERIOD_US
            sends += self._begin_period(now_us)
        return sends

    def on_finding(self, relay: str, target: str, number: int, finding: RelayFinding) -> None:
        """A relay said what came of its ping."""
        probe = self._open.get(target)
        if probe is None or probe.number != number or relay not in probe.findings:
            return
        probe.findings[relay] = finding
        if finding is RelayFinding.ANSWERED and probe.suspicion is None:
            del self._open[target]

    def _begin_period(self, now_us: int) -> list[Send]:
        names = self._table.names
        if len(self._turns) < PING_COUNT:
            anew = [name for name in names if name not in self._turns]
            self._rng.shuffle(anew)
            # Taken from the end: those that still have their turn come first.
            self._turns = anew + self._turns
        sends: list[Send] = []
        while self._turns and len(sends) < PING_COUNT:
            name = self._turns.pop()
            if self._table.word_of(name) is None or name in self._open:
                continue
            probe = self._open[name] = _Probe(name, next(self._numbers), now_us)
            sends.append(self._ping(probe))
        return sends

    def _ping(self, probe: _Probe) -> Send:
        self.counts["pings"] += 1
        return Send(probe.target, probe=probe.number)

    def _go_on(self, probe: _Probe, now_us: int) -> list[Send]:
        word = self._table.word_of(probe.target)
        if word is None or self._table.is_heard_since(probe.target, probe.begun_us):
            del self._open[probe.target]
            return []
        if probe.suspicion is not None:
            self._ripen(probe, word, *probe.suspicion, now_us)
        elif probe.asked_us is None:
            if now_us - probe.begun_us >= PING_TIMEOUT_US:
                self.counts["unanswered"] += 1
                return self._ask(probe, word, now_us)
        else:
            waited_us, is_all_told = now_us - probe.asked_us, None not in probe.findings.values()
            if waited_us >= (RELAY_TIMEOUT_US if is_all_told else ASK_TIMEOUT_US):
                self._judge(probe, word, now_us)
        return []

    def _ask(self, probe: _Probe, word: Word, now_us: int) -> list[Send]:
        fresh, others = self._table.relays(probe.target, now_us)
        self._rng.shuffle(fresh)
        self._rng.shuffle(others)
        helpers = list(self._table.helpers)
        self._rng.shuffle(helpers)
        relays = [*fresh, *helpers][:RELAY_COUNT]
        if len(relays) < SILENT_COUNT:
            relays += others[: RELAY_COUNT - len(relays)]
        # Of a confirmed one there is nothing more to find out but that it came back.
        is_known = word.state is MemberState.CONFIRMED
        if is_known or len(relays) < SILENT_COUNT or self.is_quiet(now_us):
            del self._open[probe.target]
            return []
        probe.asked_us = now_us
        probe.findings = dict.fromkeys(relays)
        asks = [Send(relay, probe.target, probe.number) for relay in relays]
        return [self._ping(probe), *asks]

    def _judge(self, probe: _Probe, word: Word, now_us: int) -> None:
        silent_count = sum(found is RelayFinding.SILENT for found in probe.findings.values())
        if silent_count < SILENT_COUNT or self.is_quiet(now_us):
            del self._open[probe.target]
            return
        suspicion = Word(probe.target, word.incarnation, MemberState.SUSPECTED)
        probe.suspicion = (suspicion, now_us)
        self.counts["suspected"] += 1
        self._tell(suspicion)

    def _ripen(self, probe: _Probe, word: Word, mine: Word, since_us: int, now_us: int) -> None:
        if word.incarnation == mine.incarnation and now_us - since_us < CONFIRM_AFTER_US:
            return
        del self._open[probe.target]
        if word.incarnation == mine.incarnation and not self.is_quiet(now_us):
            self.counts["confirmed"] += word.state is not MemberState.CONFIRMED
            self._tell(mine._replace(state=MemberState.CONFIRMED))
