"""What a person does at the public ports: `kubectl duramen append`, `read` and `token`.

The first two are the commands of `duramen` through a forwarded port. Nothing about records is
decided here: `duramen.cli` appends and reads, with its producers, exit codes and formats.

A cluster that asks who calls is shown a token, of a file or of a service account. It is trusted by
the certificates that the operator wrote to a ConfigMap, under the name `localhost`, since its port
is forwarded. The commands of `duramen` find both in the environment.

`token` has Kubernetes make one of a service account (TokenRequest) for the audience of one cluster
alone, so it opens neither the API server nor another cluster. It goes to standard output and
nowhere else, which is what `duramen context add --token-command` runs.

Called by `main`. Source: docs/kubernetes/kubectl.md "Append and read", docs/kubernetes/kubectl.md
"Token".
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple
from urllib.parse import quote

from cyclopts import Parameter

from duramen.cli.append import append as append_lines
from duramen.cli.arguments import LogText, TimeoutOption
from duramen.cli.command import (
    CA_VARIABLE,
    DATA_DEFAULT,
    TOKEN_FILE_VARIABLE,
    ExitCode,
    UsageError,
    parse_argument,
)
from duramen.cli.read import read as read_records
from duramen.core.rights.grants import is_account_name
from duramen.texts import parse_log
from duramen.units import SECOND, parse_duration_us
from duramen_operator.names import DATA_PORTS, READ_PROXY, WRITE_PROXY, name_component
from duramen_operator.plan.cluster.secured.ca_bundle import BUNDLE_KEY, name_bundle
from kubectl_duramen.access import AccessError, Kubectl, Trouble
from kubectl_duramen.forward import Scheme, forwarding
from kubectl_duramen.options import (
    AccountOption,
    ClusterOption,
    ContextOption,
    JsonOption,
    KubeconfigOption,
    NamespaceOption,
    TokenFileOption,
)
from kubectl_duramen.sources import Document, find_cluster, is_secured
from kubectl_duramen.summary import is_true, list_unhealthy

Format = Literal["body", "line", "json"]

LIFE_S_MIN: Final = 600
"""Kubernetes makes none that are shorter."""
LIFE_S_MAX: Final = 24 * 3_600
"""Duramen believes none that are longer."""

ACCOUNT_LIFE_S: Final = 3_600
"""Of a token that is asked for one command: what follows for longer is begun anew."""


class TokenOrigin(NamedTuple):
    """Where the token of a command is to come from; both None: the environment may say."""

    account: str | None
    file: Path | None


def append(
    log: LogText,
    file: Annotated[
        str, Parameter(help="the file, - for standard input", allow_leading_hyphen=True)
    ] = "-",
    /,
    *,
    create: Annotated[bool, Parameter(negative="", help="create the log if missing")] = False,
    skip_lines: Annotated[int, Parameter(help="leave out this many lines at the start")] = 0,
    producer: Annotated[
        str | None, Parameter(help="id of the producer; it fences earlier runs of this id")
    ] = None,
    timeout: TimeoutOption = 60.0,
    account: AccountOption = None,
    token_file: TokenFileOption = None,
    cluster: ClusterOption = None,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
    json: JsonOption = False,
) -> int:
    """Append the lines of a file to a log, each as one record, in their order: `duramen append`.

    Exit codes: 0 all appended; 1 refused or failed (nothing of the last batch is stored); 2 usage;
    3 uncertain to the last (the lines named may or may not be stored); 130 interrupted.
    """
    parse_argument(parse_log, log)
    kubectl = Kubectl(kubeconfig=kubeconfig, context=context, namespace=namespace)
    with _proxy(kubectl, cluster, WRITE_PROXY, TokenOrigin(account, token_file)) as url:
        return append_lines(
            log, file, create=create, skip_lines=skip_lines, producer=producer, timeout=timeout,
            url=url, json=json,
        )  # fmt: skip


def read(
    log: LogText,
    /,
    *,
    from_: Annotated[
        str | None, Parameter(name="--from", help="the position: head, tail-N, seq:N, ago:1h, …")
    ] = None,
    count: Annotated[int | None, Parameter(help="records at most")] = None,
    follow: Annotated[
        bool, Parameter(name=["--follow", "-f"], negative="", help="wait for what comes")
    ] = False,
    format: Annotated[Format, Parameter(help="what is printed of a record")] = "body",
    timeout: TimeoutOption = 60.0,
    account: AccountOption = None,
    token_file: TokenFileOption = None,
    cluster: ClusterOption = None,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
    json: JsonOption = False,
) -> int:
    """Read the records of a log from a position on: `duramen read`.

    Exit codes: 0 read; 1 refused or failed; 2 usage; 130 interrupted (the usual end of --follow).
    """
    parse_argument(parse_log, log)
    if count is not None and count < 0:
        raise UsageError("--count is a number of records, 0 or more")
    kubectl = Kubectl(kubeconfig=kubeconfig, context=context, namespace=namespace)
    with _proxy(kubectl, cluster, READ_PROXY, TokenOrigin(account, token_file)) as url:
        return read_records(
            log, from_=from_, count=count, follow=follow, format=format, timeout=timeout,
            url=url, data=DATA_DEFAULT, json=json,
        )  # fmt: skip


def token(
    account: Annotated[
        str,
        Parameter(help="the service account: NAME in the cluster's namespace, or NAMESPACE/NAME"),
    ],
    /,
    *,
    expires: Annotated[str, Parameter(help="how long it lives at most, from 10m to 24h")] = "10m",
    cluster: ClusterOption = None,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> int:
    """Print a token of a service account, for a cluster's public ports and for nothing else.

    With --cluster and --namespace no LogCluster is looked for.

    Exit codes: 0 printed; 1 refused or failed; 2 usage.
    """
    life_s = _parse_life_s(expires)
    kubectl = Kubectl(kubeconfig=kubeconfig, context=context, namespace=namespace)
    if cluster is None or namespace is None:
        cluster = str(find_cluster(kubectl, cluster)["metadata"]["name"])
    print(request_account(kubectl, cluster, account, life_s))
    return ExitCode.OK


@contextmanager
def _proxy(kubectl: Kubectl, cluster: str | None, role: str, given: TokenOrigin) -> Iterator[str]:
    """The URL of a proxy of the cluster, which is shown what it asks for.

    Raises:
        AccessError: it cannot be reached; if the cluster is not ready, the sentence says why.
        UsageError: the token that is given does not fit the cluster.
    """
    found = find_cluster(kubectl, cluster)
    service = name_component(found["metadata"]["name"], role)
    scheme: Scheme = "https" if is_secured(found) else "http"
    try:
        with (
            showing(kubectl, found, given),
            forwarding(kubectl, service, DATA_PORTS[role], scheme) as url,
        ):
            yield url
    except AccessError as error:
        raise _explain(error, found) from None


def _explain(error: AccessError, cluster: Document) -> AccessError:
    if is_true(cluster, "Ready"):
        return error
    why = "; ".join(
        f"{c['type']} {c['status']}: {c['message'] or c['reason'] or 'no reason given'}"
        for c in list_unhealthy(cluster)
    )
    name = cluster["metadata"]["name"]
    text = f"{error}. LogCluster {name} is not ready: {why or 'it has no conditions yet'}"
    return AccessError(error.trouble, text, "see how far it is: kubectl duramen status")


def _parse_life_s(text: str) -> int:
    try:
        life_s = parse_duration_us(text) // SECOND
    except ValueError as error:
        raise UsageError(f"--expires: {error}") from None
    if not LIFE_S_MIN <= life_s <= LIFE_S_MAX:
        raise UsageError(f"--expires {text}: from 10m to 24h")
    return life_s


@contextmanager
def showing(kubectl: Kubectl, cluster: Document, given: TokenOrigin) -> Iterator[None]:
    """Have commands of `duramen` trust and show what this cluster asks for, within the block.

    Raises:
        AccessError: the certificates or the token cannot be had.
        UsageError: no token is named, two are, or the cluster asks for none.
    """
    if given.account is not None and given.file is not None:
        raise UsageError("give one of --account and --token-file")
    if not is_secured(cluster):
        if given != TokenOrigin(None, None):
            raise UsageError("this cluster has security: none and asks for no token: give none")
        yield
        return
    if given == TokenOrigin(None, None) and not os.environ.get(TOKEN_FILE_VARIABLE):
        raise UsageError(
            "this cluster asks who calls: give --account NAME (a service account) or --token-file "
            f"FILE, or set {TOKEN_FILE_VARIABLE}"
        )
    name = str(cluster["metadata"]["name"])
    with tempfile.TemporaryDirectory(prefix="kubectl-duramen-") as place:  # mode 0700
        named: dict[str, str] = {}
        if not os.environ.get(CA_VARIABLE):
            trusted = Path(place) / BUNDLE_KEY
            trusted.write_text(_read_bundle(kubectl, name), encoding="ascii")
            named[CA_VARIABLE] = str(trusted)
        if given.account is not None:
            token = Path(place) / "token"
            token.touch(0o600)
            token.write_text(request_account(kubectl, name, given.account, ACCOUNT_LIFE_S))
            named[TOKEN_FILE_VARIABLE] = str(token)
        elif given.file is not None:
            named[TOKEN_FILE_VARIABLE] = str(given.file)
        with _environment(named):
            yield


def request_account(kubectl: Kubectl, cluster: str, account: str, life_s: int) -> str:
    """A token of a service account, for one cluster's public ports.

    Args:
        account: NAME in the cluster's namespace, or NAMESPACE/NAME.

    Raises:
        AccessError: it may not be had. UsageError: that is no account.
    """
    holder, slash, name = account.rpartition("/")
    holder = holder if slash else kubectl.namespace
    if not is_account_name(f"{holder}/{name}"):
        raise UsageError(f"{account}: write NAME or NAMESPACE/NAME of a service account")
    audience = f"duramen/{kubectl.namespace}/{cluster}"
    return kubectl.request_token(holder, name, audience, life_s)


def _read_bundle(kubectl: Kubectl, cluster: str) -> str:
    name = name_bundle(cluster)
    path = f"/api/v1/namespaces/{quote(kubectl.namespace)}/configmaps/{quote(name)}"
    try:
        found = kubectl.get(path).get("data", {}).get(BUNDLE_KEY)
    except AccessError as error:
        if error.trouble is not Trouble.NOT_FOUND:
            raise
        found = None
    if not found:
        raise AccessError(
            Trouble.NOT_FOUND,
            f"there is no ConfigMap {name} with {BUNDLE_KEY}: the operator writes it when it has "
            "an identity in that cluster",
            "see how far it is: kubectl duramen status",
        )
    return str(found)


@contextmanager
def _environment(named: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in named}
    os.environ.update(named)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
