"""Whose the logs of a cluster are, as its sequencers say, and how a test gives all to one of them.

Asked through a write proxy's admin port, as `duramen owners` and `hand-over` do.
Used by `test_frozen_owner` and `test_balance`. Source: docs/protocol/ownership.md.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from duramen.client.rest_client import RestClient
from duramen.errors import DuramenError
from duramen.runtime.http_client import PeerError
from tests.pauses import look_again_soon
from tests.process.cluster import LocalCluster
from tests.process.times import HANG_S


async def owned_rows(cluster: LocalCluster) -> list[dict[str, Any]]:
    """A row for each log and each sequencer that says that it owns it, once all answer and know
    its name: one that is only about to take a log does not know it yet.
    """
    client = RestClient(cluster.state()["admin_url"])
    try:
        async with asyncio.timeout(HANG_S):
            while True:
                with contextlib.suppress(DuramenError, PeerError):
                    answer = await client.get_json("/v1/cluster/owners")
                    found: list[dict[str, Any]] = answer["logs"]
                    if not answer["silent"] and all(row["name"] for row in found):
                        return found
                await look_again_soon()
    finally:
        await client.close()


async def owners_of(cluster: LocalCluster) -> dict[str, set[str]]:
    """Log, without its namespace → who says that it owns it."""
    found: dict[str, set[str]] = {}
    for row in await owned_rows(cluster):
        found.setdefault(row["name"].partition("/")[2], set()).add(row["sequencer"])
    return found


async def wait_owned_by(cluster: LocalCluster, owner: str) -> None:
    """Until one sequencer has every log that anybody has, alone, and appends to each: one that
    still claims it is not its owner, and may lose it.
    """
    rows: list[dict[str, Any]] = []
    try:
        async with asyncio.timeout(HANG_S):
            while {(row["sequencer"], row["state"]) for row in rows} != {(owner, "active")}:
                await look_again_soon()
                rows = await owned_rows(cluster)
    except TimeoutError:
        states = {row["name"]: (row["sequencer"], row["state"]) for row in rows}
        raise AssertionError(f"not everything is {owner}'s: {states}") from None


async def give_all(cluster: LocalCluster, owner: str) -> None:
    """Let one sequencer own every log, by hand-overs."""
    client = RestClient(cluster.state()["admin_url"])
    try:
        for log, names in (await owners_of(cluster)).items():
            if names != {owner}:
                path = f"/v1/cluster/logs/default/{log}/hand-over"
                await client.post_json(path, {"to": owner})
    finally:
        await client.close()
    await wait_owned_by(cluster, owner)
