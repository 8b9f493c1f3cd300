"""A CA, who calls and who is called, for tests of the header by which nodes name themselves.

Used by the tests of headers and of doors. Source: docs/protocol/identity.md "The caller's header".
"""

from __future__ import annotations

import datetime as dt
from typing import Final

from duramen.runtime.identity.certificates import (
    Authority,
    Bundle,
    Key,
    issue_leaf,
    list_revoked,
    make_authority,
    make_key,
)
from duramen.runtime.identity.folder import HeldIdentity
from duramen.runtime.identity.names import Identity, make_identity
from tests.unit.identities import BOOKIE, DOMAIN, NOW

NOW_S: Final = int(NOW.timestamp())
RECEIVER: Final = BOOKIE
OTHER: Final = make_identity(DOMAIN, "bookie", "bookie-1")
CALLER: Final = make_identity(DOMAIN, "sequencer", "sequencer-0")

AUTHORITY: Final = make_authority(DOMAIN, NOW)
BUNDLE: Final = Bundle((AUTHORITY.certificate,), (list_revoked(AUTHORITY, {}, NOW),))
KEY: Final = make_key()


def hold(identity: Identity = CALLER, key: Key = KEY, by: Authority = AUTHORITY) -> HeldIdentity:
    leaf = issue_leaf(by, identity, key.public_key(), NOW)
    return HeldIdentity(identity, key, leaf, BUNDLE)


HELD: Final = hold()


def after(seconds: float) -> dt.datetime:
    return NOW + dt.timedelta(seconds=seconds)
