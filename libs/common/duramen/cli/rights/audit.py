"""`duramen audit verify|show`: the audit log, held against itself, or for people to read.

Both read the log as any client does, so they need `observe` on the cluster. A check tells what it
finds as it goes, and at the end which chains are open and where each one ends, for whoever keeps
that somewhere else.

Called by `cli.main`. Source: docs/cli.md "Audit", docs/protocol/audit.md "What a check finds".
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final

from cyclopts import App, Parameter

from duramen.cli.arguments import DataOption, JsonOption, TimeoutOption, UrlOption
from duramen.cli.command import (
    DATA_DEFAULT,
    ExitCode,
    FoundUrl,
    UsageError,
    find_url,
    open_client,
    parse_argument,
    print_json,
    run_async,
    say,
)
from duramen.client.bulk_read import BulkReader
from duramen.client.records import Records
from duramen.core.audit.chain import ChainHead
from duramen.core.audit.verification import ChainCheck, ChainFinding
from duramen.core.rights.system_namespace import AUDIT_LOG, SYSTEM_NAMESPACE
from duramen.texts import parse_position
from duramen.wire.edge.audit_records import COUNTS, LOST, AuditRecordError, read_record

audit_app = App(name="audit", help="Check the audit log, or show it.")

_TOLD_COUNT_MAX: Final = 1_000
_TABLE: Final = ("who", "verb", "target", "outcome", "status", "from", "request")

FromOption = Annotated[
    str, Parameter(name="--from", help="where to begin: head, seq:N, time:RFC 3339, ago:24h, …")
]
OnRecords = Callable[[list[Records]], None]


@audit_app.command
def verify(
    *, from_: FromOption = "head", timeout: TimeoutOption = 60.0, url: UrlOption = None,
    data: DataOption = DATA_DEFAULT, json: JsonOption = False,
) -> int:  # fmt: skip
    """Check that no record of the audit log is changed, missing or out of order.

    Exit codes: 0 nothing is wrong; 1 something is, or failed; 2 usage.
    """
    checking = _Checking(is_json=json)
    _read(find_url(url, data, "read_url"), from_, timeout, checking.use)
    checking.report_end()
    return ExitCode.FAILED if checking.flaw_count else ExitCode.OK


@audit_app.command
def show(
    *, from_: FromOption = "ago:1h",
    count: Annotated[int | None, Parameter(name=["--count", "-n"], help="records at most")] = None,
    timeout: TimeoutOption = 60.0, url: UrlOption = None, data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:  # fmt: skip
    """Show records of the audit log, a line each; of the last hour, if nothing is said.

    With --json each record is the line that is stored.

    Exit codes: 0 shown; 1 refused or failed; 2 usage.
    """
    if count is not None and count < 0:
        raise UsageError("-n is a number of records, 0 or more")

    def print_records(found: list[Records]) -> None:
        for _, body in _list_bodies(found):
            for line in [body.decode(errors="backslashreplace")] if json else _format(body):
                print(line)

    _read(find_url(url, data, "read_url"), from_, timeout, print_records, count)
    return ExitCode.OK


class _Checking:
    """A check under way, and what it has told."""

    def __init__(self, *, is_json: bool) -> None:
        self._is_json = is_json
        self._check: ChainCheck | None = None
        self._told: list[dict[str, Any]] = []
        self._lost_count = 0
        self.flaw_count = 0

    def use(self, found: list[Records]) -> None:
        for seq_num, body in _list_bodies(found):
            if self._check is None:
                self._check = ChainCheck(is_whole=seq_num == 0)
            try:
                record = read_record(body)
            except AuditRecordError as error:
                self._tell(seq_num, self._check.refuse(str(error)))
                continue
            if record.members["kind"] == LOST:
                self._lost_count += int(record.members["lost"])
            for finding in self._check.add(record.checked):
                self._tell(seq_num, finding)

    def report_end(self) -> None:
        """What was found, in sum."""
        check = self._check or ChainCheck(is_whole=True)
        heads, still_open = check.list_heads(), check.list_open()
        if self._is_json:
            print_json({
                "records": check.record_count,
                "doubles": check.double_count,
                "lost": self._lost_count,
                "flaws": self.flaw_count,
                "findings": self._told,
                "heads": [head._asdict() for head in heads],
                "open": [head.chain for head in still_open],
            })  # fmt: skip
            return
        for head in heads:
            state = "open: its newest records may be missing" if head in still_open else "ended"
            print(_format_head(head, state))
        print(
            f"{check.record_count} records, {check.double_count} of them doubles, in {len(heads)} "
            f"chains; {self._lost_count} were lost for lack of room; {self.flaw_count} flaws"
        )

    def _tell(self, seq_num: int, finding: ChainFinding) -> None:
        self.flaw_count += 1
        if self.flaw_count > _TOLD_COUNT_MAX:
            return
        flaw, chain, detail = finding
        self._told.append(
            {"seq_num": seq_num, "flaw": flaw.value, "chain": chain, "detail": detail}
        )
        if not self._is_json:
            where = "" if chain is None else f"{_plain(chain)}: "
            print(f"seq:{seq_num}: {flaw.value}: {where}{_plain(detail)}")


def _read(
    target: FoundUrl, text: str, timeout_s: float, sink: OnRecords, count: int | None = None
) -> None:
    position = parse_argument(parse_position, text)

    async def run() -> None:
        client = open_client(target)
        reader = BulkReader(client, SYSTEM_NAMESPACE, AUDIT_LOG, timeout_s=timeout_s)
        try:
            await reader.run(position, text, count=count, is_following=False, sink=sink)
        finally:
            await client.close()
        if reader.figures.moved_to is not None:
            say(f"what lay before seq:{reader.figures.moved_to} was truncated: read from there")

    run_async(run())
    sys.stdout.flush()


def _list_bodies(found: list[Records]) -> Iterator[tuple[int, bytes]]:
    for records in found:
        for index in range(records.skip, records.stop):
            yield records.seq_num_of(index), records.batch.bodies[index]


def _format(body: bytes) -> Iterator[str]:
    """A record for people: a line, or one for each row that was counted."""
    try:
        members = read_record(body).members
    except AuditRecordError as error:
        yield f"no record: {error}"
        return
    begin = [members.get("at"), members["kind"]]
    if members["kind"] == COUNTS:
        for who, namespace, verb, outcome, calls in members.get("counts", ()):
            yield _join([*begin, who, verb, namespace, outcome, f"{calls} calls"])
        return
    yield _join([*begin, *(members[name] for name in _TABLE if name in members)])


def _format_head(head: ChainHead, state: str) -> str:
    return f"{_plain(head.chain)} {head.n} {head.digest} {state}"


def _join(cells: list[Any]) -> str:
    return "\t".join("-" if cell is None else _plain(str(cell)) for cell in cells)


def _plain(text: str) -> str:
    """No text of a record moves the cursor of whoever looks at it."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)
