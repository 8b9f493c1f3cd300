"""`kubectl duramen pause` and `resume`: the operator keeps its hands off a cluster, or no longer.

Called by `main`. Source: docs/kubernetes/operations.md "Pause".
"""

from __future__ import annotations

from duramen.cli.command import ExitCode
from duramen_operator.names import PAUSED_ANNOTATION
from kubectl_duramen.access import Kubectl
from kubectl_duramen.options import (
    ClusterOption,
    ContextOption,
    KubeconfigOption,
    NamespaceOption,
)
from kubectl_duramen.sources import find_cluster


def pause(
    cluster: ClusterOption = None,
    *,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> int:
    """Have the operator change nothing of a cluster; it goes on looking and telling."""
    kubectl = Kubectl(kubeconfig=kubeconfig, context=context, namespace=namespace)
    name = _annotate(kubectl, cluster, "true")
    print(f"{name} is paused; kubectl duramen resume ends that")
    return ExitCode.OK


def resume(
    cluster: ClusterOption = None,
    *,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> int:
    """Have the operator go on."""
    kubectl = Kubectl(kubeconfig=kubeconfig, context=context, namespace=namespace)
    name = _annotate(kubectl, cluster, None)
    print(f"{name} is not paused; what was edited meanwhile goes back")
    return ExitCode.OK


def _annotate(kubectl: Kubectl, cluster: str | None, value: str | None) -> str:
    name = str(find_cluster(kubectl, cluster)["metadata"]["name"])
    patch = {"metadata": {"annotations": {PAUSED_ANNOTATION: value}}}
    kubectl.merge(f"logclusters.duramen.io/{name}", patch)
    return name
