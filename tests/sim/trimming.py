"""An operator of the simulated cluster who truncates logs, to their tail or to a segment's start.

What runs is the sequencer's own operation (`duramen_sequencer.life.operations`), on the host
and the lanes of a simulated sequencer process. Whom the operator asks is chance, so most requests
are redirected or meet a takeover; the operator does not follow, and asks again later. Its chance is
its own, so that what else a seed draws does not depend on it.

Called by `run`; what it does is judged as T1. Documented in docs/testing.md.
"""

from __future__ import annotations

import random
from typing import Final

from duramen.errors import DuramenError
from duramen.ids import LogId
from duramen.runtime.metadata_log.entry_reads import open_segment_nodes
from duramen.runtime.stores.metadata_store import MetadataError
from duramen.units import SECOND
from duramen_sequencer.life.boundaries import Boundaries
from duramen_sequencer.life.operations import LifeOperations
from tests.sim.checkers import Checkers
from tests.sim.sequencers import SequencerNode
from tests.sim.world import World

_PAUSE_US: Final = 2 * SECOND
"""Mean time between two requests."""


_OPEN_US: Final = 40 * SECOND
"""How long a request without a definite answer may take effect: pauses and tries included."""
_LATE_US: Final = 5 * SECOND
"""As much later than it was sent a change may take effect."""


class _Request:
    def __init__(self, log_id: LogId) -> None:
        self.log_id = log_id
        self.is_open = True


class Trimmer:
    """The operator; works until the run ends.

    Args:
        log_count: logs have the ids 1 … `log_count`.
        history: told when a request begins and when it ends.
    """

    def __init__(
        self,
        world: World,
        seed: int,
        sequencers: dict[str, SequencerNode],
        log_count: int,
        history: Checkers,
    ) -> None:
        self._world = world
        self._rng = random.Random(f"trimmer {seed}")
        self._sequencers = list(sequencers.values())
        self._log_count = log_count
        self._history = history
        world.at(_PAUSE_US, self._ask)

    def _ask(self) -> None:
        rng = self._rng
        node = rng.choice(self._sequencers)
        log_id = LogId(1 + rng.randrange(self._log_count))
        to = "tail" if rng.random() < 0.7 else f"lsn:e{1 + rng.randrange(9)}n0"
        if node.is_up:
            node.run(node.life, self._begin, node, log_id, to)
        self._world.at(int(rng.uniform(0.1, 2) * _PAUSE_US), self._ask)

    def _begin(self, node: SequencerNode, log_id: LogId, to: str) -> None:
        node.loop.run_task(self._truncate(node, log_id, to))

    async def _truncate(self, node: SequencerNode, log_id: LogId, to: str) -> None:
        segments = open_segment_nodes(node.link.store, node.link.paths, node.lanes)
        boundaries = Boundaries(segments, node.lanes)
        life = LifeOperations(
            node.host,
            node.link,
            boundaries,
            now_unix_ms=lambda: node.context.unix_ms(self._world.now_us),
        )
        request = _Request(log_id)
        self._history.on_truncation(log_id, is_asked=True)
        # Whoever dies on the way has asked, too.
        self._world.at(_OPEN_US, self._end, request)
        outcome = await self._ask_of(life, log_id, to)
        self._world.counts[f"truncation: {outcome}"] += 1
        if outcome in ("True", "False"):
            self._end(request)
        elif outcome == "redirected":
            # A try before that may have an unknown outcome.
            self._world.at(_LATE_US, self._end, request)

    def _end(self, request: _Request) -> None:
        """From now on this request takes no effect any more."""
        if request.is_open:
            request.is_open = False
            self._history.on_truncation(request.log_id, is_asked=False)

    @staticmethod
    async def _ask_of(life: LifeOperations, log_id: LogId, to: str) -> str:
        try:
            answer = await life.by_name["truncate"]({"log_id": str(log_id), "to": to})
            return "redirected" if "redirect" in answer else str(answer["changed"])
        except DuramenError as error:
            return error.code
        except MetadataError:
            return "metadata unavailable"
