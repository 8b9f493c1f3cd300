"""The configuration of metadata logs: an acknowledged record survives what an entry survives.

Source: docs/protocol/metadata-logs.md "M's configuration".
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.config import FlexibleReplication, Replication, parse_log_config
from duramen.core.metadata_log.configuring import metadata_log_config

FLEXIBLE = {"copysets": "flexible"}


@pytest.mark.parametrize(
    ("config", "written", "acknowledged", "racks", "regions"),
    [
        ({}, 3, 2, 2, 1),
        ({"replication": {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1, "min_racks": 1}},
         3, 2, 1, 1),
        ({"replication": {"ensemble_size": 9, "write_quorum": 5, "ack_quorum": 4}}, 5, 4, 2, 1),
        (FLEXIBLE, 3, 3, 2, 1),
        ({**FLEXIBLE, "replication": {"node": 3, "rack": 3}}, 3, 3, 3, 1),
        ({**FLEXIBLE, "replication": {"node": 5, "rack": 3, "region": 2}}, 5, 5, 3, 2),
    ],
)  # fmt: skip
def test_it_follows_from_the_logs_own(
    config: dict[str, Any], written: int, acknowledged: int, racks: int, regions: int
) -> None:
    made = metadata_log_config(parse_log_config(config)).striped
    assert (made.ensemble_size, made.write_quorum) == (written, written)
    assert (made.ack_quorum, made.min_racks, made.min_regions) == (acknowledged, racks, regions)
    assert made.placement == "strict"


counts = st.integers(1, 7)


@given(st.lists(counts, min_size=5, max_size=5), st.booleans())
def test_it_can_be_made_of_any_log(numbers: list[int], is_flexible: bool) -> None:
    first, second, third, racks, regions = numbers
    ordered = sorted((first, second, third))
    wanted: Replication | FlexibleReplication
    if is_flexible:
        node, rack, region = ordered[::-1]
        config = {**FLEXIBLE, "replication": {"node": node, "rack": rack, "region": region},
                  "nodeset": {"tolerate": 0}}  # fmt: skip
        promised = (node, rack, region)
    else:
        ack, write, ensemble = ordered
        promised = (ack, min(racks, ack), min(regions, ack))
        config = {"replication": {"ensemble_size": ensemble, "write_quorum": write,
                                  "ack_quorum": ack, "min_racks": promised[1],
                                  "min_regions": promised[2]}}  # fmt: skip
    made = metadata_log_config(parse_log_config(config))
    wanted = made.striped
    assert wanted.ack_quorum >= promised[0] and wanted.ack_quorum > wanted.write_quorum // 2
    assert (wanted.min_racks, wanted.min_regions) == promised[1:]


def test_nothing_of_it_is_a_wish_of_clients() -> None:
    wishes = {"compression": "zstd", "early_append": True, "tiering": {"policy": "move"},
              "retention": {"age": "1h", "bytes": "1MiB"}}  # fmt: skip
    made = metadata_log_config(parse_log_config(wishes))
    assert (made.compression, made.early_append, made.tiering.policy) == ("none", False, "none")
    assert (made.retention.age, made.retention.bytes, made.ack_mode) == (None, None, "ordered")
