"""Both proxies behind TLS in a process of their own, for peers that stall; `python -m` serves.

Prints one line of JSON: the ports, a credential and the CA. Ends when its input ends. Used by
`test_stalled_sockets`. Source: docs/protocol/limits.md "What is limited".
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from duramen.limits import OPEN_FILE_COUNT_MAX
from tests.component.admission_world import LOG, AdmissionWorld, as_user, play, until

RECORD_COUNT = 100
ENTRY_COUNT = 200
"""As events two megabytes: a connection takes one of them from a server, unread."""


async def serve(world: AdmissionWorld) -> None:
    """Until there is no more input."""
    await world.callers.give("ann owner ns")
    await world.open_segment()
    for _ in range(ENTRY_COUNT):
        await world.append(*[1] * RECORD_COUNT)
    for client in (world.http, world.write):
        await until(partial(client.get, LOG, headers=as_user("ann")), 200)
    told = {
        "read": world.proxy.port,
        "write": world.write_proxy.port,
        "credential": as_user("ann")["authorization"],
        "ca": str(world.callers.issued.server / "ca.crt"),
    }
    print(json.dumps(told), flush=True)
    await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = OPEN_FILE_COUNT_MAX if hard == resource.RLIM_INFINITY else hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    with TemporaryDirectory() as folder:
        play(Path(folder), serve, has_tls=True)


if __name__ == "__main__":
    main()
