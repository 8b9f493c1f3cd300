"""`duramen context env`: the cluster that commands go by, for a shell and for curl.

Variables name files, never what is in them. curl has no way to read a token from a file of its own,
so it gets a file for its owner alone, with the token as it is now.

Called by `context.commands`. Source: docs/cli.md "Contexts".
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import NamedTuple

from duramen.cli.command import (
    ADMIN_URL_VARIABLE,
    CA_VARIABLE,
    IDENTITY_VARIABLE,
    TOKEN_FILE_VARIABLE,
    URL_VARIABLE,
    run_async,
)
from duramen.cli.context.kept_contexts import Context, find_folder
from duramen.client.credentials.local_cluster import CURL_FILE, format_curl_config
from duramen.runtime.folders import write_private


class ShellEnvironment(NamedTuple):
    """What a shell needs: variables, and the file for curl."""

    variables: dict[str, str]
    curl_file: Path | None
    """None: curl has nothing to show."""

    def to_shell(self) -> str:
        """Lines for `eval`."""
        lines = [f"export {name}={shlex.quote(value)}" for name, value in self.variables.items()]
        if self.curl_file is not None:
            url = f'"${URL_VARIABLE}/v1/namespaces"'
            lines.append(f"# curl -K {shlex.quote(str(self.curl_file))} {url}")
        return "\n".join(lines)


def describe_context(name: str, context: Context) -> ShellEnvironment:
    """Those of a context; writes curl's file beside the contexts.

    Raises:
        DuramenError: `unauthenticated`: there is no token to be had.
        OSError: the file cannot be written.
    """
    source = context.make_credential(is_admin=False).token
    token = None if source is None else run_async(source.read())
    file = find_folder() / f"curl-{name}.conf"
    identity, ca = (None if one is None else Path(one) for one in (context.identity, context.ca))
    write_private(file, format_curl_config(token, identity, ca))
    variables = {
        URL_VARIABLE: context.url,
        ADMIN_URL_VARIABLE: context.admin_url,
        TOKEN_FILE_VARIABLE: context.token_file,
        IDENTITY_VARIABLE: context.identity,
        CA_VARIABLE: context.ca,
    }
    return ShellEnvironment({key: text for key, text in variables.items() if text}, file)


def describe_folder(folder: Path, url: str, admin_url: str | None) -> ShellEnvironment:
    """Those of a local cluster, whose folder has curl's file already if it asks who calls."""
    found = {URL_VARIABLE: url, ADMIN_URL_VARIABLE: admin_url}
    file = folder / CURL_FILE
    variables = {key: text for key, text in found.items() if text}
    return ShellEnvironment(variables, file if file.is_file() else None)
