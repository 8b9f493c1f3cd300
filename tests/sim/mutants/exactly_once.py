"""Mutants of exactly-once appends: producers, conditions, tokens, sessions, who may send again.

Part of `tests.sim.mutants`.
"""

from __future__ import annotations

from typing import Any, Final

from duramen.core.log_node import LogNode
from duramen.core.sequencer.exactly_once.admission import Admission
from duramen.core.sequencer.exactly_once.carried_state import CarriedState
from duramen.core.sequencer.exactly_once.modes import Modes
from duramen.core.sequencer.exactly_once.producer_table import ProducerTable
from duramen.core.sequencer.exactly_once.rebuild import Rebuild, RebuildState
from duramen.core.sequencer.exactly_once.snapshots import Snapshots
from duramen.core.sequencer.ledger_writer import LedgerWriter
from duramen.ids import EntryId, Epoch
from duramen_writeproxy.appends import Appender
from duramen_writeproxy.lanes import Lane
from tests.sim.focus import Focus
from tests.sim.log_kinds import DRAWN
from tests.sim.mutants.mutant import Mutant
from tests.sim.options import ASKED_ZOMBIE

_follow_rebuild = CarriedState._follow_rebuild
_cut = Snapshots.cut
_append = Appender.append
_append_together = Lane.append_together
_settle = Admission.settle


def _start_with_nothing(rebuild: Rebuild) -> None:
    rebuild.state = RebuildState.DONE


def _forget_under_roll(self: CarriedState, epoch: Epoch) -> None:
    token = "" if self._table is None else self._table.token
    self._table = ProducerTable(64)
    self._table.token = token
    self._complete_through = epoch


def _forget_nothing(_: CarriedState) -> None:
    """What was known when the epoch was lost is kept."""


def _begin_with_what_is_there(self: CarriedState, log: LogNode, now_us: int) -> None:
    self._table = self._table or ProducerTable(64)


def _rebuild_without_token(self: CarriedState) -> None:
    is_done = self.rebuild is not None and self.rebuild.is_done
    _follow_rebuild(self)
    if is_done and self._table is not None:
        self._table.token = ""


def _cut_without_token(
    self: Snapshots, table: ProducerTable, epoch: Epoch, lac: EntryId
) -> list[Any]:
    return [part._replace(token="") for part in _cut(self, table, epoch, lac)]


def _never_in_flight(self: Admission, stamp: object, placed: object) -> None:
    """Only acknowledged batches are known."""


def _refuse_without_a_round(self: Admission, writer: LedgerWriter) -> None:
    for refusal in self._refusals:
        refusal.round_id = writer.round_done
    _settle(self, writer)


def _take_what_needs_order(_: Modes, _append: object, **_known: bool) -> None:
    """Every mode gives whatever is wanted."""


async def _append_whatever_comes(self: Appender, *args: Any, **options: Any) -> Any:
    return await _append(self, *args, **{**options, "is_repeatable": True})


async def _turn_around(self: Lane, log_id: Any, batches: Any, deadline: float) -> Any:
    return (await _append_together(self, log_id, batches[::-1], deadline))[::-1]


MUTANTS: Final[dict[str, Mutant]] = {
    "dedupe-lost-on-takeover": Mutant(
        "U1", "a new owner begins with an empty table",
        ((Rebuild, "start", _start_with_nothing),),
    ),
    "dedupe-forgotten-under-roll": Mutant(
        "U1", "a roll forgets the producers",
        ((CarriedState, "on_closed", _forget_under_roll),),
    ),
    "dedupe-of-an-older-epoch": Mutant(
        "U1", "an owner that had the log before goes on with the table of then",
        (
            (CarriedState, "forget", _forget_nothing),
            (CarriedState, "begin_rebuild", _begin_with_what_is_there),
        ),
    ),
    "dedupe-of-the-acknowledged-alone": Mutant(
        "U1", "a batch that is in flight is appended again",
        ((Admission, "_note_ahead", _never_in_flight),),
    ),
    "token-forgotten-on-takeover": Mutant(
        "K1", "a new owner knows of no fencing token",
        ((CarriedState, "_follow_rebuild", _rebuild_without_token),),
    ),
    "token-not-in-snapshots": Mutant(
        "K1", "a snapshot holds the producers alone",
        ((Snapshots, "cut", _cut_without_token),),
    ),
    "refusal-by-a-zombie": Mutant(
        "write.md", "a refusal is answered without a proof that the epoch is open",
        ((Admission, "settle", _refuse_without_a_round),),
        focus=Focus((ASKED_ZOMBIE,), ack_mode="ordered"),
    ),
    "order-is-taken-out-of-order": Mutant(
        "R29", "an out_of_order epoch takes producers, conditions and tokens",
        ((Modes, "find_refusal", _take_what_needs_order),), copysets=DRAWN,
    ),
    "redirect-after-time-out-duplicates": Mutant(
        "write.md", "a proxy sends again what may be in the log, and has no producer",
        ((Appender, "append", _append_whatever_comes),),
    ),
    "session-turned-around": Mutant(
        "O3", "what a session sends together goes in another order",
        ((Lane, "append_together", _turn_around),),
    ),
}  # fmt: skip
