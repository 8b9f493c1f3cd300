"""What a service is told on its command line: addresses, patience, where the archive lies.

Source: `duramen.runtime.service`, `duramen.runtime.role`.
"""

from __future__ import annotations

import pytest

from duramen.limits import LOST_BOOKIE_GRACE_US
from duramen.runtime.service import parse_options
from duramen.units import KIB, MINUTE, SECOND

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


@pytest.mark.parametrize("address", ["edge", ":80", "edge:", "edge:0", "edge:65536", "edge:http"])
def test_an_address_that_is_none_is_refused(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_options("sequencer", [*ARGUMENTS, "--advertise", address])
    assert "HOST:PORT" in capsys.readouterr().err


def test_a_sequencer_is_told_how_patient_its_audits_are() -> None:
    assert parse_options("sequencer", ARGUMENTS).lost_bookie_grace_us == LOST_BOOKIE_GRACE_US
    patience = ["--audit-interval", "5m", "--lost-bookie-grace", "1m30s"]
    options = parse_options("sequencer", [*ARGUMENTS, *patience])
    assert (options.audit_interval_us, options.lost_bookie_grace_us) == (5 * MINUTE, 90 * SECOND)
    with pytest.raises(SystemExit):
        parse_options("sequencer", [*ARGUMENTS, "--lost-bookie-grace", "soon"])


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
