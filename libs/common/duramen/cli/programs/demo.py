"""What `make run` shows: a real file goes into a log, comes back, and both are compared.

The file is the caller's, or every module of the running Python's standard library in one. The path
is that of `duramen append` and `duramen read`. Good means: the SHA-256 of what came back is that of
what went in, and the sequence numbers are 0 … n − 1 without a gap.

Called by `duramen run --demo`. Source: README.md "Two commands".
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shlex
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from duramen.cli.figures import summarize_append, summarize_read
from duramen.cli.line_batches import LineCutter, LineSource, LineTooLongError
from duramen.cli.read import join_bodies
from duramen.cli.shell.tables import align
from duramen.client.bulk_append import BulkAppender, UncertainAppendError
from duramen.client.bulk_read import BulkReader
from duramen.client.credentials.local_cluster import find_local_credential
from duramen.client.records import Records
from duramen.client.rest_client import RestClient
from duramen.client.retry import repeat_while_refused
from duramen.cluster.cluster_file import ClusterState
from duramen.errors import DuramenError
from duramen.runtime.http_client import PeerError
from duramen.texts import parse_position
from duramen.units import MIB

NAMESPACE: Final = "default"
TIMEOUT_S: Final = 60.0
_BYTES_WANTED: Final = 10_000_000
_LINES_WANTED: Final = 300_000


@dataclass(frozen=True, slots=True)
class SourceFile:
    """The file that goes in; the hash is that of the file with a line feed at its end."""

    path: Path
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What went in and what came back."""

    log: str
    source: SourceFile
    append: dict[str, Any]
    read: dict[str, Any]
    read_sha256: str | None
    write_url: str
    read_url: str
    fault: str | None

    @property
    def is_equal(self) -> bool:
        """Whether what came back is what went in."""
        return self.read_sha256 == self.source.sha256

    @property
    def is_gapless(self) -> bool:
        """Whether the sequence numbers are 0 … n − 1; gaps inside have ended the read before."""
        count = self.append["records"]
        first = 0 if count else None
        ends = (self.append, self.read)
        return self.read["records"] == count and all(
            (end["first_seq_num"], end["end_seq_num"] or 0) == (first, count) for end in ends
        )

    @property
    def is_good(self) -> bool:
        """Whether the demo went well."""
        return self.fault is None and self.is_equal and self.is_gapless

    def to_json(self) -> dict[str, Any]:
        """The object of `duramen run --demo --json`."""
        return {
            "log": self.log,
            "file": str(self.source.path),
            "file_bytes": self.source.size_bytes,
            "append": self.append,
            "read": self.read,
            "sha256_in": self.source.sha256,
            "sha256_out": self.read_sha256,
            "is_equal": self.is_equal,
            "is_gapless": self.is_gapless,
            "fault": self.fault,
        }


async def run_demo(
    folder: Path, state: ClusterState, *, file: Path | None, say: Callable[[str], None]
) -> DemoResult:
    """Append the file to a new log of the cluster, read it back, compare.

    A refusal does not raise: it is the result's `fault`.
    """
    demo_folder = folder / "demo"
    demo_folder.mkdir(parents=True, exist_ok=True)
    if file is None:
        file = demo_folder / "stdlib.txt"
        await asyncio.to_thread(write_standard_library, file, say)
    source = await asyncio.to_thread(hash_source, file)
    document = state.to_json()
    log = f"demo-{int(time.time())}"
    say(f"appending {source.path} ({source.size_bytes:,} bytes) to {NAMESPACE}/{log} …")
    credential = find_local_credential(folder)
    write_client = RestClient(document["write_url"], credential=credential)
    read_client = RestClient(document["read_url"], credential=credential)
    appender = BulkAppender(write_client, NAMESPACE, log, timeout_s=TIMEOUT_S)
    reader = BulkReader(read_client, NAMESPACE, log, timeout_s=TIMEOUT_S)
    read_sha256 = fault = None
    try:
        await _append(write_client, appender, log, source.path)
        say("reading it back …")
        read_sha256 = await _read(reader, demo_folder / "read.txt")
    except UncertainAppendError as error:
        fault = f"append_uncertain: {error}"
    except (DuramenError, PeerError, LineTooLongError) as error:
        fault = str(error)
    finally:
        await write_client.close()
        await read_client.close()
    return DemoResult(
        log=f"{NAMESPACE}/{log}",
        source=source,
        append=summarize_append(appender.figures),
        read=summarize_read(reader.figures),
        read_sha256=read_sha256,
        write_url=document["write_url"],
        read_url=document["read_url"],
        fault=fault,
    )


