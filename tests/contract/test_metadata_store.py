"""The contract of `MetadataStore`, on the in-memory twin and on a real ZooKeeper.

What only the twin can show is tested at the end; what only ZooKeeper can (a server that dies) in
`test_zookeeper_store`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest

from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree, WriteFate
from duramen.runtime.stores.metadata_store import (
    REQUEST_BYTES_MAX,
    Check,
    Conflict,
    Create,
    DeleteNode,
    MetadataStore,
    Op,
    OutcomeUnknown,
    Rejected,
    SessionState,
    Set,
    Stored,
    Unavailable,
)
from duramen.runtime.stores.zookeeper_store import ZooKeeperStore
from tests.contract.conftest import OpenBench, Story, wait_reads
from tests.request_order import RequestOrder
from tests.zookeeper_fixture import run


class Alarm:
    """A watch: counts its calls."""

    def __init__(self) -> None:
        self.count = 0
        self._rung = asyncio.Event()

    def __call__(self) -> None:
        self.count += 1
        self._rung.set()

    async def wait_rung(self) -> None:
        await self._rung.wait()


def test_a_node_is_created_read_changed_and_deleted(open_bench: OpenBench) -> None:
    async def scenario() -> None:
        async with open_bench() as bench:
            store, path = await bench.open_store(), f"{bench.root}/node"
            assert await store.get(path) is None
            assert await store.create(path, b"a") == 0
            assert await store.get(path) == Stored(b"a", 0, 0, 0)
            assert await store.set(path, b"b", version=0) == 1
            assert await store.set(path, b"", version=1) == 2
            assert await store.get(path) == Stored(b"", 2, 0, 0)
            await store.delete(path, version=2)
            assert await store.get(path) is None
            statistics = store.statistics()
            assert statistics["sessions"] == 1
            assert statistics["writes"] == 4
            assert statistics["conflicts"] == 0

    run(scenario())


def test_a_node_says_in_which_transaction_it_was_made_and_later_ones_are_greater(
    open_bench: OpenBench,
) -> None:
    async def scenario() -> None:
        async with open_bench() as bench:
            one, other = await bench.open_store(), await bench.open_store()
            paths = [f"{bench.root}/{name}" for name in ("z", "a", "m")]
            await one.create(paths[0], b"", make_parents=True)
            await other.create(paths[1], b"", ephemeral=True)
            await one.set(paths[0], b"changed", version=0)
            await one.create(paths[2], b"")
            made = []
            for path in paths:
                await one.sync(path)
                found = await one.get(path)
                assert found is not None
                made.append(found.made)
            assert 0 < made[0] < made[1] < made[2], "a change of the data makes nothing"

    run(scenario())


def test_a_node_tells_when_the_store_wrote_it(open_bench: OpenBench) -> None:
    async def scenario() -> None:
        async with open_bench() as bench:
            store, path = await bench.open_store(), f"{bench.root}/timed"
            begun_ms = time.time_ns() // 1_000_000
            await store.create(path, b"a")
            made = await store.get(path)
            await store.set(path, b"b", version=0)
            changed = await store.get(path)
            ended_ms = time.time_ns() // 1_000_000
            assert made is not None and changed is not None
            assert begun_ms <= made.changed_unix_ms <= changed.changed_unix_ms <= ended_ms

    run(scenario())


def test_parents_are_made_on_request_only(open_bench: OpenBench) -> None:
    async def scenario() -> None:
        async with open_bench() as bench:
            store, path = await bench.open_store(), f"{bench.root}/a/b/c"
            with pytest.raises(Conflict) as caught:
                await store.create(path, b"x")
            assert caught.value.kind == "no_node"
            await store.create(path, b"x", ephemeral=True, make_parents=True)
            await store.create(f"{bench.root}/a/d", b"", make_parents=True)
            assert await store.children(f"{bench.root}/a") == ("b", "d")
            assert await store.get(f"{bench.root}/a/b") == Stored(b"", 0, 0, 1)
            with pytest.raises(Conflict) as caught:
                await store.create(path, b"x", make_parents=True)
            assert caught.value.kind == "node_exists"
            assert await store.children(f"{bench.root}/missing") is None
            assert await store.children(path) == ()

    run(scenario())


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        (Set("/node", b"x", 1), "bad_version"),
        (Set("/missing", b"x", 0), "no_node"),
        (DeleteNode("/node", 1), "bad_version"),
        (DeleteNode("/missing", 0), "no_node"),
        (DeleteNode("/busy", 0), "not_empty"),
        (Check("/node", 7), "bad_version"),
        (Check("/missing", 0), "no_node"),
        (Create("/node", b""), "node_exists"),
        (Create("/missing/child", b""), "no_node"),
    ],
    ids=repr,
)
def test_a_conflict_names_its_operation_and_applies_nothing(
    open_bench: OpenBench, op: Op, kind: str
) -> None:
    async def scenario() -> None:
        async with open_bench() as bench:
            store = await bench.open_store()
            await store.create(f"{bench.root}/node", b"n")
            await store.create(f"{bench.root}/parent/child", b"", make_parents=True)
            await store.create(f"{bench.root}/busy/child", b"", make_parents=True)
            refused = type(op)(bench.root + op.path, *[getattr(op, name) for name in _rest(op)])
            with pytest.raises(Conflict) as caught:
                await store.commit(
                    (
                        Create(f"{bench.root}/new", b"1"),
                        Set(f"{bench.root}/parent", b"changed", 0),
                        DeleteNode(f"{bench.root}/parent/child", 0),
                        Create(f"{bench.root}/parent/other", b""),
                        refused,
                        Create(f"{bench.root}/after", b""),
                    )
                )
            assert (caught.value.index, caught.value.kind) == (4, kind)
            assert caught.value.path == refused.path
            assert await store.children(bench.root) == ("busy", "node", "parent")
            assert await store.get(f"{bench.root}/parent") == Stored(b"", 0, 0, 1)
            assert await store.children(f"{bench.root}/parent") == ("child",)
            with pytest.raises(Conflict) as caught:
                await store.commit((refused,))
            assert (caught.value.index, caught.value.kind) == (0, kind)

    run(scenario())


def _rest(op: Op) -> list[str]:
    return [name for name in op.__dataclass_fields__ if name != "path"]


def test_a_commit_applies_all_and_each_operation_sees_those_before_it(
    open_bench: OpenBench,
) -> None:
    async def scenario() -> None:
        async with open_bench() as bench:
            store, root = await bench.open_store(), bench.root
            await store.create(f"{root}/counter", b"0")
            await store.create(f"{root}/old", b"")
            versions = await store.commit(
                [
                    Check(f"{root}/counter", 0),
                    Set(f"{root}/counter", b"1", 0),
                    Set(f"{root}/counter", b"2", 1),
                    DeleteNode(f"{root}/old", 0),
                    Create(f"{root}/old", b"new"),
                    Create(f"{root}/old/owner", b"me", ephemeral=True),
                ]
            )
            assert versions == (0, 1, 2, 0, 0, 0)
            assert await store.get(f"{root}/counter") == Stored(b"2", 2, 0, 0)
            owner = await store.get(f"{root}/old/owner")
            assert owner == Stored(b"me", 0, store.session_id, 0)
            assert await store.commit(()) == ()

    run(scenario())


def test_of_concurrent_changes_one_wins(open_bench: OpenBench) -> None:
    async def scenario() -> None:
        async with open_bench() as bench:
            stores = [await bench.open_store() for _ in range(2)]
            path = f"{bench.root}/cas"
            await stores[0].create(path, b"")
            answers = await asyncio.gather(
                *(stores[i % 2].set(path, b"%d" % i, version=0) for i in range(6)),
                return_exceptions=True,
            )
            assert answers.count(1) == 1
            refused = [answer for answer in answers if isinstance(answer, Conflict)]
            assert [conflict.kind for conflict in refused] == ["bad_version"] * 5

    run(scenario())


def test_what_no_store_accepts_is_refused_before_it_is_sent(open_bench: OpenBench) -> None:
    async def scenario() -> None:
        async with open_bench() as bench:
            store, root = await bench.open_store(), bench.root
            for path in ("", "a", "/a/", "/a//b", "/a/../b", "/a/./b", "/a\0"):
                with pytest.raises(ValueError, match="path"):
                    await store.get(path)
                with pytest.raises(ValueError, match="path"):
                    await store.create(path, b"")
            with pytest.raises(ValueError, match="version"):
                await store.set(root, b"", version=-1)
            with pytest.raises(ValueError, match="version"):
                await store.delete(root, version=-1)
            with pytest.raises(Rejected):
                await store.create(f"{root}/huge", b"x" * REQUEST_BYTES_MAX)
            million = b"x" * 1_000_000
            await store.create(f"{root}/large", million)
            assert await store.get(f"{root}/large") == Stored(million, 0, 0, 0)
            await store.create(f"{root}/ephemeral", b"", ephemeral=True)
            with pytest.raises(Rejected):
                await store.create(f"{root}/ephemeral/child", b"")

    run(scenario())


def test_ephemeral_nodes_vanish_when_their_store_closes(open_bench: OpenBench) -> None:
    async def scenario() -> None:
        async with open_bench() as bench:
            owner, other = await bench.open_store(), await bench.open_store()
            path, alarm = f"{bench.root}/owner", Alarm()
            await owner.create(path, b"", ephemeral=True)
            await other.sync(path)
            seen = await other.get(path, alarm)
            assert seen is not None
            assert seen.ephemeral_session == owner.session_id != other.session_id
            await owner.close()
            await owner.close()
            await alarm.wait_rung()
            assert await other.get(path) is None
            assert (owner.session, owner.session_id) == (SessionState.LOST, 0)
            with pytest.raises(Unavailable):
                await owner.get(path)
            with pytest.raises(Unavailable):
                await owner.start()

    run(scenario())


def test_a_watch_rings_once_at_each_kind_of_change(open_bench: OpenBench) -> None:
    async def scenario() -> None:
        async with open_bench() as bench:
            watcher, writer = await bench.open_store(), await bench.open_store()
            path = f"{bench.root}/watched"
            created, changed, deleted = Alarm(), Alarm(), Alarm()
            assert await watcher.get(path, created) is None
            await writer.create(path, b"0")
            await created.wait_rung()
            await watcher.get(path, changed)
            await writer.set(path, b"1", version=0)
            await changed.wait_rung()
            await writer.set(path, b"2", version=1)
            await watcher.sync(path)
            await watcher.get(path, deleted)
            await writer.delete(path, version=2)
            await deleted.wait_rung()
            await writer.create(path, b"again")
            await watcher.sync(path)
            assert (created.count, changed.count, deleted.count) == (1, 1, 1)

    run(scenario())


def test_a_watch_on_children_rings_for_children_and_for_the_node(open_bench: OpenBench) -> None:
    async def scenario() -> None:
        async with open_bench() as bench:
            watcher, writer = await bench.open_store(), await bench.open_store()
            path = f"{bench.root}/parent"
            created, added, removed, deleted = (Alarm() for _ in range(4))
            assert await watcher.children(path, created) is None
            await writer.create(path, b"")
            await created.wait_rung()
            assert await watcher.children(path, added) == ()
            await writer.set(path, b"data is not watched", version=0)
            await writer.create(f"{path}/b", b"")
            await added.wait_rung()
            await writer.create(f"{path}/a", b"")
            await watcher.sync(path)
            assert await watcher.children(path, removed) == ("a", "b")
            await writer.commit((DeleteNode(f"{path}/a", 0), DeleteNode(f"{path}/b", 0)))
            await removed.wait_rung()
            await watcher.sync(path)
            assert await watcher.children(path, deleted) == ()
            await writer.delete(path, version=1)
            await deleted.wait_rung()
            counts = [alarm.count for alarm in (created, added, removed, deleted)]
            assert counts == [1, 1, 1, 1]

    run(scenario())


def test_a_refused_commit_rings_no_watch(open_bench: OpenBench) -> None:
    async def scenario() -> None:
        async with open_bench() as bench:
            store, alarm = await bench.open_store(), Alarm()
            path = f"{bench.root}/quiet"
            await store.create(path, b"")
            await store.get(path, alarm)
            with pytest.raises(Conflict):
                await store.commit((Set(path, b"1", 0), Check(path, 9)))
            await store.sync(path)
            assert alarm.count == 0
            await store.set(path, b"1", version=0)
            await alarm.wait_rung()

    run(scenario())


def test_after_sync_a_read_sees_what_others_were_told_is_written(open_bench: OpenBench) -> None:
    async def scenario() -> None:
        async with open_bench() as bench:
            reader, writer = await bench.open_store(), await bench.open_store()
            path = f"{bench.root}/fresh"
            await writer.create(path, b"")
            for version in range(20):
                await writer.set(path, b"", version=version)
                await reader.sync(path)
                seen = await reader.get(path)
                assert seen is not None
                assert seen.version == version + 1
            await reader.sync(f"{bench.root}/missing")

    run(scenario())


def test_requests_are_carried_out_and_answered_in_their_order(open_bench: OpenBench) -> None:
    async def scenario() -> None:
        async with open_bench() as bench:
            store, path = await bench.open_store(), f"{bench.root}/queue"
            await store.create(path, b"")
            order = RequestOrder(store, path)
            await asyncio.gather(*order.requests)
            order.check()

    run(scenario())


def test_an_expired_session_is_lost_and_a_new_one_opened(open_bench: OpenBench) -> None:
    async def scenario() -> None:
        async with open_bench() as bench:
            store, path, alarm = await bench.open_store(), f"{bench.root}/mine", Alarm()
            await store.create(path, b"", ephemeral=True)
            await store.get(bench.root, alarm)
            story, first_id = Story(store), store.session_id
            await bench.expire(store)
            await story.wait_states(SessionState.LOST, SessionState.CONNECTED)
            await alarm.wait_rung()
            assert store.session_id not in {0, first_id}
            assert await store.get(path) is None
            await store.create(path, b"", ephemeral=True)
            seen = await store.get(path)
            assert seen is not None
            assert seen.ephemeral_session == store.session_id
            assert store.statistics()["sessions"] == 2
            assert alarm.count == 1

    run(scenario())


def test_without_a_connection_calls_are_refused_and_watches_ring(open_bench: OpenBench) -> None:
    async def scenario() -> None:
        async with open_bench() as bench:
            store, path, alarm = await bench.open_store(), f"{bench.root}/node", Alarm()
            await store.create(path, b"kept", ephemeral=True)
            await store.get(path, alarm)
            story, session_id = Story(store), store.session_id
            bench.cut(store)
            await story.wait_states(SessionState.SUSPENDED)
            await alarm.wait_rung()
            assert store.session_id == session_id
            for refused in (
                store.get(path),
                store.children(path),
                store.sync(path),
                store.set(path, b"", version=0),
                store.create(path, b""),
                store.commit(()),
            ):
                with pytest.raises(Unavailable):
                    await refused
            bench.heal(store)
            await story.wait_states(SessionState.SUSPENDED, SessionState.CONNECTED)
            assert await store.get(path) == Stored(b"kept", 0, session_id, 0)
            assert alarm.count == 1

    run(scenario())


@pytest.mark.parametrize("verb", ["create", "set", "commit"])
def test_a_lost_reply_is_unknown_and_the_nonce_is_read_back(
    open_bench: OpenBench, verb: str
) -> None:
    async def scenario() -> None:
        async with open_bench() as bench:
            store = await bench.open_store()
            old, new = f"{bench.root}/old", f"{bench.root}/new"
            await store.create(old, b"")
            bench.lose_next_reply(store)
            with pytest.raises(OutcomeUnknown):
                await _write(store, verb, old, new, b"nonce")
            await wait_reads(store)
            found = await store.get(new if verb == "create" else old)
            assert found is not None
            assert found.data == b"nonce"  # applied, and once:
            assert found.version == (0 if verb == "create" else 1)
            assert store.statistics()["unknown"] == 1

    run(scenario())


async def _write(store: MetadataStore, verb: str, old: str, new: str, nonce: bytes) -> None:
    match verb:
        case "create":
            await store.create(new, nonce)
        case "set":
            await store.set(old, nonce, version=0)
        case _:
            await store.commit((Set(old, nonce, 0), Create(new, b"")))


# --- The twin alone ---


def test_the_twin_loses_and_delays_requests() -> None:
    async def scenario() -> None:
        store = MemoryStore(MemoryTree())
        await store.start()
        await store.create("/n", b"")
        for fate in (WriteFate.DROPPED, WriteFate.LATE):
            store.doom_next_write(fate)
            with pytest.raises(OutcomeUnknown):
                await store.set("/n", fate.value.encode(), version=0)
            assert await store.get("/n") == Stored(b"", 0, 0, 0)
        store.deliver_late_writes()
        assert await store.get("/n") == Stored(b"late", 1, 0, 0)
        store.doom_next_write(WriteFate.LATE)
        with pytest.raises(OutcomeUnknown):
            await store.set("/n", b"zombie", version=1)
        await store.set("/n", b"moved", version=1)  # R3: now "not applied" is certain
        store.deliver_late_writes()
        assert await store.get("/n") == Stored(b"moved", 2, 0, 0)

    run(scenario())


def test_a_node_whose_parent_is_of_unknown_fate_was_not_made() -> None:
    """Its creator may try again: nothing of its own was sent."""

    class LosesParents(MemoryStore):
        async def commit(self, ops: Sequence[Op]) -> tuple[int, ...]:
            if ops[0].path == "/parent":
                self.doom_next_write(WriteFate.APPLIED)
            return await super().commit(ops)

    async def scenario() -> None:
        store = LosesParents(MemoryTree())
        await store.start()
        with pytest.raises(Unavailable, match="ancestor /parent"):
            await store.create("/parent/n", b"", make_parents=True)
        assert await store.get("/parent/n") is None
        await store.create("/parent/n", b"", make_parents=True)

    run(scenario())


def _typed(memory: MemoryStore, real: ZooKeeperStore) -> tuple[MetadataStore, MetadataStore]:
    """Both fit the port: for the type checker."""
    return memory, real
