"""The arguments and flags that several commands share, with their help and completion.

A completer is loaded when the key is pressed: a command that only runs does not pay for it.
Called by the modules of the commands; each of them documents its own flags.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from duramen.cli.command import ADMIN_URL_VARIABLE, URL_VARIABLE


def _complete_log(context: Any) -> Iterable[str]:
    from duramen.cli.shell.completion import complete_log

    return complete_log(context)


def complete_namespace(context: Any) -> Iterable[str]:
    """Namespaces that begin as typed; loaded when the key is pressed."""
    from duramen.cli.shell import completion

    return completion.complete_namespace(context)


def _complete_bookie(context: Any) -> Iterable[str]:
    from duramen.cli.shell.completion import complete_bookie

    return complete_bookie(context)


BookieText = Annotated[str, Parameter(help="the bookie's id", completer=_complete_bookie)]
LogText = Annotated[str, Parameter(help="the log, as NAMESPACE/LOG", completer=_complete_log)]
NamespaceText = Annotated[str, Parameter(help="the namespace", completer=complete_namespace)]
ConfigOption = Annotated[str, Parameter(help="configuration as JSON; {} for the defaults")]
CopysetsOption = Annotated[
    Literal["striped", "flexible"] | None,
    Parameter(help="where the copies of an entry lie: short for the field of --config"),
]
UrlOption = Annotated[
    str | None,
    Parameter(help=f"the proxy's URL (else ${URL_VARIABLE}, the context in use, cluster.json)"),
]
AdminUrlOption = Annotated[
    str | None,
    Parameter(
        name="--url",
        help=f"a write proxy's admin URL (else ${ADMIN_URL_VARIABLE}, the context in use, "
        "cluster.json)",
    ),
]
DataOption = Annotated[
    Path, Parameter(help="folder of a duramen run, for its cluster.json and token")
]
JsonOption = Annotated[bool, Parameter(negative="", help="machine-readable output")]
TimeoutOption = Annotated[float, Parameter(help="seconds for repeating what was refused for now")]
