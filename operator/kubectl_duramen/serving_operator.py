"""Whether an operator writes what the objects say: without one they say what was true when it died.

Its Lease tells. A record that is young by this machine's clock is believed; an older one, or one of
the future, is read again until it changes, or for as long as others wait for a silent holder:
clocks of two machines prove nothing.

Called by `sources`. Source: docs/kubernetes/one-hand.md 1, 2 and 5.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from duramen_operator.leading.hand import LEASE_S, RENEW_EVERY_S
from duramen_operator.names import LEASE
from kubectl_duramen.access import AccessError, Kubectl, Trouble

_LOOKS: Final = round(LEASE_S / RENEW_EVERY_S)
"""So long others wait for a holder that says nothing."""


def find_silence(
    kubectl: Kubectl,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    pause: Callable[[float], None] = time.sleep,
) -> str | None:
    """Why nobody writes into this namespace's objects; None: an operator does.

    Raises:
        AccessError: the Lease cannot be read.
    """
    first = _read_spec(kubectl)
    if first is None or not first.get("holderIdentity"):
        return "no operator serves this namespace"
    age_s = _find_age_s(first, clock())
    if age_s is not None and 0 <= age_s < LEASE_S:
        return None
    for _ in range(_LOOKS):
        pause(RENEW_EVERY_S)
        again = _read_spec(kubectl)
        if again is None or not again.get("holderIdentity"):
            return "no operator serves this namespace"
        if again != first:
            return None
    since = f" since {first['renewTime']}" if first.get("renewTime") else ""
    return f"operator {first['holderIdentity']} gives no sign of life{since}"


def _read_spec(kubectl: Kubectl) -> dict[str, Any] | None:
    """The Lease; None: there is none."""
    root = f"/apis/coordination.k8s.io/v1/namespaces/{quote(kubectl.namespace)}"
    try:
        found: dict[str, Any] = kubectl.get(f"{root}/leases/{LEASE}")
    except AccessError as error:
        if error.trouble is not Trouble.NOT_FOUND:
            raise
        return None
    return dict(found.get("spec") or {})


def _find_age_s(spec: dict[str, Any], now: datetime) -> float | None:
    """None: it says nothing that is a time."""
    try:
        renewed = datetime.fromisoformat(str(spec.get("renewTime")))
    except ValueError:
        return None
    return (now - renewed).total_seconds() if renewed.tzinfo else None
