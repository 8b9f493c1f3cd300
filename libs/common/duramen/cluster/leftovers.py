"""Ends the children that a killed supervisor left behind, and nothing else.

They are found by what they are, and not by what was written down: a supervisor may be killed
between a start and the line about it. A process is one of them if it is this user's, its command
line is that of a service (role, id, cluster) or of ZooKeeper, and it has a place in the folder:
its working directory, its data folder, or the log that it writes to. Places are compared by device
and inode, as that process sees them, so neither a link nor a container with like paths deceives.
Signals go through a pid descriptor that was opened before the checks, so that no pid changes its
owner in between. Linux only, as the product.

Called by the supervisor before it starts anything.
Source: docs/protocol/turning-on.md "On a laptop".
"""

from __future__ import annotations

import os
import re
import select
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from duramen.cluster.layout import CLUSTER_NAME
from duramen.runtime.embedded_zookeeper import MAIN_CLASS

ZOOKEEPER_ID: Final = "zookeeper-0"
_PROC: Final = Path("/proc")
_COMMAND_BYTES_MAX: Final = 1 << 20
"""Of a command line that is looked at: the jars of ZooKeeper are some kilobytes."""

_PROGRAM: Final = re.compile(r"duramen_(bookie|sequencer|writeproxy|readproxy)\.main")


class FileKey(NamedTuple):
    """A file or folder, whatever it is called."""

    device: int
    inode: int


class ProcessFacts(NamedTuple):
    """What /proc says about a running process; a place is None if it has none."""

    arguments: tuple[str, ...]
    working_place: FileKey | None
    output_place: FileKey | None
    data_place: FileKey | None
    """Of what follows `--data-dir`."""


class Leftover(NamedTuple):
    """A child of an earlier supervisor that still runs; `pid_fd` is open."""

    node_id: str
    pid: int
    pid_fd: int


def name_leftover(facts: ProcessFacts, folder: Path) -> str | None:
    """The id of a process of the cluster in this folder; None: it is none."""
    if MAIN_CLASS in facts.arguments:
        is_here = _is_one_of(facts.working_place, folder / ZOOKEEPER_ID)
        return ZOOKEEPER_ID if is_here else None
    flags = dict(zip(facts.arguments, facts.arguments[1:], strict=False))
    program = _PROGRAM.fullmatch(flags.get("-m", ""))
    node_id = flags.get("--id", "")
    if program is None or flags.get("--cluster") != CLUSTER_NAME:
        return None
    if not re.fullmatch(rf"{program[1]}-\d+", node_id):
        return None
    log_file = folder / "logs" / f"{node_id}.log"
    is_here = _is_one_of(facts.data_place, folder / node_id) or _is_one_of(
        facts.output_place, log_file, log_file.with_suffix(".log.1")
    )
    return node_id if is_here else None


def find_leftovers(folder: Path) -> list[Leftover]:
    """The processes of this folder that run. The caller passes all of them to `end_leftovers`."""
    found = []
    for entry in os.scandir(_PROC):
        if not entry.name.isdecimal():
            continue
        pid = int(entry.name)
        try:
            if entry.stat().st_uid != os.geteuid():
                continue
            pid_fd = os.pidfd_open(pid)
        except OSError:
            continue
        facts = read_facts(pid)
        node_id = None if facts is None else name_leftover(facts, folder)
        if node_id is None:
            os.close(pid_fd)
        else:
            found.append(Leftover(node_id, pid, pid_fd))
    return found


def end_leftovers(leftovers: list[Leftover], *, timeout_s: float) -> list[Leftover]:
    """SIGTERM, a bounded wait for all of them, then SIGKILL; those that run all the same.

    The descriptors are closed when it returns.
    """
    running = leftovers
    for number in (signal.SIGTERM, signal.SIGKILL):
        for leftover in running:
            _send(leftover.pid_fd, number)
            _send(leftover.pid_fd, signal.SIGCONT)
        deadline = time.monotonic() + timeout_s
        running = [one for one in running if not _wait_ended(one.pid_fd, deadline)]
    for leftover in leftovers:
        os.close(leftover.pid_fd)
    return running


def read_facts(pid: int) -> ProcessFacts | None:
    """What /proc says about a process; None if it is gone or not ours to look at."""
    folder = _PROC / str(pid)
    try:
        with (folder / "cmdline").open("rb") as file:
            arguments = os.fsdecode(file.read(_COMMAND_BYTES_MAX)).split("\0")
    except OSError:
        return None
    data_place = None
    if "--data-dir" in arguments[:-1]:
        data_dir = arguments[arguments.index("--data-dir") + 1]
        data_place = _find_place(folder / "root" / data_dir.lstrip("/"))
    return ProcessFacts(
        tuple(arguments),
        _find_place(folder / "cwd"),
        _find_place(folder / "fd" / "1"),
        data_place,
    )


def _find_place(path: Path) -> FileKey | None:
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return FileKey(found.st_dev, found.st_ino)


def _is_one_of(place: FileKey | None, *paths: Path) -> bool:
    return place is not None and place in map(_find_place, paths)


def _send(pid_fd: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        signal.pidfd_send_signal(pid_fd, number)


def _wait_ended(pid_fd: int, deadline: float) -> bool:
    poll = select.poll()
    poll.register(pid_fd, select.POLLIN)
    return bool(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
