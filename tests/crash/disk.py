"""A disk whose power may go at any moment: a FileSystem that knows what is durable and what is not.

Per file: what the device holds, and every version that an unsynced 512-byte sector and the size
have had since the last sync. Per directory: creations, renames and removals that no directory sync
covers; each happened or did not, alone, but never before what it builds on (a rename is atomic).
`crash_states` gives the disks that a power cut may leave; `Disk.hook` sees every operation before
it happens: it may look at those disks, cut the power, or raise the OSError that the operation ends
with. Bits flip and ranges turn unreadable on demand.

More pessimistic than ext4: a file's sync makes no name durable, only (as ext4, XFS and btrfs all
do) the directories above it; what is synced in one directory says nothing about another one.
Not here: time, torn sectors, what a map of a damaged range does. Used by `tests/crash`.
"""

from __future__ import annotations

import errno
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from duramen_bookie.file_system import DiskUsage

SECTOR_BYTES: Final = 512
ENDLESS_BYTES: Final = 1 << 40
"""Size of a disk without a capacity."""

_SUBSET_OPERATIONS_MAX: Final = 10
"""Up to so many pending directory operations every subset is tried: 1,024 name spaces at most."""


class PowerCut(BaseException):
    """The machine stops here; nobody may handle it."""


class Operation(NamedTuple):
    """What is about to happen to which path (of a rename: the new one)."""

    name: str
    path: str


Hook = Callable[[Operation], None]


