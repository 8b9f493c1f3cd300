"""An operator of the simulated cluster who truncates logs, to their tail or to a segment's start.

What runs is the sequencer's own control operation (`duramen_sequencer.life.operations`): only its
host is played, by a simulated sequencer process. Whom the operator asks is chance, so most requests
are redirected or meet a takeover; the operator does not follow, and asks again later. Its chance is
its own, so that what else a seed draws does not depend on it.

Called by `run`; what it does is judged as T1. Documented in docs/testing.md.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any, Final, cast

from duramen.core.sequencer.log_sequencer import LogSequencer
from duramen.errors import DuramenError
from duramen.ids import LogId
from duramen.runtime.http_client import NoAnswerError
from duramen.runtime.metadata_store import MetadataError
from duramen.units import MS, SECOND
from duramen.wire.sequencer_calls import Redirect
from duramen_sequencer.life.boundaries import Boundaries
from duramen_sequencer.life.operations import LifeOperations
from tests.sim.checkers import Checkers
from tests.sim.log_drivers import SimDriver
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
            node.run(node.life, lambda: node.spawn(self._truncate(node, log_id, to)))
        self._world.at(int(rng.uniform(0.1, 2) * _PAUSE_US), self._ask)

    async def _truncate(self, node: SequencerNode, log_id: LogId, to: str) -> None:
        boundaries = Boundaries(node.link, cast(Any, _SilentLanes()))
        host = cast(Any, _Host(node))
        life = LifeOperations(
            host, node.link, boundaries, now_unix_ms=lambda: self._world.now_us // MS
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


class _SilentLanes:
    """No entry is read for these positions but where the first of a segment is a hole: then no
    bookie answers, and the request is refused."""

    async def insist(self, *_: object) -> bytes:
        raise NoAnswerError("not simulated")


class _Host:
    """What the operations ask of `log_host`."""

    def __init__(self, node: SequencerNode) -> None:
        self._node = node

    async def find_owner(self, log_id: LogId, tried: Collection[str]) -> Redirect | None:
        return await self._node.host.find_owner(log_id, tried)

    def drive(self, log_id: LogId) -> _Driver:
        return _Driver(self._node, self._node.host.drive(log_id))


class _Driver:
    """A log of the simulated sequencer, as `log_driver` has it."""

    def __init__(self, node: SequencerNode, driver: SimDriver) -> None:
        self.core: LogSequencer = driver.core
        self._node = node
        self._driver = driver

    def take_over(self, *, close_only: bool, is_owner_gone: bool) -> None:
        self._driver.take_over(close_only=close_only, is_owner_gone=is_owner_gone)

    def flush(self) -> None:
        self._driver.flush()
        self._node.kick()