def write_standard_library(path: Path, say: Callable[[str], None]) -> None:
    """Every module of this Python's standard library in one file, in sorted order.

    Each module ends with a line feed. Says so if that makes a small file.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    left_out = {"site-packages", "dist-packages", "__pycache__"}
    size_bytes = line_count = 0
    with path.open("wb") as out:
        for module in sorted(folder.rglob("*.py")):
            if left_out & set(module.relative_to(folder).parts) or not module.is_file():
                continue
            text = module.read_bytes()
            if text and not text.endswith(b"\n"):
                text += b"\n"
            out.write(text)
            size_bytes += len(text)
            line_count += text.count(b"\n")
    if size_bytes < _BYTES_WANTED or line_count < _LINES_WANTED:
        say(f"this Python's library is small: {size_bytes:,} bytes in {line_count:,} lines")


def hash_source(path: Path) -> SourceFile:
    """The file's size and the hash that comes back if nothing is lost.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.sha256()
    size_bytes = 0
    last = b"\n"
    with path.open("rb") as file:
        while chunk := file.read(MIB):
            digest.update(chunk)
            size_bytes += len(chunk)
            last = chunk[-1:]
    if last != b"\n":
        digest.update(b"\n")
    return SourceFile(path, size_bytes, digest.hexdigest())


async def _append(client: RestClient, appender: BulkAppender, log: str, path: Path) -> None:
    await repeat_while_refused(
        lambda: client.ensure_log(NAMESPACE, log, {}), timeout_s=TIMEOUT_S, is_read=True
    )
    fd = os.open(path, os.O_RDONLY)
    try:
        await appender.run(LineSource(fd, LineCutter()))
    finally:
        os.close(fd)


async def _read(reader: BulkReader, path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("wb") as out:

        def keep(found: list[Records]) -> None:
            for records in found:
                lines = join_bodies(records)
                digest.update(lines)
                out.write(lines)

        head = parse_position("head")
        await reader.run(head, "head", count=None, is_following=False, sink=keep)
    return digest.hexdigest()


def show_demo(result: DemoResult, curl_file: Path) -> None:
    """Print the result for people; `curl_file`: shows who calls, where the cluster asks."""
    print("Demo\n")
    for line in align(_list_facts(result)):
        print(line)
    namespace, log = result.log.split("/")
    records = f"/v1/namespaces/{namespace}/logs/{log}/records"
    content = "-H 'content-type: application/json'"
    body = '{"records": [{"body": "hello"}]}'
    curl = f"curl -s -K {shlex.quote(str(curl_file))}" if curl_file.is_file() else "curl -s"
    print("\nTry:")
    print(f"  {curl} '{result.read_url}{records}?from=tail-3'")
    print(f"  {curl} {content} -d '{body}' {result.write_url}{records}", flush=True)


def _list_facts(result: DemoResult) -> list[tuple[str, str]]:
    append, read = result.append, result.read
    facts = [
        ("log", result.log),
        ("file", f"{result.source.path} ({result.source.size_bytes:,} bytes)"),
        ("records", f"{append['records']:,} in, {read['records']:,} out"),
    ]
    for label, figures in (("append", append), ("read", read)):
        if figures["mb_per_s"] is not None:
            facts.append((label, f"{figures['mb_per_s']:.1f} MB/s in {figures['seconds']:.2f} s"))
    if append["append_p50_ms"] is not None:
        latency = f"p50 {append['append_p50_ms']:.1f} ms, p99 {append['append_p99_ms']:.1f} ms"
        facts.append(("batches", f"{append['batches']:,}, each acknowledged after {latency}"))
    if result.fault is not None:
        return [*facts, ("FAILED", result.fault)]
    hashes = (
        f"equal, {result.source.sha256}"
        if result.is_equal
        else f"NOT EQUAL: in {result.source.sha256}, out {result.read_sha256}"
    )
    gaps = "0 … n − 1 without a gap" if result.is_gapless else "NOT 0 … n − 1"
    return [*facts, ("SHA-256", hashes), ("sequence numbers", gaps)]
