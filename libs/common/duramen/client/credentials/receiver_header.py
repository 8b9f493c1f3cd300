"""How a client with an identity names itself at a public port: a header for one receiver.

A header names who is to believe it, and a URL seldom says whom it reaches. The operator of
Kubernetes knows: it calls pods by their own names, and the name of a pod is its proxy's identity.
So it needs no token and no grant.

Called by `rest_client` for who has one. Source: docs/protocol/identity.md "The caller's header",
docs/protocol/credentials.md "How clients show it".
"""

from __future__ import annotations

import datetime as dt

from duramen.runtime.http_client import read_date_s
from duramen.runtime.identity.callers import OwnHeaders
from duramen.runtime.identity.folder import HeldIdentity
from duramen.runtime.identity.names import Identity


class ReceiverHeader:
    """The header `Duramen-Identity` of one identity for one receiver.

    Args:
        held: whoever calls. After a renewal there is another one of these.
        receiver: who is reached, and nobody else.
    """

    def __init__(self, held: HeldIdentity, receiver: Identity) -> None:
        self._headers = OwnHeaders(held)
        self._receiver = receiver

    def give(self) -> str:
        """The header: the same one until half of its life is over."""
        return self._headers.give(self._receiver, _now())

    def reconsider(self, refused: str, date: str | None) -> None:
        """The receiver does not know a header: make another one, by its clock.

        Args:
            date: what its answer says as `Date`.
        """
        self._headers.reconsider(self._receiver, refused, read_date_s(date), _now())


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