class Inode:
    """One file's bytes, whatever its names are.

    `data` is what is read (the page cache), `durable` what the device holds; they differ also
    where a sync failed: those sectors count as clean, and no later sync writes them.
    """

    def __init__(self, number: int, content: bytes = b"") -> None:
        self.number = number
        self.data = bytearray(content)
        self.durable = bytearray(content)
        self.sectors: dict[int, list[bytes]] = {}
        """Dirty sector → its contents since the last sync, oldest first."""
        self.sizes: list[int] = []
        """Sizes since the last sync, as `sectors`."""
        self.unreadable: list[tuple[int, int]] = []

    def write(self, offset: int, data: bytes) -> None:
        end = offset + len(data)
        if end > len(self.data):
            self.resize(end)
        self.data[offset:end] = data
        self._note(offset, end)

    def resize(self, size_bytes: int) -> None:
        before = len(self.data)
        if size_bytes == before:
            return
        if size_bytes < before:
            del self.data[size_bytes:]
        else:
            self.data.extend(bytes(size_bytes - before))
        self.sizes.append(size_bytes)
        # What is cut off, and what comes back as zeros, is written as everything else is.
        self._note(min(before, size_bytes), max(before, size_bytes))

    def sync(self) -> None:
        """Everything dirty reaches the device."""
        if self.sizes:
            _fit(self.durable, len(self.data))
        for sector, versions in self.sectors.items():
            _put_sector(self.durable, sector, versions[-1])
        self.sectors.clear()
        self.sizes.clear()

    def fail_sync(self, keep: Callable[[], bool]) -> None:
        """Some of what is dirty reaches the device; the rest never will, and reads as if it had."""
        for sector, versions in self.sectors.items():
            if keep():
                _put_sector(self.durable, sector, versions[-1])
        self.sectors.clear()

    def device(self) -> bytearray:
        """What reading past the page cache gives: dirty pages are written out first."""
        data = bytearray(self.durable)
        _fit(data, len(self.data))
        for sector, versions in self.sectors.items():
            _put_sector(data, sector, versions[-1])
        return data

    def clone(self) -> Inode:
        copy = Inode(self.number)
        copy.data, copy.durable = bytearray(self.data), bytearray(self.durable)
        copy.sectors = {sector: list(versions) for sector, versions in self.sectors.items()}
        copy.sizes, copy.unreadable = list(self.sizes), list(self.unreadable)
        return copy

    def _note(self, start: int, end: int) -> None:
        """Sectors of a range were written; rewriting what is there already makes no version."""
        for sector in range(start // SECTOR_BYTES, -(-end // SECTOR_BYTES)):
            new = _sector(self.data, sector)
            versions = self.sectors.get(sector)
            if new != (versions[-1] if versions else _sector(self.durable, sector)):
                self.sectors.setdefault(sector, []).append(new)


class ModelFile:
    """An open file."""

    def __init__(self, disk: Disk, path: str, inode: Inode) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._is_open = True

    def size_bytes(self) -> int:
        return len(self._inode.data)

    def preallocate(self, size_bytes: int) -> None:
        self._disk.operate("preallocate", self._path)
        if size_bytes > len(self._inode.data):
            self._disk.take_space(size_bytes - len(self._inode.data))
            self._inode.resize(size_bytes)

    def pwritev(self, buffers: Sequence[bytes], offset: int) -> None:
        data = b"".join(buffers)
        try:
            self._disk.operate("pwritev", self._path)
            self._disk.take_space(max(0, offset + len(data) - len(self._inode.data)))
        except OSError:
            # A write that fails may have got anywhere.
            sector_count = self._disk.rng.randrange(len(data) // SECTOR_BYTES + 1)
            room = max(0, len(self._inode.data) - offset)
            self._inode.write(offset, data[: min(sector_count * SECTOR_BYTES, room)])
            raise
        self._inode.write(offset, data)

    def pread(self, length_bytes: int, offset: int) -> bytes:
        self._check_readable(length_bytes, offset)
        return bytes(self._inode.data[offset : offset + length_bytes])

    def pread_direct(self, length_bytes: int, offset: int) -> bytes:
        self._check_readable(length_bytes, offset)
        return bytes(self._inode.device()[offset : offset + length_bytes])

    def truncate(self, size_bytes: int) -> None:
        self._disk.operate("truncate", self._path)
        self._disk.take_space(max(0, size_bytes - len(self._inode.data)))
        self._inode.resize(size_bytes)

    def prefetch(self, length_bytes: int, offset: int) -> None:
        pass

    def fdatasync(self) -> None:
        self._sync("fdatasync")

    def fsync(self) -> None:
        self._sync("fsync")
        self._disk.settle_directories(self._path)

    def close(self) -> None:
        assert self._is_open, f"{self._path} is closed twice"
        self._is_open = False
        self._disk.open_count -= 1

    def _sync(self, name: str) -> None:
        try:
            self._disk.operate(name, self._path)
        except OSError:
            self._inode.fail_sync(lambda: self._disk.rng.random() < 0.5)
            raise
        self._inode.sync()

    def _check_readable(self, length_bytes: int, offset: int) -> None:
        for start, end in self._inode.unreadable:
            if start < offset + length_bytes and offset < end:
                raise OSError(errno.EIO, f"{self._path}: a bad sector at {start}")


class _Change(NamedTuple):
    """A name that comes to mean another file, or none."""

    path: str
    before: Inode | None
    after: Inode | None


class _NameOperation(NamedTuple):
    """An atomic change of names, or (`directory`) a directory that was made."""

    changes: tuple[_Change, ...]
    directory: str | None = None

    @property
    def paths(self) -> set[str]:
        """What comes into being, goes or changes."""
        made = set() if self.directory is None else {self.directory}
        return made | {change.path for change in self.changes}


class Disk:
    """Files by name, in memory.

    Args:
        rng: decides what failing writes and syncs leave behind.
        capacity_bytes: what all files together may take; None: no limit.
    """

    def __init__(self, rng: random.Random, *, capacity_bytes: int | None = None) -> None:
        self.rng = rng
        self.capacity_bytes = capacity_bytes
        self.hook: Hook | None = None
        self.counts: Counter[str] = Counter()
        self.open_count = 0
        """Files that are open now."""
        self._names: dict[str, Inode] = {}
        self._directories = {""}
        self._durable_names: dict[str, Inode] = {}
        self._durable_directories = {""}
        self._pending: list[_NameOperation] = []
        self._numbers = itertools.count(1)

    # --- FileSystem ------------------------------------------------------------------------------

    def open(self, path: str, *, is_new: bool = False) -> ModelFile:
        if is_new:
            self._require_directory(parent_of(path))
            if path in self._names:
                raise FileExistsError(errno.EEXIST, path)
            self.operate("create", path)
            inode = Inode(next(self._numbers))
            self._change(_Change(path, None, inode))
        self.open_count += 1
        return ModelFile(self, path, self.inode(path))

    def list_names(self, directory: str) -> list[str]:
        self._require_directory(directory)
        everything = [*self._names, *self._directories]
        return sorted(path.rpartition("/")[2] for path in everything if _is_in(path, directory))

    def make_directory(self, directory: str) -> None:
        for made in reversed(_ancestors(directory)):
            if made not in self._directories:
                self.operate("make_directory", made)
                self._directories.add(made)
                self._pending.append(_NameOperation((), made))

    def rename(self, old: str, new: str) -> None:
        self._require_directory(parent_of(new))
        self.operate("rename", new)
        inode = self.inode(old)
        self._change(_Change(old, inode, None), _Change(new, self._names.get(new), inode))

    def remove(self, path: str) -> None:
        inode = self.inode(path)
        self.operate("remove", path)
        self._change(_Change(path, inode, None))

    def exists(self, path: str) -> bool:
        return path in self._names or path in self._directories

    def size_bytes(self, path: str) -> int:
        return len(self.inode(path).data)

    def map(self, path: str) -> memoryview:
        return memoryview(self.inode(path).data).toreadonly()

    def usage(self, directory: str) -> DiskUsage:
        self._require_directory(directory)
        total_bytes = ENDLESS_BYTES if self.capacity_bytes is None else self.capacity_bytes
        return DiskUsage(total_bytes, max(0, total_bytes - self._used_bytes()))

    def fsync_directory(self, directory: str) -> None:
        self._require_directory(directory)
        self.operate("fsync_directory", directory)
        self.settle_directories(directory + "/")
        self._settle(lambda path: parent_of(path) == directory)

    # --- Faults ----------------------------------------------------------------------------------

    def flip_bit(self, path: str, bit: int) -> None:
        """Rot: the bit changes on the device and in what is read, and nobody is told."""
        inode = self.inode(path)
        assert bit // 8 // SECTOR_BYTES not in inode.sectors, "rot is of what is durable"
        for layer in (inode.data, inode.durable):
            layer[bit // 8] ^= 1 << bit % 8

    def spoil(self, path: str, start: int, end: int) -> None:
        """Reads that touch the range fail from now on."""
        self.inode(path).unreadable.append((start, end))

    def fail_at(self, name: str, nth: int, code: int = errno.EIO) -> None:
        """The nth operation of that name from now on fails, once; other hooks are replaced."""
        left = itertools.count(nth - 1, -1)

        def fail(operation: Operation) -> None:
            if operation.name == name and next(left) == 0:
                raise OSError(code, f"injected into {operation.name}", operation.path)

        self.hook = fail

    # --- What the tests ask ----------------------------------------------------------------------

    def list_files(self) -> list[str]:
        """Paths of all files, sorted."""
        return sorted(self._names)

    def inode(self, path: str) -> Inode:
        """A file by name."""
        found = self._names.get(path)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, path)
        return found

    def copy(self) -> Disk:
        """The same disk, with what is unsynced; nothing is open, no hook is set."""
        disk = Disk(random.Random(0), capacity_bytes=self.capacity_bytes)
        clones: dict[int, Inode] = {}

        def clone(inode: Inode) -> Inode:
            if inode.number not in clones:
                clones[inode.number] = inode.clone()
            return clones[inode.number]

        def clone_if(inode: Inode | None) -> Inode | None:
            return None if inode is None else clone(inode)

        disk._names = {path: clone(inode) for path, inode in self._names.items()}
        disk._durable_names = {path: clone(inode) for path, inode in self._durable_names.items()}
        disk._directories = set(self._directories)
        disk._durable_directories = set(self._durable_directories)
        disk._pending = [
            _NameOperation(
                tuple(_Change(c.path, clone_if(c.before), clone_if(c.after)) for c in op.changes),
                op.directory,
            )
            for op in self._pending
        ]
        disk._numbers = itertools.count(max(clones, default=0) + 1)
        return disk

    def give_up_handles(self) -> None:
        """The process is gone: whatever it had open is closed."""
        self.open_count = 0

    # --- For files and states --------------------------------------------------------------------

    def operate(self, name: str, path: str) -> None:
        """Before everything that changes something."""
        self.counts[name] += 1
        if self.hook is not None:
            self.hook(Operation(name, path))

    def take_space(self, more_bytes: int) -> None:
        """Raises OSError (ENOSPC) if the disk has not so much left."""
        free = (self.capacity_bytes or 0) - self._used_bytes()
        if self.capacity_bytes is not None and more_bytes > max(0, free):
            raise OSError(errno.ENOSPC, "the disk is full")

    def settle_directories(self, path: str) -> None:
        """The directories above a path are durable: something in the last of them was synced."""
        self._settle(set(_ancestors(parent_of(path))).__contains__)

    def name_spaces(self, rng: random.Random) -> tuple[list[NameSpace], int]:
        """What the names may mean after a power cut, without repeats; the number of subsets."""
        operations = self._pending
        subset_count = 1 << len(operations)
        if len(operations) <= _SUBSET_OPERATIONS_MAX:
            subsets = list(itertools.product((False, True), repeat=len(operations)))
        else:
            subsets = [(is_kept,) * len(operations) for is_kept in (False, True)]
            subsets += [
                tuple(rng.random() < 0.5 for _ in operations)
                for _ in range((1 << _SUBSET_OPERATIONS_MAX) - 2)
            ]
        found: dict[tuple[tuple[str, int], ...], NameSpace] = {}
        for subset in subsets:
            space = self._play(
                [op for op, is_kept in zip(operations, subset, strict=True) if is_kept]
            )
            key = tuple(sorted((path, inode.number) for path, inode in space.names.items()))
            found.setdefault((*key, *((path, 0) for path in sorted(space.directories))), space)
        is_whole = len(subsets) == subset_count
        return list(found.values()), len(found) if is_whole else subset_count

    def _play(self, operations: list[_NameOperation]) -> NameSpace:
        """Operations in their order; one that lacks what it builds on has not happened either."""
        names = dict(self._durable_names)
        directories = set(self._durable_directories)
        for operation in operations:
            if operation.directory is not None:
                if parent_of(operation.directory) in directories:
                    directories.add(operation.directory)
            elif all(names.get(c.path) is c.before for c in operation.changes):
                _apply(names, operation)
        kept = {path: inode for path, inode in names.items() if parent_of(path) in directories}
        return NameSpace(kept, directories)

    def _change(self, *changes: _Change) -> None:
        operation = _NameOperation(changes)
        _apply(self._names, operation)
        self._pending.append(operation)

    def _settle(self, is_synced: Callable[[str], bool]) -> None:
        """Make what happened to these paths durable, and with it all that it builds on."""
        needed: set[str] = set()
        synced: list[_NameOperation] = []
        for operation in reversed(self._pending):
            paths = operation.paths
            if any(map(is_synced, paths)) or paths & needed:
                needed.update(paths, *(_ancestors(parent_of(path)) for path in paths))
                synced.append(operation)
        for operation in reversed(synced):
            self._pending.remove(operation)
            if operation.directory is None:
                _apply(self._durable_names, operation)
            else:
                self._durable_directories.add(operation.directory)

    def _require_directory(self, directory: str) -> None:
        if directory not in self._directories:
            raise FileNotFoundError(errno.ENOENT, directory)

    def _used_bytes(self) -> int:
        inodes = {inode.number: inode for inode in self._names.values()}
        return sum(len(inode.data) for inode in inodes.values())


class NameSpace(NamedTuple):
    """What names mean."""

    names: dict[str, Inode]
    directories: set[str]


# --- States after a power cut ---------------------------------------------------------------------


class CrashStates:
    """The disks that a power cut may leave now: all of them, or a sample.

    A choice is one number per free matter: which name space, and per file which size and which
    content of each unsynced sector; 0 is the durable one, the last is the newest.

    Args:
        disk: not changed, and not to be changed while the states are made.
        limit: how many are given at most, 2 at least: nothing kept and everything kept are among
            every sample.
        rng: of the sample.
    """

    def __init__(self, disk: Disk, limit: int, rng: random.Random) -> None:
        assert limit >= 2, limit
        self._disk = disk
        self._rng = rng
        self._limit = limit
        self._spaces, space_count = disk.name_spaces(rng)
        inodes = {i.number: i for space in self._spaces for i in space.names.values()}
        self._inodes = [inodes[number] for number in sorted(inodes)]
        self._radices = [len(self._spaces)]
        for inode in self._inodes:
            self._radices.append(1 + len(inode.sizes))
            self._radices += [1 + len(versions) for versions in inode.sectors.values()]
        self._choice_count = math.prod(self._radices)
        self.total_count = self._choice_count // len(self._spaces) * space_count
        """How many choices there are (an upper bound of how many different disks)."""
        self.count = min(self._choice_count, limit)
        """How many are given."""

    def __iter__(self) -> Iterator[Disk]:
        return map(self.make, self.choices())

    @property
    def is_complete(self) -> bool:
        """Whether every one is given."""
        return self.count == self.total_count

    def choices(self) -> Iterator[tuple[int, ...]]:
        """The choices that are made, none twice."""
        if self.count == self._choice_count:
            yield from itertools.product(*map(range, self._radices))
            return
        seen: set[tuple[int, ...]] = set()
        for choice in self._sample():
            if choice not in seen:
                seen.add(choice)
                yield choice
            if len(seen) == self.count:
                return

    def make(self, choice: tuple[int, ...]) -> Disk:
        """The disk of one choice: everything on it is durable."""
        numbers = iter(choice)
        space = self._spaces[next(numbers)]
        contents: dict[int, bytes] = {}
        for inode in self._inodes:
            content = bytearray(inode.durable)
            size = next(numbers)
            if size:
                _fit(content, inode.sizes[size - 1])
            for sector, versions in inode.sectors.items():
                version = next(numbers)
                if version:
                    _put_sector(content, sector, versions[version - 1])
            contents[inode.number] = bytes(content)
        disk = _make_disk(space, contents, random.Random(str(choice)))
        disk.capacity_bytes = self._disk.capacity_bytes
        return disk

    def _sample(self) -> Iterator[tuple[int, ...]]:
        """Both extremes, each matter alone kept and alone lost, beginnings, then anything."""
        newest = [radix - 1 for radix in self._radices]
        yield (0,) * len(newest)
        yield tuple(newest)
        special = []
        for index, kept in enumerate(newest):
            if kept:
                alone = [0] * len(newest)
                alone[index] = kept
                special += [tuple(alone), (*newest[:index], 0, *newest[index + 1 :])]
                special.append((*newest[:index], *[0] * (len(newest) - index)))
        self._rng.shuffle(special)
        yield from special[: self._limit // 2]
        if self._choice_count <= 4 * self._limit:
            everything = list(itertools.product(*map(range, self._radices)))
            self._rng.shuffle(everything)
            yield from everything
            return
        while True:
            ratio = self._rng.choice((0.1, 0.5, 0.9))
            yield tuple(
                self._rng.randint(1, kept) if kept and self._rng.random() < ratio else 0
                for kept in newest
            )


def crash_states(disk: Disk, limit: int, rng: random.Random) -> CrashStates:
    """The disks that a power cut may leave now; see `CrashStates` for how many of how many."""
    return CrashStates(disk, limit, rng)


def parent_of(path: str) -> str:
    """The directory that a path is in; the root is the empty string."""
    return path.rpartition("/")[0]


def _make_disk(space: NameSpace, contents: dict[int, bytes], rng: random.Random) -> Disk:
    disk = Disk(rng)
    inodes: dict[int, Inode] = {}
    for path, inode in space.names.items():
        if inode.number not in inodes:
            inodes[inode.number] = Inode(inode.number, contents[inode.number])
            inodes[inode.number].unreadable = list(inode.unreadable)
        disk._names[path] = inodes[inode.number]
    disk._durable_names = dict(disk._names)
    disk._directories = set(space.directories)
    disk._durable_directories = set(space.directories)
    disk._numbers = itertools.count(max(inodes, default=0) + 1)
    return disk


def _apply(names: dict[str, Inode], operation: _NameOperation) -> None:
    for path, _, after in operation.changes:
        if after is None:
            del names[path]
        else:
            names[path] = after


def _ancestors(directory: str) -> list[str]:
    """A directory and those above it, without the root."""
    found = []
    while directory:
        found.append(directory)
        directory = parent_of(directory)
    return found


def _is_in(path: str, directory: str) -> bool:
    return path != "" and parent_of(path) == directory


def _sector(data: bytearray, sector: int) -> bytes:
    return bytes(data[sector * SECTOR_BYTES : (sector + 1) * SECTOR_BYTES]).ljust(
        SECTOR_BYTES, b"\0"
    )


def _put_sector(data: bytearray, sector: int, content: bytes) -> None:
    """As far as the file reaches."""
    start = sector * SECTOR_BYTES
    end = min(start + SECTOR_BYTES, len(data))
    if start < end:
        data[start:end] = content[: end - start]


def _fit(data: bytearray, size_bytes: int) -> None:
    del data[size_bytes:]
    data.extend(bytes(size_bytes - len(data)))
