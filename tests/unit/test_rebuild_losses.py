"""A rebuild of producers and token over entries that are lost: what it may say, and what not (R15).

Histories are drawn at random: producers and their epochs, tokens, snapshots in parts, closed
epochs, truncations, losses. What the rebuilt table would answer is compared with what was there.
Source: R15, docs/protocol/recovery.md "Takeover", docs/protocol/repair.md "What a takeover makes of
a loss".
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from duramen.core.log_node import LogNode
from duramen.core.segment import Segment, Totals
from duramen.core.sequencer.context import Ports
from duramen.core.sequencer.effects import Effect, ReadHistory, ReadSegment
from duramen.core.sequencer.exactly_once import rebuild as module
from duramen.core.sequencer.exactly_once.producer_table import UNKNOWN_TOKEN, ProducerTable
from duramen.core.sequencer.exactly_once.rebuild import Rebuild
from duramen.core.sequencer.exactly_once.stamps import (
    ControlRecord,
    HistoryEntry,
    ProducerRow,
    Result,
    SnapshotPart,
    Stamp,
    StampedBatch,
    TokenRecord,
)
from duramen.ids import NOTHING, Dlsn, EntryId, Epoch, Lsn, lsn_of
from duramen.limits import FENCING_TOKEN_BYTES_MAX
from tests.tiers import sized
from tests.unit.repair_world import make_log, make_segment

KEPT = 2
SEED_COUNT = sized(fast=300, gate=750, night=30_000)
NAMES = "pqr"


@dataclass(slots=True)
class History:
    """A log as it was written, by owners who knew everything."""

    log: LogNode = field(
        default_factory=lambda: replace(
            make_log(), config=make_log().config.model_copy(
                update={"producers": make_log().config.producers.model_copy(
                    update={"results_kept": KEPT})}))
    )  # fmt: skip
    segments: dict[Epoch, Segment] = field(default_factory=dict)
    entries: dict[Epoch, list[HistoryEntry]] = field(default_factory=dict)
    table: ProducerTable = field(default_factory=lambda: ProducerTable(KEPT))
    position: int = 0
    complete: Lsn | None = None
    is_mode_ordered: bool = True

    # --- writing ---------------------------------------------------------------------------------

    @property
    def epoch(self) -> Epoch:
        return Epoch(len(self.segments) + 1)

    @property
    def lap(self) -> int:
        return len(self.entries.get(self.epoch, [])) - 1

    def _push(self, control: ControlRecord | None, *batches: StampedBatch) -> None:
        entries = self.entries.setdefault(self.epoch, [])
        has_state = bool(control or batches or (entries and entries[-1].has_state))
        entries.append(
            HistoryEntry(EntryId(len(entries)), has_state, control is not None, control, batches)
        )

    def write_plain(self) -> None:
        self._push(None)
        self.position += 1

    def write_batch(self, name: str, *, is_new_epoch: bool = False) -> Stamp:
        epoch, last = self.table.last_of(name) or (0, -1)
        stamp = Stamp(name, epoch + 1, 0) if is_new_epoch else Stamp(name, epoch, last + 1)
        start = self.log.totals.record_count
        batch = StampedBatch(stamp, 0, self.position - start, 2, 7)
        place = Dlsn(self.epoch, EntryId(self.lap + 1), 0)
        self._push(None, batch)
        self.table.apply(stamp, Result(place, self.position, 2, 7), 0)
        self.position += 2
        return stamp

    def write_token(self, token: str) -> None:
        self._push(TokenRecord(token))
        self.table.token = token

    def cut(self, part_count: int) -> list[SnapshotPart]:
        """What a snapshot of the present state would be."""
        through, rows = lsn_of(self.epoch, EntryId(self.lap)), self.table.list_rows()
        shares: list[list[ProducerRow]] = [rows[i::part_count] for i in range(part_count)]
        return [
            SnapshotPart(through, i, part_count, self.table.token, tuple(share))
            for i, share in enumerate(shares)
        ]

    def write_snapshot(self, parts: list[SnapshotPart]) -> None:
        for part in parts:
            self._push(part)
        self.complete = parts[0].through

    def close(self, *, by_owner: bool) -> None:
        if by_owner and not self.table.is_empty and self.entries.get(self.epoch):
            self.write_snapshot(self.cut(2))
        epoch, count = self.epoch, self.position - self.log.totals.record_count
        segment = make_segment([(0, "abc")], self.lap, epoch=epoch)
        segment = replace(
            segment, totals=Totals(count), start_seq_num=self.log.totals.record_count,
            ack_mode="ordered",
        )  # fmt: skip
        lsn = self.log.snapshot_lsn
        if by_owner:
            lsn = lsn_of(Epoch(epoch + 1), NOTHING) if self.table.is_empty else self.complete or lsn
        self.segments[epoch] = segment
        self.log = replace(
            self.log, next_epoch=Epoch(epoch + 1), last_clean_epoch=epoch, snapshot_lsn=lsn,
            totals=Totals(self.position),
        )  # fmt: skip

    # --- what becomes of it ----------------------------------------------------------------------

    def lose(self, epoch: int, *ranges: tuple[int, int]) -> None:
        segment = self.segments[Epoch(epoch)]
        self.segments[Epoch(epoch)] = segment.with_lost(ranges, "lost")

    def is_lost(self, dlsn: Dlsn) -> bool:
        return self.segments[dlsn.epoch].lost_at(dlsn.entry) is not None

    def batches(self) -> Iterator[tuple[Stamp, Dlsn]]:
        """Every batch that is in the log, or was."""
        for epoch, entries in self.entries.items():
            for entry in entries:
                for batch in entry.stamped:
                    yield batch.stamp, Dlsn(epoch, entry.entry, 0)

    def rebuild(self, bench: Bench | None = None) -> ProducerTable:
        return (bench or Bench(self)).run()


class Bench:
    """A rebuild, and the disks that it reads: never what is lost, given up, or released."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.effects: list[Effect] = []
        self.unread: set[tuple[int, int]] = set()
        self.unread_nonces: set[str] = set()
        self.read_count = self.token = self.now_us = 0
        ports = Ports(self.effects.append, self._new_token, str, random.Random(1), dict, tuple)
        self.rebuild = Rebuild(history.log, (), 0, ports)

    def _new_token(self) -> int:
        self.token += 1
        return self.token

    def run(self, *, until_us: int | None = None) -> ProducerTable:
        """To its end, or until that time; it reads for a second at most."""
        if not self.token:
            self.rebuild.start()
        while not self.rebuild.is_done and self.now_us < (until_us or 1_000_000):
            if not self.effects:
                self.now_us = self.rebuild.wakeup_at_us() or self.now_us
                self.rebuild.on_timer(self.now_us)
                continue
            effect = self.effects.pop(0)
            if isinstance(effect, ReadSegment):
                assert effect.epoch >= self.history.log.first_kept_epoch, effect
                segment = self.history.segments[effect.epoch]
                self.rebuild.on_segment(effect.token, segment, self.now_us)
            else:
                assert isinstance(effect, ReadHistory)
                self.rebuild.on_history(effect.token, self._read(effect), self.now_us)
        assert self.rebuild.is_done or until_us, self.rebuild
        return self.rebuild.table

    def _read(self, effect: ReadHistory) -> list[HistoryEntry]:
        epoch, found = effect.segment.epoch, list[HistoryEntry]()
        needed = self.history.log.needed_lsn
        for number in range(effect.first, min(effect.last, effect.first + 2) + 1):
            entry = EntryId(number)
            assert effect.segment.lost_at(entry) is None, f"asked for what is lost: {effect}"
            assert lsn_of(epoch, entry) >= needed, f"asked for what may not be repaired: {effect}"
            if (epoch, entry) in self.unread or effect.segment.nonce in self.unread_nonces:
                break
            found.append(self.history.entries[epoch][entry])
        if effect.is_headers_only:
            found = [entry._replace(control=None, stamped=()) for entry in found]
        self.read_count += len(found)
        return found


