"""`duramen-bookie fsck`, `inspect` on a stopped bookie: a journal, two entry log files, a
checkpoint.

The bookie's files are written by its own writers on a real file system. Whatever is damaged must be
found and named, and nothing may be written but an index that is to be made anew.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import pytest

from duramen.core.bookie.bookie_state import CoreSnapshot, LedgerSnapshot, LogSnapshot
from duramen.core.entry_ranges import EntryRanges
from duramen.core.segment import Totals
from duramen.ids import EntryId, Epoch, LedgerId, LogId, ledger_of
from duramen.runtime.stores.memory_store import MemoryTree
from duramen.wire.disk.checkpoint_format import Checkpoint
from duramen.wire.disk.journal_format import JournalRecord, RecordKind
from duramen.wire.entry import encode_entry
from duramen_bookie.checkpoint import read_checkpoint, write_checkpoint
from duramen_bookie.entry_log.entry_log import EntryLog, ref_of
from duramen_bookie.file_system import PosixFileSystem
from duramen_bookie.journal.replay import open_journal
from duramen_bookie.offline.commands import run_command
from duramen_bookie.offline.stopped_bookie import ReadOnlyDisk, open_stopped
from tests.component.identity_world import Disks, run

FIRST = ledger_of(LogId(9), Epoch(1))
SECOND = ledger_of(LogId(10), Epoch(1))
FILE_BYTES = 1 << 16


def entry(number: int, ledger: LedgerId = FIRST) -> bytes:
    return encode_entry(
        ledger_id=ledger,
        entry_id=EntryId(number),
        before=Totals(number, number * 101),
        batches=[bytes([1 + number % 250]) * 101],
        record_count=1,
        after=Totals(number + 1, (number + 1) * 101),
    )


def add(number: int, ledger: LedgerId = FIRST) -> JournalRecord:
    return JournalRecord(
        RecordKind.ADD, ledger, EntryId(number), EntryId(number - 1), entry(number, ledger)
    )


def drop_below(epoch: int) -> JournalRecord:
    """Everything of the first log below an epoch is dropped."""
    return JournalRecord(RecordKind.TOMBSTONE, ledger_of(LogId(9), Epoch(epoch)), is_all_below=True)


class Stopped(NamedTuple):
    """A bookie's directories, and what its tools say about them."""

    disks: Disks
    capture: pytest.CaptureFixture[str]

    @property
    def data(self) -> Path:
        return self.disks.paths["data"]

    @property
    def journal(self) -> Path:
        return self.disks.paths["journal"]

    def entry_log_file(self, file_id: int, kind: str = "de") -> Path:
        return self.disks.paths[f"ledgers-{file_id - 1}"] / f"{file_id:06d}.{kind}"

    def arguments(self) -> list[str]:
        data, journal, *ledgers = [str(path) for path in self.disks.paths.values()]
        named = [text for path in ledgers for text in ("--ledger-dir", path)]
        return [data, "--journal-dir", journal, *named]

    def fsck(self, *flags: str) -> tuple[int, dict[str, Any]]:
        """Exit status and report; nothing was written unless a flag says so."""
        before = self.disks.everything()
        self.capture.readouterr()
        status = run_command(["fsck", *self.arguments(), "--json", *flags])
        assert flags or self.disks.everything() == before
        return status, json.loads(self.capture.readouterr().out.splitlines()[-1])

    def inspect(self, what: str, *more: str) -> tuple[int, list[dict[str, Any]]]:
        before = self.disks.everything()
        self.capture.readouterr()
        status = run_command(["inspect", what, *self.arguments(), *more, "--json"])
        assert self.disks.everything() == before
        return status, [json.loads(line) for line in self.capture.readouterr().out.splitlines()]

    def append_to_journal(self, *records: JournalRecord) -> None:
        """One more commit, as after another clean start and stop."""
        opened, _ = open_journal(
            str(self.journal), PosixFileSystem(), self.disks.cookie("data").incarnation,
            lambda _item: None, now_unix_us=lambda: 0, file_bytes=FILE_BYTES,
        )  # fmt: skip
        opened.commit(list(records))
        opened.write_end()
        opened.close()

    def tear_end(self) -> None:
        """What a power cut leaves: the last commit is there, and nothing says that it is whole."""
        file = self.journal / "000001.dj"
        data = bytearray(file.read_bytes())
        at = data.rindex(b"DJR1")
        data[at : at + 4096] = bytes(4096)
        file.write_bytes(data)
        (self.data / "DIRTY").write_bytes(b"")

    def lose(self, entry_id: int) -> None:
        """The next checkpoint says that an entry of the first ledger is to be repaired."""
        incarnation = self.disks.cookie("data").incarnation
        found = read_checkpoint(PosixFileSystem(), str(self.data), incarnation)
        assert found is not None
        first, second = found.state.ledgers
        lossy = first._replace(unknown=EntryRanges([(entry_id, entry_id)]))
        state = found.state._replace(ledgers=(lossy, second))
        changed = found._replace(number=found.number + 1, state=state)
        write_checkpoint(PosixFileSystem(), str(self.data), changed)


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 0x10
    file.write_bytes(data)


