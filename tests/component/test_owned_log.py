"""What a log that an application owns promises: one order, one life, and to tell when it is over.

On a metadata store in memory, before a bookie that answers at once, or only when it is let
(`host_world.Lanes`). Nothing is stored, so reading and recovery are for tests/process.
Source: docs/sdk.md, ADR 0013.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from duramen.client import DuramenError, Record, Uncertain
from duramen.client.core import CoreClient
from duramen.client.core.owned_log import NotOwner, OwnedLog
from duramen.client.core.parts import EMBEDDED_URL, Owning, make_reading
from duramen.core.placement import Candidate
from duramen.core.reading.replica_order import Place
from duramen.core.sequencer.context import SequencerContext
from duramen.core.sequencer.effects import SendAdd, SendLac, SendWave
from duramen.core.status import BookieStatus
from duramen.ids import Epoch, LogId, SequencerId, epoch_of
from duramen.runtime.cluster_node import ensure_cluster
from duramen.runtime.sequencer.log_driver import now_us
from duramen.runtime.sequencer.metadata_link import MetadataLink
from duramen.runtime.sequencer.story import Stories
from duramen.runtime.stores.memory_store import MemoryStore
from duramen.runtime.stores.metadata_store import SessionState
from duramen.wire.metadata_json import encode_log, encode_node, read_log, read_node
from tests.complaints import hear_complaints
from tests.component.host_world import CONFIG, MEMBER, PATHS, HostWorld, Lanes, host_world
from tests.waiting import wait_for

LOG = LogId(9)


class HoldingLanes(Lanes):
    """Adds are kept until they are let go; counted."""

    def __init__(self) -> None:
        super().__init__()
        self.is_holding = self.is_sealed = False
        self.held: list[tuple[SendAdd | SendWave, Any]] = []
        self.add_count = 0

    def add(self, effect: SendAdd | SendWave, sink: Any) -> None:
        self.add_count += 1
        if self.is_holding:
            self.held.append((effect, sink))
        else:
            super().add(effect, sink)

    def send_lac(self, effect: SendLac, sink: Any) -> None:
        if not self.is_sealed:
            super().send_lac(effect, sink)
            return
        epoch = epoch_of(effect.ledger_id)
        sink.on_lac(effect.member, epoch, BookieStatus.SEALED, effect.round_id)
        asyncio.get_running_loop().call_soon(sink.flush)

    def let_go(self) -> None:
        self.is_holding = False
        held, self.held = self.held, []
        for effect, sink in held:
            super().add(effect, sink)


class Process:
    """An application with a session of its own; `open_log` makes another object each time."""

    def __init__(self, world: HostWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.store = world.stores[name] = MemoryStore(world.tree)
        self.lanes = HoldingLanes()
        candidate = Candidate(MEMBER, "r", "k")
        self.context = SequencerContext(
            SequencerId(name), random.Random(1), lambda *_, **__: b"", holds_logs=True
        )
        self.context.candidates, self.context.locations = [candidate], {MEMBER: candidate}
        link = MetadataLink(self.store, PATHS, SequencerId(name), EMBEDDED_URL)
        self.owning = Owning(self.context, cast(Any, self.lanes), link, Stories())
        self.reading = make_reading(
            self.store, PATHS, Place("", ""), 1 << 20, None, client=cast(Any, None), security=None
        )
        self.open_logs: dict[LogId, OwnedLog] = {}
        self.store.on_session(self.on_session)

    def on_session(self, state: SessionState) -> None:
        self.context.is_metadata_reachable = state is SessionState.CONNECTED
        for log in self.open_logs.values():
            log.on_session()

    def open_log(self, *, open_timeout_s: float = 20, append_timeout_s: float = 20) -> OwnedLog:
        return OwnedLog(
            self.owning, self.reading, "ns", "log", open_timeout_s=open_timeout_s,
            append_timeout_s=append_timeout_s, open_logs=self.open_logs,
        )  # fmt: skip

    def owner(self) -> str | None:
        """Whom the owner node names."""
        stored = self.world.tree.get(PATHS.owner(LOG))
        return None if stored is None else read_node(stored.data)["sequencer"]


def play(scenario: Callable[[Process], Awaitable[None]], **config: Any) -> None:
    """A scenario with the log `ns/log` and one process, "one"."""

    async def run() -> None:
        async with host_world() as world:
            await world.add_log(LOG)
            stored = await world.setup.get(PATHS.log(LOG))
            assert stored is not None
            changed = CONFIG.model_validate({**CONFIG.to_json(), **config})
            log = replace(read_log(stored.data), config=changed)
            await world.setup.set(PATHS.log(LOG), encode_log(log), version=stored.version)
            name = PATHS.name("ns", "log")
            data = encode_node({"log_id": str(LOG)})
            await world.setup.create(name, data, make_parents=True)
            await scenario(await begin(world, "one"))

    asyncio.run(run())


async def begin(world: HostWorld, name: str) -> Process:
    process = Process(world, name)
    await process.store.start()
    return process


def test_appends_are_acknowledged_in_the_order_of_the_calls_and_the_end_is_in_peace() -> None:
    async def scenario(one: Process) -> None:
        async with one.open_log() as log:
            assert (log.epoch, one.owner()) == (1, "one")
            tickets = [log.append([b"a", b"b"]) for _ in range(50)]
            done: list[int] = []
            for index, ticket in enumerate(tickets):
                asyncio.ensure_future(ticket._wait()).add_done_callback(
                    lambda _, index=index: done.append(index)  # type: ignore[misc]
                )
            assert [(await t)[:2] for t in tickets] == [(2 * i, 2 * i + 2) for i in range(50)]
            await wait_for(lambda: len(done) == 50)
            assert done == list(range(50))
            assert one.lanes.add_count == 1, "appends of one round share an entry"
        stored = one.world.tree.get(PATHS.log(LOG))
        assert stored is not None
        node = read_log(stored.data)
        assert (node.unclosed_epochs, node.totals.record_count) == ((), 100)
        assert one.owner() is None and not one.open_logs

    play(scenario)


def test_what_waits_too_long_ends_the_log_and_nothing_behind_it_is_sent() -> None:
    async def scenario(one: Process) -> None:
        async with one.open_log(append_timeout_s=1.0) as log:
            await log.append(b"a")
            one.lanes.is_holding = True
            stuck = log.append(b"b")
            await wait_for(lambda: len(one.lanes.held) == 1)
            with pytest.raises(Uncertain):
                await stuck
            ended = await log.wait_ended()
            assert ended.code == "not_enough_bookies"
            with pytest.raises(DuramenError, match="not stored within"):
                _ = log.append(b"c")
            one.lanes.let_go()
            with pytest.raises(DuramenError, match="not stored within"):
                await log.flush()
            assert one.lanes.add_count == 2
            with pytest.raises(DuramenError, match="not stored within"):
                _ = await log.send(b"c")

    with pytest.raises(DuramenError, match="not stored within"):
        play(scenario)


def test_who_ended_by_a_failure_does_not_keep_others_off_and_may_open_it_again() -> None:
    async def scenario(one: Process) -> None:
        log = await one.open_log(append_timeout_s=0.5).__aenter__()
        one.lanes.is_holding = True
        with pytest.raises(Uncertain):
            await log.append(b"a")
        assert one.owner() == "one"
        await log.__aexit__(KeyError, None, None)
        assert one.owner() is None
        one.lanes.let_go()
        async with one.open_log() as again:
            assert again.epoch == 2
            await again.append(b"b")

    play(scenario)


def test_when_the_window_is_full_append_refuses_and_send_waits_in_order() -> None:
    async def scenario(one: Process) -> None:
        async with one.open_log() as log:
            one.lanes.is_holding = True
            first = [log.append(b"0"), log.append(b"1")]
            with pytest.raises(DuramenError, match="window_full"):
                _ = log.append(b"x")
            waiting = [asyncio.create_task(log.send(b"%d" % number)) for number in (2, 3, 4)]
            await wait_for(log._turn.locked)
            with pytest.raises(DuramenError, match="called before waits"):
                _ = log.append(b"x")
            one.lanes.let_go()
            tickets = [*first, *[await task for task in waiting]]
            assert [(await ticket).start for ticket in tickets] == [0, 1, 2, 3, 4]

    play(scenario, window={"entries": 2, "bytes": "1MiB"})


def test_a_txid_that_falls_is_refused_before_it_is_taken() -> None:
    async def scenario(one: Process) -> None:
        async with one.open_log() as log:
            _ = log.append([Record(b"a", txid=5), Record(b"b", txid=5)])
            with pytest.raises(DuramenError, match="condition_failed"):
                _ = log.append(Record(b"c", txid=4))
            with pytest.raises(DuramenError, match="condition_failed"):
                _ = await log.send(Record(b"c", txid=4))
            assert (await log.append(Record(b"c", txid=5))).start == 2

    play(scenario)


@pytest.mark.parametrize("is_taken", [False, True])
def test_after_a_lost_session_the_owner_node_comes_back_or_the_log_is_over(
    *, is_taken: bool
) -> None:
    async def scenario(one: Process) -> None:
        log = await one.open_log().__aenter__()
        await log.append(b"a")
        one.store.disconnect()
        one.world.tree.expire(one.store.session_id)
        assert one.owner() is None
        await log.append(b"b")
        if is_taken:
            two = await begin(one.world, "two")
            async with two.open_log():
                one.store.reconnect()
                assert isinstance(await log.wait_ended(), NotOwner)
                with pytest.raises(NotOwner):
                    _ = log.append(b"c")
                assert one.owner() == "two"
            return
        one.store.reconnect()
        await wait_for(lambda: one.owner() == "one")
        await log.append(b"c")
        await log.__aexit__(None, None, None)

    play(scenario)


def test_another_writer_is_noticed_without_an_append() -> None:
    async def scenario(one: Process) -> None:
        two = await begin(one.world, "two")
        async with one.open_log() as first, two.open_log() as second:
            assert isinstance(await first.wait_ended(), NotOwner)
            assert second.epoch == 2
            await second.append(b"a")

    with pytest.raises(NotOwner):
        play(scenario)


def test_a_seal_ends_the_log_also_where_nothing_waits_and_nobody_else_has_it() -> None:
    """A sequencer would claim it back; here somebody may have appended in between."""

    async def scenario(one: Process) -> None:
        log = await one.open_log().__aenter__()
        one.lanes.is_sealed = True
        await log.append(b"a")
        assert isinstance(await log.wait_ended(), NotOwner)
        with pytest.raises(NotOwner):
            _ = log.append(b"b")
        await log.__aexit__(KeyError, None, None)
        stored = one.world.tree.get(PATHS.log(LOG))
        assert stored is not None and read_log(stored.data).next_epoch == 2

    play(scenario)


def test_who_has_no_identity_any_more_sends_nothing_behind_what_was_sent() -> None:
    async def scenario(one: Process) -> None:
        log = await one.open_log().__aenter__()
        await log.append(b"a")
        one.lanes.is_holding = True
        sent = log.append(b"b")
        await wait_for(lambda: len(one.lanes.held) == 1)
        log.on_identity_ended("its certificate has ended")
        with pytest.raises(DuramenError, match="its certificate has ended") as caught:
            _ = log.append(b"c")
        assert caught.value.code == "unauthenticated"
        with pytest.raises(Uncertain):
            await sent
        one.lanes.let_go()
        await log.__aexit__(KeyError, None, None)
        assert (await log.wait_ended()).code == "unauthenticated"
        assert one.lanes.add_count == 2
        async with one.open_log() as again:
            await again.append(b"d")

    play(scenario)


def test_a_flexible_epoch_that_stalls_ends_the_log_and_names_no_other_writer() -> None:
    """R28 would take the log over and append again what was not stored; one life does not."""

    async def scenario(one: Process) -> None:
        async with one.open_log() as log:
            one.lanes.is_holding = True
            sent = log.append(b"a")
            await wait_for(lambda: bool(one.lanes.held), 10, "the add")
            driver = log._driver
            assert driver is not None
            driver.core._on_stalled("entry 0 is incomplete", now_us())
            driver.flush()
            error = await log.wait_ended()
            assert error.code == "not_enough_bookies" and "is incomplete" in str(error)
            assert not isinstance(error, NotOwner)
            with pytest.raises(Uncertain):
                await sent
            with pytest.raises(DuramenError, match="not_enough_bookies"):
                _ = log.append(b"b")
            assert one.lanes.add_count == 1
            raise _Over

    with pytest.raises(_Over):
        play(scenario)


class _Over(Exception):
    """The block ends without a flush, which would raise what ended the log."""


def test_the_open_segment_is_rolled_off_a_bookie_that_is_to_go() -> None:
    async def scenario(one: Process) -> None:
        async with one.open_log() as log:
            await log.append(b"a")
            log.on_bookies_changed(frozenset({"another"}))
            assert (await log.append(b"b")).dlsn == "e1n1s0"
            log.on_bookies_changed(frozenset({"b0"}))
            await wait_for(lambda: log.epoch == 2)
            assert (await log.append(b"c")).start == 2

    play(scenario)


def test_a_log_that_cannot_be_opened_says_why_and_is_nobodys() -> None:
    async def scenario(one: Process) -> None:
        candidates, one.context.candidates = one.context.candidates, []
        with pytest.raises(DuramenError, match="not_enough_bookies"):
            async with one.open_log(open_timeout_s=0.05):
                pass
        assert one.owner() is None and not one.open_logs
        one.context.candidates = candidates
        async with one.open_log() as log:
            await log.append(b"a")
            with pytest.raises(DuramenError, match="is open in this process"):
                async with one.open_log():
                    pass
            await log.append(b"b")

    play(scenario)


@pytest.mark.parametrize("is_held", [False, True])
def test_a_log_that_is_left_open_is_over_and_its_appends_are_told(*, is_held: bool) -> None:
    """The client is closed: nobody waits for ever, no task is left, others find no owner."""

    async def scenario(one: Process) -> None:
        others = asyncio.all_tasks()
        async with hear_complaints() as heard:
            log = await one.open_log().__aenter__()
            one.lanes.is_holding = is_held
            ticket = log.append(b"a")
            sending = asyncio.create_task(log.flush())
            await wait_for(lambda: len(one.lanes.held) == 1 or ticket.is_done())
            await log.abandon()
            assert one.owner() is None and not one.open_logs
            if is_held:
                with pytest.raises(Uncertain):
                    await ticket
            else:
                assert (await ticket).start == 0
            await asyncio.wait([sending])
            assert sending.exception() is not None or not is_held
            for _ in range(2):
                with pytest.raises(DuramenError, match="its client was closed"):
                    _ = log.append(b"b")
                with pytest.raises(DuramenError, match="its client was closed"):
                    await log.__aexit__(None, None, None)
            del sending
            await wait_for(lambda: asyncio.all_tasks() == others)
        assert heard == []
        one.lanes.let_go()
        async with one.open_log() as again:
            assert again.epoch == 2

    play(scenario)


def test_a_client_tells_owners_who_it_is_and_obeys_maintenance() -> None:
    async def scenario(one: Process) -> None:
        store = MemoryStore(one.world.tree)
        with pytest.raises(DuramenError, match="knows no cluster at /duramen/test"):
            async with CoreClient("zk:2181", cluster="test", store=MemoryStore(one.world.tree)):
                pass
        await ensure_cluster(one.store, PATHS)
        async with CoreClient("zk:2181", cluster="test", name="app", store=store) as core:
            owning = core._owning
            assert owning.context.holds_logs and core.writer_id.startswith("core-app-")
            await owning.link.keep_owner(LOG, Epoch(1))
            owner = await one.owning.link.read_owner(LOG)
            assert owner is not None and owner.is_embedded
            assert owner.sequencer_id == core.writer_id
            await one.store.create(PATHS.maintenance, encode_node({"rolling_suspended": True}))
            await wait_for(lambda: owning.context.is_rolling_suspended)

    play(scenario)
