"""The files and plans of a local cluster: shape, atomicity, ports, pauses, who is a leftover.

All without a process. What the supervisor does with them is in tests/component/test_supervisor.py.
The shape is docs/protocol/admin.md "cluster.json".
"""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from duramen.cluster import cluster_file, layout
from duramen.cluster.cluster_file import ClusterFileError, ClusterState
from duramen.cluster.layout import (
    ClusterSize,
    LayoutError,
    ListenPorts,
    ProcessPlan,
    Security,
    plan_cluster,
)
from duramen.cluster.leftovers import FileKey, ProcessFacts, name_leftover
from duramen.cluster.process import RestartPauses, read_tail, service_command
from duramen.runtime.embedded_zookeeper import MAIN_CLASS
from duramen.runtime.service import parse_options

FOLDER = Path("/data")
GOLDEN = """\
{
  "v": 1,
  "cluster": "local",
  "zookeeper": "127.0.0.1:7181",
  "write_url": "http://127.0.0.1:7301",
  "read_url": "http://127.0.0.1:7401",
  "admin_url": "http://127.0.0.1:7302",
  "cold_store": "file://FOLDER/cold",
  "security": "none",
  "processes": [
    {
      "role": "zookeeper",
      "id": "zookeeper-0",
      "pid": 100,
      "region": "local",
      "rack": "r1",
      "data_url": "tcp://127.0.0.1:7181",
      "admin_url": null,
      "data_dir": "FOLDER/zookeeper-0",
      "log_file": "FOLDER/logs/zookeeper-0.log"
    },
    {
      "role": "bookie",
      "id": "bookie-0",
      "pid": 101,
      "incarnation": "0123456789abcdef0123456789abcdef",
      "region": "local",
      "rack": "r1",
      "data_url": "http://127.0.0.1:7101",
      "admin_url": "http://127.0.0.1:7102",
      "stream_port": 7200,
      "data_dir": "FOLDER/bookie-0",
      "log_file": "FOLDER/logs/bookie-0.log"
    },
    {
      "role": "sequencer",
      "id": "sequencer-0",
      "pid": null,
      "region": "local",
      "rack": "r1",
      "data_url": "http://127.0.0.1:7201",
      "admin_url": "http://127.0.0.1:7202",
      "stream_port": 7300,
      "log_file": "FOLDER/logs/sequencer-0.log"
    },
    {
      "role": "writeproxy",
      "id": "writeproxy-0",
      "pid": 102,
      "region": "local",
      "rack": "r1",
      "data_url": "http://127.0.0.1:7301",
      "admin_url": "http://127.0.0.1:7302",
      "log_file": "FOLDER/logs/writeproxy-0.log"
    },
    {
      "role": "readproxy",
      "id": "readproxy-0",
      "pid": 103,
      "region": "local",
      "rack": "r1",
      "data_url": "http://127.0.0.1:7401",
      "admin_url": "http://127.0.0.1:7402",
      "log_file": "FOLDER/logs/readproxy-0.log"
    }
  ]
}
"""


def plan(folder: Path = FOLDER, *, bookies: int = 1, base_port: int = 7100) -> list[ProcessPlan]:
    return plan_cluster(
        folder,
        ClusterSize(bookies=bookies),
        base_port=base_port,
        has_zookeeper=True,
        remembered={},
        is_free=lambda _: True,
    )


def plan_turning(*, remembered: dict[str, ListenPorts]) -> list[ProcessPlan]:
    """With a base that somebody asked for: ports with TLS are beside its numbers."""
    picked = iter(range(9000, 9100))
    return plan_cluster(
        FOLDER,
        ClusterSize(bookies=2),
        base_port=7100,
        has_zookeeper=True,
        remembered=remembered,
        security="migrate",
        is_free=lambda _: True,
        pick=lambda: next(picked),
    )


def state_in(folder: Path) -> ClusterState:
    pids = {"zookeeper": 100, "bookie": 101, "writeproxy": 102, "readproxy": 103}
    members = [cluster_file.member_of(p, pids.get(p.role)) for p in plan(folder)]
    return ClusterState("local", "127.0.0.1:7181", tuple(members), f"file://{folder}/cold")


# --- cluster.json --------------------------------------------------------------------------------


def test_the_file_has_its_golden_shape(tmp_path: Path) -> None:
    (tmp_path / "bookie-0").mkdir()
    cookie = {"incarnation": "0123456789abcdef0123456789abcdef", "v": 1}
    (tmp_path / "bookie-0" / "cookie.json").write_text(json.dumps(cookie))
    cluster_file.write_state(tmp_path, state_in(tmp_path))
    text = (tmp_path / "cluster.json").read_text()
    assert text == GOLDEN.replace("FOLDER", str(tmp_path))


