"""Ends the children that a killed supervisor left behind, and nothing else.

A process is one of them only if cluster.json names its pid, its command line is that of the
recorded service (role, id, cluster, port; for ZooKeeper main class and working directory) and it
was started before the file was last written: a pid that the kernel gave to somebody else since
fails the last two. Signals go through a pid descriptor that was opened before the checks, so that
no pid changes its owner in between. Linux only, as the product.

Called by the supervisor before it starts anything.
"""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from duramen.cluster.cluster_file import FILE_NAME, ClusterProcess, ClusterState
from duramen.runtime.embedded_zookeeper import MAIN_CLASS

_PROC = Path("/proc")
_CLOCK_SLACK_S = 2.0
"""The boot time in /proc/stat is whole seconds, and the wall clock may be stepped a little."""


class ProcessFacts(NamedTuple):
    """What /proc says about a running process."""

    arguments: tuple[str, ...]
    working_dir: str
    started_unix_s: float


class Leftover(NamedTuple):
    """A child of an earlier supervisor that still runs; `pid_fd` is open."""

    node_id: str
    pid: int
    pid_fd: int


def is_left_over(
    member: ClusterProcess, facts: ProcessFacts, *, cluster: str, written_unix_s: float
) -> bool:
    """Whether a running process is the recorded one; pure."""
    if facts.started_unix_s > written_unix_s + _CLOCK_SLACK_S:
        return False
    if member.role == "zookeeper":
        return MAIN_CLASS in facts.arguments and facts.working_dir == member.data_dir
    wanted = {
        "-m": f"duramen_{member.role}.main",
        "--cluster": cluster,
        "--id": member.node_id,
        "--admin-port": str(urlsplit(member.admin_url or "").port),
    }
    if member.data_dir is not None:
        wanted["--data-dir"] = member.data_dir
    pairs = set(zip(facts.arguments, facts.arguments[1:], strict=False))
    return all(pair in pairs for pair in wanted.items())


def find_leftovers(folder: Path, state: ClusterState) -> list[Leftover]:
    """The recorded processes that still run. The caller passes all of them to `end_leftovers`."""
    written_unix_s = (folder / FILE_NAME).stat().st_mtime
    found = []
    for member in state.members:
        if member.pid is None:
            continue
        try:
            pid_fd = os.pidfd_open(member.pid)
        except OSError:
            continue
        facts = read_facts(member.pid)
        if facts is not None and is_left_over(
            member, facts, cluster=state.cluster, written_unix_s=written_unix_s
        ):
            found.append(Leftover(member.node_id, member.pid, pid_fd))
        else:
            os.close(pid_fd)
    return found


def end_leftovers(leftovers: list[Leftover], *, timeout_s: float) -> None:
    """SIGTERM, a bounded wait for all of them, then SIGKILL; returns when they are gone."""
    for number, wait_s in ((signal.SIGTERM, timeout_s), (signal.SIGKILL, timeout_s)):
        for leftover in leftovers:
            _send(leftover.pid_fd, number)
            _send(leftover.pid_fd, signal.SIGCONT)
        deadline = time.monotonic() + wait_s
        for leftover in leftovers:
            _wait_ended(leftover.pid_fd, deadline)
    for leftover in leftovers:
        os.close(leftover.pid_fd)


def read_facts(pid: int) -> ProcessFacts | None:
    """What /proc says about a process; None if it is gone or not ours to look at."""
    folder = _PROC / str(pid)
    try:
        arguments = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        working_dir = str((folder / "cwd").readlink())
        # The second field is the program's name in brackets and may hold anything.
        fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
        started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # field 22: ticks since boot
        stat_lines = (_PROC / "stat").read_text().splitlines()
        boot_unix_s = next(int(line.split()[1]) for line in stat_lines if line.startswith("btime"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None
    return ProcessFacts(tuple(arguments), working_dir, boot_unix_s + started_s)


def _send(pid_fd: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        signal.pidfd_send_signal(pid_fd, number)


def _wait_ended(pid_fd: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(pid_fd, select.POLLIN)
    poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
