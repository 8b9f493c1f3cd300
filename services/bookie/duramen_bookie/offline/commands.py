"""The bookie's commands beside running: `fsck` and `inspect` for a stopped one, and `bench`.

fsck and inspect hold the bookie's directories while they read, and refuse when it runs. Results go
to stdout, progress and refusals to stderr.

    0   clean, or shown
    1   damage was found, or what was asked for is not there
    2   nothing can be said: the bookie runs, these are not its directories, a newer version …

Called by `main`. Source: docs/bookie.md "Tools for a stopped bookie".
"""

from __future__ import annotations

import argparse
import enum
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from duramen.ids import (
    LAST_ENTRY_ID,
    LAST_EPOCH,
    EntryId,
    Epoch,
    LedgerId,
    LogId,
    is_log_id,
    ledger_of,
)
from duramen_bookie.offline.check import CheckReport, check
from duramen_bookie.offline.inspect import (
    view_checkpoint,
    view_entry,
    view_journal,
    view_ledger,
)
from duramen_bookie.offline.rebuild import rebuild_indexes
from duramen_bookie.offline.stopped_bookie import CannotTell, StoppedBookie, open_stopped


class OfflineExitCode(enum.IntEnum):
    """As the module's text says."""

    CLEAN = 0
    DAMAGED = 1
    CANNOT_TELL = 2


def run_command(argv: Sequence[str]) -> int:
    """Run one command; returns the exit status. Faults of the command line end with status 2.

    Args:
        argv: the command's name first.
    """
    parser = argparse.ArgumentParser(prog="duramen-bookie")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_fsck(commands)
    _add_inspect(commands)
    if argv and argv[0] == "bench":
        # It brings servers and clients, which a check has no use for.
        from duramen_bookie.offline.bench import add_bench_commands  # noqa: PLC0415

        add_bench_commands(commands)
    options = parser.parse_args(argv)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except (CannotTell, OSError) as error:
        sys.stderr.write(f"duramen-bookie: {error}\n")
        if getattr(options, "json", False):
            _print_json({"status": "cannot_tell", "reason": str(error)})
        return OfflineExitCode.CANNOT_TELL


def _add_fsck(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "fsck", help="read all of a stopped bookie and compare it with every checksum"
    )
    _add_directories(parser)
    parser.add_argument(
        "--rebuild-index", action="store_true", help="first make damaged indexes anew"
    )
    parser.set_defaults(run=_run_fsck)