def judge(table: ProducerTable, stamp: Stamp) -> str:
    """What admission says of a batch (`admission`), with nothing in flight."""
    known = table.last_of(stamp.producer_id)
    if known is None:
        return "unknown" if stamp.sequence else "fresh"
    if table.is_lost(stamp):
        return "lost"
    if stamp.epoch < known[0]:
        return "fenced"
    if stamp.epoch == known[0] and stamp.sequence <= known[1]:
        return "stored" if table.result_of(stamp) is None else "duplicate"
    is_next = stamp.sequence == (known[1] + 1 if stamp.epoch == known[0] else 0)
    return "fresh" if is_next else "gap"


# --- At random -----------------------------------------------------------------------------------


def draw(rng: random.Random) -> History:
    """A log with producers, tokens, snapshots and closed epochs, truncated and archived."""
    history = History()
    is_used = rng.random() < 0.9
    for _ in range(rng.randint(1, 4)):
        pending: list[SnapshotPart] = []
        for _ in range(rng.randint(0, 9)):
            match rng.choice(["plain", *["batch"] * 5, "bump", "token", "cut", "snapshot"]):
                case "batch" | "bump" as what if is_used:
                    history.write_batch(rng.choice(NAMES), is_new_epoch=what == "bump")
                case "token" if is_used:
                    history.write_token(rng.choice(["", "one", "two"]))
                case "cut" if not pending and is_used:
                    pending = history.cut(rng.randint(1, 3))
                case "snapshot" if pending:
                    history.write_snapshot(pending)
                    pending = []
                case _:
                    history.write_plain()
        history.close(by_owner=rng.random() < 0.5)
    _truncate(history, rng)
    if rng.random() < 0.4:
        first_hot = rng.randint(1, history.log.first_stateful_epoch)
        first_hot = min(first_hot, history.log.last_clean_epoch + 1)
        history.log = history.log.with_first_hot_epoch(Epoch(first_hot), "hot")
    return history


