"""The commit of an archived segment where another attempt is faster, or what is there is not whole.

Of any number of attempts one has the manifest's well-known name, and one is named by the node: none
takes another's for its own, none writes over another's, and none is believed whose files are not
the whole segment up to its end. `test_archive_run` has the runs that nobody disturbs.
Source: docs/protocol/archive.md "From hot to cold: five steps", steps 2 to 5, A1.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from duramen.core.cold_copy import ColdCopy
from duramen.core.flexible.segment import AnySegment
from duramen.ids import EntryId, Epoch, LogId
from duramen.runtime.cold import AlreadyThere, ColdStore, ColdStoreDown, NotThere, find_manifest
from duramen.runtime.cold.folder import FolderStore
from duramen.runtime.cold.memory import MemoryColdStore
from duramen.wire.cold.chain import Chain
from duramen.wire.cold.manifest import Manifest, ManifestError, encode_manifest, read_manifest
from duramen.wire.cold.paths import attempt_folder, attempt_manifest_path, manifest_path
from duramen.wire.cold.rebuild import ColdDataError
from duramen.wire.metadata_json import encode_segment
from duramen.wire.record_batch import encode_batch
from duramen_spark.archive import commit
from duramen_spark.archive.commit import (
    SegmentOutcome,
    check_fits,
    make_manifest,
    mark_segment,
    name_manifest,
    put_manifest,
    read_stored_manifest,
    remove_attempt,
)
from duramen_spark.archive.read_back import read_back
from duramen_spark.archive.recheck import find_fault, recheck
from duramen_spark.archive.report import RunReport
from tests.component.archive_runs import ONE_FILE, PATHS, UUID, World, make
from tests.unit.cold_entries import EPOCH, LOG, SegmentBytes, make_every_kind, write_part

PATH = manifest_path(UUID, LOG, EPOCH)
MINE, THEIRS = "a" * 32, "b" * 32


@pytest.fixture(params=["striped", "flexible"])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> World:
    return asyncio.run(make(tmp_path, is_flexible=request.param == "flexible"))


def make_small(world: World, attempt: str = MINE) -> tuple[Manifest, bytes]:
    """A manifest of all entries in one file, and the file."""
    data, part = write_part(make_every_kind())
    return make_manifest(UUID, world.log, world.segment, attempt, [part]), data


def make_copy(attempt: str = THEIRS, verified_unix_ms: int = 1) -> ColdCopy:
    return ColdCopy(attempt, "e" * 64, 1, verified_unix_ms)


# --- One name, one attempt ------------------------------------------------------------------------


def test_the_manifest_of_another_attempt_is_not_ones_own(world: World) -> None:
    async def scenario() -> None:
        store = MemoryColdStore()
        (mine, _), (theirs, _) = make_small(world, MINE), make_small(world, THEIRS)
        assert await put_manifest(store, PATH, theirs)
        assert await put_manifest(store, PATH, mine) is False
        assert store.files == {PATH: encode_manifest(theirs)}, "nothing was written over it"
        # The answer to one's own was lost, and it was put again.
        assert await put_manifest(store, PATH, theirs) is True
        assert store.files == {PATH: encode_manifest(theirs)}

    asyncio.run(scenario())


@pytest.mark.parametrize("data", [b"", b"{}", b"PAR1"])
def test_something_else_under_the_name_is_neither_ones_own_nor_written_over(
    world: World, data: bytes
) -> None:
    store = MemoryColdStore()
    store.files[PATH] = data
    with pytest.raises(ManifestError):
        asyncio.run(put_manifest(store, PATH, make_small(world)[0]))
    assert store.files == {PATH: data}


def test_a_name_that_was_taken_and_is_not_there_is_left_to_the_next_run(world: World) -> None:
    class Removing(MemoryColdStore):
        def put_new(self, path: str, data: bytes) -> None:
            raise AlreadyThere(path)

    with pytest.raises(ColdStoreDown, match="being removed"):
        asyncio.run(put_manifest(Removing(), PATH, make_small(world)[0]))


def test_a_manifest_of_any_size_is_not_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    store, manifest = MemoryColdStore(), make_small(world)[0]
    assert read_stored_manifest(store, PATH) is None
    store.files[PATH] = data = encode_manifest(manifest)
    monkeypatch.setattr(commit, "MANIFEST_BYTES_MAX", len(data))
    assert read_stored_manifest(store, PATH) == (manifest, data)
    monkeypatch.setattr(commit, "MANIFEST_BYTES_MAX", len(data) - 1)
    reads = store.read_count
    with pytest.raises(ManifestError, match=f"has {len(data)} bytes"):
        read_stored_manifest(store, PATH)
    assert store.read_count == reads


def test_a_replacement_has_a_name_of_its_own(world: World) -> None:
    mine, theirs = make_small(world, MINE)[0], make_small(world, THEIRS)[0]
    assert name_manifest(mine, is_replacement=False) == PATH
    names = {name_manifest(one, is_replacement=True) for one in (mine, theirs)}
    assert names == {attempt_manifest_path(UUID, LOG, EPOCH, a) for a in (MINE, THEIRS)}
    assert PATH not in names


@pytest.mark.parametrize("field", ["cluster", "log_id", "epoch", "attempt"])
def test_a_manifest_with_the_right_sum_and_of_another_place_is_not_believed(
    world: World, field: str
) -> None:
    """A node that names another's sum, or files that somebody has moved."""
    store, mine = MemoryColdStore(), make_small(world, MINE)[0]
    elsewhere: dict[str, Any] = {
        "cluster": "f" * 32, "log_id": LOG + 1, "epoch": EPOCH + 1, "attempt": THEIRS,
    }  # fmt: skip
    other = replace(mine, **{field: elsewhere[field]})
    for stored in (mine, other):
        data = encode_manifest(stored)
        store.files = {attempt_manifest_path(UUID, LOG, EPOCH, MINE): data}
        sha256 = hashlib.sha256(data).hexdigest()
        if stored is mine:
            assert find_manifest(store, UUID, LOG, EPOCH, attempt=MINE, sha256=sha256) == mine
        else:
            with pytest.raises(ManifestError, match="of another segment or attempt"):
                find_manifest(store, UUID, LOG, EPOCH, attempt=MINE, sha256=sha256)


