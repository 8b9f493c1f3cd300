"""Members, observers and bookies over calls that are played, under a clock that stands still.

What is decided is in `tests.unit.test_members`; here is what becomes of calls: their time limits,
answers that are none, relayed pings, and who is named to people.
Source: docs/protocol/members.md "The call".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

from duramen.core.members.messages import MemberQuestion, MemberState, RelayFinding, Word
from duramen.core.members.witness import WITNESS_PERIOD_US
from duramen.runtime.http_client import NoAnswerError, PeerClient
from duramen.runtime.members.gossiping import CALL_COUNT_MAX, Gossiping
from duramen.runtime.members.observing import Observing
from duramen.runtime.members.witnessing import Witnessing
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.units import SECOND
from duramen.wire.frame import FrameError
from duramen.wire.member_calls import pack_question, parse_reply
from duramen.wire.metadata_json import encode_node
from tests.component.still_clock import read_clock_us, run_still, wait_clock
from tests.pauses import let_pass
from tests.waiting import wait_for

Serve = Callable[[bytes], Awaitable[tuple[int, bytes]]]


class Network:
    """Calls by url: served at once, never answered, or answered by what is no member."""

    def __init__(self) -> None:
        self.serving: dict[str, Serve] = {}
        self.silent: set[str] = set()
        self.under_way = self.most_under_way = 0

    async def request_json(
        self, _method: str, url: str, body: bytes, timeout_us: int
    ) -> tuple[int, bytes]:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            if url.partition("/s/")[0] in self.silent:
                await let_pass(timeout_us / SECOND, what="nobody answers")
                raise NoAnswerError(url)
            async with asyncio.timeout(timeout_us / SECOND):
                return await self.serving[url](body)
        except TimeoutError:
            raise NoAnswerError(url) from None
        finally:
            self.under_way -= 1

    async def call(self, url: str, body: bytes, timeout_us: int) -> bytes:
        status, answer = await self.request_json("POST", url, body, timeout_us)
        if status != 200:
            raise NoAnswerError(url)
        return answer

    async def close(self) -> None:
        """As a client."""


class Members:
    """Sequencers `s0` … that gossip."""

    def __init__(self, count: int) -> None:
        self.network = Network()
        self.nodes: dict[str, dict[str, Any]] = {
            f"s{i}": {"data_url": f"http://s{i}"} for i in range(count)
        }
        self.bookies: dict[str, str] = {}
        self.made = dict.fromkeys(self.nodes, 1)
        self.members = {name: self._make(name) for name in self.nodes}

    def _make(self, name: str) -> Gossiping:
        gossiping = Gossiping(
            name, cast(Any, self.network), lambda: self.nodes, lambda: self.made,
            lambda: cast(Any, self.bookies), now_us=read_clock_us,
        )  # fmt: skip

        async def serve(body: bytes) -> tuple[int, bytes]:
            answer = await gossiping.on_call(body)
            return answer[0], answer[2]

        self.network.serving[f"http://{name}/s/members"] = serve
        return gossiping

    async def start(self) -> None:
        for member in self.members.values():
            member.start()

    async def freeze(self, name: str) -> None:
        """It answers nothing, and asks nothing."""
        self.network.silent.add(f"http://{name}")
        await self.members[name].stop()

    def wake(self, name: str) -> None:
        self.network.silent.discard(f"http://{name}")
        self.members[name].start()

    async def stop(self) -> None:
        for member in self.members.values():
            await member.stop()


def play(count: int, scenario: Callable[[Members], Awaitable[None]]) -> None:
    async def work() -> None:
        members = Members(count)
        try:
            await scenario(members)
        finally:
            await members.stop()

    run_still(work())


async def let(seconds: float) -> None:
    await wait_clock(asyncio.get_running_loop().time() + seconds)


def test_a_member_that_answers_nobody_is_away_to_all_and_its_neighbours_say_so() -> None:
    async def scenario(world: Members) -> None:
        await world.start()
        await let(5)
        await world.freeze("s0")
        await let(2)
        for name, member in world.members.items():
            if name != "s0":
                assert member.list_away() == ["s0"], name
        told = world.members["s1"].describe()["members"]
        assert told[0] == {"id": "s0", "state": "away", "incarnation": 0}
        assert told[1] == {"id": "s1", "state": "alive", "incarnation": 0}
        assert world.members["s1"].statistics()["away"] == 1
        assert world.network.most_under_way <= CALL_COUNT_MAX * len(world.members)
        world.wake("s0")
        await let(2)
        assert not any(member.list_away() for member in world.members.values())

    play(5, scenario)


def test_a_member_that_asks_others_is_not_away_though_nobody_reaches_it() -> None:
    async def scenario(world: Members) -> None:
        await world.start()
        await let(5)
        world.network.silent.add("http://s0")
        await let(5)
        assert not any(member.list_away() for member in world.members.values())

    play(5, scenario)


def test_a_member_that_does_not_gossip_is_there() -> None:
    async def answer_404(_body: bytes) -> tuple[int, bytes]:
        return 404, b"no such call"

    async def answer_nonsense(_body: bytes) -> tuple[int, bytes]:
        return 200, b"nonsense"

    async def scenario(world: Members) -> None:
        world.network.serving["http://s0/s/members"] = answer_404
        world.network.serving["http://s1/s/members"] = answer_nonsense
        await world.start()
        await let(20)
        for name in ("s2", "s3", "s4", "s5"):
            assert world.members[name].statistics()["unanswered"] == 0

    play(6, scenario)


def test_a_node_without_a_place_is_called_by_nobody() -> None:
    async def scenario(world: Members) -> None:
        world.nodes["s0"] = {}
        world.nodes["s1"] = {"data_url": 7}
        await world.start()
        await let(5)
        assert not any(member.list_away() == ["s2"] for member in world.members.values())

    play(5, scenario)


def test_a_place_that_is_none_harms_nobody() -> None:
    """With the real client: it raises no error of a peer for such a place."""

    async def scenario() -> None:
        store = MemoryStore(MemoryTree())
        await store.start()
        nodes = {"s0": {"data_url": "http://[bad"}, "s1": {"data_url": "http://127.0.0.1:99999"}}
        for name, fields in nodes.items():
            await store.create(f"/x/{name}", encode_node(fields), make_parents=True)
        witness = Witnessing("b0", store, "/x")
        client = PeerClient()
        gossiping = Gossiping("s2", client, lambda: nodes, lambda: dict.fromkeys(nodes, 1))
        observing = Observing("proxy", client, lambda: nodes, lambda: None)
        for part in (witness, gossiping, observing):
            part.start()
        await wait_for(lambda: witness.statistics()["pinged"] == ["s0", "s1"])
        await wait_for(lambda: gossiping.statistics()["unanswered"] >= 2)
        for target in nodes:
            question = pack_question(MemberQuestion("s2", 0, target=target))
            for answer in (
                await witness.on_call(question, "peer"),
                (await gossiping.on_call(question))[2],
            ):
                assert parse_reply(answer).finding is RelayFinding.UNSURE
        assert observing._task is not None and not observing._task.done()
        for part in (witness, gossiping, observing):
            await part.stop()
        await client.close()
        await store.close()

    asyncio.run(scenario())


def test_what_is_no_question_is_refused_and_strangers_are_not_pinged() -> None:
    async def scenario(world: Members) -> None:
        member = world.members["s1"]
        assert (await member.on_call(b"nonsense"))[0] == 400
        await world.start()
        await let(2)
        for target, finding in (
            ("nobody", RelayFinding.UNSURE),
            ("s0", RelayFinding.ANSWERED),
        ):
            answer = await member.on_call(pack_question(MemberQuestion("s2", 0, target=target)))
            assert parse_reply(answer[2]).finding is finding
        world.network.silent.add("http://s0")
        begun_s = asyncio.get_running_loop().time()
        answer = await member.on_call(pack_question(MemberQuestion("s2", 0, target="s0")))
        assert parse_reply(answer[2]).finding is RelayFinding.SILENT
        assert asyncio.get_running_loop().time() - begun_s < 0.25

    play(5, scenario)


def test_a_relay_pings_64_times_at_once_and_is_unsure_of_the_rest() -> None:
    async def scenario(world: Members) -> None:
        await world.start()
        await let(2)
        world.network.silent.add("http://s0")
        body = pack_question(MemberQuestion("s2", 0, target="s0"))
        calls = [world.members["s1"].on_call(body) for _ in range(CALL_COUNT_MAX + 6)]
        answers = await asyncio.gather(*calls)
        found = [parse_reply(answer[2]).finding for answer in answers]
        assert found.count(RelayFinding.UNSURE) == 6

    play(5, scenario)


def test_an_accused_member_says_in_its_answer_that_it_is_there() -> None:
    async def scenario(world: Members) -> None:
        question = MemberQuestion("s1", 0, (Word("s0", 2, MemberState.CONFIRMED),))
        answer = await world.members["s0"].on_call(pack_question(question))
        assert parse_reply(answer[2]).incarnation == 3

    play(2, scenario)


def test_an_observer_is_told_once_of_each_that_is_away() -> None:
    async def scenario(world: Members) -> None:
        noticed: list[frozenset[str]] = []
        observing = Observing(
            "proxy", cast(Any, world.network), lambda: world.nodes,
            lambda: noticed.append(observing.list_away()), read_clock_us,
        )  # fmt: skip
        await world.start()
        observing.start()
        await let(5)
        await world.freeze("s0")
        await let(5)
        assert noticed == [frozenset({"s0"})]
        assert observing.statistics()["away"] == ["s0"]
        assert observing.statistics()["answers"] > 20
        world.wake("s0")
        await let(3)
        assert not observing.list_away()
        await observing.stop()

    play(5, scenario)


def test_bookies_are_asked_where_there_are_two_sequencers() -> None:
    async def scenario(world: Members) -> None:
        store = MemoryStore(MemoryTree())
        await store.start()
        for name, fields in world.nodes.items():
            await store.create(f"/x/{name}", encode_node(fields), make_parents=True)
        witnesses = []
        for number in range(3):
            witness = Witnessing(f"b{number}", store, "/x", now_us=read_clock_us)
            witness._client = cast(Any, world.network)
            witnesses.append(witness)
            serve_witness(world, f"http://b{number}/b/members", witness)
            world.bookies[f"b{number}"] = f"http://b{number}"
            witness.start()
        await world.start()
        await let(3 * WITNESS_PERIOD_US / SECOND)
        await world.freeze("s0")
        await let(2)
        assert world.members["s1"].list_away() == ["s0"]
        assert sum(witness.statistics()["asked"] for witness in witnesses) >= 3
        assert witnesses[0].statistics()["pinged"] == ["s0", "s1"]
        await refuse_nonsense(witnesses[0])
        for witness in witnesses:
            await witness.stop()
        await store.close()

    play(2, scenario)


def serve_witness(world: Members, url: str, witness: Witnessing) -> None:
    async def serve(body: bytes) -> tuple[int, bytes]:
        return 200, await witness.on_call(body, "peer")

    world.network.serving[url] = serve


async def refuse_nonsense(witness: Witnessing) -> None:
    try:
        await witness.on_call(b"nonsense", "peer")
    except FrameError:
        question = MemberQuestion("s1", 0, target="nobody")
        answer = parse_reply(await witness.on_call(pack_question(question), "peer"))
        assert answer.finding is RelayFinding.UNSURE
    else:
        raise AssertionError("nonsense was answered")
