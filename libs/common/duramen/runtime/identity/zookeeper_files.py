"""What a ZooKeeper server needs of its identity: files as Java reads them, and settings for them.

Java wants key and certificate in one file, and reads files late: so it gets private copies of what
was judged. Two small classes of ours say whom the server lets in; they travel as a jar,
made of libs/zookeeper-access. What needs X.509 is loaded when there is an identity.

Called by `duramen.runtime.embedded_zookeeper`, and by `duramen.cluster.local_identities` and
`duramen.cluster.zookeeper_member`, which hand on what is renewed.
Source: docs/protocol/metadata-access.md "The server".
"""

from __future__ import annotations

import datetime as dt
import os
import ssl
import tempfile
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final

from duramen.runtime.identity.names import Identity, IdentityError, Role

if TYPE_CHECKING:
    from duramen.runtime.identity.folder import HeldIdentity

ACCESS_JAR: Final = "./tls/duramen-access.jar"
"""In the server's working directory: who may connect."""

_FOLDER: Final = Path(ACCESS_JAR).parent
_KEY_FILE: Final = "server.pem"
_BUNDLE_FILE: Final = "ca.pem"

_CLIENTS: Final = """\
secureClientPortAddress={host}
secureClientPort={port}
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
authProvider.x509=duramen.IdentityProvider
duramen.domain={domain}
{enforced}DigestAuthenticationProvider.enabled=false
ssl.clientAuth=need
ssl.trustStore.location={anchors}
ssl.trustStore.type=PEM
client.certReload=true
"""
_ENFORCED: Final = """\
enforce.auth.enabled=true
enforce.auth.schemes=x509
"""
_QUORUM: Final = """\
sslQuorum=true
sslQuorumReloadCertFiles=true
ssl.quorum.context.supplier.class=duramen.MemberContext
ssl.quorum.clientAuth=need
ssl.quorum.hostnameVerification=true
# Who calls has the identity of a ZooKeeper; where it calls from, its pod's address, is in none.
ssl.quorum.clientHostnameVerification=false
# For `duramen.MemberContext`. A trust store of ZooKeeper's own would be watched beside the key.
duramen.anchors={anchors}
"""
_BOTH: Final = f"""\
{{prefix}}.protocol=TLSv1.3
{{prefix}}.enabledProtocols=TLSv1.3
{{prefix}}.ciphersuites=TLS_AES_256_GCM_SHA384,TLS_AES_128_GCM_SHA256
{{prefix}}.keyStore.location=./{_FOLDER}/{_KEY_FILE}
{{prefix}}.keyStore.type=PEM
"""


def write_server_files(identity_dir: Path, data_dir: Path) -> Identity:
    """Judge what lies in the folder of a server's identity, and write it as Java reads it.

    A server that runs takes what is new from its next connection on. Blocks for 2 s at most.

    Raises:
        IdentityError: the folder holds no identity of a ZooKeeper that is valid now.
        OSError: the files cannot be written; those of before stay.
    """
    from duramen.runtime.identity.folder import read_folder  # noqa: PLC0415

    held = read_folder(identity_dir, dt.datetime.now(dt.UTC))
    if held.identity.role is not Role.ZOOKEEPER:
        raise IdentityError(f"{identity_dir} is of {held.identity}: issue one of a zookeeper")
    write_held_files(held, data_dir)
    return held.identity


def write_held_files(held: HeldIdentity, data_dir: Path) -> None:
    """Write what was judged as Java reads it.

    Raises:
        OSError: as `write_server_files`.
    """
    from duramen.runtime.identity.folder import encode_bundle  # noqa: PLC0415
    from duramen.runtime.identity.generations import BUNDLE_FILE  # noqa: PLC0415

    folder = data_dir / _FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    jar = resources.files("duramen.runtime.identity").joinpath(Path(ACCESS_JAR).name)
    _write(data_dir / ACCESS_JAR, jar.read_bytes())
    # What is trusted comes first: a new certificate may be of a new CA. The quorum reads both files
    # when the key's changes.
    _write(folder / _BUNDLE_FILE, encode_bundle(held.bundle)[BUNDLE_FILE])
    _write(folder / _KEY_FILE, encode_whole(held))


def format_settings(
    identity: Identity, *, host: str, port: int, is_member: bool, is_open: bool = False
) -> str:
    """Lines of the server's configuration: TLS for clients, and between members of a quorum.

    Args:
        is_open: clients without an identity are not sent away from another port.
    """
    anchors = f"./{_FOLDER}/{_BUNDLE_FILE}"
    enforced = "" if is_open else _ENFORCED
    text = _CLIENTS.format(
        host=host, port=port, domain=identity.domain, anchors=anchors, enforced=enforced
    )
    text += _BOTH.format(prefix="ssl")
    if is_member:
        text += _QUORUM.format(anchors=anchors) + _BOTH.format(prefix="ssl.quorum")
    return text


def make_probe_context(data_dir: Path) -> ssl.SSLContext:
    """For who asks its own server, on the same machine, how it is: by the server's identity.

    Raises:
        OSError: the server's files are missing, or not to be read.
    """
    folder = data_dir / _FOLDER
    context = make_client_context((folder / _BUNDLE_FILE).read_text())
    # Its certificate names where others call it, which loopback need not be.
    context.check_hostname = False
    # Read once: OpenSSL opens a file for the certificate, and again for the key.
    _load_whole(context, (folder / _KEY_FILE).read_bytes())
    return context


def make_client_context(anchors: str) -> ssl.SSLContext:
    """TLS 1.3 alone; trusts these anchors (PEM) and no other, and sees that the host is named."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # An anchor that a parent has signed is an anchor by itself, and the parent is none.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=anchors)
    return context


def load_identity(context: ssl.SSLContext, held: HeldIdentity) -> None:
    """Let a context show an identity; OpenSSL takes keys from files alone.

    Raises:
        OSError: the private copy cannot be written.
    """
    _load_whole(context, encode_whole(held))


def encode_whole(held: HeldIdentity) -> bytes:
    """Key and certificate in one PEM text."""
    from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415

    from duramen.runtime.identity.folder import encode_key  # noqa: PLC0415

    return encode_key(held.key) + held.leaf.public_bytes(Encoding.PEM)


def _load_whole(context: ssl.SSLContext, content: bytes) -> None:
    """Of a text with key and certificate, by a copy that nobody replaces meanwhile."""
    with tempfile.NamedTemporaryFile(suffix=".pem") as copy:
        copy.write(content)
        copy.flush()
        context.load_cert_chain(copy.name)


def _write(path: Path, content: bytes) -> None:
    """Replace a file at once; nobody else may read it."""
    beside = path.with_name(f".{path.name}")
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    beside.replace(path)