def test_a_bookie_without_a_cookie_has_no_incarnation_yet(tmp_path: Path) -> None:
    document = state_in(tmp_path).to_json()
    assert "incarnation" not in document["processes"][1]


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    state = state_in(tmp_path)
    cluster_file.write_state(tmp_path, state)
    assert cluster_file.read_state(tmp_path) == state
    assert state.ports()["bookie-0"] == ListenPorts(7101, 7102, stream=7200)
    assert state.ports()["zookeeper-0"] == ListenPorts(7181, None)


def test_while_security_is_turned_on_both_kinds_of_ports_are_told(tmp_path: Path) -> None:
    plans = plan_turning(remembered={})
    members = tuple(cluster_file.member_of(one, None) for one in plans)
    state = ClusterState("local", "127.0.0.1:9000", members, security="migrate")
    cluster_file.write_state(tmp_path, state)
    assert cluster_file.read_state(tmp_path) == state
    document = cluster_file.read_document(tmp_path)
    # Whoever has the folder has an identity: by the plain port it would be nobody.
    assert document["admin_url"] == "https://127.0.0.1:9007"
    assert document["write_url"] == "http://127.0.0.1:7301", "public ports are plain on loopback"
    listed = {
        one["id"]: [one.get(name) for name in ("data_url", "tls_data_url", "tls_admin_url")]
        for one in document["processes"]
    }
    at = "127.0.0.1"
    assert listed["zookeeper-0"] == [f"tcp://{at}:7181", f"tcp://{at}:9000", None]
    assert listed["bookie-0"] == [f"http://{at}:7101", f"https://{at}:9001", f"https://{at}:9002"]
    assert listed["writeproxy-0"] == [f"http://{at}:7301", None, f"https://{at}:9007"]
    again = plan_turning(remembered=state.ports())
    assert [one.ports for one in again] == [one.ports for one in plans], "kept from run to run"


def test_a_port_with_tls_takes_nobodys_number() -> None:
    stray = {"zookeeper-0": ListenPorts(7181, None, 7102), "bookie-0": ListenPorts(1, 2, 7101, 8)}
    ports = {one.node_id: one.ports for one in plan_turning(remembered=stray)}
    assert ports["bookie-0"] == (7101, 7102, 9001, 8, 7200)
    assert ports["zookeeper-0"] == (7181, None, 9000, None, None)


def test_a_service_understands_what_it_is_told_while_security_is_turned_on() -> None:
    for one in plan_turning(remembered={})[1:]:
        command = service_command(one, "127.0.0.1:9000", Path("/tls"))
        options = parse_options(one.role, command[3:])
        assert options.security == "migrate"
        assert options.admin_url() == one.admin_url
        said = {"tls_data_url": one.tls_data_url, "tls_admin_url": one.tls_admin_url}
        assert options.tls_urls() == {name: url for name, url in said.items() if url is not None}
        assert options.data_dir is not None, "who asks who calls keeps audit records"
        assert options.stream_port == one.ports.stream
        assert not options.serves_streams


@pytest.mark.parametrize("stream_port", [None, 0, -1, 70_000, "7200", 7200.0, {}])
def test_a_folder_that_remembers_no_port_for_streams_starts(
    tmp_path: Path, stream_port: object
) -> None:
    cluster_file.write_state(tmp_path, state_in(tmp_path))
    document = json.loads((tmp_path / "cluster.json").read_text())
    for one in document["processes"]:
        if one.pop("stream_port", None) is not None and stream_port is not None:
            one["stream_port"] = stream_port
    (tmp_path / "cluster.json").write_text(json.dumps(document))
    state = cluster_file.read_state(tmp_path)
    assert state is not None
    assert state.ports()["bookie-0"] == ListenPorts(7101, 7102)
    plans = plan_again(state.ports(), is_free=lambda _: True)
    assert plans["bookie-0"] == ListenPorts(7101, 7102, stream=7200)


def test_a_file_of_an_older_version_names_no_cold_store(tmp_path: Path) -> None:
    cluster_file.write_state(tmp_path, state_in(tmp_path))
    document = json.loads((tmp_path / "cluster.json").read_text())
    del document["cold_store"]
    (tmp_path / "cluster.json").write_text(json.dumps(document))
    state = cluster_file.read_state(tmp_path)
    assert state is not None and state.cold_store is None


