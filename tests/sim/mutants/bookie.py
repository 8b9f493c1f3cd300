"""Mutants of the bookie and its disk: seals, marks, reads, journal, checkpoints, entry log.

Part of `tests.sim.mutants`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from duramen.core.bookie import BookieCore
from duramen.core.bookie.bookie_state import AddRecord
from duramen.core.bookie.ledger_book import LedgerBook
from duramen.core.status import BookieStatus
from duramen.ids import log_of
from duramen_bookie.entry_log.appending import FileAppender
from duramen_bookie.journal import replay as replay_module
from duramen_bookie.journal import writer as writer_module
from duramen_bookie.journal.file_pass import FilePass
from duramen_bookie.journal.findings import JournalMismatch
from duramen_bookie.journal.writer import JournalWriter
from duramen_bookie.storage import Storage
from tests.sim.focus import Focus
from tests.sim.mutants.mutant import Mutant

# --- bookie --------------------------------------------------------------------------------------

_on_adds = BookieCore.on_adds
_on_seals = BookieCore.on_seals
_on_lacs = BookieCore.on_lacs
_on_reads = BookieCore.on_reads
_judge_add = BookieCore._judge_add
_judge_lac = BookieCore._judge_lac
_plan = BookieCore.plan
_store = BookieCore._store
_wake = BookieCore._wake
_registered: dict[Any, Any] = {}


def _read_without_seal(
    self: BookieCore, request: Any, incarnation: Any, reads: Sequence[Any]
) -> None:
    _on_reads(self, request, incarnation, [read._replace(seal_epoch=0) for read in reads])


def _answer_seal_at_once(
    self: BookieCore, request: Any, incarnation: Any, seals: Sequence[Any]
) -> None:
    if incarnation != self.incarnation:
        self._refuse_marks(request, len(seals))
        return
    records: list[Any] = []
    for seal in seals:
        self._seal(seal.log_id, seal.epoch, records)
    self._persist(request, records)
    self._reply_seals(request, seals, [True] * len(seals))


def _any_incarnation(handler: Callable[..., None]) -> Callable[..., None]:
    def handle(self: BookieCore, request: Any, _: Any, rows: Sequence[Any], **more: Any) -> None:
        handler(self, request, self.incarnation, rows, **more)

    return handle


def _judge_by_durable_seal(self: BookieCore, add: Any, token: int, has_room: bool) -> Any:
    log = self._logs.get(log_of(add.ledger_id))
    if log is None:
        return _judge_add(self, add, token, has_room)
    pending, log.pending_seal = log.pending_seal, log.sealed
    try:
        return _judge_add(self, add, token, has_room)
    finally:
        log.pending_seal = pending


def _judge_with_lac(self: BookieCore, add: Any, token: int, has_room: bool) -> Any:
    status, awaited = _judge_add(self, add, token, has_room)
    known = self._find_ledger(add.ledger_id)
    if status is BookieStatus.OK and awaited != token and add.lac > known.lac:
        return BookieStatus.DIFFERENT, 0
    return status, awaited


def _lac_under_seal(self: BookieCore, update: Any, token: int) -> Any:
    log = self._logs.get(log_of(update.ledger_id))
    if log is None:
        return _judge_lac(self, update, token)
    pending, sealed = log.pending_seal, log.sealed
    log.pending_seal = log.sealed = 0
    try:
        return _judge_lac(self, update, token)
    finally:
        log.pending_seal, log.sealed = pending, sealed


def _doubt_is_absence(self: BookieCore, read: Any) -> Any:
    plan = _plan(self, read)
    if plan.status is BookieStatus.UNKNOWN:
        return plan._replace(status=BookieStatus.NO_ENTRY)
    return plan


_read_entries = Storage.read


def _doubt_is_absence_in_answers(self: Storage, readings: Any) -> Any:
    result = _read_entries(self, readings)
    for index, answer in enumerate(result.answers):
        if answer.status is BookieStatus.UNKNOWN:
            result.answers[index] = answer._replace(status=BookieStatus.NO_ENTRY)
    return result


def _wake_registered_before(self: BookieCore, ledger_id: Any) -> None:
    """The first change after a waiter's look wakes everybody but that waiter."""
    rows = self._waiters_of.get(ledger_id, {})
    fresh = {request: read for request, read in rows.items() if request not in _registered}
    for request in fresh:
        del rows[request]
    _wake(self, ledger_id)
    _registered.update(fresh)
    if fresh:
        self._waiters_of.setdefault(ledger_id, {}).update(fresh)


_TORN_RECOVERIES: Final = Focus((
    "late adds", "takeover race", "one-way cut", "link clogged", "killed at a commit",
    "bookie paused",
))  # fmt: skip
"""Entries that few members have, recoverers that write them back and do not come to the end."""


def _write_back_raises_lac(self: BookieCore, add: AddRecord) -> None:
    _store(self, add)
    if add.is_recovery:
        ledger = self._ledger(add.ledger_id)
        ledger.lac = max(ledger.lac, add.entry_id)


def _late_lac_wins(self: BookieCore, add: AddRecord) -> None:
    _store(self, add)
    if not add.is_recovery:
        self._ledger(add.ledger_id).lac = add.lac