@pytest.fixture
def stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Stopped:
    """Ten and five settled entries of two ledgers in a file each; three more in the journal."""
    disks = Disks(tmp_path / "b1", MemoryTree())
    incarnation = run(disks.start()).incarnation
    fs = PosixFileSystem()
    data, journal, *ledgers = [str(path) for path in disks.paths.values()]
    entry_log = EntryLog(fs, ledgers, incarnation, lambda _ledger: True)
    refs = []
    for file_id, ledger, count in ((1, FIRST, 10), (2, SECOND, 5)):
        writer = entry_log.create(file_id, file_id - 1)
        for number in range(count):
            writer.put(add(number, ledger))
        refs.append(ref_of(writer.finish(), file_id - 1))
    state = CoreSnapshot(
        (LogSnapshot(LogId(9), 0, Epoch(0), EntryRanges()),
         LogSnapshot(LogId(10), 1, Epoch(0), EntryRanges())),
        (_ledger(FIRST, 9), _ledger(SECOND, 4)),
        False,
    )  # fmt: skip
    write_checkpoint(fs, data, Checkpoint(1, incarnation, 0, tuple(refs), 3, state))
    opened, _ = open_journal(
        journal, fs, incarnation, lambda _item: None, now_unix_us=lambda: 0, file_bytes=FILE_BYTES
    )
    opened.commit([add(10), add(11)])
    opened.commit([add(12), JournalRecord(RecordKind.SEAL, FIRST)])
    opened.write_end()
    opened.close()
    return Stopped(disks, capsys)


def _ledger(ledger: LedgerId, last: int) -> LedgerSnapshot:
    return LedgerSnapshot(
        ledger, EntryId(last - 1), EntryId(last), EntryRanges([(0, last)]), EntryRanges(), False
    )


# --- fsck ----------------------------------------------------------------------------------------


def test_a_whole_bookie_is_clean_and_left_as_it_was(stopped: Stopped) -> None:
    status, report = stopped.fsck()
    assert (status, report["status"], report["damages"]) == (0, "clean", [])
    assert (report["bookie_id"], report["was_clean"]) == ("b1", True)
    assert (report["journal_files"], report["journal_records"]) == (1, 4)
    assert (report["shelf_files"], report["shelf_entries"], report["settled_entries"]) == (
        2,
        15,
        15,
    )
    stopped.capture.readouterr()
    assert run_command(["fsck", *stopped.arguments()]) == 0
    assert stopped.capture.readouterr().out.endswith("clean\n")


def test_a_bookie_that_runs_is_not_looked_at(stopped: Stopped) -> None:
    held = stopped.disks.open()
    status, report = stopped.fsck()
    held.release()
    assert (status, report["status"]) == (2, "cannot_tell")
    assert "held by another process" in report["reason"]


def test_directories_of_no_bookie_are_refused(stopped: Stopped, tmp_path: Path) -> None:
    assert run_command(["fsck", str(tmp_path / "nothing")]) == 2
    assert "holds no bookie" in stopped.capture.readouterr().err
    assert not (tmp_path / "nothing").exists()
    assert run_command(["fsck", str(stopped.data)]) == 2, "the other directories are not named"
    assert "ledger-dir" in stopped.capture.readouterr().err


def test_a_damaged_record_of_the_entry_log_is_named(stopped: Stopped) -> None:
    file = stopped.entry_log_file(1)
    flip(file, file.read_bytes().index(entry(4)) + 80)
    status, report = stopped.fsck()
    assert status == 1
    lost = [damage for damage in report["damages"] if damage.get("entries") == [[4, 4]]]
    assert lost and {damage["ledger_id"] for damage in lost} == {str(FIRST)}
    assert report["shelf_entries"] == 14


