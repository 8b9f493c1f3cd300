"""What every command shares: exit codes, where the cluster is, how a run is framed.

Where a proxy is: `--url`, else the environment's DURAMEN_URL, else cluster.json in the folder
`--data` of a `duramen run`. Messages for people go to stderr, results to stdout.

Called by the modules of the commands only; the flags that they share are in `cli.arguments`.
"""

from __future__ import annotations

import enum
import os
import shutil
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import orjson
import uvloop

from duramen.cli.shell.tables import lay_out
from duramen.cli.shell.waiting import WaitNotice
from duramen.client.rest_client import RestClient
from duramen.cluster.cluster_file import read_document
from duramen.errors import DuramenError

T = TypeVar("T")

ProxyKind = Literal["write_url", "read_url", "admin_url"]

URL_VARIABLE: Final = "DURAMEN_URL"
ADMIN_URL_VARIABLE: Final = "DURAMEN_ADMIN_URL"
DATA_DEFAULT: Final = Path(".duramen")


class ExitCode(enum.IntEnum):
    """The one table of exit codes; each command's help says what they mean there (docs/cli.md)."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNCERTAIN = 3
    INTERRUPTED = 130

    @property
    def meaning(self) -> str:
        """What a script may conclude, whatever the command."""
        return _MEANINGS[self]


_MEANINGS: Final = {
    ExitCode.OK: "done, or it was so before; what was asked for stands on standard output",
    ExitCode.FAILED: "refused, failed, or the answer is a bad one; one sentence on standard error",
    ExitCode.USAGE: "the command line makes no sense, or needs an extra that is not installed: "
    "nothing was asked of anybody",
    ExitCode.UNCERTAIN: "an append may or may not be stored; standard error says how to find out",
    ExitCode.INTERRUPTED: "ended by Ctrl-C, an append also by SIGTERM",
}
assert len(_MEANINGS) == len(ExitCode)


class UsageError(Exception):
    """The command line makes no sense; the text says why and how to write it."""


def find_url(url: str | None, data: Path, kind: ProxyKind) -> str:
    """The URL of the proxy that a command needs; `admin_url` has a variable of its own.

    Raises:
        UsageError: what is given is no URL.
        ClusterFileError: nothing is given and no local cluster is found.
    """
    variable = ADMIN_URL_VARIABLE if kind == "admin_url" else URL_VARIABLE
    given = (("the flag", url), (f"${variable}", os.environ.get(variable)))
    place, found = next(
        (pair for pair in given if pair[1]),
        ("cluster.json", None),
    )
    if found is None:
        found = read_document(data.absolute()).get(kind)
    if not isinstance(found, str) or not found.startswith(("http://", "https://")):
        raise UsageError(f"{found!r} of {place} is no URL: write such as http://127.0.0.1:7301")
    return found


def open_client(url: str, shown: Mapping[str, str] | None = None) -> RestClient:
    """A client of that server, which shows these headers; who waits for it for long is told so."""
    return RestClient(url, observer=WaitNotice(url, say), shown=shown)


def parse_argument(parse: Any, text: str) -> Any:
    """Parse an argument of the command line.

    Raises:
        UsageError: with the parser's own sentence.
    """
    try:
        return parse(text)
    except DuramenError as error:
        raise UsageError(error.detail) from None


def check_standard_input(*files: str) -> None:
    """See that it can be read where a file is `-`.

    Raises:
        UsageError: who started the command has closed it.
    """
    if "-" in files and sys.stdin is None:
        raise UsageError("standard input is closed: name a file, or give it something to read")


def parse_config(text: str) -> dict[str, Any]:
    """The object that `--config` gives.

    Raises:
        UsageError: it is none.
    """
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise UsageError(f"--config is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise UsageError("--config is no JSON object")
    return document


def name_copysets(config: dict[str, Any], copysets: str | None) -> dict[str, Any]:
    """The configuration with what `--copysets` says.

    Raises:
        UsageError: `--config` says something else.
    """
    if copysets is None:
        return config
    if config.get("copysets", copysets) != copysets:
        raise UsageError(f"--config has copysets {config['copysets']}, and --copysets {copysets}")
    return {**config, "copysets": copysets}


def run_async(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine on the loop that the services run on."""
    return uvloop.run(coroutine)


def say(text: str) -> None:
    """A line for people."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def print_json(value: object) -> None:
    """One JSON value as one line of the result."""
    sys.stdout.buffer.write(orjson.dumps(value) + b"\n")
    sys.stdout.buffer.flush()


def silence_stdout() -> None:
    """Who read standard output has gone; Python flushes it once more: let that go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def call_admin(
    url: str | None, data: Any, use: Callable[[RestClient], Awaitable[dict[str, Any]]]
) -> dict[str, Any]:
    """The answer of a write proxy's admin port."""
    target = find_url(url, data, "admin_url")

    async def run() -> dict[str, Any]:
        client = open_client(target)
        try:
            return await use(client)
        finally:
            await client.close()

    return run_async(run())


def show_rows(
    answer: dict[str, Any],
    field: str,
    columns: Sequence[str],
    *,
    is_json: bool,
    droppable: Sequence[str] = (),
) -> None:
    """The answer as it is, or the rows of its `field` as a table."""
    if is_json:
        print_json(answer)
        return
    rows = [[format_cell(row.get(name)) for name in columns] for row in answer[field]]
    print_table(columns, rows, droppable)


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], droppable: Sequence[str] = ()
) -> None:
    """Rows of texts, none of them cut: as wide as the terminal, whole lines elsewhere."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    table = lay_out(columns, rows, width, droppable)
    for line in table.lines:
        print(line)
    sys.stdout.flush()
    if table.left_out:
        say(f"no room for {', '.join(table.left_out)}: widen the terminal, or see --json")


def format_cell(value: object) -> str:
    """A value in a table."""
    if value is None:
        return "–"
    if isinstance(value, list | dict):
        return orjson.dumps(value).decode()
    return str(value)
