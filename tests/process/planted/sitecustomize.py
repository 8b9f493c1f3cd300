"""Plants faults in the cores of processes that tests start, to be set off by files.

Python imports a module of this name by itself when it starts and finds it on PYTHONPATH. Where
DURAMEN_PLANTED names a folder, a sequencer's core raises at the next answered add of the log whose
name is in its file `log`, and a bookie's at the next adds while there is a file `bookie`, which it
takes away; a sequencer named in the file `cut` reaches no bookie. Not for imports:
`test_fail_stop` and `test_cut_off_sequencer` make the files.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def plant(owner: Any, name: str, is_due: Callable[[Any], bool]) -> None:
    """Have a method raise where it is due."""
    method = getattr(owner, name)

    def planted(core: Any, *arguments: Any, **named: Any) -> Any:
        if is_due(core):
            raise AssertionError("planted by a test")
        return method(core, *arguments, **named)

    setattr(owner, name, planted)


def read(named: Path) -> bytes | None:
    """None where there is no such file: a test takes it away at any moment."""
    try:
        return named.read_bytes()
    except FileNotFoundError:
        return None


def cut_off(named: Path, arguments: list[bytes]) -> None:
    """While the file names this process, it reaches no bookie."""
    from duramen.runtime.http_client import PeerClient, UnreachableError

    call = PeerClient.call

    async def cut(client: PeerClient, url: str, body: bytes, timeout_us: int) -> bytes:
        if "/b/" in url and read(named) in arguments:
            raise UnreachableError(f"{url}: cut off by a test")
        return await call(client, url, body, timeout_us)

    setattr(PeerClient, "call", cut)  # noqa: B010 - mypy sees a method


def install(folder: Path) -> None:
    """Plant what this process has."""
    program = Path("/proc/self/cmdline").read_bytes()
    if b"duramen_sequencer" in program or b"duramen-sequencer" in program:
        from duramen.core.sequencer.log_sequencer import LogSequencer

        def is_named(core: Any) -> bool:
            name: str = core.view.log.name
            return read(folder / "log") == name.encode()

        plant(LogSequencer, "on_add", is_named)
        cut_off(folder / "cut", program.split(b"\0"))
    elif b"duramen_bookie" in program or b"duramen-bookie" in program:
        from duramen.core.bookie import BookieCore

        def take(_core: Any) -> bool:
            try:
                (folder / "bookie").unlink()
            except FileNotFoundError:
                return False
            return True

        plant(BookieCore, "on_adds", take)


if named := os.environ.get("DURAMEN_PLANTED"):
    install(Path(named))
