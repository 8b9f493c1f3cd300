"""A bookie that holds ledgers, as deletion sees it, and the sights by which it judges.

Used by `test_deletion` and `test_tombstones`. Source: docs/protocol/retention.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from duramen.ids import (
    EntryId,
    Epoch,
    LedgerId,
    LogId,
    epoch_of,
    ledger_of,
    log_of,
)
from duramen_bookie.upkeep.deletion import LedgerSight


def sights(*epochs: int, lac: int = 5, highest: int = 5) -> list[LedgerSight]:
    return [LedgerSight(Epoch(epoch), EntryId(lac), EntryId(highest)) for epoch in epochs]


class Holder:
    """What a bookie holds; drops and purges take effect at once."""

    def __init__(self) -> None:
        self.ledgers: dict[LogId, list[LedgerSight]] = {}
        self.dropped: list[LedgerId] = []
        self.purged: list[tuple[Epoch, EntryId]] = []

    def hold(self, log_id: LogId, *epochs: int, lac: int = 5, highest: int = 5) -> None:
        held = self.ledgers.setdefault(log_id, [])
        held.extend(sights(*epochs, lac=lac, highest=highest))
        held.sort()

    def list_logs(self) -> Sequence[LogId]:
        return sorted(log_id for log_id, ledgers in self.ledgers.items() if ledgers)

    def list_sights_of(self, log_id: LogId) -> Sequence[LedgerSight]:
        return list(self.ledgers.get(log_id, ()))

    def drop(self, log_id: LogId, epoch: Epoch, *, is_all_below: bool) -> None:
        held = self.ledgers[log_id]
        gone = [sight for sight in held if is_all_below and sight.epoch < epoch]
        gone += [sight for sight in held if not is_all_below and sight.epoch == epoch]
        assert gone, "a drop of nothing"
        self.ledgers[log_id] = [sight for sight in held if sight not in gone]
        self.dropped += [ledger_of(log_id, sight.epoch) for sight in gone]

    def purge_beyond(self, ledger_id: LedgerId, last_entry: EntryId) -> None:
        held = self.ledgers[log_of(ledger_id)]
        for index, sight in enumerate(held):
            if sight.epoch == epoch_of(ledger_id):
                assert sight.highest > last_entry, "a purge of nothing"
                held[index] = sight._replace(highest=last_entry)
        self.purged.append((epoch_of(ledger_id), last_entry))
