"""Command line of the operator: `duramen-operator run` and `duramen-operator release`.

Reads flags and the environment (DURAMEN_OPERATOR_…) and starts what `running.py` and `release.py`
do. Called by the chart's Deployment and by its hook before an uninstall.
"""

import asyncio
import sys

import cyclopts

from duramen.cluster import first_process  # noqa: F401 - importing it is the act
from duramen_operator.log_lines import set_up_logging
from duramen_operator.names import OPERATOR_HEALTH_PORT, OPERATOR_METRICS_PORT
from duramen_operator.plan.observed import Images
from duramen_operator.release import LIMIT_S, release
from duramen_operator.serving.running import run_operator
from duramen_operator.settings import RESYNC_S, Settings, name_process

app = cyclopts.App(
    name="duramen-operator",
    help="Duramen's Kubernetes operator.",
    config=cyclopts.config.Env("DURAMEN_OPERATOR_", command=False),
)


@app.command
def run(
    *,
    namespace: str,
    identity: str = "",
    image: str = Images().services,
    zookeeper_image: str = Images().zookeeper,
    spark_image: str = Images().spark,
    write_url: str = "",
    admin_url: str = "",
    resync_seconds: float = RESYNC_S,
    host: str = "0.0.0.0",
    health_port: int = OPERATOR_HEALTH_PORT,
    metrics_port: int = OPERATOR_METRICS_PORT,
    verbose: bool = False,
) -> None:
    """Serve the custom resources of one namespace until told to stop.

    Args:
        namespace: The namespace whose custom resources are served.
        identity: Name of the pod that this runs in: its name in the Lease of which one operator
            writes. Host and process if left out.
        image: Image of the services, where a LogCluster names none.
        zookeeper_image: Image of the bundled ZooKeeper, where a LogCluster names none.
        spark_image: Image of archive runs, where a LogCluster names none.
        write_url: Where the write proxies of a cluster are, with {cluster} in it, and {pod} for
            clusters with identities; their service, or the pods' own names, if left out.
        admin_url: The same for their admin port.
        resync_seconds: Look at everything at least this often.
        host: Address that the health and metrics ports listen on.
        health_port: Port of /healthz and /readyz.
        metrics_port: Port of /metrics.
        verbose: Log more.
    """
    set_up_logging(is_verbose=verbose)
    images = Images(image, zookeeper_image, spark_image)
    settings = Settings(
        namespace=namespace,
        identity=identity or name_process(),
        images=images,
        write_url=write_url,
        admin_url=admin_url,
        resync_s=resync_seconds,
        host=host,
        health_port=health_port,
        metrics_port=metrics_port,
    )
    asyncio.run(run_operator(settings))


@app.command(name="release")
def release_command(*, namespace: str, timeout_seconds: float = LIMIT_S) -> None:
    """Let go of every finalizer in a namespace, so that an uninstall never hangs.

    Args:
        namespace: The namespace that is being uninstalled.
        timeout_seconds: Give up after this long, with status 1.
    """
    set_up_logging()
    try:
        count = asyncio.run(release(namespace, limit_s=timeout_seconds))
    except TimeoutError:
        sys.stderr.write(f"not everything in {namespace} could be released in time\n")
        raise SystemExit(1) from None
    sys.stdout.write(f"released {count} objects in {namespace}\n")


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()
