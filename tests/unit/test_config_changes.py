"""What a change leaves of a log's configuration, above all one of `copysets`.

Source: docs/protocol/flexible.md "Configuration".
"""

from typing import Any

import pytest

from duramen.config import LogConfig, needs_new_segment, parse_log_config
from duramen.config_changes import keep_form, merge_fields, merge_log_config
from duramen.errors import DuramenError

STRIPED = parse_log_config(
    {
        "replication": {
            "ensemble_size": 5, "min_racks": 1, "placement": "prefer",
            "regions_that_must_suffice": 2,
        },
        "roll": {"size": "1MiB"},
    }
)  # fmt: skip
FLEXIBLE = parse_log_config(
    {
        "copysets": "flexible", "replication": {"node": 4, "placement": "prefer"},
        "nodeset": {"size": 9}, "sticky": "off", "window": {"stall": "2s", "entries": 7},
    }
)  # fmt: skip


def change(stored: LogConfig, patch: dict[str, Any]) -> LogConfig:
    return parse_log_config(merge_log_config(stored.to_json(), patch))


def test_a_field_that_is_not_named_stays() -> None:
    stored = {"retention": {"age": "72h", "bytes": None}, "commit": "lac"}
    merged = merge_fields(stored, {"retention": {"age": None}})
    assert merged == {"retention": {"age": None, "bytes": None}, "commit": "lac"}
    assert stored["retention"] == {"age": "72h", "bytes": None}
    changed = change(FLEXIBLE, {"replication": {"node": 5}})
    assert changed.to_json()["replication"] == {**FLEXIBLE.to_json()["replication"], "node": 5}


def test_new_copysets_take_the_defaults_of_their_form() -> None:
    """What belongs to both forms stays, and so does everything that is no matter of copysets."""
    changed = change(STRIPED, {"copysets": "flexible", "replication": {"extras": 1}})
    assert changed.to_json()["replication"] == {
        "node": 3, "rack": 2, "region": 1, "extras": 1,
        "regions_that_must_suffice": 2, "placement": "prefer",
    }  # fmt: skip
    assert changed.roll == STRIPED.roll
    assert needs_new_segment(STRIPED, changed)


def test_striped_again_a_log_loses_what_only_flexible_ones_have() -> None:
    changed = change(FLEXIBLE, {"copysets": "striped"})
    assert changed.striped.ensemble_size == 3 and changed.striped.placement == "prefer"
    assert changed.window.entries == 7, "of both forms"
    assert changed == parse_log_config(
        {"replication": {"placement": "prefer"}, "window": {"entries": 7}}
    )


@pytest.mark.parametrize(
    ("stored", "patch"),
    [
        (STRIPED, {"replication": {"node": 2}}),
        (STRIPED, {"copysets": "flexible", "replication": {"ack_quorum": 2}}),
        (FLEXIBLE, {"replication": {"ack_quorum": 2}}),
        (FLEXIBLE, {"copysets": "striped", "replication": {"node": 2}}),
    ],
)
def test_a_field_of_the_other_form_is_refused_with_both(
    stored: LogConfig, patch: dict[str, Any]
) -> None:
    with pytest.raises(DuramenError) as caught:
        change(stored, patch)
    assert (caught.value.code, caught.value.field) == ("invalid_argument", "replication")
    assert "ack_quorum" in caught.value.detail and "node, rack" in caught.value.detail


@pytest.mark.parametrize("copysets", ["striped", "flexible"])
def test_the_same_copysets_change_nothing(copysets: str) -> None:
    stored = STRIPED if copysets == "striped" else FLEXIBLE
    assert change(stored, {"copysets": copysets}) == stored


@pytest.mark.parametrize("copysets", [["striped"], {"a": 1}, "other", None])
def test_what_is_no_form_is_left_to_who_judges(copysets: object) -> None:
    assert keep_form(FLEXIBLE.to_json(), copysets) == FLEXIBLE.to_json()
    with pytest.raises(DuramenError, match="copysets"):
        change(FLEXIBLE, {"copysets": copysets})