def test_a_folder_stays_as_it_ran(tmp_path: Path) -> None:
    assert cluster_file.recall_security(tmp_path) is None, "nothing ran"
    for security in get_args(Security):
        cluster_file.write_state(tmp_path, replace(state_in(tmp_path), security=security))
        assert cluster_file.recall_security(tmp_path) == security


def test_a_folder_of_an_older_version_shows_by_its_addresses_how_it_ran(tmp_path: Path) -> None:
    cluster_file.write_state(tmp_path, state_in(tmp_path))
    text = (tmp_path / "cluster.json").read_text().replace('  "security": "none",\n', "")
    for older, security in ((text, "none"), (text.replace("http:", "https:"), "on")):
        (tmp_path / "cluster.json").write_text(older)
        assert cluster_file.recall_security(tmp_path) == security


def test_a_folder_that_has_lost_its_file_shows_by_its_folders_how_it_ran(tmp_path: Path) -> None:
    (tmp_path / "bookie-0").mkdir()
    assert cluster_file.recall_security(tmp_path) == "none"
    (tmp_path / "ca").mkdir()
    assert cluster_file.recall_security(tmp_path) == "on"


def test_a_security_that_is_none_is_refused(tmp_path: Path) -> None:
    cluster_file.write_state(tmp_path, state_in(tmp_path))
    text = (tmp_path / "cluster.json").read_text()
    (tmp_path / "cluster.json").write_text(text.replace('"none"', '"maybe"'))
    with pytest.raises(ClusterFileError, match="security 'maybe'"):
        cluster_file.recall_security(tmp_path)


def test_the_old_file_stays_whole_when_writing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster_file.write_state(tmp_path, state_in(tmp_path))
    before = (tmp_path / "cluster.json").read_bytes()

    def refuse(_: int) -> None:
        raise OSError("no space")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="no space"):
        cluster_file.write_state(tmp_path, ClusterState("other", "z", ()))
    assert (tmp_path / "cluster.json").read_bytes() == before


def test_no_cluster_says_how_to_start_one(tmp_path: Path) -> None:
    assert cluster_file.read_state(tmp_path) is None
    with pytest.raises(ClusterFileError, match="duramen run"):
        cluster_file.read_document(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"v": 2}', '{"v": 1}', '{"v": 1, "processes": [{"pid": 1}]}']
)
def test_a_damaged_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(ClusterFileError):
        cluster_file.read_state(tmp_path)


# --- Layout --------------------------------------------------------------------------------------


def test_documented_ports_and_a_rack_for_each_bookie() -> None:
    plans = {p.node_id: p for p in plan(bookies=3)}
    ports = {node_id: p.ports[:2] for node_id, p in plans.items()}
    assert ports == {
        "zookeeper-0": (7181, None),
        "bookie-0": (7101, 7102),
        "bookie-1": (7103, 7104),
        "bookie-2": (7105, 7106),
        "sequencer-0": (7201, 7202),
        "writeproxy-0": (7301, 7302),
        "readproxy-0": (7401, 7402),
    }
    assert [plans[f"bookie-{i}"].rack for i in range(3)] == ["r1", "r2", "r3"]


def test_regions_take_turns_and_racks_do_inside_each() -> None:
    size = ClusterSize(9, 2, 3, 1, regions=("x", "y", "z"), racks=("a", "b", "c"))
    plans = plan_cluster(
        Path("/d"), size, base_port=7100, has_zookeeper=False, remembered={}, is_free=lambda _: True
    )
    places = [(plan.region, plan.rack) for plan in plans if plan.role == "bookie"]
    assert places[:4] == [("x", "a"), ("y", "a"), ("z", "a"), ("x", "b")]
    assert len(set(places)) == 9
    assert [plan.region for plan in plans if plan.role == "writeproxy"] == ["x", "y", "z"]
    assert ClusterSize(regions=("x", "y")).place(3) == ("y", "r4"), "else a rack of its own"


@pytest.mark.parametrize("names", [("",), ("a", "a"), ("a b",), ("ä",)])
def test_names_of_places_are_short_plain_and_different(names: tuple[str, ...]) -> None:
    with pytest.raises(LayoutError):
        ClusterSize(regions=names)
    with pytest.raises(LayoutError):
        ClusterSize(racks=names)


