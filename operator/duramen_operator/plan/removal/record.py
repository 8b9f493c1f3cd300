"""What the operator recorded of a removal, and what the cluster says of its bookie.

The record is `status.removal` of the Bookie. It is written before anything is done for it, so an
operator that starts anew knows what it has to take back. Called by the modules beside it and by
`plan.cluster`. Pure. Source: docs/kubernetes/removal.md "Steps".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from duramen.core.duty import Duty
from duramen_operator.plan.evictions.lives import is_running
from duramen_operator.plan.observed import Json, KubeObject, Observed
from duramen_operator.resources.bookies import Removal

DRAINING: Final[Removal] = "Draining"
STOPPING: Final[Removal] = "Stopping"
CANCELLING: Final[Removal] = "Cancelling"


def is_asked(item: KubeObject | None) -> bool:
    """Whether somebody wants this bookie to go, by its name."""
    return item is not None and item.spec.get("decommission") is True


def is_past_return(observed: Observed, bookie: str, workload: str) -> bool:
    """Whether a bookie lost the StatefulSet that was it alone, and its claims with it perhaps,
    because it was to be removed: it would find no disks."""
    if read_removal(observed, bookie) != STOPPING:
        return False
    found = observed.find("StatefulSet", workload)
    return observed.find("Pod", bookie) is None and (found is None or found.is_leaving)


def read_removal(observed: Observed, bookie: str) -> Removal:
    """What is recorded of a bookie; "" where it has no object."""
    item = observed.find("Bookie", bookie)
    said: Removal = "" if item is None else item.status.get("removal") or ""
    return said


@dataclass(frozen=True, slots=True)
class KnownBookies:
    """The bookies of a set, as far as the cluster answers."""

    observed: Observed
    names: frozenset[str]

    @property
    def is_told(self) -> bool:
        """Whether the cluster says who is registered, and somebody of the set is: where nobody is,
        it may be that it was founded anew beside old disks."""
        return any(name in self._rows for name in self.names)

    def find_row(self, bookie: str) -> Json:
        """Its registration; empty where it has none."""
        return self._rows.get(bookie, {})

    def find_duty(self, bookie: str) -> Duty | None:
        """Its duty; None where it is not registered, or not known."""
        said = self.find_row(bookie).get("duty")
        if not said:
            return None
        known = {duty.value: duty for duty in Duty}
        return known.get(str(said), Duty.DRAINING)  # a newer service's: it takes less than all

    def is_nobody(self, bookie: str) -> bool:
        """Whether nobody reads anything of a bookie: it never registered, or its loss was accepted;
        and no process of it runs that might register."""
        pod = self.observed.find("Pod", bookie)
        is_known = bookie in self._rows
        return self.is_told and not is_known and (pod is None or not is_running(pod))

    def is_empty(self, bookie: str) -> bool:
        """Whether the cluster says in this look that no copy is on it."""
        return self.find_duty(bookie) is Duty.DRAINED or self.is_nobody(bookie)

    @property
    def _rows(self) -> dict[str, Json]:
        admin = self.observed.admin
        return dict(admin.bookies or {}) if admin.is_reachable else {}


def know_bookies(observed: Observed, names: Iterable[str]) -> KnownBookies:
    """What is known of these."""
    return KnownBookies(observed, frozenset(names))
