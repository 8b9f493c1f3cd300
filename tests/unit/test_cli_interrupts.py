"""Ctrl-C at any moment, SIGTERM, closed streams, servers that are silent: what a person is told.

Real processes against a proxy that answers when the test says so, as signals and streams are those
of a process. No moment ends in a traceback, and an append always says how far it came.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from duramen.cli.shell.waiting import TOLD_AFTER_S, WaitNotice
from duramen.errors import DuramenError
from duramen.runtime.http_client import UnreachableError
from duramen.wire.record_batch import check_batch
from tests.component.still_clock import run_still
from tests.pauses import let_pass

pytestmark = pytest.mark.gate  # each starts a process that loads the whole command line

HANG_S: Final = 60
COMMAND: Final = [sys.executable, "-P", "-m", "duramen.cli.main"]
ENTRY: Final = "from duramen.cluster.entry import duramen; import sys; sys.exit(duramen())"


class SlowProxy(http.server.ThreadingHTTPServer):
    """Stores what is appended; answers while it is let."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.count = 0
        self.asked = threading.Semaphore(0)
        self.answering = threading.Event()
        self.answering.set()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: SlowProxy

    def do_POST(self) -> None:
        batch = self.rfile.read(int(self.headers["content-length"]))
        self.server.asked.release()
        self.server.answering.wait(HANG_S)
        first = self.server.count
        self.server.count += check_batch(batch).record_count
        places = {"start": {"seq_num": first, "dlsn": "e1n0s0"}}
        answer = json.dumps(places | {"end": {"seq_num": self.server.count}}).encode()
        with contextlib.suppress(OSError):
            self.send_response(200)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def proxy() -> Iterator[SlowProxy]:
    server = SlowProxy()
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server
    server.answering.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def nobody() -> Iterator[str]:
    """The URL of a port that nobody listens on."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{unused.getsockname()[1]}"


class Running:
    """A command whose standard error is read line by line."""

    def __init__(self, *arguments: str, url: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env={**os.environ, "DURAMEN_URL": url},
        )  # fmt: skip
        self._alarm = threading.Timer(HANG_S, self.process.kill)
        self._alarm.start()
        self.said = ""

    def feed(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text)
        self.process.stdin.flush()

    def wait_said(self, pattern: str) -> None:
        """Until a line of standard error matches."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said += line
            if re.search(pattern, line):
                return
        raise AssertionError(f"{pattern!r} was not said: {self.said}")

    def end(self, number: signal.Signals | None = None) -> int:
        """Send a signal, wait for the end; the exit status."""
        if number is not None:
            self.process.send_signal(number)
        try:
            assert self.process.stderr is not None
            self.said += self.process.stderr.read()
            status = self.process.wait(HANG_S)
        finally:
            self._alarm.cancel()
            for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
                assert stream is not None
                stream.close()
        assert "Traceback" not in self.said and "never retrieved" not in self.said
        return status


# --- Appends -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_append_that_waits_for_input_says_how_far_it_came(
    proxy: SlowProxy, number: signal.Signals
) -> None:
    command = Running("append", "a/b", url=proxy.url)
    command.feed("1\n2\n3\n")
    assert proxy.asked.acquire(timeout=HANG_S)
    assert command.end(number) == 130
    assert "stored up to line 3: go on with --skip-lines 3" in command.said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_batch_in_flight_is_waited_for_and_told(
    proxy: SlowProxy, number: signal.Signals
) -> None:
    proxy.answering.clear()
    command = Running("append", "a/b", url=proxy.url)
    command.feed("1\n2\n")
    assert proxy.asked.acquire(timeout=HANG_S)
    command.process.send_signal(number)
    command.wait_said("waiting for the batch in flight")
    proxy.answering.set()
    assert command.end() == 130
    assert "stored up to line 2" in command.said


def test_a_second_signal_leaves_its_fate_open_and_says_so(proxy: SlowProxy) -> None:
    proxy.answering.clear()
    command = Running("append", "a/b", url=proxy.url)
    command.feed("1\n2\n")
    assert proxy.asked.acquire(timeout=HANG_S)
    command.process.send_signal(signal.SIGINT)
    command.wait_said("waiting for the batch in flight")
    assert command.end(signal.SIGINT) == 3
    assert "lines 1 to 2 may or may not be stored" in command.said


@pytest.mark.parametrize("flags", [[], ["--create"]])
def test_a_batch_that_nobody_takes_is_given_up_at_the_first_signal(
    nobody: str, flags: list[str]
) -> None:
    command = Running("append", "a/b", *flags, "--timeout", "600", url=nobody)
    command.feed("1\n")
    command.wait_said(f"waiting for {nobody}: the connection is refused")
    assert command.end(signal.SIGINT) == 130
    assert "nothing of this run is stored" in command.said