def test_a_damaged_record_in_the_journal_is_named(stopped: Stopped) -> None:
    file = stopped.journal / "000001.dj"
    flip(file, file.read_bytes().index(entry(11)) + 80)
    status, report = stopped.fsck()
    (damage,) = report["damages"]
    assert (status, damage["ledger_id"], damage["entries"]) == (1, str(FIRST), [[11, 11]])


def test_every_byte_that_means_something_is_checked(stopped: Stopped) -> None:
    """A sample; bytes that are zero may be room that nothing was written to."""
    files = [
        stopped.entry_log_file(1),
        stopped.entry_log_file(1, "idx"),
        stopped.data / "checkpoint-a",
    ]
    for file in files:
        data = file.read_bytes()
        meant = [at for at, byte in enumerate(data) if byte]
        for at in meant[:: max(1, len(meant) // 12)]:
            flip(file, at)
            status, report = stopped.fsck()
            assert status == 1 and report["damages"], (file, at)
            file.write_bytes(data)


def test_an_unclean_stop_alone_is_no_damage(stopped: Stopped) -> None:
    stopped.tear_end()
    status, report = stopped.fsck()
    assert (status, report["was_clean"]) == (0, False)
    assert any("not stopped cleanly" in note for note in report["notes"])


def test_what_the_last_commit_before_a_power_cut_holds_is_not_lost(stopped: Stopped) -> None:
    stopped.lose(12)
    stopped.tear_end()
    status, report = stopped.fsck()
    assert (status, report["damages"]) == (0, [])


def test_a_entry_log_file_that_grew_is_damage(stopped: Stopped) -> None:
    file = stopped.entry_log_file(1)
    said = file.stat().st_size
    file.write_bytes(file.read_bytes() + bytes(4096))
    status, report = stopped.fsck()
    (damage,) = report["damages"]
    assert (status, damage["path"]) == (1, str(file))
    assert damage["what"] == f"{said + 4096} bytes, and the checkpoint says {said}"


@pytest.mark.parametrize(("below", "is_missed"), [(1, True), (2, False)])
def test_what_is_lost_is_missed_from_the_first_live_epoch_on(
    stopped: Stopped, below: int, is_missed: bool
) -> None:
    stopped.append_to_journal(drop_below(below))
    stopped.entry_log_file(1).unlink()
    _, report = stopped.fsck()
    promised = [d["entries"] for d in report["damages"] if d.get("ledger_id") == str(FIRST)]
    assert promised == ([[[0, 9]]] if is_missed else [])


def test_a_lost_data_file_is_told_by_what_was_promised(stopped: Stopped) -> None:
    stopped.entry_log_file(2).unlink()
    status, report = stopped.fsck()
    assert status == 1
    promised = [d for d in report["damages"] if d.get("ledger_id") == str(SECOND)]
    assert [damage["entries"] for damage in promised] == [[[0, 4]]]


def test_one_damaged_copy_of_the_checkpoint_is_damage_and_two_are_the_end(stopped: Stopped) -> None:
    flip(stopped.data / "checkpoint-b", 70)
    status, report = stopped.fsck()
    (damage,) = report["damages"]
    assert status == 1 and damage["path"].endswith("checkpoint-b")
    (stopped.data / "checkpoint-b").unlink()
    status, report = stopped.fsck()
    assert status == 0 and any("the next start writes it" in note for note in report["notes"])
    flip(stopped.data / "checkpoint-a", 70)
    status, report = stopped.fsck("--rebuild-index")
    (damage,) = report["damages"]
    assert status == 1 and "not known" in damage["what"] and report["rebuilt_indexes"] == []


def test_what_an_interrupted_upkeep_left_is_no_damage(stopped: Stopped) -> None:
    (stopped.disks.paths["ledgers-0"] / "000007.de").write_bytes(b"half")
    (stopped.disks.paths["ledgers-0"] / "000001.idx.new").write_bytes(b"half")
    status, report = stopped.fsck()
    assert status == 0
    assert sum("in no checkpoint" in note for note in report["notes"]) == 2


def test_a_newer_version_is_not_judged(stopped: Stopped) -> None:
    for name in ("checkpoint-a", "checkpoint-b"):
        file = stopped.data / name
        data = bytearray(file.read_bytes())
        data[4] = 9
        body = bytes(data[:-4])
        file.write_bytes(body + struct.pack("<I", google_crc32c.value(body)))
    status, report = stopped.fsck()
    assert (status, report["status"]) == (2, "cannot_tell")
    assert "version 9" in report["reason"]


# --- --rebuild-index -----------------------------------------------------------------------------


@pytest.mark.parametrize("is_missing", [False, True])
def test_an_index_comes_out_as_it_was(stopped: Stopped, is_missing: bool) -> None:
    index = stopped.entry_log_file(1, "idx")
    data = index.read_bytes()
    before = stopped.disks.everything()
    if is_missing:
        index.unlink()
    else:
        flip(index, 5000)
    status, report = stopped.fsck()
    assert status == 1 and "--rebuild-index" in report["damages"][0]["what"]
    status, report = stopped.fsck("--rebuild-index")
    assert (status, report["rebuilt_indexes"]) == (0, [str(index)])
    assert index.read_bytes() == data and stopped.disks.everything() == before


def test_entries_that_are_lost_stay_promised_by_the_new_index(stopped: Stopped) -> None:
    file = stopped.entry_log_file(1)
    flip(file, file.read_bytes().index(entry(4)) + 80)
    flip(stopped.entry_log_file(1, "idx"), 5000)
    for _ in range(2):
        status, report = stopped.fsck("--rebuild-index")
        assert status == 1
        promised = [damage for damage in report["damages"] if "promises" in damage["what"]]
        assert [damage["entries"] for damage in promised] == [[[4, 4]]]
    incarnation = stopped.disks.cookie("data").incarnation
    checkpoint = read_checkpoint(PosixFileSystem(), str(stopped.data), incarnation)
    assert checkpoint is not None and checkpoint.number == 2, "written once, for the new index"


def test_a_tool_that_only_reads_is_given_no_way_to_write(stopped: Stopped) -> None:
    data, journal, *ledgers = stopped.disks.paths.values()
    refused = pytest.raises(OSError, match="only reads")
    with open_stopped(data, journal, ledgers) as bookie, refused:
        bookie.fs.remove(str(stopped.entry_log_file(1)))
    assert stopped.entry_log_file(1).exists()


def test_a_check_that_only_reads_cannot_write(tmp_path: Path) -> None:
    disk = ReadOnlyDisk()
    file = tmp_path / "file"
    file.write_bytes(b"x" * 5000)
    opened = disk.open(str(file))
    attempts: Iterator[Any] = iter([
        lambda: opened.pwritev([b"y"], 0),
        lambda: disk.open(str(tmp_path / "new"), is_new=True),
        lambda: disk.remove(str(file)),
        lambda: disk.rename(str(file), str(tmp_path / "new")),
        lambda: disk.make_directory(str(tmp_path / "new")),
    ])  # fmt: skip
    for attempt in attempts:
        with pytest.raises(OSError, match=r"only reads|Bad file descriptor"):
            attempt()
    assert opened.pread(10, 4995) == b"xxxxx"
    opened.close()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# --- inspect -------------------------------------------------------------------------------------


def test_inspect_checkpoint_shows_files_logs_and_ledgers(stopped: Stopped) -> None:
    status, rows = stopped.inspect("checkpoint")
    assert status == 0
    assert [row["kind"] for row in rows] == [
        "checkpoint", "shelf_file", "shelf_file", "log", "log", "ledger", "ledger",
    ]  # fmt: skip
    assert rows[0]["number"] == 1 and rows[4]["sealed_epoch"] == 1
    assert (rows[5]["ledger_id"], rows[5]["settled"], rows[5]["lac"]) == (str(FIRST), [[0, 9]], 8)


def test_inspect_journal_shows_every_record_and_the_verdict(stopped: Stopped) -> None:
    status, rows = stopped.inspect("journal")
    assert status == 0
    records = [row["record"] for row in rows if row["kind"] == "record"]
    assert records == ["ADD", "ADD", "ADD", "SEAL", "END"]
    assert (rows[0]["kind"], rows[0]["is_header_intact"]) == ("file", True)
    assert (rows[-1]["kind"], rows[-1]["is_clean"], rows[-1]["records"]) == ("journal", True, 4)
    file = stopped.journal / "000001.dj"
    flip(file, file.read_bytes().index(entry(11)) + 80)
    status, rows = stopped.inspect("journal", "--file", "1")
    assert status == 1
    assert [row["entry_id"] for row in rows if row["kind"] == "damage"] == [11]
    assert [row["is_intact"] for row in rows if row["kind"] == "record"][1] is False
    assert not [row for row in stopped.inspect("journal", "--file", "7")[1] if "record" in row]


def test_inspect_ledger_shows_where_its_entries_are(stopped: Stopped) -> None:
    for name in (str(FIRST), "9:1"):
        status, (summary, journal, entry_log) = stopped.inspect("ledger", name)
        assert (status, summary["log_id"], summary["epoch"]) == (0, "9", 1)
        assert (summary["sealed_epoch"], summary["lac"], summary["highest"]) == (1, 11, 12)
        assert (journal["file"], journal["entries"]) == ("000001.dj", [[10, 12]])
        assert (entry_log["file"], entry_log["entries"]) == (
            str(stopped.entry_log_file(1)),
            [[0, 9]],
        )
    status, rows = stopped.inspect("ledger", "11:1")
    assert (status, rows[0]["is_known"], len(rows)) == (1, False, 1)


def test_inspect_ledger_shows_the_last_commit_before_a_power_cut(stopped: Stopped) -> None:
    stopped.tear_end()
    _, (summary, journal, _) = stopped.inspect("ledger", "9:1")
    assert (summary["highest"], journal["entries"]) == (12, [[10, 12]])


@pytest.mark.parametrize(
    ("dropped", "is_dropped"),
    [
        (drop_below(1), False),
        (drop_below(2), True),
        (JournalRecord(RecordKind.TOMBSTONE, FIRST), True),
        (JournalRecord(RecordKind.TOMBSTONE, SECOND), False),
    ],
)
def test_inspect_ledger_shows_what_a_drop_means_for_it(
    stopped: Stopped, dropped: JournalRecord, is_dropped: bool
) -> None:
    stopped.append_to_journal(dropped)
    _, rows = stopped.inspect("ledger", "9:1")
    assert rows[0]["is_dropped"] is is_dropped


def test_inspect_entry_tells_of_a_damaged_copy_beside_a_whole_one(stopped: Stopped) -> None:
    stopped.append_to_journal(add(3))
    assert stopped.inspect("entry", "9:1", "3")[0] == 0
    flip(stopped.entry_log_file(1), stopped.entry_log_file(1).read_bytes().index(entry(3)) + 80)
    status, copies = stopped.inspect("entry", "9:1", "3")
    assert (status, [copy["is_intact"] for copy in copies]) == (1, [True, False])


def test_inspect_entry_shows_each_copy_and_gives_its_bytes(
    stopped: Stopped, tmp_path: Path
) -> None:
    output = tmp_path / "entry.bin"
    for number in (3, 11):
        status, (copy,) = stopped.inspect("entry", "9:1", str(number), "--output", str(output))
        assert (status, copy["is_intact"], copy["lac"]) == (0, True, number - 1)
        assert output.read_bytes() == entry(number)
    assert stopped.inspect("entry", "9:1", "50") == (1, [])
    flip(stopped.entry_log_file(1), stopped.entry_log_file(1).read_bytes().index(entry(3)) + 80)
    status, (copy,) = stopped.inspect("entry", "9:1", "3")
    assert (status, copy["is_intact"]) == (1, False)


def test_rows_are_lines_for_people(stopped: Stopped) -> None:
    stopped.capture.readouterr()
    assert run_command(["inspect", "ledger", *stopped.arguments(), "9:1"]) == 0
    lines = stopped.capture.readouterr().out.splitlines()
    assert lines[0].startswith(f"ledger ledger_id={FIRST} log_id=9 epoch=1 is_known=yes ")
    assert "settled=0-9 unknown=-" in lines[0]


@pytest.mark.parametrize(
    "bad", [["11"], ["0:1"], ["9:0"], ["x:1"], [str(2**63)], ["9:1", "-1"], ["9:1", str(2**32)]]
)
def test_ids_that_cannot_be_are_a_fault_of_the_command_line(
    stopped: Stopped, bad: list[str]
) -> None:
    arguments = [*bad, "0"] if len(bad) == 1 else bad
    with pytest.raises(SystemExit) as caught:
        run_command(["inspect", "entry", *stopped.arguments(), *arguments])
    assert caught.value.code == 2


def test_a_bookie_of_the_first_format_can_be_checked(
    stopped: Stopped, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Version 0.1: one cookie, the journal in the data directory, nothing in an entry log."""
    cookie = json.loads((stopped.data / "cookie.json").read_bytes()) | {"format": 1}
    del cookie["place"], cookie["volumes"]
    old = tmp_path / "old"
    old.mkdir()
    (old / "cookie.json").write_text(json.dumps(cookie))
    assert run_command(["fsck", str(old), "--json"]) == 0, "not even a journal yet"
    stopped.journal.rename(old / "journal")
    (old / "journal" / "cookie.json").unlink()
    capsys.readouterr()
    assert run_command(["fsck", str(old), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["journal_records"] == 4
