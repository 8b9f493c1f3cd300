"""The certificate that a client showed when it connected, judged again for each of its requests.

OpenSSL has looked at it once, by its anchors and times alone. A connection lives on, and meanwhile
what is trusted changes: so the verdict is kept for the bundle by which it was given, and no longer
than the certificate and its CA are valid.

Made by `edge.admin_connections`, asked by `admin_door`. Source: docs/protocol/identity.md "TLS".
"""

from __future__ import annotations

import datetime as dt
from typing import Final

from cryptography import x509

from duramen.runtime.identity.certificates import (
    UNREADABLE,
    Bundle,
    CertificateRefusedError,
    judge_leaf,
)
from duramen.runtime.identity.names import Identity

SHOWN: Final = "duramen.shown"
"""Where the state of an ASGI scope has it; not there: the client showed none."""


class ShownCertificate:
    """Of one connection.

    Args:
        der: as TLS has it.
    """

    __slots__ = ("_bundle", "_der", "_ends", "_identity")

    def __init__(self, der: bytes) -> None:
        self._der = der
        self._bundle: Bundle | None = None
        self._identity: Identity | None = None
        self._ends = dt.datetime.min.replace(tzinfo=dt.UTC)

    def judge(self, bundle: Bundle, domain: str, now: dt.datetime) -> Identity:
        """Who connected, by what is trusted now.

        Raises:
            CertificateRefusedError: nobody who is trusted now.
        """
        if self._identity is not None and now < self._ends and self._bundle == bundle:
            return self._identity
        self._identity = None
        try:
            leaf = x509.load_der_x509_certificate(self._der)
            ends = leaf.not_valid_after_utc
        except UNREADABLE:
            raise CertificateRefusedError("cannot be read") from None
        identity = judge_leaf(leaf, bundle, domain, now)
        # A CA that ends before what it issued is found again at the earliest end of any.
        self._ends = min(ends, *(one.not_valid_after_utc for one in bundle.anchors if
                                 one.not_valid_after_utc > now))  # fmt: skip
        self._bundle, self._identity = bundle, identity
        return identity
