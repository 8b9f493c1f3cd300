"""Readers of event streams as a process of their own, which a test can stop and let go on.

    python -m tests.process.event_clients HOST PORT PATH COUNT

Opens COUNT streams with small receive buffers and reads them to the event that says `end`, or to a
record whose body is `last`. Prints a line when all are open and one, JSON, at the end: for each
stream its records' sequence numbers as runs. Plain sockets, so that nothing here is slow.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from typing import Any

RECEIVE_BYTES = 64 << 10
_REQUEST = "GET {path} HTTP/1.1\r\nHost: {host}\r\nAccept: text/event-stream\r\n\r\n"


async def read_events(host: str, port: int, path: str, opened: asyncio.Event) -> list[list[int]]:
    """One stream to its last record; runs of sequence numbers, one where all came in order."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, (host, port))
    reader, writer = await asyncio.open_connection(sock=raw, limit=RECEIVE_BYTES)
    writer.write(_REQUEST.format(path=path, host=host).encode())
    runs: list[list[int]] = []
    buffer = b""
    await reader.readuntil(b"\r\n\r\n")
    opened.set()
    while True:
        size = int(await reader.readline(), 16)
        buffer += (await reader.readexactly(size + 2))[:-2]
        *events, buffer = buffer.split(b"\n\n")
        for event in events:
            if b"event: records" in event and note(runs, event):
                writer.close()
                return runs


def note(runs: list[list[int]], event: bytes) -> bool:
    """Add the records of an event to the runs; whether the last one was among them."""
    data = next(line[6:] for line in event.split(b"\n") if line.startswith(b"data: "))
    records: list[dict[str, Any]] = json.loads(data)["records"]
    for record in records:
        if runs and runs[-1][1] == record["seq_num"]:
            runs[-1][1] += 1
        else:
            runs.append([record["seq_num"], record["seq_num"] + 1])
    return str(records[-1]["body"]) == "last"


async def main(host: str, port: int, path: str, count: int) -> None:
    """Read them all."""
    opened = [asyncio.Event() for _ in range(count)]
    readers = [asyncio.create_task(read_events(host, port, path, event)) for event in opened]
    for event in opened:
        await event.wait()
    print("open", flush=True)
    print(json.dumps(await asyncio.gather(*readers)), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
