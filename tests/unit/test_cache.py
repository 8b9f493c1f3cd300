"""The cache of what tests build: made once, whole or not at all, bounded, never taken from a user.

Each use is in a process of its own, as it is in life: what a process was given it holds until it
ends, so one process alone could never see anything forgotten.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import cache
from tests.cache import KEPT_PER_KIND, cache_folder, cache_root

ROOT = Path(__file__).resolve().parents[2]
HANG_S = 60

# Says what it made and was given, then holds it until its standard input ends.
USE = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.cache import cache_folder

def make(folder):
    print("making", flush=True)
    sys.stdin.readline()
    (folder / "content").write_text("|".join(sys.argv[2:]))

print("asking", flush=True)
print(cache_folder(sys.argv[1], *sys.argv[2:], make=make), flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cache, "_in_use", {})
    return tmp_path / "duramen-tests"


@contextmanager
def user(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that asks for a folder; killed at the end if it has not ended."""
    command = [sys.executable, "-P", "-c", USE, *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            assert read_line(process) == "asking"
            yield process
        finally:
            process.kill()


def use(*arguments: str) -> list[str]:
    """Let a process use a folder and end; what it said of it."""
    with user(*arguments) as process:
        return finish(process)


def finish(process: subprocess.Popen[str]) -> list[str]:
    """Let a process go on and end; what it said since the last line that was read."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.close()
    said = process.stdout.read().splitlines()
    assert process.wait(HANG_S) == 0
    return said


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def write_content(folder: Path) -> None:
    (folder / "content").write_text("made")


def refuse(folder: Path) -> None:
    raise AssertionError(f"made again: {folder}")


def test_what_is_made_of_the_same_is_made_once(cache_home: Path) -> None:
    first, again = use("go", "a", "b"), use("go", "a", "b")
    assert first == ["making", *again]
    [path] = map(Path, again)
    assert path.parent == cache_home
    assert (path / "content").read_text() == "a|b"
    assert cache_folder("go", "a", "b", make=refuse) == path
    assert cache_folder("go", "a", b"b", make=refuse) == path


def test_parts_count_with_their_borders_and_order() -> None:
    lists = [("ab", "c"), ("a", "bc"), ("abc",), ("c", "ab"), ("ab", "c", "")]
    made = {cache_folder("go", *parts, make=write_content) for parts in lists}
    assert len(made) == len(lists)


def test_a_relative_home_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    assert cache_root() == Path.home() / ".cache" / "duramen-tests"


def test_what_cannot_be_made_is_not_there(cache_home: Path) -> None:
    def fail(folder: Path) -> None:
        write_content(folder)
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        cache_folder("go", make=fail)
    assert names(cache_home) == []
    assert (cache_folder("go", make=write_content) / "content").exists()


def test_what_a_killed_maker_left_is_never_seen(cache_home: Path) -> None:
    with user("go", "a") as process:
        assert read_line(process) == "making"
        [part] = names(cache_home)
        (cache_home / part / "half").touch()
    assert names(cache_home) == [part]
    assert use("go", "other")[0] == "making"
    assert part not in names(cache_home), "whoever comes next clears it away"
    with user("go", "b") as process:
        assert read_line(process) == "making"
        part = next(name for name in names(cache_home) if name.endswith(".part"))
        (cache_home / part / "half").touch()
    [said, path] = use("go", "b")
    assert said == "making"
    assert [entry.name for entry in Path(path).iterdir()] == ["content"]


def test_one_makes_it_while_others_wait() -> None:
    with ExitStack() as stack:
        maker = stack.enter_context(user("go", "a"))
        assert read_line(maker) == "making"
        others = [stack.enter_context(user("go", "a")) for _ in range(3)]
        assert maker.stdin is not None
        maker.stdin.write("\n")
        maker.stdin.flush()
        path = read_line(maker)
        for other in others:
            assert finish(other) == [path]


def test_the_newest_of_a_kind_are_kept_by_last_use(cache_home: Path) -> None:
    [_, first], [_, second] = use("go", "1"), use("go", "2")
    [_, neighbour] = use("go-modules", "1")
    assert use("go", "1") == [first]
    [_, third] = use("go", "3")
    assert names(cache_home) == sorted(Path(p).name for p in (first, third, neighbour))
    assert KEPT_PER_KIND == 2
    locks = {path.name for path in cache_home.glob("*.lock")}
    assert f"{Path(second).name}.lock" not in locks, "its lock went with it"
    assert use("go", "2") == ["making", second]


def test_what_is_in_use_stays_and_goes_when_its_user_has_ended(cache_home: Path) -> None:
    with user("go", "held") as holder:
        assert holder.stdin is not None
        holder.stdin.write("\n")
        holder.stdin.flush()
        assert read_line(holder) == "making"
        held = Path(read_line(holder))
        for part in ("1", "2", "3"):
            use("go", part)
        assert (held / "content").exists()
    use("go", "4")
    assert not held.exists()
    assert len(names(cache_home)) == KEPT_PER_KIND


def test_a_lock_that_went_with_its_folder_holds_nothing(
    cache_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache_home.mkdir()
    lock = cache_home / "go-0.lock"
    waits: list[int] = []

    def wait_for_a_remover(descriptor: int, operation: int) -> None:
        if not waits:
            lock.unlink()
            lock.touch()
        waits.append(descriptor)
        fcntl.flock(descriptor, operation)

    names_of_fcntl = {name: getattr(fcntl, name) for name in ("LOCK_EX", "LOCK_NB", "LOCK_SH")}
    other = SimpleNamespace(**names_of_fcntl, flock=wait_for_a_remover)
    monkeypatch.setattr(cache, "fcntl", other)
    descriptor = cache._lock(cache_home / "go-0", fcntl.LOCK_EX)
    try:
        assert len(waits) == 2
        assert os.path.samestat(os.fstat(descriptor), lock.stat())
    finally:
        os.close(descriptor)


def test_what_somebody_removed_by_hand_is_made_again() -> None:
    path = cache_folder("go", make=write_content)
    (path / "content").unlink()
    path.rmdir()
    assert cache_folder("go", make=write_content) == path
    assert (path / "content").exists()


def test_a_folder_that_is_not_writable_goes_too(
    cache_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = cache_home / "tree"
    inner = folder / "module" / "deep"
    inner.mkdir(parents=True)
    (inner / "file").touch()
    inner.chmod(0o500)
    (folder / "module").chmod(0o500)
    seen: list[int] = []

    def note(path: str) -> None:
        # Root may remove anything: so what others need is asked, that the folders were opened.
        seen.extend(entry.stat().st_mode & 0o700 for entry in (folder / "module", inner))
        shutil.rmtree(path)

    monkeypatch.setattr(cache, "shutil", SimpleNamespace(rmtree=note))
    cache._remove(folder)
    assert seen == [0o700, 0o700]
    assert not folder.exists()


@pytest.mark.parametrize("kind", ["", "Go", "../go", "go.d", "go-", "go--x"])
def test_a_kind_is_a_plain_name(kind: str) -> None:
    with pytest.raises(AssertionError):
        cache_folder(kind, make=write_content)
