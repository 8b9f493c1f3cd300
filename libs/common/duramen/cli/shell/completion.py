"""`duramen completion bash|zsh|fish`: the script that a shell loads, and the names it asks for.

The script is made by cyclopts from the commands themselves. Commands and flags stand in it; names
of logs, namespaces and bookies are asked of the running cluster when the key is pressed, through
the hidden command `__complete`. Who presses it must not wait: what is not known within ANSWER_S is
not shown, and no fault of the cluster is either.

Called by `cli.main`, `cli.arguments`. Source: docs/cli.md "Completion".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import quote

from cyclopts import App

from duramen.cli.command import (
    DATA_DEFAULT,
    ExitCode,
    FoundUrl,
    ProxyKind,
    UsageError,
    find_url,
    open_client,
    run_async,
)
from duramen.cli.context.kept_contexts import ContextError
from duramen.client.rest_client import RestClient
from duramen.cluster.cluster_file import ClusterFileError
from duramen.errors import DuramenError
from duramen.runtime.http_client import PeerError

if TYPE_CHECKING:
    from cyclopts.completion import CompletionContext

ANSWER_S: Final = 1.0
_NAMESPACES_MAX: Final = 10
_SHOWN_MAX: Final = 200
"""Of one listing: nobody reads more, and the next letter narrows it."""

Shell = Literal["bash", "zsh", "fish"]


def make_completion(app: App) -> Callable[[Shell], int]:
    """The command that prints the scripts for `app`."""

    def completion(shell: Shell, /) -> int:
        """Print the completion script of a shell: `source <(duramen completion bash)`.

        Names of logs, namespaces and bookies are asked of the cluster that the line names, else
        $DURAMEN_URL, the context in use, else cluster.json, within a second.

        Exit codes: 0 printed; 2 usage.
        """
        print(app.generate_completion(prog_name="duramen", shell=shell))
        return ExitCode.OK

    return completion


def complete_log(context: CompletionContext) -> list[str]:
    """Logs whose `namespace/log` begins as typed."""
    return _ask(context, _find_logs)


def complete_namespace(context: CompletionContext) -> list[str]:
    """Namespaces that begin as typed."""
    return _ask(context, _find_namespaces)


def complete_bookie(context: CompletionContext) -> list[str]:
    """Bookies that begin as typed; of the admin port, which their commands speak to."""
    return _ask(context, _find_bookies, kind="admin_url")


def _ask(
    context: CompletionContext,
    find: Callable[[RestClient, str], Awaitable[list[str]]],
    kind: ProxyKind = "write_url",
) -> list[str]:
    async def ask(server: FoundUrl) -> list[str]:
        client = open_client(server, is_quiet=True)
        try:
            async with asyncio.timeout(ANSWER_S):
                return await find(client, context.incomplete)
        finally:
            await client.close()

    given = {name: context.get(name) for name in ("url", "data")}
    raw = {name: None if value is None else value.raw for name, value in given.items()}
    try:
        data = Path(raw["data"]) if raw["data"] else DATA_DEFAULT
        return run_async(ask(find_url(raw["url"], data, kind)))
    except (ClusterFileError, ContextError, UsageError, DuramenError, PeerError, OSError):
        return []


async def _find_namespaces(client: RestClient, prefix: str) -> list[str]:
    query = {"prefix": prefix, "limit": str(_SHOWN_MAX)}
    answer = await client.get_json("/v1/namespaces", query)
    return [row["namespace"] for row in answer["namespaces"]]


async def _find_bookies(client: RestClient, prefix: str) -> list[str]:
    answer = await client.get_json("/v1/cluster/bookies")
    return [row["id"] for row in answer["bookies"] if row["id"].startswith(prefix)]


async def _find_logs(client: RestClient, text: str) -> list[str]:
    namespace, slash, prefix = text.partition("/")
    namespaces = [namespace] if slash else await _find_namespaces(client, namespace)
    pages = await asyncio.gather(
        *(_list_logs(client, name, prefix) for name in namespaces[:_NAMESPACES_MAX])
    )
    return [f"{row['namespace']}/{row['name']}" for page in pages for row in page]


async def _list_logs(client: RestClient, namespace: str, prefix: str) -> list[dict[str, Any]]:
    query = {"prefix": prefix, "limit": str(_SHOWN_MAX)}
    answer = await client.get_json(f"/v1/namespaces/{quote(namespace)}/logs", query)
    rows: list[dict[str, Any]] = answer["logs"]
    return rows
