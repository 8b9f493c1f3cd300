"""An owner that is frozen for 15 s under load: what it says afterwards counts for nothing.

Its logs are taken over while it stands still, by its session's end. When it goes on it still
believes that it owns them, with requests in its sockets: it must acknowledge none of those that
came after the takeover, whoever sent them, and everybody's appends must end up at the new owner.
Plain clients and producers append through two proxies all the time; one writer stays with the
frozen process (`direct_appends`). The chaos judge reads the histories of all of them.
Source: docs/protocol/metadata.md "Rules for every change", docs/protocol/recovery.md "Takeover",
R10.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from duramen.errors import DuramenError
from duramen.ids import Epoch, LogId
from duramen.wire.sequencer_calls import AlreadyStored, AppendedBatch, AppendResult, Redirect
from tests.chaos.history import HistoryFile, history_path, read_clock_ns, read_history
from tests.chaos.load import LoadOptions
from tests.pauses import let_pass, look_again_soon
from tests.process.chaos_load import judge_logs, require_good, running_load
from tests.process.cluster import LocalCluster, create_log, run, running_plain_cluster
from tests.process.direct_appends import DirectAppends
from tests.process.owners import give_all, owners_of, wait_owned_by
from tests.process.takeovers import statistics
from tests.process.times import HANG_S, SESSION_FAILOVER_S
from tests.ticker import Ticker, running_ticker

pytestmark = [
    pytest.mark.process,
    pytest.mark.zookeeper,
    pytest.mark.timeout(3 * HANG_S),
]

FROZEN_S = 15.0

PLAIN = ["plain-0", "plain-1", "plain-2"]
PRODUCED = ["produced-0", "produced-1", "produced-2"]
SENT_TO_THE_FROZEN = 8
STALE_ROUTES_MAX = 2 * len(PLAIN + PRODUCED)
"""A proxy that has sent nothing to a log meanwhile asks the old owner once, and is redirected."""
THINK_MS = 100
APPENDS_COUNT, READS_COUNT = 100, 5
"""What each log must see after all that, so that the histories say something."""

ACKNOWLEDGED = (AppendedBatch, AlreadyStored)


def test_an_owner_frozen_for_15_s_acknowledges_nothing_after_the_seal(tmp_path: Path) -> None:
    flags = ("--sequencers", "2", "--write-proxies", "2", "--no-restart")
    with (
        running_plain_cluster(tmp_path / "c", *flags) as cluster,
        running_ticker(tmp_path) as ticker,
    ):
        run(scenario(cluster, tmp_path, ticker), timeout_s=2 * HANG_S)


async def scenario(cluster: LocalCluster, folder: Path, ticker: Ticker) -> None:
    victim, other = cluster.ids("sequencer")
    ids = {log: LogId(int(await create_log(cluster, log, {}))) for log in PLAIN + PRODUCED}
    plain, produced = (load_options(cluster, folder, logs) for logs in (PLAIN, PRODUCED))
    file = HistoryFile(history_path(folder, PLAIN[0], "direct"))
    direct = DirectAppends(cluster.process(victim)["data_url"], PLAIN[0], ids[PLAIN[0]], file)
    async with running_load(plain) as first, running_load(produced) as second:
        await give_all(cluster, victim)
        before = await direct.append()
        assert isinstance(before, AppendedBatch), before
        cluster.send(victim, signal.SIGSTOP)
        stopped_ns, stopped_s = read_clock_ns(), time.monotonic()
        try:
            for load in (first, second):
                await load.wait_acked_since(stopped_ns, HANG_S)
            taken_ns = read_clock_ns()
            ticker.require_within(stopped_s, SESSION_FAILOVER_S, "a frozen owner's logs taken over")
            before_end = await count_frames(cluster, victim)
            sent = [asyncio.create_task(direct.append()) for _ in range(SENT_TO_THE_FROZEN)]
            frozen_s = max(FROZEN_S - (taken_ns - stopped_ns) / 1e9, 5.0)
            await let_pass(frozen_s, what="it stays frozen, with requests in its sockets")
            assert not any(task.done() for task in sent), "it was not frozen"
            pairs = zip(await count_frames(cluster, victim), before_end, strict=True)
            assert all(count in (0, before) for count, before in pairs), "a frame to a zombie"
        finally:
            cluster.send(victim, signal.SIGCONT)
        answers = list(await asyncio.gather(*sent))
        answers += await append_until_redirected(direct)
        check_answers(answers, (taken_ns - stopped_ns) / 1e9)
        continued_ns = read_clock_ns()
        for load in (first, second):
            await load.wait_acked_since(continued_ns, HANG_S)
            await load.wait_worked(appends=APPENDS_COUNT, reads=READS_COUNT, timeout_s=120)
        await check_owners(cluster, victim, other)
        last = (await statistics(cluster, victim))["frames"]["appends"]
        await asyncio.gather(first.finish(), second.finish())
        asked = (await statistics(cluster, victim))["frames"]["appends"] - last
        assert asked <= STALE_ROUTES_MAX, "somebody goes on asking it"
    await direct.close()
    file.close()
    old = before.start.dlsn.epoch
    check_epochs(folder, PLAIN[0], old, taken_ns)
    await check_histories(cluster, folder)


def load_options(cluster: LocalCluster, folder: Path, logs: list[str]) -> LoadOptions:
    return LoadOptions(
        folder=str(folder),
        write_urls=[cluster.process(node_id)["data_url"] for node_id in cluster.ids("writeproxy")],
        read_urls=[cluster.state()["read_url"]],
        logs=logs,
        writers=2 * len(logs),
        readers=len(logs),
        seed=1,
        think_ms=THINK_MS,
        has_producers=logs is PRODUCED,
    )


async def append_until_redirected(direct: DirectAppends) -> list[AppendResult | None]:
    """Go on asking the zombie until it says whose the log is, or what it must not say."""
    answers: list[AppendResult | None] = []
    async with asyncio.timeout(HANG_S):
        while not answers or not isinstance(answers[-1], (Redirect, *ACKNOWLEDGED)):
            answers.append(await direct.append())
    return answers


def check_answers(answers: list[AppendResult | None], taken_s: float) -> None:
    """Nothing that was sent to the zombie after the takeover is acknowledged."""
    said = Counter(
        answer.code if isinstance(answer, DuramenError) else type(answer).__name__
        for answer in answers
    )
    print(f"taken over after {taken_s:.1f} s; what the zombie answered to later appends: {said}")
    acknowledged = [each for each in answers if isinstance(each, ACKNOWLEDGED)]
    assert not acknowledged, acknowledged


async def count_frames(cluster: LocalCluster, sequencer: str) -> list[int]:
    """What each proxy has sent to a sequencer, once all know that its session has ended.

    0 also where the lane is gone: it is dropped when nothing is under way in it any more.
    """
    url, counts = cluster.process(sequencer)["data_url"], []
    for proxy in cluster.ids("writeproxy"):
        async with asyncio.timeout(HANG_S):
            while (found := await statistics(cluster, proxy))["routes"]["sequencers"] != 1:
                await look_again_soon()
        counts.append(found["lanes"].get(url, {"frames": 0})["frames"])
    return counts


async def check_owners(cluster: LocalCluster, victim: str, other: str) -> None:
    """The new owner has every log, and the zombie claims none."""
    await wait_owned_by(cluster, other)
    assert set(await owners_of(cluster)) == {*PLAIN, *PRODUCED}
    assert not any((await statistics(cluster, victim))["logs"].values())


def check_epochs(folder: Path, log: str, old: Epoch, taken_ns: int) -> None:
    """Whatever was acknowledged and began after the takeover stands in a later epoch."""
    lines = [line for line in read_history(folder, log) if line["op"] == "append"]
    acked = [line for line in lines if line["outcome"] == "ok" and line["t0_ns"] > taken_ns]
    assert len(acked) >= APPENDS_COUNT
    epochs = {int(line["dlsn"].partition("n")[0].removeprefix("e")) for line in acked}
    assert min(epochs) > old, (old, epochs)


async def check_histories(cluster: LocalCluster, folder: Path) -> None:
    """Nothing lost, doubled, reordered or invented, and producers know of every append."""
    verdicts = []
    for logs, must_be_definite in ((PLAIN, False), (PRODUCED, True)):
        url = cluster.state()["read_url"]
        verdicts += await judge_logs(url, folder, logs, must_be_definite=must_be_definite)
    counts = require_good(verdicts, appends=APPENDS_COUNT, reads=READS_COUNT)
    assert all(verdict.epoch_count >= 2 for verdict in verdicts), verdicts
    print(f"judged: {dict(counts)}")
