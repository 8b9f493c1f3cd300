"""Simulated bookies: the production core, storage and data plane, in virtual time.

`BookieNode` is the process around them: the journal's thread (group commit of what waits, marks
when idle), upkeep, kills and power cuts. Who it is in the cluster and what it copies for repair is
its desk's (`repair.desk`).

Not here: clients (`workload`), readers (`reading`), what goes wrong (`nemesis`), what is right
(`checkers`, told from here). Called by `run`. Documented in docs/testing.md.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol, cast

from duramen.core.bookie import BookieCore
from duramen.core.bookie.bookie_state import SpaceLevel
from duramen.core.placement import Candidate
from duramen.core.status import BookieStatus
from duramen.ids import (
    BookieId,
    EntryId,
    Epoch,
    Incarnation,
    LedgerId,
    LogId,
    Member,
    epoch_of,
    log_of,
)
from duramen.limits import DELETION_READ_COUNT_MAX
from duramen.runtime.stores.metadata_store import MetadataStore, SessionState
from duramen.units import MS, SECOND
from duramen.wire.bookie_calls import Add, ServiceClass
from duramen.wire.disk.checkpoint_format import Checkpoint
from duramen.wire.disk.journal_format import JournalRecord
from duramen_bookie.checkpoint import write_checkpoint
from duramen_bookie.entry_log.index_file import IndexDamaged
from duramen_bookie.journal.recycling import NoSpaceError
from duramen_bookie.journal.writer import JournalPoisoned
from duramen_bookie.repair.proofs import MetadataProofs
from duramen_bookie.upkeep.checkpointing import (
    add_files,
    begin_compaction,
    begin_settling,
    break_off,
    next_checkpoint,
    switch,
)
from duramen_bookie.upkeep.deletion import Deletion
from duramen_bookie.upkeep.transfer import Transfer
from tests.sim.data_plane import CountedPlane
from tests.sim.disk import PowerCut, SimDisk
from tests.sim.frames import SimFrame
from tests.sim.members.seats import SimWitnessing
from tests.sim.metadata import PATHS, Store, StoreSession
from tests.sim.network import MEMBERS, Network, Refusal
from tests.sim.options import Options
from tests.sim.repair.calls import SimBookieClient
from tests.sim.repair.desk import BookieDesk
from tests.sim.storage import LAYOUT, JudgedHoldings, SimStorage
from tests.sim.world import Node, World

_RESTARTS_US: Final = (60 * MS, 3000 * MS)
_DELETION_US: Final = (SECOND, 4 * SECOND)
_DELETION_DELAY_US: Final = 2 * SECOND
CLUSTER: Final = "sim"
"""The uuid of the cluster, in its node."""


class Judge(Protocol):
    """What is told of a bookie's disk and answers."""

    def on_durable(self, member: Member, ledger_id: LedgerId, entry_id: EntryId, crc: int) -> None:
        """The durable layer of the disk holds an entry."""

    def on_vouched(self, member: Member, ledger_id: LedgerId, entry_id: EntryId) -> None:
        """The bookie's core knows that it holds an entry."""

    def on_add_refused(
        self, member: Member, ledger_id: LedgerId, entry_id: EntryId, crc: int
    ) -> None:
        """An add was refused because another entry of that id is stored."""

    def on_entry_denied(self, member: Member, ledger_id: LedgerId, entry_id: EntryId) -> None:
        """The bookie vouched that it does not hold an entry."""

    def on_dropped(self, log_id: LogId, epoch: Epoch) -> None:
        """The bookie drops every ledger of a log below an epoch."""

    def on_purged(self, ledger_id: LedgerId, last_entry: EntryId) -> None:
        """The bookie purges what lies beyond an entry."""

    def on_lac_answered(
        self, member: Member, ledger_id: LedgerId, status: BookieStatus, sealed: int
    ) -> None:
        """A write of a LAC was answered; `sealed`: what was durably sealed when it came."""


Reply = Callable[[Any], None]


