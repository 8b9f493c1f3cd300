"""`duramen append LOG [FILE|-]`: the lines of a file become records of a log, in their order.

The lines are cut in bulk (`line_batches`), sent as binary batches, one in flight (`bulk_append`).
The batches have a producer, so that one of unknown fate is sent again for as long as there is time
and stored once; if it stays uncertain the command says which lines and how to go on. Logs that
acknowledge out of order take no producers: --no-producer goes on without that. Ctrl-C or SIGTERM
waits for the batch in flight, so that the position is certain; a second one does not wait,
and says which lines may or may not be stored.

Called by `cli.main`. Source: docs/cli.md, docs/testing.md "Histories".
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import stat
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import orjson
from cyclopts import Parameter

from duramen.cli.arguments import DataOption, JsonOption, LogText, TimeoutOption, UrlOption
from duramen.cli.command import (
    DATA_DEFAULT,
    URL_VARIABLE,
    ExitCode,
    FoundUrl,
    UsageError,
    check_standard_input,
    find_url,
    open_client,
    parse_argument,
    print_json,
    run_async,
    say,
)
from duramen.cli.figures import format_figures, summarize_append
from duramen.cli.line_batches import (
    BATCH_BYTES_DEFAULT,
    LineCutter,
    LineSource,
    LineTooLongError,
)
from duramen.cli.shell.advice import CommandFacts, advise
from duramen.client.bulk_append import AppendFigures, BulkAppender, UncertainAppendError
from duramen.client.retry import repeat_while_refused
from duramen.errors import DuramenError
from duramen.limits import BATCH_BYTES_MAX
from duramen.runtime.http_client import PeerError
from duramen.texts import parse_log
from duramen.units import SECOND, format_duration, format_size, parse_duration_us, parse_size_bytes
from duramen.wire.record_batch import PRODUCER_ID_BYTES_MAX

FACTS: Final = CommandFacts(
    frozenset({"--url", "--data", "--producer", "--no-producer", "--batch-bytes"}), (URL_VARIABLE,)
)
"""What advice may speak of (`shell.advice`); a test compares it with the command's flags."""

_LINGER_MAX_US: Final = 60 * SECOND
"""Lines that wait are in no log: who means to wait for longer means something else."""