# --- journal -------------------------------------------------------------------------------------

_secure_tail = replay_module._secure_tail
_begin_pass = FilePass.__init__


def _refuse_torn_tail(writer: Any, result: Any, cut: Any, on_record: Any) -> None:
    if result.torn_bytes:
        raise JournalMismatch("the journal ends within a commit")
    _secure_tail(writer, result, cut, on_record)


def _drop_damage(self: Any, *_: Any) -> None:
    """Damage is passed over, wherever it is."""


def _believe_all_durable(self: Any, *args: Any) -> None:
    _begin_pass(self, *args)
    self._marked = 1 << 62


def _ignore_errors(self: Any, kind: object, error: BaseException | None, trace: object) -> bool:
    return isinstance(error, OSError)


_snapshot = LedgerBook.snapshot


def _snapshot_without_seals(self: LedgerBook, settling: Any = None) -> Any:
    snapshot = _snapshot(self, settling)
    return snapshot if settling else snapshot._replace(logs=())


def _finish_unsynced(self: FileAppender, first_block: bytes | None = None) -> None:
    self._write()
    if first_block is not None:
        self._file.pwritev([first_block], 0)
    self.close()


def _write_no_mark(self: JournalWriter) -> bool:
    self.owes_mark = False
    return True


MUTANTS: Final[dict[str, Mutant]] = {
    "recovery-read-without-seal": Mutant(
        "R14", "a recovery read does not carry the seal",
        ((BookieCore, "on_reads", _read_without_seal),),
    ),
    "no-entry-on-damage": Mutant(
        "R15", "a damaged bookie says NO_ENTRY",
        ((BookieCore, "plan", _doubt_is_absence), (Storage, "read", _doubt_is_absence_in_answers)),
    ),
    "torn-tail-refuses-start": Mutant(
        "journal.md", "a bookie whose last commit is torn does not start",
        ((replay_module, "_secure_tail", _refuse_torn_tail),),
    ),
    "no-durable-mark": Mutant(
        "journal.md", "a journal that rests does not say which commit is durable",
        ((JournalWriter, "write_mark", _write_no_mark),), focus=Focus(("last commit rots",)),
    ),
    "damage-hides-no-seal": Mutant(
        "R10", "damage is not taken for a place where a seal may have been",
        ((LedgerBook, "is_in_doubt", lambda *_: False),), focus=Focus(("seal rots",)),
    ),
    "corruption-taken-for-torn-tail": Mutant(
        "journal.md", "damage below the last commit is dropped like a torn tail",
        ((FilePass, "_report", _drop_damage),),
    ),
    "torn-tail-taken-for-corruption": Mutant(
        "journal.md", "damage in the last commit counts as corruption",
        ((FilePass, "__init__", _believe_all_durable),),
    ),
    "fsync-error-ignored": Mutant(
        "journal.md", "a write or sync that failed counts as done",
        ((writer_module._Poisoning, "__exit__", _ignore_errors),),
    ),
    "checkpoint-skips-seals": Mutant(
        "journal.md", "a checkpoint without entries to settle keeps no seals",
        ((LedgerBook, "snapshot", _snapshot_without_seals),),
    ),
    "entry-log-file-not-synced": Mutant(
        "entry-log.md", "a checkpoint names entry log files that were not synced",
        ((FileAppender, "finish", _finish_unsynced),),
    ),
    "waiter-registered-after-the-check": Mutant(
        "reading.md", "a long poll misses the change that comes right after its look",
        ((BookieCore, "_wake", _wake_registered_before),),
    ),
    "seal-answered-before-fsync": Mutant(
        "R10", "a seal is answered before it is durable",
        ((BookieCore, "on_seals", _answer_seal_at_once),),
    ),
    "replaced-disk-same-identity": Mutant(
        "R1", "a bookie answers for any incarnation",
        (
            (BookieCore, "on_adds", _any_incarnation(_on_adds)),
            (BookieCore, "on_seals", _any_incarnation(_on_seals)),
            (BookieCore, "on_lacs", _any_incarnation(_on_lacs)),
            (BookieCore, "on_reads", _any_incarnation(_on_reads)),
        ),
    ),
    "check-and-add-not-atomic": Mutant(
        "R11", "an add is accepted while a seal is on its way to the disk",
        ((BookieCore, "_judge_add", _judge_by_durable_seal),),
    ),
    "lac-overwritten": Mutant(
        "R13", "a late packet lowers the LAC", ((BookieCore, "_store", _late_lac_wins),)
    ),
    "write-back-raises-lac": Mutant(
        "R16", "an entry that a recovery writes back raises the LAC",
        ((BookieCore, "_store", _write_back_raises_lac),), focus=_TORN_RECOVERIES,
    ),
    "lac-under-seal": Mutant(
        "R10", "an explicit LAC is accepted under seal",
        ((BookieCore, "_judge_lac", _lac_under_seal),),
    ),
    "resend-with-newer-lac-refused": Mutant(
        "write.md", "the same entry with a newer LAC is taken for another one",
        ((BookieCore, "_judge_add", _judge_with_lac),),
    ),
}  # fmt: skip