def _truncate(history: History, rng: random.Random) -> None:
    epoch = Epoch(rng.randint(1, len(history.segments)))
    segment = history.segments[epoch]
    if rng.random() < 0.5:
        entry = rng.randint(0, max(segment.last_entry or 0, 0))
        history.log = replace(history.log, trim_lsn=lsn_of(epoch, EntryId(entry)))
    live = min(history.log.trim.lsn >> 32, ((history.log.snapshot_lsn or 0) + 1) >> 32)
    if history.log.snapshot_lsn is not None and live > 1:
        history.log = replace(history.log, first_live_epoch=Epoch(live))


def lose_some(history: History, rng: random.Random) -> None:
    for epoch, segment in history.segments.items():
        assert segment.last_entry is not None
        if segment.last_entry < 0 or rng.random() < 0.3:
            continue
        first = rng.randint(0, segment.last_entry)
        last = rng.choice([first, rng.randint(first, segment.last_entry), segment.last_entry])
        history.lose(epoch, (first, last))


def test_without_losses_everything_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(SEED_COUNT):
        rng = random.Random(seed)
        history = draw(rng)
        monkeypatch.setattr(module, "_HEADER_COUNT", rng.choice([1, 2, 4_096]))
        table = history.rebuild()
        table.validate()
        assert table.token == history.table.token, seed
        for name in NAMES:
            assert table.last_of(name) == history.table.last_of(name), seed


def test_what_is_there_is_no_news_and_what_is_lost_is_not_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEED_COUNT):
        rng = random.Random(seed)
        history = draw(rng)
        lose_some(history, rng)
        monkeypatch.setattr(module, "_HEADER_COUNT", rng.choice([1, 2, 4_096]))
        table = history.rebuild()
        table.validate()
        try:
            _check_batches(history, table, seen)
            _check_fences(history, table, seen)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    expected = (
        "there: duplicate", "there: stored", "there: fenced", "lost: lost", "lost: fresh",
        "lost: gap", "lost: fenced", "lost: unknown", "older epoch: fenced", "older epoch: lost",
        "token known", "token unknown",
    )  # fmt: skip
    assert all(seen[name] for name in expected), seen