def test_only_files_of_its_own_that_nobody_names_are_removed(world: World) -> None:
    store, manifest = MemoryColdStore(), make_small(world)[0]
    mine, theirs = (attempt_folder(UUID, LOG, EPOCH, attempt) for attempt in (MINE, THEIRS))
    named, left = manifest.path_of(manifest.files[0]), mine + "part-00101.parquet"
    others = [theirs + "part-00000.parquet", theirs + "part-00101.parquet", PATH]
    for path in (named, left, *others):
        store.put_new(path, b"x")
    assert asyncio.run(remove_attempt(store, mine, manifest.files)) == 1
    assert sorted(store.files) == sorted([named, *others])
    assert asyncio.run(remove_attempt(store, mine, [])) == 1
    assert sorted(store.files) == sorted(others)


# --- One node, one copy ---------------------------------------------------------------------------


def test_a_copy_that_the_node_names_is_not_written_over(world: World) -> None:
    async def scenario() -> None:
        theirs = make_copy()
        await world.nodes.change_segment(
            LOG, EPOCH, lambda found, nonce: found.with_cold_copy(theirs, nonce)
        )
        before = await world.read_segment()
        for attempt in (MINE, THEIRS):
            manifest = make_small(world, attempt)[0]
            data = encode_manifest(manifest)
            assert await mark_segment(world.nodes, manifest, data) is SegmentOutcome.LOST_RACE
        assert await world.read_segment() == before

    asyncio.run(scenario())


def test_a_mark_says_what_was_read_back_and_a_segment_without_a_node_is_gone(world: World) -> None:
    async def scenario() -> None:
        manifest = make_small(world)[0]
        data = encode_manifest(manifest)
        assert await mark_segment(world.nodes, manifest, data) is SegmentOutcome.ARCHIVED
        copy = (await world.read_segment()).cold_copy
        assert copy is not None and not copy.is_rechecked
        assert (copy.attempt, copy.manifest_sha256) == (MINE, hashlib.sha256(data).hexdigest())
        assert copy.size_bytes == manifest.size_bytes
        gone = replace(manifest, epoch=Epoch(EPOCH + 1))
        assert await mark_segment(world.nodes, gone, data) is SegmentOutcome.GONE

    asyncio.run(scenario())


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_second_look_says_nothing_of_a_copy_that_took_its_place(
    world: World, is_whole: bool
) -> None:
    """Looked at was one copy; by the time of the verdict the node names another."""

    async def scenario() -> None:
        store = MemoryColdStore()
        manifest, data = make_small(world)
        assert await mark_segment(world.nodes, manifest, encode_manifest(manifest))
        looked_at = await world.read_segment()
        store.files[PATH] = encode_manifest(manifest)
        if is_whole:
            store.files[manifest.path_of(manifest.files[0])] = data
        for change in (
            lambda found, nonce: found.without_cold_copy(nonce),
            lambda found, nonce: found.with_cold_copy(make_copy(), nonce),
        ):
            await world.nodes.change_segment(LOG, EPOCH, change)
        before = await world.read_segment()
        found = await recheck(world.nodes, store, UUID, looked_at, reads_files=True)
        assert bool(found.fault) != is_whole
        assert await world.read_segment() == before
        assert before.cold_copy == make_copy()

    asyncio.run(scenario())


