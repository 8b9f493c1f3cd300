"""What a person does at the public ports: `kubectl duramen append`, `read` and `token`.

The first two are the commands of `duramen` through a forwarded port. Nothing about records is
decided here: `duramen.cli` appends and reads, with its producers, exit codes and formats.

`token` has Kubernetes make one of a service account (TokenRequest) for the audience of one cluster
alone, so it opens neither the API server nor another cluster. It goes to standard output and
nowhere else, which is what `duramen context add --token-command` runs.

Called by `main`. Source: docs/kubernetes/kubectl.md "Append and read", docs/kubernetes/kubectl.md
"Token".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Final, Literal

from cyclopts import Parameter

from duramen.cli.append import append as append_lines
from duramen.cli.arguments import LogText, TimeoutOption
from duramen.cli.command import DATA_DEFAULT, ExitCode, UsageError, parse_argument
from duramen.cli.read import read as read_records
from duramen.core.rights.grants import is_account_name
from duramen.texts import parse_log
from duramen.units import SECOND, parse_duration_us
from duramen_operator.names import DATA_PORTS, READ_PROXY, WRITE_PROXY, name_component
from kubectl_duramen.access import AccessError, Kubectl
from kubectl_duramen.forward import forwarding
from kubectl_duramen.options import (
    ClusterOption,
    ContextOption,
    JsonOption,
    KubeconfigOption,
    NamespaceOption,
)
from kubectl_duramen.sources import Document, find_cluster
from kubectl_duramen.summary import is_true, list_unhealthy

Format = Literal["body", "line", "json"]

LIFE_S_MIN: Final = 600
"""Kubernetes makes none that are shorter."""
LIFE_S_MAX: Final = 24 * 3_600
"""Duramen believes none that are longer."""


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
    with _proxy(kubectl, cluster, WRITE_PROXY) as url:
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
    with _proxy(kubectl, cluster, READ_PROXY) as url:
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
    holder, slash, name = account.rpartition("/")
    holder = holder if slash else kubectl.namespace
    if not is_account_name(f"{holder}/{name}"):
        raise UsageError(f"{account}: write NAME or NAMESPACE/NAME of a service account")
    audience = f"duramen/{kubectl.namespace}/{cluster}"
    print(kubectl.request_token(holder, name, audience, life_s))
    return ExitCode.OK


@contextmanager
def _proxy(kubectl: Kubectl, cluster: str | None, role: str) -> Iterator[str]:
    """The URL of a proxy of the cluster.

    Raises:
        AccessError: it cannot be reached; if the cluster is not ready, the sentence says why.
    """
    found = find_cluster(kubectl, cluster)
    service = name_component(found["metadata"]["name"], role)
    try:
        with forwarding(kubectl, service, DATA_PORTS[role]) as url:
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