def test_a_taken_port_is_replaced_and_a_remembered_one_is_kept() -> None:
    picked = iter(range(9000, 9100))
    plans = plan_cluster(
        FOLDER,
        ClusterSize(),
        base_port=None,
        has_zookeeper=False,
        remembered={"bookie-0": ListenPorts(8000, 8001), "bookie-1": ListenPorts(8002, 8000)},
        is_free=lambda port: port not in (7105, 8002),
        pick=lambda: next(picked),
    )
    ports = {p.node_id: p.ports[:2] for p in plans}
    assert ports["bookie-0"] == (8000, 8001)  # as last time
    assert ports["bookie-1"] == (7103, 7104)  # last time's are taken, by others and by bookie-0
    assert ports["bookie-2"] == (9000, 7106)
    assert "zookeeper-0" not in ports


@pytest.mark.parametrize("taken", [7181, 7105, 7202, 7301, 7402])
def test_a_base_that_was_asked_for_is_had_whole_or_refused(taken: int) -> None:
    """Whoever names a port writes it down elsewhere, and would wait at another program's."""

    def lay_out(*, is_free: Callable[[int], bool]) -> list[ProcessPlan]:
        return plan_cluster(
            FOLDER,
            ClusterSize(),
            base_port=7100,
            has_zookeeper=True,
            remembered={
                "bookie-0": ListenPorts(8000, 8001),
                "writeproxy-0": ListenPorts(8003, 8004),
            },
            is_free=is_free,
            pick=lambda: pytest.fail("a port was picked"),
        )

    ports = {p.node_id: p.ports[:2] for p in lay_out(is_free=lambda _: True)}
    assert ports["writeproxy-0"] == (7301, 7302) and ports["bookie-0"] == (7101, 7102)
    with pytest.raises(LayoutError, match=rf"port {taken}, .* is taken: .* --base-port \(0: any"):
        lay_out(is_free=lambda port: port != taken)


def plan_again(
    remembered: dict[str, ListenPorts],
    *,
    is_free: Callable[[int], bool],
    base_port: int | None = None,
    bookies: int = 3,
) -> dict[str, ListenPorts]:
    picked = iter(range(9000, 9100))
    plans = plan_cluster(
        FOLDER,
        ClusterSize(bookies=bookies, sequencers=2),
        base_port=base_port,
        has_zookeeper=True,
        remembered=remembered,
        is_free=is_free,
        pick=lambda: next(picked),
    )
    return {one.node_id: one.ports for one in plans}


def test_streams_have_what_is_left_of_a_hundred_and_are_kept_from_run_to_run() -> None:
    first = plan_again({}, is_free=lambda _: True)
    streams = {name: ports.stream for name, ports in first.items() if ports.stream is not None}
    assert streams == {
        "bookie-0": 7200, "bookie-1": 7199, "bookie-2": 7198,
        "sequencer-0": 7300, "sequencer-1": 7299,
    }  # fmt: skip
    taken = plan_again(first, is_free=lambda port: port != 7199)
    assert taken == first | {"bookie-1": ListenPorts(7103, 7104, stream=9000)}
    assert plan_again(taken, is_free=lambda _: True) == taken


def test_a_port_of_streams_that_is_taken_is_replaced_with_a_base_too() -> None:
    """Nobody writes it down elsewhere, so nothing that started before it is refused for it."""
    last = {"bookie-0": ListenPorts(8000, 8001, stream=8002)}
    asked = plan_again(last, is_free=lambda _: True, base_port=7100)
    assert asked["bookie-0"] == ListenPorts(7101, 7102, stream=7200)
    asked = plan_again(last, is_free=lambda port: port != 7200, base_port=7100)
    assert asked["bookie-0"] == ListenPorts(7101, 7102, stream=9000)


def test_streams_move_no_port_of_a_cluster_that_fills_its_hundreds() -> None:
    few = plan_again({}, is_free=lambda _: True)
    many = plan_again(few, is_free=lambda _: True, bookies=39)
    for index in range(39):
        assert many[f"bookie-{index}"][:2] == (7101 + 2 * index, 7102 + 2 * index)
    assert many["bookie-19"].stream == 9000, "7181 is ZooKeeper's"
    ports = [port for one in many.values() for port in one if port is not None]
    assert len(set(ports)) == len(ports)


def test_a_service_is_told_its_port_of_streams() -> None:
    for one in plan(bookies=2)[1:]:
        options = parse_options(one.role, service_command(one, "127.0.0.1:2181")[3:])
        is_told = one.role in ("bookie", "sequencer")
        assert is_told == (one.ports.stream is not None) == options.serves_streams
        assert options.stream_port == one.ports.stream


def test_base_zero_takes_free_ports_only_and_none_twice() -> None:
    picked = iter([9000, 9000, 9001, *range(9001, 9100)])
    plans = plan_cluster(
        FOLDER,
        ClusterSize(),
        base_port=0,
        has_zookeeper=True,
        remembered={},
        is_free=lambda _: False,
        pick=lambda: next(picked),
    )
    ports = [port for p in plans for port in p.ports if port is not None]
    assert len(set(ports)) == len(ports) == 17
    assert min(ports) == 9000


