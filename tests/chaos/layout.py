"""Which cluster a run has, and how its logs are replicated: one site, or three regions.

`FLAT` is a site of five bookies. `REGIONS` is three regions of three racks, a bookie in each rack,
with a sequencer, a write proxy, a read proxy and a ZooKeeper member in each region. A layout also
says what a run on it must have seen to prove anything, and how much may be destroyed in it.

The budget of destroyed disks: whatever is acknowledged lies on Qa members of its write set, and
recovery needs answers of Qw − Qa + 1 of them. With d disks destroyed at least one copy is left if
d ≤ Qa − 1, and Qw − d members can still cover if d ≤ Qa − 1; appends go on in place if
d ≤ Qw − Qa. So d is at most the smaller of the two, of the log where that is least. Of a flexible
log whatever is acknowledged lies on `node` nodes, and the others cover while fewer than that are
gone: d ≤ node − 1, and the nodeset has as many to spare.

Pure. Called by every module of this folder. Source: docs/protocol/write.md "Write sets",
docs/protocol/recovery.md, docs/protocol/placement.md "The rule (R20)".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from duramen.cluster.layout import REGION, ClusterSize

SESSION_S: Final = 4.0


class Form(NamedTuple):
    """Replication of a log; racks as configured by default."""

    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    min_regions: int = 1
    regions_that_must_suffice: int | None = None

    @property
    def damage_max(self) -> int:
        """Destroyed disks that a log of this form bears."""
        return min(self.write_quorum - self.ack_quorum, self.ack_quorum - 1)

    def format(self, *, says_what_suffices: bool) -> dict[str, Any]:
        """As part of a log's configuration.

        Args:
            says_what_suffices: whether the product knows `regions_that_must_suffice`.
        """
        fields = self._asdict()
        if not says_what_suffices or self.regions_that_must_suffice is None:
            del fields["regions_that_must_suffice"]
        return fields


class Spread(NamedTuple):
    """Replication of a log with flexible copysets: its property, and nodes of a wave beyond it."""

    node: int
    rack: int = 2
    region: int = 1
    extras: int = 0
    regions_that_must_suffice: int | None = None

    @property
    def damage_max(self) -> int:
        """Destroyed disks that a log of this form bears."""
        return self.node - 1

    def format(self, *, says_what_suffices: bool) -> dict[str, Any]:
        """As `Form.format`."""
        fields = self._asdict()
        if not says_what_suffices or self.regions_that_must_suffice is None:
            del fields["regions_that_must_suffice"]
        return fields


@dataclass(frozen=True)
class Layout:
    """A cluster and its logs.

    Attributes:
        forms: of striped logs.
        spreads: of flexible ones.
        session_s: of every service with ZooKeeper.
        journal_file_size: of a bookie. Small: the disk of a long run is bounded, and settling and
            recycling happen all the time, in the regions' bookies too, which take less each.
        lost_bookie_grace_s: after it repair makes the copies of a bookie that is away elsewhere.
            Shorter than a region stays away at most, so that this is met too.
        settle_s: how long a step waits for all processes and logs after the one before.
        faults_per_minute_min: effective ones; fewer make a run void.
        required: beginnings of kinds, each of which a run of `required_after_s` has to have met.
        opening: kinds that are the first of their action.
    """

    name: str
    size: ClusterSize
    forms: tuple[Form, ...]
    spreads: tuple[Spread, ...]
    zookeepers: int = 1
    regions: tuple[str, ...] = (REGION,)
    session_s: float = SESSION_S
    journal_file_size: str = "4MiB"
    lost_bookie_grace_s: int = 15
    settle_s: float = 40.0
    faults_per_minute_min: float = 4.0
    required: tuple[str, ...] = ("kill", "pause", "cut")
    required_after_s: float = 30.0
    opening: tuple[str, ...] = ()

    @property
    def damage_max(self) -> int:
        """Destroyed disks that every log bears; see the module."""
        forms: list[Form | Spread] = [*self.forms, *self.spreads]
        return min(form.damage_max for form in forms)

    def list_forms(self, copysets: str) -> Sequence[Form | Spread]:
        """Of logs with such copysets."""
        return self.spreads if copysets == "flexible" else self.forms

    def counts(self) -> dict[str, int]:
        """Role → number of processes, ZooKeeper's too."""
        return {"zookeeper": self.zookeepers, **self.size.counts()}

    def ids(self, role: str) -> list[str]:
        """The processes of a role."""
        return [f"{role}-{index}" for index in range(self.counts()[role])]

    def everybody(self) -> frozenset[str]:
        """Every process."""
        return frozenset(node_id for role in self.counts() for node_id in self.ids(role))

    def place(self, node_id: str) -> tuple[str, str]:
        """Region and rack of a process: bookies fill region after region, the others alternate."""
        role, _, number = node_id.rpartition("-")
        index, count = int(number), len(self.regions)
        if role == "bookie":
            per_region = self.size.bookies // count
            return self.regions[index // per_region], f"r{index % per_region + 1}"
        return self.regions[index % count], f"r{index // count + 1}"

    def members_of(self, region: str) -> tuple[str, ...]:
        """All processes of a region."""
        return tuple(n for n in sorted(self.everybody()) if self.place(n)[0] == region)


FLAT: Final = Layout(
    "flat",
    ClusterSize(bookies=5, sequencers=2, write_proxies=2, read_proxies=2),
    forms=(Form(3, 3, 2), Form(4, 3, 2)),
    spreads=(Spread(3), Spread(2, extras=1)),
)

REGIONS: Final = Layout(
    "regions",
    ClusterSize(bookies=9, sequencers=3, write_proxies=3, read_proxies=3),
    # Of these, only a log of four copies can open a segment while a region is gone.
    forms=(
        Form(3, 3, 2, min_regions=2, regions_that_must_suffice=3),
        Form(5, 5, 3, min_regions=2, regions_that_must_suffice=3),
        Form(4, 4, 3, min_regions=2, regions_that_must_suffice=2),
        Form(6, 3, 2, min_regions=2, regions_that_must_suffice=3),
    ),
    spreads=(
        Spread(3, region=2, regions_that_must_suffice=3),
        Spread(4, region=2, regions_that_must_suffice=2),
        Spread(2, region=2, extras=1, regions_that_must_suffice=3),
    ),
    zookeepers=3,
    regions=("ada", "bee", "cid"),
    session_s=6.0,
    journal_file_size="1MiB",
    settle_s=90.0,
    faults_per_minute_min=1.0,
    required=("kill region", "pause", "cut", "disk", "drain"),
    required_after_s=240.0,
    opening=("kill region",),
)

LAYOUTS: Final = {layout.name: layout for layout in (FLAT, REGIONS)}
