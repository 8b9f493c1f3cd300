"""The operator's identity in one cluster: a Secret of the cluster, kept in a folder of its own.

The operator serves several clusters and is mounted no key of any. It reads `CLUSTER-operator` by
its name at each look, so a renewal counts then, and so does that it was taken away: what is refused
is told in a sentence, and nobody is called by what was there before. The folder is this process's
alone, and goes with it.

Called by `cluster_admin`. Source: docs/kubernetes/security.md "The operator as a caller".
"""

from __future__ import annotations

import asyncio
import binascii
import datetime as dt
import tempfile
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from duramen.runtime.identity.certificates import (
    UNREADABLE,
    CertificateRefusedError,
    judge_leaf,
)
from duramen.runtime.identity.folder import HeldIdentity, read_folder
from duramen.runtime.identity.generations import BUNDLE_FILE, KEY_FILE, LEAF_FILE, LIST_FILE
from duramen.runtime.identity.names import IdentityError, Role
from duramen_operator.kube import Refused
from duramen_operator.plan.cluster.nodes import OPERATOR_IDENTITY, name_secret
from duramen_operator.plan.observed import Json, Ref

PUBLIC_BUNDLE_FILE: Final = "public-ca.crt"
"""Who vouches for public ports, where that is another CA than the cluster's."""

_TRUSTED_FILE: Final = "public-ports.crt"
_FORBIDDEN: Final = 403
_NEEDED: Final = (LEAF_FILE, KEY_FILE, BUNDLE_FILE)
_TAKEN: Final = (*_NEEDED, LIST_FILE, PUBLIC_BUNDLE_FILE)
_BUNDLE: Final = (BUNDLE_FILE, LIST_FILE)


class OperatorIdentity(NamedTuple):
    """The identity as it is now.

    Attributes:
        folder: it lies there, for clients that read folders.
        public_anchors: a file of all who may vouch for public ports; `trusted` is its text.
    """

    held: HeldIdentity
    folder: Path
    public_anchors: Path
    trusted: str


class SecretReader(Protocol):
    """The API server, of which one object is read by its name."""

    async def get(self, ref: Ref) -> Json | None:
        """One object; None where there is none."""
        ...


class ClusterIdentity:
    """Reads the Secret of one cluster, and judges it."""

    def __init__(self, kube: SecretReader, cluster_name: str) -> None:
        self._kube = kube
        self._name = name_secret(cluster_name, OPERATOR_IDENTITY)
        self._files: Mapping[str, bytes] = {}
        self._place: tempfile.TemporaryDirectory[str] | None = None
        self._found: OperatorIdentity | None = None

    async def read(self, domain: str, trust: str = "") -> OperatorIdentity:
        """The identity as the Secret has it now; the same object while that is the same.

        Args:
            domain: the cluster's uuid.
            trust: the ConfigMap with what the cluster's processes trust; "": that lies in the
                Secret.

        Raises:
            IdentityError: there is none that counts; the sentence names the Secret, or the
                ConfigMap.
            ApiUnreachable, Refused: the API server does not answer.
        """
        try:
            files = self._take_files(await self._get())
            if trust:
                files = {**_leave_out_bundle(files), **await self._get_bundle(trust)}
            missing = [name for name in _NEEDED if name not in files]
            if missing:
                raise IdentityError(f"the Secret {self._name} has no {', '.join(missing)} yet")
            if self._found is None or files != self._files:
                self.forget()
                self._found = await asyncio.to_thread(self._write, files, trust)
                self._files = files
            self._judge(self._found.held, domain)
        except IdentityError:
            self.forget()
            raise
        return self._found

    def forget(self) -> None:
        """Keep no key any more."""
        self._found = None
        if self._place is not None:
            self._place.cleanup()
            self._place = None

    def _judge(self, held: HeldIdentity, domain: str) -> None:
        try:
            judge_leaf(held.leaf, held.bundle, domain, dt.datetime.now(dt.UTC))
        except CertificateRefusedError as error:
            text = f"the certificate in the Secret {self._name} {error}: {error.way_out}"
            raise IdentityError(text) from None
        if held.identity.role is not Role.OPERATOR:
            raise IdentityError(
                f"the Secret {self._name} is of {held.identity}, and an operator's is expected"
            )

    async def _get(self) -> Json:
        try:
            secret = await self._kube.get(Ref("v1", "Secret", self._name))
        except Refused as refused:
            if refused.status != _FORBIDDEN:
                raise
            raise IdentityError(
                f"the operator may not get the Secret {self._name}, by which it would call this "
                "cluster: name it in its Role (docs/kubernetes/security.md)"
            ) from None
        if secret is None:
            raise IdentityError(
                f"there is no Secret {self._name}, by which the operator would call this cluster"
            )
        return secret

    def _take_files(self, secret: Json) -> dict[str, bytes]:
        data = secret.get("data") or {}
        try:
            return {name: b64decode(data[name], validate=True) for name in _TAKEN if data.get(name)}
        except (binascii.Error, TypeError):
            raise IdentityError(f"the Secret {self._name} holds no base64") from None

    async def _get_bundle(self, trust: str) -> dict[str, bytes]:
        """What pods find in that ConfigMap: cert-manager's Secret has the issuer's CA alone."""
        found = await self._kube.get(Ref("v1", "ConfigMap", trust))
        data = {} if found is None else found.get("data") or {}
        if not data.get(BUNDLE_FILE):
            raise IdentityError(f"the ConfigMap {trust}, which tls.trust names, has no ca.crt")
        return {name: str(data[name]).encode() for name in _BUNDLE if name in data}

    def _write(self, files: Mapping[str, bytes], trust: str) -> OperatorIdentity:
        """Another folder with these files; that of before goes.

        Raises:
            IdentityError: they are no identity that is valid.
        """
        self._place = tempfile.TemporaryDirectory(prefix="duramen-operator-")  # mode 0700
        folder = Path(self._place.name)
        for name, content in files.items():
            path = folder / name
            path.touch(0o600)
            path.write_bytes(content)
        try:
            held = read_folder(folder, dt.datetime.now(dt.UTC))
        except IdentityError as error:
            said = str(error)
            for name in _BUNDLE if trust else ():
                said = said.replace(f"{folder}/{name}", f"the ConfigMap {trust}: {name}")
            said = said.replace(f"{folder}/", f"the Secret {self._name}: ")
            raise IdentityError(said) from None
        # Nothing but certificates is handed on, whatever else stands in those texts.
        anchors = [*held.bundle.anchors, *self._read_others(files)]
        trusted = b"".join(one.public_bytes(Encoding.PEM) for one in dict.fromkeys(anchors))
        (folder / _TRUSTED_FILE).write_bytes(trusted)
        return OperatorIdentity(held, folder, folder / _TRUSTED_FILE, trusted.decode())

    def _read_others(self, files: Mapping[str, bytes]) -> list[x509.Certificate]:
        """Who else vouches for public ports."""
        content = files.get(PUBLIC_BUNDLE_FILE)
        try:
            return [] if content is None else x509.load_pem_x509_certificates(content)
        except UNREADABLE:
            raise IdentityError(
                f"the Secret {self._name}: {PUBLIC_BUNDLE_FILE} holds no certificates in PEM"
            ) from None


def _leave_out_bundle(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {name: content for name, content in files.items() if name not in _BUNDLE}
