"""The servers that `bench bookie` compares, each a process of its own on loopback.

`bookie` is the whole service with fsync on, in the frame that it always runs in; only its metadata
is in memory, so that neither ZooKeeper nor Java is needed where a disk is measured. `transport` is
the same HTTP server with a handler that looks at nothing: it answers every call at once with
prepared bytes. Either ends when its standard input does, so that none outlives the bench.

Called by `bench_bookie` as `python -m`. Not here: the load, the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import uvloop

from duramen.cluster.layout import HOST
from duramen.core.status import BookieStatus
from duramen.ids import EntryId
from duramen.runtime.http_server import Answer, DataServer
from duramen.runtime.role import ServiceOptions
from duramen.runtime.service import run_service
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.wire.bookie_calls import ReadAnswer, pack_read_answers, pack_statuses
from duramen_bookie.service import BookieService


def main() -> int:
    """Serve until told to stop; gives the exit code."""
    options = _parse()
    threading.Thread(target=_end_with_input, daemon=True).start()
    if options.kind == "bookie":
        return _serve_bookie(options)
    uvloop.run(_serve_transport(options))
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["bookie", "transport"])
    parser.add_argument("--data-port", type=int, required=True)
    parser.add_argument("--admin-port", type=int, default=0)
    parser.add_argument("--data-dir", type=Path, default=Path())
    parser.add_argument("--answer-bytes", type=int, default=0, help="of the transport's reads")
    return parser.parse_args()


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


def _serve_bookie(options: argparse.Namespace) -> int:
    service = ServiceOptions(
        role="bookie",
        cluster="bench",
        node_id="bench",
        host=HOST,
        data_port=options.data_port,
        admin_port=options.admin_port,
        zookeeper="memory",
        region="local",
        rack="r0",
        security="none",
        session_timeout_s=4.0,
        data_dir=options.data_dir,
    )

    def make(made: ServiceOptions, fail: Callable[[str], None], _: object) -> BookieService:
        return BookieService(made, fail, MemoryStore(MemoryTree()))

    return run_service(service, make)


async def _serve_transport(options: argparse.Namespace) -> None:
    media = "application/octet-stream"
    entry = bytes(options.answer_bytes)
    read = ReadAnswer(BookieStatus.OK, EntryId(0), EntryId(0), False, [(EntryId(0), entry)])
    added = pack_statuses([BookieStatus.OK])
    answers = {"/b/add": added, "/b/read": pack_read_answers([read])}

    async def answer(path: str, _body: bytes, _caller: object) -> Answer:
        return 200, media, answers[path]

    server = DataServer(HOST, options.data_port, answer)
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    await server.start()
    await stopping.wait()
    await server.stop()


if __name__ == "__main__":
    sys.exit(main())