class BookieNode(Node):
    """One bookie process and its disk.

    Args:
        bookies: all of them, for repair between them.
        sequencers: whom it pings.
        judge: told of what becomes durable and of what is answered.
    """

    def __init__(
        self,
        world: World,
        index: int,
        *,
        options: Options,
        store: Store,
        network: Network,
        bookies: dict[str, BookieNode],
        sequencers: Mapping[str, Node],
        judge: Judge,
    ) -> None:
        region, rack = options.places[index]
        super().__init__(world, f"b{index}", region)
        self.rack = rack
        self.options = options
        self.incarnation_count = 0
        self.is_settled = False
        """The metadata store knows these disks as this bookie's."""
        self.is_spare = index >= len(options.places) - options.spare_count
        """It may join later."""
        self.is_removed = self.is_spare
        """It is no bookie of the cluster any more, or not yet, and is not started."""
        self.session = StoreSession(store, self, _nothing, self._on_rosters)
        self.witness: SimWitnessing | None = None
        self.replayed: list[tuple[LedgerId, EntryId, int]] = []
        self.disk: SimDisk
        self.member: Member
        self.judge = judge
        self._core: BookieCore
        self._storage: SimStorage
        self._plane: CountedPlane
        self._proofs: MetadataProofs
        self._dies_in_commit: bool | None = None
        self._dies_in_upkeep: bool | None = None
        self._dies_of: str | None = None
        self._level = SpaceLevel.WRITABLE
        self._carried: tuple[Transfer, Iterator[int]] | None = None
        self._is_rolling = False
        self._network = network
        self._sequencers = sequencers
        self._client = SimBookieClient(network, self, bookies)
        self._desk: BookieDesk
        self.format()

    # --- Life ------------------------------------------------------------------------------------

    def format(self) -> None:
        """A new disk: a new incarnation that holds nothing."""
        self.incarnation_count += 1
        number = int(self.name[1:]) << 16 | self.incarnation_count
        self.member = Member(BookieId(self.name), Incarnation(f"{number:032x}"))
        self.disk = SimDisk(random.Random(self.world.rng.getrandbits(64)))
        self.is_settled = False
        self._answered_seals: dict[LogId, int] = {}
        self._sealed_by_read: dict[LogId, int] = {}

    @property
    def is_listening(self) -> bool:
        """Its port opens when it knows who it is and what it may take on."""
        return self.is_up and self._desk.is_serving

    @property
    def is_resting(self) -> bool:
        """Its journal has nothing to do: all that it wrote is covered by a durable mark."""
        journal = self._storage.sim_journal if self.is_up else None
        return journal is not None and journal.is_resting

    def candidate_of(self, member: Member) -> Candidate:
        """Where any of its incarnations is."""
        return Candidate(member, self.region, self.rack)

    def start(self) -> None:
        """Replay and serve; a disk that fails ends the process again."""
        if self.is_up or self.is_removed:
            return
        self.begin_life()
        self.replayed.clear()
        self._dies_in_commit = self._dies_in_upkeep = None
        self._dies_of = None
        self._core = BookieCore(
            self.member.incarnation, identity_of=self._identity_of, start_number=self.life
        )
        self._storage = SimStorage(self, self._core)
        self._carried = None
        self._is_rolling = False
        if not self.guard(self._replay):
            return
        self._deletion = Deletion(
            self.session, PATHS, CLUSTER, JudgedHoldings(self, self._storage),
            delay_us=_DELETION_DELAY_US, now_us=lambda: self.world.now_us,
        )  # fmt: skip
        self._proofs = MetadataProofs(
            cast(MetadataStore, self.session), PATHS, self._on_segment_checked
        )
        self._plane = CountedPlane(
            self.world, self._core, self._storage, self._proofs.check_segment,
            read_next_epoch=self._proofs.read_next_epoch, on_damage=self._on_damage,
            on_denied=self._on_denied,
        )  # fmt: skip
        self._level = SpaceLevel.WRITABLE
        self._desk = BookieDesk(
            self, self._core, self._storage, self._client, plane=self._plane, proofs=self._proofs,
            on_level=self._on_level,
        )  # fmt: skip
        self.session.open()
        self.world.note(self.name, "start", repr(self._core))
        self.loop.run_task(self._desk.run())
        if self.options.has_gossip:
            self._witness_sequencers()
        self.after(self.world.between(SECOND, 8 * SECOND), self._settle_again)
        self.after(self.world.between(*_DELETION_US), self._delete_again)

    def _witness_sequencers(self) -> None:
        witness = SimWitnessing(self, self._network, self.session, self._sequencers)
        self.loop.enter(witness.start)
        self.witness = witness

    def _on_rosters(self) -> None:
        if self.witness is not None:
            self.witness.learn(self.session.store.sequencers)

    def _on_level(self, level: SpaceLevel) -> None:
        """Its disk became full, or has space again."""
        self.world.note(self.name, "space", level.name)
        self.world.counts[f"disk is {level.value}"] += 1
        self._level = level
        self._core.set_read_only(level)

    def _identity_of(self, ledger_id: LedgerId, entry_id: EntryId) -> int | None:
        return self._storage.entry_log.identity_of(ledger_id, entry_id)

    def _replay(self) -> None:
        self._storage.replay()
        result = self._storage.replayed
        counts = self.world.counts
        counts["journal replayed"] += 1
        counts["torn tail"] += result.torn_bytes > 0
        counts["damage found"] += len(result.damages) > 0
        assert self.disk.is_rotten or not result.damages, f"nothing rotted: {result.damages}"
        counts["tail secured"] += len(result.tail) > 0
        counts["clean start"] += result.resume is not None
        for log_id, epoch in self._answered_seals.items():
            is_kept = self._core.sealed_epoch(log_id) >= epoch or self.disk.is_rotten
            assert is_kept, f"the seal of log {log_id} up to {epoch} was answered and is gone"
        for ledger_id, entry_id, crc in self.replayed:
            self.judge.on_durable(self.member, ledger_id, entry_id, crc)
            self.judge.on_vouched(self.member, ledger_id, entry_id)
        self.replayed.clear()

    def refuse_start(self, why: str, *, is_for_good: bool) -> None:
        """The process ends at once: these are not the disks that the cluster knows."""
        self.world.note(self.name, "start refused", why)
        self.world.counts["start refused"] += 1
        self.is_removed |= is_for_good
        self.end_life()
        if not is_for_good:
            self.world.at(SECOND, self.start)

    def crash_in_commit(self, *, is_power_cut: bool) -> None:
        """As `crash`, in the middle of the journal's next commit."""
        if self.is_up:
            self._dies_in_commit = is_power_cut

    def crash_in_upkeep(self, *, is_power_cut: bool) -> None:
        """As `crash`, in the middle of the next transfer to the entry log."""
        if self.is_up:
            self._dies_in_upkeep = is_power_cut

    def lose_power_at(self, what: str) -> None:
        """The next `seal` or `write back` that comes is never durable: the power goes first."""
        self._dies_of = what if self.is_up else None

    def crash(self, *, is_power_cut: bool) -> None:
        """The process dies; with the power cut the disk loses what was not synced."""
        if not self.is_up:
            return
        journal = self._storage.sim_journal
        if journal is not None and journal.batch:
            # The commit that is under way gets as far as it gets.
            self.disk.cut_in_operations = self.world.rng.randrange(3)
            try:
                journal.writer.commit([r for append in journal.batch for r in append.records])
            except NoSpaceError:
                pass
            except JournalPoisoned:
                self.world.counts["crash within a commit"] += 1
        elif self._carried is not None:
            self._crash_amid(*self._carried)
        self.end_life()
        if is_power_cut:
            self.world.counts["torn write"] += self.disk.cut_power()
        else:
            self.disk.reset()
        self.world.note(self.name, "power cut" if is_power_cut else "killed")

    def stop(self) -> None:
        """Stop in peace: the end mark is written if nothing waits."""
        if not self.is_up:
            return
        journal = self._storage.sim_journal
        if journal is None or journal.batch:
            return
        if self.guard(journal.writer.write_end):
            self.session.end()
            self.end_life()
            self.world.note(self.name, "stopped")

    def guard(self, work: Callable[[], None]) -> bool:
        """Do something with the disk; a journal that fails, or a start, ends the process."""
        try:
            work()
        except (JournalPoisoned, OSError):
            self.world.counts["journal poisoned"] += 1
            self.world.note(self.name, "poisoned")
            self.end_life()
            self.world.at(self.world.between(100 * MS, 1000 * MS), self.start)
            return False
        return True

    def take_stock(self, ledger_id: LedgerId, first: EntryId, last: EntryId) -> dict[EntryId, int]:
        """Identities of the entries that its disks hold now, of a range."""
        return self._desk.take_stock(ledger_id, first, last)

    def sync_us(self) -> int:
        """How long the next sync takes."""
        return self.world.between(self.options.sync_us // 2, self.options.sync_us * 2) + (
            self.disk.slow_us
        )

    def on_sync_over(self) -> None:
        """The journal's write and sync return, unless this is where it dies."""
        assert self._storage.sim_journal is not None
        if self._dies_in_commit is not None:
            self.crash(is_power_cut=self._dies_in_commit)
            self.world.at(
                self.world.between(20 * MS, self.world.rng.choice(_RESTARTS_US)), self.start
            )
            return
        self.guard(self._storage.sim_journal.commit)

    def report_durable(self, records: Sequence[JournalRecord]) -> None:
        """The disk has synced these records."""
        for record in records:
            if record.kind.holds_entry:
                crc = int.from_bytes(record.body[4:8], "little")
                self.judge.on_durable(self.member, record.ledger_id, record.entry_id, crc)

    def report_vouched(self, records: Sequence[JournalRecord]) -> None:
        """The core knows that these records are durable."""
        for record in records:
            if record.kind.holds_entry:
                self.judge.on_vouched(self.member, record.ledger_id, record.entry_id)

    # --- Upkeep (as `upkeep.settling`, `compaction` and `deletion`) ------------------------------

    def _settle_again(self) -> None:
        self.after(self.world.between(2 * SECOND, 10 * SECOND), self._settle_again)
        if self._carried is not None or self._is_rolling:
            return
        for file in self._storage.entry_log.list_files():
            if file.is_index_damaged:
                try:
                    self._storage.rebuild_index(file.ref)
                except OSError:
                    self.world.counts["upkeep failed"] += 1
                else:
                    self.world.counts["index rebuilt"] += 1
        files = self._storage.entry_log.list_files()
        if files and self.world.chance(0.3):
            self._carry_out(begin_compaction(self._storage, self.world.rng.choice(files)))
        else:
            self._is_rolling = True
            self._storage.roll(self._on_rolled)

    def _delete_again(self) -> None:
        self.after(self.world.between(*_DELETION_US), self._delete_again)
        if self.session.session is SessionState.CONNECTED:
            self.spawn(self._delete())

    async def _delete(self) -> None:
        """As `Deletion.run_round`, one log after the other."""
        deletion = self._deletion
        deletion._reads_left = DELETION_READ_COUNT_MAX
        if await deletion._is_ours():
            logs = deletion._plan.begin_round(deletion._holdings.list_logs())
            await deletion._visit_logs(logs)

    def _on_rolled(self, sealed_file_id: int) -> None:
        self._is_rolling = False
        if sealed_file_id:
            self._carry_out(begin_settling(self._storage, sealed_file_id))

    def _carry_out(self, transfer: Transfer) -> None:
        self.world.counts["compaction" if transfer.replaced else "settling"] += 1
        self._carried = transfer, transfer.pieces()
        if self._dies_in_upkeep is not None:
            self.crash(is_power_cut=self._dies_in_upkeep)
            self.world.at(self.world.between(20 * MS, 3 * SECOND), self.start)
            return
        self._go_on_copying()

    def _go_on_copying(self) -> None:
        """Copy a piece, and the next one later; at the end the checkpoint, and then the switch."""
        assert self._carried is not None
        transfer, pieces = self._carried
        try:
            if next(pieces, None) is not None:
                self.after(self.sync_us(), self._go_on_copying)
                return
            checkpoint = next_checkpoint(self._storage, transfer)
            write_checkpoint(self.disk, LAYOUT.data, checkpoint)
        except (OSError, IndexDamaged):
            self.world.counts["upkeep failed"] += 1
            transfer.keep()
            break_off(self._storage, transfer)
            transfer.abandon()
            self._carried = None
            return
        self.after(self.sync_us(), self._put_in_force, transfer, checkpoint)

    def _crash_amid(self, transfer: Transfer, pieces: Iterator[int]) -> None:
        """The transfer that is under way gets as far as it gets."""
        self.disk.cut_in_operations = self.world.rng.randrange(12)
        with suppress(PowerCut, OSError, IndexDamaged):
            for _ in pieces:
                pass
            write_checkpoint(self.disk, LAYOUT.data, next_checkpoint(self._storage, transfer))
        self.world.counts["crash within upkeep"] += 1

    def _put_in_force(self, transfer: Transfer, checkpoint: Checkpoint) -> None:
        storage = self._storage
        self.world.note(self.name, "checkpoint", checkpoint.number, checkpoint.covered_file_id)
        storage.checkpoint = checkpoint._replace(state=storage.checkpoint.state)
        self._carried = None
        try:
            add_files(storage, transfer)
        except (OSError, IndexDamaged):
            # As the bookie's `Carrier`: the old files serve on, and the next round copies again.
            self.world.counts["switch failed"] += 1
            return
        switch(storage, transfer, _nothing)
        storage.entry_log.retire(transfer.replaced)
        self.world.counts["entries settled"] += sum(map(len, transfer.moved.values()))
        self.world.counts["settled damage"] += len(transfer.damaged)
        for ledger_id in dict.fromkeys(ledger_id for ledger_id, _ in transfer.damaged):
            self._desk.on_damage(ledger_id)
        self.drain()

    # --- Data plane ------------------------------------------------------------------------------

    def serve(self, kind: str, body: Any, reply: Reply) -> None:
        if kind == MEMBERS:
            self.loop.run_task(self._answer_member(body, reply))
            return
        frame = SimFrame(*body)
        incarnation, rows, _ = frame
        if self._dies_of is not None and self._dies_of == _purpose_of(kind, rows):
            self._dies_in_commit, self._dies_of = True, None
        if kind in ("inventory", "pull"):
            self._desk.serve(kind, incarnation, rows, reply)
        else:
            self.loop.run_task(self._answer(kind, frame, reply))

    async def _answer_member(self, body: bytes, reply: Reply) -> None:
        assert self.witness is not None
        reply(await self.witness.answer(body))

    async def _answer(self, kind: str, frame: SimFrame, reply: Reply) -> None:
        incarnation, rows, _ = frame
        sealed = []
        if kind == "lac":
            sealed = [self._core.sealed_epoch(log_of(row.ledger_id)) for row in rows]
        elif kind == "read" and incarnation == self.member.incarnation:
            self._note_sealing_reads(rows)
        said = await self._plane.answer(kind, frame)
        if said is None:
            return
        if not isinstance(said, Refusal):
            match kind:
                case "add":
                    self._note_adds(rows, said)
                case "seal":
                    self._note_seals(rows, said)
                case "lac":
                    self._note_lacs(rows, sealed, said)
                case _:
                    self.world.counts["full disk read"] += self._level is not SpaceLevel.WRITABLE
        reply(said)

    def _note_sealing_reads(self, rows: Any) -> None:
        """Count the reads that carry a seal to where none has come yet (R14)."""
        for row in [getattr(row, "wanted", row) for row in rows]:
            log_id = log_of(row.ledger_id)
            known = max(self._core.sealed_epoch(log_id), self._sealed_by_read.get(log_id, 0))
            if row.seal_epoch > known:
                self._sealed_by_read[log_id] = row.seal_epoch
                self.world.counts["sealed by a read"] += 1

    def _note_adds(self, adds: Sequence[Add], statuses: Any) -> None:
        for add, status in zip(adds, statuses, strict=True):
            if status is BookieStatus.DIFFERENT:
                crc = int.from_bytes(add.entry[4:8], "little")
                self.judge.on_add_refused(self.member, add.ledger_id, add.entry_id, crc)
            elif status is BookieStatus.SEALED:
                epoch = self._sealed_by_read.get(log_of(add.ledger_id))
                self.world.counts["add refused after a read"] += epoch == epoch_of(add.ledger_id)
            elif status is BookieStatus.READ_ONLY and self._level is not SpaceLevel.WRITABLE:
                self.world.counts["add refused by a full disk"] += 1

    def _note_seals(self, rows: Any, marks: Any) -> None:
        for row, mark in zip(rows, marks, strict=True):
            if mark.status in (BookieStatus.OK, BookieStatus.UNKNOWN):
                known = self._answered_seals.get(row.log_id, 0)
                self._answered_seals[row.log_id] = max(known, row.epoch)
                self.world.counts["seal on a full disk"] += self._level is not SpaceLevel.WRITABLE

    def _note_lacs(self, rows: Any, sealed: list[int], marks: Any) -> None:
        for row, mark, before in zip(rows, marks, sealed, strict=True):
            if row.is_write:
                self.judge.on_lac_answered(self.member, row.ledger_id, mark.status, before)

    def _on_denied(self, ledger_id: LedgerId, entry_id: EntryId) -> None:
        self.judge.on_entry_denied(self.member, ledger_id, entry_id)

    def drain(self) -> None:
        """Carry out what the core has left in its outbox."""
        self._plane.drain()

    def _on_damage(self, ledger_id: LedgerId) -> None:
        self._desk.on_damage(ledger_id)

    def _on_segment_checked(self, ledger_id: LedgerId, is_open: bool, made: int) -> None:
        self.world.counts["segment proved open"] += is_open
        self._plane.on_segment_checked(ledger_id, is_open=is_open, made=made)

    def validate(self) -> None:
        self._core.validate()

    @property
    def waiter_count(self) -> int:
        """Requests that wait for their answer."""
        return self._plane.waiting_count


def _purpose_of(kind: str, rows: Any) -> str:
    """What `BookieNode.lose_power_at` calls it."""
    if kind == "add" and rows[0].is_recovery:
        return "copy" if rows[0].service is ServiceClass.REPAIR else "write back"
    return kind


def _nothing(*_: object) -> None:
    """Nobody listens."""
