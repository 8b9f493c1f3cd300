"""Processes that sleep longer than others remember them: part of `nemesis`.

Any process may: a sequencer, a bookie, a client, a reader, an archiver. It sleeps longer than a
session lives, and often longer than a log keeps what was truncated. When it wakes, everything that
came for it meanwhile is still to be done: answers to calls that nobody waits for any more, watches
that have fired, timers. What it held is another's by then, and what it was about to read is gone.

Called by `nemesis`. Documented in docs/testing.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from duramen.limits import ZOOKEEPER_SESSION_S
from duramen.units import SECOND
from duramen.wire.metadata_json import read_log
from tests.sim.metadata import Store
from tests.sim.world import Node, World

_SLEEPS_US: Final = (5 * SECOND, 25 * SECOND)
_SESSION_US: Final = int(ZOOKEEPER_SESSION_S * SECOND)

KINDS: Final = {"s": "sequencer", "b": "bookie", "c": "client", "r": "reader"}
"""By the first letter of a process's name."""


class LongSleeps:
    """Puts processes to sleep, one at a time.

    Args:
        nodes: whoever may sleep.
        log_paths: nodes of the logs.
    """

    def __init__(
        self, world: World, store: Store, nodes: Sequence[Node], log_paths: Sequence[str]
    ) -> None:
        self._world = world
        self._store = store
        self._nodes = nodes
        self._log_paths = log_paths
        self._asleep: tuple[Node, int] | None = None

    def begin(self) -> bool:
        """Somebody falls asleep; False: somebody sleeps already."""
        node = self._world.rng.choice(list(self._nodes))
        if self._asleep is not None or not node.is_up or node.is_paused:
            return False
        span_us = self._world.between(*_SLEEPS_US)
        self._asleep = node, node.life
        self._world.note("nemesis", "puts to sleep", node.name, span_us)
        node.pause()
        began_us, heads = self._world.now_us, self._find_heads()
        self._world.at(span_us, self._wake, node, node.life, began_us, heads)
        return True

    def stop(self) -> None:
        """Everybody wakes."""
        if self._asleep is not None:
            node, life = self._asleep
            self._asleep = None
            if node.life == life and node.is_paused:
                node.resume()

    def _wake(self, node: Node, life: int, began_us: int, heads: Sequence[int]) -> None:
        if self._asleep != (node, life):
            return
        self._asleep = None
        if node.life != life or not node.is_paused:
            return  # another fault ended it, or woke it
        counts, kind = self._world.counts, KINDS.get(node.name[0], "archiver")
        is_beyond = self._world.now_us - began_us > _SESSION_US
        counts[f"asleep beyond a session: {kind}"] += is_beyond
        counts["asleep beyond retention"] += self._find_heads() != heads
        node.resume()

    def _find_heads(self) -> list[int]:
        """The oldest epoch of each log that is still kept."""
        heads = []
        for path in self._log_paths:
            stored = self._store.find(path)
            assert stored is not None
            heads.append(int(read_log(stored.data).first_live_epoch))
        return heads
