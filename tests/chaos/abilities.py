"""What the product can do for a run, asked of the product: where it cannot, the reason is told.

The harness asks for more than every version gives. Each ability is a switch that turns by itself
when the product learns the thing; until then the faults and checks that need it are left out, and
the run says so.

Called by `run` and `disks`. Source: docs/protocol/admin.md "Each role".
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from typing import Final, NamedTuple

import httpx

from duramen.config import parse_log_config
from duramen.errors import DuramenError
from tests.chaos.cluster import ChaosCluster

_VERIFY_TIMEOUT_S: Final = 120.0
_POST_TIMEOUT_S: Final = 20.0


class Abilities(NamedTuple):
    """Each with its reason where it is false."""

    repairs: bool
    drains: bool
    verifies: bool


async def find_abilities(cluster: ChaosCluster, say: Callable[[str], None]) -> Abilities:
    """Ask once, when the cluster runs."""
    routes = await _list_routes(cluster)
    repairs, drains = "/v1/repair" in routes, "/v1/bookies/{}/drain" in routes
    if not repairs:
        say("no repair: sequencers do not serve /v1/repair; what a disk loses stays lost")
    if not drains:
        say("no drain: sequencers do not serve /v1/bookies/{id}/drain")
    status, text = await run_cli("verify", "--help")
    if status:
        say(f"no `duramen verify`: {' '.join(text.split())[:120]}; copies are counted here alone")
    return Abilities(repairs, drains, verifies=status == 0)


def knows_what_suffices() -> bool:
    """Whether a log may say how many regions must suffice."""
    try:
        parse_log_config({"replication": {"regions_that_must_suffice": 2, "min_regions": 2}})
    except DuramenError:
        return False
    return True


async def run_cli(*arguments: str) -> tuple[int, str]:
    """A command of `duramen`: exit status, and what it said."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "duramen.cli.main", *arguments,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT, env=os.environ | {"NO_COLOR": "1"},
    )  # fmt: skip
    try:
        async with asyncio.timeout(_VERIFY_TIMEOUT_S):
            said, _ = await process.communicate()
    except TimeoutError:
        return 1, f"no end within {_VERIFY_TIMEOUT_S:g} s"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, said.decode(errors="replace")


async def post(cluster: ChaosCluster, path: str) -> tuple[int, str]:
    """POST to whichever sequencer answers (any but the auditor redirects): status and text."""
    outcome = (0, "no sequencer answered")
    for node_id in cluster.ids("sequencer"):
        try:
            url = cluster.url(node_id, "admin_url") + path
            answer = await cluster.http.post(url, timeout=_POST_TIMEOUT_S)
        except httpx.HTTPError:
            continue
        outcome = (answer.status_code, answer.text[:300])
        if answer.is_success:
            break
    return outcome


async def _list_routes(cluster: ChaosCluster) -> set[str]:
    """Paths that the sequencers' administration serves, names of parameters left out."""
    document = await cluster.ask(cluster.ids("sequencer")[0], "/openapi.json") or {}
    routes = set()
    for path in document.get("paths", {}):
        parts = ["{}" if part.startswith("{") else part for part in path.split("/")]
        routes.add("/".join(parts))
    return routes
