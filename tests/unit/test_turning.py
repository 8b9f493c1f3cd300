"""What a process that turns security on counts, registers, calls, and beside whom it is started.

Nothing is called here: the ways of calls are in `test_turning_ports`, a whole cluster in
`tests.process.test_turning`. Source: docs/protocol/turning-on.md.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from pathlib import Path
from typing import Any, Final

import pytest

from duramen.core.reading.replica_order import Place
from duramen.runtime.identity.callers import Callers, OwnHeaders
from duramen.runtime.identity.names import Role, make_identity
from duramen.runtime.public.peers import PeerOrder
from duramen.runtime.role import ServiceOptions, StartRefusedError
from duramen.runtime.security.door import Door
from duramen.runtime.security.peers import PeerNames, PeerPlace
from duramen.runtime.security.permitted_roles import BOOKIE_PATHS, SEQUENCER_PATHS
from duramen.runtime.service import parse_options
from duramen.runtime.stores.memory_store import MemoryStore, MemoryTree
from duramen.runtime.turning.addresses import list_urls
from duramen.runtime.turning.fitting import FitCheck
from duramen.runtime.turning.tally import ROW_COUNT_MAX, RefusalTally, WouldBeRefused
from duramen.wire.metadata_json import encode_node
from tests.unit.callers import BUNDLE, RECEIVER, hold
from tests.unit.identities import DOMAIN, NOW
from tests.waiting import wait_for

FROM: Final = "10.0.0.9"
PATHS: Final = {**BOOKIE_PATHS, **SEQUENCER_PATHS}


def name_to_receiver(role: Role) -> str:
    return OwnHeaders(hold(make_identity(DOMAIN, role, "node-0"))).give(RECEIVER, NOW)


def find(tally: RefusalTally) -> list[tuple[str, str, str, str, int]]:
    rows = tally.describe("migrate").rows or []
    return [(row.port, row.who, row.verb, row.why, row.count) for row in rows]


def test_a_data_port_lets_everybody_in_and_counts_whom_it_would_refuse() -> None:
    tally = RefusalTally()
    door = Door(Callers(RECEIVER, BUNDLE), PATHS, tally)
    may, may_not = name_to_receiver(Role.SEQUENCER), name_to_receiver(Role.WRITEPROXY)
    caller = door.admit("/b/add", [may], NOW, FROM)
    assert caller is not None and caller.role is Role.SEQUENCER
    assert find(tally) == []
    for path, headers in (("/b/add", []), ("/b/add", [may_not]), ("/b/x", []), ("/b/y", ["?"])):
        assert door.admit(path, headers, NOW, FROM) is None
    with_secret = door.admit("/b/secret", [may_not], NOW, FROM)
    rows = tally.describe("migrate").rows or []
    assert with_secret is None and "secret" not in rows[0].detail + rows[0].target
    writer = f"spiffe://{DOMAIN}/writeproxy/node-0"
    assert find(tally) == [
        ("data", writer, "other", "role", 1),
        ("data", FROM, "other", "unknown", 2),
        ("data", writer, "/b/add", "role", 1),
        ("data", FROM, "/b/add", "unknown", 1),
    ], "the last one first; paths that nobody knows make no rows of their own"


def test_the_table_has_its_bound_and_says_what_it_forgot() -> None:
    tally = RefusalTally()
    for number in range(ROW_COUNT_MAX + 3):
        tally.note(WouldBeRefused("public", f"10.0.0.{number}", "append", "unauthenticated"))
    first = WouldBeRefused("public", "10.0.0.3", "append", "unauthenticated", "x" * 10_000)
    tally.note(first)
    told = tally.describe("migrate")
    assert told.rows is not None and len(told.rows) == ROW_COUNT_MAX
    assert (told.forgotten, tally.statistics()["found"]) == (3, ROW_COUNT_MAX + 4)
    assert (told.rows[0].who, told.rows[0].count) == ("10.0.0.3", 2), "it was there still"
    assert len(told.rows[0].detail) == 400
    assert told.rows[0].last <= dt.datetime.now(dt.UTC)


def test_who_has_an_identity_takes_tls_where_there_is_some() -> None:
    turning = {"data_url": "http://a:1", "tls_data_url": "https://a:2", "admin_url": "http://a:3"}
    assert list_urls(turning, "data", may_be_plain=True) == ["https://a:2", "http://a:1"]
    assert list_urls(turning, "data", may_be_plain=False) == ["https://a:2"]
    assert list_urls(turning, "admin", may_be_plain=False) == ["http://a:3"]
    assert list_urls({}, "data", may_be_plain=True) == []
    strange = turning | {"tls_data_url": "http://elsewhere:1"}
    assert list_urls(strange, "data", may_be_plain=False) == ["http://a:1"], "that is no TLS"


def test_proxies_are_ranked_by_the_address_that_is_asked_and_none_without_one_is_asked() -> None:
    nodes: dict[str, dict[str, Any]] = {
        "turns": {"data_url": "http://10.0.0.7:1", "tls_data_url": "https://10.0.0.7:2"},
        "text-less": {"data_url": None, "tls_data_url": "https://10.0.0.8:2"},
        "plain": {"data_url": "http://10.0.0.9:1", "region": "", "rack": "ra"},
    }
    order = PeerOrder(Place("", "ra"))
    plain, tls = "http://10.0.0.9:1", "https://10.0.0.7:2"
    asked = order.rank_ways("shop/orders", nodes, 1.0, may_be_plain=False)
    assert asked == [plain, tls]
    order.note_failure(plain, 1.0)
    asked = order.rank_ways("shop/orders", nodes, 1.0, may_be_plain=True)
    assert asked == [tls, "http://10.0.0.7:1", plain]


def test_a_node_is_known_by_both_its_addresses_also_when_it_has_left() -> None:
    peers = PeerNames(DOMAIN)
    learn, bookie = peers.learn_role(Role.BOOKIE), make_identity(DOMAIN, "bookie", "b-0")
    learn({"b-0": {"data_url": "http://a:1", "tls_data_url": "https://a:2"}})
    for _ in range(2):
        assert peers.find_place(Role.BOOKIE, "http://a:1") == PeerPlace(bookie, "https://a:2")
        assert peers.find_place(Role.BOOKIE, "https://a:2") == PeerPlace(bookie)
        assert peers.find(Role.SEQUENCER, "https://a:2") is None
        learn({})


ARGUMENTS: Final = [
    "--cluster", "c", "--id", "n-0", "--data-port", "1", "--admin-port", "2", "--zookeeper", "z:3",
]  # fmt: skip
TURNING: Final = ["--security", "migrate", "--tls-dir", "d", "--tls-admin-port", "12"]


def test_both_addresses_are_registered_and_the_plain_ones_stay_what_they_were() -> None:
    options = parse_options("sequencer", [*ARGUMENTS, *TURNING, "--tls-data-port", "11"])
    assert (options.data_url(), options.admin_url()) == ("http://127.0.0.1:1", "http://127.0.0.1:2")
    tls = {"tls_data_url": "https://127.0.0.1:11", "tls_admin_url": "https://127.0.0.1:12"}
    assert options.tls_urls() == tls
    named = parse_options("writeproxy", [*ARGUMENTS, *TURNING, "--advertise", "edge:443"])
    assert named.tls_urls() == {"tls_admin_url": "https://edge:12"}, "its public port stays plain"
    on = parse_options("sequencer", [*ARGUMENTS, "--security", "on", "--tls-dir", "d"])
    assert (on.data_url(), on.tls_urls()) == ("https://127.0.0.1:1", {})


@pytest.mark.parametrize(
    ("role", "given", "missing"),
    [
        ("sequencer", TURNING, "--tls-data-port"),
        ("writeproxy", [*TURNING, "--tls-data-port", "11"], "--public-tls-dir"),
        ("writeproxy", [*TURNING, "--public-tls-dir", "d"], "--tls-data-port"),
        ("sequencer", [*TURNING[:4], "--tls-data-port", "11"], "--tls-admin-port"),
        ("sequencer", ["--security", "migrate", "--tls-admin-port", "12"], "--tls-dir"),
        ("sequencer", ["--security", "none", "--tls-admin-port", "12"], "--tls-admin-port"),
        ("sequencer", [*TURNING[:2], *TURNING[2:4]], "--tls-admin-port"),
    ],
)
def test_a_port_that_is_missing_or_too_many_is_refused(
    role: str, given: list[str], missing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_options(role, [*ARGUMENTS, *given])
    assert missing in capsys.readouterr().err


# --- Who may be started --------------------------------------------------------------------------

NODES: Final[dict[str, dict[str, Any]]] = {
    "none": {"admin_url": "http://a:1"},
    "migrate": {"admin_url": "http://a:1", "tls_admin_url": "https://a:2"},
    "on": {"data_url": "http://a:3", "admin_url": "https://a:1"},
}


class Started:
    """A process that would be started, beside those that are registered."""

    def __init__(self, security: str, name: str = "n-9", session_s: float = 0.0) -> None:
        tree = MemoryTree()
        self.store, self.other = MemoryStore(tree), MemoryStore(tree)
        folder = None if security == "none" else Path("d")
        self.options = ServiceOptions(
            "sequencer", "c", name, "127.0.0.1", 0, 0, "", "r", "r", security, session_s - 2.0,
            None, tls_dir=folder,
        )  # fmt: skip
        self.check = FitCheck(self.store, self.options)

    async def start(self) -> None:
        await self.store.start()
        await self.other.start()

    async def register(self, security: str, name: str, parent: str = "sequencers") -> str:
        path = f"/duramen/c/{parent}/{name}"
        data = encode_node(NODES[security])
        await self.other.create(path, data, ephemeral=True, make_parents=True)
        return path


@pytest.mark.parametrize("parent", ["available", "sequencers", "writeproxies", "readproxies"])
@pytest.mark.parametrize("security", ["none", "migrate", "on"])
def test_a_process_is_started_where_each_reaches_each(security: str, parent: str) -> None:
    async def scenario() -> None:
        for other in NODES:
            started = Started(security)
            await started.start()
            await started.check.wait_fitting()
            await started.register(other, "n-1", parent)
            await started.register("migrate", "n-2", parent)
            if {security, other} != {"none", "on"}:
                await started.check.wait_fitting()
                await started.check.check_registered()
                continue
            for look in (started.check.wait_fitting, started.check.check_registered):
                with pytest.raises(StartRefusedError, match=r": n-1 is registered with no .*port"):
                    await look()

    asyncio.run(scenario())


def test_what_is_no_node_of_ours_keeps_nobody_from_its_start_nor_does_ones_former_life() -> None:
    async def scenario() -> None:
        started = Started("on")
        await started.start()
        await started.other.create("/duramen/c/sequencers/odd", b"{", make_parents=True)
        await started.register("none", "n-9")
        await started.check.wait_fitting()
        await started.register("none", "n-9", "available")
        with pytest.raises(StartRefusedError, match="n-9"):
            await started.check.wait_fitting()

    asyncio.run(scenario())


def test_who_was_killed_is_waited_for_until_its_session_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")

    async def scenario() -> None:
        started = Started("none", session_s=30.0)
        await started.start()
        path = await started.register("on", "n-1")
        waiting = asyncio.create_task(started.check.wait_fitting())
        await wait_for(lambda: waiting.done() or "waiting for n-1 to go" in caplog.text)
        assert not waiting.done()
        await started.other.delete(path, version=0)
        async with asyncio.timeout(10):
            await waiting

    asyncio.run(scenario())