# --- Files up to their end ------------------------------------------------------------------------

Change = Callable[[AnySegment], AnySegment]


def add_totals(**more: int) -> Change:
    def change(segment: AnySegment) -> AnySegment:
        assert segment.totals is not None
        changed = {name: getattr(segment.totals, name) + value for name, value in more.items()}
        return replace(segment, totals=segment.totals._replace(**changed))

    return change


SEGMENTS: dict[str, Change] = {
    "an entry more": lambda s: replace(s, last_entry=EntryId(int(s.last_entry or 0) + 1)),
    "an entry fewer": lambda s: replace(s, last_entry=EntryId(int(s.last_entry or 0) - 1)),
    "a record more": add_totals(record_count=1),
    "a byte more": add_totals(length_bytes=1),
    "another txid": add_totals(max_txid=1),
    "a later record": add_totals(max_timestamp_ms=1),
    "another beginning": lambda s: replace(s, start_seq_num=int(s.start_seq_num or 0) + 1),
    "another epoch": lambda s: replace(s, epoch=Epoch(EPOCH + 1)),
    "another log": lambda s: replace(s, log_id=LogId(LOG + 1)),
    "a hole": lambda s: replace(s, holes=((EntryId(2), EntryId(2)),)),
}


@pytest.mark.parametrize("change", SEGMENTS)
def test_a_manifest_that_says_otherwise_than_the_node_is_not_of_the_segment(
    world: World, change: str
) -> None:
    manifest = make_small(world)[0]
    check_fits(manifest, world.segment)
    with pytest.raises(ManifestError, match="not of this segment"):
        check_fits(manifest, SEGMENTS[change](world.segment))


@pytest.mark.parametrize("field", ["length_bytes", "max_txid", "max_timestamp_ms", "record_count"])
def test_files_that_end_with_other_totals_than_the_segment_are_not_the_segment(
    world: World, field: str
) -> None:
    """The manifest repeats the node's totals; only the last row group tells what was written."""
    segment = add_totals(**{field: 1})(world.segment)
    _, part = write_part(make_every_kind())
    with pytest.raises(ManifestError, match="the files end with"):
        make_manifest(UUID, world.log, segment, MINE, [part])


@pytest.mark.parametrize("lost", [1, 3])
def test_where_the_end_is_lost_the_files_end_before_it(tmp_path: Path, lost: int) -> None:
    segment = SegmentBytes()
    for number in range(6):
        segment.add(encode_batch([b"%d" % number], number))
    for entry in range(6 - lost, 6):
        del segment.entries[EntryId(entry)]

    async def scenario() -> None:
        world = await make(tmp_path, segment)
        assert world.segment.lost_at(EntryId(5)) is not None
        report = await world.archive()
        assert report.is_good and report.outcomes == {"archived": 1}

    asyncio.run(scenario())


