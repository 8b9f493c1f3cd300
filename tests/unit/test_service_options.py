"""What a service is told on its command line: addresses, patience, where the archive lies.

Source: `duramen.runtime.service`, `duramen.runtime.role`.
"""

from __future__ import annotations

import pytest

from duramen.config import ClientLimits
from duramen.limits import GIVE_UP_AFTER_US, LOST_BOOKIE_GRACE_US, STEADY_AFTER_US
from duramen.runtime.service import parse_options
from duramen.units import KIB, MIB, MINUTE, SECOND
from duramen.wire.edge.gate import Gate

ARGUMENTS = [
    "--cluster", "c", "--id", "sequencer-0", "--host", "10.0.0.7", "--data-port", "7201",
    "--admin-port", "7202", "--zookeeper", "zk:2181", "--security", "none",
]  # fmt: skip


def test_a_service_is_reached_where_it_listens() -> None:
    options = parse_options("sequencer", ARGUMENTS)
    assert options.data_url() == "http://10.0.0.7:7201"
    assert options.data_url(9000) == "http://10.0.0.7:9000", "a port that the kernel chose"


def test_a_service_behind_a_proxy_gives_the_proxys_address() -> None:
    options = parse_options("sequencer", [*ARGUMENTS, "--advertise", "edge.example:443"])
    assert options.data_url() == options.data_url(9000) == "http://edge.example:443"


def test_streams_are_reached_by_the_advertised_host_and_by_a_port_of_their_own() -> None:
    streams = [*ARGUMENTS, "--stream-port", "7203"]
    options = parse_options("sequencer", streams)
    assert options.stream_url(7203, "ab") == "http://10.0.0.7:7203/standing/ab"
    behind = [*streams, "--advertise", "edge.example:443"]
    options = parse_options("sequencer", behind)
    assert options.stream_url(9000, "ab") == "http://edge.example:9000/standing/ab"
    options = parse_options("sequencer", [*behind, "--advertise-stream-port", "444"])
    assert options.stream_url(7203, "ab") == "http://edge.example:444/standing/ab"


@pytest.mark.parametrize("role", ["sequencer", "bookie", "writeproxy", "readproxy"])
def test_a_service_that_is_told_nothing_asks_who_calls(
    role: str, capsys: pytest.CaptureFixture[str]
) -> None:
    untold = [*ARGUMENTS[:-2], *(["--data-dir", "x"] if role == "bookie" else [])]
    assert parse_options(role, [*untold, "--tls-dir", "/tls"]).security == "on"
    with pytest.raises(SystemExit):
        parse_options(role, untold)
    said = " ".join(capsys.readouterr().err.split())
    assert "give --tls-dir with the folder" in said and "or --security none" in said
    with pytest.raises(SystemExit):
        parse_options(role, [*untold, "--security", "none", "--tls-dir", "/tls"])
    assert "--security on or migrate alone" in capsys.readouterr().err


@pytest.mark.parametrize("role", ["sequencer", "bookie", "writeproxy", "readproxy"])
def test_a_service_goes_by_its_own_names_and_those_that_it_was_told(role: str) -> None:
    more = ["--data-dir", "x"] if role == "bookie" else []
    named = ["--advertise", "Pod-1.pods:443", "--public-name", "Logs.example.", "--public-name=b"]
    options = parse_options(role, [*ARGUMENTS, *more, *named])
    assert options.make_gate() == Gate(frozenset({"pod-1.pods", "logs.example", "b"}))
    assert options.make_gate(["http://p"]).origins == {"http://p"}
    assert parse_options(role, [*ARGUMENTS, *more]).make_gate() == Gate(), "an address is no name"
    listening = parse_options(role, [*ARGUMENTS, *more, "--host", "box"])
    assert listening.make_gate() == Gate(frozenset({"box"}))
    for address in ("10.0.0.1:1", "[fd00::1]:1"):
        advertised = parse_options(role, [*ARGUMENTS, *more, "--advertise", address])
        assert advertised.make_gate() == Gate()


