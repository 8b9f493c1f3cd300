"""`kubectl duramen drain BOOKIE` and `cancel-drain BOOKIE`: have a bookie go, or stay after all.

Called by `main`. Source: docs/kubernetes/removal.md.
"""

from __future__ import annotations

from duramen.cli.command import ExitCode
from duramen_operator.names import GROUP, VERSION
from kubectl_duramen.access import Kubectl
from kubectl_duramen.options import ContextOption, KubeconfigOption, NamespaceOption


def drain(
    bookie: str,
    *,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> int:
    """Have the operator move a bookie's copies elsewhere, and remove it then.

    Another bookie takes its place, unless `replicas` of its BookieSet falls as well.
    """
    kubectl = Kubectl(kubeconfig=kubeconfig, context=context, namespace=namespace)
    kubectl.merge(f"bookies.duramen.io/{bookie}", {"spec": {"decommission": True}})
    print(f"{bookie} is to go; kubectl duramen why bke/{bookie} says what it waits for")
    return ExitCode.OK


def cancel_drain(
    bookie: str,
    *,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> int:
    """Take that back: the bookie serves again, at whatever step its removal is.

    Exit codes: 0 it is to stay; 1 it goes by the number of its set; 2 usage.
    """
    kubectl = Kubectl(kubeconfig=kubeconfig, context=context, namespace=namespace)
    path = f"/apis/{GROUP}/{VERSION}/namespaces/{kubectl.namespace}/bookies/{bookie}"
    item = kubectl.get(path)
    if item.get("status", {}).get("removalBy") == "replicas":
        bookie_set = item["spec"]["bookieSet"]
        print(
            f"{bookie} goes because its set has more bookies than replicas says: raise that, as by "
            f"kubectl scale bks/{bookie_set} --replicas=N"
        )
        return ExitCode.FAILED
    kubectl.merge(f"bookies.duramen.io/{bookie}", {"spec": {"decommission": False}})
    print(f"{bookie} is to stay; if its set has too many bookies by now, another one goes")
    return ExitCode.OK
