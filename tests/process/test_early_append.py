"""A log with `early_append` whose owner is killed while a bookie is frozen, with real processes.

The frozen bookie holds the recovery up: each entry that is written back waits for it. Appends go on
beside it, and in the end all of them are there, in order. Source: docs/protocol/ownership.md "Early
appends".
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from duramen.client.rest_client import RestClient
from tests.process.cluster import create_log, run, running_plain_cluster
from tests.process.history import History
from tests.process.takeovers import PAIR, append_while, check, owner_of

pytestmark = [pytest.mark.process, pytest.mark.zookeeper]


def test_appends_go_on_while_the_log_of_a_killed_owner_is_recovered(tmp_path: Path) -> None:
    with running_plain_cluster(tmp_path, *PAIR) as cluster:

        async def scenario() -> None:
            history = History("early")
            await create_log(cluster, "early", {"early_append": True, "commit_delay": "2s"})
            client = RestClient(cluster.state()["write_url"])
            await history.append(client)
            await client.close()
            frozen = cluster.ids("bookie")[0]

            async def kill() -> None:
                owner = await owner_of(cluster, "early")
                cluster.send(frozen, signal.SIGSTOP)
                cluster.kill(owner)
                try:
                    await history.wait_early()
                finally:
                    cluster.send(frozen, signal.SIGCONT)

            await append_while(cluster, [history], kill())
            await check(cluster, history)

        run(scenario())
