"""Clients of the HTTP library that trust what they are given, and nobody else.

The library adds anchors to the system's, and takes those of `SSL_CERT_FILE` and `SSL_CERT_DIR` in
their place, which it reads while a client is made. So both are set for that moment alone: others in
this process, as those of a cold store, go by the system's.

Called by processes with an identity and by clients of the public ports.
Source: docs/protocol/identity.md "TLS".
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_VARIABLES: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR")
_BUILDING: Final = threading.Lock()
"""The environment is the whole process's."""


@contextlib.contextmanager
def trusting_alone(anchors: bytes) -> Iterator[None]:
    """Let the client that is made inside trust these, as PEM, and nobody else.

    Raises:
        OSError: they cannot be written for the library to read.
    """
    with _BUILDING, tempfile.TemporaryDirectory(prefix="duramen-trusted-") as name:
        place = Path(name)
        (place / "trusted.crt").write_bytes(anchors)
        (place / "nothing").mkdir()
        before = {variable: os.environ.get(variable) for variable in _VARIABLES}
        named = (str(place / "trusted.crt"), str(place / "nothing"))
        os.environ.update(zip(_VARIABLES, named, strict=True))
        try:
            yield
        finally:
            for variable, value in before.items():
                if value is None:
                    os.environ.pop(variable, None)
                else:
                    os.environ[variable] = value
