"""A port of this machine that leads to a service of the cluster: `kubectl port-forward`, kept up.

kubectl forwards to one pod and ends when that pod goes; then it is started again on the same port,
so that a reader that follows, or an append that is repeated, finds the next pod. It needs the
rights to get services, list pods and create `pods/portforward`; nothing in the cluster changes.

Called by `records`. Source: docs/kubernetes/kubectl.md "Append and read".
"""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Final, Literal

from kubectl_duramen.access import AccessError, Kubectl, Trouble, read_trouble

Scheme = Literal["http", "https"]

_READY_S: Final = 30.0
_AGAIN_S: Final = 0.5
_END_S: Final = 5.0
_SAYS_READY: Final = re.compile(rb"Forwarding from 127\.0\.0\.1:(\d+)")


class Forward:
    """A kubectl that forwards, and the thread that starts it again."""

    def __init__(self, kubectl: Kubectl, service: str, port: int, scheme: Scheme = "http") -> None:
        self._kubectl = kubectl
        self._scheme = scheme
        self._service = service
        self._port = port
        self._closing = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self.local_port = 0

    @property
    def url(self) -> str:
        """Where the service is found on this machine."""
        # A certificate of a public port names localhost, and no address.
        host = "localhost" if self._scheme == "https" else "127.0.0.1"
        return f"{self._scheme}://{host}:{self.local_port}"

    @property
    def pid(self) -> int:
        """Of the kubectl that forwards, or did last."""
        return 0 if self._process is None else self._process.pid

    def open(self) -> None:
        """Forward from a free port.

        Raises:
            AccessError: it cannot be done.
        """
        process = self._start()
        self.local_port = self._wait_ready(process)
        self._thread = threading.Thread(target=self._keep, name="port-forward", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it; no process is left."""
        self._closing.set()
        if self._process is not None:
            _end(self._process)
        if self._thread is not None:
            self._thread.join(_END_S)

    def _start(self) -> subprocess.Popen[bytes]:
        command = self._kubectl.command(
            "port-forward", f"--namespace={self._kubectl.namespace}", "--address=127.0.0.1",
            f"service/{self._service}", f"{self.local_port or ''}:{self._port}",
        )  # fmt: skip
        # A group of its own: Ctrl-C is for the command, which waits for the batch in flight.
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            process_group=0,
        )  # fmt: skip
        return self._process

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> int:
        alarm = threading.Timer(_READY_S, process.kill)
        alarm.start()
        try:
            assert process.stdout is not None and process.stderr is not None
            for line in process.stdout:
                found = _SAYS_READY.search(line)
                if found:
                    _discard(process.stdout)
                    _discard(process.stderr)
                    return int(found[1])
            said = process.stderr.read().decode(errors="replace")
        finally:
            alarm.cancel()
        _end(process)
        raise _explain(said, self._service)

    def _keep(self) -> None:
        process = self._process
        assert process is not None
        while True:
            process.wait()
            if self._closing.wait(_AGAIN_S):
                return
            try:
                process = self._start()
                if self._closing.is_set():
                    _end(process)
                    return
                self._wait_ready(process)
            except AccessError:
                continue  # no pod is ready yet; whoever calls the port has a time limit


@contextmanager
def forwarding(kubectl: Kubectl, service: str, port: int, scheme: Scheme = "http") -> Iterator[str]:
    """The URL at which a service's port is found here, for as long as the block lasts.

    Raises:
        AccessError: it cannot be done.
    """
    forward = Forward(kubectl, service, port, scheme)
    try:
        forward.open()
        yield forward.url
    finally:
        forward.close()


def _explain(said: str, service: str) -> AccessError:
    error = read_trouble(said)
    if "pods/portforward" in said:
        return error
    if error.trouble is Trouble.NOT_FOUND:
        return AccessError(
            Trouble.NOT_FOUND, f"there is no service {service}: the cluster is not installed yet",
            ADVICE_STATUS,
        )  # fmt: skip
    if "pod is not running" in said or "timed out waiting" in said or not said.strip():
        text = f"no pod of service {service} runs: {' '.join(said.split())}"
        return AccessError(Trouble.NO_ENDPOINT, text.rstrip(": "))
    return error


ADVICE_STATUS: Final = "see how far it is: kubectl duramen status"


def _discard(stream: IO[bytes]) -> None:
    """Take in what kubectl says for each connection, or its pipe would be full one day."""

    def run() -> None:
        for _ in stream:
            pass

    threading.Thread(target=run, daemon=True).start()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