@pytest.mark.parametrize("name", ["http://a", "a:80", "10.0.0.1", "*.example", ""])
def test_a_name_that_is_none_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options("readproxy", [*ARGUMENTS, "--public-name", name])
    assert "--public-name" in (said := capsys.readouterr().err) and "no name of a host" in said


@pytest.mark.parametrize(
    ("role", "count"),
    [("sequencer", 8_192), ("bookie", 8_192), ("writeproxy", 16_384), ("readproxy", 16_384)],
)
def test_how_many_connections_there_may_be_can_be_said(role: str, count: int) -> None:
    given = [*ARGUMENTS, *(["--data-dir", "x"] if role == "bookie" else [])]
    options = parse_options(role, given)
    assert (options.connection_count, options.admin_connection_count_per_peer) == (count, 256)
    given += ["--connections", "70000", "--admin-connections-per-peer", "9"]
    options = parse_options(role, given)
    assert (options.connection_count, options.admin_connection_count_per_peer) == (70_000, 9)


@pytest.mark.parametrize("count", ["0", "-1", "1e3", "2000000", "all"])
def test_a_count_of_connections_that_is_none_is_refused(
    count: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_options("sequencer", [*ARGUMENTS, "--connections", count])
    said = capsys.readouterr().err
    assert "--connections" in said and "whole number from 1 to 1000000" in said


@pytest.mark.parametrize("address", ["edge", ":80", "edge:", "edge:0", "edge:65536", "edge:http"])
def test_an_address_that_is_none_is_refused(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_options("sequencer", [*ARGUMENTS, "--advertise", address])
    assert "HOST:PORT" in capsys.readouterr().err


def test_a_sequencer_is_told_how_patient_its_audits_are() -> None:
    assert parse_options("sequencer", ARGUMENTS).lost_bookie_grace_us == LOST_BOOKIE_GRACE_US
    assert parse_options("sequencer", ARGUMENTS).bookie_steady_after_us == STEADY_AFTER_US
    patience = ["--audit-interval", "5m", "--lost-bookie-grace", "1m30s"]
    options = parse_options("sequencer", [*ARGUMENTS, *patience, "--bookie-steady-after", "2m"])
    assert options.bookie_steady_after_us == 2 * MINUTE
    assert (options.audit_interval_us, options.lost_bookie_grace_us) == (5 * MINUTE, 90 * SECOND)
    with pytest.raises(SystemExit):
        parse_options("sequencer", [*ARGUMENTS, "--lost-bookie-grace", "soon"])


def test_a_sequencer_is_told_when_it_gives_a_log_up() -> None:
    assert parse_options("sequencer", ARGUMENTS).give_up_after_us == GIVE_UP_AFTER_US
    assert parse_options("sequencer", [*ARGUMENTS, "--give-up-after", "0s"]).give_up_after_us == 0
    options = parse_options("sequencer", [*ARGUMENTS, "--give-up-after", "90s"])
    assert options.give_up_after_us == 90 * SECOND
    with pytest.raises(SystemExit):
        parse_options("bookie", [*ARGUMENTS, "--give-up-after", "90s"])


def test_a_sequencer_is_told_not_to_balance() -> None:
    assert parse_options("sequencer", ARGUMENTS).is_balancing
    assert not parse_options("sequencer", [*ARGUMENTS, "--no-balance"]).is_balancing
    with pytest.raises(SystemExit):
        parse_options("writeproxy", [*ARGUMENTS, "--no-balance"])


def test_a_read_proxy_is_told_how_old_metadata_may_be() -> None:
    assert parse_options("readproxy", ARGUMENTS).metadata_age_max_us == 5 * MINUTE
    options = parse_options("readproxy", [*ARGUMENTS, "--metadata-age-max", "90s"])
    assert options.metadata_age_max_us == 90 * SECOND
    with pytest.raises(SystemExit):
        parse_options("sequencer", [*ARGUMENTS, "--metadata-age-max", "90s"])


def test_a_read_proxy_is_told_where_the_archive_lies(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_options("readproxy", ARGUMENTS).cold_store is None
    told = parse_options("readproxy", [*ARGUMENTS, "--cold-store", "file:///data/cold"])
    assert told.cold_store == "file:///data/cold"
    with pytest.raises(SystemExit):
        parse_options("sequencer", [*ARGUMENTS, "--cold-store", "/data/cold"])
    assert "schemes are file, s3, hdfs and webhdfs" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse_options("bookie", [*ARGUMENTS, "--data-dir", "x", "--cold-store", "file:///cold"])


@pytest.mark.parametrize("size", ["1025KiB", "1023KiB", "65GiB", "0"])
def test_a_journal_file_is_made_of_whole_blocks(
    size: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*ARGUMENTS, "--data-dir", "x", "--journal-file-size"]
    assert parse_options("bookie", [*arguments, "1028KiB"]).journal_file_bytes == 1028 * KIB
    with pytest.raises(SystemExit):
        parse_options("bookie", [*arguments, size])
    assert "must be a multiple of 4KiB from 1MiB to" in capsys.readouterr().err


def test_a_journal_is_told_how_its_files_begin(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*ARGUMENTS, "--data-dir", "x"]
    assert parse_options("bookie", arguments).first_journal_file_bytes is None
    first = [*arguments, "--journal-first-file-size"]
    assert parse_options("bookie", [*first, "8MiB"]).first_journal_file_bytes == 8 * MIB
    with pytest.raises(SystemExit):
        parse_options("bookie", [*first, "1025KiB"])
    assert "must be a multiple of 4KiB from 1MiB to" in capsys.readouterr().err


def test_gossip_can_be_switched_off_where_there_is_any() -> None:
    longest = [*ARGUMENTS, "--id", "x" * 240]
    assert parse_options("sequencer", longest).takes_part_in_gossip
    assert not parse_options("sequencer", [*longest[:-1], "x" * 241]).takes_part_in_gossip
    for role in ("bookie", "sequencer", "writeproxy"):
        arguments = [*ARGUMENTS, "--data-dir", "x"]
        assert parse_options(role, arguments).is_gossiping
        assert not parse_options(role, [*arguments, "--no-gossip"]).is_gossiping
    with pytest.raises(SystemExit):
        parse_options("readproxy", [*ARGUMENTS, "--no-gossip"])


def test_the_limits_of_clients_are_named_one_by_one() -> None:
    arguments = [*ARGUMENTS, "--client-limit", "calls_per_s=5", "--client-limit"]
    limits = parse_options("readproxy", [*arguments, "bytes_per_s=64MiB"]).client_limits
    assert (limits.calls_per_s, limits.bytes_per_s) == (5, 64 * MIB)
    assert limits.open_calls == ClientLimits().open_calls
    limits = parse_options("writeproxy", [*arguments, "open_calls=none"]).client_limits
    assert limits.open_calls is None
    assert parse_options("readproxy", ARGUMENTS).client_limits == ClientLimits()


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["calls=5"], "calls: not a known field"),
        (["calls_per_s=0"], "greater than or equal to 1"),
        (["calls_per_s"], "one NAME=VALUE"),
        (["open_calls=5", "open_calls=6"], "one NAME=VALUE"),
        (["bytes_per_s=1KiB"], "64KiB"),
        (["logs=5"], "logs: not a known field"),
    ],
)
def test_limits_that_are_none_are_refused(
    texts: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more = [word for text in texts for word in ("--client-limit", text)]
    with pytest.raises(SystemExit):
        parse_options("readproxy", [*ARGUMENTS, *more])
    assert said in capsys.readouterr().err
