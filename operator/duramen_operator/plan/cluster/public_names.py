"""The names that a service of a cluster is called by, and told of, so that it answers to them.

A service answers 421 to a name that is not its own (ADR 0025): it knows what it advertises, and is
told here of the names that Kubernetes gives it, its Service's and its pod's, from the shortest to
the whole one, and, at a proxy, of what the LogCluster says that people call it. Addresses need no
name: probes and Prometheus come by them. Called by `bookies` and `servers`. Pure.
"""

from duramen_operator.names import BOOKIE, CLUSTER_DOMAIN, SEQUENCER, name_component
from duramen_operator.plan.cluster.frame import Frame
from duramen_operator.plan.cluster.pods import POD_NAME

_NAMED_PODS = (BOOKIE, SEQUENCER)
"""Of StatefulSets: their pods have names in DNS, too."""


def name_arguments(frame: Frame, component: str) -> list[str]:
    """The `--public-name` arguments of a component's pods."""
    service = name_component(frame.name, component)
    whole = f".{frame.namespace}.svc.{CLUSTER_DOMAIN}"
    ends = ("", f".{frame.namespace}", f".{frame.namespace}.svc", whole)
    names = [f"{service}{end}" for end in ends]
    if component in _NAMED_PODS:
        names += [f"{POD_NAME}.{name}" for name in names]
    else:
        # People call proxies; for a name more, who holds data or logs is not started anew.
        names += frame.spec.public_names
    return [token for name in names for token in ("--public-name", name)]