def _check_batches(history: History, table: ProducerTable, seen: Counter[str]) -> None:
    for stamp, dlsn in history.batches():
        if lsn_of(dlsn.epoch, dlsn.entry) < history.log.needed_lsn:
            continue
        said = judge(table, stamp)
        result = table.result_of(stamp)
        if not history.is_lost(dlsn):
            seen[f"there: {said}"] += 1
            assert said in ("duplicate", "stored", "fenced"), f"{stamp} at {dlsn}: {said}"
            assert said != "duplicate" or (result is not None and result.start == dlsn), stamp
        elif history.table.last_of(stamp.producer_id) != table.last_of(stamp.producer_id):
            # Else a later snapshot knows of it: its owner had acknowledged it before the loss.
            seen[f"lost: {said}"] += 1
            last = (table.last_of(stamp.producer_id) or (0, 0))[1]
            is_old = said == "stored" and stamp.sequence <= last - KEPT
            is_known = said in ("duplicate", "stored") and _is_in_snapshot(history, stamp)
            assert said not in ("duplicate", "stored") or is_old or is_known, f"{stamp} at {dlsn}"


def _is_in_snapshot(history: History, stamp: Stamp) -> bool:
    parts = [
        entry.control
        for epoch, entries in history.entries.items()
        for entry in entries
        if isinstance(entry.control, SnapshotPart)
        and history.segments[epoch].lost_at(entry.entry) is None
    ]
    rows = [row for part in parts for row in part.rows if row.producer_id == stamp.producer_id]
    return any(row.epoch == stamp.epoch and row.last >= stamp.sequence for row in rows)


def _check_fences(history: History, table: ProducerTable, seen: Counter[str]) -> None:
    """Whoever was fenced, or holds an old token, is not let in because the fence is lost."""
    is_known = table.token == history.table.token
    seen["token known" if is_known else "token unknown"] += 1
    assert is_known or table.token == UNKNOWN_TOKEN, table.token
    newest = {stamp.producer_id: stamp.epoch for stamp, _ in history.batches()}
    for stamp, _ in history.batches():
        if stamp.epoch < newest[stamp.producer_id]:
            said = judge(table, stamp._replace(sequence=stamp.sequence + 1))
            seen[f"older epoch: {said}"] += 1
            assert said != "fresh", stamp


# --- One by one ----------------------------------------------------------------------------------


def make_history(*names: str) -> History:
    """Batches of the producers of these names, an entry each, in epoch 1; nobody closed it."""
    history = History()
    for name in names:
        history.write_batch(name)
    history.close(by_owner=False)
    return history


def test_batches_that_are_missing_before_one_that_is_there_are_neither_stored_nor_new() -> None:
    history = make_history(*"pqppp")
    history.lose(1, (2, 3))
    table = history.rebuild()
    said = [judge(table, Stamp("p", 0, sequence)) for sequence in range(5)]
    assert said == ["stored", "stored", "lost", "duplicate", "fresh"], "results_kept is 2"
    assert judge(table, Stamp("q", 0, 1)) == "lost", "a newer epoch of q may be lost"
    assert judge(table, Stamp("q", 0, 0)) == "duplicate"
    assert judge(table, Stamp("q", 1, 0)) == "fresh"


def test_marks_go_on_in_snapshots_until_a_new_epoch_takes_their_place() -> None:
    history = make_history(*"pqp")
    history.lose(1, (2, 2))
    table = history.rebuild()
    copy = ProducerTable(KEPT)
    copy.load(table.token, table.list_rows())
    copy.validate()
    assert (copy.token, judge(copy, Stamp("p", 0, 1))) == (UNKNOWN_TOKEN, "lost")
    copy.apply(Stamp("p", 1, 0), Result(Dlsn(Epoch(2), EntryId(0), 0), 9, 1, 7), 0)
    assert judge(copy, Stamp("p", 1, 1)) == "fresh" and judge(copy, Stamp("p", 0, 1)) == "fenced"
    assert len(UNKNOWN_TOKEN.encode()) > FENCING_TOKEN_BYTES_MAX, "nobody can name it"


def test_a_loss_before_which_or_behind_which_no_state_lies_puts_nothing_in_doubt() -> None:
    history = History()
    for _ in range(3):
        history.write_plain()
    history.write_batch("p")
    history.close(by_owner=False)
    history.lose(1, (0, 1))
    table = history.rebuild()
    assert (table.token, judge(table, Stamp("p", 0, 1))) == ("", "fresh")


