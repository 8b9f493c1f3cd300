"""The production data plane of a bookie, counted.

`DataPlane` runs in the bookie's event loop with its admission, long polls and proofs; frames are
objects (`frames`), and what it gives to threads is done in the loop a moment later. Told apart for
the caller: an answer, a refusal with advice, and silence, which is what a bookie that stops leaves.

Made by `processes`. Documented in docs/testing.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from duramen.core.bookie.bookie_state import (
    CheckSegment,
    Effect,
    ReadEntries,
    RequestId,
    StartTimer,
)
from duramen.core.status import BookieStatus
from duramen.ids import EntryId, LedgerId
from duramen.runtime.http_server import Answer, Reply
from duramen.units import MS
from duramen.wire.bookie_calls import Add
from duramen.wire.frame import RETRY_AFTER_HEADER
from duramen_bookie.handlers import DataPlane
from tests.sim.network import Refusal
from tests.sim.world import World

_OK: Final = 200
_NOT_NOW: Final = 503


class CountedPlane(DataPlane):
    """The data plane of one life of a bookie.

    Args:
        on_denied: told of every entry of which the core says that there is none.
    """

    def __init__(
        self,
        world: World,
        *args: Any,
        on_denied: Callable[[LedgerId, EntryId], None],
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._world = world
        self._on_denied = on_denied

    async def answer(self, kind: str, frame: Any) -> Any:
        """What the call is answered; a `Refusal`; None: nothing is said."""
        said = _read(await self.handle(f"/b/{kind}", frame, "a peer"))
        self._world.counts["request refused"] += isinstance(said, Refusal)
        return said

    def stop(self, sentence: str) -> None:
        """A bookie that runs refuses no more than what its journal cannot hold."""
        assert sentence.startswith("the journal has failed"), sentence
        super().stop(sentence)

    def _carry_out(self, effect: Effect, adds: Sequence[Add], entries: Sequence[bytes]) -> None:
        match effect:
            case StartTimer():
                self._world.counts["long poll waits"] += 1
            case CheckSegment():
                self._world.counts["segment proof asked"] += 1
            case _:
                pass
        super()._carry_out(effect, adds, entries)

    def _read_entries(self, effect: ReadEntries) -> None:
        for plan in effect.plans:
            if plan.status is BookieStatus.NO_ENTRY:
                self._on_denied(plan.ledger_id, plan.first)
        super()._read_entries(effect)

    def _on_timer(self, request: RequestId) -> None:
        self._world.counts["long poll over"] += 1
        super()._on_timer(request)

    def _on_read(self, request: RequestId, result: Any) -> None:
        self._world.counts["unreadable entry"] += len(result.unreadable)
        super()._on_read(request, result)

    @property
    def waiting_count(self) -> int:
        """Requests that are not answered."""
        return len(self._pending)


def _read(answer: Answer) -> Any:
    status, _, body = answer[:3]
    if status == _OK:
        return body
    assert status == _NOT_NOW, answer
    if not isinstance(answer, Reply):
        return None
    advice = dict(answer.headers)[RETRY_AFTER_HEADER]
    return Refusal(int(advice) * MS)
