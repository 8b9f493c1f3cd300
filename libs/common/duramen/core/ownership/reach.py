"""Which bookies this process reaches, as far as its own questions tell.

Each registered bookie is asked something cheap every `PROBE_US`; any answer counts. A bookie that
was not heard for `SILENT_US` is *unreached*. It stays so until it has answered every question for
as long again: a link that flaps counts as cut. A process that has just begun reaches a bookie only
after that bookie's first answer; a bookie that joins later counts as reached from the start.

Not here: who asks (`duramen_sequencer.ownership.reaching`, the simulator), and what others make of
it (`relief`). Source: docs/protocol/ownership.md "Cut off from bookies", ADR 0023.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from duramen.ids import BookieId
from duramen.units import SECOND

PROBE_US: Final = 2 * SECOND
"""Also how long an answer is waited for: questions to one bookie never overlap."""

SILENT_US: Final = 2 * PROBE_US
"""Two questions in a row without an answer: one may be lost by a connection that breaks."""


@dataclass(slots=True)
class _Link:
    is_reached: bool
    heard_us: int
    failed_us: int | None = None
    """Of the last question without an answer; None: none since the bookie is known."""


class Reach:
    """The links of one process."""

    def __init__(self) -> None:
        self._links: dict[BookieId, _Link] = {}
        self._has_begun = False

    @property
    def unreached(self) -> tuple[BookieId, ...]:
        """The bookies that are not reached, by id."""
        return tuple(sorted(name for name, link in self._links.items() if not link.is_reached))

    def learn(self, bookies: Iterable[BookieId], now_us: int) -> None:
        """These are registered now; the others are forgotten."""
        names = sorted(bookies)
        self._links = {
            name: self._links.get(name) or _Link(is_reached=self._has_begun, heard_us=now_us)
            for name in names
        }
        self._has_begun = self._has_begun or bool(names)

    def on_answer(self, bookie: BookieId, *, is_heard: bool, now_us: int) -> None:
        """A question was answered, or not in time."""
        link = self._links.get(bookie)
        if link is None:
            return
        if is_heard:
            link.heard_us = now_us
            is_steady = link.failed_us is None or now_us - link.failed_us >= SILENT_US
            link.is_reached = link.is_reached or is_steady
            return
        link.failed_us = now_us
        if now_us - link.heard_us >= SILENT_US:
            link.is_reached = False

    def __repr__(self) -> str:
        return f"<reach of {len(self._links)}, not {list(self.unreached)}>"
