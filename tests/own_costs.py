"""What tests would cost the machine by themselves, beside what they test: spared for each process.

httpx makes a context of TLS with all public CAs for each client, also where a port speaks plain
HTTP: 26 ms of a processor, and a test that waits for a service looks twenty times a second, while
the service needs that processor to begin. Here all clients of a process that say nothing of TLS
have one. pydantic looks for plugins in the metadata of every package that is installed: 50 ms of
each process that a test starts, and a plugin there is none.

Called by `tests/conftest.py`. Not here: the collector of cycles (`tests/conftest.py`).
"""

from __future__ import annotations

import os
import ssl
from functools import cache
from typing import Any
from unittest import mock

import httpx
from httpx._transports import default


def spare() -> None:
    """From now on; processes that are started inherit what concerns them."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    mock.patch.object(default, "create_ssl_context", _give_context).start()


def _give_context(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
    """As httpx makes it; where it is told nothing, one for all who find the same variables."""
    if verify is True and cert is None:
        return _make_public(*map(os.environ.get, ("SSL_CERT_FILE", "SSL_CERT_DIR")), trust_env)
    return httpx.create_ssl_context(verify, cert, trust_env)


@cache
def _make_public(_file: str | None, _folder: str | None, trust_env: bool) -> ssl.SSLContext:
    return httpx.create_ssl_context(trust_env=trust_env)
