"""The list of faults fits the tree: each changes one place, and no module of some size is left out.

A fault whose text was edited away says so here at once, and is to be chosen anew for what stands
there now; a new module of more than 150 lines needs two. Nothing is played here.
"""

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.mutants_services.fault import Fault, ListError, read_faults

pytestmark = pytest.mark.gate

ROOT = Path(__file__).resolve().parents[2]
FAULTS = read_faults()
COUNT_MIN = 60
MODULE_LINES_MAX = 150
"""A longer module of these folders has two faults or more."""
FOLDERS = ("services", "libs/common/duramen/runtime")
WAS_NOT_NOTICED = frozenset({
    "lane-sends-what-nobody-waits-for", "lane-takes-appends-after-stop",
    "lane-takes-groups-after-stop", "busy-lanes-are-dropped", "feed-failure-is-not-raised",
    "feed-idle-without-a-bound", "feed-linger-is-not-cancelled",
    "feed-is-not-nudged", "feed-drain-wakes-nobody", "read-any-believes-another-entry",
    "joined-read-has-no-replica-of-its-own", "position-indexes-never-evicted",
    "position-maxima-never-evicted", "no-space-turns-the-order-round",
    "acknowledged-by-a-poisoned-journal", "manifest-of-another-attempt-is-ones-own",
    "cold-copy-is-overwritten", "files-may-end-early", "zookeeper-members-are-hidden-until-ready",
    "bookies-are-hidden-until-ready", "sequencers-are-hidden-until-ready",
    "foreign-object-is-taken-over",
    "reader-waits-on-after-the-last-try", "reader-gives-no-room-back",
    "deleted-log-stays-in-the-cache", "deleted-name-is-remembered", "change-missed-in-an-outage",
    "names-never-evicted", "evicts-a-log-that-is-read", "beyond-a-tail-that-is-not-sure",
    "tail-of-old-metadata", "stream-hole-of-one-record-is-not-told",
    "stream-ends-well-at-an-unsure-tail", "stream-waits-for-a-client-that-takes-nothing",
    "stream-is-not-closed", "partial-answers-are-cached", "read-proxy-serves-while-it-stops",
    "read-proxy-is-ready-for-ever-without-metadata", "zookeeper-outlives-a-failed-start",
    "zookeeper-takes-any-java", "metadata-ancestors-of-unknown-fate",
    "registration-of-the-session-before-counts", "registry-gives-up-after-a-failure",
    "service-that-failed-ends-well", "service-takes-a-journal-size-off-the-blocks",
    "service-shows-a-traceback-for-a-taken-port", "zookeeper-watch-before-its-read",
    "rest-believes-a-body-cut-short", "rest-bounds-a-piece-instead-of-the-body",
    "rest-surprise-is-never-uncertain", "rest-waits-for-a-body-for-ever",
    "forwards-half-a-body-to-the-next-peer", "forwards-without-a-bound",
    "folder-store-links-before-the-disk-has-it", "webhdfs-publishes-a-short-file",
    "webhdfs-believes-a-short-answer", "archive-believes-any-manifest",
    "archive-readers-never-evicted", "cold-cache-never-evicts", "cold-layout-of-another-attempt",
    "cold-loads-without-a-bound",
})  # fmt: skip
"""Planted once, and noticed by nothing: they stay in the list."""


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def test_every_fault_changes_one_place_to_something_else_that_compiles() -> None:
    whole = {path: ast.dump(ast.parse(read(path))) for path in {fault.path for fault in FAULTS}}
    for fault in FAULTS:
        broken = ast.parse(fault.apply(read(fault.path)), fault.name)
        assert ast.dump(broken) != whole[fault.path], fault.name


def test_every_fault_says_what_a_user_suffers_and_who_is_to_notice() -> None:
    for fault in FAULTS:
        assert fault.suffers.endswith("."), fault.name
        assert fault.tests, fault.name
        missing = [test for test in fault.tests if not (ROOT / test).is_file()]
        assert not missing, fault.name


def test_no_module_of_some_size_is_left_out() -> None:
    counts = Counter(fault.path for fault in FAULTS)
    modules = [
        path.relative_to(ROOT).as_posix()
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if len(path.read_text(encoding="utf-8").splitlines()) > MODULE_LINES_MAX
    ]
    assert len(modules) > 100, "the folders are there"
    assert not [module for module in modules if counts[module] < 2]


def test_the_list_is_long_and_has_what_was_once_not_noticed() -> None:
    names = {fault.name for fault in FAULTS}
    assert len(FAULTS) >= COUNT_MIN
    assert not WAS_NOT_NOTICED - names


def test_no_fault_is_shown_to_quiet_tests() -> None:
    # They want the whole machine, which the player shares for as long as they run.
    assert not [name for fault in FAULTS for name in fault.tests if "mark.quiet" in read(name)]


def test_a_text_that_is_there_twice_or_not_at_all_is_refused() -> None:
    fault = Fault("a-fault", "area", "a.py", "x = 1", "x = 2", "Wrong.", ("tests/test_a.py",))
    assert fault.apply("x = 1\n") == "x = 2\n"
    for source in ("", "x = 1\nx = 1\n"):
        with pytest.raises(ListError, match="a-fault: its old text occurs"):
            fault.apply(source)


@pytest.mark.parametrize(
    ("more", "complaint"),
    [('line = "7"\n', "has other fields"), ("\n[[file.fault]]\nname = 'a'\n", "has other fields")],
)
def test_a_list_with_something_else_in_it_is_refused(
    tmp_path: Path, more: str, complaint: str
) -> None:
    row = 'name = "a"\nold = "x"\nnew = "y"\nsuffers = "Wrong."\n'
    head = '[[file]]\npath = "a.py"\ntests = ["tests/test_a.py"]\n[[file.fault]]\n'
    (tmp_path / "area.toml").write_text(head + row, encoding="utf-8")
    assert [fault.area for fault in read_faults(tmp_path)] == ["area"]
    (tmp_path / "area.toml").write_text(head + row + more, encoding="utf-8")
    with pytest.raises(ListError, match=complaint):
        read_faults(tmp_path)
    twice = head + row + f"[[file.fault]]\n{row}"
    (tmp_path / "area.toml").write_text(twice, encoding="utf-8")
    with pytest.raises(ListError, match="names that occur twice: a"):
        read_faults(tmp_path)
