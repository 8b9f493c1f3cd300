"""What a bookie says of sequencers when it is asked: it pings them now and then, if they are few.

Three must be asked about a silent member, and small clusters have fewer sequencers than that. So a
bookie serves as a relay. It keeps asking by itself, because silence means something only from
somebody that was heard before: a way that was never open, or was cut long ago, says nothing about
who is at its end. In a large cluster it asks nobody, and is unsure of all.

Called by `runtime.members.witnessing`; `judge_ping` also by `gossip`.
Source: docs/protocol/members.md "Suspicion".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from duramen.core.members.messages import LATE_US, RELAY_TIMEOUT_US, RelayFinding
from duramen.units import SECOND

WITNESS_PERIOD_US: Final = 4 * SECOND
HEARD_LATELY_US: Final = 10 * SECOND
"""Two pings of a bookie, and one that was lost."""

WITNESSED_COUNT_MAX: Final = 8
"""Sequencers that a bookie pings; more of them have relays enough among themselves."""


def judge_ping(*, is_answered: bool, was_heard: bool, took_us: int) -> RelayFinding:
    """What a relay says of a ping.

    Args:
        was_heard: the member had answered or asked this relay lately, before the ping.
        took_us: by the relay's clock: much more than the time limit, and it slept meanwhile.
    """
    if is_answered:
        return RelayFinding.ANSWERED
    is_awake = took_us <= RELAY_TIMEOUT_US + LATE_US
    return RelayFinding.SILENT if is_awake and was_heard else RelayFinding.UNSURE


class Witness:
    """The sequencers as one bookie hears them."""

    def __init__(self) -> None:
        self._made: dict[str, int] = {}
        self._heard_us: dict[str, int] = {}

    def learn(self, nodes: Mapping[str, int]) -> None:
        """The roster now: name → registration; too many are none."""
        is_few = len(nodes) <= WITNESSED_COUNT_MAX
        made = dict(nodes) if is_few else {}
        self._heard_us = {
            name: at for name, at in self._heard_us.items() if made.get(name) == self._made[name]
        }
        self._made = made

    @property
    def names(self) -> tuple[str, ...]:
        """Whom to ping in each period."""
        return tuple(sorted(self._made))

    def note_heard(self, name: str, now_us: int) -> None:
        """A sequencer answered."""
        if name in self._made:
            self._heard_us[name] = now_us

    def was_heard(self, name: str, before_us: int) -> bool:
        """Whether it had answered lately at that moment."""
        heard_us = self._heard_us.get(name)
        return heard_us is not None and before_us - heard_us < HEARD_LATELY_US
