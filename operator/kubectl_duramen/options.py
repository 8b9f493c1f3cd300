"""Flags that every command has, and how its failures become sentences and exit codes.

The exit codes are those of `duramen` (docs/cli.md). The flags that choose a cluster are kubectl's
own: `--kubeconfig`, `--context`, `--namespace` (`-n`), and `--cluster` where a namespace has more
than one.

Called by the commands and by `main`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

KubeconfigOption = Annotated[
    Path | None, Parameter(help="the kubeconfig (else $KUBECONFIG, else ~/.kube/config)")
]
ContextOption = Annotated[str | None, Parameter(help="the context in the kubeconfig")]
NamespaceOption = Annotated[
    str | None,
    Parameter(name=["--namespace", "-n"], help="the namespace (else the context's)"),
]
ClusterOption = Annotated[
    str | None, Parameter(help="the LogCluster, where the namespace has more than one")
]
AccountOption = Annotated[
    str | None,
    Parameter(help="the service account that calls a secured cluster: NAME or NAMESPACE/NAME"),
]
TokenFileOption = Annotated[
    Path | None,
    Parameter(help="a file with the token for a secured cluster (else $DURAMEN_TOKEN_FILE)"),
]
JsonOption = Annotated[bool, Parameter(negative="", help="machine-readable output")]
