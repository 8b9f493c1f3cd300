"""`duramen namespace create|show|reconfigure|delete|list`: thin over REST.

What the server answers is what `--json` prints; nothing is decided here. `duramen apply` does the
same from files.

Called by `cli.main`. Source: docs/cli.md, docs/protocol/rest.md "Write proxy".
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from cyclopts import App, Parameter

from duramen.cli.arguments import ConfigOption, DataOption, JsonOption, NamespaceText, UrlOption
from duramen.cli.command import (
    DATA_DEFAULT,
    ExitCode,
    find_url,
    parse_argument,
    parse_config,
    print_json,
)
from duramen.cli.logs import call_proxy, list_all, print_object
from duramen.texts import check_namespace

namespace_app = App(name="namespace", help="Create, show, change, delete and list namespaces.")


@namespace_app.command
def create(
    namespace: NamespaceText, /, *, config: ConfigOption = "{}", url: UrlOption = None,
    data: DataOption = DATA_DEFAULT, json: JsonOption = False,
) -> int:  # fmt: skip
    """Create a namespace, or find that it is there with the same configuration.

    Exit codes: 0 created or there; 1 refused or failed; 2 usage.
    """
    parse_argument(check_namespace, namespace)
    document = parse_config(config)
    target = find_url(url, data, "write_url")
    is_new = call_proxy(target, lambda client: client.ensure_namespace(namespace, document))
    if json:
        print_json({"namespace": namespace, "created": is_new})
    else:
        print(f"{namespace}: {'created' if is_new else 'is there already'}")
    return ExitCode.OK


@namespace_app.command
def show(
    namespace: NamespaceText, /, *, url: UrlOption = None, data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:  # fmt: skip
    """Show a namespace and its configuration.

    Exit codes: 0 shown; 1 refused or failed; 2 usage.
    """
    parse_argument(check_namespace, namespace)
    target = find_url(url, data, "write_url")
    path = f"/v1/namespaces/{quote(namespace)}"
    print_object(call_proxy(target, lambda client: client.get_json(path)), is_json=json)
    return ExitCode.OK


@namespace_app.command
def reconfigure(
    namespace: NamespaceText, /, *,
    config: Annotated[str, Parameter(help="the fields to change, as JSON")],
    url: UrlOption = None, data: DataOption = DATA_DEFAULT, json: JsonOption = False,
) -> int:  # fmt: skip
    """Change fields of a namespace's configuration; the others stay as they are.

    Exit codes: 0 changed or the same already; 1 refused or failed; 2 usage.
    """
    parse_argument(check_namespace, namespace)
    patch = parse_config(config)
    target = find_url(url, data, "write_url")
    answer = call_proxy(target, lambda client: client.reconfigure_namespace(namespace, patch))
    if json:
        print_json(answer)
    else:
        print(f"{namespace}: {'changed' if answer.get('changed') else 'the same already'}")
    return ExitCode.OK


@namespace_app.command
def delete(
    namespace: NamespaceText, /, *, url: UrlOption = None, data: DataOption = DATA_DEFAULT,
    json: JsonOption = False,
) -> int:  # fmt: skip
    """Delete a namespace that has no logs. A deleted log counts until it is purged.

    Exit codes: 0 deleted, or it was not there; 1 refused or failed (safe to repeat); 2 usage.
    """
    parse_argument(check_namespace, namespace)
    target = find_url(url, data, "write_url")
    answer = call_proxy(target, lambda client: client.delete_namespace(namespace))
    if json:
        print_json(answer)
    else:
        print(f"{namespace}: {'deleted' if answer.get('changed') else 'was not there'}")
    return ExitCode.OK


@namespace_app.command(name="list")
def list_namespaces(
    *, url: UrlOption = None, data: DataOption = DATA_DEFAULT, json: JsonOption = False
) -> int:
    """List the namespaces.

    Exit codes: 0 listed; 1 refused or failed; 2 usage.
    """
    target = find_url(url, data, "write_url")
    found = call_proxy(target, lambda client: list_all(client, "/v1/namespaces", "namespaces"))
    if json:
        print_json({"namespaces": found})
    else:
        for entry in found:
            print(entry["namespace"])
    return ExitCode.OK
