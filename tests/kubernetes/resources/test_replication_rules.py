"""The rules of `replication` in CEL against those of the cluster itself, over many values.

What the API server refuses the cluster refuses too: no log that would work is kept out. What it
lets through and the cluster refuses is left to the condition of the Log; the first test tells how
seldom that is. Tier api.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from pydantic import ValidationError

from duramen.config import LogConfig, Replication
from duramen.core.placement.advice import advise
from tests.kubernetes.resources.objects import Api, make

COUNT = 400
MISSED_MAX = 0.02
"""Of all: ensembles whose cyclic write sets do not divide among the regions (ADR 0019)."""


def draw(rng: random.Random) -> dict[str, Any]:
    """Values near the edges of the rules."""
    size = rng.randint(1, 7)
    fields: dict[str, Any] = {
        "ensemble_size": size,
        "write_quorum": rng.randint(1, min(7, size + 1)),
        "ack_quorum": rng.randint(1, 5),
        "min_racks": rng.randint(1, 3),
        "min_regions": rng.choice([1, 1, 2, 2, 3]),
    }
    if rng.random() < 0.5:
        fields["regions_that_must_suffice"] = rng.choice([None, 1, 2, 3, 4])
    return fields


def is_possible(fields: dict[str, Any]) -> bool:
    """What the cluster says, before it looks at its bookies."""
    try:
        return advise(Replication(**fields)) is None
    except ValidationError:
        return False


def test_the_api_server_refuses_nothing_that_works(api: Api) -> None:
    rng = random.Random(10)
    met: Counter[tuple[bool, bool]] = Counter()
    missed = []
    for _ in range(COUNT):
        fields = draw(rng)
        is_taken = api.create(make("Log", {"replication": fields})).status_code == 201
        is_good = is_possible(fields)
        met[is_taken, is_good] += 1
        assert is_taken or not is_good, fields
        if is_taken and not is_good:
            missed.append(fields)
    assert met[True, True] > COUNT // 10, met
    assert met[False, False] > COUNT // 10, met
    assert len(missed) <= MISSED_MAX * COUNT, missed


def draw_flexible(rng: random.Random) -> dict[str, Any]:
    """The same of flexible logs, with a nodeset whose numbers are all named."""
    replication: dict[str, Any] = {"node": rng.randint(1, 5), "extras": rng.randint(0, 2)}
    for name, most in (("rack", 4), ("region", 3), ("regions_that_must_suffice", 4)):
        if rng.random() < 0.6:
            replication[name] = rng.randint(1, most)
    size = rng.randint(1, 9) if rng.random() < 0.5 else "none"
    return {"replication": replication, "nodeset": {"size": size, "tolerate": rng.randint(0, 3)}}


def is_flexible_possible(fields: dict[str, Any]) -> bool:
    try:
        LogConfig.model_validate({"copysets": "flexible", **fields})
    except ValidationError:
        return False
    return True


def test_of_flexible_logs_the_api_server_refuses_what_the_cluster_refuses(api: Api) -> None:
    rng = random.Random(11)
    met: Counter[bool] = Counter()
    for _ in range(COUNT):
        fields = draw_flexible(rng)
        is_taken = api.create(make("Log", fields)).status_code == 201
        met[is_taken] += 1
        assert is_taken is is_flexible_possible(fields), fields
    assert min(met[True], met[False]) > COUNT // 10, met
