"""Whose disks these are: every combination of directories and ZooKeeper, formats, options.

Cookies, locks and nodes alone, with metadata in memory; a refused start must leave the disks and
ZooKeeper as they were. Not here: what is cut off or runs at once (`test_identity_races`), the
service on top (`test_bookie_service`), processes (`tests/process/test_bookie_identity.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from duramen.ids import BookieId, Incarnation
from duramen.runtime.role import StartRefusedError
from duramen.runtime.service import parse_options
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.wire.metadata_json import encode_node, read_node
from duramen.wire.nodes.formats import PROCESS_FORMATS
from duramen_bookie.cookie import (
    Cookie,
    Directories,
    DiskLost,
    StaleDisk,
    WrongCluster,
    encode_cookie,
    parse_cookie,
)
from duramen_bookie.identity import check_cookies, encode_loss
from tests.component.identity_world import (
    NODE,
    PATHS,
    PLACES,
    Disks,
    change_node,
    delete_node,
    refused,
    run,
)
from tests.golden import read_golden
from tests.waiting import wait_for


@pytest.fixture
def disks(tmp_path: Path) -> Disks:
    """A bookie that was at work and has stopped."""
    disks = Disks(tmp_path / "b1", MemoryTree())
    run(disks.start())
    disks.fill()
    return disks


# --- The ordinary start --------------------------------------------------------------------------


def test_an_unknown_bookie_on_empty_disks_begins_an_incarnation(tmp_path: Path) -> None:
    disks = Disks(tmp_path, MemoryTree())
    cookie = run(disks.start())
    found = [disks.cookie(place) for place in PLACES]
    assert found[0] == cookie and not cookie.is_formatting
    assert {c.incarnation for c in found} == {disks.node()["incarnation"]}
    assert {c.place: c.volume_uuid for c in found[1:]} == cookie.volumes
    assert len({c.volume_uuid for c in found}) == len(PLACES)
    assert (disks.node()["region"], disks.node()["rack"]) == ("local", "r1")


def test_a_place_that_a_person_gave_stays_over_a_restart_until_the_flags_count_again(
    disks: Disks, caplog: pytest.LogCaptureFixture
) -> None:
    change_node(disks.tree, lambda node: node.update(rack="r9", placed_by="admin", weight=2.0))
    run(disks.start())
    assert (disks.node()["rack"], disks.node()["weight"]) == ("r9", 2.0)
    (said,) = [record.getMessage() for record in caplog.records]
    assert "rack r9" in said and "duramen bookies locate b1 --from-flags" in said
    disks.lose_all()
    run(disks.start(accepts_new_incarnation=True))
    assert disks.node()["rack"] == "r9", "new disks stand where the old ones stood"
    change_node(disks.tree, lambda node: node.pop("placed_by"))
    run(disks.start())
    assert disks.node()["rack"] == "r1"


def test_every_later_start_is_the_same_bookie(disks: Disks) -> None:
    first = disks.cookie("data")
    before = disks.everything()
    assert run(disks.start()) == first
    assert run(disks.start(accepts_new_incarnation=True)) == first, "nothing was lost"
    assert disks.everything() == before


def test_a_directory_may_move_with_its_cookie(disks: Disks) -> None:
    moved = disks.paths["journal"].parent / "elsewhere"
    disks.paths["journal"].rename(moved)
    disks.paths["journal"] = moved
    assert run(disks.start()) == disks.cookie("data")


def test_journal_and_ledgers_lie_in_the_data_directory_by_default(tmp_path: Path) -> None:
    directories = Directories(tmp_path)
    paths = [directory.path for directory in directories.every]
    directories.release()
    assert paths == [tmp_path, tmp_path / "journal", tmp_path / "ledgers"]
    assert not list(tmp_path.iterdir()), "to look makes nothing"


def test_a_fresh_file_system_counts_as_empty(tmp_path: Path) -> None:
    disks = Disks(tmp_path, MemoryTree())
    for path in disks.paths.values():
        (path / "lost+found").mkdir(parents=True)
        (path / "mount" / "point").mkdir(parents=True)
    assert run(disks.start()).incarnation


def test_what_it_understands_stays_in_its_node_while_it_is_away(disks: Disks) -> None:
    # In figures: other processes, of other versions, go by them.
    assert PROCESS_FORMATS == {"segment": 2, "log": 2, "envelope": 1, "entry": 2, "ack_mode": 1}
    assert disks.node()["formats"] == PROCESS_FORMATS
    # An older version wrote the node, and said nothing.
    change_node(disks.tree, lambda fields: fields.pop("formats"))
    run(disks.start())
    assert disks.node()["formats"] == PROCESS_FORMATS


def test_a_new_rack_is_told_to_zookeeper(disks: Disks) -> None:
    change_node(disks.tree, lambda fields: fields.update(rack="r9", weight=0.5, other=[1]))
    run(disks.start())
    assert (disks.node()["rack"], disks.node()["weight"], disks.node()["other"]) == ("r1", 0.5, [1])


# --- DiskLost ------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_missing", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_a_directory_that_holds_nothing_is_disk_lost(
    disks: Disks, place: str, is_missing: bool
) -> None:
    disks.lose(place)
    if is_missing:
        disks.paths[place].rmdir()
    sentence = refused(disks, DiskLost)
    assert f"{disks.paths[place]} holds nothing" in sentence
    assert "mount" in sentence and "start with --accept-new-incarnation" in sentence
    for other in set(PLACES) - {place}:
        assert str(disks.paths[other]) in sentence, "each that has to be emptied is named"


@pytest.mark.parametrize("place", PLACES)
def test_a_new_incarnation_is_refused_while_any_directory_holds_something(
    disks: Disks, place: str
) -> None:
    for other in set(PLACES) - {place}:
        disks.lose(other)
    sentence = refused(disks, DiskLost, accepts_new_incarnation=True)
    assert f"empty {disks.paths[place]} too" in sentence
    (disks.paths[place] / "cookie.json").unlink()
    refused(disks, StaleDisk, accepts_new_incarnation=True)


def test_all_disks_lost_is_refused_until_a_person_says_so(disks: Disks) -> None:
    old = disks.cookie("data").incarnation
    disks.lose_all()
    assert f"known as incarnation {old}" in refused(disks, DiskLost)
    change_node(disks.tree, lambda fields: fields.update(weight=2.5, other=[1]))
    cookie = run(disks.start(accepts_new_incarnation=True))
    assert cookie.incarnation != old
    assert {disks.cookie(place).incarnation for place in PLACES} == {cookie.incarnation}
    fields = disks.node()
    assert (fields["incarnation"], fields["weight"], fields["other"]) == (
        cookie.incarnation, 2.5, [1],
    )  # fmt: skip
    lost = disks.tree.get(PATHS.lost(old))
    assert lost is not None
    record = read_node(lost.data)
    assert (record["bookie"], record["replaced_by"]) == ("b1", cookie.incarnation)
    assert run(disks.start(accepts_new_incarnation=True)) == cookie, "said once, or left there"
    assert run(disks.start()) == cookie


def test_the_lost_disk_is_stale_when_it_comes_back(disks: Disks, tmp_path: Path) -> None:
    shutil.copytree(tmp_path / "b1", tmp_path / "attic")
    disks.lose_all()
    run(disks.start(accepts_new_incarnation=True))
    old = Disks(tmp_path / "attic", disks.tree)
    assert "use the disks of that one" in refused(old, StaleDisk)
    refused(old, StaleDisk, accepts_new_incarnation=True)
    for place in PLACES[1:]:
        mixed = Disks(tmp_path / "b1", disks.tree)
        mixed.paths[place] = old.paths[place]
        assert str(old.paths[place]) in refused(mixed, StaleDisk)


def test_a_loss_that_was_recorded_already_is_no_obstacle(disks: Disks) -> None:
    async def record() -> None:
        store = MemoryStore(disks.tree)
        await store.start()
        path = PATHS.lost(disks.cookie("data").incarnation)
        await store.create(path, encode_node({"bookie": "b1"}), make_parents=True)
        await store.close()

    run(record())
    disks.lose_all()
    cookie = run(disks.start(accepts_new_incarnation=True))
    assert disks.node()["incarnation"] == cookie.incarnation


def test_a_new_incarnation_waits_until_the_old_one_is_unregistered(disks: Disks) -> None:
    async def scenario() -> None:
        registered = MemoryStore(disks.tree)
        await registered.start()
        path = f"{PATHS.available}/b1"
        await registered.create(path, encode_node({}), ephemeral=True, make_parents=True)
        before = disks.everything()
        with pytest.raises(StartRefusedError, match=r"another process .* its own --id"):
            await disks.start(accepts_new_incarnation=True)
        assert disks.everything() == before
        store = MemoryStore(disks.tree)
        start = asyncio.create_task(
            disks.start(store, accepts_new_incarnation=True, old_session_s=50)
        )
        await wait_for(lambda: bool(store.statistics()["watches"]))
        assert not start.done()
        await registered.close()
        assert (await start).incarnation == disks.node()["incarnation"]

    disks.lose_all()
    run(scenario())


# --- StaleDisk -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pair", [("journal", "ledgers-0"), ("ledgers-0", "ledgers-1"), ("data", "journal")]
)
def test_swapped_directories_are_refused(disks: Disks, pair: tuple[str, str]) -> None:
    disks.swap(*pair)
    assert "give each directory in its own place" in refused(disks, StaleDisk)


def test_a_directory_alone_in_the_wrong_place_is_refused(disks: Disks, tmp_path: Path) -> None:
    disks.paths["journal"], disks.paths["data"] = disks.paths["data"], tmp_path / "empty"
    assert "--journal-dir, and its cookie says --data-dir" in refused(disks, StaleDisk)


@pytest.mark.parametrize("place", PLACES)
def test_a_disk_of_another_bookie_is_refused(disks: Disks, tmp_path: Path, place: str) -> None:
    other = Disks(tmp_path / "b2", disks.tree, "b2")
    run(other.start())
    disks.paths[place] = other.paths[place]
    assert f"{other.paths[place]} belongs to bookie b2, not b1" in refused(disks, StaleDisk)


def test_the_disks_of_another_bookie_are_refused(disks: Disks) -> None:
    disks.bookie_id = "b2"
    assert "check --id" in refused(disks, StaleDisk)


def test_a_bookie_that_was_removed_from_the_cluster_is_refused(disks: Disks) -> None:
    delete_node(disks.tree)
    assert f"{NODE} is not in ZooKeeper" in refused(disks, StaleDisk)
    refused(disks, StaleDisk, accepts_new_incarnation=True)
    disks.lose("data")
    refused(disks, StaleDisk, accepts_new_incarnation=True)
    disks.lose_all()
    assert run(disks.start()).incarnation == disks.node()["incarnation"]


@pytest.mark.parametrize("place", PLACES)
def test_files_without_a_cookie_are_refused(disks: Disks, place: str) -> None:
    (disks.paths[place] / "cookie.json").unlink()
    assert f"{disks.paths[place]} has files but no cookie" in refused(disks, StaleDisk)
    disks.edit_cookie(
        next(other for other in PLACES if other != place), is_formatting=True
    )  # nothing is believed to be empty because its cookie says so
    refused(disks, StaleDisk)


@pytest.mark.parametrize("place", PLACES)
def test_a_newer_format_is_refused(disks: Disks, place: str) -> None:
    file = disks.paths[place] / "cookie.json"
    file.write_text('{"format": 4, "zone": "z"}')
    assert "format 4, newer than 3: start the newer version" in refused(disks, StaleDisk)


@pytest.mark.parametrize("text", ["", "{}", "[" * 100_000, "[1]", '{"format": true}', "\xff"])
@pytest.mark.parametrize("place", PLACES)
def test_an_unreadable_cookie_is_refused(disks: Disks, place: str, text: str) -> None:
    (disks.paths[place] / "cookie.json").write_bytes(text.encode("latin-1"))
    assert "cookie.json cannot be read" in refused(disks, StaleDisk)


@pytest.mark.parametrize("field", ["cluster_uuid", "incarnation", "volumes", "place"])
def test_a_cookie_without_a_field_is_refused(disks: Disks, field: str) -> None:
    disks.edit_cookie("data", **{field: None})
    assert "cannot be read" in refused(disks, StaleDisk)


def test_a_flipped_bit_of_a_cookie_is_refused_or_harmless(disks: Disks) -> None:
    for place in PLACES:
        file = disks.paths[place] / "cookie.json"
        data = file.read_bytes()
        for bit in range(0, 8 * len(data), 17):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            file.write_bytes(flipped)
            before = disks.everything()
            with contextlib.suppress(StaleDisk, WrongCluster):
                assert run(disks.start()).incarnation == disks.node()["incarnation"]
            assert disks.everything() == before
        file.write_bytes(data)


def test_fewer_or_more_ledger_directories_are_refused(disks: Disks, tmp_path: Path) -> None:
    last = disks.paths.pop("ledgers-1")
    assert "2 of --ledger-dir, and 1 of them" in refused(disks, StaleDisk)
    disks.paths["ledgers-1"] = last
    disks.paths["ledgers-2"] = tmp_path / "b1" / "more"
    assert "2 of --ledger-dir, and 3 of them" in refused(disks, StaleDisk)


def test_another_volume_of_the_same_bookie_is_refused(disks: Disks) -> None:
    disks.edit_cookie("ledgers-1", volume_uuid="f" * 32)
    assert "is volume ffff" in refused(disks, StaleDisk)


def test_one_directory_in_two_places_is_refused(disks: Disks) -> None:
    disks.paths["ledgers-1"] = disks.paths["journal"]
    sentence = refused(disks, StartRefusedError)
    assert "--journal-dir and --ledger-dir (number 2) are both" in sentence


def test_a_path_that_is_no_directory_is_refused(disks: Disks, tmp_path: Path) -> None:
    disks.paths["journal"] = tmp_path / "file"
    disks.paths["journal"].write_bytes(b"")
    assert "cannot be used" in refused(disks, StartRefusedError)


@pytest.mark.parametrize("fields", [{"incarnation": None}, {"incarnation": "x"}, {"v": 99}])
def test_a_node_that_cannot_be_read_is_refused(disks: Disks, fields: dict[str, Any]) -> None:
    async def damage() -> None:
        store = MemoryStore(disks.tree)
        await store.start()
        found = await store.get(NODE)
        assert found is not None
        document = {**json.loads(found.data), **fields}
        await store.set(NODE, json.dumps(document).encode(), version=found.version)
        await store.close()

    run(damage())
    assert NODE in refused(disks, StartRefusedError)


# --- WrongCluster --------------------------------------------------------------------------------


def test_a_disk_in_a_place_without_any_cluster_is_refused(disks: Disks) -> None:
    disks.tree = MemoryTree()
    assert "ZooKeeper has none under this name" in refused(disks, WrongCluster)


@pytest.mark.parametrize("place", PLACES)
def test_a_disk_of_another_cluster_is_refused(disks: Disks, tmp_path: Path, place: str) -> None:
    other = Disks(tmp_path / "other", MemoryTree())
    run(other.start())
    mixed = Disks(tmp_path / "b1", disks.tree)
    mixed.paths[place] = other.paths[place]
    assert f"{other.paths[place]} belongs to cluster" in refused(mixed, WrongCluster)
    other.tree = disks.tree
    assert "check --cluster and --zookeeper" in refused(other, WrongCluster)


# --- Formats and options -------------------------------------------------------------------------

GOLDEN = Cookie(
    "0" * 32, BookieId("b1"), Incarnation("1" * 32), "2" * 32,
    volumes={"journal": "3" * 32, "ledgers-0": "4" * 32},
)  # fmt: skip


def test_cookies_are_spelt_and_read_as_ever() -> None:
    assert parse_cookie(read_golden("cookie-data-v2.json", encode_cookie(GOLDEN))) == GOLDEN
    journal = dataclasses.replace(GOLDEN, place="journal", volume_uuid="3" * 32, volumes={})
    assert parse_cookie(read_golden("cookie-journal-v2.json", encode_cookie(journal))) == journal
    old = parse_cookie(read_golden("cookie-v1.json", _encode_format_1(GOLDEN)))
    assert old == dataclasses.replace(GOLDEN, volumes={}, format=1)


def test_cookies_of_directories_with_envelopes_are_spelt_and_read_as_ever() -> None:
    newest = dataclasses.replace(GOLDEN, format=3)
    assert parse_cookie(read_golden("cookie-data-v3.json", encode_cookie(newest))) == newest
    journal = dataclasses.replace(newest, place="journal", volume_uuid="3" * 32, volumes={})
    assert parse_cookie(read_golden("cookie-journal-v3.json", encode_cookie(journal))) == journal


def test_the_record_of_a_loss_is_spelt_as_ever() -> None:
    known = {"incarnation": "1" * 32, "region": "eu", "rack": "r1"}
    spelt = encode_loss("b1", known, {**known, "incarnation": "2" * 32}, nonce="3" * 24)
    record = read_node(read_golden("repair-lost-node-v1.json", spelt))
    assert (record["bookie"], record["replaced_by"]) == ("b1", "2" * 32)
    assert (record["region"], record["rack"], record["nonce"]) == ("eu", "r1", "3" * 24)


def _encode_format_1(cookie: Cookie) -> bytes:
    fields = dataclasses.asdict(cookie) | {"format": 1}
    del fields["volumes"], fields["place"]
    return json.dumps(fields, sort_keys=True, indent=1).encode()


@pytest.fixture
def old_disks(disks: Disks) -> Disks:
    """What version 0.1 left: one cookie, and a journal in the data directory."""
    data = disks.paths["data"]
    (data / "cookie.json").write_bytes(_encode_format_1(disks.cookie("data")))
    (data / "LOCK").write_bytes(b"")
    (data / "journal").mkdir()
    (data / "journal" / "000001.dj").write_bytes(b"records")
    disks.paths = {"data": data, "journal": data / "journal", "ledgers-0": data / "ledgers"}
    return disks


def test_directories_of_the_first_format_get_cookies(old_disks: Disks) -> None:
    incarnation = old_disks.cookie("data").incarnation
    cookie = run(old_disks.start())
    assert (cookie.incarnation, cookie.format) == (incarnation, 2)
    assert old_disks.cookie("journal").volume_uuid == cookie.volumes["journal"]
    assert (old_disks.paths["journal"] / "000001.dj").read_bytes() == b"records"
    assert run(old_disks.start()) == cookie
    (old_disks.paths["data"] / "cookie.json").write_bytes(_encode_format_1(cookie))
    again = run(old_disks.start())  # an upgrade that was cut off before its last step
    assert again.incarnation == incarnation and run(old_disks.start()) == again


def test_the_journal_of_the_first_format_must_be_where_it_was(old_disks: Disks) -> None:
    elsewhere = old_disks.paths["data"].parent / "journal"
    old_disks.lose("ledgers-0") if old_disks.paths["ledgers-0"].exists() else None
    old_disks.paths["journal"] = elsewhere
    shutil.rmtree(elsewhere)
    assert "start once without --journal-dir" in refused(old_disks, StaleDisk)


def test_offline_tools_ask_the_cookies_alone(disks: Disks, tmp_path: Path) -> None:
    def check() -> Cookie:
        directories = disks.open()
        try:
            return check_cookies(directories.look())
        finally:
            directories.release()

    assert check() == disks.cookie("data")
    disks.swap("journal", "ledgers-0")
    with pytest.raises(StaleDisk, match="in its own place"):
        check()
    disks.swap("journal", "ledgers-0")
    disks.paths["data"] = tmp_path / "nowhere"
    with pytest.raises(DiskLost, match="holds no bookie"):
        check()
    assert not disks.paths["data"].exists()


def test_the_bookie_takes_its_directories_from_the_command_line() -> None:
    needed = ["--cluster", "c", "--id", "b1", "--data-port", "1", "--admin-port", "2"]
    needed += ["--zookeeper", "z:1", "--security", "none"]
    options = parse_options("bookie", [*needed, "--data-dir", "/d"])
    assert (options.journal_dir, options.ledger_dirs) == (None, ())
    assert not options.accept_new_incarnation
    more = ["--journal-dir", "/j", "--ledger-dir", "/a", "--ledger-dir", "/b"]
    options = parse_options(
        "bookie", [*needed, "--data-dir", "/d", *more, "--accept-new-incarnation"]
    )
    assert (options.journal_dir, options.ledger_dirs) == (Path("/j"), (Path("/a"), Path("/b")))
    assert options.accept_new_incarnation
    with pytest.raises(SystemExit):
        parse_options("sequencer", [*needed, *more])
