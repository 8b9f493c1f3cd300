"""Command line of the operator: `duramen-operator run` and `duramen-operator release`.

Reads flags and the environment, starts what `running.py` and `release.py` do. Called by the chart's
Deployment and by its hook before an uninstall.
"""

import cyclopts

app = cyclopts.App(name="duramen-operator", help="Duramen's Kubernetes operator.")


@app.command
def run(*, namespace: str) -> None:
    """Serve the custom resources of one namespace until told to stop.

    Args:
        namespace: The namespace whose custom resources are served.
    """
    raise SystemExit(f"nothing to serve in {namespace} yet")


@app.command
def release(*, namespace: str) -> None:
    """Let go of every finalizer in a namespace, so that an uninstall never hangs.

    Args:
        namespace: The namespace that is being uninstalled.
    """
    raise SystemExit(f"nothing to release in {namespace} yet")


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()
