"""`duramen read|tail LOG`: the bodies of records to standard output, byte for byte, one line each.

So a file of lines that was appended comes back identical; only a missing line feed at its very end
is there afterwards. With `--json` each record is an object on its own line, with its positions;
`--format line` has number, time and body for people. `tail` is `read` from the last records on.
A reader of the output that goes away (`| head`) ends the command quietly. Holes are told on
standard error, where they are met.

Called by `cli.main`. Source: docs/cli.md, docs/protocol/read-answers.md "JSON".
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Annotated, Final, Literal

import orjson
from cyclopts import Parameter

from duramen.cli.arguments import DataOption, JsonOption, LogText, TimeoutOption, UrlOption
from duramen.cli.command import (
    DATA_DEFAULT,
    ExitCode,
    UsageError,
    find_url,
    open_client,
    parse_argument,
    run_async,
    say,
    silence_stdout,
)
from duramen.cli.figures import format_figures, summarize_read
from duramen.client.bulk_read import BulkReader
from duramen.client.records import Records
from duramen.texts import format_time, parse_log, parse_position
from duramen.wire.record_json import DeliveredRecord, encode_record

Format = Literal["body", "line", "json"]

FormatOption = Annotated[
    Format, Parameter(help="body: byte for byte; line: number, time, body as text; json: all of it")
]
FollowOption = Annotated[
    bool, Parameter(name=["--follow", "-f"], negative="", help="wait for more at the tail")
]

_TAIL_COUNT: Final = 10


def read(
    log: LogText,
    /,
    *,
    from_: Annotated[
        str | None,
        Parameter(
            name="--from",
            help="head, tail, tail-N, seq:N or N, dlsn:e1n2s3, lsn:e1n2, txid:N (first at or "
            "above), time:RFC 3339 or unix ms, ago:1h30m; head if nothing is said",
        ),
    ] = None,
    count: Annotated[int | None, Parameter(name=["--count", "-n"], help="records at most")] = None,
    ago: Annotated[
        str | None, Parameter(help="begin this long ago, 1h30m: the same as --from ago:1h30m")
    ] = None,
    follow: FollowOption = False,
    format: FormatOption = "body",
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
    if from_ is not None and ago is not None:
        raise UsageError("give one of --from and --ago")
    text = f"ago:{ago}" if ago is not None else from_ or "head"
    if count is not None and count < 0:
        raise UsageError("-n is a number of records, 0 or more")
    return _read(
        log, text, url, data, count=count, is_following=follow, timeout_s=timeout,
        form="json" if json else format,
    )  # fmt: skip


def tail(
    log: LogText,
    /,
    *,
    count: Annotated[int, Parameter(name=["--count", "-n"], help="the last records")] = _TAIL_COUNT,
    follow: FollowOption = False,
    format: FormatOption = "body",
    timeout: TimeoutOption = 60.0,
    url: UrlOption = None,
    data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:
    """Read the last records of a log, and with -f those that come; else as `duramen read`.

    Exit codes: 0 read; 1 refused or failed; 2 usage; 130 interrupted (the usual end of --follow).
    """
    if count < 0:
        raise UsageError("-n is a number of records, 0 or more")
    return _read(
        log, f"tail-{count}", url, data, count=None, is_following=follow, timeout_s=timeout,
        form="json" if json else format,
    )  # fmt: skip


def _read(
    log: str,
    text: str,
    url: str | None,
    data: Path,
    *,
    count: int | None,
    is_following: bool,
    timeout_s: float,
    form: Format,
) -> int:
    name = parse_argument(parse_log, log)
    position = parse_argument(parse_position, text)
    target = find_url(url, data, "read_url")
    sink = {"body": write_bodies, "line": write_lines, "json": write_json}[form]

    async def run() -> int:
        client = open_client(target)
        reader = BulkReader(client, *name, timeout_s=timeout_s)
        reading = asyncio.ensure_future(
            reader.run(
                position, text, count=count, is_following=is_following, sink=sink,
                on_hole=say_hole,
            )
        )  # fmt: skip
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, reading.cancel)
        code = ExitCode.OK
        try:
            await reading
        except asyncio.CancelledError:
            code = ExitCode.INTERRUPTED
        except BrokenPipeError:
            silence_stdout()
        finally:
            await client.close()
        if reader.figures.moved_to is not None:
            say(f"what lay before seq:{reader.figures.moved_to} was truncated: read from there")
        say(format_figures(summarize_read(reader.figures)))
        return code

    return run_async(run())


def say_hole(first: int, end: int) -> None:
    """Numbers without a record, to standard error: the output has records alone."""
    numbers = f"seq:{first}" if end - first == 1 else f"seq:{first} to seq:{end - 1}"
    say(f"{numbers}: a hole, no record was ever acknowledged there")


def write_bodies(found: list[Records]) -> None:
    """Bodies to standard output, one line feed after each."""
    out = sys.stdout.buffer
    for records in found:
        out.write(join_bodies(records))
    out.flush()


def join_bodies(records: Records) -> bytes:
    """The bodies as lines."""
    return b"\n".join([*records.bodies, b""])


def write_lines(found: list[Records]) -> None:
    """Number, time and body of each record, with tabs; what is no text is shown as escapes."""
    out = sys.stdout.buffer
    for records in found:
        batch = records.batch
        for index in range(records.skip, records.stop):
            body = batch.bodies[index].decode(errors="backslashreplace")
            text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in body)
            time = format_time(batch.timestamps_ms[index])
            out.write(f"{records.seq_num_of(index)}\t{time}\t{text}\n".encode())
    out.flush()


def write_json(found: list[Records]) -> None:
    """Each record as a line of JSON to standard output."""
    out = sys.stdout.buffer
    for records in found:
        for index in range(records.skip, records.stop):
            document = encode_record(make_record(records, index), is_base64=False)
            out.write(orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE))
    out.flush()


def make_record(records: Records, index: int) -> DeliveredRecord:
    """One record as every answer encodes it."""
    batch = records.batch
    return DeliveredRecord(
        records.seq_num_of(index),
        records.dlsn_of(index),
        None if batch.txids is None else batch.txids[index],
        batch.timestamps_ms[index],
        () if batch.headers is None else batch.headers[index],
        batch.bodies[index],
    )