def _add_inspect(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    inspect = commands.add_parser("inspect", help="show what stands in a stopped bookie's files")
    kinds = inspect.add_subparsers(required=True, metavar="WHAT")
    checkpoint = kinds.add_parser("checkpoint", help="files in force, and the state of all ledgers")
    checkpoint.set_defaults(run=_run_checkpoint)
    journal = kinds.add_parser("journal", help="every file and record")
    journal.add_argument("--file", type=int, metavar="ID", help="records of this file alone")
    journal.set_defaults(run=_run_journal)
    ledger = kinds.add_parser("ledger", help="its state, and where its entries are")
    ledger.set_defaults(run=_run_ledger)
    entry = kinds.add_parser("entry", help="every copy of an entry")
    entry.set_defaults(run=_run_entry)
    for parser in (checkpoint, journal, ledger, entry):
        _add_directories(parser)
    for parser in (ledger, entry):
        parser.add_argument("ledger", type=_ledger, help="its id, or LOG:EPOCH")
    entry.add_argument("entry", type=_entry, help="its number in the ledger")
    entry.add_argument("--output", type=Path, metavar="FILE", help="write its bytes there")


def _add_directories(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data_dir", type=Path, help="the bookie's --data-dir")
    parser.add_argument("--journal-dir", type=Path, help="as the bookie is started with")
    parser.add_argument(
        "--ledger-dir", type=Path, action="append", default=[], help="the same, in the same order"
    )
    parser.add_argument("--json", action="store_true", help="machine-readable output")


# --- Commands ------------------------------------------------------------------------------------


def _run_fsck(options: argparse.Namespace) -> int:
    with _open(options, can_write=options.rebuild_index) as bookie:
        rebuilt = rebuild_indexes(bookie) if options.rebuild_index else []
        report = check(bookie, _say)
    if options.json:
        _print_json({**report.describe(), "rebuilt_indexes": rebuilt})
    else:
        _print_report(report, rebuilt)
    return OfflineExitCode.DAMAGED if report.damages else OfflineExitCode.CLEAN


def _run_checkpoint(options: argparse.Namespace) -> int:
    with _open(options) as bookie:
        return _print_rows(view_checkpoint(bookie), is_json=options.json)


def _run_journal(options: argparse.Namespace) -> int:
    with _open(options) as bookie:
        return _print_rows(view_journal(bookie, options.file), is_json=options.json)


def _run_ledger(options: argparse.Namespace) -> int:
    with _open(options) as bookie:
        rows = list(view_ledger(bookie, options.ledger))
    status = _print_rows(rows, is_json=options.json)
    if not rows[0]["is_known"]:
        _say(f"ledger {options.ledger} is not here")
        return OfflineExitCode.DAMAGED
    return status


def _run_entry(options: argparse.Namespace) -> int:
    with _open(options) as bookie:
        copies = list(view_entry(bookie, options.ledger, options.entry))
    _print_rows([row for row, _ in copies], is_json=options.json)
    intact = [body for _, body in copies if body is not None]
    if options.output is not None and intact:
        options.output.write_bytes(intact[0])
    if len(intact) == len(copies) > 0:
        return OfflineExitCode.CLEAN
    if not copies:
        _say(f"entry {options.entry} of ledger {options.ledger} is not here")
    return OfflineExitCode.DAMAGED


def _open(
    options: argparse.Namespace, *, can_write: bool = False
) -> AbstractContextManager[StoppedBookie]:
    return open_stopped(
        options.data_dir, options.journal_dir, options.ledger_dir, can_write=can_write
    )


# --- Arguments and results -----------------------------------------------------------------------


def _ledger(text: str) -> LedgerId:
    log, colon, epoch = text.partition(":")
    if not colon:
        log, epoch = str(int(text) >> 32), str(int(text) & LAST_EPOCH)
    if not (is_log_id(int(log)) and 1 <= int(epoch) <= LAST_EPOCH):
        raise ValueError(text)
    return ledger_of(LogId(int(log)), Epoch(int(epoch)))


def _entry(text: str) -> EntryId:
    if not 0 <= int(text) <= LAST_ENTRY_ID:
        raise ValueError(text)
    return EntryId(int(text))


def _print_rows(rows: Iterable[dict[str, Any]], *, is_json: bool) -> int:
    """Print rows as they come; the status says whether damage was among them."""
    is_damaged = False
    for row in rows:
        is_damaged |= bool("damage" in row or row["kind"] == "damage")
        if is_json:
            _print_json(row)
        else:
            kind, *fields = row.items()
            spelt = [f"{name}={_format(value)}" for name, value in fields]
            sys.stdout.write(" ".join([kind[1], *spelt]) + "\n")
    return OfflineExitCode.DAMAGED if is_damaged else OfflineExitCode.CLEAN


def _format(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case list() | tuple():
            return ",".join(f"{first}-{last}" for first, last in value) or "-"
        case _:
            return str(value)


def _print_report(report: CheckReport, rebuilt: Sequence[str]) -> None:
    lines = [f"made anew: {path}" for path in rebuilt]
    lines += [f"damaged: {finding}" for finding in report.damages]
    lines += [f"note: {note}" for note in report.notes]
    lines.append(
        f"{report.bookie_id}, incarnation {report.incarnation}: {report.journal_records} records "
        f"in {report.journal_files} journal files, {report.shelf_entries} entries in "
        f"{report.shelf_files} shelf files"
    )
    lines.append(f"{len(report.damages)} damages" if report.damages else "clean")
    sys.stdout.write("\n".join(lines) + "\n")


def _print_json(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