def test_no_byte_of_a_file_may_be_another_or_missing_or_too_many(world: World) -> None:
    manifest, data = make_small(world)
    (part,) = manifest.files
    store, path = MemoryColdStore(), manifest.path_of(part)

    def check(stored: bytes) -> None:
        store.files[path] = stored
        read_back(store, path, part, world.segment)

    check(data)
    size = len(data)
    flipped = sorted({*range(8), *range(0, size, size // 50), *range(size - 12, size)})
    for at in flipped:
        with pytest.raises(ColdDataError):
            check(data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :])
    for other in (data[:-1], data[: size // 2], b"", data + b"\0", data + data, b"\0" + data):
        with pytest.raises(ColdDataError):
            check(other)
    del store.files[path]
    with pytest.raises(NotThere):
        read_back(store, path, part, world.segment)


@pytest.mark.parametrize("field", ["identities", "records"])
def test_a_whole_file_of_other_entries_is_found_by_either_sum(world: World, field: str) -> None:
    manifest, data = make_small(world)
    (part,) = manifest.files
    store, path = MemoryColdStore(), manifest.path_of(part)
    store.files[path] = data
    chain: Chain = getattr(part, field)
    other: dict[str, Any] = {field: chain.plus(Chain(0, 1))}
    with pytest.raises(ColdDataError, match="than were written to it"):
        read_back(store, path, replace(part, **other), world.segment)


@pytest.mark.parametrize("reads_files", [True, False])
def test_a_second_look_sees_what_is_gone_or_has_another_size(
    world: World, reads_files: bool
) -> None:
    manifest, data = make_small(world)
    store, path = MemoryColdStore(), manifest.path_of(manifest.files[0])
    store.files = {PATH: encode_manifest(manifest), path: data}
    asyncio.run(mark_segment(world.nodes, manifest, store.files[PATH]))
    segment = asyncio.run(world.read_segment())

    def look() -> str:
        return find_fault(store, UUID, segment, reads_files=reads_files)

    assert look() == ""
    for stored in (data[:-1], data + b"\0", b""):
        store.files[path] = stored
        assert f"has {len(stored)} bytes, not {len(data)}" in look()
    store.files[path] = data[:100] + b"\0" + data[101:]
    assert bool(look()) == reads_files
    del store.files[path]
    assert look() == f"{path} is not there"
    store.files[path] = data
    store.files[PATH] = encode_manifest(replace(manifest, archived_unix_ms=1))
    assert "not the manifest that was verified" in look()
    del store.files[PATH]
    assert look() == f"{PATH} is not there"


# --- Whole runs with another attempt beside them --------------------------------------------------

Meanwhile = Callable[[ColdStore, bytes], bytes | None]


class Beside(FolderStore):
    """A folder in which something happens just before a manifest is put.

    What `meanwhile` gives is stored in the manifest's place; None: the answer is that a file has
    the name.
    """

    def __init__(self, folder: Path, meanwhile: Meanwhile) -> None:
        super().__init__(folder)
        self._folder = folder
        self._meanwhile = meanwhile

    def put_new(self, path: str, data: bytes) -> None:
        stored = self._meanwhile(FolderStore(self._folder), data)
        if stored is None:
            raise AlreadyThere(path)
        super().put_new(path, stored)


async def archive_first(world: World) -> Manifest:
    """An attempt that ended before its manifest was put: only its files are there."""
    assert (await world.archive()).is_good
    manifest = world.read_manifest()
    assert manifest is not None
    world.store.delete(PATH)
    await world.nodes.change_segment(LOG, EPOCH, lambda found, n: found.without_cold_copy(n))
    return manifest


async def archive_beside(world: World, meanwhile: Meanwhile) -> RunReport:
    world.store = Beside(world.folder, meanwhile)
    report = await world.archive()
    world.store = FolderStore(world.folder)
    return report


def files_of(manifest: Manifest) -> list[str]:
    return sorted(manifest.path_of(part) for part in manifest.files)


def test_who_comes_second_stands_back_and_the_first_is_adopted(world: World) -> None:
    async def scenario() -> None:
        first = await archive_first(world)

        def put_first(store: ColdStore, _own: bytes) -> None:
            store.put_new(PATH, encode_manifest(first))

        report = await archive_beside(world, put_first)
        assert report.outcomes == {"lost race": 1} and not report.failures
        assert world.read_manifest() == first
        assert world.list_files() == files_of(first), "its own files went"
        assert (await world.read_segment()).cold_copy is None
        assert (await world.archive()).outcomes == {"adopted": 1}
        copy = (await world.read_segment()).cold_copy
        assert copy is not None and copy.attempt == first.attempt
        assert world.list_files() == files_of(first)

    asyncio.run(scenario())


def test_an_answer_that_was_lost_beneath_the_store_is_ones_own_success(world: World) -> None:
    async def scenario() -> None:
        def put_own(store: ColdStore, own: bytes) -> None:
            store.put_new(PATH, own)

        report = await archive_beside(world, put_own)
        assert report.is_good and report.outcomes == {"archived": 1}
        manifest, copy = world.read_manifest(), (await world.read_segment()).cold_copy
        assert manifest is not None and copy is not None and copy.attempt == manifest.attempt
        assert world.list_files() == files_of(manifest)

    asyncio.run(scenario())


def test_a_manifest_that_is_not_what_was_put_marks_nothing(world: World) -> None:
    """A store that is no store of ours: somebody wrote over the file, or it gave another back."""

    async def scenario() -> None:
        report = await archive_beside(
            world,
            lambda _, own: encode_manifest(replace(read_manifest(own), archived_unix_ms=1)),
        )
        assert report.outcomes == {"failed": 1}
        assert "is not what was put there" in report.failures[0]
        assert (await world.read_segment()).cold_copy is None

    asyncio.run(scenario())


def test_what_has_the_name_and_is_not_whole_stays_there_and_is_not_believed(world: World) -> None:
    async def scenario() -> None:
        world.store.put_new(PATH, b"{}")
        report = await world.archive()
        assert report.outcomes == {"archived": 1} and len(report.mismatches) == 1
        assert world.store.read(PATH, 0, 100) == b"{}", "it was not written over"
        copy = (await world.read_segment()).cold_copy
        assert copy is not None
        named = find_manifest(
            world.store, UUID, LOG, EPOCH, attempt=copy.attempt, sha256=copy.manifest_sha256
        )
        own = name_manifest(named, is_replacement=True)
        assert own != PATH and world.store.size(own) > 0
        assert (await world.archive()).outcomes == {}

    asyncio.run(scenario())


@pytest.mark.parametrize("damage", ["missing", "short", "other"])
def test_files_of_another_attempt_that_are_not_whole_are_left_and_written_anew(
    world: World, damage: str
) -> None:
    async def scenario() -> None:
        first = await archive_first(world)
        world.store.put_new(PATH, encode_manifest(first))
        (path,) = files_of(first)
        file = world.folder / path
        data = file.read_bytes()
        file.unlink()
        spoilt = {"short": data[:-1], "other": data[:99] + bytes([data[99] ^ 1]) + data[100:]}
        if damage != "missing":
            file.write_bytes(spoilt[damage])
        report = await world.archive()
        assert report.outcomes == {"archived": 1} and len(report.mismatches) == 1
        assert world.read_manifest() == first, "what others may have read stays as it was"
        copy = (await world.read_segment()).cold_copy
        assert copy is not None and copy.attempt != first.attempt
        assert find_fault(world.store, UUID, await world.read_segment(), reads_files=True) == ""

    asyncio.run(scenario())


def test_files_of_another_attempt_stay_where_it_could_not_be_adopted(world: World) -> None:
    """Bookies said nothing: the files may be whole, and they are not ours to remove."""

    async def scenario() -> None:
        first = await archive_first(world)
        world.store.put_new(PATH, encode_manifest(first))
        world.source.is_silent = True
        report = await world.archive()
        assert report.outcomes == {"failed": 1} and not report.mismatches
        assert world.list_files() == files_of(first) and world.read_manifest() == first
        world.source.is_silent = False
        assert (await world.archive()).outcomes == {"adopted": 1}

    asyncio.run(scenario())


def test_what_killed_tries_of_ones_own_attempt_left_goes_once_the_manifest_is_there(
    world: World,
) -> None:
    async def scenario() -> None:
        def leave_file(store: ColdStore, own: bytes) -> bytes:
            folder = attempt_folder(UUID, LOG, EPOCH, read_manifest(own).attempt)
            store.open_writer(folder + "part-00001.parquet").commit()
            return own

        report = await archive_beside(world, leave_file)
        assert report.is_good and report.removed_file_count == 1
        manifest = world.read_manifest()
        assert manifest is not None and world.list_files() == files_of(manifest)

    asyncio.run(scenario())


def test_a_segment_whose_files_end_otherwise_is_not_archived(world: World) -> None:
    """Bookies and files agree, and the node says that the segment has more."""

    async def scenario() -> None:
        path = PATHS.segment(LOG, EPOCH)
        found = await world.metadata.get(path)
        assert found is not None
        longer = add_totals(length_bytes=1)(world.segment)
        await world.metadata.set(path, encode_segment(longer), version=found.version)
        report = await world.archive()
        assert report.outcomes == {"failed": 1} and "the files end with" in report.failures[0]
        assert world.read_manifest() is None and (await world.read_segment()).cold_copy is None

    asyncio.run(scenario())


def test_a_run_that_lasts_too_long_commits_nothing(world: World) -> None:
    """A sweep beside it may already take its files for those of a dead attempt."""

    async def scenario() -> None:
        report = await world.archive(replace(ONE_FILE, orphan_age_us=1))
        assert "lasts longer than half of the orphans' age" in report.failures[0]
        assert report.outcomes == {"failed": 1}
        assert world.read_manifest() is None and (await world.read_segment()).cold_copy is None

    asyncio.run(scenario())
