"""`kubectl duramen report`: a redacted support bundle as one file.

Called by `main`. Source: docs/kubernetes/kubectl.md "Report".
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from duramen import __version__
from duramen.cli.command import ExitCode, print_json, say
from duramen.units import agree
from kubectl_duramen.access import Kubectl
from kubectl_duramen.options import (
    ClusterOption,
    ContextOption,
    JsonOption,
    KubeconfigOption,
    NamespaceOption,
)
from kubectl_duramen.sources import find_cluster
from kubectl_duramen.support.bundle import gather, write_tar


def report(
    cluster: ClusterOption = None,
    *,
    output: Annotated[
        Path | None,
        Parameter(
            name=["--output", "-o"],
            help="the file, - for standard output (else duramen-report-CLUSTER-TIME.tar.gz)",
        ),
    ] = None,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
    json: JsonOption = False,
) -> int:
    """Write a support bundle: objects, events, logs, administration, with secrets taken out.

    Exit codes: 0 written (README.txt in it says what is missing); 1 no cluster, or not written;
    2 usage.
    """
    kubectl = Kubectl(kubeconfig=kubeconfig, context=context, namespace=namespace)
    found = find_cluster(kubectl, cluster)
    now = int(time.time())
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    files = gather(kubectl, found, when=stamp, version=__version__)
    name = f"duramen-report-{found['metadata']['name']}-{stamp}"
    if output is not None and str(output) == "-":
        write_tar(files, name, now, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return ExitCode.OK
    path = Path(f"{name}.tar.gz") if output is None else output
    # Its reader decides who else may see it.
    path.touch(mode=0o600)
    with path.open("wb") as file:
        write_tar(files, name, now, file)
    if json:
        print_json({"file": str(path), "files": sorted(files), "bytes": path.stat().st_size})
    else:
        counts = agree(f"{len(files)} files, {path.stat().st_size:,} bytes")
        say(f"{path}: {counts}; look through it first")
    return ExitCode.OK
