"""TLS as Python speaks it, for admin ports: 1.3 alone, by one cluster's CA.

OpenSSL is given anchors and no lists: past the next update of a list it would refuse everybody. So
what it lets in is judged again by our own code (`shown_certificate`). A context never changes:
after a renewal there is another one, for the connections that are made then.

Called by `process_security`. Source: docs/protocol/identity.md "TLS", "Replacing the CA".
"""

from __future__ import annotations

import ssl
from typing import Final

from duramen.runtime.identity.folder import HeldIdentity, encode_bundle
from duramen.runtime.identity.generations import BUNDLE_FILE
from duramen.runtime.identity.zookeeper_files import load_identity

_HTTP: Final = ["http/1.1"]


def make_admin_context(held: HeldIdentity) -> ssl.SSLContext:
    """Of an admin port: it shows this identity, and takes a client's certificate if there is one.

    No session is ever resumed: each connection shows its certificate anew.

    Raises:
        OSError: the key's private copy cannot be written.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_OPTIONAL
    # An anchor that a parent has signed is an anchor by itself, and the parent is none.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=encode_bundle(held.bundle)[BUNDLE_FILE].decode())
    context.num_tickets = 0
    context.set_alpn_protocols(_HTTP)
    load_identity(context, held)
    return context
