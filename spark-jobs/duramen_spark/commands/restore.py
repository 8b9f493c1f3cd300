"""`duramen-spark restore`: a log comes back out of the archive, with every record in its place.

Called by `main`. Source: docs/archive.md.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from cyclopts import Parameter

from duramen.cli.arguments import ConfigOption
from duramen.cli.command import ExitCode, UsageError, print_json, say
from duramen.config import LogConfig, parse_log_config
from duramen.ids import LAST_LOG_ID, Epoch, LogId
from duramen.runtime.cold import NotThere
from duramen.runtime.identity.names import Role
from duramen.texts import check_log_name, check_namespace
from duramen.units import agree
from duramen.wire.cold.rebuild import ColdDataError
from duramen_spark.commands.framing import JsonOption, run_connected
from duramen_spark.connection import Connection
from duramen_spark.places import PlaceOptions, find_place
from duramen_spark.restore.catalogue import find_archived_log, load_log
from duramen_spark.restore.driver import OnProgress, Restore, Restored
from duramen_spark.restore.plan import RestoreError, plan_restore


def restore(
    log: Annotated[str, Parameter(help="NAMESPACE/LOG, as it was named when it was archived")],
    *,
    as_: Annotated[str, Parameter(name="--as", help="NAMESPACE/LOG of the restored log")],
    place: PlaceOptions | None = None,
    source_cluster: Annotated[
        str | None, Parameter(help="uuid of the cluster that wrote the archive, if another")
    ] = None,
    log_id: Annotated[
        int | None, Parameter(help="of the archived log, where several had the name")
    ] = None,
    until: Annotated[int | None, Parameter(help="the last epoch that is restored")] = None,
    config: ConfigOption = "",
    json: JsonOption = False,
) -> int:
    """Write an archived log to bookies, as a new log with the same records in the same places.

    Sequence numbers, DLSNs, txids, headers, times and bodies stay; so does what is known of
    producers. The name appears when everything is there and was compared. Killed, it is begun anew;
    what it left is purged as a deleted log is. Retention counts from the restore on. Without
    --config the log gets that of the archived log where this cluster still has it, else defaults.

    Exit codes: 0 restored, now or by an earlier run; 1 it cannot be; 2 usage.
    """
    source, target = _split(log), _split(as_)
    given = None if not config else parse_log_config(_parse_object(config))
    if log_id is not None and not 0 < log_id <= LAST_LOG_ID:
        raise UsageError("--log-id is no log's")

    async def use(connection: Connection) -> Restored:
        _check_identity(connection)
        cluster, store = source_cluster or connection.uuid, connection.store
        found = LogId(log_id) if log_id is not None else None
        if found is None:
            found = await asyncio.to_thread(find_archived_log, store, cluster, *source)
        manifests = await asyncio.to_thread(load_log, store, cluster, found)
        plan = plan_restore(manifests, None if until is None else Epoch(until))
        chosen = given or await _find_config(connection, cluster, found)
        with _progress(is_shown=not json and sys.stderr.isatty()) as on_progress:
            work = Restore(
                connection,
                plan,
                namespace=target[0],
                name=target[1],
                config=chosen,
                on_progress=on_progress,
            )
            return await work.run()

    try:
        restored = run_connected(find_place(place), use)
    except RestoreError as error:
        say(f"duramen-spark: not restored: {error}")
        return ExitCode.FAILED
    except (ColdDataError, NotThere) as error:
        say(f"duramen-spark: not restored: the archive is not whole: {error}")
        say("next: duramen-spark verify tells what of it is not")
        return ExitCode.FAILED
    if json:
        print_json(restored.to_json())
    else:
        told = restored.to_json()
        verb = "restored" if restored.is_new else "was restored before:"
        counts = agree(f"{told['records']:,} records in {told['segments']} segments")
        print(f"{as_} {verb} {counts}, {told['first_seq_num']} to {told['next_seq_num']}")
    return ExitCode.OK


def _check_identity(connection: Connection) -> None:
    """See that who restores may make a log.

    Raises:
        UsageError: its identity may not.
    """
    security = connection.security
    if security is not None and security.identity.role is not Role.OPERATOR:
        raise UsageError(
            f"{security.identity} makes no logs: give the folder of an operator with --identity "
            f"(`duramen ca issue CA {Role.OPERATOR} NAME --out FOLDER`)"
        )


async def _find_config(connection: Connection, cluster: str, log_id: LogId) -> LogConfig:
    """The archived log's own, where this cluster still has it; else the defaults."""
    node = await connection.nodes.read_log(log_id) if cluster == connection.uuid else None
    return LogConfig() if node is None else node.config


def _split(text: str) -> tuple[str, str]:
    namespace, slash, name = text.partition("/")
    if not slash:
        raise UsageError(f"{text!r}: a log is NAMESPACE/LOG")
    return check_namespace(namespace), check_log_name(name)


def _parse_object(text: str) -> dict[str, object]:
    import orjson  # noqa: PLC0415 - only with --config

    try:
        value = orjson.loads(text)
    except ValueError as error:
        raise UsageError(f"--config is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise UsageError("--config is a JSON object")
    return value


@contextmanager
def _progress(*, is_shown: bool) -> Iterator[OnProgress]:
    """A bar on stderr, for people only."""
    if not is_shown:
        yield lambda *_: None
        return
    from rich.console import Console  # noqa: PLC0415 - for terminals alone
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("restore", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
