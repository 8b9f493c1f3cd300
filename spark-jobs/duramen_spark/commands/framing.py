"""What the commands share: parsing of texts, connecting, printing of a report, its exit code.

Called by the modules beside it alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Protocol, TypeVar

from cyclopts import Parameter

from duramen.cli.command import ExitCode, UsageError, print_json
from duramen.units import agree, parse_duration_us, parse_size_bytes
from duramen_spark.connection import Connection, connect
from duramen_spark.places import ClusterPlace

T = TypeVar("T")

JsonOption = Annotated[bool, Parameter(negative="", help="the report as JSON")]
Selectors = Annotated[
    str, Parameter(help="NAMESPACE/LOG, or globs such as 'prod/*'; else every log")
]


class JobReport(Protocol):
    """What every job of these tells."""

    @property
    def is_good(self) -> bool:
        """Whether it is exit code 0."""
        ...

    def to_json(self) -> dict[str, Any]:
        """As one JSON object."""

    def list_lines(self) -> list[str]:
        """As lines of text."""


def run_connected(place: ClusterPlace, use: Callable[[Connection], Awaitable[T]]) -> T:
    """Connect, use, leave. Raises: as `connect`."""

    async def work() -> T:
        async with connect(place) as connection:
            return await use(connection)

    return asyncio.run(work())


def show(report: JobReport, *, as_json: bool) -> int:
    """Print a report; the exit code that it means."""
    if as_json:
        print_json(report.to_json())
    else:
        print("\n".join(map(agree, report.list_lines())))
    return ExitCode.OK if report.is_good else ExitCode.FAILED


def parse_duration(text: str) -> int:
    """A duration of a flag, in µs.

    Raises:
        UsageError: it is none.
    """
    try:
        return parse_duration_us(text)
    except ValueError as error:
        raise UsageError(str(error)) from None


def parse_size(text: str) -> int:
    """A size of a flag, in bytes. Raises: as `parse_duration`."""
    try:
        return parse_size_bytes(text)
    except ValueError as error:
        raise UsageError(str(error)) from None