def test_a_snapshot_of_which_a_part_is_lost_is_none_and_the_one_before_is_taken() -> None:
    history = History()
    first = history.write_batch("p")
    history.write_snapshot(history.cut(2))
    second = history.write_batch("p")
    history.close(by_owner=True)
    assert history.log.rebuild_lsn == lsn_of(Epoch(1), EntryId(4))
    history.lose(1, (4, 4))
    table = history.rebuild()
    assert [judge(table, stamp) for stamp in (first, second)] == ["duplicate", "duplicate"]
    assert judge(table, Stamp("p", 0, 2)) == "lost", "the lost entry may have held it"


@pytest.mark.parametrize("header_count", [1, 2, 3, 4_096])
def test_a_snapshot_within_a_segment_bounds_what_is_replayed(
    monkeypatch: pytest.MonkeyPatch, header_count: int
) -> None:
    monkeypatch.setattr(module, "_HEADER_COUNT", header_count)
    history = History()
    for _ in range(20):
        history.write_batch("p")
    parts = history.cut(2)
    history.write_batch("q")
    history.write_snapshot(parts)
    for _ in range(4):
        history.write_batch("p")
    history.close(by_owner=False)
    bench = Bench(history)
    table = history.rebuild(bench)
    assert bench.rebuild.entry_count == 1 + len(parts) + 4, "what lies behind the snapshot's LSN"
    assert table.list_rows() == history.table.list_rows()


def test_a_loss_that_a_snapshot_comes_after_and_says_nothing_of_is_a_loss() -> None:
    history = History()
    history.write_batch("p")
    parts = history.cut(2)
    history.write_token("one")
    history.write_snapshot(parts)
    history.close(by_owner=False)
    history.lose(1, (1, 1))
    table = history.rebuild()
    assert (table.token, judge(table, Stamp("p", 0, 1))) == (UNKNOWN_TOKEN, "lost")
    assert judge(table, Stamp("p", 0, 0)) == "duplicate"


def test_with_no_snapshot_left_what_readers_may_not_read_is_known_to_nobody() -> None:
    history = History()
    history.write_batch("p")
    history.write_plain()
    history.write_batch("q")
    history.close(by_owner=True)
    history.lose(1, (3, 4))
    history.log = replace(history.log, trim_lsn=lsn_of(Epoch(1), EntryId(1)))
    table = history.rebuild()
    assert [judge(table, Stamp(name, 0, 0)) for name in "pq"] == ["fresh", "duplicate"]
    assert table.token == UNKNOWN_TOKEN


def test_a_loss_that_is_accepted_while_a_rebuild_waits_lets_it_go_on() -> None:
    history = make_history(*"ppp")
    bench = Bench(history)
    bench.unread = {(1, 1)}
    bench.run(until_us=500_000)
    assert not bench.rebuild.is_done and bench.now_us > 0, "it asks again and again"
    history.lose(1, (1, 1))
    table = bench.run()
    assert bench.rebuild.is_done
    assert [judge(table, Stamp("p", 0, n)) for n in range(3)] == ["stored", "lost", "duplicate"]


def test_copies_that_repair_has_moved_are_found_by_a_rebuild_that_waits() -> None:
    history = make_history(*"ppp")
    bench = Bench(history)
    bench.unread = {(1, 1)}
    bench.run(until_us=500_000)
    history.segments[Epoch(1)] = replace(history.segments[Epoch(1)], nonce="moved")
    bench.unread_nonces = {"closed"}
    bench.unread = set()
    assert judge(bench.run(), Stamp("p", 0, 2)) == "duplicate"


def test_a_log_without_state_reads_no_entry_for_what_it_lost() -> None:
    history = History()
    for _ in range(50):
        history.write_plain()
    history.close(by_owner=False)
    history.lose(1, (45, 49))
    bench = Bench(history)
    assert history.rebuild(bench).token == UNKNOWN_TOKEN
    assert bench.read_count == 1, "the header of the last entry that is there"


@pytest.mark.parametrize("header_count", [1, 2, 3, 7])
def test_many_losses_are_read_around(monkeypatch: pytest.MonkeyPatch, header_count: int) -> None:
    monkeypatch.setattr(module, "_HEADER_COUNT", header_count)
    history = make_history(*"pq" * 20)
    history.lose(1, *[(n, n) for n in range(1, 39, 3)])
    table = history.rebuild()
    assert judge(table, Stamp("q", 0, 19)) == "duplicate" and judge(table, Stamp("p", 0, 19)) == (
        "duplicate"
    )
