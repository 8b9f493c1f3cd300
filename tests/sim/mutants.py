"""Mutants: each breaks one rule of the protocol in the production cores; the simulator must see it.

A mutant is a set of replaced attributes, put in place for the length of a run and only here: no
flag of it exists in production code. `python -m tests.sim.mutants` runs seeds against each until a
checker, a core's invariant or the convergence at the end objects, and prints the first seed that
catches it and by what; one that survives all its seeds fails the command.

Source: 06-testing "Mutants".
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from duramen.core.bookie import BookieCore
from duramen.core.bookie.ledger_book import LedgerBook
from duramen.core.bookie_state import AddRecord
from duramen.core.log_node import LogNode
from duramen.core.placement.search import Ring
from duramen.core.reader import Reader
from duramen.core.sequencer import recovery as recovery_module
from duramen.core.sequencer.effects import Commit, CommitOutcome, Fail, SetSegment
from duramen.core.sequencer.exactly_once.producer_table import ProducerTable
from duramen.core.sequencer.ledger_writer import LedgerWriter, WriterState
from duramen.core.sequencer.log_sequencer import LogSequencer, LogState
from duramen.core.sequencer.recovery import Recovery, RecoveryState
from duramen.core.status import BookieStatus
from duramen.ids import EntryId, LogId, Member, log_of, lsn_of
from duramen_bookie.journal import replay as replay_module
from duramen_bookie.journal import writer as writer_module
from duramen_bookie.journal.file_pass import FilePass
from duramen_bookie.journal.findings import JournalMismatch
from duramen_bookie.shelf.appending import FileAppender
from duramen_bookie.storage import Storage
from duramen_sequencer.life.operations import LifeOperations
from tests.sim.early_mutants import EARLY_MUTANTS
from tests.sim.run import run_seed

Patch = tuple[Any, str, Any]
_with_clean = LogNode.with_clean
_find_extent = LifeOperations._find_extent


class Mutant(NamedTuple):
    """One broken rule."""

    rule: str
    text: str
    patches: tuple[Patch, ...]


@contextlib.contextmanager
def mutated(name: str | None) -> Iterator[None]:
    """Run the block with a mutant in place; None: with none."""
    patches = () if name is None else MUTANTS[name].patches
    kept = [(owner, attribute, vars(owner).get(attribute)) for owner, attribute, _ in patches]
    for owner, attribute, value in patches:
        setattr(owner, attribute, value)
    try:
        yield
    finally:
        for owner, attribute, value in kept:
            if value is None:  # it was inherited
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, value)


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
    self._reply_seals(request, seals)


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


# --- writer --------------------------------------------------------------------------------------

_advance = LedgerWriter._advance
_adopt = LedgerWriter._adopt
_on_stored = LedgerWriter._on_stored


def _advance_while_changing(self: LedgerWriter, now_us: int) -> Any:
    if self.state is not WriterState.CHANGING:
        return _advance(self, now_us)
    self.state = WriterState.OPEN
    try:
        return _advance(self, now_us)
    finally:
        self.state = WriterState.CHANGING


def _adopt_with_stale_acks(self: LedgerWriter, segment: Any, version: int, now_us: int) -> Any:
    stale = {entry.entry: list(entry.holders) for entry in self.window}
    result = _adopt(self, segment, version, now_us)
    for entry in self.window:
        entry.holders += [m for m in stale[entry.entry] if m not in entry.holders]
    return result + self._advance(now_us)


def _count_any_member(self: LedgerWriter, member: Member, entry_id: EntryId) -> None:
    index = entry_id - self.lac - 1
    if 0 <= index < len(self.window) and member not in self.window[index].holders:
        self.window[index].holders.append(member)
    _on_stored(self, member, entry_id)


def _drop_every_ack(self: LedgerWriter, segment: Any, version: int, now_us: int) -> Any:
    for entry in self.window:
        entry.holders = []
        entry.is_sent = True
    send, self._send = self._send, lambda entry: None  # type: ignore[method-assign]
    try:
        return _adopt(self, segment, version, now_us)
    finally:
        self._send = send  # type: ignore[method-assign]


_propose = LedgerWriter._propose


def _propose_out_of_order(self: LedgerWriter) -> None:
    """As if the segment were `ordered`, for the length of the proposal."""
    ports, mode = self._ports, self.segment.ack_mode

    def put(effect: Any) -> None:
        if isinstance(effect, Commit):
            assert self._proposal is not None
            self._proposal = replace(self._proposal, ack_mode=mode)
            effect = replace(effect, writes=(SetSegment(self._proposal, self.version),))
        ports.put(effect)

    self._ports = replace(ports, put=put)
    self.segment = replace(self.segment, ack_mode="ordered")
    _propose(self)
    self.segment = replace(self.segment, ack_mode=mode)
    self._ports = ports


# --- recovery ------------------------------------------------------------------------------------

_begin_reading = Recovery._begin_reading
_replace_lost = Recovery._replace_lost
_on_commit = Recovery.on_commit


def _majority(responders: Any, sets: Any, _: int) -> bool:
    return all(2 * sum(m in responders for m in members) > len(members) for members in sets)


def _read_below_the_last_fragment(self: Recovery, now_us: int) -> None:
    """From the highest LAC on, wherever the last fragment begins; always in its ensemble."""
    first = self._frozen.first_entry
    self._frozen = replace(self._frozen, first_entry=EntryId(min(first, self._lac + 1)))
    _begin_reading(self, now_us)


def _write_ensemble_early(self: Recovery, position: Any, now_us: int) -> None:
    before = list(self._fragments)
    _replace_lost(self, position, now_us)
    if self._fragments != before:
        early = replace(
            self.segment, fragments=tuple(self._fragments), nonce=self._ports.new_nonce()
        )
        self._ports.put(Commit(self._ports.new_token(), (SetSegment(early, self.version),)))
        self.segment, self.version = early, self.version + 1


def _close_whatever_the_answer(
    self: Recovery, token: int, outcome: CommitOutcome, now_us: int
) -> None:
    if token == self._token and self.state is RecoveryState.CLOSE:
        outcome = CommitOutcome.APPLIED
    _on_commit(self, token, outcome, now_us)


# --- the log's sequencer -------------------------------------------------------------------------

_go_on_taking_over = LogSequencer._go_on_taking_over
_go_on_draining = LogSequencer._go_on_draining


def _append_before_older_epochs_are_closed(self: LogSequencer, view: Any, now_us: int) -> None:
    mine = self.changes.find_segment(view)
    if mine is not None:
        self.exactly_once._table = ProducerTable(1)
        self._activate(*mine, now_us)
    else:
        _go_on_taking_over(self, view, now_us)


def _roll_with_the_window_open(self: LogSequencer, now_us: int) -> None:
    writer = self.writer
    assert writer is not None
    if writer.state is WriterState.OPEN:
        writer.hold()
        self.state = LogState.CLOSING
        self._read()


def _recover_own_epoch(self: LogSequencer, now_us: int) -> None:
    """The roll's drain took too long: recover one's own epoch, call what was sent failed."""
    for fail in self.transmit.fail_sent("the roll took too long"):
        self.outbox.append(Fail(fail.append_id, "log_unavailable", fail.detail))
    self.exactly_once.abandon("the roll took too long")
    self._forget_writer()
    self.state = LogState.READING
    self._read()


def _clean_without_trim(self: LogNode, segment: Any, nonce: str) -> LogNode:
    return replace(_with_clean(self, segment, nonce), trim_lsn=0, trim_seq_num=0, trim_slot=0)


async def _extent_up_to_the_lap(self: LifeOperations, log_id: LogId) -> Any:
    extent = await _find_extent(self, log_id)
    writer = self._host.drive(log_id).core.writer
    if extent.open_segment is None or writer is None:
        return extent
    lsn = lsn_of(writer.segment.epoch, EntryId(writer.lap + 1))
    seq_num = extent.log.totals.record_count + writer.totals.record_count
    return extent._replace(end=extent.end._replace(lsn=lsn, seq_num=seq_num))


def _recover_newest_first(self: LogSequencer, view: Any, now_us: int) -> None:
    mine = self.changes.find_segment(view)
    older = [s for s in view.segments if s != mine]
    if len(older) > 1:
        view = replace(view, segments=(*reversed(older), *(() if mine is None else (mine,))))
    _go_on_taking_over(self, view, now_us)


# --- reader and placement ------------------------------------------------------------------------


def _bound_beyond_the_end(self: Reader) -> EntryId:
    if self._segment is None or self._start_seq_num is None:
        return EntryId(-1)
    if self._segment.last_entry is not None:
        return EntryId(max(self._segment.last_entry, self._stored))
    return self._lac


def _over_when_sealed(self: Reader) -> bool:
    segment = self._segment
    is_ending = segment is not None and (segment.is_closed or self._is_sealed)
    return is_ending and self._next > self.bound


def _holds_for_the_ensemble(self: Ring, _at: int) -> bool:
    size = sum(self.in_rack.values())
    return size < self.size or (
        len(+self.in_rack) >= self.rule.min_racks and len(+self.in_region) >= self.rule.min_regions
    )


MUTANTS: Final[dict[str, Mutant]] = {
    "recovery-read-without-seal": Mutant(
        "R14", "a recovery read does not carry the seal",
        ((BookieCore, "on_reads", _read_without_seal),),
    ),
    "recovery-below-last-fragment": Mutant(
        "R13", "recovery reads earlier fragments in the last ensemble",
        ((Recovery, "_begin_reading", _read_below_the_last_fragment),),
    ),
    "ack-before-ensemble-cas": Mutant(
        "R6", "entries are acknowledged while the ensemble changes",
        ((LedgerWriter, "_advance", _advance_while_changing),),
    ),
    "stale-acks-kept": Mutant(
        "R7", "acks of replaced members count after a change",
        ((LedgerWriter, "_adopt", _adopt_with_stale_acks),),
    ),
    "ack-of-any-member": Mutant(
        "R8", "an ack counts from a member that is not in the write set",
        ((LedgerWriter, "_on_stored", _count_any_member),),
    ),
    "ack-of-unchanged-refused": Mutant(
        "R8", "acks of unchanged members are dropped at a change, and not asked for again",
        ((LedgerWriter, "_adopt", _drop_every_ack),),
    ),
    "ensemble-change-out-of-order": Mutant(
        "R8", "an out_of_order segment changes its ensemble",
        ((LedgerWriter, "_propose", _propose_out_of_order),),
    ),
    "no-entry-on-damage": Mutant(
        "R15", "a damaged bookie says NO_ENTRY",
        ((BookieCore, "plan", _doubt_is_absence), (Storage, "read", _doubt_is_absence_in_answers)),
    ),
    "torn-tail-refuses-start": Mutant(
        "journal 3", "a bookie whose last commit is torn does not start",
        ((replay_module, "_secure_tail", _refuse_torn_tail),),
    ),
    "corruption-taken-for-torn-tail": Mutant(
        "journal 3", "damage below the last commit is dropped like a torn tail",
        ((FilePass, "_report", _drop_damage),),
    ),
    "torn-tail-taken-for-corruption": Mutant(
        "journal 3", "damage in the last commit counts as corruption",
        ((FilePass, "__init__", _believe_all_durable),),
    ),
    "fsync-error-ignored": Mutant(
        "journal 4", "a write or sync that failed counts as done",
        ((writer_module._Poisoning, "__exit__", _ignore_errors),),
    ),
    "checkpoint-skips-seals": Mutant(
        "journal 5", "a checkpoint without entries to settle keeps no seals",
        ((LedgerBook, "snapshot", _snapshot_without_seals),),
    ),
    "shelf-file-not-synced": Mutant(
        "journal 6", "a checkpoint names shelf files that were not synced",
        ((FileAppender, "finish", _finish_unsynced),),
    ),
    "waiter-registered-after-the-check": Mutant(
        "section 8", "a long poll misses the change that comes right after its look",
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
    "fence-by-majority": Mutant(
        "R12", "a majority of the ensemble fences", ((recovery_module, "covers", _majority),)
    ),
    "ensemble-of-recovery-written-early": Mutant(
        "R16", "recovery writes its ensembles before the close",
        ((Recovery, "_replace_lost", _write_ensemble_early),),
    ),
    "close-ignores-other-recoverer": Mutant(
        "R3", "a close that was refused counts as one's own",
        ((Recovery, "on_commit", _close_whatever_the_answer),),
    ),
    "leftovers-served": Mutant(
        "R17", "entries beyond the last one are served",
        ((Reader, "bound", property(_bound_beyond_the_end)),),
    ),
    "next-segment-early": Mutant(
        "R18", "a reader goes on when a segment is sealed",
        ((Reader, "_is_over", _over_when_sealed),),
    ),
    "lac-overwritten": Mutant(
        "R13", "a late packet lowers the LAC", ((BookieCore, "_store", _late_lac_wins),)
    ),
    "lac-under-seal": Mutant(
        "R10", "an explicit LAC is accepted under seal",
        ((BookieCore, "_judge_lac", _lac_under_seal),),
    ),
    "resend-with-newer-lac-refused": Mutant(
        "section 3", "the same entry with a newer LAC is taken for another one",
        ((BookieCore, "_judge_add", _judge_with_lac),),
    ),
    "regions-on-the-ensemble": Mutant(
        "R20", "racks and regions are checked on the ensemble",
        ((Ring, "holds", _holds_for_the_ensemble),),
    ),
    "ack-before-older-epochs-are-closed": Mutant(
        "section 5", "a new epoch appends before the older ones are sealed",
        ((LogSequencer, "_go_on_taking_over", _append_before_older_epochs_are_closed),),
    ),
    "roll-with-window-open": Mutant(
        "R19", "a roll does not wait for its window",
        ((LogSequencer, "_go_on_draining", _roll_with_the_window_open),),
    ),
    "roll-recovers-own-epoch": Mutant(
        "R19", "a roll that takes too long recovers its own epoch and calls appends failed",
        ((LogSequencer, "_call_off", _recover_own_epoch),),
    ),
    "close-before-predecessor": Mutant(
        "section 4", "a newer epoch is closed before an older one",
        ((LogSequencer, "_go_on_taking_over", _recover_newest_first),),
    ),
    "trim-point-regresses": Mutant(
        "T1", "a close forgets the trim point",
        ((LogNode, "with_clean", _clean_without_trim),),
    ),
    "trim-above-the-lac": Mutant(
        "T1", "a truncation to the tail passes what is sent and not acknowledged",
        ((LifeOperations, "_find_extent", _extent_up_to_the_lap),),
    ),
    **{name: Mutant(*parts) for name, parts in EARLY_MUTANTS.items()},
}  # fmt: skip


# --- the command ---------------------------------------------------------------------------------


class Catch(NamedTuple):
    """Who saw a mutant first: the seed, and the checker, invariant or liveness that objected."""

    seed: int
    by: str


def hunt(name: str, seed_count: int, *, first: int = 1, jobs: int = 2) -> Catch | None:
    """The first of the seeds (in order) that catches the mutant, or None if it survives them."""
    with multiprocessing.Pool(jobs) as pool:
        seeds = range(first, first + seed_count)
        for seed, violation in pool.imap(partial(_play, name), seeds):
            if violation is not None:
                pool.terminate()
                return Catch(seed, violation.partition("\n")[0][:60])
    return None


def _play(name: str, seed: int) -> tuple[int, str | None]:
    with mutated(name):
        return seed, run_seed(seed).violation


def main() -> int:
    """Hunt every mutant, or those named; 1 if one survives."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.mutants")
    parser.add_argument("names", nargs="*", help="all if none is named")
    parser.add_argument(
        "--seeds", type=int, default=2_000, help="a mutant that survives them fails"
    )
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    seeds = []
    for name in options.names or MUTANTS:
        catch = hunt(name, options.seeds, jobs=options.jobs)
        found = "SURVIVES" if catch is None else f"seed {catch.seed:<5} {catch.by}"
        print(f"{MUTANTS[name].rule:10} {name:38} {found}", flush=True)
        seeds.append(None if catch is None else catch.seed)
    caught = sorted(seed for seed in seeds if seed is not None)
    if caught:
        print(f"{len(caught)} of {len(seeds)} caught, median seed {caught[len(caught) // 2]}")
    return 0 if len(caught) == len(seeds) else 1


if __name__ == "__main__":
    sys.exit(main())
