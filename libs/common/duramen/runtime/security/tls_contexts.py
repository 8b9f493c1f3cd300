"""TLS as Python speaks it, for admin ports and standing streams: 1.3 alone, by one cluster's CA.

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
from duramen.runtime.identity.zookeeper_files import load_identity, make_client_context

_HTTP: Final = ["http/1.1"]
_HTTP2: Final = ["h2"]


def make_admin_context(held: HeldIdentity) -> ssl.SSLContext:
    """Of an admin port: it shows this identity, and takes a client's certificate if there is one.

    No session is ever resumed: each connection shows its certificate anew.

    Raises:
        OSError: the key's private copy cannot be written.
    """
    context = _make_server_context(held, _HTTP)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


def make_stream_context(held: HeldIdentity) -> ssl.SSLContext:
    """Of a stream port: nobody without a certificate of the cluster comes to its requests.

    Raises:
        OSError: the key's private copy cannot be written.
    """
    context = _make_server_context(held, _HTTP2)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def make_caller_context(held: HeldIdentity) -> ssl.SSLContext:
    """Of who opens a standing stream: it shows this identity, and sees that the host is named.

    Raises:
        OSError: the key's private copy cannot be written.
    """
    context = make_client_context(_list_anchors(held))
    context.set_alpn_protocols(_HTTP2)
    load_identity(context, held)
    return context


def _make_server_context(held: HeldIdentity, protocols: list[str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # An anchor that a parent has signed is an anchor by itself, and the parent is none.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=_list_anchors(held))
    context.num_tickets = 0
    context.set_alpn_protocols(protocols)
    load_identity(context, held)
    return context


def _list_anchors(held: HeldIdentity) -> str:
    return encode_bundle(held.bundle)[BUNDLE_FILE].decode()
