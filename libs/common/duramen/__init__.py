"""Duramen: durable, totally ordered, append-only logs, replicated over bookies.

This is the library that every process shares: the cores that decide, the wire formats, the runtime
that does, the client and the command line. It is not a service: those live under services/ and are
never imported from here. Applications import `duramen.client`. ARCHITECTURE.md shows the whole.
"""

__version__ = "0.1.0"
