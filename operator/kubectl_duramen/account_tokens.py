"""`kubectl duramen token`: a token of a service account that one cluster of Duramen believes.

Kubernetes makes it (TokenRequest, by `kubectl create token`) for the audience of that cluster
alone, so it opens neither the API server nor another cluster. It goes to standard output and
nowhere else, which is what a command of `duramen context add --token-command` is for: a client asks
anew when a port no longer believes the last one.

Called by `main`. Source: docs/kubernetes/kubectl.md "Token", docs/protocol/credentials.md "JSON web
tokens".
"""

from __future__ import annotations

from typing import Annotated, Final

from cyclopts import Parameter

from duramen.cli.command import ExitCode, UsageError
from duramen.core.rights.grants import is_account_name
from duramen.units import SECOND, parse_duration_us
from kubectl_duramen.access import Kubectl
from kubectl_duramen.options import (
    ClusterOption,
    ContextOption,
    KubeconfigOption,
    NamespaceOption,
)
from kubectl_duramen.sources import find_cluster

LIFE_S_MIN: Final = 600
"""Kubernetes makes none that are shorter."""
LIFE_S_MAX: Final = 24 * 3_600
"""Duramen believes none that are longer."""


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


def _parse_life_s(text: str) -> int:
    try:
        life_s = parse_duration_us(text) // SECOND
    except ValueError as error:
        raise UsageError(f"--expires: {error}") from None
    if not LIFE_S_MIN <= life_s <= LIFE_S_MAX:
        raise UsageError(f"--expires {text}: from 10m to 24h")
    return life_s
