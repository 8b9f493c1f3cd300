"""What one bookie knows durably of every log and ledger, and how upkeep moves it.

This is `BookieCore` without requests. It looks entries up, settles them (from the journal to the
entry log), loses them to damage and forgets dropped ledgers. It also makes the snapshot that a
checkpoint keeps. `snapshot` holds all state whose journal records a checkpoint lets go of:
`restore` and a replay of the journal from there on make the same bookie again.

Not here: what is pending, answers, the order of records (`bookie_core`). Called by `BookieCore` and
by the bookie's storage and upkeep. Source: R4, R10, R15, docs/protocol/entry-log.md "Checkpoint".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from duramen.core.bookie.bookie_state import (
    NO_ADDS,
    NO_ENTRIES,
    NO_RANGES,
    AddRecord,
    BookieLogState,
    CoreSnapshot,
    LedgerState,
    LogSnapshot,
)
from duramen.core.entry_ranges import EntryRanges
from duramen.ids import EntryId, Epoch, LedgerId, LogId, epoch_of, is_log_id, log_of

_EMPTY: Final = LedgerState()
"""Stands for a ledger that nothing is known of; never changed."""

_NO_LOG: Final = BookieLogState()
"""The same of a log."""


class LedgerBook:
    """The durable knowledge of one bookie incarnation.

    Args:
        start_number: of 32 bits, drawn anew at each start: the high half of every damage mark.

    Invariants (checked by `validate`; their numbers go on in `BookieCore`):
     3 a ledger's highest entry is at or above everything hot, settled or unknown.
     4 no entry is two of hot, settled and unknown, none is pending that is hot or settled.
     8 no dropped ledger has a state, and `gone` holds nothing below `gone_below`.
     9 the entries counted are the entries known.
    11 a doubt is bounded, and an epoch newer than the damage, only where all is in doubt.
    12 no seal is further above the epochs that metadata has shown than it may be without.
    """

    def __init__(self, start_number: int = 0) -> None:
        self._start_number = start_number
        self._logs: dict[LogId, BookieLogState] = {}
        self._is_everything_doubtful = False
        self._doubt_until = 0
        self._entry_count = 0

    # --- Replay, before the first request --------------------------------------------------------

    def on_recovered_add(
        self, ledger_id: LedgerId, entry_id: EntryId, lac: EntryId, crc: int, *, is_recovery: bool
    ) -> None:
        """The journal holds this entry, whole: it is hot, also if a copy of it is settled."""
        if self.is_alive(ledger_id):
            self._store(AddRecord(0, ledger_id, entry_id, lac, crc, is_recovery))

    def on_recovered_seal(self, log_id: LogId, epoch: Epoch) -> None:
        """The journal holds this seal."""
        log = self._log(log_id)
        log.sealed = max(log.sealed, epoch)
        log.pending_seal = max(log.pending_seal, log.sealed)
        log.shown = max(log.shown, log.sealed)

    def on_recovered_lac(self, ledger_id: LedgerId, lac: EntryId) -> None:
        """The journal holds this explicit LAC."""
        if self.is_alive(ledger_id):
            ledger = self._ledger(ledger_id)
            ledger.lac = max(ledger.lac, lac)

    def on_recovered_drop(self, log_id: LogId, epoch: Epoch, is_all_below: bool) -> None:
        """The journal holds this drop: what it held of these ledgers before is void."""
        self._forget(self._log(log_id), epoch, is_all_below=is_all_below)

    def on_recovered_damage(
        self, ledger_id: LedgerId | None = None, entry_id: EntryId | None = None
    ) -> None:
        """The journal is damaged below its durable mark (R15, R10); told when all else is replayed.

        Args:
            ledger_id: the ledger that the damaged record was of; None: it may have been anything,
                also a seal, so that no absence is vouched for in any ledger, and adds that are not
                recovery's wait for a proof that their segment is open. What an earlier damage was
                found to be older than does not count: this one may be younger.
            entry_id: the entry that the damaged record was of; None: any of the ledger, so that
                its LAC is in doubt too.
        """
        if ledger_id is None:
            self._is_everything_doubtful = True
            self._doubt_until = 0
            for log in self._logs.values():
                log.newer_from = 0
            return
        if not self.is_alive(ledger_id):
            return
        ledger = self._ledger(ledger_id)
        if entry_id is None:
            ledger.is_doubtful = True
        else:
            ledger.miss(entry_id)

    def on_doubt_bounded(self, transaction: int) -> None:
        """The metadata store made something in this transaction, begun after the replay.

        Whatever it made later began after the damage: no record of it can have been lost in it. A
        bound that is known stays: a later one would only leave more in doubt.

        Args:
            transaction: ≥ 1.
        """
        assert transaction > 0, transaction
        if self._is_everything_doubtful and not self._doubt_until:
            self._doubt_until = transaction

    def on_epochs_shown(self, log_id: LogId, next_epoch: Epoch) -> None:
        """The log's node was read after a sync: every epoch below `next_epoch` exists."""
        log = self._log(log_id)
        log.shown = max(log.shown, next_epoch - 1)

    # --- Checkpoints -----------------------------------------------------------------------------

    def snapshot(self, settling: Mapping[LedgerId, Sequence[int]] | None = None) -> CoreSnapshot:
        """All durable knowledge but the hot entries: what a checkpoint must keep.

        The journal files that the checkpoint covers will not be replayed. So every record in them
        must have been reported by `on_persisted`, and every entry that is hot in them must be in
        `settling`, before this is called. Records of later files may be in it or not: replaying
        them again changes nothing.

        Args:
            settling: entries whose verified copies are durable in the entry log files that the same
                checkpoint puts in force; `on_settled` is called for them when it is durable.
        """
        settling = settling or {}
        logs = []
        ledgers = []
        for log_id, log in sorted(self._logs.items()):
            if log.sealed or log.gone_below or log.gone or log.newer_from:
                logs.append(
                    LogSnapshot(log_id, log.sealed, log.gone_below, log.gone, log.newer_from)
                )
            for epoch, ledger in sorted(log.ledgers.items()):
                if not ledger.is_blank:
                    ledger_id = LedgerId(log_id << 32 | epoch)
                    ledgers.append(ledger.snapshot(ledger_id, settling.get(ledger_id, ())))
        return CoreSnapshot(
            tuple(logs), tuple(ledgers), self._is_everything_doubtful, self._doubt_until
        )

    def restore(self, snapshot: CoreSnapshot) -> None:
        """Know what a checkpoint kept; before the replay of what it does not cover."""
        assert not self._logs and not self._is_everything_doubtful, "only into an empty book"
        self._is_everything_doubtful = snapshot.is_everything_doubtful
        self._doubt_until = snapshot.doubt_until
        for kept_log in snapshot.logs:
            log = self._log(kept_log.log_id)
            log.sealed = log.pending_seal = kept_log.sealed
            log.gone_below = kept_log.gone_below
            log.gone = kept_log.gone or NO_RANGES
            log.shown = max(log.sealed, log.gone_below - 1, log.gone.last())
            log.newer_from = kept_log.newer_from
        for kept in snapshot.ledgers:
            ledger = self._ledger(kept.ledger_id)
            ledger.lac, ledger.highest = kept.lac, kept.highest
            ledger.settled = kept.settled or NO_RANGES
            ledger.unknown = kept.unknown or NO_RANGES
            ledger.is_doubtful = kept.is_doubtful
            self._entry_count += len(kept.settled)

    # --- Upkeep ----------------------------------------------------------------------------------

    def on_settled(self, ledger_id: LedgerId, entry_ids: Sequence[int]) -> None:
        """Verified copies of these entries are in the entry log, by a checkpoint that is durable.

        Hot and unknown ones become settled. Nothing happens to a ledger that was dropped meanwhile,
        or that was purged of everything it held.
        """
        ledger = self._find_ledger(ledger_id)
        if ledger is _EMPTY:
            return
        before = ledger.entry_count
        ledger.settle(entry_ids)
        self._entry_count += ledger.entry_count - before

    def on_unreadable(self, ledger_id: LedgerId, entry_id: EntryId) -> None:
        """A hot or settled entry could not be read or is not what it was: UNKNOWN from now on.

        An add of the same entry stores it again.
        """
        ledger = self._find_ledger(ledger_id)
        self._entry_count -= ledger.lose(entry_id)

    def _store(self, add: AddRecord) -> None:
        """An add is durable: its entry can be read, and its LAC counts unless it is recovery's."""
        ledger = self._ledger(add.ledger_id)
        self._entry_count += ledger.store(add.entry_id, add.crc)
        if not add.is_recovery:  # R13: LAC moves by the owner alone
            ledger.lac = max(ledger.lac, add.lac)

    def purge_beyond(self, ledger_id: LedgerId, last_entry: EntryId) -> list[EntryId]:
        """Forget what lies beyond the last entry of a CLOSED ledger (R4, R17); may be repeated.

        Not journaled: what a replay brings back is purged again.

        Returns:
            The hot entries among them, whose places are not needed any more.
        """
        ledger = self._find_ledger(ledger_id)
        if ledger is _EMPTY:
            return []
        before = ledger.entry_count
        hot = ledger.purge_beyond(last_entry)
        self._entry_count += ledger.entry_count - before
        if ledger.is_blank and not ledger.pending:
            del self._log(log_of(ledger_id)).ledgers[epoch_of(ledger_id)]
        return hot

    def _forget(self, log: BookieLogState, epoch: Epoch, *, is_all_below: bool) -> None:
        """A drop is durable."""
        for ledger in log.drop(epoch, is_all_below=is_all_below):
            assert not ledger.pending, "adds of before the drop are durable before it"
            self._entry_count -= ledger.entry_count

    # --- What is known ---------------------------------------------------------------------------

    def is_alive(self, ledger_id: LedgerId) -> bool:
        """Whether a ledger was not dropped, durably; true also for one that is not known."""
        log = self._logs.get(log_of(ledger_id))
        return log is None or not log.is_gone(epoch_of(ledger_id))

    def hot_entries(self, ledger_id: LedgerId) -> list[EntryId]:
        """The entries of a ledger that the journal alone holds, ascending."""
        return self._find_ledger(ledger_id).stored.list_ids()

    def count_settled(self, ledger_id: LedgerId, first: EntryId, last: EntryId) -> int:
        """How many entries from `first` up to `last` are settled, without a gap."""
        return self._find_ledger(ledger_id).settled.count_run(first, last)

    def list_ledgers(self) -> list[tuple[LedgerId, LedgerState]]:
        """Every known ledger, ascending. Not to be changed."""
        return [
            (LedgerId(log_id << 32 | epoch), log.ledgers[epoch])
            for log_id, log in sorted(self._logs.items())
            for epoch in sorted(log.ledgers)
        ]

    def list_page(self, after: int, count_max: int) -> list[tuple[LedgerId, LedgerState]]:
        """The first known ledgers above `after`, ascending. Not to be changed."""
        found: list[tuple[LedgerId, LedgerState]] = []
        for log_id in sorted(log_id for log_id in self._logs if log_id >= after >> 32):
            for epoch, ledger in sorted(self._logs[log_id].ledgers.items()):
                ledger_id = LedgerId(log_id << 32 | epoch)
                if ledger_id > after:
                    found.append((ledger_id, ledger))
            if len(found) >= count_max:
                break
        return found[:count_max]

    def list_logs(self) -> list[LogId]:
        """Logs of which ledgers are known, ascending."""
        return sorted(log_id for log_id, log in self._logs.items() if log.ledgers)

    def marks_of(self, ledger_id: LedgerId) -> tuple[EntryId, EntryId]:
        """LAC and highest entry of a ledger."""
        ledger = self._find_ledger(ledger_id)
        return ledger.lac, ledger.highest

    def damage_mark_of(self, ledger_id: LedgerId) -> int:
        """Another number, of 64 bits, when something of a ledger that was here is not any more.

        A start is another one too: what is lost then was counted by nobody (R26).
        """
        lost_count = self._find_ledger(ledger_id).loss_count
        return self._start_number << 32 | lost_count & 0xFFFF_FFFF

    def list_ledgers_of(self, log_id: LogId) -> list[LedgerId]:
        """Every known ledger of a log, ascending."""
        log = self._logs.get(log_id)
        return [] if log is None else [LedgerId(log_id << 32 | e) for e in sorted(log.ledgers)]

    def needs_proof(self, log_id: LogId, epoch: int) -> bool:
        """Whether a seal of this epoch is believed only after `on_epochs_shown`."""
        return self._logs.get(log_id, _NO_LOG).needs_proof(epoch)

    def sealed_epoch(self, log_id: LogId) -> int:
        """Epochs up to this one are sealed, durably; 0: none."""
        log = self._logs.get(log_id)
        return 0 if log is None else log.sealed

    def list_ranges(self, ledger_id: LedgerId) -> list[tuple[EntryId, EntryId]] | None:
        """Ranges of the entries of a ledger that can be read; None if it is not known."""
        ledger = self._find_ledger(ledger_id)
        return None if ledger is _EMPTY else ledger.list_ranges()

    def list_held(
        self, ledger_id: LedgerId, first: EntryId, last: EntryId
    ) -> list[tuple[EntryId, EntryId]]:
        """Ranges of the entries from `first` to `last` that can be read, ascending."""
        return EntryRanges(self._find_ledger(ledger_id).list_ranges()).within(first, last)

    def list_unknown(
        self, ledger_id: LedgerId, first: EntryId, last: EntryId
    ) -> list[tuple[EntryId, EntryId]]:
        """Ranges from `first` to `last` whose absence is not vouched for (R15), ascending."""
        ledger = self._find_ledger(ledger_id)
        if not (ledger.is_doubtful or self.is_in_doubt(ledger_id)):
            return ledger.unknown.within(first, last)
        doubtful = EntryRanges([(first, last)])
        for held_first, held_last in self.list_held(ledger_id, first, last):
            doubtful.remove(held_first, held_last)
        return doubtful.list_ranges()

    @property
    def is_doubtful(self) -> bool:
        """Whether damage may have held anything of every ledger but those that began after it."""
        return self._is_everything_doubtful

    @property
    def is_doubt_bounded(self) -> bool:
        """Whether it is known which ledgers began after the damage."""
        return self._doubt_until > 0

    def is_in_doubt(self, ledger_id: LedgerId) -> bool:
        """Whether damage that told nothing of itself may have held anything of a ledger (R15)."""
        if not self._is_everything_doubtful:
            return False
        log = self._logs.get(log_of(ledger_id))
        return log is None or not log.is_newer(epoch_of(ledger_id))

    def validate(self) -> None:
        """Assert the numbered invariants; for tests and the simulator."""
        entry_count = 0
        for log in self._logs.values():
            log.validate()
            for ledger in log.ledgers.values():
                ledger.validate()
                entry_count += ledger.entry_count
            assert not log.newer_from or self._doubt_until, "11: newer than what"
        assert entry_count == self._entry_count, "9: entries"
        assert self._is_everything_doubtful or not self._doubt_until, "11: a bound of no doubt"
        assert _EMPTY.is_blank and not _EMPTY.entry_count, "nobody writes to _EMPTY"
        assert not NO_ENTRIES and not NO_RANGES and not NO_ADDS, "nor to what all share"

    # --- Looking up ------------------------------------------------------------------------------

    def _log(self, log_id: LogId) -> BookieLogState:
        log = self._logs.get(log_id)
        if log is None:
            log = self._logs[log_id] = BookieLogState()
        return log

    def _ledger(self, ledger_id: LedgerId) -> LedgerState:
        ledgers = self._log(log_of(ledger_id)).ledgers
        ledger = ledgers.get(epoch_of(ledger_id))
        if ledger is None:
            ledger = ledgers[epoch_of(ledger_id)] = LedgerState()
        return ledger

    def _find_ledger(self, ledger_id: LedgerId) -> LedgerState:
        """A ledger to be read, `_EMPTY` if nothing is known of it."""
        log = self._logs.get(log_of(ledger_id))
        return _EMPTY if log is None else log.ledgers.get(epoch_of(ledger_id), _EMPTY)


def is_ledger(ledger_id: LedgerId) -> bool:
    """Whether a number can be a ledger's id."""
    return is_log_id(log_of(ledger_id)) and epoch_of(ledger_id) > 0
