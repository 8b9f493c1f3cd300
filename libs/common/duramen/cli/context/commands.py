"""`duramen context`: clusters by name, with the files that show who calls.

A token is never an argument: the file or the command that it is read from is. Nothing is asked of
anybody here.

Called by `cli.main`. Source: docs/cli.md "Contexts", docs/protocol/credentials.md "How clients show
it".
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

from cyclopts import App, Parameter

from duramen.cli.arguments import DataOption, JsonOption
from duramen.cli.command import (
    DATA_DEFAULT,
    ExitCode,
    UsageError,
    print_json,
    print_table,
    say,
)
from duramen.cli.context.kept_contexts import (
    NO_CONTEXT,
    Context,
    KeptContexts,
    change_contexts,
    check_name,
    read_contexts,
)
from duramen.cluster.cluster_file import read_document
from duramen.core.rights.grants import TOKEN_ID_PATTERN

context_app: Final = App(
    name="context", help="Name clusters, and the files that show them who calls."
)

NameText = Annotated[str, Parameter(help="the context's name")]
_TOKEN: Final = re.compile(rf"dur1_{TOKEN_ID_PATTERN}_|\beyJ[\w-]+\.eyJ")
"""What only a token looks like."""


@context_app.command
def add(
    name: NameText,
    /,
    *,
    url: Annotated[str | None, Parameter(help="a proxy's URL")] = None,
    admin_url: Annotated[str | None, Parameter(help="a write proxy's admin URL")] = None,
    token_file: Annotated[
        Path | None, Parameter(help="file that has the token for public ports")
    ] = None,
    token_command: Annotated[
        str | None, Parameter(help="command that writes that token, run without a shell")
    ] = None,
    identity: Annotated[
        Path | None, Parameter(help="folder of the certificate for admin ports")
    ] = None,
    ca: Annotated[
        Path | None, Parameter(help="file of the certificates that alone are trusted")
    ] = None,
    json: JsonOption = False,
) -> int:
    """Keep where a cluster is and what is shown to it, in place of what the name had.

    A token itself is no argument: others on this machine read those. Its file, or its command, is
    asked for it when it is needed.

    Exit codes: 0 kept; 1 the file of contexts cannot be used; 2 usage.
    """
    if url is None and admin_url is None:
        raise UsageError("give --url, --admin-url, or both")
    if token_file is not None and token_command is not None:
        raise UsageError("give one of --token-file and --token-command")
    _check_url("--url", url)
    _check_url("--admin-url", admin_url)
    _refuse_token(name, token_file, token_command, identity, ca)
    for flag, path in (("--token-file", token_file), ("--identity", identity), ("--ca", ca)):
        if path is not None and not path.exists():
            raise UsageError(f"{flag} {path}: there is nothing")
    context = Context(
        url=url,
        admin_url=admin_url,
        token_file=_name_path(token_file),
        token_command=token_command,
        identity=_name_path(identity),
        ca=_name_path(ca),
    )
    # What cannot be a command is told now, not at the first call.
    context.make_credential(is_admin=False)
    check_name(name)
    change_contexts(lambda kept: KeptContexts({**kept.contexts, name: context}, kept.used))
    if json:
        print_json({"name": name, **context.to_json()})
    say(f"{name} is kept; duramen context use {name} lets commands go by it")
    return ExitCode.OK


@context_app.command
def use(name: NameText, /, *, json: JsonOption = False) -> int:
    """Let commands go by a context wherever neither the line nor a variable names a server; `none`
    lets them go by none.

    Exit codes: 0 they do; 1 there is no such context, or failed; 2 usage.
    """

    wanted = None if name == NO_CONTEXT else check_name(name)

    def choose(kept: KeptContexts) -> KeptContexts:
        if wanted is not None:
            kept.find(wanted)
        return KeptContexts(kept.contexts, wanted)

    change_contexts(choose)
    if json:
        print_json({"used": wanted})
    return ExitCode.OK


@context_app.command(name="list")
def list_contexts(*, json: JsonOption = False) -> int:
    """List the contexts; the one that commands go by has a star.

    Exit codes: 0 listed; 1 failed; 2 usage.
    """
    kept = read_contexts()
    if json:
        print_json({
            "used": kept.used,
            "contexts": [{"name": name, **one.to_json()} for name, one in kept.contexts.items()],
        })  # fmt: skip
        return ExitCode.OK
    rows = [
        (
            "*" if name == kept.used else "", name, one.url or "–", one.admin_url or "–", one.shown,
        )
        for name, one in kept.contexts.items()
    ]  # fmt: skip
    print_table(("used", "name", "url", "admin url", "shows"), rows)
    return ExitCode.OK


@context_app.command
def remove(name: NameText, /, *, json: JsonOption = False) -> int:
    """Forget a context; the files that it names stay.

    Exit codes: 0 forgotten; 1 there is no such context, or failed; 2 usage.
    """

    def drop(kept: KeptContexts) -> KeptContexts:
        kept.find(check_name(name))
        left = {key: one for key, one in kept.contexts.items() if key != name}
        return KeptContexts(left, None if kept.used == name else kept.used)

    change_contexts(drop)
    if json:
        print_json({"removed": name})
    return ExitCode.OK


@context_app.command
def env(
    name: Annotated[
        str | None, Parameter(help="the context's name; else the one in use, else a local cluster")
    ] = None,
    /,
    *,
    data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:
    """Print variables for a shell, for `eval`, and how curl is called.

    Variables name files, never a token. For curl the token of a context is written as it is now,
    into a file for you alone; that of a local cluster is kept up to date by duramen run.

    Exit codes: 0 printed; 1 there is no such context or cluster, or no token, or failed; 2 usage.
    """
    from duramen.cli.context.environment import describe_context, describe_folder

    found = None if name is None and data != DATA_DEFAULT else read_contexts().find(name)
    if found is not None:
        described = describe_context(*found)
    else:
        folder = data.absolute()
        document = read_document(folder)
        described = describe_folder(folder, document["write_url"], document["admin_url"])
    if json:
        file = described.curl_file
        fields = {
            "variables": described.variables,
            "curl_file": None if file is None else str(file),
        }
        print_json(fields)
    else:
        print(described.to_shell())
    return ExitCode.OK


def _check_url(flag: str, url: str | None) -> None:
    if url is None:
        return
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        parts, is_good = urlsplit(""), False
    if not is_good:
        raise UsageError(f"{flag}: no URL: write such as https://logs.example.org:7301")
    if parts.username is not None or parts.password is not None or parts.query:
        raise UsageError(f"{flag}: a URL has no user, password or query here: give --token-file")


def _refuse_token(*given: object) -> None:
    """What was typed is in the shell's history already: say so, and not what it was."""
    if any(_TOKEN.search(str(one)) for one in given if one is not None):
        raise UsageError(
            "a token is no argument, since others on this machine read those: put it into a file "
            "that is yours alone, give --token-file, and revoke this one"
        )


def _name_path(path: Path | None) -> str | None:
    return None if path is None else str(path.absolute())
