"""`duramen-spark export`: archived records as rows of a Delta or an Iceberg table.

The libraries behind a format are loaded when it is asked for: both are extras.

Called by `main`. Source: docs/archive.md.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from cyclopts import Parameter

from duramen.cli.command import UsageError
from duramen_spark.commands.framing import JsonOption, Selectors, run_connected, show
from duramen_spark.connection import Connection
from duramen_spark.export.driver import Export, ExportReport
from duramen_spark.export.sinks import TableSink
from duramen_spark.places import PlaceOptions, find_place

Format = Literal["delta", "iceberg"]

_PLAIN_NAMES: Final = frozenset(
    {
        "type", "uri", "warehouse", "prefix", "s3.endpoint", "s3.region", "gcs.endpoint",
        "gcs.project-id", "adls.account-name", "hdfs.host", "hdfs.port", "glue.id", "glue.region",
        "glue.endpoint", "dynamodb.region", "init_catalog_tables",
    }
)  # fmt: skip
"""What a command line may tell: a list of names that hold keys would never be whole."""

_MAY_HOLD_KEY: Final = re.compile(r"://.*@|\?")
"""A user, a password with a slash in it, or a query: what a URL may have beside its place."""


def export(
    *selectors: Selectors,
    to: Annotated[
        str, Parameter(help="a Delta table's URL, or an Iceberg table's NAMESPACE.TABLE")
    ],
    format_: Annotated[Format, Parameter(name="--format", help="of the table")] = "delta",
    catalog: Annotated[
        list[str] | None,
        Parameter(
            help="of Iceberg: KEY=VALUE, such as type=sql uri=sqlite:///catalog.db "
            "warehouse=file:///tables",
            consume_multiple=True,
        ),
    ] = None,
    place: PlaceOptions | None = None,
    json: JsonOption = False,
) -> int:
    """Append what is archived since the last export to a table, each segment once.

    What was exported is remembered in the table, in the commit that adds it: repeated, killed or
    run twice at once, no record is there twice. It only appends: retention of logs does not reach
    the table.

    Exit codes: 0 everything archived is in the table; 1 something is not; 2 usage.
    """
    properties = _parse_properties(catalog or [])
    if format_ == "delta" and properties:
        raise UsageError("--catalog is Iceberg's")

    async def use(connection: Connection) -> ExportReport:
        return await Export(connection, _open_sink(format_, to, properties)).run(selectors)

    return show(run_connected(find_place(place), use), as_json=json)


def _open_sink(format_: Format, to: str, properties: dict[str, str]) -> TableSink:
    try:
        if format_ == "delta":
            from duramen_spark.export.delta import DeltaSink  # noqa: PLC0415 - an extra

            return DeltaSink(to)
        from pyiceberg.catalog import load_catalog  # noqa: PLC0415 - an extra

        from duramen_spark.export.iceberg import IcebergSink  # noqa: PLC0415

        if "." not in to:
            raise UsageError("--to of an Iceberg table is NAMESPACE.TABLE")
        return IcebergSink(load_catalog("duramen", **properties), to)
    except ImportError as error:
        detail = f"{error}: install duramen[export], and what the catalog needs"
        raise UsageError(detail) from error


def _parse_properties(texts: list[str]) -> dict[str, str]:
    """What the catalog is told; no value is shown, for people write keys there.

    Raises:
        UsageError: one is no KEY=VALUE, or may be a key or a password.
    """
    properties = {}
    for number, text in enumerate(texts, 1):
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"--catalog: KEY=VALUE is expected, and number {number} is none")
        if key not in _PLAIN_NAMES or _MAY_HOLD_KEY.search(value):
            detail = "may be a key, and whoever lists processes reads it here: put it into"
            where = ".pyiceberg.yaml, beneath catalog: and duramen:"
            raise UsageError(f"--catalog {key}: {detail} {where}")
        properties[key] = value
    return properties
