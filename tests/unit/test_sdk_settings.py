"""The types of a log's configuration have the fields that the configuration has.

Source: docs/protocol/configuration.md.
"""

from typing import Any, get_type_hints, is_typeddict

import pytest
from pydantic import BaseModel

from duramen.client import LogSettings
from duramen.config import FlexibleReplication, LogConfig, Replication, parse_log_config

WHOLE: LogSettings = {
    "copysets": "flexible",
    "replication": {"node": 4, "rack": 3, "placement": "prefer"},
    "nodeset": {"size": "none", "tolerate": 2},
    "sticky": False,
    "window": {"stall": "5s"},
    "retention": {"age": None},
}


def test_a_configuration_that_the_types_take_is_one() -> None:
    config = parse_log_config(WHOLE)
    assert isinstance(config.replication, FlexibleReplication) and config.replication.node == 4


def test_every_field_has_a_type_and_no_other_has() -> None:
    hints = get_type_hints(LogSettings)
    assert set(hints) == set(LogConfig.model_fields)
    for name, hint in hints.items():
        if is_typeddict(hint) and name != "replication":
            assert set(get_type_hints(hint)) == set(_part_of(name).model_fields), name
    both = {*Replication.model_fields, *FlexibleReplication.model_fields}
    assert set(get_type_hints(hints["replication"])) == both


@pytest.mark.parametrize("name", LogConfig.model_fields)
def test_what_has_parts_is_typed_with_its_parts(name: str) -> None:
    has_parts = isinstance(getattr(LogConfig(), name), BaseModel)
    assert is_typeddict(get_type_hints(LogSettings)[name]) == has_parts


def _part_of(name: str) -> Any:
    return type(getattr(LogConfig(), name))
