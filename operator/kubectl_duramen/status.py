"""`kubectl duramen status`: a cluster as a tree, and whether it is ready as an exit code.

Called by `main`. Source: docs/kubernetes/kubectl.md "Status".
"""

from __future__ import annotations

import sys

from duramen.cli.command import ExitCode, print_json
from kubectl_duramen.access import Kubectl
from kubectl_duramen.options import (
    ClusterOption,
    ContextOption,
    JsonOption,
    KubeconfigOption,
    NamespaceOption,
)
from kubectl_duramen.sources import find_cluster, look
from kubectl_duramen.summary import summarize
from kubectl_duramen.tree import render

_COLOURS = {"ok ": "32", "!! ": "31;1", "?? ": "33", "-- ": "2"}


def status(
    cluster: ClusterOption = None,
    *,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
    json: JsonOption = False,
) -> int:
    """Show a cluster: conditions, bookies by region and zone, services, repair, sick logs.

    Exit codes: 0 shown, and the cluster is Ready; 1 it is not, no operator serves that would say
    so, or it cannot be shown; 2 usage.
    """
    kubectl = Kubectl(kubeconfig=kubeconfig, context=context, namespace=namespace)
    summary = summarize(look(kubectl, find_cluster(kubectl, cluster)))
    if json:
        print_json(summary)
    else:
        for line in render(summary):
            print(_paint(line) if sys.stdout.isatty() else line)
    return ExitCode.OK if summary["ready"] else ExitCode.FAILED


def _paint(line: str) -> str:
    """The first mark of a line in its colour."""
    head = line.lstrip("│├└─ ")
    colour = _COLOURS.get(head[:3])
    if colour is None:
        return line
    at = len(line) - len(head)
    return f"{line[:at]}\x1b[{colour}m{head[:2]}\x1b[0m{head[2:]}"
