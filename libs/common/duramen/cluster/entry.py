"""Where console scripts begin: Ctrl-C is no traceback while modules are loaded.

Ctrl-C before a program's `main`, or while the interpreter ends, ends the process as a signal does;
as an exception it would be a traceback of whatever line was reached. So next to nothing is imported
here, and everything else only inside of `run_module`.

Called by the console scripts `duramen` and `kubectl-duramen`, and by `programs.start` for the rest.
"""

import signal


def duramen() -> int:
    """Console script `duramen`."""
    return run_module("duramen.cli.main")


def kubectl_duramen() -> int:
    """Console script `kubectl-duramen`."""
    return run_module("kubectl_duramen.main")


def run_module(module: str) -> int:
    """Load a program and run its `main` with the process's own arguments; its exit status."""
    _switch(signal.default_int_handler, signal.SIG_DFL)
    import importlib  # noqa: PLC0415 - from here on Ctrl-C may come

    main = importlib.import_module(module).main
    _switch(signal.SIG_DFL, signal.default_int_handler)
    status = main()
    _switch(signal.default_int_handler, signal.SIG_DFL)
    return status if isinstance(status, int) else 0


def _switch(old: object, new: signal.Handlers | object) -> None:
    """Unless somebody else has decided, as a shell has for what it starts in the background."""
    if signal.getsignal(signal.SIGINT) is old:
        signal.signal(signal.SIGINT, new)  # type: ignore[arg-type]
