"""The configuration that a metadata log is made with, from that of the log whose metadata it holds.

An acknowledged record has as many copies, in as many racks and regions, as an acknowledged entry of
the log itself: whoever loses disks that its entries survive must not lose where they are. Nothing
of it is a wish of clients, and a later change of the log's configuration leaves it alone.

Pure. Called by who makes a metadata log. Source: docs/protocol/metadata-logs.md "M's
configuration".
"""

from __future__ import annotations

from typing import Final, NamedTuple

from duramen.config import FlexibleReplication, LogConfig, parse_log_config

WRITE_QUORUM_MIN: Final = 3


class _Promise(NamedTuple):
    """What an acknowledged entry of a log survives."""

    written: int
    acknowledged: int
    racks: int
    regions: int
    sufficient_regions: int | None


def metadata_log_config(config: LogConfig) -> LogConfig:
    """Of the metadata log of a log with this configuration.

    It is `strict` whatever the log is: where it cannot be placed nothing moves.
    """
    promise = _promise_of(config)
    written = max(WRITE_QUORUM_MIN, promise.written)
    return parse_log_config(
        {
            "replication": {
                "ensemble_size": written,
                "write_quorum": written,
                "ack_quorum": max(
                    written // 2 + 1, promise.acknowledged, promise.racks, promise.regions
                ),
                "min_racks": promise.racks,
                "min_regions": promise.regions,
                "regions_that_must_suffice": promise.sufficient_regions,
                "placement": "strict",
            },
            "retention": {"age": None, "bytes": None},
            "tiering": {"policy": "none"},
        }
    )


def _promise_of(config: LogConfig) -> _Promise:
    wanted = config.replication
    if isinstance(wanted, FlexibleReplication):
        sufficient = wanted.regions_that_must_suffice
        return _Promise(wanted.node, wanted.node, wanted.rack, wanted.region, sufficient)
    return _Promise(
        wanted.write_quorum,
        wanted.ack_quorum,
        wanted.min_racks,
        wanted.min_regions,
        wanted.regions_that_must_suffice,
    )
