"""A cluster, a moment and a bookie for the tests of identities, and key usages by name.

Used by tests of this layer and of components. Source: docs/protocol/identity.md "Certificates".
"""

from __future__ import annotations

import datetime as dt
from typing import Final

from cryptography import x509

from duramen.runtime.identity.names import make_identity

NOW: Final = dt.datetime(2026, 11, 27, 12, tzinfo=dt.UTC)
DOMAIN: Final = "0123456789abcdef0123456789abcdef"
BOOKIE: Final = make_identity(DOMAIN, "bookie", "bookie-0")

_USAGES: Final = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


def usage(**given: bool) -> x509.KeyUsage:
    """What a key may be used for: what is given, and nothing else."""
    return x509.KeyUsage(**{name: given.get(name, False) for name in _USAGES})