def test_input_that_cannot_be_read_is_a_sentence(proxy: SlowProxy, tmp_path: Path) -> None:
    """So is a history that has no room: what was stored before is told."""
    environment = {**os.environ, "DURAMEN_URL": proxy.url}
    unreadable = os.open(tmp_path / "input", os.O_WRONLY | os.O_CREAT)
    try:
        done = subprocess.run(
            [*COMMAND, "append", "a/b"], stdin=unreadable, capture_output=True, text=True,
            timeout=HANG_S, env=environment, check=False,
        )  # fmt: skip
    finally:
        os.close(unreadable)
    assert done.returncode == 1 and "Bad file descriptor" in done.stderr
    assert "nothing of this run is stored" in done.stderr and "Traceback" not in done.stderr
    done = subprocess.run(
        [*COMMAND, "append", "a/b", "--history", "/dev/full"], input="1\n2\n", timeout=HANG_S,
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 1 and "No space left" in done.stderr
    assert "stored up to line 2" in done.stderr and "Traceback" not in done.stderr


# --- Closed streams ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ("append a/b <&-", 2, "standard input is closed"),
        ("apply -f - <&-", 2, "standard input is closed"),
        ("log list --json >&-", 1, "cannot connect"),
        ("completion bash >&-", 0, ""),
        ("log list >&- 2>&-", 1, ""),
        ("append a/b /dev/null --json <&- >&- 2>&-", 0, ""),
    ],
)
def test_a_stream_that_is_closed_is_no_traceback(
    nobody: str, line: str, status: int, said: str
) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {line}', "sh", *COMMAND], capture_output=True, text=True,
        timeout=HANG_S, env={**os.environ, "DURAMEN_URL": nobody}, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    assert said in done.stderr and "Traceback" not in done.stderr


# --- Before and after the command ----------------------------------------------------------------


@pytest.mark.parametrize(
    "module", ["cyclopts", "uvloop", "pyreqwest", "duramen.cli.programs.run", "rich"]
)
def test_interrupted_while_modules_are_loaded_it_just_ends(module: str) -> None:
    hook = (
        "import builtins, os, signal, sys\n"
        "class Hook:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Hook())\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", hook + ENTRY, "read", "--help"], capture_output=True,
        text=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    # rich is loaded for a help text, when Ctrl-C is an exception again.
    assert done.returncode in ((130, -signal.SIGINT) if module == "rich" else (-signal.SIGINT,))
    assert "Traceback" not in done.stderr


def test_interrupted_while_the_interpreter_ends_it_just_ends() -> None:
    hook = (
        "import atexit, os, signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", hook + ENTRY, "--version"], capture_output=True, text=True,
        timeout=HANG_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_a_reader_of_the_output_that_goes_is_no_fault(nobody: str) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", '"$@" completion bash | true', "sh", *COMMAND], capture_output=True,
        text=True, timeout=HANG_S, env={**os.environ, "DURAMEN_URL": nobody}, check=False,
    )  # fmt: skip
    assert done.stderr == ""


# --- Waiting -------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["append", "a/b", "-"], ["read", "a/b"], ["tail", "a/b", "-f"]])
def test_a_command_that_repeats_says_what_it_waits_for(nobody: str, words: list[str]) -> None:
    command = Running(*words, "--timeout", "600", url=nobody)
    command.feed("1\n")
    command.wait_said(f"waiting for {nobody}: the connection is refused")
    assert command.end(signal.SIGINT) == 130


def test_a_cluster_says_that_its_zookeeper_is_not_there(nobody: str, tmp_path: Path) -> None:
    hosts = nobody.removeprefix("http://")
    line = ["run", "--data", str(tmp_path), "--base-port", "0", "--zookeeper", hosts]
    line += ["--security", "none"]
    command = Running(*line, url=nobody)
    command.wait_said(f"waiting for ZooKeeper at {hosts}")
    assert command.end(signal.SIGINT) == 0


@pytest.mark.parametrize("words", ["verify a/b", "archive run a/b --runner threads"])
def test_who_needs_zookeeper_says_that_it_is_not_there(
    nobody: str, tmp_path: Path, words: str
) -> None:
    hosts = nobody.removeprefix("http://")
    line = [*words.split(), "--zookeeper", hosts, "--cluster", "c"]
    if words.startswith("archive"):
        line += ["--cold-store", tmp_path.as_uri()]
    command = Running(*line, url=nobody)
    command.wait_said(f"waiting for ZooKeeper at {hosts}")
    assert command.end() == 1


def test_a_server_that_is_silent_is_named(proxy: SlowProxy) -> None:
    proxy.answering.clear()
    command = Running("append", "a/b", url=proxy.url)
    command.feed("1\n")
    command.wait_said(f"waiting for {proxy.url}: no answer yet")
    proxy.answering.set()
    assert command.process.stdin is not None
    command.process.stdin.close()
    assert command.end() == 0


def test_a_wait_is_told_once_after_a_second_and_ends_with_an_answer() -> None:
    told: list[str] = []

    async def scenario() -> None:
        notice = WaitNotice("it", told.append)
        notice.on_asked(0.0)
        notice.on_failed(UnreachableError("x"))
        await let_pass(TOLD_AFTER_S - 0.1, what="nothing is told yet")
        assert told == []
        notice.on_asked(0.0)
        await let_pass(0.2, what="a second since the first try")
        assert told == ["waiting for it: the connection is refused, or nothing is there"]
        notice.on_failed(DuramenError("log_unavailable", "x"))
        await let_pass(10, what="the same wait")
        assert len(told) == 1
        notice.on_asked(0.0)
        notice.on_answered()
        await let_pass(10, what="nothing is waited for")
        notice.on_asked(60.0)
        await let_pass(60, what="a long poll, which is no wait")
        assert len(told) == 1
        await let_pass(2, what="and now it is late")
        assert told[1:] == ["waiting for it: no answer yet"]
        notice.stop()

    assert TOLD_AFTER_S <= 1.0, "a refused connection is told within two seconds"
    run_still(scenario())
