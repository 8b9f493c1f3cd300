"""`duramen read LOG`: the bodies of records to standard output, byte for byte, one line feed each.

So a file of lines that was appended comes back identical; only a missing line feed at its very end
is there afterwards. With `--json` each record is an object on its own line, with its positions.
A reader of the output that goes away (`| head`) ends the command quietly.

Called by `cli.main`. Source: 03-api "CLI", 08-interfaces "Answers".
"""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import sys
from typing import Annotated, Any

import orjson
from cyclopts import Parameter

from duramen.cli.command import (
    DATA_DEFAULT,
    DataOption,
    ExitCode,
    JsonOption,
    LogText,
    TimeoutOption,
    UrlOption,
    UsageError,
    find_url,
    parse_argument,
    run_async,
    say,
)
from duramen.cli.figures import spell_figures, summarize_read
from duramen.client.bulk_read import BulkReader
from duramen.client.records import Records
from duramen.client.rest_client import RestClient
from duramen.texts import parse_log, parse_position, spell_time


def read(
    log: LogText,
    /,
    *,
    from_: Annotated[
        str,
        Parameter(
            name="--from",
            help="head, tail, tail-N, seq:N or N, dlsn:e1n2s3, lsn:e1n2, txid:N (first at or "
            "above), time:RFC 3339 or unix ms, ago:1h30m",
        ),
    ] = "head",
    count: Annotated[int | None, Parameter(name=["--count", "-n"], help="records at most")] = None,
    follow: Annotated[
        bool, Parameter(name=["--follow", "-f"], negative="", help="wait for more at the tail")
    ] = False,
    timeout: TimeoutOption = 60.0,
    url: UrlOption = None,
    data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:
    """Read records of a log: each body to stdout byte for byte, followed by a line feed.

    A file of lines comes back identical (with a line feed at its end, if that was missing). With
    --json each record is one line of JSON. Statistics go to stderr.

    Exit codes: 0 read; 1 refused or failed; 2 usage; 130 interrupted (the usual end of --follow).
    """
    name = parse_argument(parse_log, log)
    position = parse_argument(parse_position, from_)
    if count is not None and count < 0:
        raise UsageError("-n is a number of records, 0 or more")

    async def run() -> int:
        client = RestClient(find_url(url, data, "read_url"))
        reader = BulkReader(client, *name, timeout_s=timeout)
        reading = asyncio.ensure_future(
            reader.run(
                position,
                from_,
                count=count,
                is_following=follow,
                sink=write_json if json else write_bodies,
            )
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, reading.cancel)
        code = ExitCode.OK
        try:
            await reading
        except asyncio.CancelledError:
            code = ExitCode.INTERRUPTED
        except BrokenPipeError:
            _silence_stdout()
        finally:
            await client.close()
        if reader.figures.moved_to is not None:
            say(f"what lay before seq:{reader.figures.moved_to} was truncated: read from there")
        say(spell_figures(summarize_read(reader.figures)))
        return code

    return run_async(run())


def write_bodies(found: list[Records]) -> None:
    """Bodies to standard output, one line feed after each."""
    out = sys.stdout.buffer
    for records in found:
        out.write(join_bodies(records))
    out.flush()


def join_bodies(records: Records) -> bytes:
    """The bodies as lines."""
    return b"\n".join([*records.bodies, b""])


def write_json(found: list[Records]) -> None:
    """Each record as a line of JSON to standard output."""
    out = sys.stdout.buffer
    for records in found:
        out.writelines(
            orjson.dumps(spell_record(records, index), option=orjson.OPT_APPEND_NEWLINE)
            for index in range(records.skip, records.stop)
        )
    out.flush()


def spell_record(records: Records, index: int) -> dict[str, Any]:
    """The JSON object of one record: strings are UTF-8, or all base64 with `"format": "base64"`."""
    batch = records.batch
    body = batch.bodies[index]
    headers = batch.headers[index] if batch.headers is not None else ()
    record: dict[str, Any] = {
        "seq_num": records.seq_num_of(index),
        "dlsn": str(records.dlsn_of(index)),
        "timestamp": spell_time(batch.timestamps_ms[index]),
    }
    if batch.txids is not None:
        record["txid"] = batch.txids[index]
    try:
        texts = [body.decode(), *(part.decode() for pair in headers for part in pair)]
    except UnicodeDecodeError:
        record["format"] = "base64"
        parts = [body, *(part for pair in headers for part in pair)]
        texts = [base64.b64encode(part).decode() for part in parts]
    if headers:
        record["headers"] = [texts[at : at + 2] for at in range(1, len(texts), 2)]
    return record | {"body": texts[0]}


def _silence_stdout() -> None:
    """Python flushes standard output once more at its end: let that go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
