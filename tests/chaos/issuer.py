"""An issuer of web tokens for the loads of a run: its file of keys, and what it signs.

Called by `turning` and `cluster`. Source: docs/protocol/credentials.md "Keys of issuers".
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import orjson
from cryptography.hazmat.primitives.asymmetric import ec

from tests.unit.web_token_forge import AUDIENCE, ISSUER, forge, to_jwk, to_set

SUBJECT: Final = "load"
USER: Final = f"user:corp/{SUBJECT}"
_LIFE_S: Final = 12 * 3_600


class RunIssuer:
    """One issuer with a file of keys, whose newest key signs.

    Attributes:
        file: for `--issuers`.
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / "issuers.json"
        self._set = folder / "issuer.jwks"
        self._keys: dict[str, ec.EllipticCurvePrivateKey] = {}
        self._made_count = 0

    def begin(self) -> None:
        """Have the file and a first key, before any proxy starts."""
        row = {
            "name": "corp", "kind": "oidc", "issuer": ISSUER, "audience": AUDIENCE,
            "keys": {"file": str(self._set)},
        }  # fmt: skip
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_bytes(orjson.dumps({"v": 1, "issuers": [row]}))
        self.add_key()

    def add_key(self) -> None:
        """Publish another key beside those that are there."""
        self._made_count += 1
        self._keys[f"key-{self._made_count}"] = ec.generate_private_key(ec.SECP256R1())
        self._publish()

    def retire(self) -> None:
        """Publish the newest key alone."""
        newest = max(self._keys, key=lambda key_id: int(key_id.partition("-")[2]))
        self._keys = {newest: self._keys[newest]}
        self._publish()

    def sign(self) -> str:
        """A token of the loads' user, by the newest key."""
        key_id = f"key-{self._made_count}"
        now_s = int(time.time())
        body = {"sub": SUBJECT, "iat": now_s, "exp": now_s + _LIFE_S}
        return forge({"kid": key_id}, body, key=self._keys[key_id])

    def _publish(self) -> None:
        beside = self._set.with_suffix(".new")
        beside.write_bytes(to_set(*(to_jwk(key, key_id) for key_id, key in self._keys.items())))
        beside.replace(self._set)