def append(
    log: LogText,
    file: Annotated[
        str, Parameter(help="the file, - for standard input", allow_leading_hyphen=True)
    ] = "-",
    /,
    *,
    create: Annotated[bool, Parameter(negative="", help="create the log if missing")] = False,
    skip_lines: Annotated[int, Parameter(help="leave out this many lines at the start")] = 0,
    batch_bytes: Annotated[str, Parameter(help="bytes of a batch at most, up to 4MiB")] = (
        format_size(BATCH_BYTES_DEFAULT)
    ),
    producer: Annotated[
        str | None,
        Parameter(
            help="id of the producer, up to 64 characters; it fences earlier runs of this id"
        ),
    ] = None,
    no_producer: Annotated[
        bool,
        Parameter(negative="", help="for logs out of order: end at a batch of unknown fate"),
    ] = False,
    linger: Annotated[
        str, Parameter(help="how long a line of a pipe waits for others, such as 50ms")
    ] = "0ms",
    timeout: TimeoutOption = 60.0,
    history: Annotated[
        Path | None, Parameter(help="write each completed append as a line of JSON")
    ] = None,
    url: UrlOption = None,
    data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:
    """Append the lines of a file to a log, each as one record, in their order.

    A record is a line without its line feed; a last line without one counts too. Statistics go to
    stderr, or with --json as one object to stdout.

    Exit codes: 0 all appended; 1 refused or failed (nothing of the last batch is stored); 2 usage;
    3 uncertain to the last (the lines named may or may not be stored); 130 interrupted.
    """
    check_standard_input(file)
    name = parse_argument(parse_log, log)
    if file.startswith("-") and file != "-":
        raise UsageError(f"{file} is no option (a file of that name is ./{file})")
    size_bytes = _parse_batch_bytes(batch_bytes)
    linger_us = _parse_linger_us(linger)
    if skip_lines < 0:
        raise UsageError("--skip-lines is a number of lines, 0 or more")
    producer_id = _choose_producer(producer, is_without=no_producer)
    target = find_url(url, data, "write_url")
    cutter = LineCutter(batch_bytes=size_bytes, skip_lines=skip_lines)
    with ExitStack() as stack:
        fd = stack.enter_context(_opened(file))
        on_history = stack.enter_context(_history_file(history)) if history else None
        on_progress = stack.enter_context(_progress(fd))
        return run_async(
            _append(
                target,
                name,
                LineSource(fd, cutter, producer_id, linger_us=linger_us),
                is_creating=create,
                timeout_s=timeout,
                on_progress=on_progress,
                on_history=on_history,
                is_json=json,
            )
        )


async def _append(
    server: FoundUrl,
    name: tuple[str, str],
    source: LineSource,
    *,
    is_creating: bool,
    timeout_s: float,
    on_progress: Callable[[AppendFigures], None],
    on_history: Callable[[dict[str, Any]], None] | None,
    is_json: bool,
) -> int:
    client = open_client(server)
    appender = BulkAppender(
        client, *name, timeout_s=timeout_s, on_progress=on_progress, on_history=on_history
    )
    notes: dict[str, Any] = {}
    code = ExitCode.OK
    try:
        with _Interrupts(appender, source) as interrupts:
            if is_creating:
                await interrupts.unless_interrupted(
                    repeat_while_refused(
                        lambda: client.ensure_log(*name, {}), timeout_s=timeout_s, is_read=True
                    )
                )
            if not interrupts.count:
                await appender.run(source)
            code = ExitCode.INTERRUPTED if interrupts.count else ExitCode.OK
    except UncertainAppendError as error:
        code = ExitCode.UNCERTAIN
        notes = _explain_uncertain("/".join(name), error, appender.figures)
    except (DuramenError, PeerError, LineTooLongError, OSError) as error:
        code = ExitCode.FAILED
        notes = {"error": str(error), "next": advise(error, FACTS)}
        if isinstance(error, DuramenError):
            notes["code"] = error.code
    finally:
        await client.close()
    _report(appender.figures, notes, code=code, is_json=is_json)
    return code


class _Interrupts:
    """Ctrl-C and SIGTERM while lines are appended: the first one ends it behind the batch in
    flight, every further one at once."""

    def __init__(self, appender: BulkAppender, source: LineSource) -> None:
        self._appender = appender
        self._source = source
        self._task: asyncio.Future[Any] | None = None
        self.count = 0

    def __enter__(self) -> _Interrupts:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        """The report that follows is short: nothing interrupts it."""
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, lambda: None)

    async def unless_interrupted(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do what may be broken off at any moment."""
        self._task = asyncio.ensure_future(work)
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._task = None

    def _on_signal(self) -> None:
        self.count += 1
        self._source.close()
        if self._task is not None:
            self._task.cancel()
        if self.count > 1:
            self._appender.abandon()
            return
        self._appender.stop()
        if self._appender.is_waiting:
            say("waiting for the batch in flight; once more to leave its fate open")


def _explain_uncertain(
    log: str, error: UncertainAppendError, figures: AppendFigures
) -> dict[str, Any]:
    batch = error.batch
    where = "tail-1" if figures.end_seq_num is None else f"seq:{figures.end_seq_num}"
    return {
        "error": (
            f"lines {batch.first_line} to {batch.last_line} may or may not be stored, all or none "
            f"of them ({error}). See what follows: duramen read {log} --from {where}. Go on with "
            f"--skip-lines {batch.last_line} if they are there, "
            f"--skip-lines {batch.first_line - 1} if not"
        ),
        "code": error.cause.code,
        "uncertain_lines": [batch.first_line, batch.last_line],
    }


def _report(
    figures: AppendFigures, notes: dict[str, Any], *, code: ExitCode, is_json: bool
) -> None:
    summary = summarize_append(figures)
    if is_json:
        print_json(summary | notes)
    else:
        say(format_figures(summary))
    if "error" in notes:
        say(f"duramen append: {notes['error']}")
    if notes.get("next"):
        say(f"next: {notes['next']}")
    if code in (ExitCode.FAILED, ExitCode.INTERRUPTED):
        if figures.last_line:
            line = figures.last_line
            say(f"stored up to line {line}: go on with --skip-lines {line}")
        else:
            say("nothing of this run is stored: begin again with the same command")


def _choose_producer(producer: str | None, *, is_without: bool) -> str | None:
    if is_without:
        if producer is not None:
            raise UsageError("give --producer or --no-producer")
        return None
    chosen = f"append-{secrets.token_hex(8)}" if producer is None else producer
    is_printable = chosen.isascii() and chosen.isprintable()
    if not is_printable or not 0 < len(chosen) <= PRODUCER_ID_BYTES_MAX:
        raise UsageError(f"--producer {chosen}: 1 to 64 printable ASCII characters")
    return chosen


def _parse_batch_bytes(text: str) -> int:
    try:
        size_bytes = parse_size_bytes(text)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if not 0 < size_bytes <= BATCH_BYTES_MAX:
        raise UsageError(f"--batch-bytes {text}: up to {format_size(BATCH_BYTES_MAX)}")
    return size_bytes


def _parse_linger_us(text: str) -> int:
    try:
        linger_us = parse_duration_us(text)
    except ValueError as error:
        raise UsageError(f"--linger: {error}") from None
    if linger_us > _LINGER_MAX_US:
        raise UsageError(f"--linger {text}: up to {format_duration(_LINGER_MAX_US)}")
    return linger_us


@contextmanager
def _opened(file: str) -> Iterator[int]:
    if file == "-":
        assert sys.stdin is not None
        yield sys.stdin.fileno()
        return
    with Path(file).open("rb", buffering=0) as opened:
        yield opened.fileno()


@contextmanager
def _history_file(path: Path) -> Iterator[Callable[[dict[str, Any]], None]]:
    with path.open("ab") as file:

        def on_history(operation: dict[str, Any]) -> None:
            file.write(orjson.dumps(operation) + b"\n")
            file.flush()

        yield on_history


@contextmanager
def _progress(fd: int) -> Iterator[Callable[[AppendFigures], None]]:
    """A bar on a terminal, nothing elsewhere."""
    facts = os.fstat(fd)
    if not sys.stderr.isatty() or not stat.S_ISREG(facts.st_mode):
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("append", total=facts.st_size)

        def on_progress(figures: AppendFigures) -> None:
            # Each record stood on a line of its own.
            bar.update(task, completed=figures.body_bytes + figures.record_count)

        yield on_progress