def test_a_picked_port_is_free() -> None:
    assert layout.is_free_port(layout.pick_free_port())


def test_free_ports_are_picked_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(layout.FREE_PORTS_VARIABLE, "20000-20999")
    assert layout.find_port_range() == range(20_000, 21_000)
    assert all(20_000 <= layout.pick_free_port() <= 20_999 for _ in range(20))
    monkeypatch.delenv(layout.FREE_PORTS_VARIABLE)
    assert layout.find_port_range().start == layout.FIRST_FREE_PORT


@pytest.mark.parametrize("said", ["20000", "20000-", "30-40", "3000-2000", "60000-70000", "a-b"])
def test_a_range_of_free_ports_that_is_none_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setenv(layout.FREE_PORTS_VARIABLE, said)
    with pytest.raises(LayoutError, match=r"DURAMEN_FREE_PORTS=.*FIRST-LAST"):
        layout.pick_free_port()


def test_impossible_clusters_are_refused() -> None:
    with pytest.raises(LayoutError, match="bookie"):
        ClusterSize(bookies=0)
    with pytest.raises(LayoutError, match="base port"):
        plan(base_port=65_500)


# --- Processes -----------------------------------------------------------------------------------


def test_pauses_double_up_to_five_seconds_and_begin_again_after_a_long_life() -> None:
    pauses = RestartPauses()
    assert [pauses.pause_after(1.0) for _ in range(7)] == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert pauses.pause_after(30.0) == 0.2
    assert pauses.pause_after(29.9) == 0.4


def test_the_tail_of_a_log_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    assert "no log" in read_tail(path)
    path.write_text("".join(f"line {i}\n" for i in range(100_000)))
    assert read_tail(path, line_count=2) == "line 99998\nline 99999"


def facts_of(planned: ProcessPlan, **places: Path) -> ProcessFacts:
    """Of a service whose places are these files."""
    command = tuple(service_command(planned, "127.0.0.1:2181"))
    keys = {name: FileKey(path.stat().st_dev, path.stat().st_ino) for name, path in places.items()}
    return ProcessFacts(command, keys.get("working"), keys.get("output"), keys.get("data"))


def test_a_service_is_a_leftover_by_its_data_or_by_its_log(tmp_path: Path) -> None:
    bookie, other = [p for p in plan(tmp_path, bookies=2) if p.role == "bookie"]
    sequencer = next(p for p in plan(tmp_path) if p.role == "sequencer")
    for name in ("bookie-0", "bookie-1", "logs", "elsewhere"):
        (tmp_path / name).mkdir()
    log, old_log = sequencer.log_file, sequencer.log_file.with_suffix(".log.1")
    for path in (log, old_log, bookie.log_file):
        path.touch()
    assert name_leftover(facts_of(bookie, data=tmp_path / "bookie-0"), tmp_path) == "bookie-0"
    assert name_leftover(facts_of(sequencer, output=log), tmp_path) == "sequencer-0"
    assert name_leftover(facts_of(sequencer, output=old_log), tmp_path) == "sequencer-0"
    assert name_leftover(facts_of(sequencer, output=bookie.log_file), tmp_path) is None
    assert name_leftover(facts_of(sequencer), tmp_path) is None
    assert name_leftover(facts_of(other, data=tmp_path / "bookie-0"), tmp_path) is None
    assert name_leftover(facts_of(bookie, data=tmp_path / "elsewhere"), tmp_path) is None
    reader = facts_of(bookie, output=bookie.log_file)._replace(arguments=("tail", "bookie-0"))
    assert name_leftover(reader, tmp_path) is None


def test_a_zookeeper_is_a_leftover_only_in_its_own_folder(tmp_path: Path) -> None:
    planned = plan(tmp_path)[0]
    for name in ("zookeeper-0", "elsewhere"):
        (tmp_path / name).mkdir()
    arguments = ("java", MAIN_CLASS, "./zoo.cfg")
    here = facts_of(planned, working=tmp_path / "zookeeper-0")
    there = facts_of(planned, working=tmp_path / "elsewhere")
    assert name_leftover(here._replace(arguments=arguments), tmp_path) == "zookeeper-0"
    assert name_leftover(there._replace(arguments=arguments), tmp_path) is None
    assert name_leftover(here._replace(arguments=("ls",)), tmp_path) is None
